//! Shared helpers: calls, deadlines, and process checks.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use memoird_core::change::EndReason;
use memoird_core::config::{Environment, SecretRef};
use memoird_core::ids::{DeliveryId, Generation, HookName, SessionId, Subject, TenantId};
use memoird_core::state::State;
use memoird_core::time::Timestamp;
use memoird_core::turn::{PartKind, Role, Turn};
use memoird_engine::{Hook, HookCall, HookError, SessionContent};
use tokio::time::{sleep, timeout};

/// Longer than any test takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Time of the calls.
pub(crate) const AT_SECONDS: i64 = 1_700_000_123;

/// The first attempt for a session with these turns.
pub(crate) fn call_of(turns: Vec<Turn>) -> HookCall {
    let generation = Generation::new(1_700_000_000_000, 7);
    let hook = HookName::parse("receiver").expect("a good one");
    let ended = SessionContent {
        tenant: TenantId::parse("acme").expect("a good one"),
        session: SessionId::parse("telegram:4711").expect("a good one"),
        generation,
        subject: Some(Subject::parse("ann").expect("a good one")),
        reason: EndReason::Expired,
        created_at: Timestamp::new(1_700_000_000, 0).expect("a good one"),
        ended_at: Timestamp::new(1_700_000_100, 5_000_000).expect("a good one"),
        turns: (1..).zip(turns).collect(),
        turns_omitted: 0,
        state: State {
            json: r#"{"step":2,"price":1.10}"#.into(),
            version: 3,
        },
        summary: None,
    };
    HookCall {
        delivery: DeliveryId { generation, hook },
        attempt: 1,
        at: Timestamp::new(AT_SECONDS, 900_000_000).expect("a good one"),
        content: Arc::new(ended),
    }
}

/// The first attempt for a session with two small turns.
pub(crate) fn call() -> HookCall {
    call_of(vec![
        text(Role::User, "Hi, \"you\"\nthere"),
        text(Role::Assistant, "Hallo, Grüße 🦀"),
    ])
}

/// The first attempt for a session of at least this size.
pub(crate) fn large_call(bytes: usize) -> HookCall {
    call_of(vec![text(Role::User, &"x".repeat(bytes))])
}

pub(crate) fn text(role: Role, text: &str) -> Turn {
    Turn::new(role, vec![PartKind::Text(text.to_owned()).into()])
}

/// Delivers one call and returns its outcome.
pub(crate) async fn deliver(hook: &dyn Hook, call: HookCall) -> Result<(), HookError> {
    let mut answers = in_time(hook.deliver(vec![call])).await;
    assert_eq!(answers.len(), 1);
    answers.remove(0)
}

/// Fails the test if the future is not ready within the deadline.
#[track_caller]
pub(crate) fn in_time<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let place = std::panic::Location::caller();
    async move {
        match timeout(DEADLINE, future).await {
            Ok(output) => output,
            Err(_) => panic!("{place}: still waiting after {DEADLINE:?}"),
        }
    }
}

/// Polls until the condition holds.
#[track_caller]
pub(crate) fn until(is_so: impl Fn() -> bool) -> impl Future<Output = ()> {
    in_time(async move {
        while !is_so() {
            sleep(Duration::from_millis(5)).await;
        }
    })
}

/// Reads a file that the receiver wrote.
pub(crate) fn read(path: impl AsRef<Path>) -> String {
    std::fs::read_to_string(path.as_ref()).unwrap_or_else(|error| {
        panic!("{}: {error}", path.as_ref().display());
    })
}

/// Whether a process is running. Zombies do not count.
pub(crate) fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    let state = stat
        .rsplit(") ")
        .next()
        .and_then(|rest| rest.chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// An environment with these variables and no files.
pub(crate) struct Variables(pub(crate) &'static [(&'static str, &'static str)]);

impl Environment for Variables {
    fn variable(&self, name: &str) -> Option<OsString> {
        let found = self.0.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| OsString::from(value))
    }

    fn file(&self, _: &Path) -> io::Result<String> {
        Err(io::ErrorKind::NotFound.into())
    }
}

pub(crate) fn variable(name: &str) -> SecretRef {
    SecretRef {
        env: Some(name.to_owned()),
        file: None,
    }
}
