//! Token budget of a window.

use serde::{Deserialize, Serialize};

use crate::error::CoreError;

/// Token budget of a model call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Maximum tokens of request and reply together.
    pub context_window: u64,
    /// Reserved for the reply.
    pub max_reply_tokens: u64,
    /// Reserved for counting errors.
    pub safety_headroom: u64,
    /// Reserved for the next tool results.
    pub tool_result_headroom: u64,
}

/// Budget fields that a call or a model's configuration overrides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct BudgetOverride {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context_window: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_reply_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub safety_headroom: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_result_headroom: Option<u64>,
}

impl BudgetOverride {
    /// Returns an override to a window of `tokens` without reserves.
    #[must_use]
    pub fn without_reserves(tokens: u64) -> Self {
        Self {
            context_window: Some(tokens),
            max_reply_tokens: Some(0),
            safety_headroom: Some(0),
            tool_result_headroom: Some(0),
        }
    }
}

/// Maximum attempt number. Later attempts get the same budget.
const ATTEMPT_MAX: u32 = 64;

impl Budget {
    /// Returns the default budget for a context window of this size.
    ///
    /// Models with large windows reason before they answer, which counts as reply tokens. In a
    /// small window, fixed reserves would leave no room, so they are shares of at most seven
    /// sixteenths in total.
    #[must_use]
    pub fn of_window(context_window: u64) -> Self {
        let (reply, safety, tool_results) = match context_window {
            500_000.. => (16_384, 4_096, 16_384),
            250_000.. => (8_192, 2_048, 8_192),
            64_000.. => (4_096, 2_048, 8_192),
            small => (small / 8, small / 16, small / 4),
        };
        Self {
            context_window,
            max_reply_tokens: reply,
            safety_headroom: safety,
            tool_result_headroom: tool_results,
        }
    }

    /// Returns this budget with the overrides applied.
    ///
    /// An overridden context window also replaces the reserves: those that are not overridden
    /// become the defaults for that window ([`Self::of_window`]).
    #[must_use]
    pub fn overridden(self, by: BudgetOverride) -> Self {
        let base = by.context_window.map_or(self, Self::of_window);
        Self {
            context_window: base.context_window,
            max_reply_tokens: by.max_reply_tokens.unwrap_or(base.max_reply_tokens),
            safety_headroom: by.safety_headroom.unwrap_or(base.safety_headroom),
            tool_result_headroom: by.tool_result_headroom.unwrap_or(base.tool_result_headroom),
        }
    }

    /// Returns the tokens available to a window, which is the context window minus the reserves.
    ///
    /// Each attempt after the first (0) subtracts a tenth.
    ///
    /// # Errors
    /// [`CoreError::BudgetNotPositive`] if nothing remains.
    pub fn input(self, attempt: u32) -> Result<u64, CoreError> {
        let kept_free = self
            .max_reply_tokens
            .saturating_add(self.safety_headroom)
            .saturating_add(self.tool_result_headroom);
        let whole = self.context_window.saturating_sub(kept_free);
        let left = (0..attempt.min(ATTEMPT_MAX)).fold(whole, |left, _| left - left.div_ceil(10));
        match left {
            0 => Err(CoreError::BudgetNotPositive {
                budget: self,
                attempt,
            }),
            left => Ok(left),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Budget = Budget {
        context_window: 200_000,
        max_reply_tokens: 4_096,
        safety_headroom: 2_048,
        tool_result_headroom: 8_192,
    };

    #[test]
    fn input_budget_is_context_window_minus_reserves() {
        assert_eq!(BUDGET.input(0), Ok(185_664));
    }

    #[test]
    fn overridden_context_window_scales_unset_reserves() {
        let window = BudgetOverride {
            context_window: Some(32_000),
            ..BudgetOverride::default()
        };
        let scaled = BUDGET.overridden(window);
        assert_eq!(scaled, Budget::of_window(32_000));
        assert_eq!(scaled.input(0), Ok(18_000));
        let with_reply = BudgetOverride {
            max_reply_tokens: Some(1_000),
            ..window
        };
        let expected = Budget {
            max_reply_tokens: 1_000,
            ..scaled
        };
        assert_eq!(BUDGET.overridden(with_reply), expected);
        let reserve_only = BudgetOverride {
            safety_headroom: Some(0),
            ..BudgetOverride::default()
        };
        let expected = Budget {
            safety_headroom: 0,
            ..BUDGET
        };
        assert_eq!(BUDGET.overridden(reserve_only), expected);
    }

    #[test]
    fn each_attempt_reduces_budget_by_a_tenth() {
        assert_eq!(BUDGET.input(1), Ok(167_097));
        assert_eq!(BUDGET.input(2), Ok(150_387));
        assert!(BUDGET.input(u32::MAX).is_ok_and(|left| left < 300));
    }

    #[test]
    fn budget_without_room_for_input_is_refused() {
        let none = BudgetOverride {
            context_window: Some(14_336),
            max_reply_tokens: Some(4_096),
            safety_headroom: Some(2_048),
            tool_result_headroom: Some(8_192),
        };
        let budget = BUDGET.overridden(none);
        let refused = CoreError::BudgetNotPositive { budget, attempt: 0 };
        assert_eq!(budget.input(0), Err(refused));
    }
}
