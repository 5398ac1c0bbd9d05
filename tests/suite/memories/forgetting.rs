//! Forgetting by id, subject and filter: counted in advance, and gone from replies and the disk.

use memoird_proto::v1::forget_request::Target;
use memoird_proto::v1::{
    ForgetRequest, ForgetResponse, GetMemoryRequest, LeaseExtractionRequest, Memory, MemoryFilter,
    MemoryKind, RecallRequest, RememberRequest,
};
use prost_types::Timestamp;
use tokio::task::JoinSet;
use tonic::Code;

use crate::harness::{
    Daemon, Embeddings, Memories, Setup, all_embedded, append, contents, eventually, fact,
    files_with, manifest, memories_of, memory_stats, query_of, recalled, refused, remember,
    remember_new, user,
};

fn forget(target: Target, dry_run: bool) -> ForgetRequest {
    ForgetRequest {
        target: Some(target),
        dry_run,
    }
}

/// Counts with a dry run, forgets, and asserts equal counts.
async fn forget_and_count(client: &mut Memories, target: Target) -> ForgetResponse {
    let dry = client
        .forget(forget(target.clone(), true))
        .await
        .expect("counted")
        .into_inner();
    assert!(!dry.erased, "nothing was removed yet");
    let real = forget_now(client, target).await;
    assert_eq!(
        ForgetResponse {
            erased: false,
            ..real
        },
        dry,
        "as it was counted"
    );
    real
}

async fn forget_now(client: &mut Memories, target: Target) -> ForgetResponse {
    client
        .forget(forget(target, false))
        .await
        .expect("forgotten")
        .into_inner()
}

/// Asserts that no call returns these words.
async fn check_not_returned(client: &mut Memories, subject: &str, words: &str) {
    for mode in 0..3 {
        let asked = RecallRequest {
            mode,
            ..query_of(subject, words)
        };
        let found = recalled(client, asked).await;
        assert!(
            !found.iter().any(|content| content.contains(words)),
            "mode {mode}: {found:?}"
        );
    }
    let known = manifest(client, subject).await;
    assert!(!known.text.contains(words), "{}", known.text);
    let all = memories_of(client, "").await;
    assert!(
        !all.iter().any(|memory| memory.content.contains(words)),
        "{all:?}"
    );
}

#[tokio::test]
async fn forgetting_one_memory_removes_history_vectors_and_files() {
    let provider = Embeddings::start().await;
    let daemon = Daemon::with(Setup::default().section(provider.section("m"))).await;
    let mut client = daemon.memories();
    let old = remember_new(&mut client, fact("ann", "Zephyrine lives in Quimper")).await;
    let mut now = fact("ann", "Zephyrine lives in Vannes");
    now.supersedes_id = old.id.clone();
    let now = remember_new(&mut client, now).await;
    let stays = remember_new(&mut client, fact("ann", "The launch is in May")).await;
    all_embedded(&mut client).await;
    let mut told = 0;
    for _ in 0..2 {
        let found = recalled(&mut client, query_of("ann", "Where does Zephyrine live?")).await;
        told += found.len() as u64;
    }
    let events = eventually("recalls are counted", async || {
        let events = memory_stats(&mut client).await.recall_events;
        (events >= told).then_some(events)
    })
    .await;
    let counts = forget_and_count(&mut client, Target::Id(now.id.clone())).await;
    assert_eq!((counts.memories, counts.superseded), (1, 1));
    assert!((1..=2).contains(&counts.vectors), "{counts:?}");
    assert!((1..=events).contains(&counts.recall_events), "{counts:?}");
    assert!(counts.erased, "{counts:?}");
    check_not_returned(&mut client, "ann", "Zephyrine").await;
    for id in [&old.id, &now.id] {
        let look = GetMemoryRequest {
            id: id.clone(),
            ..Default::default()
        };
        refused(
            client.get_memory(look).await,
            Code::NotFound,
            "MEMORY_NOT_FOUND",
        );
        let again = client.forget(forget(Target::Id(id.clone()), false)).await;
        refused(again, Code::NotFound, "MEMORY_NOT_FOUND");
    }
    let left = files_with(&daemon, &["zephyrine", "quimper", "vannes"]);
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(
        contents(&memories_of(&mut client, "").await),
        [&*stays.content]
    );
    assert_eq!(
        recalled(&mut client, query_of("ann", "launch")).await.len(),
        1
    );
    // The fact can be stored again, as a new memory.
    remember_new(&mut client, fact("ann", "Zephyrine lives in Vannes")).await;
}

#[tokio::test]
async fn forgetting_superseded_version_removes_its_predecessors() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    let mut ids: Vec<String> = Vec::new();
    for number in 0..4 {
        let mut next = fact("ann", &format!("Version number {number}"));
        next.supersedes_id = ids.last().cloned().unwrap_or_default();
        ids.push(remember_new(&mut client, next).await.id);
    }
    let counts = forget_and_count(&mut client, Target::Id(ids[1].clone())).await;
    assert_eq!((counts.memories, counts.superseded), (0, 2), "{counts:?}");
    let left = memories_of(&mut client, "").await;
    assert_eq!(contents(&left), ["Version number 2", "Version number 3"]);
    assert_eq!(
        recalled(&mut client, query_of("ann", "version")).await,
        ["Version number 3"]
    );
}

#[tokio::test]
async fn forgetting_subject_removes_all_its_data() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    for number in 0..30 {
        let content = format!("Xanthippe's secret {number} of the gazebo");
        let request = RememberRequest {
            tags: vec!["wisteria".into()],
            ..fact("eve", &content)
        };
        let team = RememberRequest {
            visibility: 2,
            ..request.clone()
        };
        remember_new(&mut client, if number % 3 == 0 { team } else { request }).await;
        remember_new(&mut client, fact("ann", &format!("Ann's note {number}"))).await;
    }
    let mut said = append("chat", [user("a turn")]);
    said.subject = "eve".into();
    daemon.sessions().append(said).await.expect("appended");
    let lease = LeaseExtractionRequest {
        session_id: "chat".into(),
        ..Default::default()
    };
    client.lease_extraction(lease).await.expect("leased");
    manifest(&mut client, "eve").await;
    assert_eq!(
        recalled(&mut client, query_of("bob", "gazebo")).await.len(),
        10,
        "of the team"
    );
    eventually("recalls are counted", async || {
        (memory_stats(&mut client).await.recall_events > 0).then_some(())
    })
    .await;
    let counts = forget_and_count(&mut client, Target::Subject("eve".into())).await;
    assert_eq!(
        (counts.memories, counts.superseded, counts.cursors),
        (30, 0, 1),
        "{counts:?}"
    );
    assert!(counts.recall_events > 0 && counts.erased, "{counts:?}");
    for subject in ["eve", "bob", "ann"] {
        check_not_returned(&mut client, subject, "gazebo").await;
    }
    assert_eq!(manifest(&mut client, "eve").await.lines, 0);
    let left = files_with(
        &daemon,
        &["xanthippe", "gazebo", "wisteria", "xanthipp", "gazeb"],
    );
    assert!(left.is_empty(), "{left:?}");
    let stats = memory_stats(&mut client).await;
    assert_eq!((stats.memories, stats.subjects), (30, 1));
    let again = forget_and_count(&mut client, Target::Subject("eve".into())).await;
    assert_eq!(
        ForgetResponse {
            erased: false,
            ..again
        },
        ForgetResponse::default()
    );
}

#[tokio::test]
async fn forget_by_filter_removes_memories_matching_all_criteria() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    let at = |seconds| Some(Timestamp { seconds, nanos: 0 });
    for (day, subject, kind, tags) in [
        (1, "ann", MemoryKind::Project, &["work", "may"][..]),
        (2, "ann", MemoryKind::Project, &["work"]),
        (3, "ann", MemoryKind::Feedback, &["work", "may"]),
        (4, "bob", MemoryKind::Project, &["may"]),
        (5, "bob", MemoryKind::User, &[]),
    ] {
        let request = RememberRequest {
            kind: kind.into(),
            tags: tags.iter().map(|&tag| tag.into()).collect(),
            observed_at: at(day),
            ..fact(subject, &format!("Fact of day {day}"))
        };
        remember_new(&mut client, request).await;
    }
    let days = |memories: &[Memory]| -> Vec<i64> {
        memories
            .iter()
            .map(|memory| memory.observed_at.expect("a time").seconds)
            .collect()
    };
    let filter = |filter| Target::Filter(filter);
    let tags = |tags: &[&str]| tags.iter().map(|&tag| tag.into()).collect();
    for (target, left) in [
        (
            filter(MemoryFilter {
                tags: tags(&["work", "june"]),
                ..Default::default()
            }),
            vec![1, 2, 3, 4, 5],
        ),
        (
            filter(MemoryFilter {
                tags: tags(&["work", "may"]),
                before: at(3),
                ..Default::default()
            }),
            vec![2, 3, 4, 5],
        ),
        (
            filter(MemoryFilter {
                subject: "bob".into(),
                kinds: vec![1],
                ..Default::default()
            }),
            vec![2, 3, 4],
        ),
        (
            filter(MemoryFilter {
                after: at(4),
                ..Default::default()
            }),
            vec![2, 3],
        ),
        (
            filter(MemoryFilter {
                kinds: vec![2, 4],
                ..Default::default()
            }),
            vec![2],
        ),
        (
            filter(MemoryFilter {
                subject: "eve".into(),
                ..Default::default()
            }),
            vec![2],
        ),
    ] {
        let before = memories_of(&mut client, "").await.len();
        let counts = forget_and_count(&mut client, target.clone()).await;
        let known = memories_of(&mut client, "").await;
        assert_eq!(days(&known), left, "{target:?}");
        assert_eq!(counts.memories, (before - left.len()) as u64, "{target:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remember_during_forget_is_kept_or_forgotten_entirely() {
    let daemon = Daemon::start().await;
    let mut client = daemon.memories();
    for number in 0..300 {
        remember(&mut client, fact("eve", &format!("Old fact {number}"))).await;
    }
    let mut saying = JoinSet::new();
    for number in 0..40 {
        let mut client = daemon.memories();
        saying.spawn(async move {
            let request = fact("eve", &format!("New fact {number} of the lighthouse"));
            client
                .remember(request)
                .await
                .map(tonic::Response::into_inner)
        });
    }
    let counts = forget_now(&mut client, Target::Subject("eve".into())).await;
    let said = saying.join_all().await;
    assert!(said.iter().all(Result::is_ok), "{said:?}");
    let left = memories_of(&mut client, "eve").await;
    assert!(
        !left.iter().any(|memory| memory.content.starts_with("Old")),
        "{left:?}"
    );
    assert_eq!(
        counts.memories + left.len() as u64,
        340,
        "each is counted once or is there"
    );
    let found = recalled(&mut client, query_of("eve", "lighthouse")).await;
    assert_eq!(found.len(), left.len(), "every one that is there is found");
    assert_eq!(memory_stats(&mut client).await.memories, left.len() as u64);
}
