//! Recall: lexical and vector search, filters, no expired memories, and a deterministic order.

use memoird_proto::v1::{
    GetMemoryRequest, ImportMemoriesRequest, ListMemoriesRequest, Memory, MemoryKind, RecallHit,
    RecallMode, RecallRequest, RememberRequest,
};
use prost_types::Timestamp;
use tonic::Code;

use crate::harness::{
    Daemon, Embeddings, Memories, Setup, all_embedded, contents, eventually, fact, manifest,
    memories_of, memory_stats, query_of, recall, recalled, remember, remember_new, say, wall_ms,
};

fn at(seconds: i64) -> Option<Timestamp> {
    Some(Timestamp { seconds, nanos: 0 })
}

const DAY: i64 = 86_400;

#[tokio::test]
async fn lexical_recall_matches_word_forms_and_partial_queries() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    let known = [
        "Ann prefers window seats on long flights",
        "The café in Zürich closes on Sundays",
        "Invoices are paid within thirty days",
        "日本語の資料は棚の上にあります",
    ];
    for content in known {
        remember_new(&mut client, fact("ann", content)).await;
    }
    for (question, first) in [
        ("Which seat does she prefer when she is flying?", known[0]),
        ("Cafe in ZURICH: is it closed on a sunday?", known[1]),
        (
            "how many days until an invoice must have been paid",
            known[2],
        ),
        ("日本語の資料は棚の上にあります", known[3]),
    ] {
        let found = recalled(&mut client, query_of("ann", question)).await;
        assert_eq!(
            found.first().map(String::as_str),
            Some(first),
            "{question}: {found:?}"
        );
    }
    assert!(
        recalled(&mut client, query_of("ann", "xylophone"))
            .await
            .is_empty()
    );
    let one = RecallRequest {
        limit: 1,
        ..query_of("ann", "seats invoices days")
    };
    assert_eq!(recalled(&mut client, one).await.len(), 1);
}

async fn filtered(client: &mut Memories) {
    for (day, kind, tags, content) in [
        (1, MemoryKind::Project, &["work", "may"][..], "report one"),
        (2, MemoryKind::Project, &["work"], "report two"),
        (3, MemoryKind::Reference, &["work", "may"], "report three"),
        (4, MemoryKind::User, &[], "report four"),
    ] {
        let request = RememberRequest {
            kind: kind.into(),
            tags: tags.iter().map(|&tag| tag.into()).collect(),
            observed_at: at(day * DAY),
            ..fact("ann", content)
        };
        remember_new(client, request).await;
    }
}

fn kinds(kinds: &[MemoryKind]) -> Vec<i32> {
    kinds.iter().map(|&kind| kind.into()).collect()
}

/// Filtered queries with the expected results.
fn questions() -> Vec<(RecallRequest, &'static [&'static str])> {
    let all = || query_of("ann", "report");
    let tags = |tags: &[&str]| tags.iter().map(|&tag| tag.into()).collect();
    let project = kinds(&[MemoryKind::Project]);
    let two_kinds = kinds(&[MemoryKind::User, MemoryKind::Reference]);
    vec![
        (
            all(),
            &["report four", "report one", "report three", "report two"],
        ),
        (
            RecallRequest {
                kinds: project.clone(),
                ..all()
            },
            &["report one", "report two"],
        ),
        (
            RecallRequest {
                kinds: two_kinds,
                ..all()
            },
            &["report four", "report three"],
        ),
        (
            RecallRequest {
                tags: tags(&["work"]),
                ..all()
            },
            &["report one", "report three", "report two"],
        ),
        (
            RecallRequest {
                tags: tags(&["may", "work"]),
                ..all()
            },
            &["report one", "report three"],
        ),
        (
            RecallRequest {
                tags: tags(&["work", "june"]),
                ..all()
            },
            &[],
        ),
        (
            RecallRequest {
                after: at(2 * DAY),
                ..all()
            },
            &["report four", "report three", "report two"],
        ),
        (
            RecallRequest {
                before: at(2 * DAY),
                ..all()
            },
            &["report one"],
        ),
        (
            RecallRequest {
                after: at(2 * DAY),
                before: at(4 * DAY),
                ..all()
            },
            &["report three", "report two"],
        ),
        (
            RecallRequest {
                kinds: project,
                tags: tags(&["may"]),
                after: at(DAY),
                ..all()
            },
            &["report one"],
        ),
    ]
}

#[tokio::test]
async fn recall_filters_apply_in_every_mode() {
    let provider = Embeddings::start().await;
    let daemon = Daemon::with(Setup::default().section(provider.section("m"))).await;
    let mut client = daemon.memories();
    filtered(&mut client).await;
    all_embedded(&mut client).await;
    for mode in [RecallMode::Lexical, RecallMode::Vector, RecallMode::Hybrid] {
        for (request, expected) in questions() {
            let request = RecallRequest {
                mode: mode.into(),
                ..request
            };
            let answer = recall(&mut client, request.clone()).await;
            assert_eq!(
                (answer.mode(), answer.degraded),
                (mode, false),
                "{:?}",
                answer.notes
            );
            let mut found: Vec<String> = answer
                .hits
                .into_iter()
                .map(|hit| hit.memory.expect("a memory").content)
                .collect();
            found.sort();
            assert_eq!(found, expected, "{request:?}");
        }
    }
}

#[tokio::test]
async fn list_memories_filters_and_pages() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    filtered(&mut client).await;
    remember_new(&mut client, fact("bob", "report five")).await;
    let list = |subject: &str, kind: MemoryKind, tag: &str| ListMemoriesRequest {
        subject: subject.into(),
        kind: kind.into(),
        tag: tag.into(),
        ..ListMemoriesRequest::default()
    };
    let any = MemoryKind::Unspecified;
    for (request, expected) in [
        (
            list("", any, ""),
            &[
                "report one",
                "report two",
                "report three",
                "report four",
                "report five",
            ][..],
        ),
        (
            list("ann", MemoryKind::Project, ""),
            &["report one", "report two"],
        ),
        (
            list("", MemoryKind::Project, ""),
            &["report one", "report two", "report five"],
        ),
        (list("ann", any, "may"), &["report one", "report three"]),
        (list("eve", any, ""), &[]),
    ] {
        let page = client
            .list_memories(request.clone())
            .await
            .expect("a page")
            .into_inner();
        assert_eq!(contents(&page.memories), expected, "{request:?}");
        let (mut paged, mut token) = (Vec::new(), String::new());
        loop {
            let (page_size, page_token) = (2, token);
            let request = ListMemoriesRequest {
                page_size,
                page_token,
                ..request.clone()
            };
            let page = client
                .list_memories(request)
                .await
                .expect("a page")
                .into_inner();
            assert!(page.memories.len() <= 2);
            paged.extend(page.memories);
            token = page.next_page_token;
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(contents(&paged), expected, "{request:?}");
    }
}

#[tokio::test]
async fn expired_memory_is_not_recalled_but_readable() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    let soon = wall_ms() / 1_000 + 2;
    let ticket = RememberRequest {
        expires_at: at(soon),
        ..fact("ann", "The ticket is valid")
    };
    let ticket = remember_new(&mut client, ticket).await;
    remember_new(&mut client, fact("ann", "The ticket office is in Oslo")).await;
    let known = manifest(&mut client, "ann").await.text;
    assert_eq!(
        known.lines().count(),
        if known.contains("valid") { 2 } else { 1 }
    );
    let left = eventually("its time is over", async || {
        let found = recalled(&mut client, query_of("ann", "ticket")).await;
        (found.len() < 2).then_some(found)
    });
    assert_eq!(left.await, ["The ticket office is in Oslo"]);
    assert!(wall_ms() >= soon * 1_000, "not before its time");
    let known = manifest(&mut client, "ann").await.text;
    assert!(
        !known.contains("valid"),
        "a manifest that was made before is not told: {known}"
    );
    let list = ListMemoriesRequest {
        subject: "ann".into(),
        ..Default::default()
    };
    let listed = client
        .list_memories(list)
        .await
        .expect("a page")
        .into_inner()
        .memories;
    assert_eq!(contents(&listed), ["The ticket office is in Oslo"]);
    assert_eq!(memories_of(&mut client, "ann").await.len(), 2, "as history");
    let look = GetMemoryRequest {
        id: ticket.id.clone(),
        ..Default::default()
    };
    let seen = client
        .get_memory(look)
        .await
        .expect("readable")
        .into_inner()
        .memory;
    assert_eq!(seen.expect("a memory").content, ticket.content);
    // Remembering an expired fact again makes it current.
    let again = remember(&mut client, fact("ann", "The ticket is valid")).await;
    let again = again.memory.expect("a memory");
    assert!(
        again.expires_at.is_none() || again.id == ticket.id,
        "{again:?}"
    );
    assert_eq!(
        recalled(&mut client, query_of("ann", "ticket")).await.len(),
        2
    );
    // A fact that has expired when it is stored is never recalled.
    let past = RememberRequest {
        expires_at: at(1_000),
        ..fact("ann", "The ticket of last year")
    };
    if let Err(status) = client.remember(past).await {
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    }
    assert_eq!(
        recalled(&mut client, query_of("ann", "ticket")).await.len(),
        2
    );
}

fn ids(hits: &[RecallHit]) -> Vec<String> {
    hits.iter()
        .map(|hit| hit.memory.as_ref().expect("a memory").id.clone())
        .collect()
}

#[tokio::test]
async fn hits_have_rank_and_age_in_stable_order() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    let now = wall_ms() / 1_000;
    for number in 0..30 {
        let observed_at = at(now - number * DAY);
        let request = RememberRequest {
            observed_at,
            ..fact("ann", &format!("Visit {number} of the museum"))
        };
        remember_new(&mut client, request).await;
    }
    let first = recall(&mut client, query_of("ann", "museum visit")).await;
    assert_eq!(
        (first.hits.len(), first.mode(), first.degraded),
        (30, RecallMode::Lexical, false)
    );
    for (hit, next) in first.hits.iter().zip(&first.hits[1..]) {
        assert!(
            hit.score >= next.score && next.score > 0.0,
            "best first: {hit:?} {next:?}"
        );
    }
    for hit in &first.hits {
        assert_eq!(hit.vector_rank, 0);
        let observed = hit
            .memory
            .as_ref()
            .expect("a memory")
            .observed_at
            .expect("a time")
            .seconds;
        let age = hit.age.expect("an age").seconds;
        assert!(
            (age - (now - observed)).abs() <= 60,
            "{age} s of {observed}"
        );
    }
    let mut ranks: Vec<u32> = first.hits.iter().map(|hit| hit.lexical_rank).collect();
    ranks.sort_unstable();
    assert_eq!(ranks, (1..=30).collect::<Vec<u32>>());
    for _ in 0..5 {
        let again = recall(&mut client, query_of("ann", "museum visit")).await;
        assert_eq!(ids(&again.hits), ids(&first.hits));
    }
    let default = RecallRequest {
        limit: 0,
        ..query_of("ann", "museum visit")
    };
    let default = recall(&mut client, default).await;
    assert_eq!(ids(&default.hits), ids(&first.hits)[..8]);
}

#[tokio::test]
async fn recalls_are_counted_asynchronously() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    remember_new(&mut client, fact("ann", "The launch is in May")).await;
    remember_new(&mut client, fact("ann", "The office is in Oslo")).await;
    say(&mut daemon.sessions(), "chat", "hello").await;
    let before = wall_ms() / 1_000;
    for _ in 0..3 {
        let request = RecallRequest {
            session_id: "chat".into(),
            ..query_of("ann", "launch")
        };
        assert_eq!(recalled(&mut client, request).await.len(), 1);
    }
    let known = eventually("three are counted", async || {
        let known = memories_of(&mut client, "ann").await;
        (known[0].recall_count >= 3).then_some(known)
    })
    .await;
    assert_eq!((known[0].recall_count, known[1].recall_count), (3, 0));
    assert!(known[0].last_recalled_at.expect("a time").seconds >= before);
    assert_eq!(known[1].last_recalled_at, None);
    assert_eq!(
        known[0].updated_at, known[0].created_at,
        "to be recalled is no change"
    );
    assert_eq!(memory_stats(&mut client).await.recall_events, 3);
}

#[tokio::test]
async fn recall_and_pages_fit_default_grpc_message_size() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    let long = "x".repeat(8_100);
    let at = at(1_700_000_000);
    let memory = |number: usize| Memory {
        id: format!("01ARZ3NDEK{number:0>16}"),
        subject: "ann".into(),
        kind: MemoryKind::Project.into(),
        content: format!("museum {number} {long}"),
        importance: 0.5,
        observed_at: at,
        created_at: at,
        updated_at: at,
        ..Memory::default()
    };
    for start in [0, 400] {
        let memories = (start..start + 400).map(memory).collect();
        client
            .import_memories(ImportMemoriesRequest { memories })
            .await
            .expect("imported");
    }
    // The default message size limit of gRPC clients.
    let mut client = client.max_decoding_message_size(4 << 20);
    let hits = recall(&mut client, query_of("ann", "museum")).await.hits;
    assert_eq!(hits.len(), 100);
    assert_eq!(
        memories_of(&mut client, "ann").await.len(),
        800,
        "page by page"
    );
}
