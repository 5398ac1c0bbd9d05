//! Updated turns: the old content is overwritten.

use memoird_core::change::Change;
use memoird_core::idempotency::IdempotencyKey;
use memoird_core::session::{AppendCommand, TurnUpdate, UpdateDecision};
use memoird_core::time::Steady;
use memoird_core::turn::{NewTurn, PartKind, Role, Turn};
use memoird_store::{JournalRange, PruneBefore, Store, encoding};

use crate::chat::{Chat, begun, command};
use crate::compaction::{compact, made, status_of};
use crate::cuts::{cuts_of, with_cuts};
use crate::kit::*;
use crate::prune::prune_all;
use crate::rewind;

for_every_store!(
    updated_turn_is_read_everywhere,
    update_with_stale_revision_is_refused,
    update_deletes_summary_and_cuts,
    updates_and_their_turns_may_share_a_batch,
);

fn saying(text: &str) -> NewTurn {
    let text = PartKind::Text(text.to_owned());
    encoding::encode(Turn::new(Role::User, vec![text.into()]))
}

/// Applies an update of a user turn's text to a chat, and returns the decision.
pub(crate) fn decide(
    chat: &mut Chat,
    seq: u64,
    text: &str,
    idempotency: Option<IdempotencyKey>,
    at: u64,
) -> UpdateDecision {
    let update = TurnUpdate {
        seq,
        before: saying(""),
        bytes_before: 0,
        after: saying(text),
        idempotency,
    };
    let updated = chat
        .session
        .update_turn(&update, &chat.limits, now(at), &encoding::seal, true);
    updated.unwrap()
}

fn update(chat: &mut Chat, seq: u64, text: &str, at: u64) -> Vec<Change> {
    decide(chat, seq, text, None, at).changes
}

fn texts(turns: &[(u64, std::sync::Arc<[u8]>)]) -> Vec<(u64, bool)> {
    let is_new = |content: &[u8]| String::from_utf8_lossy(content).contains("it is new");
    let turns = turns.iter();
    turns
        .map(|(seq, content)| (*seq, is_new(content)))
        .collect()
}

/// The number of turns varies, so that updated ones are indexed, in the pending table, or being
/// flushed.
fn updated_turn_is_read_everywhere(store: &dyn Store) {
    for (round, turns) in (4..16_u64).enumerate() {
        let at = 10 + 10 * round as u64;
        let mut chat = begun(store, &format!("s{round}"), at);
        for _ in 0..turns {
            must_write(store, [chat.append("u", at)]);
        }
        let rewound = rewind::decide(&mut chat, turns - 1, AppendCommand::default(), at);
        must_write(store, rewound.unwrap().changes);
        for seq in [1, 2, turns - 1, turns] {
            must_write(store, update(&mut chat, seq, "it is new", at));
        }
        must_write(store, [chat.append("u", at + 1)]);
        let is_new = |seq: u64| [1, 2, turns - 1, turns].contains(&seq);
        let whole = JournalRange {
            with_rewound: true,
            ..ALL
        };
        let read = page(store, &chat.key, None, whole).unwrap();
        let expected = (1..=turns + 1).map(|seq| (seq, is_new(seq)));
        assert_eq!(texts(&read.turns), expected.collect::<Vec<_>>());
        let written = store.written_after(0, usize::MAX, usize::MAX).unwrap();
        let mine = written
            .turns
            .iter()
            .filter(|turn| turn.generation == chat.generation());
        for turn in mine {
            let is = texts(&[(turn.seq, turn.content.clone())]);
            assert_eq!(is, [(turn.seq, is_new(turn.seq))]);
        }
        assert_eq!(known(store, &chat.key).unwrap().head, *chat.session.head());
        let reloaded = chat.reloaded(store);
        assert_eq!(reloaded.kept(), chat.kept());
        assert_eq!(
            reloaded.session.history().totals(),
            chat.session.history().totals()
        );
    }
}

fn update_with_stale_revision_is_refused(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    must_write(store, [chat.append("u a u", 2)]);
    let mut behind = chat.clone();
    must_write(store, [chat.append("a", 3)]);
    must_refuse(store, update(&mut behind, 1, "it is new", 4).remove(0));
    let read = page(store, &chat.key, None, ALL).unwrap();
    assert!(texts(&read.turns).iter().all(|(_, is_new)| !is_new));
}

fn update_deletes_summary_and_cuts(store: &dyn Store) {
    for (seq, standing) in [(1, 0), (9, 0), (12, 1), (21, 2), (30, 2), (31, 3)] {
        let mut chat = begun(store, &format!("s{seq}"), 50 - seq);
        for _ in 0..20 {
            must_write(store, [chat.append("u u", 50)]);
        }
        for number in 1..=3 {
            must_write(store, [compact(&chat, status_of(number), made(number))]);
            chat = chat.reloaded(store);
        }
        must_write(store, [with_cuts(chat.touch(51), Some(cuts_of(2)))]);
        chat = chat.reloaded(store);
        must_write(store, update(&mut chat, seq, "it is new", 52));
        let stored = known(store, &chat.key).unwrap();
        let number = stored.summary.as_ref().map_or(0, |summary| summary.number);
        assert_eq!(number, standing, "{seq}");
        assert_eq!(stored.cuts, []);
        must_write(store, [chat.append_command(&command("u"), 53)]);
    }
}

fn updates_and_their_turns_may_share_a_batch(store: &dyn Store) {
    let mut chat = begun(store, "s", 1);
    must_write(store, [chat.append("u u u", 2)]);
    let sets = [
        set([chat.append("u u", 3)]),
        set(update(&mut chat, 4, "it is new", 3)),
        set(update(&mut chat, 2, "it is another one for a moment", 3)),
        set(update(&mut chat, 2, "it is new", 3)),
        set([chat.append("u", 3)]),
        set(update(&mut chat, 6, "it is new, and longer than before", 3)),
    ];
    assert_eq!(write(store, &sets), [Ok(()); 6]);
    let read = page(store, &chat.key, None, ALL).unwrap();
    let expected = (1..=6).map(|seq| (seq, seq % 2 == 0));
    assert_eq!(texts(&read.turns), expected.collect::<Vec<_>>());
    let bytes = |turns: &[(u64, std::sync::Arc<[u8]>)]| {
        let turns = turns.iter();
        turns.map(|(_, content)| content.len() as u64).sum::<u64>()
    };
    assert_eq!(store.turn_bytes().unwrap()[0].1, bytes(&read.turns));
    for text in [
        "",
        "it is as long as none was before: it is as long as that",
    ] {
        must_write(store, update(&mut chat, 6, text, 4));
        let read = page(store, &chat.key, None, ALL).unwrap();
        assert_eq!(store.turn_bytes().unwrap()[0].1, bytes(&read.turns));
    }
    assert_eq!(chat.reloaded(store).kept(), chat.kept());
    assert_eq!(known(store, &chat.key).unwrap().head, *chat.session.head());
}

/// After the next run of retention, no byte of the old text is in the file.
#[test]
fn updated_text_is_gone_from_file_after_prune() {
    let dir = tempfile::tempdir().unwrap();
    let store = crate::faults::open(dir.path());
    let nothing = PruneBefore {
        ended: Steady(0),
        keys: Steady(0),
    };
    let mut chat = begun(&store, "s", 1);
    let secrets: Vec<String> = (0..40)
        .map(|number| format!("secret {number} {}", "x".repeat(number * 200)))
        .collect();
    for secret in &secrets {
        let said = AppendCommand {
            turns: vec![saying(secret)],
            ..AppendCommand::default()
        };
        must_write(&store, [chat.append_command(&said, 2)]);
    }
    for turns in [1..=20, 21..=40] {
        for seq in turns {
            must_write(&store, update(&mut chat, seq, "it is new", 3));
        }
        prune_all(&store, nothing, 100);
    }
    let (file, log) = crate::faults::bytes(dir.path());
    let text = String::from_utf8_lossy(&[file, log].concat()).into_owned();
    for secret in &secrets {
        let secret = &secret[..secret.len().min(12)];
        assert!(!text.contains(secret), "{secret}");
    }
}
