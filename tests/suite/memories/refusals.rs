//! Refused memory calls: each has its reason and changes nothing.

use memoird_proto::v1::forget_request::Target;
use memoird_proto::v1::{
    CommitExtractionRequest, ForgetRequest, GetManifestRequest, GetMemoryRequest,
    ImportMemoriesRequest, LeaseExtractionRequest, ListMemoriesRequest, Memory, MemoryFilter,
    MemoryKind, MemorySource, Polarity, RecallMode, RecallRequest, RememberRequest,
    UpdateMemoryRequest, Visibility,
};
use prost_types::{FieldMask, Timestamp};
use tonic::Code;

use crate::harness::{
    Daemon, Setup, fact, memories_of, memory_stats, query_of, recall, refused, remember,
    remember_new, say,
};

const INVALID: Code = Code::InvalidArgument;

/// Facts with one error each, the reason, and a word of the message.
fn wrong_facts() -> Vec<(RememberRequest, &'static str, &'static str)> {
    let good = || fact("ann", "The launch is in May");
    let wrong = |spoil: &dyn Fn(&mut RememberRequest)| {
        let mut request = good();
        spoil(&mut request);
        request
    };
    let source = |session: &str, seqs: Vec<u64>| {
        let (session_id, generation) = (session.to_owned(), String::new());
        Some(MemorySource {
            session_id,
            generation,
            seqs,
        })
    };
    let far = Some(Timestamp {
        seconds: i64::MAX,
        nanos: 0,
    });
    vec![
        (
            wrong(&|fact| fact.content = " \n".into()),
            "MEMORY_INVALID",
            "content",
        ),
        (
            wrong(&|fact| fact.content = "x".repeat(8_193)),
            "MEMORY_INVALID",
            "8192",
        ),
        (
            wrong(&|fact| fact.kind = 0),
            "MEMORY_KIND_INVALID",
            "MEMORY_KIND_USER",
        ),
        (wrong(&|fact| fact.kind = 5), "MEMORY_KIND_INVALID", "5"),
        (
            wrong(&|fact| fact.visibility = 7),
            "VISIBILITY_INVALID",
            "7",
        ),
        (
            wrong(&|fact| fact.near_duplicate = 7),
            "NEAR_DUPLICATE_INVALID",
            "7",
        ),
        (wrong(&|fact| fact.polarity = 9), "POLARITY_INVALID", "9"),
        (
            wrong(&|fact| fact.polarity = Polarity::Correction.into()),
            "MEMORY_INVALID",
            "polarity",
        ),
        (
            wrong(&|fact| fact.tags = vec![" ".into()]),
            "MEMORY_INVALID",
            "tag",
        ),
        (
            wrong(&|fact| fact.tags = vec!["x".repeat(129)]),
            "MEMORY_INVALID",
            "128",
        ),
        (
            wrong(&|fact| fact.tags = (0..33).map(|tag| tag.to_string()).collect()),
            "MEMORY_INVALID",
            "32",
        ),
        (
            wrong(&|fact| fact.importance = Some(1.01)),
            "MEMORY_INVALID",
            "importance",
        ),
        (
            wrong(&|fact| fact.importance = Some(f32::NAN)),
            "MEMORY_INVALID",
            "importance",
        ),
        (
            wrong(&|fact| fact.subject = "x".repeat(257)),
            "ID_INVALID",
            "256",
        ),
        (
            wrong(&|fact| fact.idempotency_key = "x".repeat(257)),
            "ID_INVALID",
            "256",
        ),
        (
            wrong(&|fact| fact.supersedes_id = "mine".into()),
            "MEMORY_ID_INVALID",
            "mine",
        ),
        (
            wrong(&|fact| fact.observed_at = far),
            "TIMESTAMP_INVALID",
            "observed_at",
        ),
        (
            wrong(&|fact| fact.expires_at = far),
            "TIMESTAMP_INVALID",
            "expires_at",
        ),
        (
            wrong(&|fact| fact.source = source("", vec![])),
            "ID_INVALID",
            "session",
        ),
        (
            wrong(&|fact| fact.source = source("chat", vec![0])),
            "MEMORY_INVALID",
            "seqs",
        ),
        (
            wrong(&|fact| fact.source = source("chat", (1..=257).collect())),
            "MEMORY_INVALID",
            "256",
        ),
    ]
}

#[tokio::test]
async fn invalid_fact_is_refused_with_field_and_stores_nothing() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    say(&mut daemon.sessions(), "chat", "hello").await;
    for (request, reason, word) in wrong_facts() {
        let said = refused(client.remember(request.clone()).await, INVALID, reason);
        assert!(said.contains(word), "{word:?} in {said:?} of {request:?}");
        assert!(said.len() < 1_000, "{said:?}");
    }
    let nobodys = RememberRequest {
        subject: String::new(),
        ..fact("ann", "whose?")
    };
    let status = client.remember(nobodys).await.expect_err("nobody's");
    assert_eq!(status.code(), INVALID, "{status:?}");
    let missing = RememberRequest {
        supersedes_id: "01ARZ3NDEKTSV4RRFFQ69G5FAV".into(),
        ..fact("ann", "instead of nothing")
    };
    refused(
        client.remember(missing).await,
        Code::NotFound,
        "MEMORY_NOT_FOUND",
    );
    assert!(memories_of(&mut client, "").await.is_empty());

    // Values exactly at the limits are accepted.
    let whole = RememberRequest {
        content: "é".repeat(4_096),
        tags: (0..32).map(|tag| format!("{tag:0>128}")).collect(),
        importance: Some(1.0),
        subject: "x".repeat(256),
        idempotency_key: "x".repeat(256),
        ..fact("", "")
    };
    remember_new(&mut client, whole).await;
}

#[tokio::test]
async fn invalid_recall_list_and_lease_requests_are_refused() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    let many = (0..17).map(|subject| subject.to_string()).collect();
    let far = Some(Timestamp {
        seconds: i64::MAX,
        nanos: 0,
    });
    let good = query_of("ann", "launch");
    for (request, reason) in [
        (
            RecallRequest {
                subjects: many,
                ..good.clone()
            },
            "MEMORY_INVALID",
        ),
        (
            RecallRequest {
                subjects: vec![String::new()],
                ..good.clone()
            },
            "ID_INVALID",
        ),
        (
            RecallRequest {
                kinds: vec![0],
                ..good.clone()
            },
            "MEMORY_KIND_INVALID",
        ),
        (
            RecallRequest {
                mode: 9,
                ..good.clone()
            },
            "RECALL_MODE_INVALID",
        ),
        (
            RecallRequest {
                after: far,
                ..good.clone()
            },
            "TIMESTAMP_INVALID",
        ),
        (
            RecallRequest {
                session_id: "x".repeat(257),
                ..good.clone()
            },
            "ID_INVALID",
        ),
    ] {
        refused(client.recall(request).await, INVALID, reason);
    }
    // No embedder is configured.
    let meaning = RecallRequest {
        mode: RecallMode::Vector.into(),
        ..good
    };
    let status = client
        .recall(meaning)
        .await
        .expect_err("without an embedder");
    assert!(
        matches!(status.code(), INVALID | Code::FailedPrecondition),
        "{status:?}"
    );
    assert!(
        status.message().contains("embedder"),
        "it says what to do: {status:?}"
    );

    for id in ["", "mine", "01ARZ3NDEKTSV4RRFFQ69G5FA\u{e9}"] {
        let look = GetMemoryRequest {
            id: id.into(),
            ..GetMemoryRequest::default()
        };
        refused(client.get_memory(look).await, INVALID, "MEMORY_ID_INVALID");
        let forget = ForgetRequest {
            target: Some(Target::Id(id.into())),
            dry_run: true,
        };
        refused(client.forget(forget).await, INVALID, "MEMORY_ID_INVALID");
        let memory = Some(Memory {
            id: id.into(),
            ..Memory::default()
        });
        let update = UpdateMemoryRequest {
            memory,
            update_mask: None,
        };
        refused(
            client.update_memory(update).await,
            INVALID,
            "MEMORY_ID_INVALID",
        );
    }
    let page = ListMemoriesRequest {
        page_token: "next".into(),
        ..Default::default()
    };
    refused(
        client.list_memories(page).await,
        INVALID,
        "PAGE_TOKEN_INVALID",
    );
    let whose = GetManifestRequest::default();
    refused(client.get_manifest(whose).await, INVALID, "ID_INVALID");
    let lease = LeaseExtractionRequest::default();
    refused(client.lease_extraction(lease).await, INVALID, "ID_INVALID");
    let commit = CommitExtractionRequest {
        lease: "mine".into(),
        memories: Vec::new(),
    };
    refused(
        client.commit_extraction(commit).await,
        INVALID,
        "LEASE_INVALID",
    );
}

#[tokio::test]
async fn forget_without_valid_target_is_refused() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    remember_new(&mut client, fact("ann", "The launch is in May")).await;
    let filter = |filter| Some(Target::Filter(filter));
    for (target, reason) in [
        (None, "FORGET_TARGET_MISSING"),
        (Some(Target::Subject(String::new())), "ID_INVALID"),
        (filter(MemoryFilter::default()), "FILTER_EMPTY"),
        (
            filter(MemoryFilter {
                kinds: vec![9],
                ..Default::default()
            }),
            "MEMORY_KIND_INVALID",
        ),
    ] {
        for dry_run in [true, false] {
            let forget = ForgetRequest {
                target: target.clone(),
                dry_run,
            };
            refused(client.forget(forget).await, INVALID, reason);
        }
    }
    assert_eq!(memories_of(&mut client, "ann").await.len(), 1);
}

#[tokio::test]
async fn update_with_mask_validates_and_changes_only_named_fields() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    let made = remember_new(&mut client, fact("ann", "The launch is in May")).await;
    let update = |paths: &[&str], memory: Memory| UpdateMemoryRequest {
        memory: Some(Memory {
            id: made.id.clone(),
            ..memory
        }),
        update_mask: Some(FieldMask {
            paths: paths.iter().map(|&path| path.into()).collect(),
        }),
    };
    let none = Memory::default;
    for (request, reason) in [
        (update(&[], none()), "UPDATE_MASK_INVALID"),
        (update(&["id"], none()), "UPDATE_MASK_INVALID"),
        (update(&["subject"], none()), "UPDATE_MASK_INVALID"),
        (update(&["recall_count"], none()), "UPDATE_MASK_INVALID"),
        (update(&["content"], none()), "MEMORY_INVALID"),
        (update(&["kind"], none()), "MEMORY_KIND_INVALID"),
        (
            update(
                &["importance"],
                Memory {
                    importance: 2.0,
                    ..none()
                },
            ),
            "MEMORY_INVALID",
        ),
        (
            update(
                &["tags"],
                Memory {
                    tags: vec![String::new()],
                    ..none()
                },
            ),
            "MEMORY_INVALID",
        ),
        (
            update(
                &["polarity"],
                Memory {
                    polarity: 1,
                    ..none()
                },
            ),
            "MEMORY_INVALID",
        ),
        (update(&["observed_at"], none()), "TIMESTAMP_INVALID"),
    ] {
        refused(client.update_memory(request).await, INVALID, reason);
    }
    let gone = "01ARZ3NDEKTSV4RRFFQ69G5FAV".to_owned();
    let nobodys = UpdateMemoryRequest {
        memory: Some(Memory {
            id: gone,
            pinned: true,
            ..none()
        }),
        update_mask: Some(FieldMask {
            paths: vec!["pinned".into()],
        }),
    };
    refused(
        client.update_memory(nobodys).await,
        Code::NotFound,
        "MEMORY_NOT_FOUND",
    );
    assert_eq!(
        memories_of(&mut client, "ann").await,
        std::slice::from_ref(&made)
    );

    let all = [
        "content",
        "kind",
        "visibility",
        "tags",
        "importance",
        "expires_at",
        "pinned",
    ];
    let new = Memory {
        content: "The launch is in June".into(),
        kind: MemoryKind::Reference.into(),
        visibility: Visibility::Team.into(),
        tags: vec!["b".into(), "a".into()],
        importance: 0.25,
        expires_at: Some(Timestamp {
            seconds: 4_000_000_000,
            nanos: 0,
        }),
        pinned: true,
        ..none()
    };
    let now = client
        .update_memory(update(&all, new.clone()))
        .await
        .expect("updated");
    let now = now.into_inner().memory.expect("a memory");
    let tags = vec!["a".to_owned(), "b".to_owned()];
    let expected = Memory {
        tags,
        id: made.id.clone(),
        subject: made.subject.clone(),
        observed_at: made.observed_at,
        created_at: made.created_at,
        updated_at: now.updated_at,
        ..new
    };
    assert_eq!(now, expected);
    assert!(
        recall(&mut client, query_of("ann", "May"))
            .await
            .hits
            .is_empty()
    );
    assert_eq!(
        recall(&mut client, query_of("bob", "June"))
            .await
            .hits
            .len(),
        1
    );
    let never = client
        .update_memory(update(&["expires_at"], none()))
        .await
        .expect("updated");
    assert_eq!(
        never.into_inner().memory.expect("a memory").expires_at,
        None
    );
}

#[tokio::test]
async fn memories_per_tenant_are_limited() {
    let setup = Setup::default().section("long_term: { max_memories: 3 }");
    let daemon = Daemon::with(setup).await;
    let mut client = daemon.memories();
    let mut made = Vec::new();
    for number in 0..3 {
        made.push(remember_new(&mut client, fact("ann", &format!("Fact number {number}"))).await);
    }
    let full = (Code::ResourceExhausted, "MEMORIES_FULL");
    refused(
        client.remember(fact("bob", "One more")).await,
        full.0,
        full.1,
    );
    let copy = Memory {
        id: "01ARZ3NDEKTSV4RRFFQ69G5FAV".into(),
        ..made[0].clone()
    };
    let import = ImportMemoriesRequest {
        memories: vec![copy],
    };
    refused(client.import_memories(import).await, full.0, full.1);
    // An existing fact may be remembered again.
    remember(&mut client, fact("ann", "Fact number 1")).await;
    let forget = ForgetRequest {
        target: Some(Target::Id(made[2].id.clone())),
        dry_run: false,
    };
    client.forget(forget).await.expect("forgotten");
    remember_new(&mut client, fact("bob", "One more")).await;
    assert_eq!(memory_stats(&mut client).await.memories, 3);
}

#[tokio::test]
async fn oversized_import_is_refused_and_long_queries_are_answered() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    let made = remember_new(&mut client, fact("ann", "The launch is in May")).await;
    let import = ImportMemoriesRequest {
        memories: vec![made; 501],
    };
    refused(
        client.import_memories(import).await,
        INVALID,
        "MEMORY_INVALID",
    );
    for query in [
        "launch ".repeat(580),
        format!("launch {}", "x".repeat(4_000)),
        "launch AND OR NOT NEAR( \" * ^ : - + {} ''".into(),
        "launch\u{0}\u{feff}\u{202e}".into(),
    ] {
        let request = RecallRequest {
            limit: 5_000,
            ..query_of("ann", &query)
        };
        assert_eq!(
            recall(&mut client, request).await.hits.len(),
            1,
            "{query:?}"
        );
    }
    for query in ["", " \n", "the of and", "?!", "\u{1f642}"] {
        let answer = client.recall(query_of("ann", query)).await;
        match answer {
            Ok(answer) => drop(answer),
            Err(_) => drop(refused(answer, INVALID, "MEMORY_INVALID")),
        }
    }
}
