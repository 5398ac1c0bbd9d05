//! Corrects counts of tokens by the tokens that a provider charged for earlier requests.

use serde::{Deserialize, Serialize};

/// What a provider charges for a request that was counted here, as a line:
///
/// ```text
/// charged = offset + factor * counted
/// ```
///
/// The offset is what the provider adds to every request (a prompt for its tools, the words
/// around messages), the factor is how its tokenizer differs. Both are found by recursive
/// least squares, as a Kalman filter with two states (R. E. Kalman, "A New Approach to Linear
/// Filtering and Prediction Problems", 1960). The first charges count fully. Later ones are
/// limited to [`SURPRISE_DEVIATIONS`] standard deviations, so that an absurd charge does little;
/// after [`SURPRISES_MAX`] in a row the model has changed, and charges count fully again.
/// Only arithmetic that is the same on every machine is used. It can be kept as JSON; what is
/// read back is brought into its bounds with the next charge, and by [`Calibration::repair`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Calibration {
    offset: f64,
    factor: f64,
    /// Variances of both, and their covariance.
    offset_variance: f64,
    factor_variance: f64,
    covariance: f64,
    /// How far charges were from the line, smoothed, as a share.
    spread: f64,
    /// Charges seen.
    samples: u32,
    /// The last of them that were further off than chance explains.
    surprises: u32,
}

const FACTOR_MIN: f64 = 0.5;
const FACTOR_MAX: f64 = 2.0;
const OFFSET_MIN: f64 = -5_000.0;
const OFFSET_MAX: f64 = 20_000.0;
/// What is known before the first charge, as standard deviations.
const OFFSET_DEVIATION: f64 = 300.0;
const FACTOR_DEVIATION: f64 = 0.05;
/// How both may drift from one charge to the next.
const OFFSET_DRIFT: f64 = 1.0;
const FACTOR_DRIFT: f64 = 0.001;
/// How far a charge may be off the line by chance: tokens, and a share of the request.
const NOISE_TOKENS: f64 = 3.0;
const NOISE_SHARE_MIN: f64 = 0.005;
const NOISE_SHARE_MAX: f64 = 0.1;
/// Charges that count fully.
const FULL_SAMPLES: u32 = 3;
/// What a charge may be off by, in standard deviations.
const SURPRISE_DEVIATIONS: f64 = 4.0;
const SURPRISES_MAX: u32 = 3;
const SPREAD_GAIN: f64 = 1.0 / 4.0;
/// A larger error says no more than this one.
const ERROR_MAX: f64 = 1.0;

/// A margin covers this many mean deviations, which is nine in ten of normal errors.
const SPREADS: f64 = 2.0;
const MARGIN_MIN: f64 = 0.01;
const MARGIN_MAX: f64 = 0.3;
/// After this many samples the spread that was seen counts as much as the margin that the
/// tokenizer states.
const HALF_TRUST_SAMPLES: f64 = 8.0;

impl Default for Calibration {
    fn default() -> Self {
        Self {
            offset: 0.0,
            factor: 1.0,
            offset_variance: OFFSET_DEVIATION * OFFSET_DEVIATION,
            factor_variance: FACTOR_DEVIATION * FACTOR_DEVIATION,
            covariance: 0.0,
            spread: 0.0,
            samples: 0,
            surprises: 0,
        }
    }
}

impl Calibration {
    /// What was counted for a request, uncorrected, and what the provider charged for it,
    /// cached tokens included. Nothing is learnt where one of them is 0.
    pub fn observe(&mut self, counted_tokens: u64, charged_tokens: u64) {
        if counted_tokens == 0 || charged_tokens == 0 {
            return;
        }
        let (counted, charged) = (counted_tokens as f64, charged_tokens as f64);
        let expected = self.charge(counted_tokens);
        let error = charged - expected;
        self.offset_variance += OFFSET_DRIFT * OFFSET_DRIFT;
        self.factor_variance += FACTOR_DRIFT * FACTOR_DRIFT;
        let share = self.spread.clamp(NOISE_SHARE_MIN, NOISE_SHARE_MAX);
        let noise = NOISE_TOKENS * NOISE_TOKENS + share * counted * share * counted;
        let of_offset = self.offset_variance + self.covariance * counted;
        let of_factor = self.covariance + self.factor_variance * counted;
        let variance = of_offset + of_factor * counted + noise;
        let limit = SURPRISE_DEVIATIONS * variance.sqrt();
        let is_surprise = self.samples >= FULL_SAMPLES && error.abs() > limit;
        let step = if is_surprise {
            error.clamp(-limit, limit)
        } else {
            error
        };

        self.offset += of_offset / variance * step;
        self.factor += of_factor / variance * step;
        self.offset_variance -= of_offset / variance * of_offset;
        self.covariance -= of_offset / variance * of_factor;
        self.factor_variance -= of_factor / variance * of_factor;
        // What the first charge is off by says nothing of how much charges vary.
        if self.samples > 0 {
            let error = (error / expected).abs().min(ERROR_MAX);
            self.spread += (error - self.spread) * SPREAD_GAIN;
        }
        self.samples = self.samples.saturating_add(1);
        self.surprises = if is_surprise { self.surprises + 1 } else { 0 };
        self.repair();
        if self.surprises >= SURPRISES_MAX {
            *self = Self {
                offset: self.offset,
                factor: self.factor,
                ..Self::default()
            };
        }
    }

    /// Brings all of it into its bounds, whatever was charged or read.
    pub fn repair(&mut self) {
        self.factor = self.factor.clamp(FACTOR_MIN, FACTOR_MAX);
        self.offset = self.offset.clamp(OFFSET_MIN, OFFSET_MAX);
        let prior = Self::default();
        self.offset_variance = self.offset_variance.clamp(0.0, prior.offset_variance);
        self.factor_variance = self.factor_variance.clamp(0.0, prior.factor_variance);
        let most = (self.offset_variance * self.factor_variance).sqrt();
        self.covariance = self.covariance.clamp(-most, most);
        self.spread = self.spread.clamp(0.0, ERROR_MAX);
    }

    /// Tokens that the provider will charge for a request that was counted so; at least 1.
    pub fn charge(&self, counted_tokens: u64) -> f64 {
        (self.offset + self.factor * counted_tokens as f64).max(1.0)
    }

    /// What a charge was beside the one that is expected for such a request, in charged tokens.
    /// It says what the next request of the same conversation will be charged beside that, so
    /// it is bounded: a third of what is expected and a thousand.
    #[allow(clippy::cast_possible_truncation, reason = "bounded")]
    pub fn surcharge(&self, counted_tokens: u64, charged_tokens: u64) -> i64 {
        let expected = self.charge(counted_tokens);
        let most = expected / 3.0 + 1_000.0;
        (charged_tokens as f64 - expected).clamp(-most, most) as i64
    }

    /// By what a count is multiplied, 0.5 to 2.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// Charged tokens that are added to that, whatever is counted; they may be fewer than 0.
    pub fn offset(&self) -> f64 {
        self.offset
    }

    /// How far a corrected count may still be off, as a share, 0.01 to 0.3: `base`, which the
    /// tokenizer states, and with more charges twice the spread seen.
    pub fn margin(&self, base: f64) -> f64 {
        let samples = f64::from(self.samples);
        let trust = samples / (samples + HALF_TRUST_SAMPLES);
        let margin = base + trust * (SPREADS * self.spread - base);
        margin.clamp(MARGIN_MIN, MARGIN_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After some requests of `counted` tokens, each charged `percent` of that and `offset`.
    fn after(
        mut calibration: Calibration,
        times: u32,
        counted: u64,
        percent: u64,
        offset: u64,
    ) -> Calibration {
        for _ in 0..times {
            calibration.observe(counted, counted * percent / 100 + offset);
        }
        calibration
    }

    fn assert_charges(calibration: &Calibration, counted: u64, charged: f64, share: f64) {
        let found = calibration.charge(counted);
        assert!(
            (found / charged - 1.0).abs() < share,
            "{counted}: {found:.0} for {charged:.0}, {calibration:?}"
        );
    }

    #[test]
    fn the_first_charge_counts_fully() {
        for (counted, percent, offset) in [
            (100, 100, 80),
            (2_000, 100, 500),
            (50_000, 115, 0),
            (400, 90, 0),
        ] {
            let found = after(Calibration::default(), 1, counted, percent, offset);
            let charged = (counted * percent / 100 + offset) as f64;
            assert_charges(&found, counted, charged, 0.02);
        }
    }

    #[test]
    fn a_constant_is_not_taken_for_a_factor() {
        let mut found = Calibration::default();
        for counted in (1..=12).map(|turn| turn * 700) {
            found.observe(counted, counted + 500);
        }
        assert!((found.factor() - 1.0).abs() < 0.01, "{found:?}");
        assert!((found.offset() - 500.0).abs() < 30.0, "{found:?}");
        assert_charges(&found, 60_000, 60_500.0, 0.01);
    }

    #[test]
    fn both_are_found_in_a_session_that_grows() {
        let mut found = Calibration::default();
        for counted in (1..=20).map(|turn| turn * 900) {
            found.observe(counted, counted * 112 / 100 + 300);
        }
        assert!((found.factor() - 1.12).abs() < 0.01, "{found:?}");
        assert_charges(&found, 40_000, 45_100.0, 0.02);
        assert!(found.margin(0.15) < 0.06, "{found:?}");
    }

    #[test]
    fn it_heals_after_the_model_changed() {
        let before = after(Calibration::default(), 100, 20_000, 140, 0);
        assert_charges(&before, 20_000, 28_000.0, 0.01);
        let healed = after(before, 20, 20_000, 90, 0);
        assert_charges(&healed, 20_000, 18_000.0, 0.02);
        let at_once = after(before, 1, 20_000, 90, 0);
        assert!(
            at_once.margin(0.02) > before.margin(0.02),
            "a surprise widens the margin"
        );
    }

    #[test]
    fn one_absurd_charge_does_little() {
        let calm = after(Calibration::default(), 50, 10_000, 110, 0);
        for charged in [1, 100, 10_000_000, u64::MAX] {
            let mut upset = calm;
            upset.observe(10_000, charged);
            assert_charges(&upset, 10_000, 11_000.0, 0.05);
            let healed = after(upset, 20, 10_000, 110, 0);
            assert_charges(&healed, 10_000, 11_000.0, 0.01);
            assert!(healed.margin(0.02) < 0.05, "{healed:?}");
        }
    }

    #[test]
    fn zeros_say_nothing() {
        let mut calibration = after(Calibration::default(), 10, 10_000, 100, 0);
        let calm = calibration;
        calibration.observe(0, 500);
        calibration.observe(500, 0);
        assert_eq!(calibration, calm);
    }

    #[test]
    fn everything_stays_in_its_bounds() {
        for (counted, charged) in [(1, u64::MAX), (u64::MAX, 1), (100_000, 5_000_000)] {
            let mut far = Calibration::default();
            for _ in 0..200 {
                far.observe(counted, charged);
                assert!((FACTOR_MIN..=FACTOR_MAX).contains(&far.factor()), "{far:?}");
                assert!((OFFSET_MIN..=OFFSET_MAX).contains(&far.offset()), "{far:?}");
                assert!(
                    (MARGIN_MIN..=MARGIN_MAX).contains(&far.margin(0.02)),
                    "{far:?}"
                );
            }
        }
        let exact = after(Calibration::default(), 500, 100_000, 100, 0);
        assert!((exact.margin(0.15) - MARGIN_MIN).abs() < 1e-9, "{exact:?}");
        assert!((Calibration::default().margin(0.15) - 0.15).abs() < 1e-9);
    }
}
