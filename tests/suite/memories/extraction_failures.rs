//! Extraction failures: expired leases, crashes, and deleted turns.

use memoird_proto::v1::forget_request::Target;
use memoird_proto::v1::{
    CommitExtractionRequest, ExtractedMemory, ForgetRequest, GetHistoryRequest, HistoryScope,
    LeaseExtractionRequest, LeaseExtractionResponse, MemoryKind, Turn,
};
use tonic::Code;

use crate::harness::{
    Clock, Daemon, Memories, Sessions, Setup, append, end, eventually, memories_of, refused,
    refused_code, user,
};

fn chat() -> LeaseExtractionRequest {
    LeaseExtractionRequest {
        session_id: "chat".into(),
        ..LeaseExtractionRequest::default()
    }
}

fn commit(lease: &LeaseExtractionResponse, content: &str) -> CommitExtractionRequest {
    let fact = ExtractedMemory {
        kind: MemoryKind::Project.into(),
        content: content.into(),
        ..ExtractedMemory::default()
    };
    CommitExtractionRequest {
        lease: lease.lease.clone(),
        memories: vec![fact],
    }
}

async fn append_numbered(sessions: &mut Sessions, count: usize) {
    let turns: Vec<Turn> = (0..count)
        .map(|number| user(&format!("said {number}")))
        .collect();
    let mut request = append("chat", turns);
    request.subject = "ann".into();
    sessions.append(request).await.expect("appended");
}

async fn lease(client: &mut Memories) -> LeaseExtractionResponse {
    let held = client
        .lease_extraction(chat())
        .await
        .expect("leased")
        .into_inner();
    assert!(!held.lease.is_empty(), "{held:?}");
    held
}

/// Retries until the other lease has expired.
async fn lease_again(client: &mut Memories) -> LeaseExtractionResponse {
    eventually("the lease has run out", async || {
        match client.lease_extraction(chat()).await {
            Ok(answer) => Some(answer.into_inner()),
            Err(status) => {
                assert_eq!(refused_code(&status), "LEASE_HELD", "{status:?}");
                None
            }
        }
    })
    .await
}

#[tokio::test]
async fn expired_lease_returns_same_turns_again() {
    let brief = Setup::default().section("long_term: { extraction_lease: 300ms }");
    let daemon = Daemon::with(brief).await;
    let (mut client, mut sessions) = (daemon.memories(), daemon.sessions());
    append_numbered(&mut sessions, 3).await;
    let mut lost = lease(&mut client).await;
    for _ in 0..6 {
        let again = lease_again(&mut client).await;
        assert_ne!(again.lease, lost.lease);
        assert_eq!((&again.turns, again.cursor_seq), (&lost.turns, 0));
        let late = client.commit_extraction(commit(&lost, "too late")).await;
        refused(late, Code::Aborted, "LEASE_LOST");
        lost = again;
    }
    assert!(
        memories_of(&mut client, "").await.is_empty(),
        "what is lost stores nothing"
    );
}

#[tokio::test]
async fn lease_and_cursor_survive_kill() {
    let mut daemon = Daemon::start().await;
    append_numbered(&mut daemon.sessions(), 2).await;
    let mut client = daemon.memories();
    let held = lease(&mut client).await;
    daemon.kill9().await;
    daemon.restart().await;
    let mut client = daemon.memories();
    refused(
        client.lease_extraction(chat()).await,
        Code::Aborted,
        "LEASE_HELD",
    );
    let done = client
        .commit_extraction(commit(&held, "Found before"))
        .await
        .expect("it is good");
    assert_eq!(done.into_inner().cursor_seq, 2);
    daemon.kill9().await;
    daemon.restart().await;
    let mut client = daemon.memories();
    let nothing = client
        .lease_extraction(chat())
        .await
        .expect("answered")
        .into_inner();
    assert_eq!((nothing.lease.as_str(), nothing.cursor_seq), ("", 2));
    assert_eq!(memories_of(&mut client, "ann").await.len(), 1);
    let again = client.commit_extraction(commit(&held, "Twice")).await;
    refused(again, Code::Aborted, "LEASE_LOST");
}

#[tokio::test]
async fn forgetting_subject_revokes_its_leases() {
    let daemon = Daemon::start().await;
    let (mut client, mut sessions) = (daemon.memories(), daemon.sessions());
    append_numbered(&mut sessions, 2).await;
    let held = lease(&mut client).await;
    let forget = ForgetRequest {
        target: Some(Target::Subject("ann".into())),
        dry_run: false,
    };
    client.forget(forget).await.expect("forgotten");
    let late = client
        .commit_extraction(commit(&held, "Found in forgotten turns"))
        .await;
    refused(late, Code::Aborted, "LEASE_LOST");
    assert!(memories_of(&mut client, "").await.is_empty());
    // Earlier turns are not leased again, but later ones are.
    let nothing = client
        .lease_extraction(chat())
        .await
        .expect("answered")
        .into_inner();
    assert!(nothing.turns.is_empty(), "{nothing:?}");
    append_numbered(&mut sessions, 1).await;
    let next = lease(&mut client).await;
    assert_eq!(
        next.turns.iter().map(|turn| turn.seq).collect::<Vec<_>>(),
        [3]
    );
}

#[tokio::test]
async fn clock_step_back_does_not_prolong_lease() {
    let test = "memories::extraction_failures::clock_step_back_does_not_prolong_lease";
    let Some(clock) = Clock::new(test) else {
        return;
    };
    let brief = Setup::default().section("long_term: { extraction_lease: 2s }");
    let daemon = Daemon::with(clock.applied_to(brief)).await;
    let (mut client, mut sessions) = (daemon.memories(), daemon.sessions());
    append_numbered(&mut sessions, 1).await;
    let held = lease(&mut client).await;
    clock.set("-86400");
    let again = lease_again(&mut client).await;
    assert_eq!(again.turns, held.turns);
    let done = client
        .commit_extraction(commit(&again, "Found"))
        .await
        .expect("committed");
    assert_eq!(done.into_inner().cursor_seq, 1);
}

#[tokio::test]
async fn lease_of_pruned_generation_is_not_found() {
    let brief = Setup::default().section("journal: { durability: sync, retention: 1ms }");
    let mut daemon = Daemon::with(brief).await;
    let mut sessions = daemon.sessions();
    append_numbered(&mut sessions, 2).await;
    let generation = end(&mut sessions, "chat").await;
    // Shortly after a start, turns without pending deliveries are deleted.
    daemon.stop().await;
    daemon.restart().await;
    let (mut client, mut sessions) = (daemon.memories(), daemon.sessions());
    let look = GetHistoryRequest {
        session_id: "chat".into(),
        generation: generation.clone(),
        scope: HistoryScope::Journal.into(),
        ..GetHistoryRequest::default()
    };
    eventually("the turns are gone", async || {
        sessions.get_history(look.clone()).await.err()
    })
    .await;
    let ask = LeaseExtractionRequest {
        generation,
        subject: "ann".into(),
        ..chat()
    };
    let status = client
        .lease_extraction(ask)
        .await
        .expect_err("nothing is there");
    assert_eq!(status.code(), Code::NotFound, "{status:?}");
    append_numbered(&mut sessions, 1).await;
    assert_eq!(
        lease(&mut client).await.turns.len(),
        1,
        "a new life is looked at"
    );
}
