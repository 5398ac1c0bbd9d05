//! Verification of all turns: damage is reported with its location, and nothing is changed.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;

use memoird_core::session::AppendCommand;
use memoird_postgres::PgStore;
use memoird_store::Store;
use memoird_store::verify::{FileCheck, TurnCheckCounts};

use crate::chat::{Chat, begun, large};
use crate::kit::*;
use crate::late::{until, waiting};
use crate::server::{Database, database};
use crate::start::say;

fn check(store: &PgStore) -> FileCheck {
    store.check_turns().unwrap().unwrap()
}

fn whole(whole: u64) -> TurnCheckCounts {
    TurnCheckCounts {
        whole,
        ..TurnCheckCounts::default()
    }
}

/// Creates a session with `turns` turns of `bytes` bytes each.
fn long(store: &PgStore, session: &str, at: u64, turns: usize, bytes: usize) -> Chat {
    let mut chat = begun(store, session, at);
    for _ in 0..turns {
        let command = AppendCommand {
            turns: vec![large(bytes)],
            ..AppendCommand::default()
        };
        must_write(store, [chat.append_command(&command, at)]);
    }
    chat
}

/// Flips a bit in the second turn of a session.
fn damage_to(session: &str) -> String {
    format!(
        "UPDATE memoird.turns SET content = set_byte(content, 9, get_byte(content, 9) # 4)
         WHERE seq = 2 AND generation =
             (SELECT generation FROM memoird.generations WHERE session = '{session}')"
    )
}

#[test]
fn intact_turns_are_counted_during_appends() {
    let Some(database) = database() else { return };
    let store = database.store();
    assert_eq!(check(&store).turns, whole(0));
    // More than one query reads, in turns and in bytes. Many turns are TOASTed.
    let mut chats = [
        long(&store, "small", 1, 2_000, 900),
        long(&store, "large", 2, 30, 600_000),
    ];
    let checked = check(&store);
    assert_eq!((checked.damages, checked.damages_total), (vec![], 0));
    assert_eq!(checked.turns, whole(2_030));
    assert!(checked.bytes > 30 * 600_000);
    let shown = checked.path.display().to_string();
    assert!(shown.ends_with(&database.name()), "{shown}");
    for chat in &mut chats {
        must_write(&store, [chat.append("u a", 3)]);
    }
    assert_eq!(check(&store).turns, whole(2_034));
}

#[test]
fn checksum_mismatch_is_named_and_unchanged() {
    let Some(database) = database() else { return };
    let store = database.store();
    let chat = long(&store, "said", 1, 3, 20);
    long(&store, "other", 2, 3, 20);
    database.run(&damage_to("said"));
    let all =
        "SELECT md5(string_agg(t.ctid::text || t, ' ' ORDER BY t.ctid)) FROM memoird.turns AS t";
    let before = database.text(all);
    let checked = check(&store);
    assert_eq!(database.text(all), before, "a check changed the turns");
    let expected = format!(
        "turn 2 of generation {} (tenant t, session said) does not match its checksum",
        chat.generation()
    );
    assert_eq!(
        (checked.damages, checked.damages_total),
        (vec![expected], 1)
    );
    let turns = TurnCheckCounts {
        whole: 5,
        damaged: 1,
        unchecked: 0,
    };
    assert_eq!(checked.turns, turns);
}

/// Overwrites bytes in a relation's file, and returns a copy of the database that has the damage.
fn copy_with_damage(
    database: &Database,
    relation: &str,
    damages: &[(u64, &[u8])],
) -> Option<Database> {
    // Write everything to disk first.
    database.run("VACUUM FREEZE memoird.turns");
    database.run("CHECKPOINT");
    let path = database.text(&format!(
        "SELECT current_setting('data_directory') || '/' || pg_relation_filepath({relation}::regclass)"
    ));
    if !Path::new(&path).exists() {
        say("skipped: the server is on another machine");
        return None;
    }
    let file = OpenOptions::new().write(true).open(path).unwrap();
    for (at, bytes) in damages {
        file.write_all_at(bytes, *at).unwrap();
    }
    Some(database.copy())
}

const PAGE: u64 = 8_192;

#[test]
fn turns_of_unreadable_blocks_are_named_and_others_are_checked() {
    let Some(database) = database() else { return };
    long(&database.store(), "s", 1, 400, 900);
    let blocks = database.number("SELECT pg_relation_size('memoird.turns') / 8192");
    assert!(blocks > 20);
    let damages: [(u64, &[u8]); 2] = [(3 * PAGE + 12, &[0xff; 6]), (9 * PAGE + 12, &[0xff; 6])];
    let Some(copy) = copy_with_damage(&database, "'memoird.turns'", &damages) else {
        return;
    };
    let checked = check(&copy.store());
    let lost = 400 - checked.turns.whole;
    assert!((2..60).contains(&lost), "{lost}");
    assert_eq!((checked.turns.damaged, checked.damages_total), (lost, lost));
    let of_block = |block: u32| {
        let problem = format!("invalid page in block {block} of relation");
        let of = checked.damages.iter().filter(|it| it.contains(&problem));
        of.count() as u64
    };
    let (one, other) = (of_block(3), of_block(9));
    assert!(
        one > 0 && other > 0 && one + other == lost,
        "{:?}",
        checked.damages
    );
    for damage in &checked.damages {
        let is_named = damage.starts_with("the turn with number ");
        assert!(is_named && damage.contains(" cannot be read: "), "{damage}");
    }
}

#[test]
fn unreadable_toasted_content_damages_one_turn() {
    let Some(database) = database() else { return };
    let chat = long(&database.store(), "s", 1, 8, 40_000);
    let apart = "(SELECT reltoastrelid FROM pg_class WHERE oid = 'memoird.turns'::regclass)";
    // The tenth page has a part of the second or third turn.
    let damages: [(u64, &[u8]); 1] = [(9 * PAGE + 12, &[0xff; 6])];
    let Some(copy) = copy_with_damage(&database, apart, &damages) else {
        return;
    };
    let checked = check(&copy.store());
    let turns = checked.turns;
    assert!((1..=2).contains(&turns.damaged), "{turns:?}");
    assert_eq!(turns.whole + turns.damaged, 8);
    assert_eq!(checked.damages_total, turns.damaged);
    for damage in &checked.damages {
        let whose = format!(
            "of generation {} (tenant t, session s) cannot be read: ",
            chat.generation()
        );
        assert!(damage.contains(&whose), "{damage}");
    }
}

/// The check has found a damaged turn and reads its session when the rows move.
#[test]
fn check_continues_while_table_is_rewritten() {
    let Some(database) = database() else { return };
    let store = database.store();
    long(&store, "s", 1, 4, 20);
    database.run(&damage_to("s"));
    let held = database.hold("LOCK TABLE memoird.generations");
    let checked = thread::scope(|scope| {
        let checking = scope.spawn(|| check(&store));
        until(|| waiting(&database) == 1);
        database.run("VACUUM FULL memoird.turns");
        drop(held);
        checking.join().unwrap()
    });
    assert_eq!((checked.turns.whole, checked.turns.damaged), (3, 1));
    assert_eq!(check(&store).turns.whole, 3);
}
