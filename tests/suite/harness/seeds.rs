//! The number of seeds that a test tries, adjustable for longer runs.
//!
//! The simulations of the engine and the tests of the store include this file, too.

#![allow(dead_code, reason = "not all that include this file need all of it")]

use std::ops::RangeInclusive;

/// Multiplier for the number of seeds or rounds, from `MEMOIRD_SEEDS`, such as `10x`. Default 1.
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

/// The seeds from 1 to `count` times the factor.
pub(crate) fn seeds(count: u64) -> RangeInclusive<u64> {
    1..=count * seeds_factor()
}
