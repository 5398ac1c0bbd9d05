//! `memoird verify` for a running daemon and for a directory.

use std::path::Path;

use memoird_proto::v1::{
    BuildContextRequest, GetDocumentRequest, GetMemoryRequest, PutDocumentRequest, VerifyRequest,
    put_document_request,
};
use tonic::Code;

use crate::harness::{
    Daemon, Setup, ask_as, fact, fails, http_get, journal, live, query_of, recalled, refused_code,
    remember, run, say, text_of, without_nonce,
};

const MARK: &str = "[memoird: the content of this turn was damaged on disk and cannot be read]";

/// Flips a bit of this text in a file.
fn flip(path: &Path, text: &str) {
    let mut file = std::fs::read(path).expect("a file");
    let mut places = file.windows(text.len());
    let place = places.position(|bytes| bytes == text.as_bytes());
    file[place.expect("the text") + 2] ^= 4;
    std::fs::write(path, file).expect("written");
}

#[tokio::test]
async fn bit_flip_damages_only_that_turn_and_verify_names_it() {
    // The search index would read the turn too, before or after the restart.
    let setup = Setup::default().section("search: { enabled: false }");
    let mut daemon = Daemon::with(setup).await;
    let mut client = daemon.sessions();
    for text in ["one", "two: a text to be found", "three"] {
        say(&mut client, "chat", text).await;
    }
    remember(&mut daemon.memories(), fact("ann", "likes tea")).await;
    let whole = ask_as(&daemon, &["verify", "--json"], "").await.json();
    assert_eq!(whole["files"].as_array().map(Vec::len), Some(2), "{whole}");
    assert_eq!(whole["files"][0]["turns_whole"], 3, "{whole}");
    daemon.stop().await;
    let data = daemon.path("data");
    let data = data.to_str().expect("a path");
    let outcome = run(&["verify", data], &[]).await;
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(
        outcome.stdout.contains("memories/default.db"),
        "{outcome:?}"
    );

    flip(&daemon.path("data/journal.db"), "two: a text to be found");
    let outcome = run(&["verify", data], &[]).await;
    assert_eq!(outcome.code, Some(65), "{outcome:?}");
    assert!(
        outcome.stdout.contains("turn 2 of generation"),
        "{outcome:?}"
    );
    assert!(outcome.stderr.contains("journal.db"), "{outcome:?}");

    daemon.restart().await;
    let mut client = daemon.sessions();
    for turns in [
        live(&mut client, "chat").await,
        journal(&mut client, "chat", "").await,
    ] {
        let texts: Vec<&str> = turns.iter().map(text_of).collect();
        assert_eq!(texts, ["one", MARK, "three"]);
        assert_eq!(turns[1].seq, 2);
    }
    let request = BuildContextRequest {
        session_id: "chat".into(),
        ..BuildContextRequest::default()
    };
    let window = client.build_context(request).await.expect("a window");
    assert_eq!(without_nonce(text_of(&window.into_inner().turns[1])), MARK);
    say(&mut client, "chat", "four").await;
    let (_, metrics) = http_get(daemon.admin_addr(), "/metrics").await;
    assert!(
        metrics.contains("memoird_journal_turns_damaged_total 2\n"),
        "one load and one page: {metrics}"
    );
    let outcome = ask_as(&daemon, &["verify"], "").await;
    assert_eq!(outcome.code, Some(65), "{outcome:?}");
    assert!(outcome.stdout.contains("session chat"), "{outcome:?}");
}

#[tokio::test]
async fn bit_flip_in_memory_or_document_is_not_returned_and_verify_names_it() {
    let mut daemon = Daemon::with(Setup::default()).await;
    let mut client = daemon.memories();
    let tea = remember(&mut client, fact("ann", "Ann likes green tea")).await;
    remember(&mut client, fact("ann", "Ann likes black coffee")).await;
    let id = tea.memory.expect("a memory").id;
    let put = PutDocumentRequest {
        namespace: vec!["notes".into()],
        key: "first".into(),
        value: Some(put_document_request::Value::Json(
            r#""a note to be found""#.into(),
        )),
        ..PutDocumentRequest::default()
    };
    daemon.documents().put_document(put).await.expect("stored");
    daemon.stop().await;
    let file = daemon.path("data/memories/default.db");
    flip(&file, "Ann likes green tea");
    flip(&file, "a note to be found");
    let data = daemon.path("data");
    let outcome = run(&["verify", data.to_str().expect("a path")], &[]).await;
    assert_eq!(outcome.code, Some(65), "{outcome:?}");
    for named in [&*id, r#"document "first""#] {
        assert!(outcome.stdout.contains(named), "{named} in {outcome:?}");
    }

    daemon.restart().await;
    let mut client = daemon.memories();
    let texts = recalled(&mut client, query_of("ann", "what Ann likes")).await;
    assert_eq!(texts, ["Ann likes black coffee"]);
    let get = GetMemoryRequest {
        id,
        ..GetMemoryRequest::default()
    };
    let refused = client.get_memory(get).await.expect_err("damaged");
    assert_eq!(refused.code(), Code::DataLoss);
    assert_eq!(refused_code(&refused), "MEMORY_DAMAGED");
    let get = GetDocumentRequest {
        namespace: vec!["notes".into()],
        key: "first".into(),
        ..GetDocumentRequest::default()
    };
    let refused = daemon.documents().get_document(get).await;
    assert_eq!(
        refused_code(&refused.expect_err("damaged")),
        "DOCUMENT_DAMAGED"
    );
    let (_, metrics) = http_get(daemon.admin_addr(), "/metrics").await;
    let counted = "memoird_memories_damaged_total{tenant=\"default\"} ";
    let count = metrics.lines().find_map(|line| line.strip_prefix(counted));
    let count: u64 = count.expect("a count").parse().expect("a number");
    assert!(count >= 3, "a recall and two reads: {count}");
    let outcome = ask_as(&daemon, &["verify"], "").await;
    assert_eq!(outcome.code, Some(65), "{outcome:?}");
}

#[tokio::test]
async fn verify_requires_admin_role_and_a_journal() {
    let daemon = Daemon::with(Setup::default().two_tenants("", "")).await;
    fails(
        &ask_as(&daemon, &["verify"], Setup::ALPHA).await,
        77,
        "ROLE_REQUIRED",
    );
    let mut admin = daemon.admin_of(Setup::ADMIN);
    let reply = admin.verify(VerifyRequest {}).await.expect("a check");
    assert_eq!(reply.into_inner().files.len(), 1, "the journal");
    let nothing = daemon.path("nothing");
    let nothing = nothing.to_str().expect("a path");
    fails(
        &run(&["verify", nothing], &[]).await,
        66,
        "neither a journal",
    );
}
