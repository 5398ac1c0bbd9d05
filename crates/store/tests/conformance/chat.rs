//! A chat that drives a real session, so that tests write only changes the rules allow.
//!
//! Turns are written as words: `u` user, `a` assistant, `s` system. `a+x` calls the tool with id
//! `x`, `t-x` has its result, and `u-x` has it in a user turn. `!` pins.

use std::sync::Arc;

use memoird_core::CoreError;
use memoird_core::change::{Change, EndReason};
use memoird_core::idempotency::IdempotencyKey;
use memoird_core::ids::{Generation, SessionKey};
use memoird_core::limits::Limits;
use memoird_core::options::OptionsPatch;
use memoird_core::session::{AppendCommand, AppendDecision, Session};
use memoird_core::turn::{NewTurn, PartKind, Role, Turn};
use memoird_store::{Store, encoding};

use crate::kit::{load, now};

/// A session in memory, with its key and the limits of all its commands.
#[derive(Clone, Debug)]
pub(crate) struct Chat {
    pub(crate) key: SessionKey,
    pub(crate) session: Session,
    pub(crate) limits: Limits,
}

impl Chat {
    /// Begins a generation at `at`, with limits that few turns reach.
    pub(crate) fn begin(key: &SessionKey, generation: Generation, at: u64) -> (Self, Change) {
        let (session, change) = Session::begin(key, generation, now(at));
        let limits = Limits {
            max_history_turns: 5,
            pinned_turns: 2,
            departed_calls: 2,
            ..Limits::default()
        };
        (
            Self {
                key: key.clone(),
                session,
                limits,
            },
            change,
        )
    }

    pub(crate) fn generation(&self) -> Generation {
        self.session.head().generation
    }

    pub(crate) fn decide(
        &mut self,
        command: &AppendCommand,
        at: u64,
    ) -> Result<AppendDecision, CoreError> {
        self.session
            .append(&self.key, command, &self.limits, now(at), &encoding::seal)
    }

    /// Returns the change of an append of these words, which must be accepted.
    pub(crate) fn append(&mut self, words: &str, at: u64) -> Change {
        self.append_command(&command(words), at)
    }

    pub(crate) fn append_command(&mut self, command: &AppendCommand, at: u64) -> Change {
        let decision = self.decide(command, at).unwrap();
        decision.changes.into_iter().next().expect("an append")
    }

    pub(crate) fn patch_named(
        &mut self,
        patch: &str,
        named: Option<IdempotencyKey>,
        at: u64,
    ) -> Change {
        let patched =
            self.session
                .patch_state(&self.key, Some(&patch.into()), named, &self.limits, now(at));
        patched.unwrap().1
    }

    pub(crate) fn patch(&mut self, patch: &str, at: u64) -> Change {
        self.patch_named(patch, None, at)
    }

    /// Returns the change that sets a label to a new value.
    pub(crate) fn label(&mut self, name: &str, value: &str) -> Change {
        let patch = OptionsPatch {
            labels: [(name.into(), value.into())].into(),
            ..OptionsPatch::default()
        };
        let options = self.session.patched_options(&patch, &self.limits).unwrap();
        self.session.set_options(options.expect("a change"))
    }

    pub(crate) fn touch(&mut self, at: u64) -> Change {
        self.session.touch(now(at))
    }

    pub(crate) fn end(&self, at: u64) -> Change {
        self.session
            .head()
            .end(EndReason::Ended, now(at), Arc::default(), None)
    }

    pub(crate) fn end_named(&mut self, named: IdempotencyKey, at: u64) -> Change {
        let last_seq = self.session.head().last_seq;
        let named = self
            .session
            .use_key(Some(named), last_seq, &self.limits, now(at));
        let head = self.session.head();
        head.end(EndReason::Ended, now(at), Arc::default(), named)
    }

    /// Reloads the chat from the store.
    pub(crate) fn reloaded(&self, store: &dyn Store) -> Self {
        let saved = load(store, &self.key).expect("a live session");
        Self {
            session: Session::restore(saved),
            ..self.clone()
        }
    }

    /// Returns the seqs of the turns in the history.
    pub(crate) fn kept(&self) -> Vec<u64> {
        self.session
            .history()
            .turns_after(0)
            .map(|record| record.seq)
            .collect()
    }
}

/// Begins a new chat of tenant `t` in the store. Its generation is named after `at`.
pub(crate) fn begun(store: &dyn Store, session: &str, at: u64) -> Chat {
    let generation = Generation::new(i64::try_from(at).unwrap(), u128::from(at));
    let (chat, begin) = Chat::begin(&crate::kit::key("t", session), generation, at);
    crate::kit::must_write(store, [begin]);
    chat
}

pub(crate) fn command(words: &str) -> AppendCommand {
    AppendCommand {
        turns: words.split_whitespace().map(turn).collect(),
        ..Default::default()
    }
}

/// An append with the idempotency key of this number.
pub(crate) fn named(words: &str, name: u64, content: u8) -> AppendCommand {
    AppendCommand {
        idempotency: Some(idempotency_key(name, content)),
        ..command(words)
    }
}

pub(crate) fn idempotency_key(name: u64, content: u8) -> IdempotencyKey {
    IdempotencyKey {
        key: u128::from(name).to_be_bytes(),
        content: [content; 16],
    }
}

pub(crate) fn turn(word: &str) -> NewTurn {
    let role = match word.as_bytes()[0] {
        b'u' => Role::User,
        b'a' => Role::Assistant,
        b't' => Role::Tool,
        _ => Role::System,
    };
    let mut turn = Turn::new(role, vec![PartKind::Text(word.to_owned()).into()]);
    let mut marks = word.chars().skip(1);
    while let Some(mark) = marks.next() {
        let mut id = || marks.next().map(String::from).unwrap_or_default();
        match mark {
            '+' => turn.parts.push(
                PartKind::ToolUse {
                    id: id(),
                    name: "look".into(),
                    input_json: "{}".into(),
                }
                .into(),
            ),
            '-' => {
                let result = PartKind::ToolResult {
                    tool_use_id: id(),
                    content: "seen".into(),
                    parts: Vec::new(),
                    is_error: false,
                };
                turn.parts.push(result.into());
            }
            _ => turn.pinned = true,
        }
    }
    encoding::encode(turn)
}

/// A user turn with this many bytes of text.
pub(crate) fn large(bytes: usize) -> NewTurn {
    let text = "x".repeat(bytes);
    encoding::encode(Turn::new(Role::User, vec![PartKind::Text(text).into()]))
}
