//! What is noted of a conversation, and when it is enough.

use super::*;
use crate::compaction::transcript::Call;

fn turn(seq: u64, role: Role, text: &str) -> TranscriptTurn {
    TranscriptTurn::new(seq, role, text)
}

fn call(seq: u64, arguments: &str) -> TranscriptTurn {
    turn(seq, Role::Assistant, "").with_call(Call {
        name: "f".to_owned(),
        input: arguments.to_owned(),
        ..Call::default()
    })
}

fn decided(seq: u64, text: &str, decision: &str) -> TranscriptTurn {
    let mut decided = turn(seq, Role::Assistant, text);
    decided.decisions = vec![decision.to_owned()];
    decided
}

fn noted(turns: &[TranscriptTurn]) -> Notes {
    let mut notes = Notes::default();
    turns.iter().for_each(|turn| notes.note(turn));
    notes
}

#[test]
fn files_are_taken_from_the_arguments_of_calls() {
    for (arguments, files) in [
        (r#"{"path": "src/main.rs"}"#, vec!["src/main.rs"]),
        (
            r#"{"file_path": "my notes.txt", "limit": 3}"#,
            vec!["my notes.txt"],
        ),
        (
            r#"{"edits": [{"filename": "a.py"}, {"filename": "b.py"}]}"#,
            vec!["a.py", "b.py"],
        ),
        (r#"{"paths": ["x/y", "plain words"]}"#, vec!["x/y"]),
        (
            r#"{"command": "/usr/bin/env", "url": "https://a.com/b.rs"}"#,
            vec!["/usr/bin/env"],
        ),
        (r#"{"destination": "SEA", "date": "2024-05-20"}"#, vec![]),
        (r#"{"path": "#, vec![]),
        (r#"["#, vec![]),
    ] {
        assert_eq!(noted(&[call(1, arguments)]).files, files, "{arguments}");
    }
    let again = [
        r#"{"path":"a.rs"}"#,
        r#"{"path":"b.rs"}"#,
        r#"{"path":"a.rs"}"#,
    ];
    let turns: Vec<TranscriptTurn> = (1..)
        .zip(again)
        .map(|(seq, text)| call(seq, text))
        .collect();
    assert_eq!(
        noted(&turns).files,
        ["b.rs", "a.rs"],
        "newest last, each once"
    );
}

#[test]
fn a_question_is_pending_until_the_other_speaks() {
    let (user, bot) = (Role::User, Role::Assistant);
    let ask = |seq| turn(seq, user, "I see. What does HAT170 cost? And when?");
    let asked = ["user: What does HAT170 cost?", "user: And when?"];
    let yours = turn(2, bot, "It is $121. Shall I book it?");
    for (turns, pending) in [
        (vec![ask(1)], asked.to_vec()),
        (
            vec![ask(1), call(2, "{}"), turn(3, Role::Tool, "Who?")],
            asked.to_vec(),
        ),
        (
            vec![ask(1), yours.clone()],
            vec!["assistant: Shall I book it?"],
        ),
        (vec![ask(1), yours.clone(), turn(3, user, "Yes")], vec![]),
        (
            vec![ask(1), yours.clone(), turn(3, user, "")],
            vec!["assistant: Shall I book it?"],
        ),
        (
            vec![yours, ask(3), turn(4, user, "(Hello?)")],
            [&asked[..], &["user: (Hello?)"]].concat(),
        ),
        (vec![turn(1, user, "???")], vec![]),
    ] {
        assert_eq!(noted(&turns).pending_questions, pending, "{turns:?}");
    }
}

#[test]
fn notes_are_bounded_and_keep_the_newest() {
    let mut notes = Notes::default();
    for seq in 1..=200 {
        let arguments = format!(r#"{{"path":"src/{seq}.rs"}}"#);
        let text = format!("What is {seq}, {}?", "é".repeat(200));
        let mut busy = call(seq, &arguments).with_text(&text);
        busy.errors = vec![format!("error {seq} {}", "ü ".repeat(1_000))];
        busy.decisions = vec![format!("Do {seq}")];
        notes.note(&busy);
    }
    assert_eq!(
        (notes.files.len(), notes.files.last().unwrap().as_str()),
        (64, "src/200.rs")
    );
    assert_eq!(
        (notes.decisions.len(), notes.decisions[31].as_str()),
        (32, "Do 200")
    );
    assert_eq!(notes.pending_questions.len(), 16);
    assert!(notes.last_error.starts_with("error 200"));
    let is_cut = |note: &String| note.len() <= NOTE_BYTES_MAX && note.ends_with(CUT);
    assert!(notes.pending_questions.iter().all(is_cut) && is_cut(&notes.last_error));
    let before = notes.clone();
    notes.note(&decided(200, "", "Too late"));
    assert_eq!(notes, before, "a turn that is noted is not noted again");
}

#[test]
fn a_section_is_written_of_what_there_is() {
    let mut text = String::new();
    Notes::default().write(&mut text);
    assert_eq!(text, "");
    let mut last = decided(2, "Ok?", "Use SQLite");
    last.errors.push("no such\nfile".to_owned());
    noted(&[call(1, r#"{"path":"a.rs","to_path":"b.rs"}"#), last]).write(&mut text);
    assert_eq!(
        text,
        "\n## Notes\n- Files: a.rs, b.rs\n- Decided: Use SQLite\n\
         - Not answered yet: assistant: Ok?\n- Last error: no such file\n"
    );
}

#[test]
fn notes_cover_a_span_only_when_every_exchange_is_decided_and_nothing_is_lost() {
    let user = |seq, text| turn(seq, Role::User, text);
    let whole = [
        user(1, "please book"),
        decided(2, "HAT170 is booked", "HAT170 booked for $121"),
        user(3, "thanks"),
        decided(4, "bye", "nothing more"),
    ];
    assert!(noted(&whole).cover(&whole));
    assert!(!Notes::default().cover(&whole), "other notes");
    assert!(!noted(&whole).cover(&[]));
    let one_more = [&whole[..], &[user(5, "and?")]].concat();
    assert!(
        !noted(&one_more).cover(&one_more),
        "the last exchange is not decided"
    );
    let lost = [user(1, "please book HAT001"), whole[1].clone()];
    assert!(!noted(&lost).cover(&lost), "HAT001 is in no note");
}
