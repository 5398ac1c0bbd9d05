//! A daemon whose journal is in PostgreSQL: what was acknowledged is there after any end, hooks are
//! told, one daemon has the database at a time, and what is wrong is told at the start.

#[path = "../../crates/postgres/tests/conformance/start.rs"]
pub(crate) mod server;

use std::time::Duration;

use memoird_proto::v1::{
    BackupRequest, EraseSessionRequest, GetSessionRequest, PatchStateRequest,
    SearchTranscriptsRequest,
};
use tonic::Code;

use crate::harness::{
    Daemon, KEEPS, Setup, append, end, eventually, field, journal, keyed, live, refused, say,
    text_of, told, tool_results, tool_uses, user,
};
use server::Server;

/// A daemon over this database.
fn over(words: &str, journal: &str) -> Setup {
    let hook = format!("hooks: [ {{ name: keeps, {KEEPS} }} ]");
    let section = format!("journal: {{ {journal} postgres: {{ url: '{words}' }} }}");
    Setup::default().section(section).section(hook)
}

/// One over a fresh database, and where that is.
async fn daemon() -> Option<(Daemon, String)> {
    let words = Server::shared()?.database();
    Some((Daemon::with(over(&words, "")).await, words))
}

#[tokio::test]
async fn what_was_acknowledged_is_there_after_any_end_of_the_daemon() {
    let Some((mut daemon, _)) = daemon().await else {
        return;
    };
    let mut client = daemon.sessions();
    let mut first = keyed("chat", "first", [user("go"), tool_uses(&["a"])]);
    first.subject = "user:7".into();
    client.append(first.clone()).await.expect("done");
    let patch = PatchStateRequest {
        session_id: "chat".into(),
        merge_patch_json: r#"{"mood":"good","n":1.50}"#.into(),
        ..PatchStateRequest::default()
    };
    client.patch_state(patch).await.expect("patched");
    let look = GetSessionRequest {
        session_id: "chat".into(),
        include_state: true,
    };
    let before = client.get_session(look.clone()).await.expect("it lives");
    let turns = live(&mut client, "chat").await;
    for how in ["kill -9", "SIGTERM"] {
        match how {
            "kill -9" => daemon.kill9().await,
            _ => daemon.stop().await,
        }
        daemon.restart().await;
        client = daemon.sessions();
        let after = client.get_session(look.clone()).await.expect("it lives");
        let (after, before) = (after.into_inner(), before.get_ref());
        assert_eq!(after.state_json, before.state_json, "{how}");
        let of = |info: &Option<memoird_proto::v1::SessionInfo>| {
            let info = info.clone().expect("a session");
            (
                info.generation,
                info.last_seq,
                info.subject,
                info.history_turns,
            )
        };
        assert_eq!(of(&after.session), of(&before.session), "{how}");
        assert_eq!(live(&mut client, "chat").await, turns, "{how}");
        let again = client
            .append(first.clone())
            .await
            .expect("known")
            .into_inner();
        assert!(again.duplicate, "{how}");
    }
    let results = append("chat", [tool_results(&["a"])]);
    let appended = client
        .append(results)
        .await
        .expect("it goes on")
        .into_inner();
    assert_eq!(appended.first_seq, 3);
    assert_eq!(journal(&mut client, "chat", "").await.len(), 3);
}

#[tokio::test]
async fn an_end_is_told_to_its_hook_and_what_was_said_is_found_and_erased() {
    let Some((daemon, _)) = daemon().await else {
        return;
    };
    let mut client = daemon.sessions();
    for number in 0..5 {
        say(&mut client, "chat", &format!("marmalade {number}")).await;
    }
    let search = || {
        let (mut client, request) = (
            daemon.memories(),
            SearchTranscriptsRequest {
                query: "marmalade".into(),
                ..SearchTranscriptsRequest::default()
            },
        );
        async move {
            let found = client.search_transcripts(request).await.expect("a search");
            found.into_inner().hits.len()
        }
    };
    eventually("they are found", async || {
        (search().await == 5).then_some(())
    })
    .await;
    let generation = end(&mut client, "chat").await;
    eventually("the hook is told", async || {
        (!told(&daemon).is_empty()).then_some(())
    })
    .await;
    let told = told(&daemon);
    assert_eq!(told.len(), 1);
    assert_eq!(field(&told[0], "generation"), generation);
    assert_eq!(told[0]["turns"].as_array().expect("turns").len(), 5);

    let erase = EraseSessionRequest {
        session_id: "chat".into(),
        ..EraseSessionRequest::default()
    };
    let erased = client
        .erase_session(erase)
        .await
        .expect("a job")
        .into_inner();
    assert!(erased.done, "{erased:?}");
    assert_eq!(erased.erased.expect("counts").turns, 5);
    let outside = erased.outside.join("\n");
    assert!(outside.contains("until they are vacuumed"), "{outside}");
    assert_eq!(search().await, 0);
}

#[tokio::test]
async fn one_daemon_has_the_database_and_another_one_follows_it() {
    let Some((mut first, words)) = daemon().await else {
        return;
    };
    say(&mut first.sessions(), "chat", "hello").await;
    let refused = Daemon::refused(&over(&words, "")).await;
    assert_eq!(refused.code, Some(69), "{}", refused.stderr);
    let problem = "another memoird (process ";
    assert!(refused.stderr.contains(problem), "{}", refused.stderr);
    // It gives the database back when it stops, so the next one need not wait.
    first.stop().await;
    let second = Daemon::with(over(&words, "")).await;
    let turns = live(&mut second.sessions(), "chat").await;
    assert_eq!(text_of(&turns[0]), "hello");
    // Paused for longer than its lease, it ends instead of telling what is old.
    let mut second = second;
    second.signal("-STOP");
    let third = Daemon::with(over(&words, "")).await;
    say(&mut third.sessions(), "chat", "again").await;
    second.signal("-CONT");
    let code = tokio::time::timeout(Duration::from_secs(30), second.ended()).await;
    assert_eq!(code.expect("it ends"), Some(69), "{}", second.log());
    assert!(second.log().contains("has taken the database over"));
    assert_eq!(live(&mut third.sessions(), "chat").await.len(), 2);
}

#[tokio::test]
async fn a_backup_of_files_is_refused() {
    let Some((daemon, _)) = daemon().await else {
        return;
    };
    let answer = daemon.admin().backup(BackupRequest::default()).await;
    let answer = answer.map(|steps| steps.map(drop));
    refused(answer, Code::Unimplemented, "BACKUP_ELSEWHERE");
}

#[tokio::test]
async fn what_is_wrong_is_told_at_the_start() {
    let Some(server) = Server::shared() else {
        return;
    };
    let words = server.database();
    let name = words.rsplit("dbname=").next().expect("a name");
    let host = words.split(' ').next().expect("a host");
    let role = "DO $$ BEGIN CREATE ROLE memoird_locked LOGIN PASSWORD 'right';
                EXCEPTION WHEN duplicate_object THEN NULL; END $$";
    server.run(name, role);
    let locked = format!("{host} user=memoird_locked dbname={name}");
    let no_host = "postgres:///somewhere".to_owned();
    let nobodys = format!("{host} user=postgres dbname=nobodys");
    let with_password = format!("{locked} password=wrong");
    for (words, extra, problems) in [
        (&no_host, "", &["journal.postgres.url", "names no host"][..]),
        (
            &with_password,
            "",
            &["journal.postgres.url", "has a password"],
        ),
        (
            &words,
            "durability: interval,",
            &["journal.durability", "is not sync"],
        ),
        (
            &words,
            "durability: off,",
            &["journal.durability", "is not sync"],
        ),
        (&nobodys, "", &["create the database"]),
    ] {
        let outcome = Daemon::refused(&over(words, extra)).await;
        assert_ne!(outcome.code, Some(0), "{}", outcome.stderr);
        for problem in problems {
            assert!(outcome.stderr.contains(problem), "{}", outcome.stderr);
        }
        assert!(!outcome.stderr.contains("wrong"), "{}", outcome.stderr);
    }
    let section =
        format!("journal: {{ postgres: {{ url: '{locked}', password: {{ env: PASSWORD }} }} }}");
    let setup = Setup::default()
        .section(section)
        .env("PASSWORD", "wrong-one");
    let outcome = Daemon::refused(&setup).await;
    let problem = "journal.postgres.password";
    assert!(outcome.stderr.contains(problem), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("wrong-one"), "{}", outcome.stderr);

    let mut daemon = Daemon::with(over(&words, "")).await;
    daemon.stop().await;
    let newer = "UPDATE memoird.schema_version SET version = 99, min_reader = 99";
    server.run(name, newer);
    let outcome = Daemon::refused(&over(&words, "")).await;
    let problem = "Run the newer memoird";
    assert!(outcome.stderr.contains(problem), "{}", outcome.stderr);
}

#[tokio::test]
async fn calls_go_on_when_their_connections_are_cut() {
    let Some((daemon, words)) = daemon().await else {
        return;
    };
    let server = Server::shared().expect("it is there");
    let name = words.rsplit("dbname=").next().expect("a name");
    let mut client = daemon.sessions();
    for number in 0..20 {
        say(&mut client, "chat", &number.to_string()).await;
        if number % 5 == 0 {
            let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                       WHERE datname = current_database() AND pid <> pg_backend_pid()";
            server.run(name, cut);
        }
    }
    let turns = journal(&mut client, "chat", "").await;
    let said: Vec<&str> = turns.iter().map(text_of).collect();
    let expected: Vec<String> = (0..20).map(|number| number.to_string()).collect();
    assert_eq!(said, expected);
}
