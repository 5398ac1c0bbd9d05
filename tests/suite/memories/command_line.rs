//! The subcommands of `memoird memory`.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{
    Daemon, Embeddings, Outcome, Setup, all_embedded, ask_as, binary, contents, fact, fails,
    memories_of, query_of, recalled, remember_new, run,
};

async fn ask(daemon: &Daemon, args: &[&str]) -> Outcome {
    ask_as(daemon, &[&["memory"], args].concat(), "").await
}

/// The output of a command, after checking that it succeeded.
async fn stdout_of(daemon: &Daemon, args: &[&str]) -> String {
    let outcome = ask(daemon, args).await;
    assert_eq!(outcome.code, Some(0), "{args:?}: {outcome:?}");
    outcome.stdout
}

async fn json_of(daemon: &Daemon, args: &[&str]) -> Value {
    ask(daemon, &[args, &["--json"]].concat()).await.json()
}

async fn add(daemon: &Daemon, more: &[&str]) -> Value {
    let base = ["add", "--subject", "ann", "--kind", "project"];
    json_of(daemon, &[&base[..], more].concat()).await
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field]
        .as_str()
        .unwrap_or_else(|| panic!("no {field} in {value}"))
}

#[tokio::test]
async fn add_stores_fact_and_prints_outcome() {
    let daemon = Daemon::start().await;
    let all = [
        "The launch is in May",
        "--tag",
        "work",
        "--tag",
        "may",
        "--importance",
        "0.75",
        "--pin",
        "--observed",
        "2026-01-31",
        "--expires",
        "2126-01-31T12:00:00Z",
        "--visibility",
        "team",
    ];
    let made = add(&daemon, &all).await;
    assert_eq!(made["outcome"], "created");
    let memory = &made["memory"];
    assert_eq!(memory["kind"], "MEMORY_KIND_PROJECT");
    assert_eq!(
        (&memory["tags"], &memory["importance"]),
        (&json!(["may", "work"]), &json!(0.75))
    );
    assert!(
        text(memory, "observed_at").starts_with("2026-01-31T00:00:00"),
        "{memory}"
    );
    let again = |text| ["--visibility", "team", text];
    assert_eq!(
        add(&daemon, &again("The launch is in May")).await["outcome"],
        "reinforced"
    );
    assert_eq!(
        add(&daemon, &again("the launch is in MAY")).await["outcome"],
        "merged"
    );
    let instead = ["It is in June", "--supersedes", text(memory, "id")];
    assert_eq!(add(&daemon, &instead).await["outcome"], "created");
    let plain = stdout_of(
        &daemon,
        &["add", "--subject", "bob", "--kind", "user", "Likes tea"],
    )
    .await;
    assert!(
        plain.starts_with("created") && plain.contains("Likes tea"),
        "{plain}"
    );
    for (args, code, word) in [
        (
            &["add", "--subject", "ann", "--kind", "user", " "][..],
            1,
            "MEMORY_INVALID",
        ),
        (
            &["add", "--subject", "ann", "--kind", "secret", "x"],
            2,
            "secret",
        ),
        (&["add", "--kind", "user", "x"], 2, "--subject"),
        (
            &[
                "add",
                "--subject",
                "ann",
                "--kind",
                "user",
                "x",
                "--observed",
                "soon",
            ],
            2,
            "soon",
        ),
    ] {
        fails(&ask(&daemon, args).await, code, word);
    }
    let known = memories_of(&mut daemon.memories(), "").await;
    assert_eq!(
        contents(&known),
        [
            "the launch is in MAY",
            // History of the first one.
            "The launch is in May",
            "It is in June",
            "Likes tea"
        ]
    );
}

#[tokio::test]
async fn list_and_show_print_memories() {
    let daemon = Daemon::start().await;
    let first = add(&daemon, &["The launch\u{1b}[2J is in May", "--tag", "work"]).await;
    let id = text(&first["memory"], "id").to_owned();
    add(&daemon, &["It is in June", "--supersedes", &id]).await;
    stdout_of(
        &daemon,
        &["add", "--subject", "bob", "--kind", "user", "Likes tea"],
    )
    .await;

    let table = stdout_of(&daemon, &["list"]).await;
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("ID") && lines.len() == 3, "{table}");
    assert!(
        lines[1].contains("It is in June") && lines[2].contains("Likes tea"),
        "{table}"
    );
    let whole = stdout_of(&daemon, &["list", "--history"]).await;
    assert!(
        whole.contains("superseded") && !whole.contains('\u{1b}'),
        "{whole}"
    );
    for (args, count) in [
        (&["list", "--subject", "bob"][..], 1),
        (&["list", "--kind", "user"], 1),
        (&["list", "--kind", "feedback"], 0),
        (&["list", "--tag", "work"], 0),
        (&["list", "--tag", "work", "--history"], 1),
        (&["list", "--limit", "1"], 1),
        (&["list", "--limit", "0", "--history"], 3),
    ] {
        let listed = json_of(&daemon, args).await;
        assert_eq!(
            listed["memories"].as_array().map(Vec::len),
            Some(count),
            "{args:?}"
        );
    }
    let shown = json_of(&daemon, &["show", &id]).await;
    assert_eq!(shown["memory"]["content"], "The launch\u{1b}[2J is in May");
    assert_eq!(text(&shown["memory"], "superseded_by").len(), 26);
    let plain = stdout_of(&daemon, &["show", &id]).await;
    assert!(
        plain.contains("superseded by") && !plain.contains('\u{1b}'),
        "{plain}"
    );
    fails(
        &ask(&daemon, &["show", "01ARZ3NDEKTSV4RRFFQ69G5FAV"]).await,
        1,
        "MEMORY_NOT_FOUND",
    );
    fails(
        &ask(&daemon, &["show", "mine"]).await,
        1,
        "MEMORY_ID_INVALID",
    );
}

#[tokio::test]
async fn recall_prints_hits_and_search_mode() {
    let provider = Embeddings::start().await;
    let daemon = Daemon::with(Setup::default().section(provider.section("m"))).await;
    add(&daemon, &["Her automobile is red", "--tag", "car"]).await;
    add(&daemon, &["The launch is in May"]).await;
    all_embedded(&mut daemon.memories()).await;
    let hybrid = json_of(&daemon, &["recall", "which car", "--subject", "ann"]).await;
    assert_eq!(
        (&hybrid["mode"], &hybrid["degraded"]),
        (&json!("RECALL_MODE_HYBRID"), &json!(false))
    );
    assert_eq!(
        hybrid["hits"][0]["memory"]["content"],
        "Her automobile is red"
    );
    assert_eq!(hybrid["hits"][0]["vector_rank"], 1);
    let words = ["recall", "launch", "--subject", "ann", "--mode", "lexical"];
    let words = json_of(&daemon, &words).await;
    assert_eq!(words["hits"].as_array().map(Vec::len), Some(1));
    let filtered = [
        "recall",
        "launch car",
        "--subject",
        "ann",
        "--tag",
        "car",
        "--kind",
        "project",
    ];
    let filtered = json_of(&daemon, &filtered).await;
    assert_eq!(filtered["hits"].as_array().map(Vec::len), Some(1));
    let table = stdout_of(
        &daemon,
        &["recall", "launch", "--subject", "ann", "--limit", "1"],
    )
    .await;
    assert!(
        table.starts_with("SCORE") && table.contains("The launch is in May"),
        "{table}"
    );
    let nobody = json_of(&daemon, &["recall", "launch"]).await;
    assert_eq!(
        nobody["hits"],
        json!([]),
        "who names nobody sees what all may see"
    );
    provider.set_down(true);
    let down = ask(&daemon, &["recall", "a red launch", "--subject", "ann"]).await;
    assert_eq!(down.code, Some(0), "{down:?}");
    assert!(
        down.stderr.contains("words") && down.stdout.contains("May"),
        "{down:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eval_prints_metrics_and_explain_prints_score_parts() {
    let provider = Embeddings::start().await;
    let daemon = Daemon::with(Setup::default().section(provider.section("m"))).await;
    let car = add(&daemon, &["Her automobile is red", "--tag", "car"]).await;
    add(&daemon, &["The launch is in May"]).await;
    all_embedded(&mut daemon.memories()).await;
    let id = text(&car["memory"], "id");
    let questions = format!(
        "{}\n\n{}\n{}\n",
        json!({"question": "which car", "subject": "ann", "ids": [id]}),
        json!({"question": "the launch?", "subject": "ann", "words": ["launch is in may"]}),
        json!({"question": "the launch?", "subject": "eve", "words": ["launch"]}),
    );
    let outcome = piped(&daemon, &["eval", "-", "--json"], &questions);
    let result = outcome.json();
    assert_eq!(result["questions"], 3);
    let [words, hybrid] = &result["modes"].as_array().expect("modes")[..] else {
        panic!("{result}");
    };
    assert_eq!(
        (&words["mode"], &hybrid["mode"]),
        (&json!("lexical"), &json!("hybrid"))
    );
    assert_eq!(words["recall_at"]["1"], json!(1.0 / 3.0));
    assert_eq!(hybrid["recall_at"]["1"], json!(2.0 / 3.0));
    assert!(hybrid["p95_ms"].as_f64() > Some(0.0), "{hybrid}");
    let table = piped(&daemon, &["eval", "-", "--mode", "lexical"], &questions).stdout;
    assert!(
        table.starts_with("MODE") && table.contains("33.3"),
        "{table}"
    );
    assert_eq!(table.lines().count(), 2, "{table}");
    fails(
        &piped(&daemon, &["eval", "-"], "{\"question\":\"x\"}"),
        65,
        "line 1",
    );
    fails(&piped(&daemon, &["eval", "-"], "\n"), 65, "no question");

    let args = ["explain", "a red launch", "--subject", "ann"];
    let shown = json_of(&daemon, &args).await;
    let parts = &shown["hits"][0]["parts"];
    assert!(parts["words_share"].as_f64() > Some(0.0), "{shown}");
    assert!(parts["cosine"].as_f64().is_some(), "{shown}");
    let table = stdout_of(&daemon, &args).await;
    assert!(
        table.starts_with("SCORE") && table.contains("BESIDE"),
        "{table}"
    );
    let seen = memories_of(&mut daemon.memories(), "").await;
    assert!(
        seen.iter().all(|memory| memory.recall_count == 0),
        "who looks leaves no trace"
    );
}

#[tokio::test]
async fn conflicts_lists_contradicting_facts() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    for (whose, content) in [
        ("ann", "Ann lives in Riga"),
        ("ann", "Ann lives in Oslo"),
        ("ann", "The launch is on 3 May"),
        ("bob", "Bob has 2 cats"),
        ("bob", "Bob has 3 cats"),
        ("eve", "Ann lives in Bern"),
    ] {
        remember_new(&mut client, fact(whose, content)).await;
    }
    let of_ann = json_of(&daemon, &["conflicts", "--subject", "ann"]).await;
    let [conflict] = &of_ann["conflicts"].as_array().expect("a list")[..] else {
        panic!("{of_ann}");
    };
    assert_eq!(conflict["older"]["content"], "Ann lives in Riga");
    assert_eq!(conflict["newer"]["content"], "Ann lives in Oslo");
    assert_eq!(conflict["difference"], "CONFLICT_DIFFERENCE_WORDS");
    let table = stdout_of(&daemon, &["conflicts"]).await;
    let lines: Vec<&str> = table.lines().collect();
    assert_eq!(lines.len(), 5, "{table}");
    assert!(
        lines[3].contains("numbers") && lines[4].contains("3 cats"),
        "{table}"
    );
    assert_eq!(
        stdout_of(&daemon, &["conflicts", "--subject", "eve"]).await,
        ""
    );
}

#[tokio::test]
async fn forget_prints_counts_and_requires_confirmation() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    let first = remember_new(&mut client, fact("ann", "The launch is in May")).await;
    for number in 0..4 {
        remember_new(&mut client, fact("bob", &format!("Bob's note {number}"))).await;
    }
    let dry = json_of(&daemon, &["forget", "--subject", "bob", "--dry-run"]).await;
    assert_eq!(
        (&dry["memories"], &dry["erased"]),
        (&json!(4), &json!(false))
    );
    // Without a terminal there is no confirmation prompt.
    let unasked = ask(&daemon, &["forget", "--subject", "bob"]).await;
    assert!(unasked.code.is_some_and(|code| code != 0), "{unasked:?}");
    assert!(unasked.stderr.contains("--yes"), "{unasked:?}");
    assert_eq!(memories_of(&mut client, "").await.len(), 5);
    let gone = json_of(&daemon, &["forget", "--subject", "bob", "--yes"]).await;
    assert_eq!(
        (&gone["memories"], &gone["erased"]),
        (&json!(4), &json!(true))
    );
    let table = stdout_of(
        &daemon,
        &["forget", "--kind", "project", "--subject", "eve", "--yes"],
    )
    .await;
    assert!(table.contains("memories"), "{table}");
    for args in [
        &["forget", "--yes"][..],
        &["forget", "--id", &first.id, "--subject", "ann"],
    ] {
        fails(&ask(&daemon, args).await, 2, "--");
    }
    let one = json_of(&daemon, &["forget", "--id", &first.id, "--yes"]).await;
    assert_eq!(one["memories"], 1);
    fails(
        &ask(&daemon, &["forget", "--id", &first.id, "--yes"]).await,
        1,
        "MEMORY_NOT_FOUND",
    );
    assert!(memories_of(&mut client, "").await.is_empty());
}

#[tokio::test]
async fn manifest_prints_agent_manifest() {
    let daemon = Daemon::start().await;
    add(&daemon, &["The launch is in May"]).await;
    add(&daemon, &["The office is in Oslo", "--pin"]).await;
    let plain = stdout_of(&daemon, &["manifest", "ann"]).await;
    let lines: Vec<&str> = plain.lines().collect();
    assert!(
        lines[0].contains("Oslo") && lines[1].contains("May"),
        "{plain}"
    );
    let one = json_of(&daemon, &["manifest", "ann", "--max-lines", "1"]).await;
    assert_eq!(
        (&one["lines"], &one["truncated"]),
        (&json!(1), &json!(true))
    );
    assert_eq!(stdout_of(&daemon, &["manifest", "nobody"]).await, "");
}

/// Runs a command with this input on stdin.
fn piped(daemon: &Daemon, args: &[&str], input: &str) -> Outcome {
    let mut command = Command::new(binary());
    command
        .args(["--addr", daemon.grpc_addr(), "memory"])
        .args(args);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().expect("it is started");
    let mut stdin = child.stdin.take().expect("a pipe");
    // A command that fails early does not read its input.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    Outcome {
        code: output.status.code(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn export_and_import_round_trip_exactly() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    let first = add(
        &daemon,
        &[
            "Größe: 5\u{2032}\n\t\"quoted\" \\ \u{1f950}",
            "--tag",
            "a b",
        ],
    )
    .await;
    let id = text(&first["memory"], "id").to_owned();
    add(
        &daemon,
        &[
            "Now 6\u{2032}",
            "--supersedes",
            &id,
            "--importance",
            "0.3",
            "--pin",
        ],
    )
    .await;
    for number in 0..700 {
        remember_new(&mut client, fact("bob", &format!("Bob's note {number}"))).await;
    }
    recalled(&mut client, query_of("ann", "now")).await;
    let exported = stdout_of(&daemon, &["export"]).await;
    assert_eq!(exported.lines().count(), 702);
    let bobs = stdout_of(&daemon, &["export", "--subject", "bob"]).await;
    assert_eq!(bobs.lines().count(), 700);

    let other = Daemon::start().await;
    let done = piped(&other, &["import", "-", "--json"], &exported).json();
    assert_eq!(
        (&done["imported"], &done["skipped"]),
        (&json!(702), &json!(0))
    );
    assert_eq!(stdout_of(&other, &["export"]).await, exported);
    let there = memories_of(&mut other.memories(), "").await;
    assert_eq!(there.len(), 702);
    let file = other.path("export.jsonl");
    std::fs::write(&file, &exported).expect("written");
    let again = stdout_of(&other, &["import", &file.display().to_string()]).await;
    assert!(
        again.contains("imported 0") && again.contains("702"),
        "{again}"
    );

    // An invalid line stops the import and is named in the error.
    for (bad, word) in [
        ("{", "line 2"),
        ("{\"id\":\"x\"}", "line 2"),
        ("[]", "line 2"),
    ] {
        let empty = Daemon::start().await;
        let first_line = exported.lines().next().expect("a line");
        let outcome = piped(&empty, &["import", "-"], &format!("{first_line}\n{bad}\n"));
        fails(&outcome, 65, word);
        assert!(
            memories_of(&mut empty.memories(), "").await.is_empty(),
            "{bad}"
        );
    }
    fails(
        &ask(&other, &["import", "/proc/no-such-file"]).await,
        66,
        "/proc/no-such-file",
    );
}

#[tokio::test]
async fn reindex_waits_until_everything_is_embedded() {
    let provider = Embeddings::start().await;
    let daemon = Daemon::with(Setup::default().section(provider.section("m"))).await;
    for number in 0..9 {
        remember_new(
            &mut daemon.memories(),
            fact("ann", &format!("Note {number}")),
        )
        .await;
    }
    let done = json_of(&daemon, &["reindex"]).await;
    assert_eq!(
        (&done["memories"], &done["embedded"]),
        (&json!(9), &json!(9)),
        "{done}"
    );
    let plain = stdout_of(&daemon, &["reindex"]).await;
    assert!(plain.contains('9'), "{plain}");
    let without = Daemon::start().await;
    remember_new(&mut without.memories(), fact("ann", "A note")).await;
    let words = stdout_of(&without, &["reindex"]).await;
    assert!(words.contains("words"), "{words}");
}

#[tokio::test]
async fn dream_prints_report_as_text_and_json() {
    let daemon = Daemon::start().await;
    add(&daemon, &["The launch is in May"]).await;
    let report = json_of(&daemon, &["dream", "--dry-run"]).await;
    assert_eq!(report["default"]["considered"], 1, "{report}");
    let plain = stdout_of(&daemon, &["dream", "--tenant", "default"]).await;
    assert!(plain.contains("considered: 1"), "{plain}");
    fails(
        &ask(&daemon, &["dream", "--tenant", "nobody"]).await,
        1,
        "TENANT_NOT_FOUND",
    );
}

#[tokio::test]
async fn every_subcommand_requires_key_when_keys_are_configured() {
    let daemon = Daemon::with(Setup::default().two_tenants("", "")).await;
    for args in [
        &["list"][..],
        &["show", "01ARZ3NDEKTSV4RRFFQ69G5FAV"],
        &["add", "--subject", "ann", "--kind", "user", "x"],
        &["recall", "x"],
        &["forget", "--subject", "ann", "--dry-run"],
        &["manifest", "ann"],
        &["export"],
        &["reindex"],
        &["dream"],
    ] {
        fails(&ask(&daemon, args).await, 77, "NO_KEY");
        let help = run(&["memory", args[0], "--help"], &[]).await;
        assert_eq!(help.code, Some(0), "{args:?}");
    }
    let dream = ask_as(&daemon, &["memory", "dream"], Setup::BETA).await;
    fails(&dream, 77, "ROLE_REQUIRED");
    let args = [
        "memory",
        "add",
        "--subject",
        "ann",
        "--kind",
        "user",
        "Likes tea",
    ];
    assert_eq!(ask_as(&daemon, &args, Setup::ALPHA).await.code, Some(0));
    let listed = ask_as(&daemon, &["memory", "export"], Setup::BETA).await;
    assert_eq!((listed.code, listed.stdout.as_str()), (Some(0), ""));
}

#[tokio::test]
async fn key_environment_variable_is_not_used_as_idempotency_key() {
    let daemon = Daemon::with(Setup::default().two_tenants("", "")).await;
    for fact in ["The launch is in May", "The office is in Oslo"] {
        let add = [
            "memory",
            "add",
            "--subject",
            "ann",
            "--kind",
            "project",
            fact,
        ];
        let added = ask_as(&daemon, &add, Setup::ALPHA).await;
        assert_eq!(added.code, Some(0), "{added:?}");
    }
    let keyed = [
        "memory",
        "add",
        "--subject",
        "ann",
        "--kind",
        "project",
        "--key",
        "k",
    ];
    for (fact, code) in [("A fact", 0), ("A fact", 0), ("Another one", 1)] {
        let add = [&keyed[..], &[fact]].concat();
        let added = ask_as(&daemon, &add, Setup::ALPHA).await;
        assert_eq!(added.code, Some(code), "{fact}: {added:?}");
    }
}
