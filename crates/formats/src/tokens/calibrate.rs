//! Corrects token counts by what providers charged for earlier requests.
//!
//! A line (offset and factor) is stored for each tenant and model across restarts. In addition,
//! each session records the error of its last charge. A window leaves room for both.

use serde::{Deserialize, Serialize};

use super::Unseen;

/// Uncorrected token count of a request, and the tokens that its provider charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    pub counted: u64,
    pub charged: u64,
}

impl Charge {
    /// Whether the figures are consistent.
    ///
    /// If they are too far apart, the bot reported something else.
    pub fn is_plausible(self) -> bool {
        let (counted, charged) = (self.counted, self.charged);
        let least = (counted / 4).saturating_sub(1_000).max(1);
        let most = counted.saturating_mul(4).saturating_add(50_000);
        counted > 0 && (least..=most).contains(&charged)
    }
}

/// Predicts what a provider charges for a request counted here, as a line:
///
/// ```text
/// charged = offset + factor * counted
/// ```
///
/// The offset is what the provider adds to every request (a prompt for its tools, the text around
/// messages). The factor is the difference between tokenizers. Both are estimated by recursive
/// least squares, as a Kalman filter with two states (R. E. Kalman, "A New Approach to Linear
/// Filtering and Prediction Problems", 1960).
///
/// The first charges count fully. Later ones are limited to [`SURPRISE_DEVIATIONS`] standard
/// deviations, so that outliers have little effect. After [`SURPRISES_MAX`] outliers in a row the
/// model is assumed to have changed, and charges count fully again.
///
/// Only operations with the same result on every machine are used. The state can be stored as JSON.
/// Out-of-range values are clamped by the next charge, and by [`Calibration::repair`].
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Calibration {
    offset: f64,
    factor: f64,
    /// Variances of both, and their covariance.
    offset_variance: f64,
    factor_variance: f64,
    covariance: f64,
    /// Smoothed relative error of the line.
    spread: f64,
    /// Number of charges seen.
    samples: u32,
    /// Number of consecutive outliers, up to the last charge.
    surprises: u32,
}

// The lower bounds are tighter: counts that are too low make windows that a provider rejects.
const FACTOR_MIN: f64 = 0.8;
const FACTOR_MAX: f64 = 2.0;
const OFFSET_MIN: f64 = -100.0;
const OFFSET_MAX: f64 = 20_000.0;
/// Standard deviations before the first charge.
const OFFSET_DEVIATION: f64 = 300.0;
const FACTOR_DEVIATION: f64 = 0.05;
/// Drift of both from one charge to the next.
const OFFSET_DRIFT: f64 = 1.0;
const FACTOR_DRIFT: f64 = 0.001;
/// Random error of a charge, in tokens and as a share of the request.
///
/// Each conversation has its own tools and prompts, with their own count errors.
const NOISE_TOKENS: f64 = 60.0;
const NOISE_SHARE_MIN: f64 = 0.005;
const NOISE_SHARE_MAX: f64 = 0.1;
/// Random error of the growth of one conversation, and minimum growth for an observation.
const GROWTH_NOISE_TOKENS: f64 = 10.0;
const GROWTH_TOKENS_MIN: f64 = 100.0;
/// Limits of a conversation's surcharge and discount, in tokens.
///
/// They are added to a third of the expected charge, and to a tenth.
const SURCHARGE_TOKENS_MAX: f64 = 1_000.0;
const DISCOUNT_TOKENS_MAX: f64 = 200.0;
const FULL_SAMPLES: u32 = 3;
/// Maximum error of a charge in standard deviations. Beyond it, the charge is an outlier.
const SURPRISE_DEVIATIONS: f64 = 4.0;
const SURPRISES_MAX: u32 = 3;
const SPREAD_GAIN: f64 = 1.0 / 4.0;
/// The relative error of a smaller request is based on this number of tokens.
const SPREAD_TOKENS_MIN: f64 = 10_000.0;
/// Larger relative errors count as this one.
const ERROR_MAX: f64 = 1.0;

/// A margin covers this many mean deviations, which is nine in ten of normal errors.
const SPREADS: f64 = 2.0;
const MARGIN_MIN: f64 = 0.005;
const MARGIN_MAX: f64 = 0.3;
/// Maximum shares of a window's budget for unseen tokens.
///
/// The first applies before the first report, the second after the offset is known.
const ALLOWANCE_SHARE_FIRST: f64 = 0.0225;
const ALLOWANCE_SHARE_LATER: f64 = 0.009;
/// Number of samples that give the observed spread the same weight as the tokenizer's margin.
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
    /// Learns from a charge, cached tokens included. Implausible charges are ignored.
    pub fn observe(&mut self, charge: Charge) {
        if !charge.is_plausible() {
            return;
        }
        let Charge { counted, charged } = charge;
        let expected = self.expected(counted);
        let (counted, charged) = (counted as f64, charged as f64);
        let share = self.spread.clamp(NOISE_SHARE_MIN, NOISE_SHARE_MAX) * counted;
        let noise = NOISE_TOKENS * NOISE_TOKENS + share * share;
        let is_limited = self.samples >= FULL_SAMPLES;
        self.offset_variance += OFFSET_DRIFT * OFFSET_DRIFT;
        let is_surprise = self.correct([1.0, counted], charged - expected, noise, is_limited);
        // One charge has no spread. A constant that the provider adds is a large share of a small
        // request, and a negligible share of a large one.
        if self.samples > 0 {
            let tokens = ((charged - expected).abs() - NOISE_TOKENS).max(0.0);
            let error = (tokens / expected.max(SPREAD_TOKENS_MIN)).min(ERROR_MAX);
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

    /// Learns the factor from two charges of one conversation, whose offset is the same.
    pub fn observe_growth(&mut self, before: Charge, after: Charge) {
        let counted = after.counted as f64 - before.counted as f64;
        if counted.abs() < GROWTH_TOKENS_MIN {
            return;
        }
        let error = after.charged as f64 - before.charged as f64 - self.factor * counted;
        let share = NOISE_SHARE_MIN * counted;
        let noise = GROWTH_NOISE_TOKENS * GROWTH_NOISE_TOKENS + share * share;
        self.factor_variance += FACTOR_DRIFT * FACTOR_DRIFT;
        self.correct([0.0, counted], error, noise, true);
        self.repair();
    }

    /// Corrects offset and factor by the error of `weights · (offset, factor)`.
    ///
    /// Returns whether the error is an outlier.
    fn correct(&mut self, weights: [f64; 2], error: f64, noise: f64, is_limited: bool) -> bool {
        let [one, counted] = weights;
        let of_offset = self.offset_variance * one + self.covariance * counted;
        let of_factor = self.covariance * one + self.factor_variance * counted;
        let variance = of_offset * one + of_factor * counted + noise;
        let limit = SURPRISE_DEVIATIONS * variance.sqrt();
        let is_surprise = is_limited && error.abs() > limit;
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
        is_surprise
    }

    /// Clamps all values to their valid ranges.
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

    /// Returns the expected charge for a request with this count, at least 1 token.
    pub fn expected(&self, counted: u64) -> f64 {
        (self.offset + self.factor * counted as f64).max(1.0)
    }

    /// Difference of a charge from the expected one, in charged tokens.
    ///
    /// The next request of the same conversation is expected to have the same difference.
    ///
    /// It is bounded, because a bot may report any figure: upwards to a third of the expected
    /// charge plus 1,000 tokens, downwards to a tenth plus 200 tokens.
    pub fn surcharge(&self, charge: Charge) -> f64 {
        // Not `expected`, which is at least 1: the difference is added to the line.
        let line = self.offset + self.factor * charge.counted as f64;
        let surcharge_max = line.max(0.0) / 3.0 + SURCHARGE_TOKENS_MAX;
        let discount_max = line.max(0.0) / 10.0 + DISCOUNT_TOKENS_MAX;
        (charge.charged as f64 - line).clamp(-discount_max, surcharge_max)
    }

    /// Factor of a count, 0.8 to 2.
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// Charged tokens added to the scaled count. May be negative.
    pub fn offset(&self) -> f64 {
        self.offset
    }

    /// Remaining relative error of a corrected count, 0.005 to 0.3.
    ///
    /// Moves from `base`, the tokenizer's own margin, to twice the observed spread as charges
    /// accumulate.
    pub fn margin(&self, base: f64) -> f64 {
        let samples = f64::from(self.samples);
        let trust = samples / (samples + HALF_TRUST_SAMPLES);
        let margin = base + trust * (SPREADS * self.spread - base);
        margin.clamp(MARGIN_MIN, MARGIN_MAX)
    }

    /// Tokens that a window of `input_budget` tokens leaves free for unseen ones of the provider.
    ///
    /// Shrinks from `unseen.first` to `unseen.later` as charges determine the offset, and is
    /// limited to a small share of the budget.
    pub fn allowance(&self, unseen: Unseen, input_budget: u64) -> f64 {
        let unknown = (self.offset_variance.sqrt() / OFFSET_DEVIATION).min(1.0);
        let tokens = (unseen.first as f64 * unknown).max(unseen.later as f64);
        let share = (ALLOWANCE_SHARE_FIRST * unknown).max(ALLOWANCE_SHARE_LATER);
        tokens.min(share * input_budget as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNSEEN: Unseen = Unseen {
        first: 1_000,
        later: 100,
    };

    #[test]
    fn allowance_shrinks_with_each_charge() {
        let mut calibration = Calibration::default();
        let mut before = calibration.allowance(UNSEEN, 200_000);
        assert!((before - 1_000.0).abs() < 1e-9, "{before}");
        for number in 1..5 {
            calibration.observe(charge(1_000 * number, 1_000 * number + 80));
            let after = calibration.allowance(UNSEEN, 200_000);
            assert!(after < before, "{after} after {before}");
            before = after;
        }
        assert!(before < 250.0, "{before}");
    }

    #[test]
    fn margin_and_allowance_take_a_small_share_of_any_budget() {
        let first = Calibration::default();
        let later = after(first, 3, 400, 104, 30);
        for input_budget in [2_000, 4_608, 32_000, 185_664, 1_000_000] {
            let share = |calibration: &Calibration| {
                let tokens = calibration.allowance(UNSEEN, input_budget);
                calibration.margin(0.015) + tokens / input_budget as f64
            };
            assert!(share(&first) <= 0.04 + 1e-9, "{}", share(&first));
            assert!(share(&later) <= 0.02, "{} {later:?}", share(&later));
        }
    }

    #[test]
    fn a_few_tokens_on_small_requests_do_not_widen_the_margin() {
        let mut calibration = Calibration::default();
        for number in 1..10 {
            calibration.observe(charge(40, 40 + 20 * (number % 2)));
        }
        assert!(calibration.margin(0.015) < 0.015, "{calibration:?}");
    }

    fn charge(counted: u64, charged: u64) -> Charge {
        Charge { counted, charged }
    }

    /// Observes `times` requests of `counted` tokens, each charged `percent` of that and `offset`.
    fn after(
        mut calibration: Calibration,
        times: u32,
        counted: u64,
        percent: u64,
        offset: u64,
    ) -> Calibration {
        for _ in 0..times {
            calibration.observe(charge(counted, counted * percent / 100 + offset));
        }
        calibration
    }

    fn assert_charges(calibration: &Calibration, counted: u64, charged: f64, share: f64) {
        let found = calibration.expected(counted);
        assert!(
            (found / charged - 1.0).abs() < share,
            "{counted}: {found:.0} for {charged:.0}, {calibration:?}"
        );
    }

    #[test]
    fn first_charge_counts_fully() {
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
    fn constant_offset_is_not_mistaken_for_factor() {
        let mut found = Calibration::default();
        for counted in (1..=12).map(|turn| turn * 700) {
            found.observe(charge(counted, counted + 500));
        }
        assert!((found.factor() - 1.0).abs() < 0.01, "{found:?}");
        assert!((found.offset() - 500.0).abs() < 30.0, "{found:?}");
        assert_charges(&found, 60_000, 60_500.0, 0.01);
    }

    #[test]
    fn factor_and_offset_are_found_in_growing_session() {
        let mut found = Calibration::default();
        for counted in (1..=20).map(|turn| turn * 900) {
            found.observe(charge(counted, counted * 112 / 100 + 300));
        }
        assert!((found.factor() - 1.12).abs() < 0.01, "{found:?}");
        assert_charges(&found, 40_000, 45_100.0, 0.02);
        assert!(found.margin(0.15) < 0.06, "{found:?}");
    }

    #[test]
    fn growth_of_conversations_reveals_factor_despite_offsets() {
        let mut found = Calibration::default();
        for offset in [0, 180, 700, 20, 400] {
            let mut before = None;
            for counted in (1..=4).map(|turn| turn * 600) {
                let after = charge(counted, counted * 115 / 100 + offset);
                if let Some(before) = before {
                    found.observe_growth(before, after);
                }
                found.observe(after);
                before = Some(after);
            }
        }
        assert!((found.factor() - 1.15).abs() < 0.03, "{found:?}");
    }

    #[test]
    fn surcharge_of_conversation_is_bounded() {
        let found = Calibration::default();
        assert!((found.surcharge(charge(1_000, 1_200)) - 200.0).abs() < 1e-9);
        assert!((found.surcharge(charge(1_000, 9_000)) - 1_333.3).abs() < 1.0);
        assert!((found.surcharge(charge(9_000, 1_250)) + 1_100.0).abs() < 1.0);
    }

    #[test]
    fn charge_of_a_small_request_corrects_a_negative_offset() {
        let found = after(Calibration::default(), 20, 2_000, 60, 0);
        assert!(found.offset() < 0.0, "{found:?}");
        let small = charge(40, 40);
        let corrected = found.offset() + found.factor() * 40.0 + found.surcharge(small);
        assert!((corrected - 40.0).abs() < 1e-6, "{corrected}");
    }

    #[test]
    fn calibration_recovers_after_model_change() {
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
    fn one_absurd_charge_has_little_effect() {
        let calm = after(Calibration::default(), 50, 10_000, 110, 0);
        for charged in [1, 100, 60_000, u64::MAX] {
            let mut upset = calm;
            upset.observe(charge(10_000, charged));
            assert_charges(&upset, 10_000, 11_000.0, 0.05);
            let healed = after(upset, 20, 10_000, 110, 0);
            assert_charges(&healed, 10_000, 11_000.0, 0.01);
            assert!(healed.margin(0.02) < 0.05, "{healed:?}");
        }
    }

    #[test]
    fn implausible_charges_are_ignored() {
        let mut calibration = after(Calibration::default(), 10, 10_000, 100, 0);
        let calm = calibration;
        for (counted, charged) in [
            (0, 500),
            (500, 0),
            (10_000, u64::MAX),
            (10_000, 1),
            (u64::MAX, 1),
        ] {
            calibration.observe(charge(counted, charged));
        }
        assert_eq!(calibration, calm);
    }

    #[test]
    fn factor_offset_and_margin_stay_bounded() {
        for (counted, charged) in [(1, 50_000), (4_000, 1), (100_000, 400_000)] {
            let mut far = Calibration::default();
            for _ in 0..200 {
                far.observe(charge(counted, charged));
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
