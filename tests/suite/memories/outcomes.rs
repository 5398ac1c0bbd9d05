//! Outcomes of remembering a fact.
//!
//! A fact can be created, reinforce or merge with a memory, supersede one, or merely repeat a
//! recall.

use memoird_proto::v1::{
    GetMemoryRequest, ImportMemoriesRequest, Memory, MemoryKind, MemorySource, NearDuplicate,
    Polarity, RecallRequest, RememberOutcome, RememberRequest, UpdateMemoryRequest,
};
use prost_types::{FieldMask, Timestamp};
use tonic::Code;
use tonic_types::StatusExt;

use crate::harness::{
    Daemon, Memories, contents, fact, manifest, memories_of, memory_stats, query_of, recalled,
    refused, remember, remember_new, say, wall_ms,
};

async fn memory(client: &mut Memories, id: &str) -> Memory {
    let look = GetMemoryRequest {
        id: id.into(),
        ..GetMemoryRequest::default()
    };
    client
        .get_memory(look)
        .await
        .expect("it is there")
        .into_inner()
        .memory
        .expect("a memory")
}

#[tokio::test]
async fn remember_keeps_every_field() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    let before = wall_ms() / 1_000;
    let at = |seconds| {
        Some(Timestamp {
            seconds,
            nanos: 123_456_789,
        })
    };
    let whole = RememberRequest {
        kind: MemoryKind::Feedback.into(),
        content: "  Answer in\n\tFrench – « oui » \u{1f950}\n".into(),
        tags: vec!["style".into(), " lang ".into(), "style".into()],
        importance: Some(0.75),
        observed_at: at(1_700_000_000),
        expires_at: at(4_000_000_000),
        pinned: true,
        polarity: Polarity::Correction.into(),
        ..fact("ann", "")
    };
    let made = remember_new(&mut client, whole).await;
    assert_eq!((&*made.subject, made.kind()), ("ann", MemoryKind::Feedback));
    assert_eq!(made.content, "Answer in\n\tFrench – « oui » \u{1f950}");
    assert_eq!(made.tags, ["lang", "style"]);
    assert_eq!(
        (made.importance, made.pinned, made.pinned_by_dream),
        (0.75, true, false)
    );
    assert_eq!(
        (made.polarity(), made.superseded_by.as_str()),
        (Polarity::Correction, "")
    );
    assert_eq!(
        (made.observed_at, made.expires_at),
        (at(1_700_000_000), at(4_000_000_000))
    );
    assert_eq!(
        (made.created_at, made.reinforced, made.recall_count),
        (made.updated_at, 0, 0)
    );
    let age = made.created_at.expect("a time").seconds - before;
    assert!(
        (0..60).contains(&age),
        "made {age} s after it was asked for"
    );
    assert_eq!(memory(&mut client, &made.id).await, made);
    assert_eq!(memories_of(&mut client, "ann").await, [made]);

    let plain = remember_new(&mut client, fact("ann", "The launch is in May")).await;
    assert_eq!((plain.importance, plain.expires_at), (0.5, None));
    assert_eq!(plain.observed_at, plain.created_at, "so it is now");
}

#[tokio::test]
async fn same_fact_is_reinforced_and_near_duplicate_merged() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    let first = remember_new(&mut client, fact("ann", "The launch is in May.")).await;
    for count in 1..=3 {
        let again = remember(&mut client, fact("ann", "The launch is in May.")).await;
        assert_eq!(again.outcome(), RememberOutcome::Reinforced);
        let memory = again.memory.expect("a memory");
        assert_eq!((&memory.id, memory.reinforced), (&first.id, count));
    }
    let mut loud = fact("ann", "THE  LAUNCH is in may");
    loud.tags = vec!["dates".into()];
    let taken = remember(&mut client, loud.clone()).await;
    assert_eq!(taken.outcome(), RememberOutcome::Merged);
    let taken = taken.memory.expect("a memory");
    assert_eq!(
        (&taken.id, &taken.tags[..]),
        (&first.id, &["dates".to_owned()][..])
    );
    assert_eq!(
        taken.content, "THE  LAUNCH is in may",
        "as it was said last"
    );
    let [current, history] = &memories_of(&mut client, "ann").await[..] else {
        panic!("one memory and what it said before");
    };
    assert_eq!(*current, taken);
    assert_eq!(
        (&*history.content, &history.superseded_by),
        ("The launch is in May.", &first.id)
    );

    loud.content = "The launch is in May!".into();
    loud.near_duplicate = NearDuplicate::Refuse.into();
    let status = client.remember(loud.clone()).await.expect_err("refused");
    let named = status.get_details_error_info().expect("details").metadata;
    assert_eq!(
        named.get("id"),
        Some(&first.id),
        "it names the one that is there"
    );
    refused::<()>(Err(status), Code::AlreadyExists, "MEMORY_DUPLICATE");
    assert_eq!(memories_of(&mut client, "ann").await.len(), 2);

    loud.near_duplicate = NearDuplicate::Keep.into();
    let beside = remember_new(&mut client, loud).await;
    assert_ne!(beside.id, first.id);
    assert_eq!(
        recalled(&mut client, query_of("ann", "launch")).await.len(),
        2
    );
    // A different statement is a new fact.
    remember_new(&mut client, fact("ann", "The launch is not in May.")).await;
    remember_new(&mut client, fact("ann", "The launch is in June.")).await;
}

#[tokio::test]
async fn superseded_memory_is_readable_but_not_recalled() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    let mut chain = vec![remember_new(&mut client, fact("ann", "The launch is in May")).await];
    for month in ["June", "July"] {
        let mut next = fact("ann", &format!("The launch is in {month}"));
        next.supersedes_id = chain.last().expect("one").id.clone();
        chain.push(remember_new(&mut client, next).await);
    }
    let [may, june, july] = [&chain[0], &chain[1], &chain[2]];
    assert_eq!(
        recalled(&mut client, query_of("ann", "launch May June July")).await,
        [&*july.content]
    );
    assert_eq!(memory(&mut client, &may.id).await.superseded_by, june.id);
    assert_eq!(memory(&mut client, &june.id).await.superseded_by, july.id);
    let known = manifest(&mut client, "ann").await;
    assert_eq!(known.lines, 1);
    assert!(
        known.text.contains("July") && !known.text.contains("May"),
        "{}",
        known.text
    );
    let stats = memory_stats(&mut client).await;
    assert_eq!(
        (stats.memories, stats.superseded, stats.subjects),
        (1, 2, 1)
    );
    let all = memories_of(&mut client, "ann").await;
    assert_eq!(
        contents(&all),
        chain.iter().map(|one| &*one.content).collect::<Vec<_>>()
    );

    // A superseded memory cannot be changed, superseded again or reinforced.
    let update = UpdateMemoryRequest {
        memory: Some(Memory {
            pinned: true,
            ..may.clone()
        }),
        update_mask: Some(FieldMask {
            paths: vec!["pinned".into()],
        }),
    };
    let answer = client.update_memory(update).await;
    refused(answer, Code::FailedPrecondition, "MEMORY_SUPERSEDED");
    let late = RememberRequest {
        supersedes_id: may.id.clone(),
        ..fact("ann", "In August")
    };
    refused(
        client.remember(late).await,
        Code::FailedPrecondition,
        "MEMORY_SUPERSEDED",
    );
    let again = remember_new(&mut client, fact("ann", "The launch is in May")).await;
    assert_ne!(again.id, may.id, "it is so again, and that is new");
}

#[tokio::test]
async fn idempotency_key_of_remember_applies_once() {
    let mut daemon = Daemon::start().await;
    let request = RememberRequest {
        idempotency_key: "k".into(),
        ..fact("ann", "The launch is in May")
    };
    let mut client = daemon.memories();
    let first = remember(&mut client, request.clone()).await;
    assert_eq!(first.outcome(), RememberOutcome::Created);
    let again = remember(&mut client, request.clone()).await;
    assert_eq!(again, first);
    daemon.kill9().await;
    daemon.restart().await;
    let mut client = daemon.memories();
    let again = remember(&mut client, request.clone()).await;
    assert_eq!(again, first, "also after a crash");
    let known = memories_of(&mut client, "ann").await;
    assert_eq!((known.len(), known[0].reinforced), (1, 0));

    let reused = (Code::InvalidArgument, "IDEMPOTENCY_KEY_REUSED");
    for other in [
        RememberRequest {
            content: "The launch is in June".into(),
            ..request.clone()
        },
        RememberRequest {
            subject: "bob".into(),
            ..request.clone()
        },
        RememberRequest {
            pinned: true,
            ..request.clone()
        },
    ] {
        refused(client.remember(other).await, reused.0, reused.1);
    }
    let keyless = RememberRequest {
        idempotency_key: String::new(),
        ..request.clone()
    };
    let counted = remember(&mut client, keyless).await;
    assert_eq!(counted.outcome(), RememberOutcome::Reinforced);
    assert_eq!(memories_of(&mut client, "").await.len(), 1);
    // A refused call does not use up its key.
    let empty = RememberRequest {
        idempotency_key: "free".into(),
        ..fact("ann", " ")
    };
    refused(
        client.remember(empty).await,
        Code::InvalidArgument,
        "MEMORY_INVALID",
    );
    let right = RememberRequest {
        idempotency_key: "free".into(),
        ..fact("ann", "Right")
    };
    remember_new(&mut client, right).await;
}

#[tokio::test]
async fn fact_recalled_in_session_is_not_new_in_it() {
    let daemon = Daemon::start().await;
    let (mut client, mut sessions) = (daemon.memories(), daemon.sessions());
    let first = remember_new(&mut client, fact("ann", "The launch is in May")).await;
    for session in ["told", "not told"] {
        say(&mut sessions, session, "When is the launch?").await;
    }
    let tell = RecallRequest {
        session_id: "told".into(),
        ..query_of("ann", "launch")
    };
    assert_eq!(recalled(&mut client, tell).await.len(), 1);
    let from = |session: &str, content: &str| RememberRequest {
        source: Some(MemorySource {
            session_id: session.into(),
            ..MemorySource::default()
        }),
        ..fact("ann", content)
    };
    for content in ["The launch is in May", "the launch is in MAY!"] {
        let echo = remember(&mut client, from("told", content)).await;
        assert_eq!(echo.outcome(), RememberOutcome::Recalled, "{content}");
        let memory = echo.memory.expect("a memory");
        assert_eq!((&memory.id, memory.reinforced), (&first.id, 0), "{content}");
        assert_eq!(memory.content, first.content);
    }
    // A session without that recall reinforces the memory.
    let said = remember(&mut client, from("not told", "The launch is in May")).await;
    assert_eq!(said.outcome(), RememberOutcome::Reinforced);
    let other = remember(&mut client, from("told", "The launch is in June")).await;
    assert_eq!(
        other.outcome(),
        RememberOutcome::Created,
        "which is something else"
    );
}

#[tokio::test]
async fn import_keeps_every_field_and_skips_existing() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    let old = remember_new(&mut client, fact("ann", "The launch is in May")).await;
    let mut now = fact("ann", "The launch is in June");
    now.supersedes_id = old.id.clone();
    now.expires_at = Some(Timestamp {
        seconds: 4_000_000_000,
        nanos: 5,
    });
    remember_new(&mut client, now).await;
    remember(&mut client, fact("ann", "The launch is in June")).await;
    recalled(&mut client, query_of("ann", "launch")).await;
    let all = memories_of(&mut client, "").await;

    let other = Daemon::start().await;
    let mut there = other.memories();
    let import = ImportMemoriesRequest {
        memories: all.clone(),
    };
    let done = there
        .import_memories(import.clone())
        .await
        .expect("imported")
        .into_inner();
    assert_eq!((done.imported, done.skipped), (2, 0));
    assert_eq!(memories_of(&mut there, "").await, all);
    let mut changed = import;
    changed.memories[0].content = "something else".into();
    let again = there
        .import_memories(changed)
        .await
        .expect("answered")
        .into_inner();
    assert_eq!((again.imported, again.skipped), (0, 2));
    assert_eq!(memories_of(&mut there, "").await, all);
    assert_eq!(
        recalled(&mut there, query_of("ann", "launch")).await,
        ["The launch is in June"]
    );
    // An import is atomic.
    let mut bad = all[0].clone();
    bad.id = "01ARZ3NDEKTSV4RRFFQ69G5FAV".into();
    let good = bad.clone();
    bad.content = String::new();
    let half = ImportMemoriesRequest {
        memories: vec![good, bad],
    };
    refused(
        there.import_memories(half).await,
        Code::InvalidArgument,
        "MEMORY_INVALID",
    );
    assert_eq!(memories_of(&mut there, "").await, all);
}
