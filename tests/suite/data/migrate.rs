//! `memoird migrate`: sessions move to a database and back to a directory, as if by a restart.

use memoird_proto::v1::{
    DeliveryState, GetDocumentRequest, GetSessionRequest, GetSessionResponse, PutDocumentRequest,
    RetryHookDeliveryRequest, SearchTranscriptsRequest, Turn, UpdateSessionRequest,
    put_document_request,
};

use crate::data::postgres::server::Server;
use crate::harness::{
    Daemon, Outcome, RECORDING_HOOK, Sessions, Setup, all_delivered, append, assistant, delivered,
    deliveries, end, eventually, fact, fails, field, in_state, journal, keyed, live, query_of,
    recalled, remember_new, run, say, stats, tool_results, tool_uses, user,
};

/// Fails, and retries only after an hour.
const FAILS: &str = "retry: { tries: 5, pause: 1h, pause_max: 1h }, exec: { argv: ['false'] }";

fn over(journal: &str, hook: &str) -> Setup {
    let hooks = format!("hooks: [ {{ name: keeps, {hook} }} ]");
    Setup::default().section(hooks).section(journal)
}

fn database(words: &str) -> String {
    format!("journal: {{ postgres: {{ url: '{words}' }} }}")
}

async fn migrate(daemon: &Daemon, to: &str) -> Outcome {
    let config = daemon.path("memoird.yaml").display().to_string();
    run(&["migrate", "--config", &config, "--to", to], &[]).await
}

/// The sessions as clients see them.
async fn seen(client: &mut Sessions, ended: &str) -> (GetSessionResponse, Vec<Vec<Turn>>) {
    let look = GetSessionRequest {
        session_id: "chat".into(),
        include_state: true,
    };
    let session = client.get_session(look).await.expect("it lives");
    let histories = vec![
        live(client, "chat").await,
        journal(client, "chat", "").await,
        journal(client, "gone", ended).await,
    ];
    (session.into_inner(), histories)
}

/// The expiry of the session in seconds since 1970.
///
/// Removes the times from `seen`, because a migration maps them to the wall clock again.
fn expires_at(seen: &mut (GetSessionResponse, Vec<Vec<Turn>>)) -> i64 {
    let session = seen.0.session.as_mut().expect("a session");
    session.last_access = None;
    session.expires_at.take().expect("a time").seconds
}

#[tokio::test]
async fn migrate_to_database_and_back_preserves_sessions() {
    let Some(server) = Server::shared() else {
        return;
    };
    let words = server.database();
    let mut daemon = Daemon::with(over("", FAILS)).await;
    let mut client = daemon.sessions();
    let first = keyed("chat", "first", [user("go"), tool_uses(&["a"])]);
    client.append(first.clone()).await.expect("done");
    let patch = UpdateSessionRequest {
        session_id: "chat".into(),
        state_patch_json: r#"{"mood":"good","n":1.50}"#.into(),
        ..UpdateSessionRequest::default()
    };
    client.update_session(patch).await.expect("patched");
    for text in ["\u{0} marmalade", &"large ".repeat(150_000)] {
        say(&mut client, "gone", text).await;
    }
    let reply = append("gone", [assistant("bye")]);
    client.append(reply).await.expect("done");
    let generation = end(&mut client, "gone").await;
    let mut memories = daemon.memories();
    remember_new(&mut memories, fact("ann", "the boat is called Zuiderzee")).await;
    let document = PutDocumentRequest {
        namespace: vec!["settings".into()],
        key: "ann".into(),
        value: Some(put_document_request::Value::Json("[1]".into())),
        ..PutDocumentRequest::default()
    };
    let stored = daemon.documents().put_document(document).await;
    stored.expect("stored");
    let mut admin = daemon.admin();
    let owed = eventually("the hook has failed once", async || {
        let owed = deliveries(&mut admin, in_state(DeliveryState::Pending)).await;
        (owed.first()?.tries == 1).then_some(owed)
    })
    .await;
    let mut before = seen(&mut client, &generation).await;
    let expires = expires_at(&mut before);
    fails(&migrate(&daemon, &words).await, 69, "is in use by another");
    daemon.stop().await;

    let back = daemon.path("back").display().to_string();
    let in_database = over(&database(&words), RECORDING_HOOK);
    let in_directory = over("", RECORDING_HOOK).data_dir(&back);
    for (to, setup) in [(&words, in_database), (&back, in_directory)] {
        let outcome = migrate(&daemon, to).await;
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        for word in ["generations", "same", "memoird.yaml say", to] {
            assert!(outcome.stdout.contains(word), "{word}: {outcome:?}");
        }
        assert!(!outcome.stdout.contains("DIFFERS"), "{outcome:?}");
        // The target now has the whole journal.
        fails(&migrate(&daemon, to).await, 65, "already has a journal");
        if to == &back {
            // The harness expects `endpoints.json` in the daemon's original directory.
            let data = daemon.path("data");
            std::fs::remove_dir_all(&data).expect("it was left");
            std::os::unix::fs::symlink(&back, &data).expect("a link");
        }
        daemon.restart_with(setup).await;
        client = daemon.sessions();
        let mut after = seen(&mut client, &generation).await;
        eventually("the index is built", async || {
            let search = SearchTranscriptsRequest {
                query: "marmalade".into(),
                ..SearchTranscriptsRequest::default()
            };
            let found = daemon.sessions().search_transcripts(search).await;
            (found.ok()?.into_inner().hits.len() == 1).then_some(())
        })
        .await;
        // The steady clock continues, so the expiry is unchanged.
        assert!((expires_at(&mut after) - expires).abs() < 3);
        assert_eq!(after, before);
        let found = recalled(&mut daemon.memories(), query_of("ann", "boat")).await;
        assert_eq!(found, ["the boat is called Zuiderzee"]);
        let get = GetDocumentRequest {
            namespace: vec!["settings".into()],
            key: "ann".into(),
            ..GetDocumentRequest::default()
        };
        let document = daemon.documents().get_document(get).await;
        let document = document.expect("there").into_inner().document;
        assert_eq!(document.expect("one").version, 1);
        let again = client.append(first.clone()).await.expect("known");
        assert!(again.into_inner().duplicate);
        before = seen(&mut client, &generation).await;
        expires_at(&mut before);
        if to == &words {
            let mut admin = daemon.admin();
            let still = deliveries(&mut admin, in_state(DeliveryState::Pending)).await;
            let of = |it: &memoird_proto::v1::HookDelivery| {
                (it.id.clone(), it.tries, it.last_error.clone())
            };
            assert_eq!(
                still.iter().map(of).collect::<Vec<_>>(),
                owed.iter().map(of).collect::<Vec<_>>()
            );
            let id = owed[0].id.clone();
            let retry = RetryHookDeliveryRequest { id };
            admin.retry_hook_delivery(retry).await.expect("it is due");
            all_delivered(&mut admin).await;
            let told = delivered(&daemon);
            assert_eq!(told.len(), 1);
            assert_eq!(field(&told[0], "generation"), generation);
            assert_eq!(told[0]["turns"].as_array().expect("turns").len(), 3);
        }
        if to == &words {
            let problem = "another memoird is using it";
            fails(&migrate(&daemon, &back).await, 69, problem);
            daemon.stop().await;
        }
    }
    assert_eq!(stats(&mut daemon.admin()).await.hooks_pending, 0);
    let results = append("chat", [tool_results(&["a"])]);
    let appended = client.append(results).await.expect("it goes on");
    assert_eq!(appended.into_inner().first_seq, 3);
}

#[tokio::test]
async fn half_migrated_journal_is_refused() {
    let Some(server) = Server::shared() else {
        return;
    };
    let words = server.database();
    let name = words.rsplit("dbname=").next().expect("a name");
    let mut daemon = Daemon::with(over(&database(&words), RECORDING_HOOK)).await;
    daemon.stop().await;
    server.run(name, "INSERT INTO memoird.migration VALUES (1, 'half', 1)");
    let outcome = Daemon::refused(&over(&database(&words), RECORDING_HOOK)).await;
    assert_eq!(outcome.code, Some(69), "{}", outcome.stderr);
    let problem = "has an unfinished migration";
    assert!(outcome.stderr.contains(problem), "{}", outcome.stderr);
    let dir = daemon.path("half");
    std::fs::create_dir(&dir).expect("a directory");
    std::fs::write(dir.join("migration"), "half").expect("a mark");
    let setup = over("", RECORDING_HOOK).data_dir(&dir.display().to_string());
    let outcome = Daemon::refused(&setup).await;
    assert_eq!(outcome.code, Some(69), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(problem), "{}", outcome.stderr);
}

#[tokio::test]
async fn migrate_reports_invalid_sources_and_targets() {
    let Some(server) = Server::shared() else {
        return;
    };
    let daemon = Daemon::start().await;
    let here = daemon.path("data").display().to_string();
    fails(&migrate(&daemon, &here).await, 2, "is already there");
    let empty = over("", RECORDING_HOOK).data_dir(&daemon.path("none").display().to_string());
    daemon.rewrite_text(&empty.yaml(&daemon.path("")));
    fails(&migrate(&daemon, "there").await, 66, "has no journal");
    let from = database(&server.database());
    daemon.rewrite_text(&over(&from, RECORDING_HOOK).yaml(&daemon.path("")));
    let there = daemon.path("there").display().to_string();
    fails(
        &migrate(&daemon, &there).await,
        69,
        "has no memoird journal",
    );
    let to = "postgres://a:hunter2@b/c";
    let outcome = migrate(&daemon, to).await;
    fails(&outcome, 2, "--to has a password");
    assert!(!outcome.stderr.contains("hunter2"), "{outcome:?}");
}
