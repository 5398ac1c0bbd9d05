//! Moments as one integer that sorts like they do.

use std::time::Duration;

use memoird_core::time::Timestamp;

/// From here on (in the year 2252) nanoseconds would not fit; microseconds are kept.
const COARSE_FROM_SECONDS: i64 = 8_900_000_000;
const NANOS: i64 = 1_000_000_000;
const MICROS: i64 = 1_000_000;

/// A day in the unit of [`moment`], for moments that are not far ahead.
pub(super) const DAY: i64 = 24 * 60 * 60 * NANOS;

/// The moment as it is stored.
pub(super) fn moment(at: Timestamp) -> i64 {
    let (seconds, nanos) = (at.seconds(), i64::from(at.nanos()));
    match seconds < COARSE_FROM_SECONDS {
        true => seconds * NANOS + nanos,
        false => {
            COARSE_FROM_SECONDS * NANOS + (seconds - COARSE_FROM_SECONDS) * MICROS + nanos / 1_000
        }
    }
}

/// The moment that [`moment`] stored.
pub(super) fn timestamp(moment: i64) -> Timestamp {
    let coarse = moment - COARSE_FROM_SECONDS * NANOS;
    let (seconds, nanos) = match coarse < 0 {
        true => (moment.div_euclid(NANOS), moment.rem_euclid(NANOS)),
        false => (
            COARSE_FROM_SECONDS + coarse / MICROS,
            coarse % MICROS * 1_000,
        ),
    };
    Timestamp::new(seconds, u32::try_from(nanos).unwrap_or(0)).unwrap_or_default()
}

/// The moment that lies so far before another.
pub(crate) fn before(at: Timestamp, span: Duration) -> Timestamp {
    Timestamp::from_ms(at.as_ms().saturating_sub(ms(span)))
}

/// The moment that lies so far after another.
pub(crate) fn after(at: Timestamp, span: Duration) -> Timestamp {
    Timestamp::from_ms(at.as_ms().saturating_add(ms(span)))
}

pub(crate) fn ms(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_reads_back_and_sorts_as_it_was() {
        let last = Timestamp::SECONDS_MAX;
        let moments = [
            (0, 0),
            (0, 1),
            (1, 999_999_999),
            (8_899_999_999, 999_999_999),
        ]
        .into_iter()
        .chain([
            (8_900_000_000, 0),
            (8_900_000_000, 7_000),
            (last, 999_999_000),
        ])
        .map(|(seconds, nanos)| Timestamp::new(seconds, nanos).unwrap());
        let moments: Vec<Timestamp> = moments.collect();
        for pair in moments.windows(2) {
            assert!(moment(pair[0]) < moment(pair[1]), "{pair:?}");
        }
        for at in moments {
            assert_eq!(timestamp(moment(at)), at);
        }
    }
}
