//! How many seeds a test tries: more where somebody has the time. The simulations of the
//! engine and the tests of the store include this file as well.

#![allow(dead_code, reason = "not all that include this file need all of it")]

use std::ops::RangeInclusive;

/// How often each number of seeds or of rounds is multiplied: `MEMOIRD_SEEDS=10x` for ten
/// times as many; once where the variable is not set.
#[allow(
    clippy::disallowed_methods,
    reason = "a variable of the environment says how hard these tests try"
)]
pub(crate) fn seeds_factor() -> u64 {
    let Ok(text) = std::env::var("MEMOIRD_SEEDS") else {
        return 1;
    };
    let factor = text
        .strip_suffix('x')
        .and_then(|digits| digits.parse().ok());
    factor
        .filter(|&factor| factor > 0)
        .unwrap_or_else(|| panic!("MEMOIRD_SEEDS={text} is not like 10x"))
}

/// The seeds from 1 to `count`, and as many more as the factor says.
pub(crate) fn seeds(count: u64) -> RangeInclusive<u64> {
    1..=count * seeds_factor()
}
