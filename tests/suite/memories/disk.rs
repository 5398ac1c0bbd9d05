//! A disk that fills up and gets space again.
//!
//! Facts are refused with a specific reason and never half stored, everything else continues, and
//! no restart is needed.

use memoird_proto::v1::forget_request::Target;
use memoird_proto::v1::{ForgetRequest, RememberRequest};
use tonic::{Code, Status};

use crate::harness::{
    Daemon, Memories, Namespace, Setup, contents, eventually, fact, files_with, manifest,
    memories_of, memory_stats, query_of, recall, refused_code, remember,
};

/// More facts than the disk holds.
const FACTS_MAX: usize = 3_000;

fn numbered(number: usize) -> RememberRequest {
    let words = format!("padding{number} ").repeat(300);
    let content = format!("Fact{number}: {words}");
    RememberRequest {
        idempotency_key: format!("k{number}"),
        ..fact("ann", content.trim())
    }
}

/// Stores facts until one is refused. Returns its number and the error.
async fn fill(client: &mut Memories, first: usize) -> (usize, Status) {
    for number in first..FACTS_MAX {
        if let Err(status) = client.remember(numbered(number)).await {
            return (number, status);
        }
    }
    panic!("{FACTS_MAX} facts found room");
}

/// Asserts that every call shows exactly the acknowledged facts.
async fn holds_exactly(client: &mut Memories, taken: usize) {
    let all = memories_of(client, "").await;
    let expected: Vec<String> = (0..taken).map(|number| numbered(number).content).collect();
    assert_eq!(contents(&all), expected);
    assert_eq!(memory_stats(client).await.memories, taken as u64);
    let hits = recall(client, query_of("ann", &format!("fact{}", taken - 1)))
        .await
        .hits;
    let best = hits[0].memory.as_ref().expect("a memory");
    assert_eq!(best.content, expected[taken - 1]);
    let refused = recall(
        client,
        query_of("ann", &format!("fact{taken} padding{taken}")),
    )
    .await
    .hits;
    assert!(refused.is_empty(), "{refused:?}");
    assert!(manifest(client, "ann").await.lines > 1);
}

#[tokio::test]
async fn full_disk_is_reported_as_memories_disk_full_and_recovers() {
    let mount = "mkdir -p HOME/data && mount -t tmpfs -o size=12m tmpfs HOME/data";
    let dir = tempfile::tempdir().expect("a directory");
    let probe = mount.replace("HOME", &dir.path().display().to_string());
    let test = "memories::disk::\
                full_disk_is_reported_as_memories_disk_full_and_recovers";
    if !Namespace::Mount.allows(&probe, test) {
        return;
    }
    let ballast =
        "for file in ballast reserve; do head -c 3145728 /dev/zero > HOME/data/$file; done";
    let script = format!("{mount} && {ballast} && exec \"$@\"");
    let setup = Setup::default().wrapper(&["unshare", "-m", "sh", "-c", &script, "sh"]);
    let daemon = Daemon::with(setup).await;
    let mut client = daemon.memories();
    let (taken, status) = fill(&mut client, 0).await;
    assert!(taken > 10, "{taken} facts found room");
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(refused_code(&status), "MEMORIES_DISK_FULL");
    holds_exactly(&mut client, taken).await;

    std::fs::remove_file(daemon.path("data/ballast")).expect("it was there");
    eventually("it takes the refused fact", async || {
        client.remember(numbered(taken)).await.ok()
    })
    .await;
    for number in taken + 1..taken + 5 {
        remember(&mut client, numbered(number)).await;
    }
    holds_exactly(&mut client, taken + 5).await;
    // Forgetting needs some disk space too, for the write-ahead log.
    let (full, _) = fill(&mut client, taken + 5).await;
    let forget = ForgetRequest {
        target: Some(Target::Subject("ann".into())),
        dry_run: false,
    };
    match client.forget(forget.clone()).await {
        Ok(gone) => assert_eq!(gone.into_inner().memories, full as u64),
        Err(status) => assert_eq!(refused_code(&status), "MEMORIES_DISK_FULL"),
    }
    std::fs::remove_file(daemon.path("data/reserve")).expect("it was there");
    eventually("it forgets", async || {
        client.forget(forget.clone()).await.ok()
    })
    .await;
    assert!(memories_of(&mut client, "").await.is_empty());
    eventually("nothing of it is on the disk", async || {
        files_with(&daemon, &["padding0", "padding7"])
            .is_empty()
            .then_some(())
    })
    .await;
    remember(&mut client, numbered(0)).await;
}
