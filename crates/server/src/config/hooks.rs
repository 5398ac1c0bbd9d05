//! The hooks of the file: what each is, and when it is called.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use memoird_core::change::EndReason;
use memoird_core::ids::{HookName, TenantId};
use memoird_core::outbox::{RetryPolicy, Subscription};
use memoird_engine::{Hook, HookConfig};
use memoird_hooks::exec::{ExecConfig, ExecHook};
use memoird_hooks::git::{GitConfig, GitHook};
use memoird_hooks::webhook::{WebhookConfig, WebhookHook, WebhookSecret};
use serde::{Deserialize, Serialize};

use super::file::Problems;
use super::secret::{SecretShape, environment};
use super::units::Span;

/// A hook, of one kind.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HookShape {
    name: String,
    #[serde(default = "every_end")]
    on: Vec<EndShape>,
    #[serde(default)]
    tenants: Vec<String>,
    #[serde(default = "timeout")]
    timeout: Span,
    #[serde(default = "concurrency")]
    concurrency: usize,
    #[serde(default)]
    retry: RetryShape,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    git: Option<GitShape>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    exec: Option<ExecShape>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    webhook: Option<WebhookShape>,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
enum EndShape {
    Expired,
    Evicted,
    Ended,
    Reset,
    Shutdown,
}

#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct RetryShape {
    tries: u32,
    pause: Span,
    pause_max: Span,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
struct GitShape {
    dir: PathBuf,
    /// Once it chose repositories with a work tree.
    #[serde(skip_serializing)]
    worktree: bool,
    branch: String,
    author_name: String,
    author_email: String,
    batch_max: usize,
    batch_wait: Span,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct ExecShape {
    argv: Vec<String>,
    #[serde(default = "path_only")]
    env: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    dir: Option<PathBuf>,
}

#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct WebhookShape {
    url: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    secret: Option<SecretShape>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    secret_headers: BTreeMap<String, SecretShape>,
    #[serde(default)]
    allow_private: bool,
    #[serde(default = "connect_timeout")]
    connect_timeout: Span,
}

/// The hooks, each with a name of its own.
pub(super) fn hooks(shapes: &[HookShape], problems: &mut Problems) -> Vec<HookConfig> {
    let mut names = HashMap::new();
    let mut built = Vec::new();
    for (place, shape) in shapes.iter().enumerate() {
        if let Some(first) = names.insert(&shape.name, place) {
            problems.add(
                &format!("hooks[{place}].name"),
                format!("is that of hooks[{first}]"),
            );
        }
        built.extend(shape.build(place, problems));
    }
    built
}

impl HookShape {
    /// The files that its secrets are in.
    pub(super) fn files(&self) -> impl Iterator<Item = PathBuf> {
        let webhook = self.webhook.iter();
        let secrets = webhook
            .flat_map(|webhook| webhook.secret.iter().chain(webhook.secret_headers.values()));
        secrets.filter_map(|secret| secret.file.clone())
    }

    /// Where it writes checkpoints, if it does.
    pub(super) fn git(&self) -> Option<GitConfig> {
        self.git.as_ref().map(GitShape::config)
    }

    fn build(&self, place: usize, problems: &mut Problems) -> Option<HookConfig> {
        let at = |field: &str| format!("hooks[{place}]{field}");
        let mut tell = |field: &str, problem: String| problems.add(&at(field), problem);
        if self.on.is_empty() {
            tell(".on", "is empty: the hook would never be called".to_owned());
        }
        if self.concurrency == 0 || self.timeout.0.is_zero() {
            tell(
                "",
                "concurrency must be at least 1, timeout more than zero".to_owned(),
            );
        }
        if self.retry.tries == 0 || self.retry.pause.0 > self.retry.pause_max.0 {
            tell(
                ".retry",
                "tries must be at least 1, pause at most pause_max".to_owned(),
            );
        }
        let tenants = self.tenants.iter().map(|id| TenantId::parse(id));
        let tenants: Result<Vec<TenantId>, _> = tenants.collect();
        let tenants = tenants
            .map_err(|error| tell(".tenants", error.to_string()))
            .ok();
        let name = HookName::parse(&self.name);
        let name = name.map_err(|error| tell(".name", error.to_string())).ok();
        let hook = match (&self.git, &self.exec, &self.webhook) {
            (Some(git), None, None) => git.build().map_err(|problem| (".git", problem)),
            (None, Some(exec), None) => exec.build().map_err(|problem| (".exec", problem)),
            (None, None, Some(web)) => web.build().map_err(|problem| (".webhook", problem)),
            _ => Err(("", "takes one of git, exec, webhook".to_owned())),
        };
        let hook = hook.map_err(|(field, problem)| tell(field, problem)).ok();
        let (hook, tenants) = (hook?, tenants?);
        let on = self.on.iter().map(|end| end.reason()).collect();
        Some(HookConfig {
            subscription: Subscription {
                hook: name?,
                on,
                tenants,
            },
            timeout: self.timeout.0,
            concurrency: self.concurrency,
            retry: self.retry.policy(),
            hook,
        })
    }
}

impl EndShape {
    fn reason(self) -> EndReason {
        match self {
            Self::Expired => EndReason::Expired,
            Self::Evicted => EndReason::Evicted,
            Self::Ended => EndReason::Ended,
            Self::Reset => EndReason::Reset,
            Self::Shutdown => EndReason::Shutdown,
        }
    }
}

impl RetryShape {
    fn policy(self) -> RetryPolicy {
        let ms = |span: Span| u64::try_from(span.0.as_millis()).unwrap_or(u64::MAX);
        RetryPolicy {
            tries_max: self.tries,
            pause_ms_min: ms(self.pause),
            pause_ms_max: ms(self.pause_max),
        }
    }
}

type Built = Result<Arc<dyn Hook>, String>;

impl GitShape {
    fn config(&self) -> GitConfig {
        GitConfig {
            dir: self.dir.clone(),
            worktree: self.worktree,
            branch: self.branch.clone(),
            author_name: self.author_name.clone(),
            author_email: self.author_email.clone(),
            batch_max: self.batch_max,
            batch_wait: self.batch_wait.0,
        }
    }

    fn build(&self) -> Built {
        let config = self.config();
        match config.problem() {
            Some(problem) => Err(problem.to_string()),
            None => Ok(Arc::new(GitHook::new(config))),
        }
    }
}

impl ExecShape {
    fn build(&self) -> Built {
        let named = |name: &String| Some((name.into(), environment(name)?));
        let env = self.env.iter().filter_map(named).collect();
        let config = ExecConfig {
            argv: self.argv.clone(),
            env,
            dir: self.dir.clone(),
        };
        let hook = ExecHook::new(config).map_err(|error| error.to_string())?;
        Ok(Arc::new(hook))
    }
}

impl WebhookShape {
    fn build(&self) -> Built {
        let secret = match &self.secret {
            None => None,
            Some(shape) => {
                let text = shape
                    .read()
                    .map_err(|problem| format!("secret: {problem}"))?;
                Some(WebhookSecret::parse(&text).map_err(|error| error.to_string())?)
            }
        };
        let mut headers: Vec<(String, String)> = self
            .headers
            .iter()
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        for (name, shape) in &self.secret_headers {
            let value = shape.read();
            let value = value.map_err(|problem| format!("secret_headers.{name}: {problem}"))?;
            headers.push((name.clone(), value));
        }
        let hook = WebhookHook::new(WebhookConfig {
            url: self.url.clone(),
            secret,
            headers,
            allow_private: self.allow_private,
            connect_timeout: self.connect_timeout.0,
        });
        Ok(Arc::new(hook.map_err(|error| error.to_string())?))
    }
}

fn every_end() -> Vec<EndShape> {
    vec![
        EndShape::Expired,
        EndShape::Evicted,
        EndShape::Ended,
        EndShape::Reset,
        EndShape::Shutdown,
    ]
}

fn timeout() -> Span {
    Span(Duration::from_secs(30))
}

fn concurrency() -> usize {
    2
}

fn connect_timeout() -> Span {
    Span(Duration::from_secs(5))
}

fn path_only() -> Vec<String> {
    vec!["PATH".to_owned()]
}

impl Default for RetryShape {
    fn default() -> Self {
        let policy = RetryPolicy::default();
        let span = |ms| Span(Duration::from_millis(ms));
        Self {
            tries: policy.tries_max,
            pause: span(policy.pause_ms_min),
            pause_max: span(policy.pause_ms_max),
        }
    }
}

impl Default for GitShape {
    fn default() -> Self {
        let git = GitConfig::default();
        Self {
            dir: git.dir,
            worktree: git.worktree,
            branch: git.branch,
            author_name: git.author_name,
            author_email: git.author_email,
            batch_max: git.batch_max,
            batch_wait: Span(git.batch_wait),
        }
    }
}
