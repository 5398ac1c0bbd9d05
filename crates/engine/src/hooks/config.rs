//! Configuration of hooks.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::config::{AsText, Problems, Size};
use memoird_core::outbox::{RetryPolicy, Subscription};
use serde::{Deserialize, Serialize};

use super::port::Hook;

/// The hooks and their limits. The three limits are in section `limits` of a configuration file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct HooksConfig {
    /// Maximum concurrent attempts, across all hooks.
    #[serde(rename = "hooks_under_way")]
    pub concurrency: usize,
    /// Maximum bytes of turns per attempt. A larger generation is cut to its newest turns.
    #[serde(rename = "hook_content_bytes", with = "AsText::<Size>")]
    pub content_bytes: usize,
    /// Without a journal, maximum bytes of turns and states in pending deliveries.
    ///
    /// At most a quarter of `limits.memory` applies.
    #[serde(rename = "hook_memory_bytes", with = "AsText::<Size>")]
    pub memory_bytes: usize,
    /// How long shutdown waits for running attempts and, without a journal, for pending deliveries.
    #[serde(skip)]
    pub drain: Duration,
    /// The hooks, with unique names.
    #[serde(skip)]
    pub hooks: Vec<HookConfig>,
}

#[derive(Clone, Debug)]
pub struct HookConfig {
    /// Name of the hook, and the ends that it is called for.
    pub subscription: Subscription,
    /// Timeout of an attempt.
    pub timeout: Duration,
    /// Maximum concurrent attempts, at least 1.
    pub concurrency: usize,
    /// Schedule of retries after a failure.
    pub retry: RetryPolicy,
    pub hook: Arc<dyn Hook>,
}

impl HooksConfig {
    pub fn check(&self, problems: &mut Problems) {
        problems.at_least_one("hooks_under_way", self.concurrency);
        problems.at_least_one("hook_content_bytes", self.content_bytes);
        problems.at_least_one("hook_memory_bytes", self.memory_bytes);
    }
}

impl Default for HooksConfig {
    fn default() -> Self {
        Self {
            concurrency: 8,
            content_bytes: 64 << 20,
            memory_bytes: 256 << 20,
            drain: Duration::from_secs(10),
            hooks: Vec::new(),
        }
    }
}
