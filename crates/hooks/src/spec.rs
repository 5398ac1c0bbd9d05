//! Configuration of a hook: its kind, and when it is called.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::change::EndReason;
use memoird_core::config::{AsText, Environment, Problem, Problems, Span};
use memoird_core::ids::{HookName, TenantId};
use memoird_core::outbox::{RetryPolicy, Subscription};
use memoird_engine::{Hook, HookConfig};
use serde::{Deserialize, Serialize};

use crate::exec::{ExecConfig, ExecHook};
use crate::git::{GitConfig, GitHook};
use crate::webhook::{WebhookConfig, WebhookHook};

/// A hook. Exactly one of `git`, `exec` and `webhook` is set.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct HookSpec {
    /// Unique name.
    pub name: String,
    /// The reasons of ends for which it is called.
    #[serde(default = "every_end")]
    pub on: Vec<EndReason>,
    /// Only sessions of these tenants. Empty for all.
    #[serde(default)]
    pub tenants: Vec<String>,
    /// Time limit of one delivery.
    #[serde(default = "timeout", with = "AsText::<Span>")]
    pub timeout: Duration,
    /// Maximum number of concurrent deliveries. At least 1.
    #[serde(default = "concurrency")]
    pub concurrency: usize,
    /// When a failed delivery is retried.
    #[serde(default)]
    pub retry: RetryPolicy,
    /// Commits a checkpoint to a repository per tenant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub git: Option<GitConfig>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecConfig>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub webhook: Option<WebhookConfig>,
}

fn every_end() -> Vec<EndReason> {
    EndReason::ALL.to_vec()
}

fn timeout() -> Duration {
    Duration::from_secs(30)
}

fn concurrency() -> usize {
    2
}

impl HookSpec {
    /// Creates the hook. `None` if the configuration is invalid; the errors are added to
    /// `problems`.
    pub fn build(
        &self,
        environment: &dyn Environment,
        problems: &mut Problems,
    ) -> Option<HookConfig> {
        let is_called = !self.on.is_empty();
        problems.unless(is_called, "on", "is empty: the hook would never be called");
        problems.unless(
            self.concurrency > 0 && !self.timeout.is_zero(),
            "",
            "concurrency must be at least 1, timeout more than zero",
        );
        let retry = &self.retry;
        problems.unless(
            retry.tries_max > 0 && retry.pause_ms_min <= retry.pause_ms_max,
            "retry",
            "tries must be at least 1, pause at most pause_max",
        );
        let parsed: Result<Vec<TenantId>, _> =
            self.tenants.iter().map(|id| TenantId::parse(id)).collect();
        let tenants = problems.take("", parsed.map_err(|error| Problem::new("tenants", error)));
        let parsed_name = HookName::parse(&self.name);
        let name = problems.take("", parsed_name.map_err(|error| Problem::new("name", error)));
        let hook = problems.take("", self.hook(environment));
        Some(HookConfig {
            hook: hook?,
            subscription: Subscription {
                hook: name?,
                on: self.on.clone(),
                tenants: tenants?,
            },
            timeout: self.timeout,
            concurrency: self.concurrency,
            retry: self.retry,
        })
    }

    fn hook(&self, environment: &dyn Environment) -> Result<Arc<dyn Hook>, Problem> {
        match (&self.git, &self.exec, &self.webhook) {
            (Some(git), None, None) => match git.problem() {
                Some(problem) => Err(Problem::new("git", problem)),
                None => Ok(Arc::new(GitHook::new(git.clone()))),
            },
            (None, Some(exec), None) => shared("exec", ExecHook::new(exec.clone(), environment)),
            (None, None, Some(web)) => shared("webhook", WebhookHook::new(web, environment)),
            _ => Err(Problem::new(
                "",
                "must have exactly one of git, exec, webhook",
            )),
        }
    }
}

/// Boxes the hook, or reports the error under the key of its kind.
fn shared<H: Hook + 'static>(key: &str, hook: Result<H, String>) -> Result<Arc<dyn Hook>, Problem> {
    match hook {
        Ok(hook) => Ok(Arc::new(hook)),
        Err(problem) => Err(Problem::new(key, problem)),
    }
}
