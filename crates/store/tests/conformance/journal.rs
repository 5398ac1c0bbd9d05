//! The journal returns all turns of a generation, page by page, and only to the owning session.

use memoird_core::ids::Generation;
use memoird_store::{JournalRange, Store};

use crate::chat::{Chat, begun};
use crate::kit::*;

for_every_store!(
    journal_keeps_turns_dropped_from_history,
    journal_pages_are_contiguous,
    journal_pages_from_end_have_newest_turns_first,
    journal_page_stops_at_its_byte_limit,
    range_past_either_end_is_an_empty_page,
    generation_of_another_session_is_none,
    newest_generation_is_read_by_default,
    newest_generation_is_last_ended_despite_wall_clock,
);

/// Creates a chat with ten turns.
fn ten_turns(store: &dyn Store) -> Chat {
    let mut chat = begun(store, "s", 1);
    must_write(
        store,
        [chat.append("u a u a u", 2), chat.append("a u a u a", 3)],
    );
    chat
}

fn journal_keeps_turns_dropped_from_history(store: &dyn Store) {
    let chat = ten_turns(store);
    assert_eq!(chat.kept(), [1, 6, 7, 8, 9, 10]);
    assert_eq!(seqs(store, &chat.key, None), Some((1..=10).collect()));
    assert!(!page(store, &chat.key, None, ALL).unwrap().more);
}

fn journal_pages_are_contiguous(store: &dyn Store) {
    let chat = ten_turns(store);
    let whole = page(store, &chat.key, None, ALL).unwrap().turns;
    for turns_max in 1..=11 {
        let (mut read, mut range) = (Vec::new(), JournalRange { turns_max, ..ALL });
        loop {
            let page = page(store, &chat.key, None, range).unwrap();
            assert!(page.turns.len() <= turns_max && !page.turns.is_empty());
            read.extend(page.turns);
            if !page.more {
                break;
            }
            range.after_seq = read.last().unwrap().0;
        }
        assert_eq!(read, whole, "pages of {turns_max}");
    }
}

fn journal_pages_from_end_have_newest_turns_first(store: &dyn Store) {
    let chat = ten_turns(store);
    let whole = page(store, &chat.key, None, ALL).unwrap().turns;
    for turns_max in 1..=11 {
        let (mut read, mut range) = (Vec::new(), JournalRange { turns_max, ..ALL });
        range.last = true;
        loop {
            let page = page(store, &chat.key, None, range).unwrap();
            assert!(page.turns.len() <= turns_max && !page.turns.is_empty());
            read.splice(0..0, page.turns);
            if !page.more {
                break;
            }
            range.before_seq = read[0].0;
        }
        assert_eq!(read, whole, "pages of {turns_max}");
    }
    let between = JournalRange {
        after_seq: 3,
        before_seq: 6,
        ..ALL
    };
    for last in [false, true] {
        let range = JournalRange { last, ..between };
        let page = page(store, &chat.key, None, range).unwrap();
        assert_eq!(page.turns, whole[3..5], "{last}");
    }
    for before_seq in [0, 1, 4] {
        let range = JournalRange {
            after_seq: 3,
            before_seq,
            ..ALL
        };
        assert!(
            page(store, &chat.key, None, range)
                .unwrap()
                .turns
                .is_empty()
        );
    }
}

fn journal_page_stops_at_its_byte_limit(store: &dyn Store) {
    let chat = ten_turns(store);
    let whole = page(store, &chat.key, None, ALL).unwrap().turns;
    let mut bytes_before = 0;
    for (place, (_, content)) in whole.iter().enumerate() {
        // The turn that reaches the limit is the last one. None begins at the limit.
        for bytes_max in [bytes_before + 1, bytes_before + content.len()] {
            let page = page(store, &chat.key, None, JournalRange { bytes_max, ..ALL }).unwrap();
            assert_eq!(
                (page.turns.len(), page.more),
                (place + 1, place + 1 < whole.len())
            );
        }
        bytes_before += content.len();
    }
}

fn range_past_either_end_is_an_empty_page(store: &dyn Store) {
    let chat = ten_turns(store);
    let read = |range| {
        let page = page(store, &chat.key, None, range).unwrap();
        (page.turns, page.more)
    };
    for after_seq in [10, 11, i64::MAX as u64, u64::MAX - 1, u64::MAX] {
        assert_eq!(
            read(JournalRange { after_seq, ..ALL }),
            (vec![], false),
            "{after_seq}"
        );
    }
    assert_eq!(
        read(JournalRange {
            turns_max: 0,
            ..ALL
        }),
        (vec![], true)
    );
    assert_eq!(
        read(JournalRange {
            bytes_max: 0,
            ..ALL
        }),
        (vec![], true)
    );
    let after_all = JournalRange {
        after_seq: 10,
        turns_max: 0,
        bytes_max: 0,
        ..ALL
    };
    assert_eq!(read(after_all), (vec![], false));
}

fn generation_of_another_session_is_none(store: &dyn Store) {
    let (live, mut ended) = (begun(store, "live", 1), begun(store, "ended", 2));
    must_write(store, [ended.append("u a", 3)]);
    must_write(store, [ended.end(4)]);
    for owner in [&live, &ended] {
        for (tenant, session) in [
            ("t", "live"),
            ("t", "ended"),
            ("t", "none"),
            ("T", "live"),
            ("live", "t"),
        ] {
            let key = key(tenant, session);
            let found = page(store, &key, Some(owner.generation()), ALL).is_some();
            assert_eq!(found, key == owner.key, "{key:?}");
        }
        assert!(page(store, &key("other", owner.key.session.as_str()), None, ALL).is_none());
        assert!(page(store, &owner.key, Some(Generation::new(9, 9)), ALL).is_none());
    }
}

fn newest_generation_is_read_by_default(store: &dyn Store) {
    // The generations have 1, 2 and 3 turns, which identifies them.
    let lengths = |turns: u64| Some((1..=turns).collect::<Vec<u64>>());
    let key = key("t", "s");
    let mut chats = Vec::new();
    for (started, words) in [(10, "u"), (30, "u a"), (20, "u a u")] {
        let (mut chat, begin) = Chat::begin(&key, Generation::new(started, 0), 1);
        must_write(store, [begin, chat.append(words, 2)]);
        let turns = chat.session.head().last_seq;
        assert_eq!(
            seqs(store, &key, None),
            lengths(turns),
            "the live one is the newest"
        );
        must_write(store, [chat.end(3)]);
        chats.push((chat.generation(), turns));
    }
    assert_eq!(
        seqs(store, &key, None),
        lengths(2),
        "among the ended, the last to start"
    );
    for (generation, turns) in chats {
        assert_eq!(seqs(store, &key, Some(generation)), lengths(turns));
    }
}

fn newest_generation_is_last_ended_despite_wall_clock(store: &dyn Store) {
    let key = key("t", "s");
    for (wall, at) in [(900, 10), (100, 20), (500, 30)] {
        let (mut chat, begin) = Chat::begin(&key, Generation::new(wall, 0), at);
        must_write(store, [begin, chat.append("u", at)]);
        must_write(store, [chat.end(at + 5)]);
        let newest = page(store, &key, None, ALL).unwrap().generation;
        assert_eq!(newest, Some(chat.generation()), "ended at {}", at + 5);
    }
}
