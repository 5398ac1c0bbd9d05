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

#[test]
fn a_result_that_reports_a_failure_is_none_of_success() {
    for (name, result) in [
        (
            "assign_seat",
            r#"{"error":{"code":"SEAT_LOCKED","message":"held"}}"#,
        ),
        ("cancel", r#"{"code":422,"message":"not refundable"}"#),
        ("order_card", "ERR 4017 delivery not possible"),
        ("cancel_order", "HTTP 409 Conflict: order is locked"),
        ("cancel_order", "HTTP/1.1 503 Service Unavailable"),
        (
            "set_barring",
            r#"{"errors":[{"code":"T","message":"no answer"}]}"#,
        ),
        (
            "request_advance",
            r#"{"isError":true,"content":[{"type":"text","text":"too much"}]}"#,
        ),
        (
            "add_note",
            r#"{"issue":[{"severity":"error","code":"forbidden"}]}"#,
        ),
        ("share", r#"{"status":"denied","policy":"p"}"#),
        ("share", r#"{"data":{"status":"FAILED"}}"#),
        ("place_order", r#"{"error_code":"POINTS_LOCKED"}"#),
        ("storniere", r#"{"fehler":"FRIST","meldung":"zu früh"}"#),
        (
            "run",
            r#"{"stdout":"","stderr":"no such image","exit_code":1}"#,
        ),
        (
            "run",
            r#"{"output":"a.ts(5,1): x\nb\n","metadata":{"exit_code":2}}"#,
        ),
        ("buy", "payment timeout, order not placed"),
        ("buy", "ticket not available"),
        ("pay", "The payment was declined."),
        ("bash", "   Compiling a\nerror: could not compile `a`\n"),
        (
            "bash",
            "running 2 tests\n\ntest result: FAILED. 1 passed; 1 failed",
        ),
        ("bash", "remote: no\nfatal: unable to access"),
        ("bash", "....F\n1 failed, 3 passed in 0.2s"),
        ("bash", "done\nexit code: 101"),
    ] {
        let turns = [called(1, name, "{}"), answered(1, result)];
        let told = lines(&turns).concat();
        assert!(told.contains(FAILED), "{told}");
    }
}

#[test]
fn a_result_that_only_mentions_a_failure_is_none() {
    for (name, result) in [
        ("decline_offer", r#"{"status":"declined"}"#),
        ("reject_request", "Request rejected."),
        (
            "cancel",
            r#"{"status":"cancelled","error":null,"errors":[]}"#,
        ),
        ("transfer", r#"{"state":"QUEUED","code":201}"#),
        ("bash", "test result: ok. 14 passed; 0 failed; 0 ignored"),
        ("bash", "Found 0 errors. Watching."),
        ("bash", "exit code: 0"),
        ("import", "12 rows written, 0 rejected"),
        ("attach", "attached: a.jpg\nrejected: b.pdf (password)"),
        ("subscribe", "Cancelled. You will not be charged."),
    ] {
        let turns = [called(1, name, "{}"), answered(1, result)];
        let told = lines(&turns).concat();
        assert!(!told.is_empty() && !told.contains(FAILED), "{told}");
    }
    // What is looked at may have failed: the look did not.
    for (name, result) in [
        ("get_payment", r#"{"payment":"P1","status":"declined"}"#),
        ("get_stats", r#"{"errors":12}"#),
        ("read_log", "a\nERROR: pool\n1 failed\nexit code: 2"),
        ("read_log", "payment P1 was declined"),
    ] {
        let turns = [called(1, name, "{}"), answered(1, result)];
        assert_eq!(lines(&turns).len(), 0, "{result}");
    }
}

#[test]
fn what_a_program_wrote_into_json_is_read_as_lines() {
    let result = r#"{"output":"src/a.ts(58,22): error TS2304: Cannot find name 'x'.\n1 error\n","metadata":{"exit_code":2}}"#;
    let input = r#"{"command":["bash","-lc","npx tsc"]}"#;
    let turns = [called(1, "shell", input), answered(1, result)];
    let told = lines(&turns).concat();
    assert!(
        told.contains("failed: src/a.ts(58,22): error TS2304: Cannot find name 'x'."),
        "{told}"
    );
    assert!(told.contains("exit_code=2"), "{told}");
    let input = r#"{"command":["bash","-lc","rg -n x src | head"]}"#;
    assert!(!is_change("shell", input), "a list of words is a command");
    assert!(is_change("shell", r#"{"command":["git","push"]}"#));
    assert!(!is_change("kubectl", r#"{"args":"get pods -n a"}"#));
    assert!(is_change("kubectl", r#"{"args":"cordon n1"}"#));
    assert!(!is_change(
        "bash",
        r#"{"command":"kubectl logs a --tail=4"}"#
    ));
    assert!(is_change("bash", r#"{"command":"docker run a"}"#));
}

#[test]
fn lists_and_reports_of_programs_are_no_speech() {
    for output in [
        "total 8\ndrwxr-xr-x  9 root root  4096 Mar  3 10:11 .\n-rw-r--r--  1 root root  61 Mar  3 10:11 LICENSE",
        "....F...   [100%]\n=== short test summary info here ===\nFAILED a.py::b - assert 1 == 2\n1 failed in 2 s",
        "Changelog\n---------\n\n3.0.0 (2023-11-02)\n******\n\n- Fix a wrong default in ``Nested``.",
    ] {
        let turns = [
            said(1, Role::Assistant, "I look.\n```bash\nls\n```"),
            said(2, Role::User, output),
        ];
        let ledger = Ledger::of(&turns);
        assert!(
            ledger.said.iter().all(|it| it.turn.role != Role::User),
            "{output}"
        );
    }
    // A file of prose is one as well, where outputs answered before; a line of it is not.
    let read = "Please read this first.\nAll of it is of use to you.\n# Setup";
    let turns = |text: &'static str| {
        [
            said(1, Role::Assistant, "```bash\nls\n```"),
            said(2, Role::User, "README\nsrc"),
            said(3, Role::Assistant, "```bash\ncat README\n```"),
            said(4, Role::User, text),
        ]
    };
    for (text, is_said) in [(read, false), ("Stop, please do not read this.", true)] {
        let turns = turns(text);
        let ledger = Ledger::of(&turns);
        let users = ledger.said.iter().filter(|it| it.turn.role == Role::User);
        assert_eq!(users.count(), usize::from(is_said), "{text}");
    }
}
