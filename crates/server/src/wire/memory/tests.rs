//! Tests of valid and invalid memory requests, and that memories survive a round trip.

use memoird_core::ids::{Generation, MemoryId, SessionId, Subject};
use memoird_core::time::Timestamp;
use memoird_memories::rules::{
    Memory, MemoryKind, NearDuplicate, Origin, Pin, Polarity, Source, Visibility,
};
use memoird_memories::{ForgetRequest, MemoryPage, RecallMode};
use memoird_proto::v1;
use prost_types::FieldMask;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::{from, to};
use crate::wire::refusal::Refusal;

const ID: &str = "01ARYZ6S410000000000000000";

/// An error reason, and a change that makes a message invalid in this way.
type Case<'a, T> = (&'a str, &'a dyn Fn(&mut T));

fn memory(content: &str) -> Memory {
    let at = |second| Timestamp::new(second, 5).expect("a time");
    Memory {
        id: ID.parse().expect("an id"),
        subject: Subject::parse("ann").expect("a subject"),
        kind: MemoryKind::Feedback,
        visibility: Visibility::Team,
        polarity: Some(Polarity::Correction),
        content: content.to_owned(),
        tags: vec!["a".into(), "b".into()],
        importance: 0.1,
        source: Some(Source {
            session: SessionId::parse("chat").expect("a session"),
            generation: Some(Generation::new(7, 7)),
            seqs: vec![1, 2],
        }),
        observed_at: at(1),
        created_at: at(2),
        updated_at: at(3),
        expires_at: Some(at(4)),
        superseded_by: Some(MemoryId::new(9, 9)),
        reinforced: 3,
        recalls: 4,
        recalled_at: Some(at(5)),
        pin: Some(Pin::Consolidation),
        origin: Origin::Extraction,
        external_key: Some("k".into()),
        metadata: Some("{\"a\": 1}".into()),
    }
}

fn fact() -> v1::RememberRequest {
    v1::RememberRequest {
        subject: "ann".into(),
        kind: v1::MemoryKind::User.into(),
        content: "likes tea".into(),
        ..Default::default()
    }
}

fn bad_time() -> Option<prost_types::Timestamp> {
    Some(prost_types::Timestamp {
        seconds: -1,
        nanos: 0,
    })
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Refusal>, reason: &str) -> String {
    let status = Status::from(result.expect_err(reason));
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    let info = status.get_details_error_info().expect("a reason");
    assert_eq!(
        (&*info.reason, &*info.domain),
        (reason, "memoird"),
        "{status:?}"
    );
    status.message().to_owned()
}

#[test]
fn memory_roundtrips_through_proto() {
    let bare = Memory {
        visibility: Visibility::Private,
        polarity: None,
        tags: Vec::new(),
        source: None,
        expires_at: None,
        superseded_by: None,
        recalled_at: None,
        pin: None,
        origin: Origin::Bot,
        ..memory("bare")
    };
    let pinned = Memory {
        pin: Some(Pin::Bot),
        origin: Origin::Import,
        ..memory("pinned")
    };
    for memory in [memory("whole"), bare, pinned] {
        let imported = from::imported(vec![to::memory(&memory)]);
        assert_eq!(imported.expect("a memory"), [memory]);
    }
}

#[test]
fn memory_without_times_uses_id_timestamp() {
    let told = v1::Memory {
        created_at: None,
        observed_at: None,
        updated_at: None,
        ..to::memory(&memory("x"))
    };
    let taken = from::imported(vec![told]).expect("a memory").remove(0);
    // Example from the ULID specification.
    let made = Timestamp::from_ms(1_469_918_176_385);
    assert_eq!(
        (taken.created_at, taken.observed_at, taken.updated_at),
        (made, made, made)
    );
}

#[test]
fn invalid_imported_memory_is_named_by_index() {
    let import = |spoil: &dyn Fn(&mut v1::Memory)| {
        let mut bad = to::memory(&memory("bad"));
        spoil(&mut bad);
        from::imported(vec![to::memory(&memory("x")), bad])
    };
    let cases: [Case<'_, v1::Memory>; 12] = [
        ("MEMORY_ID_INVALID", &|memory| memory.id.clear()),
        ("MEMORY_ID_INVALID", &|memory| {
            memory.superseded_by = "x".into();
        }),
        ("ID_INVALID", &|memory| memory.subject.clear()),
        ("ID_INVALID", &|memory| {
            memory.source = Some(v1::MemorySource::default());
        }),
        ("MEMORY_KIND_INVALID", &|memory| memory.kind = 0),
        ("MEMORY_KIND_INVALID", &|memory| memory.kind = 5),
        ("VISIBILITY_INVALID", &|memory| memory.visibility = 3),
        ("POLARITY_INVALID", &|memory| memory.polarity = -1),
        ("ORIGIN_INVALID", &|memory| memory.origin = 7),
        ("TIMESTAMP_INVALID", &|memory| {
            memory.created_at = bad_time();
        }),
        ("TIMESTAMP_INVALID", &|memory| {
            memory.last_recalled_at = bad_time();
        }),
        ("GENERATION_INVALID", &|memory| {
            memory.source.as_mut().expect("a source").generation = "x".into();
        }),
    ];
    for (reason, spoil) in cases {
        let said = refused(import(spoil), reason);
        assert!(said.starts_with("memories[1]."), "{said}");
    }
    assert_eq!(import(&|_| {}).expect("two").len(), 2);
}

#[test]
fn all_fact_fields_are_parsed() {
    let time = Some(prost_types::Timestamp {
        seconds: 9,
        nanos: 0,
    });
    let asked = from::remember(v1::RememberRequest {
        kind: v1::MemoryKind::Feedback.into(),
        polarity: v1::Polarity::Confirmation.into(),
        visibility: v1::Visibility::Team.into(),
        near_duplicate: v1::NearDuplicate::Keep.into(),
        tags: vec!["t".into()],
        importance: Some(0.0),
        source: Some(v1::MemorySource {
            session_id: "chat".into(),
            generation: String::new(),
            seqs: vec![3],
        }),
        observed_at: time,
        supersedes_id: ID.into(),
        pinned: true,
        ..fact()
    });
    let ask = asked.expect("a fact");
    assert_eq!(
        (ask.kind, ask.polarity),
        (MemoryKind::Feedback, Some(Polarity::Confirmation))
    );
    assert_eq!(
        (ask.visibility, ask.near_duplicate),
        (Visibility::Team, NearDuplicate::Keep)
    );
    assert_eq!(
        (&*ask.content, &ask.tags[..], ask.pinned),
        ("likes tea", &["t".into()][..], true)
    );
    assert_eq!(
        (ask.importance, ask.expires_at),
        (Some(0.0), None),
        "0 is not left out"
    );
    assert_eq!(ask.observed_at, Timestamp::new(9, 0));
    assert_eq!(ask.supersedes.map(|id| id.to_string()).as_deref(), Some(ID));
    assert_eq!(ask.source.map(|source| source.seqs), Some(vec![3]));
    assert!(ask.key.is_none());
}

#[test]
fn fact_with_invalid_field_is_rejected() {
    let cases: [Case<'_, v1::RememberRequest>; 10] = [
        ("ID_INVALID", &|fact| fact.subject = "x".repeat(257)),
        ("ID_INVALID", &|fact| fact.idempotency_key = "x".repeat(257)),
        ("ID_INVALID", &|fact| {
            fact.source = Some(v1::MemorySource::default());
        }),
        ("MEMORY_KIND_INVALID", &|fact| fact.kind = 0),
        ("VISIBILITY_INVALID", &|fact| fact.visibility = 9),
        ("POLARITY_INVALID", &|fact| fact.polarity = 9),
        ("NEAR_DUPLICATE_INVALID", &|fact| fact.near_duplicate = 9),
        ("MEMORY_ID_INVALID", &|fact| {
            fact.supersedes_id = "first".into();
        }),
        ("TIMESTAMP_INVALID", &|fact| fact.observed_at = bad_time()),
        ("TIMESTAMP_INVALID", &|fact| fact.expires_at = bad_time()),
    ];
    for (reason, spoil) in cases {
        let mut bad = fact();
        spoil(&mut bad);
        refused(from::remember(bad), reason);
    }
}

#[test]
fn idempotency_fingerprint_covers_request_without_key() {
    let key = |spoil: &dyn Fn(&mut v1::RememberRequest)| {
        let mut fact = v1::RememberRequest {
            idempotency_key: "k".into(),
            ..fact()
        };
        spoil(&mut fact);
        from::remember(fact).expect("a fact").key.expect("a key")
    };
    let same = key(&|_| {});
    assert_eq!(key(&|_| {}), same);
    let other_key = key(&|fact| fact.idempotency_key = "l".into());
    assert!(other_key.key != same.key && other_key.content == same.content);
    let other_content = key(&|fact| fact.pinned = true);
    assert!(other_content.key == same.key && other_content.content != same.content);
}

#[test]
fn recall_limit_is_enforced() {
    let asked = from::recall(v1::RecallRequest {
        query: "tea?".into(),
        subjects: vec!["ann".into(), "bob".into()],
        kinds: vec![2, 1, 2],
        limit: 4_000,
        mode: v1::RecallMode::Lexical.into(),
        session_id: "chat".into(),
        ..Default::default()
    });
    let ask = asked.expect("a recall");
    assert_eq!((ask.limit, ask.mode), (100, RecallMode::Lexical));
    assert_eq!(ask.kinds, [MemoryKind::User, MemoryKind::Feedback]);
    assert_eq!((ask.subjects.len(), ask.session.is_some()), (2, true));
    let bare = from::recall(v1::RecallRequest::default()).expect("a recall");
    assert_eq!(
        (bare.limit, bare.mode, bare.session),
        (0, RecallMode::Auto, None)
    );
}

#[test]
fn recall_with_invalid_field_is_rejected() {
    let cases: [Case<'_, v1::RecallRequest>; 6] = [
        ("ID_INVALID", &|ask| ask.subjects = vec![String::new()]),
        ("ID_INVALID", &|ask| ask.session_id = "x".repeat(257)),
        ("MEMORY_KIND_INVALID", &|ask| ask.kinds = vec![1, 0]),
        ("RECALL_MODE_INVALID", &|ask| ask.mode = 4),
        ("TIMESTAMP_INVALID", &|ask| ask.after = bad_time()),
        ("TIMESTAMP_INVALID", &|ask| ask.before = bad_time()),
    ];
    for (reason, spoil) in cases {
        let mut bad = v1::RecallRequest {
            query: "tea?".into(),
            ..Default::default()
        };
        spoil(&mut bad);
        refused(from::recall(bad), reason);
    }
}

#[test]
fn update_changes_only_masked_fields() {
    let update = |paths: &[&str], memory: &v1::Memory| {
        let paths = paths.iter().map(|path| (*path).to_owned()).collect();
        from::patch(memory, Some(FieldMask { paths }))
    };
    let named = v1::Memory {
        id: ID.into(),
        content: "new".into(),
        ..Default::default()
    };
    let patch = update(&["content", "expires_at", "polarity"], &named).expect("a change");
    assert_eq!(patch.content.as_deref(), Some("new"));
    assert_eq!(
        (patch.expires_at, patch.polarity),
        (Some(None), Some(None)),
        "taken away"
    );
    assert_eq!(
        (patch.kind, patch.tags, patch.pinned, patch.importance),
        (None, None, None, None)
    );

    for path in [
        "id",
        "subject",
        "created_at",
        "recall_count",
        "pinned_by_dream",
        "Content",
        "*",
    ] {
        let said = refused(update(&["content", path], &named), "UPDATE_MASK_INVALID");
        assert!(said.contains(path) && said.contains("expires_at"), "{said}");
    }
    refused(update(&[], &named), "UPDATE_MASK_INVALID");
    refused(update(&["kind"], &named), "MEMORY_KIND_INVALID");
    refused(update(&["observed_at"], &named), "TIMESTAMP_INVALID");
    refused(from::memory_id("id", ""), "MEMORY_ID_INVALID");
}

#[test]
fn forget_without_valid_target_is_rejected() {
    use v1::forget_request::Target;
    refused(from::forget(None), "FORGET_TARGET_MISSING");
    refused(
        from::forget(Some(Target::Id("first".into()))),
        "MEMORY_ID_INVALID",
    );
    refused(
        from::forget(Some(Target::Subject(String::new()))),
        "ID_INVALID",
    );
    let filter = |filter| from::forget(Some(Target::Filter(filter)));
    refused(filter(v1::MemoryFilter::default()), "FILTER_EMPTY");
    refused(
        filter(v1::MemoryFilter {
            kinds: vec![0],
            ..Default::default()
        }),
        "MEMORY_KIND_INVALID",
    );
    refused(
        filter(v1::MemoryFilter {
            after: bad_time(),
            ..Default::default()
        }),
        "TIMESTAMP_INVALID",
    );
    let all_of_tag = filter(v1::MemoryFilter {
        tags: vec!["t".into()],
        ..Default::default()
    });
    assert!(matches!(all_of_tag, Ok(ForgetRequest::Filter(filter)) if filter.tags == ["t"]));
}

#[test]
fn extraction_lease_requests_are_validated() {
    let found = v1::ExtractedMemory {
        kind: 1,
        content: "x".into(),
        ..Default::default()
    };
    let facts = from::extracted(vec![found.clone()]);
    assert_eq!(facts.expect("facts").len(), 1);
    refused(from::lease(""), "LEASE_INVALID");
    let bad = v1::ExtractedMemory { kind: 0, ..found };
    let said = refused(from::extracted(vec![bad]), "MEMORY_KIND_INVALID");
    assert!(said.starts_with("memories[0].kind: "), "{said}");
    refused(from::subject("subject", ""), "ID_INVALID");
}

#[test]
fn pages_fit_client_message_limit() {
    let list = |request| from::list(request).expect("a page");
    let bare = list(v1::ListMemoriesRequest::default());
    assert_eq!(
        (bare.count, bare.kind, bare.after, bare.tag),
        (100, None, None, None)
    );
    assert_eq!(
        list(v1::ListMemoriesRequest {
            page_size: 5_000,
            ..Default::default()
        })
        .count,
        1_000
    );
    let bad = v1::ListMemoriesRequest {
        page_token: "x".into(),
        ..Default::default()
    };
    refused(from::list(bad), "PAGE_TOKEN_INVALID");
    let bad = v1::ListMemoriesRequest {
        kind: 9,
        ..Default::default()
    };
    refused(from::list(bad), "MEMORY_KIND_INVALID");

    let memories: Vec<Memory> = (0..300)
        .map(|n| Memory {
            id: MemoryId::new(n, 0),
            ..memory(&"x".repeat(16 << 10))
        })
        .collect();
    let next = Some(MemoryId::new(299, 0));
    let page = to::memories(&MemoryPage {
        memories: memories.clone(),
        next,
    });
    let kept = page.memories.len();
    assert!((100..200).contains(&kept), "{kept} are about 2 MiB");
    assert_eq!(
        page.next_page_token,
        MemoryId::new(kept as i64 - 1, 0).to_string()
    );
    let page = to::memories(&MemoryPage {
        memories: memories[..3].to_vec(),
        next: None,
    });
    assert_eq!((page.memories.len(), &*page.next_page_token), (3, ""));
}

#[test]
fn metadata_filter_must_be_valid() {
    let asked = |json: &str| {
        from::recall(v1::RecallRequest {
            metadata_filter_json: json.into(),
            ..Default::default()
        })
    };
    let takes = |json: &str| {
        let filter = asked(json).expect("a recall").metadata;
        filter.expect("a filter").takes(b"{\"a\": \"1\", \"n\": 2}")
    };
    assert!(asked("").expect("a recall").metadata.is_none());
    assert!(takes("{\"a\": \"1\", \"n\": 2}"));
    assert!(!takes("{\"n\": \"2\"}") && !takes("{\"a\": 1}"));
    let long = format!("{{\"a\": \"{}\"}}", "x".repeat(16 << 10));
    let said = refused(asked(&long), "MEMORY_INVALID");
    assert!(said.starts_with("metadata_filter_json: "), "{said}");
}
