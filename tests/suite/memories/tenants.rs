//! Memories of two tenants: no key, id, subject, token or lease reaches another tenant's memories.

use std::collections::BTreeSet;

use memoird_proto::v1::forget_request::Target;
use memoird_proto::v1::{
    CommitExtractionRequest, ExtractedMemory, ForgetRequest, ForgetResponse, GetMemoryRequest,
    ImportMemoriesRequest, LeaseExtractionRequest, ListConflictsRequest, ListMemoriesRequest,
    ListSubjectsRequest, Memory, MemoryFilter, MemoryKind, MemorySource, RecallRequest,
    RememberOutcome, RememberRequest, SearchTranscriptsRequest, UpdateMemoryRequest, Visibility,
};
use prost_types::FieldMask;
use tonic::Code;

use crate::harness::{
    Daemon, Memories, Sessions, Setup, append, channel, contents, eventually, fact, manifest,
    memories_of, memory_stats, query_of, raw_call, recall, recalled, refused, refused_code,
    remember, remember_new, user,
};

/// The names of all rpcs of the service.
fn rpcs() -> BTreeSet<String> {
    let proto = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../proto/memoird/v1/memory.proto"
    );
    let text = std::fs::read_to_string(proto).expect("the contract");
    let lines = text.lines().filter_map(|line| line.strip_prefix("  rpc "));
    lines
        .filter_map(|line| line.split_once('('))
        .map(|(name, _)| name.to_owned())
        .collect()
}

#[tokio::test]
async fn every_memory_rpc_needs_a_key() {
    let daemon = Daemon::with(Setup::default().two_tenants("", "")).await;
    let names = rpcs();
    assert_eq!(names.len(), 14, "{names:?}");
    for name in names {
        let path = format!("/memoird.v1.MemoryService/{name}");
        let answer = raw_call(&channel(daemon.grpc_addr()), &path, Vec::new()).await;
        let status = answer.expect_err(&name);
        assert_eq!(status.code(), Code::Unauthenticated, "{name}: {status:?}");
        assert_eq!(refused_code(&status), "NO_KEY", "{name}");
    }
    let mut guessing = daemon.memories_of("a-guessed-key");
    refused(
        guessing.recall(query_of("ann", "tea")).await,
        Code::Unauthenticated,
        "WRONG_KEY",
    );
}

/// Data of `alpha`: memories of ann, and a session with leased turns.
///
/// One memory is private, one is for the team, and one supersedes another.
struct Alpha {
    client: Memories,
    private: Memory,
    team: Memory,
    lease: String,
    generation: String,
    /// The complete state, which must not change.
    before: (Vec<Memory>, String),
}

async fn alpha(daemon: &Daemon) -> Alpha {
    let mut client = daemon.memories_of(Setup::ALPHA);
    let old = remember_new(&mut client, fact("ann", "Ann's launch is in May")).await;
    let mut now = fact("ann", "Ann's launch is in June");
    now.supersedes_id = old.id;
    now.idempotency_key = "k".into();
    let private = remember_new(&mut client, now).await;
    let mut team = fact("ann", "The wiki of the launch is at wiki/launch");
    team.kind = MemoryKind::Reference.into();
    team.visibility = Visibility::Team.into();
    team.external_key = "launch".into();
    let team = remember_new(&mut client, team).await;
    let mut sessions = daemon.sessions_of(Setup::ALPHA);
    let mut said = append("chat", [user("My launch moved to July")]);
    said.subject = "ann".into();
    let made = sessions.append(said).await.expect("appended").into_inner();
    let generation = made.session.expect("a session").generation;
    let ask = LeaseExtractionRequest {
        session_id: "chat".into(),
        ..Default::default()
    };
    let lease = client
        .lease_extraction(ask)
        .await
        .expect("leased")
        .into_inner()
        .lease;
    assert!(!lease.is_empty());
    let before = state(&mut client).await;
    Alpha {
        client,
        private,
        team,
        lease,
        generation,
        before,
    }
}

/// All memories of a tenant, and the manifest of ann.
async fn state(client: &mut Memories) -> (Vec<Memory>, String) {
    (
        memories_of(client, "").await,
        manifest(client, "ann").await.text,
    )
}

/// Asserts that no read with another tenant's key returns anything.
async fn check_reads_nothing(beta: &mut Memories, alpha: &Alpha) {
    for id in [&alpha.private.id, &alpha.team.id] {
        for subject in ["", "ann", "bob"] {
            let look = GetMemoryRequest {
                id: id.clone(),
                subject: subject.into(),
                ..GetMemoryRequest::default()
            };
            refused(
                beta.get_memory(look).await,
                Code::NotFound,
                "MEMORY_NOT_FOUND",
            );
        }
    }
    let nobody = RecallRequest {
        query: "launch".into(),
        ..RecallRequest::default()
    };
    let chat = RecallRequest {
        session_id: "chat".into(),
        ..nobody.clone()
    };
    let beginning = RecallRequest {
        subject_prefix: "a".into(),
        ..nobody.clone()
    };
    let many = RecallRequest {
        subjects: vec!["ann".into(), "bob".into()],
        ..nobody.clone()
    };
    for request in [
        query_of("ann", "launch"),
        query_of("ann", "June wiki"),
        query_of("bob", "wiki"),
        nobody,
        beginning,
        many,
    ] {
        assert!(
            recall(beta, request.clone()).await.hits.is_empty(),
            "{request:?}"
        );
    }
    // Another tenant's session is unknown, or one without a subject.
    if let Ok(answer) = beta.recall(chat).await {
        assert!(answer.into_inner().hits.is_empty());
    }
    for page_token in [String::new(), alpha.private.id.clone(), "0".repeat(26)] {
        let list = ListMemoriesRequest {
            page_token,
            include_history: true,
            ..ListMemoriesRequest::default()
        };
        let page = beta.list_memories(list).await.expect("a page").into_inner();
        assert!(
            page.memories.is_empty() && page.next_page_token.is_empty(),
            "{page:?}"
        );
    }
    let subjects = beta.list_subjects(ListSubjectsRequest::default()).await;
    assert!(subjects.expect("a page").into_inner().subjects.is_empty());
    let named = GetMemoryRequest {
        subject: "ann".into(),
        external_key: "launch".into(),
        ..GetMemoryRequest::default()
    };
    let named = beta.get_memory(named).await;
    refused(named, Code::NotFound, "MEMORY_NOT_FOUND");
    let request = ListConflictsRequest {
        subject: "ann".into(),
        ..ListConflictsRequest::default()
    };
    let conflicts = beta.list_conflicts(request).await.expect("a list");
    assert!(conflicts.into_inner().conflicts.is_empty());
    let known = manifest(beta, "ann").await;
    assert_eq!(
        (known.text.as_str(), known.lines, known.truncated),
        ("", 0, false)
    );
    let stats = memory_stats(beta).await;
    let all = (
        stats.memories,
        stats.superseded,
        stats.subjects,
        stats.recall_events,
    );
    assert_eq!(all, (0, 0, 0, 0));
}

/// Asserts that another tenant's search finds nothing.
async fn check_searches_nothing(beta: &mut Sessions) {
    for session_id in ["", "chat"] {
        for subject in ["", "ann"] {
            let search = SearchTranscriptsRequest {
                query: "launch moved July".into(),
                session_id: session_id.into(),
                subject: subject.into(),
                ..Default::default()
            };
            let found = beta.search_transcripts(search).await.expect("a search");
            assert!(found.into_inner().hits.is_empty());
        }
    }
}

/// Asserts that no write with another tenant's key changes anything.
async fn check_changes_nothing(beta: &mut Memories, alpha: &Alpha) {
    let id = || alpha.private.id.clone();
    let not_found = (Code::NotFound, "MEMORY_NOT_FOUND");
    for subject in ["", "ann"] {
        let update = UpdateMemoryRequest {
            memory: Some(Memory {
                id: id(),
                subject: subject.into(),
                content: "by a stranger".into(),
                ..Memory::default()
            }),
            update_mask: Some(FieldMask {
                paths: vec!["content".into()],
            }),
        };
        refused(beta.update_memory(update).await, not_found.0, not_found.1);
    }
    for dry_run in [true, false] {
        let one = ForgetRequest {
            target: Some(Target::Id(id())),
            dry_run,
        };
        refused(beta.forget(one).await, not_found.0, not_found.1);
        let filter = MemoryFilter {
            kinds: vec![MemoryKind::Project.into()],
            ..MemoryFilter::default()
        };
        for target in [Target::Subject("ann".into()), Target::Filter(filter)] {
            let all = ForgetRequest {
                target: Some(target),
                dry_run,
            };
            let counts = beta
                .forget(all)
                .await
                .expect("nothing to forget")
                .into_inner();
            assert_eq!(
                ForgetResponse {
                    erased: false,
                    ..counts
                },
                ForgetResponse::default()
            );
        }
    }
    let instead = RememberRequest {
        supersedes_id: id(),
        ..fact("ann", "instead")
    };
    refused(beta.remember(instead).await, not_found.0, not_found.1);
    for generation in ["", &alpha.generation] {
        let source = MemorySource {
            session_id: "chat".into(),
            generation: generation.into(),
            seqs: vec![1],
        };
        let copy = RememberRequest {
            source: Some(source),
            ..fact("ann", "")
        };
        refused(
            beta.remember(copy).await,
            Code::NotFound,
            "SOURCE_NOT_FOUND",
        );
        let lease = LeaseExtractionRequest {
            session_id: "chat".into(),
            generation: generation.into(),
            subject: "ann".into(),
        };
        let status = beta.lease_extraction(lease).await.expect_err("not theirs");
        assert_eq!(status.code(), Code::NotFound, "{status:?}");
        refused_code(&status);
    }
    let found = ExtractedMemory {
        kind: MemoryKind::Project.into(),
        content: "by a stranger".into(),
        ..ExtractedMemory::default()
    };
    let commit = CommitExtractionRequest {
        lease: alpha.lease.clone(),
        memories: vec![found],
    };
    refused(
        beta.commit_extraction(commit).await,
        Code::Aborted,
        "LEASE_LOST",
    );
}

#[tokio::test]
async fn key_of_another_tenant_reads_and_changes_nothing() {
    let daemon = Daemon::with(Setup::default().two_tenants("", "")).await;
    let mut alpha = alpha(&daemon).await;
    let mut beta = daemon.memories_of(Setup::BETA);
    check_reads_nothing(&mut beta, &alpha).await;
    check_changes_nothing(&mut beta, &alpha).await;
    check_reads_nothing(&mut beta, &alpha).await;
    check_searches_nothing(&mut daemon.sessions_of(Setup::BETA)).await;
    assert_eq!(state(&mut alpha.client).await, alpha.before);
    // The lease is still valid after another tenant tried to use it.
    let commit = CommitExtractionRequest {
        lease: alpha.lease,
        memories: Vec::new(),
    };
    let done = alpha
        .client
        .commit_extraction(commit)
        .await
        .expect("committed")
        .into_inner();
    assert_eq!(done.cursor_seq, 1);
}

#[tokio::test]
async fn same_text_keys_and_ids_of_two_tenants_are_independent() {
    let daemon = Daemon::with(Setup::default().two_tenants("", "")).await;
    let mut alpha = alpha(&daemon).await;
    let mut beta = daemon.memories_of(Setup::BETA);
    let mut same = fact("ann", "Ann's launch is in June");
    same.idempotency_key = "k".into();
    let made = remember(&mut beta, same.clone()).await;
    assert_eq!(
        made.outcome(),
        RememberOutcome::Created,
        "another key, another fact"
    );
    same.content = "Ann's launch is cancelled".into();
    refused(
        beta.remember(same).await,
        Code::InvalidArgument,
        "IDEMPOTENCY_KEY_REUSED",
    );

    // An imported memory keeps its id, but is independent from then on.
    let mut copy = alpha.team.clone();
    copy.content = "The wiki of beta is at wiki/beta".into();
    let import = ImportMemoriesRequest {
        memories: vec![copy.clone()],
    };
    let done = beta
        .import_memories(import)
        .await
        .expect("imported")
        .into_inner();
    assert_eq!((done.imported, done.skipped), (1, 0));
    assert_eq!(
        recalled(&mut beta, query_of("bob", "wiki")).await,
        [copy.content]
    );
    assert_eq!(
        recalled(&mut alpha.client, query_of("bob", "wiki")).await,
        [&*alpha.team.content]
    );
    eventually("the recall is noted", async || {
        let known = memories_of(&mut alpha.client, "").await;
        let noted = known.iter().any(|memory| memory.recall_count > 0);
        noted.then_some(())
    })
    .await;
    let before = state(&mut alpha.client).await;
    for target in [Target::Id(copy.id), Target::Subject("ann".into())] {
        let forget = ForgetRequest {
            target: Some(target),
            dry_run: false,
        };
        let gone = beta.forget(forget).await.expect("forgotten").into_inner();
        assert_eq!((gone.memories, gone.superseded), (1, 0));
    }
    assert!(memories_of(&mut beta, "").await.is_empty());
    assert_eq!(state(&mut alpha.client).await, before);
    let known = memories_of(&mut alpha.client, "ann").await;
    assert_eq!(contents(&known).len(), 3);
}
