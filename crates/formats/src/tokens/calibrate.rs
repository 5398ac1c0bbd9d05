//! Corrects counts of tokens by the tokens that a provider charged for earlier requests.

/// How far a model's charges are from what was counted, and how much that varies.
///
/// The estimator is that of round-trip times (V. Jacobson, "Congestion Avoidance and
/// Control", 1988): a smoothed mean and a smoothed mean deviation. For a request that
/// was counted as `expected` and charged as `charged`
///
/// ```text
/// error  = charged / (expected * factor) - 1          at most 1
/// weight = expected / (expected + 1,000)              little requests weigh less
/// factor *= 1 + clamp(weight * error * gain, ±0.05)   gain = max(1/8, 1/samples)
/// spread += weight * (|error| - spread) / 4
/// ```
///
/// The bound of a step damps outliers and lets drift heal: no charge changes the factor by
/// more than a twentieth, and the factor stays between 0.5 and 2. Only
/// arithmetic that is the same on every machine is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Calibration {
    /// Charged tokens for each counted one.
    pub factor: f64,
    /// How far charges are from that, on average, as a share.
    pub spread: f64,
    /// Charges seen.
    pub samples: u32,
}

const FACTOR_MIN: f64 = 0.5;
const FACTOR_MAX: f64 = 2.0;
const STEP_MAX: f64 = 0.05;
/// A larger error says no more than this one.
const ERROR_MAX: f64 = 1.0;
const GAIN_MIN: f64 = 1.0 / 8.0;
const SPREAD_GAIN: f64 = 1.0 / 4.0;
/// A request of this many tokens weighs half: what is added to each request is then no
/// longer most of it.
const HALF_WEIGHT_TOKENS: f64 = 1_000.0;

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
            factor: 1.0,
            spread: 0.0,
            samples: 0,
        }
    }
}

impl Calibration {
    /// What was counted for a request, without the factor, and what the provider charged
    /// for it, cached tokens included. Nothing is learned where one of them is 0.
    pub fn observe(&mut self, expected_tokens: u64, charged_tokens: u64) {
        if expected_tokens == 0 || charged_tokens == 0 {
            return;
        }
        let (expected, charged) = (expected_tokens as f64, charged_tokens as f64);
        let factor = self.factor();
        let spread = self.sane_spread();
        let error = (charged / (expected * factor) - 1.0).min(ERROR_MAX);
        let weight = expected / (expected + HALF_WEIGHT_TOKENS);
        self.samples = self.samples.saturating_add(1);
        let gain = GAIN_MIN.max(1.0 / f64::from(self.samples));
        let step = (weight * error * gain).clamp(-STEP_MAX, STEP_MAX);
        self.factor = (factor * (1.0 + step)).clamp(FACTOR_MIN, FACTOR_MAX);
        self.spread = spread + weight * (error.abs() - spread) * SPREAD_GAIN;
    }

    /// The factor by which a count is multiplied, 0.5 to 2.
    pub fn factor(&self) -> f64 {
        match self.factor.is_finite() {
            true => self.factor.clamp(FACTOR_MIN, FACTOR_MAX),
            false => 1.0,
        }
    }

    /// How far a count that was multiplied may still be off, as a share, 0.01 to 0.3:
    /// `base`, what the tokenizer states, and with more charges twice the spread seen.
    pub fn margin(&self, base: f64) -> f64 {
        let base = if base.is_finite() { base } else { MARGIN_MAX };
        let samples = f64::from(self.samples);
        let trust = samples / (samples + HALF_TRUST_SAMPLES);
        let margin = base + trust * (SPREADS * self.sane_spread() - base);
        margin.clamp(MARGIN_MIN, MARGIN_MAX)
    }

    /// Fields may come from a disk.
    fn sane_spread(&self) -> f64 {
        match self.spread.is_finite() {
            true => self.spread.clamp(0.0, ERROR_MAX),
            false => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After so many requests of `expected` tokens, charged `percent` of that.
    fn after(mut calibration: Calibration, times: u32, expected: u64, percent: u64) -> Calibration {
        for _ in 0..times {
            calibration.observe(expected, expected * percent / 100);
        }
        calibration
    }

    #[test]
    fn it_finds_what_is_charged_in_some_tens_of_requests() {
        let cases = [
            (130, 10_000, 30),
            (100, 10_000, 1),
            (80, 10_000, 30),
            (130, 500, 90),
        ];
        for (percent, expected, times) in cases {
            let found = after(Calibration::default(), times, expected, percent).factor();
            let ratio = found / (percent as f64 / 100.0);
            assert!(
                (ratio - 1.0).abs() < 0.02,
                "{percent} % x {times}: {found:.3}"
            );
        }
    }

    #[test]
    fn it_heals_after_the_model_changed() {
        let before = after(Calibration::default(), 100, 20_000, 140);
        let healed = after(before, 40, 20_000, 90);
        assert!((healed.factor() / 0.9 - 1.0).abs() < 0.02, "{healed:?}");
        let at_once = after(before, 1, 20_000, 90);
        assert!(
            at_once.margin(0.02) > before.margin(0.02),
            "a surprise widens the margin"
        );
    }

    #[test]
    fn one_absurd_charge_does_little() {
        let calm = after(Calibration::default(), 50, 10_000, 110);
        for charged in [1, 100, 10_000_000, u64::MAX] {
            let mut upset = calm;
            upset.observe(10_000, charged);
            let change = upset.factor() / calm.factor() - 1.0;
            assert!(change.abs() <= 0.0501, "{charged}: {change:.3}");
            assert!(after(upset, 20, 10_000, 110).margin(0.02) < 0.05);
        }
    }

    #[test]
    fn small_requests_weigh_little_and_zeros_nothing() {
        let mut calibration = after(Calibration::default(), 10, 10_000, 100);
        let calm = calibration;
        calibration.observe(0, 500);
        calibration.observe(500, 0);
        assert_eq!(calibration, calm);
        let small = after(calm, 1, 10, 200).factor() - calm.factor();
        let large = after(calm, 1, 10_000, 120).factor() - calm.factor();
        assert!(small < large / 10.0, "{small} {large}");
    }

    #[test]
    fn the_factor_and_the_margin_stay_in_their_bounds() {
        for (percent, bound) in [(5_000, FACTOR_MAX), (1, FACTOR_MIN)] {
            let far = after(Calibration::default(), 500, 100_000, percent);
            assert!((far.factor() - bound).abs() < 1e-9, "{far:?}");
            assert!((far.margin(0.02) - MARGIN_MAX).abs() < 1e-9, "{far:?}");
        }
        let exact = after(Calibration::default(), 500, 100_000, 100);
        assert!((exact.margin(0.15) - MARGIN_MIN).abs() < 1e-9, "{exact:?}");
        assert!((Calibration::default().margin(0.15) - 0.15).abs() < 1e-9);
    }

    #[test]
    fn numbers_that_are_none_do_not_spread() {
        for none in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut calibration = Calibration {
                factor: none,
                spread: none,
                samples: u32::MAX,
            };
            assert!((calibration.factor() - 1.0).abs() < 1e-9);
            assert!((MARGIN_MIN..=MARGIN_MAX).contains(&calibration.margin(none)));
            calibration.observe(u64::MAX, 1);
            calibration.observe(1, u64::MAX);
            assert!(calibration.factor.is_finite() && calibration.spread.is_finite());
        }
    }
}
