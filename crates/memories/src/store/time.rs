//! Times as single integers with the same order.

use std::time::Duration;

use memoird_core::time::Timestamp;

/// From this time on (in the year 2252), nanoseconds would overflow and microseconds are stored.
const COARSE_FROM_SECONDS: i64 = 8_900_000_000;
const NANOS: i64 = 1_000_000_000;
const MICROS: i64 = 1_000_000;

/// A day in the unit of [`moment`], for times before [`COARSE_FROM_SECONDS`].
pub(super) const DAY: i64 = 24 * 60 * 60 * NANOS;

/// Encodes a time.
pub(super) fn moment(at: Timestamp) -> i64 {
    let (seconds, nanos) = (at.seconds(), i64::from(at.nanos()));
    if seconds < COARSE_FROM_SECONDS {
        seconds * NANOS + nanos
    } else {
        COARSE_FROM_SECONDS * NANOS + (seconds - COARSE_FROM_SECONDS) * MICROS + nanos / 1_000
    }
}

/// Decodes a time.
pub(super) fn timestamp(moment: i64) -> Timestamp {
    let coarse = moment - COARSE_FROM_SECONDS * NANOS;
    let (seconds, nanos) = if coarse < 0 {
        (moment.div_euclid(NANOS), moment.rem_euclid(NANOS))
    } else {
        (
            COARSE_FROM_SECONDS + coarse / MICROS,
            coarse % MICROS * 1_000,
        )
    };
    Timestamp::new(seconds, u32::try_from(nanos).unwrap_or(0)).unwrap_or_default()
}

pub(crate) fn before(at: Timestamp, span: Duration) -> Timestamp {
    Timestamp::from_ms(at.as_ms().saturating_sub(ms(span)))
}

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
    fn moments_round_trip_in_order() {
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
