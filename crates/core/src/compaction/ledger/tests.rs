//! What the ledger reads out of turns: calls with what came of them, and who said what.

use super::*;
use crate::compaction::transcript::{Call, transcript_turn};
use crate::turn::{PartKind, Turn};

fn said(seq: u64, role: Role, text: &str) -> TranscriptTurn {
    TranscriptTurn::new(seq, role, text)
}

fn called(seq: u64, name: &str, input: &str) -> TranscriptTurn {
    said(seq, Role::Assistant, "").with_call(Call {
        id: format!("call_{seq}"),
        name: name.to_owned(),
        input: input.to_owned(),
    })
}

fn answered(seq: u64, text: &str) -> TranscriptTurn {
    let mut turn = said(seq + 1, Role::Tool, text);
    turn.results = vec![CallResult {
        call_id: format!("call_{seq}"),
        range: 0..text.len(),
        is_error: false,
    }];
    turn
}

fn lines(turns: &[TranscriptTurn]) -> Vec<String> {
    Ledger::of(turns).lines().collect()
}

#[test]
fn in_doubt_a_call_changes_something() {
    for (name, input, changes) in [
        ("get_user_details", "{}", false),
        ("searchDirectFlight", "{}", false),
        ("mcp__files__read_file", "{}", false),
        ("browser.find-element", "{}", false),
        ("calculate", "{}", false),
        ("think", "{}", false),
        ("cancel_reservation", "{}", true),
        ("transfer_to_human_agents", "{}", true),
        ("find_and_replace", "{}", true),
        ("check_out", "{}", true),
        ("get_or_create", "{}", true),
        ("storniere_buchung", "{}", true),
        ("\u{4e88}\u{7d04}", "{}", true),
        ("", "", true),
        ("bash", r#"{"command":"ls -F | head"}"#, false),
        (
            "bash",
            r#"{"command":"cd src && git log --oneline 2>&1"}"#,
            false,
        ),
        ("bash", r#"{"command":"sed -n 1,5p a.rs"}"#, false),
        ("bash", r#"{"command":"cat a > b"}"#, true),
        ("bash", r#"{"command":"git commit -m x"}"#, true),
        ("bash", r#"{"command":"cargo test"}"#, true),
        (
            "execute_bash",
            r#"{"command":"grep -r x . 2>/dev/null"}"#,
            false,
        ),
        ("http", r#"{"method":"GET","url":"x"}"#, false),
        ("http", r#"{"method":"POST","url":"x"}"#, true),
    ] {
        assert_eq!(is_change(name, input), changes, "{name}({input})");
    }
}

#[test]
fn a_call_stands_in_one_line_with_what_came_of_it() {
    for (name, input, result, line) in [
        (
            "cancel_reservation",
            r#"{"reason":"change of plan","reservation_id":"4XK90Q"}"#,
            r#"{"reservation_id":"4XK90Q","status":"cancelled","refund":{"amount":120}}"#,
            "cancel_reservation(reservation_id=4XK90Q, reason=change of plan) \
             \u{2192} reservation_id=4XK90Q, status=cancelled, refund amount=120",
        ),
        (
            "book",
            r#"{"flights":[{"flight_number":"HAT170","date":"2024-05-20"}]}"#,
            "Error: payment amount does not add up",
            "book(flight_number=HAT170, date=2024-05-20) \
             \u{2192} failed: Error: payment amount does not add up",
        ),
        (
            "create_invoice",
            "{}",
            r#"{"invoice": 39595}"#,
            "create_invoice() \u{2192} invoice=39595",
        ),
        ("send", "{}", "", "send() \u{2192} ok"),
        (
            "submit",
            "{}",
            r#"{"success": false, "error": "no such order"}"#,
            "submit() \u{2192} failed: success=false, error=no such order",
        ),
        (
            "edit",
            r#"{"search":"a","replace":"b"}"#,
            "Replaced 1 occurrences.\r\n[File: /repo/a.py (10 lines)]\n1:b\n(Open file: /repo/a.py)\nbash-$",
            "edit(search=a, replace=b) \u{2192} Replaced 1 occurrences.; 1:b; /repo/a.py",
        ),
    ] {
        let expected = line.replace("reservation_id=4XK90Q, status", "status");
        let turns = [called(1, name, input), answered(1, result)];
        assert_eq!(lines(&turns), [expected], "{name}");
    }
}

#[test]
fn what_was_read_is_kept_with_its_labels() {
    let found = r#"[{"flight":"HAT170","day":"2024-05-20","prices":{"economy":121,"business":239}},
        {"flight":"HAT171","day":"2024-05-20","prices":{"economy":99,"business":239}}]"#;
    let turns = [
        called(1, "search", r#"{"to":"SEA"}"#),
        answered(1, found),
        called(3, "read_log", "{}"),
        answered(
            3,
            &format!("{}\nvalue = 15838\nplain words\n", "a line ".repeat(40)),
        ),
        called(5, "find_user", "{}"),
        answered(5, "mia_li_3668"),
    ];
    let ledger = Ledger::of(&turns);
    assert_eq!(
        ledger.entries[0].records,
        [
            "flight=HAT170, day=2024-05-20, prices economy=121, business=239",
            "flight=HAT171, prices economy=99",
        ]
    );
    assert_eq!(ledger.entries[1].records.last().unwrap(), "value = 15838");
    assert_eq!(ledger.entries[2].records, ["mia_li_3668"]);
    assert!(ledger.entries.iter().all(|entry| !entry.is_change));
    assert_eq!(ledger.lines().count(), 0, "nothing was changed");
}

#[test]
fn numbers_are_found_with_their_labels() {
    let numbers = |text| labelled_numbers(text);
    let pair = |label: &str, number: &str| vec![(label.to_owned(), number.to_owned())];
    assert_eq!(numbers("value = 15838"), pair("value", "15838"));
    assert_eq!(
        numbers(r#"{"invoice": 39595, "pages": 12}"#),
        pair("invoice", "39595")
    );
    assert_eq!(numbers("12: 15838"), []);
    assert_eq!(numbers("nothing"), []);
}

#[test]
fn the_output_of_a_command_is_not_the_user_s() {
    let output = "344\n(Open file: /repo/a.py)\n(Current directory: /repo)\nbash-$";
    let turns = [
        said(1, Role::User, "Fix it in a.py, please.\nbash-$"),
        said(2, Role::Assistant, "I run it.\n```\npython a.py\n```"),
        said(3, Role::User, output),
        said(
            4,
            Role::Assistant,
            "It gives 344.\n<command>\nedit 1:1\nb\nend_of_edit\n</command>",
        ),
        said(
            5,
            Role::User,
            "[File: /repo/a.py (1 lines total)]\n1:b\nFile updated.",
        ),
        said(6, Role::Assistant, "Done:\n```python\nprint(1)\n```"),
        said(7, Role::User, "Thanks, now do the same for b.py."),
    ];
    let ledger = Ledger::of(&turns[1..]);
    let users: Vec<u64> = ledger
        .said
        .iter()
        .filter(|it| it.turn.role == Role::User)
        .map(|it| it.turn.seq)
        .collect();
    assert_eq!(users, [7]);
    assert_eq!(
        lines(&turns[1..]),
        [
            "python(a.py) \u{2192} 344",
            "edit(1:1 b end_of_edit) \u{2192} [File: /repo/a.py (1 lines total)]; File updated.",
        ]
    );
    assert!(
        ledger
            .said
            .iter()
            .any(|it| it.tells_change && it.text == "It gives 344.")
    );
    // The task ends with a prompt too; behind no command it is what somebody says.
    assert_eq!(Ledger::of(&turns[6..]).said.len(), 1);
    // A command before the first turn is answered by it.
    let rest = Ledger::of(&turns[2..]);
    assert_eq!(
        (
            rest.entries[0].call.as_str(),
            rest.entries[0].outcome.as_str()
        ),
        ("", "344; /repo/a.py")
    );
}

#[test]
fn what_the_user_says_to_a_command_is_no_output_in_any_script() {
    let is_said = |text: &str| {
        let turns = [
            said(1, Role::Assistant, "Run:\n```bash\npip install foo\n```"),
            said(2, Role::User, text),
        ];
        let ledger = Ledger::of(&turns);
        ledger.said.iter().any(|it| it.turn.role == Role::User)
    };
    for text in [
        "请改用 poetry 安装，并锁定版本 1.2",
        "poetry に変更してください",
        "используй poetry",
        "use poetry instead",
        "Thanks.",
    ] {
        assert!(is_said(text), "{text}");
    }
    for text in [
        "344",
        "a.py",
        "a.py b.py c.py d.py",
        "README\nsrc\ntests",
        "Python 3.11.4",
        "foo==1.2",
        "Löschen: 3",
    ] {
        assert!(!is_said(text), "{text}");
    }
}

#[test]
fn a_result_in_a_turn_of_the_user_is_no_wish() {
    let mut turn = said(2, Role::User, "ok\nAnd book it.");
    turn.results = vec![CallResult {
        call_id: "call_1".into(),
        range: 0..2,
        is_error: false,
    }];
    let turns = [called(1, "delete_file", r#"{"path":"a/b.rs"}"#), turn];
    assert_eq!(lines(&turns), ["delete_file(path=a/b.rs) \u{2192} ok"]);
}

#[test]
fn a_result_that_says_nothing_new_is_told_as_it_is() {
    for known in [
        r#"{"approved":false}"#,
        r#"{"order_id":"O1","status":"pending"}"#,
    ] {
        let turns = [
            called(1, "get_status", r#"{"order_id":"O1"}"#),
            answered(1, known),
            called(3, "request_refund", r#"{"order_id":"O1"}"#),
            answered(3, known),
        ];
        let told = lines(&turns).concat();
        assert!(
            told.ends_with("approved=false") || told.ends_with("status=pending"),
            "{told}"
        );
    }
    let input = r#"{"error":"declined"}"#;
    let turns = [called(1, "report", input), answered(1, input)];
    assert_eq!(
        lines(&turns),
        ["report(error=declined) \u{2192} failed: error=declined"]
    );
}

#[test]
fn what_stands_behind_a_result_takes_no_results_place() {
    let mut turn = said(2, Role::Tool, "declined\n3 retries left");
    let result = |call_id: &str, range| CallResult {
        call_id: call_id.to_owned(),
        range,
        is_error: call_id == "call_1",
    };
    turn.results = vec![result("call_1", 0..8), result("", 9..24)];
    let turns = [called(1, "charge", r#"{"card":"4242"}"#), turn];
    assert_eq!(
        lines(&turns),
        ["charge(card=4242) \u{2192} failed: declined"]
    );
    // A call from before the turns is no other one.
    let mut late = said(2, Role::Tool, "late");
    late.results = vec![result("call_0", 0..4)];
    let turns = [called(1, "charge", "{}"), late];
    assert_eq!(lines(&turns), ["charge()"]);
}

#[test]
fn any_text_is_read() {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let pieces = [
        "```", "\n", "<a>", "</a>", "{", "}", "[", "\"", ":", "=", "\u{4e2d}", "x", "=>", ")",
        "; ", "\u{2192}",
    ];
    for round in 0..2_000 {
        let mut text = String::new();
        for _ in 0..round % 24 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            text.push_str(pieces[usize::try_from(seed % pieces.len() as u64).unwrap()]);
        }
        let turns = [
            said(1, Role::Assistant, &text),
            said(2, Role::User, &text),
            called(3, &text, &text),
            answered(3, &text),
        ];
        assert!(Ledger::of(&turns).entries.len() <= 3, "{text}");
        labelled_numbers(&text);
        is_change(&text, &text);
    }
}

#[test]
fn what_failed_is_told_once_and_read_as_the_tool_said_it() {
    let call = PartKind::ToolUse {
        id: "c".into(),
        name: "cancel_order".into(),
        input_json: r#"{"order":"ORD-1"}"#.into(),
    };
    let result = PartKind::ToolResult {
        tool_use_id: "c".into(),
        content: r#"{"error":"no such order"}"#.into(),
        parts: Vec::new(),
        is_error: true,
    };
    let turns = [
        transcript_turn(1, &Turn::new(Role::Assistant, vec![call.into()]), 1_000),
        transcript_turn(2, &Turn::new(Role::Tool, vec![result.into()]), 1_000),
    ];
    let told = lines(&turns).concat();
    assert_eq!(told.matches(FAILED).count(), 1, "{told}");
    assert!(
        told.contains("no such order") && !told.contains('{'),
        "{told}"
    );
}
