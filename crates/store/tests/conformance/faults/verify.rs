//! Checking a whole journal reports damage and changes nothing.

use memoird_core::session::AppendCommand;
use memoird_core::turn::{PartKind, Role, Turn};
use memoird_store::verify::{
    FileCheck, JOURNAL_SCHEMA, TurnCheckCounts, check_journal, check_schema,
};
use memoird_store::{DAMAGED_TEXT, encoding};

use super::*;

const PAGE: usize = 4_096;
const SAID: &str = "a sentence that stands in the file once";

fn check(dir: &Path) -> FileCheck {
    let before = bytes(dir);
    let check = check_journal(&dir.join("journal.db"), None).unwrap();
    assert!(bytes(dir) == before, "a check changed the journal");
    check
}

/// Creates a closed journal with many turns, one of which contains [`SAID`].
fn journal(dir: &Path) -> Chat {
    at_rest(dir);
    let store = open(dir);
    let mut chat = begun(&store, "said", 60);
    must_write(&store, [chat.append("u a", 61)]);
    let text = PartKind::Text(SAID.to_owned());
    let turn = encoding::encode(Turn::new(Role::User, vec![text.into()]));
    let command = AppendCommand {
        turns: vec![turn],
        ..AppendCommand::default()
    };
    must_write(&store, [chat.append_command(&command, 62)]);
    chat
}

#[test]
fn verify_finds_no_damage_in_intact_journal() {
    let dir = tempfile::tempdir().unwrap();
    let chat = journal(dir.path());
    let check_one = |dir: &Path| {
        let check = check(dir);
        assert_eq!((check.damages, check.damages_total), (vec![], 0));
        assert!(check.bytes > 10 * PAGE as u64);
        check.turns
    };
    let at_rest = check_one(dir.path());
    assert!(at_rest.whole > 1_000, "more than one batch: {at_rest:?}");
    assert_eq!((at_rest.unchecked, at_rest.damaged), (0, 0));
    let store = open(dir.path());
    must_write(&store, [chat.reloaded(&store).append("a", 70)]);
    let in_use = check_one(dir.path());
    assert_eq!(in_use.whole, at_rest.whole + 1);
    let crashed = tempfile::tempdir().unwrap();
    copy(dir.path(), crashed.path());
    assert_eq!(check_one(crashed.path()), in_use);
}

#[test]
fn verify_names_flipped_content_and_others_stay_readable() {
    let dir = tempfile::tempdir().unwrap();
    let chat = journal(dir.path());
    let whole = check(dir.path()).turns;
    let path = dir.path().join("journal.db");
    let mut file = fs::read(&path).unwrap();
    let place = file
        .windows(SAID.len())
        .position(|bytes| bytes == SAID.as_bytes())
        .unwrap();
    file[place + 7] ^= 0x10;
    fs::write(&path, file).unwrap();
    let check = check(dir.path());
    let expected = format!(
        "turn 3 of generation {} (tenant t, session said) does not match its checksum",
        chat.generation()
    );
    assert_eq!(check.damages, [expected]);
    let turns = TurnCheckCounts {
        whole: whole.whole - 1,
        damaged: 1,
        unchecked: 0,
    };
    assert_eq!(check.turns, turns);
    // The daemon starts with it, and shows the remaining content.
    let store = open(dir.path());
    let turns = known(&store, &chat.key).unwrap().turns;
    let shown: Vec<_> = turns
        .iter()
        .map(|(seq, content, role, ..)| {
            let text = format!("{:?}", encoding::open(content).unwrap());
            (*seq, *role, text.contains(DAMAGED_TEXT))
        })
        .collect();
    let expected = [
        (1, Role::User, false),
        (2, Role::Assistant, false),
        (3, Role::User, true),
    ];
    assert_eq!(shown, expected);
    must_work(&store);
}

#[test]
fn verify_names_damaged_page_and_checks_other_turns() {
    let dir = tempfile::tempdir().unwrap();
    journal(dir.path());
    // Free pages are not checked, so release them. Each step releases one.
    let opened = raw(dir.path());
    {
        let mut vacuum = opened.prepare("PRAGMA incremental_vacuum").unwrap();
        let mut pages = vacuum.query([]).unwrap();
        while pages.next().unwrap().is_some() {}
    }
    assert_eq!(number(&opened, "PRAGMA freelist_count"), 0);
    drop(opened);
    let whole = check(dir.path()).turns.whole;
    let path = dir.path().join("journal.db");
    let file = fs::read(&path).unwrap();
    let (mut turns_lost, mut all_lost) = (0, 0);
    for page in (2..file.len() / PAGE).step_by(7) {
        let mut damaged = file.clone();
        // Overwrites the b-tree header of the page.
        damaged[page * PAGE..page * PAGE + 12].fill(0xa5);
        fs::write(&path, damaged).unwrap();
        let check = check(dir.path());
        assert!(check.damages_total > 0, "page {page}");
        assert!(
            check.damages.iter().any(|damage| damage.contains("age")),
            "{:?}",
            check.damages
        );
        turns_lost += check.turns.damaged;
        assert!(check.turns.whole <= whole);
        all_lost += usize::from(check.turns.whole == 0);
    }
    assert!(turns_lost > 0, "no page had turns");
    assert!(all_lost <= 1, "only by the root: {all_lost} times");
}

#[test]
fn verify_terminates_on_page_with_zeroed_rows() {
    let dir = tempfile::tempdir().unwrap();
    journal(dir.path());
    let whole = check(dir.path()).turns.whole;
    let path = dir.path().join("journal.db");
    let file = fs::read(&path).unwrap();
    let mut turns_lost = 0;
    for page in 2..file.len() / PAGE {
        let mut damaged = file.clone();
        let page_bytes = &mut damaged[page * PAGE..(page + 1) * PAGE];
        // A leaf of a table: the cell pointers stay, and every cell becomes row 0.
        if page_bytes[0] != 0x0d {
            continue;
        }
        let cells = usize::from(u16::from_be_bytes([page_bytes[3], page_bytes[4]]));
        page_bytes[(8 + 2 * cells).min(PAGE)..].fill(0);
        fs::write(&path, damaged).unwrap();
        let check = check(dir.path());
        assert!(check.turns.whole <= whole, "page {page}: {:?}", check.turns);
        turns_lost += whole - check.turns.whole;
        // If the schema is damaged, nothing can be read.
        let is_schema = check.damages.iter().any(|damage| damage.contains("schema"));
        assert_eq!(check.turns.whole == 0, is_schema, "page {page}: {check:?}");
    }
    assert!(turns_lost > 0, "no page had turns");
}

#[test]
fn foreign_schema_objects_are_named_and_refused() {
    let hide = "ALTER TABLE turns RENAME TO hidden;
                CREATE VIEW turns AS SELECT * FROM hidden WHERE seq > 1";
    for (object, sql) in [
        (
            "trigger \"spy\"",
            "CREATE TRIGGER spy AFTER INSERT ON turns BEGIN DELETE FROM states; END",
        ),
        ("view \"turns\"", hide),
        ("table \"hidden\"", hide),
        ("table \"spy\"", "CREATE TABLE spy (a)"),
        (
            "table \"states\"",
            "ALTER TABLE states ADD COLUMN spy TEXT AS (upper(json))",
        ),
        ("table \"states\"", "ALTER TABLE states ADD COLUMN spy TEXT"),
        (
            "index \"spy\"",
            "CREATE INDEX spy ON generations (upper(session))",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        journal(dir.path());
        let path = dir.path().join("journal.db");
        check_schema(&path, None, JOURNAL_SCHEMA).unwrap();
        raw(dir.path()).execute_batch(sql).unwrap();
        let found = check(dir.path());
        let named = format!("it has a foreign {object}; ");
        let is_named = found.damages.iter().any(|it| it.starts_with(&named));
        assert!(is_named, "{sql}: {found:?}");
        assert_eq!(found.turns, TurnCheckCounts::default(), "{sql}");
        let error = check_schema(&path, None, JOURNAL_SCHEMA).unwrap_err();
        assert!(matches!(error, StoreError::ForeignSchema { .. }), "{error}");
    }
}
