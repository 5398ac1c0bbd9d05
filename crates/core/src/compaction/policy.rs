//! The settings of compaction.

use serde::{Deserialize, Serialize};

use crate::config::{AsText, Millis, Percent, Problems};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct CompactionPolicy {
    /// If false, only calls start compactions.
    pub enabled: bool,
    /// Budget share, in percent, that triggers a compaction of a window: 1 to 99.
    #[serde(rename = "soft_watermark", with = "AsText::<Percent>")]
    pub soft_watermark_percent: u8,
    /// Budget share, in percent, that triggers a cut. Must exceed the soft watermark.
    #[serde(rename = "hard_watermark", with = "AsText::<Percent>")]
    pub hard_watermark_percent: u8,
    /// Minimum number of turns between compactions.
    ///
    /// It does not apply if turns would be left out without a summary.
    pub turns_between_min: u64,
    /// Maximum wait for a pending call or a streaming reply, in milliseconds.
    #[serde(rename = "defer_max", with = "AsText::<Millis>")]
    pub defer_ms_max: u64,
    /// Maximum size of a summary in tokens, not counting the current request.
    pub summary_tokens: SummaryTokens,
    pub breaker: SessionBreaker,
}

/// Maximum size of a summary in tokens: `auto` or a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "SummaryTokensText", into = "SummaryTokensText")]
pub enum SummaryTokens {
    /// An eighth of the tokens that system prompt and tools leave of the window, 512 to 16,384.
    #[default]
    Auto,
    Fixed(u64),
}

/// [`SummaryTokens`] in a configuration file.
#[derive(Deserialize, Serialize)]
#[serde(untagged)]
enum SummaryTokensText {
    Number(u64),
    Word(String),
}

impl TryFrom<SummaryTokensText> for SummaryTokens {
    type Error = String;

    fn try_from(text: SummaryTokensText) -> Result<Self, String> {
        match text {
            SummaryTokensText::Number(tokens) => Ok(Self::Fixed(tokens)),
            SummaryTokensText::Word(word) if word == "auto" => Ok(Self::Auto),
            SummaryTokensText::Word(word) => Err(format!(
                "invalid size {word:?}: expected auto or a number of tokens"
            )),
        }
    }
}

impl From<SummaryTokens> for SummaryTokensText {
    fn from(tokens: SummaryTokens) -> Self {
        match tokens {
            SummaryTokens::Auto => Self::Word("auto".to_owned()),
            SummaryTokens::Fixed(tokens) => Self::Number(tokens),
        }
    }
}

/// Maximum tokens of the user turns in a summary other than the opening. In a window of a million
/// tokens, a fixed share would repeat every old message of the user.
const USER_TURNS_TOKENS_MAX: u64 = 8_192;

/// Maximum sizes of a summary's parts, in tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SummaryBudget {
    /// Standing instructions, done list and recent details together.
    pub summary: u64,
    /// The opening of the current task.
    pub opening: u64,
    /// The newest other user turns.
    pub user_turns: u64,
}

impl SummaryBudget {
    /// The budget for a window with `rest` tokens besides system prompt and tools.
    pub fn of_rest(rest: u64, summary: SummaryTokens) -> Self {
        let most = match summary {
            SummaryTokens::Auto => (rest / 8).clamp(512, 16_384),
            SummaryTokens::Fixed(tokens) => tokens,
        };
        Self {
            // In a small window, leave room for the turns.
            summary: most.min(rest / 4).max(128),
            opening: rest / 5,
            user_turns: (rest / 16).min(USER_TURNS_TOKENS_MAX),
        }
    }

    /// Scales all parts down so that the total is at most `tokens`.
    #[must_use]
    pub fn within(self, tokens: u64) -> Self {
        let total = self.total();
        if total <= tokens {
            return self;
        }
        let part = |part: u64| {
            u64::try_from(u128::from(part) * u128::from(tokens) / u128::from(total)).unwrap_or(part)
        };
        Self {
            summary: part(self.summary),
            opening: part(self.opening),
            user_turns: part(self.user_turns),
        }
    }

    pub fn total(self) -> u64 {
        self.summary + self.opening + self.user_turns
    }
}

/// Circuit breaker for failing compactions of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionBreaker {
    /// Consecutive failures that open the breaker. At least 1.
    #[serde(rename = "failures")]
    pub failures_max: u32,
    /// Turns after which an open breaker admits a trial.
    #[serde(rename = "turns")]
    pub open_turns: u64,
    /// Time in milliseconds after which it admits a trial, if that is earlier.
    #[serde(rename = "cool_down", with = "AsText::<Millis>")]
    pub open_ms: u64,
}

impl Default for CompactionPolicy {
    fn default() -> Self {
        Self {
            enabled: true,
            soft_watermark_percent: 95,
            hard_watermark_percent: 99,
            turns_between_min: 5,
            defer_ms_max: 10 * 60 * 1_000,
            summary_tokens: SummaryTokens::Auto,
            breaker: SessionBreaker::default(),
        }
    }
}

impl Default for SessionBreaker {
    fn default() -> Self {
        Self {
            failures_max: 3,
            open_turns: 5,
            open_ms: 5 * 60 * 1_000,
        }
    }
}

impl CompactionPolicy {
    pub fn check(&self, problems: &mut Problems) {
        let (soft, hard) = (self.soft_watermark_percent, self.hard_watermark_percent);
        problems.percent("soft_watermark", soft, 1..=99);
        problems.percent("hard_watermark", hard, 1..=99);
        let key = "soft_watermark";
        problems.unless(soft < hard, key, "must be less than hard_watermark");
        let day_ms = 24 * 60 * 60 * 1_000;
        let breaker = &self.breaker;
        problems.range("turns_between_min", self.turns_between_min, 1..=1_000);
        if let SummaryTokens::Fixed(tokens) = self.summary_tokens {
            problems.range("summary_tokens", tokens, 256..=65_536);
        }
        problems.range("breaker.failures", breaker.failures_max.into(), 1..=100);
        problems.range("breaker.turns", breaker.open_turns, 1..=1_000);
        for (key, ms) in [
            ("defer_max", self.defer_ms_max),
            ("breaker.cool_down", breaker.open_ms),
        ] {
            problems.unless((1..=day_ms).contains(&ms), key, "must be 1ms to 24h");
        }
    }
}
