//! Deliveries to hooks when generations end: subscriptions, states and retries.

use serde::{Deserialize, Serialize};

use crate::change::EndReason;
use crate::config::{AsText, Millis};
use crate::ids::{DeliveryId, HookName, SessionKey, TenantId};
use crate::time::Steady;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeliveryState {
    Pending,
    Done,
    /// Failed for good. Its content is stored until an operator retries or drops it.
    Dead,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Identifies the delivery. Receivers use it to detect repetitions.
    pub id: DeliveryId,
    pub key: SessionKey,
    pub reason: EndReason,
    pub state: DeliveryState,
    /// Attempts since the delivery was last requested.
    pub tries: u32,
    /// Error of the last attempt, or empty.
    pub last_error: String,
    /// When the next attempt is due. For a finished delivery, when it finished.
    pub due: Steady,
}

/// The ends for which a hook is called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subscription {
    pub hook: HookName,
    /// End reasons. [`EndReason::Ended`] includes every end by command.
    ///
    /// That is also a reset that requests hooks, and the shutdown of a daemon without a journal.
    pub on: Vec<EndReason>,
    /// Tenants to which it applies. Empty means all.
    pub tenants: Vec<TenantId>,
}

impl Subscription {
    pub fn wants(&self, tenant: &TenantId, reason: EndReason) -> bool {
        let is_its = self.tenants.is_empty() || self.tenants.contains(tenant);
        let by_command = matches!(reason, EndReason::Reset | EndReason::Shutdown);
        let is_on = |reason| self.on.contains(&reason);
        is_its && (is_on(reason) || by_command && is_on(EndReason::Ended))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryPolicy {
    /// Attempts before the delivery is given up. At least 1.
    #[serde(rename = "tries")]
    pub tries_max: u32,
    /// Pause after the first attempt in milliseconds.
    #[serde(rename = "pause", with = "AsText::<Millis>")]
    pub pause_ms_min: u64,
    /// Maximum pause in milliseconds.
    #[serde(rename = "pause_max", with = "AsText::<Millis>")]
    pub pause_ms_max: u64,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            tries_max: 20,
            pause_ms_min: 1_000,
            pause_ms_max: 10 * 60 * 1_000,
        }
    }
}

impl RetryPolicy {
    /// Returns the pause after this number of attempts, or `None` to give up.
    ///
    /// It is exponential with "equal jitter" (M. Brooker, "Exponential Backoff And Jitter", AWS
    /// Architecture Blog, 2015): half of the pause is fixed, and `random` determines the other
    /// half. A longer pause requested by the receiver applies, up to the maximum.
    pub fn pause_ms(&self, tries: u32, random: u64, asked_ms: Option<u64>) -> Option<u64> {
        if tries >= self.tries_max {
            return None;
        }
        let doublings = tries.saturating_sub(1).min(63);
        let most = self
            .pause_ms_min
            .saturating_mul(1 << doublings)
            .clamp(1, self.pause_ms_max.max(1));
        let jitter = random % (most / 2 + 1);
        let pause = most - most / 2 + jitter;
        Some(pause.max(asked_ms.unwrap_or(0).min(self.pause_ms_max)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_pause_grows_to_maximum_and_tries_are_limited() {
        let policy = RetryPolicy {
            tries_max: 5,
            pause_ms_min: 100,
            pause_ms_max: 300,
        };
        for (tries, shortest, longest) in [(1, 50, 100), (2, 100, 200), (3, 150, 300)] {
            for random in [0, 1, 49, 50, 51, u64::MAX] {
                let pause = policy.pause_ms(tries, random, None).unwrap();
                assert!((shortest..=longest).contains(&pause), "{tries}: {pause}");
            }
        }
        assert_eq!(policy.pause_ms(4, 0, Some(250)), Some(250), "as requested");
        assert_eq!(
            policy.pause_ms(4, 0, Some(9_999)),
            Some(300),
            "but at most the maximum"
        );
        assert_eq!(policy.pause_ms(5, 0, None), None);
        let odd = RetryPolicy {
            tries_max: u32::MAX,
            pause_ms_min: u64::MAX,
            pause_ms_max: 0,
        };
        assert_eq!(odd.pause_ms(4_000, u64::MAX, Some(u64::MAX)), Some(1));
    }

    #[test]
    fn ended_subscription_matches_every_end_by_command() {
        let tenant = TenantId::default_tenant();
        let on = |on: &[EndReason]| Subscription {
            hook: HookName::parse("a").unwrap(),
            on: on.to_vec(),
            tenants: Vec::new(),
        };
        let ended = on(&[EndReason::Ended]);
        for reason in [EndReason::Ended, EndReason::Reset, EndReason::Shutdown] {
            assert!(ended.wants(&tenant, reason));
        }
        assert!(!ended.wants(&tenant, EndReason::Expired));
        assert!(!on(&[EndReason::Reset]).wants(&tenant, EndReason::Ended));
        let others = Subscription {
            tenants: vec![TenantId::parse("b").unwrap()],
            ..ended
        };
        assert!(!others.wants(&tenant, EndReason::Ended));
    }
}
