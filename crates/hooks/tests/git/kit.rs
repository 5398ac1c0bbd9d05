//! Helpers for checkpoint tests: ended sessions, and git commands.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use memoird_core::change::EndReason;
use memoird_core::ids::{DeliveryId, Generation, HookName, SessionId, Subject, TenantId};
use memoird_core::state::State;
use memoird_core::time::Timestamp;
use memoird_core::turn::{Part, PartKind, Role, Turn};
use memoird_engine::{Hook, HookCall, HookError, SessionContent};
use memoird_hooks::git::{GitConfig, GitHook};

/// 2026-11-22 10:00:00 UTC.
pub(crate) const NOON: i64 = 1_795_341_600;

/// A directory with repositories, and the hook that writes them.
pub(crate) struct GitFixture {
    pub(crate) config: GitConfig,
    pub(crate) hook: GitHook,
    _dir: Option<tempfile::TempDir>,
}

impl GitFixture {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }

    pub(crate) fn with(change: impl FnOnce(&mut GitConfig)) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let mut config = GitConfig {
            dir: dir.path().join("checkpoints"),
            ..GitConfig::default()
        };
        change(&mut config);
        Self {
            hook: GitHook::new(config.clone()),
            config,
            _dir: Some(dir),
        }
    }

    /// The repositories of another process's fixture.
    pub(crate) fn at(dir: &Path) -> Self {
        let config = GitConfig {
            dir: dir.to_owned(),
            ..GitConfig::default()
        };
        Self {
            hook: GitHook::new(config.clone()),
            config,
            _dir: None,
        }
    }

    pub(crate) fn bare(&self) -> PathBuf {
        self.config.dir.join("acme.git")
    }

    /// The hook of a restarted daemon.
    pub(crate) fn restarted(&self) -> GitHook {
        GitHook::new(self.config.clone())
    }

    pub(crate) async fn deliver(&self, ended: &[Arc<SessionContent>]) -> Result<(), HookError> {
        deliver(&self.hook, ended).await
    }
}

/// Delivers a batch. All sessions must have the same outcome.
pub(crate) async fn deliver(
    hook: &GitHook,
    ended: &[Arc<SessionContent>],
) -> Result<(), HookError> {
    let mut answers = hook.deliver(ended.iter().map(call).collect()).await;
    assert_eq!(answers.len(), ended.len());
    answers.dedup();
    assert_eq!(answers.len(), 1, "{answers:?}");
    answers.remove(0)
}

pub(crate) fn call(ended: &Arc<SessionContent>) -> HookCall {
    let hook = HookName::parse("checkpoint").expect("a name");
    HookCall {
        delivery: DeliveryId {
            generation: ended.generation,
            hook,
        },
        attempt: 1,
        at: at(NOON + 3_600),
        content: Arc::clone(ended),
    }
}

pub(crate) fn at(seconds: i64) -> Timestamp {
    Timestamp::new(seconds, 0).expect("a time")
}

/// `count` sessions of the tenant `acme`, numbered from `first`.
pub(crate) fn sessions(first: u64, count: u64) -> Vec<Arc<SessionContent>> {
    (first..first + count)
        .map(|number| Arc::new(session(number)))
        .collect()
}

pub(crate) fn session(number: u64) -> SessionContent {
    let seconds = NOON + i64::try_from(number).expect("a small number");
    let say = |role, text: &str| Turn {
        timestamp: Some(at(seconds)),
        ..Turn::new(role, vec![PartKind::Text(text.to_owned()).into()])
    };
    let turns = [
        say(
            Role::User,
            &format!("Hello, I am number {number}.\n# not a heading"),
        ),
        say(Role::Assistant, "Good day."),
    ];
    SessionContent {
        tenant: TenantId::parse("acme").expect("a tenant"),
        session: SessionId::parse(&format!("telegram:{number}")).expect("a session"),
        generation: Generation::new(seconds * 1_000, u128::from(number)),
        subject: Some(Subject::parse("ann").expect("a subject")),
        reason: EndReason::Ended,
        created_at: at(seconds),
        ended_at: at(seconds + 90),
        turns: (1..).zip(turns).collect(),
        turns_omitted: 0,
        state: State::default(),
        summary: None,
    }
}

pub(crate) fn part(kind: PartKind) -> Part {
    kind.into()
}

/// Runs git in a repository, with a user's identity.
pub(crate) fn git_may_fail(repository: &Path, arguments: &[&str]) -> Output {
    let mut git = Command::new("git");
    git.arg("-C")
        .arg(repository)
        .args(["-c", "user.name=Ann", "-c", "user.email=ann@example.org"]);
    git.args([
        "-c",
        "safe.directory=*",
        "-c",
        "commit.gpgsign=false",
        "-c",
        "gc.auto=0",
    ]);
    git.env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_SYSTEM", "/dev/null");
    git.args(arguments).output().expect("git runs")
}

/// Runs git, which must succeed, and returns its output.
#[track_caller]
pub(crate) fn git(repository: &Path, arguments: &[&str]) -> String {
    let output = git_may_fail(repository, arguments);
    let [stdout, stderr] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(
        output.status.success(),
        "git {arguments:?}\n{stdout}\n{stderr}"
    );
    stdout
}

/// Asserts that `git fsck` finds no errors or warnings.
#[track_caller]
pub(crate) fn is_clean(repository: &Path) {
    let output = git_may_fail(repository, &["fsck", "--full", "--strict", "--no-dangling"]);
    let bytes = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&bytes).into_owned();
    assert!(
        output.status.success() && !said.contains("warning"),
        "{said}"
    );
    assert!(!said.contains("error"), "{said}");
}

/// The Markdown files on the branch.
#[track_caller]
pub(crate) fn files(repository: &Path) -> Vec<String> {
    let all = git(repository, &["ls-tree", "-r", "-z", "--name-only", "main"]);
    let files = all
        .split_terminator('\0')
        .filter(|name| name.starts_with("sessions/") && name.ends_with(".md"));
    files.map(ToOwned::to_owned).collect()
}

/// Asserts that both files of each session exist and were added by exactly one commit.
#[track_caller]
pub(crate) fn exactly_once(repository: &Path, ended: &[Arc<SessionContent>]) {
    is_clean(repository);
    let log = git(
        repository,
        &[
            "log",
            "-z",
            "--format=",
            "--name-status",
            "main",
            "--",
            "sessions",
        ],
    );
    let fields: Vec<&str> = log.split('\0').filter(|field| !field.is_empty()).collect();
    let mut added: Vec<&str> = fields
        .chunks(2)
        .map(|pair| {
            assert_eq!(pair[0].trim(), "A", "{pair:?}");
            pair[1]
        })
        .collect();
    added.sort_unstable();
    let mut expected: Vec<String> = ended
        .iter()
        .flat_map(|ended| {
            let name = ended.session.as_str().replace(':', "%3A");
            let minute = format!("{:02}", (ended.ended_at.seconds() - NOON) / 60);
            [".md", ".jsonl"].map(|ending| {
                format!(
                    "sessions/2026/11/22/10/{minute}/{name}-{}{ending}",
                    ended.generation
                )
            })
        })
        .collect();
    expected.sort_unstable();
    assert_eq!(added, expected);
    assert_eq!(files(repository).len(), ended.len());
}

#[track_caller]
pub(crate) fn commits(repository: &Path) -> usize {
    git(repository, &["rev-list", "--count", "main"])
        .trim()
        .parse()
        .expect("a number")
}

pub(crate) fn packs(repository: &Path) -> usize {
    let entries = std::fs::read_dir(repository.join("objects/pack")).expect("a folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    names
        .filter(|name| name.to_string_lossy().ends_with(".pack"))
        .count()
}
