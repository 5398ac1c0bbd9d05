//! What an operator decides of hooks.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::config::{AsText, Problems, Size};
use memoird_core::outbox::{RetryPolicy, Subscription};
use serde::{Deserialize, Serialize};

use super::port::Hook;

/// The hooks, and their limits. The three limits stand in the section `limits` of a
/// configuration file.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct HooksConfig {
    /// Deliveries under way at once, of all hooks.
    #[serde(rename = "hooks_under_way")]
    pub concurrency: usize,
    /// Bytes of turns that one delivery holds; of a larger generation the newest turns.
    #[serde(rename = "hook_content_bytes", with = "AsText::<Size>")]
    pub content_bytes: usize,
    /// Without a journal: bytes of turns and states that may be owed, and a quarter of
    /// `limits.memory` at most.
    #[serde(rename = "hook_memory_bytes", with = "AsText::<Size>")]
    pub memory_bytes: usize,
    /// How long deliveries may take when the daemon stops: those under way, and without a
    /// journal all that are owed.
    #[serde(skip)]
    pub drain: Duration,
    /// The hooks, each with a name of its own.
    #[serde(skip)]
    pub hooks: Vec<HookConfig>,
}

/// One hook.
#[derive(Clone, Debug)]
pub struct HookConfig {
    /// Its name, and for what it is called.
    pub subscription: Subscription,
    /// How long one delivery may take.
    pub timeout: Duration,
    /// Its deliveries under way at once. At least 1.
    pub concurrency: usize,
    /// When a delivery that failed is tried again.
    pub retry: RetryPolicy,
    /// What does it.
    pub hook: Arc<dyn Hook>,
}

impl HooksConfig {
    /// Adds the problems of its limits.
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
