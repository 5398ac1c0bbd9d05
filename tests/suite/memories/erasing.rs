//! `kill -9` during a forget.
//!
//! The job continues after the restart, until nothing is left in any reply or on any disk page.

use memoird_proto::v1::forget_request::Target;
use memoird_proto::v1::{ForgetRequest, ImportMemoriesRequest, Memory, MemoryKind};
use prost_types::Timestamp;

use crate::harness::{
    Daemon, Memories, contents, eventually, fact, files_with, manifest, memories_of, memory_stats,
    query_of, recalled, remember_new,
};

const COUNT: usize = 20_000;
/// Memories per import.
const BATCH: usize = 500;

fn numbered(number: usize) -> Memory {
    let at = Some(Timestamp {
        seconds: 1_700_000_000,
        nanos: 0,
    });
    Memory {
        // A ULID in Crockford's base 32, which includes the decimal digits.
        id: format!("01ARZ3NDEK{number:0>16}"),
        subject: "eve".into(),
        kind: MemoryKind::Project.into(),
        content: format!("Xanthippe met number{number} behind the gazebo"),
        tags: vec!["wisteria".into()],
        importance: 0.5,
        observed_at: at,
        created_at: at,
        updated_at: at,
        ..Memory::default()
    }
}

async fn fill(client: &mut Memories) {
    for start in (0..COUNT).step_by(BATCH) {
        let memories = (start..start + BATCH).map(numbered).collect();
        let import = ImportMemoriesRequest { memories };
        let done = client
            .import_memories(import)
            .await
            .expect("imported")
            .into_inner();
        assert_eq!(done.imported, BATCH as u64);
    }
}

/// Starts to forget eve's memories, and kills the daemon once some are gone.
async fn dies_amid_forgetting(daemon: &mut Daemon) {
    let (mut client, mut looking) = (daemon.memories(), daemon.memories());
    let target = Some(Target::Subject("eve".into()));
    let forget = client.forget(ForgetRequest {
        target,
        dry_run: false,
    });
    let seen = eventually("some are gone", async || {
        let left = memory_stats(&mut looking).await.memories;
        (left < COUNT as u64 + 1).then_some(left)
    });
    tokio::select! {
        answer = forget => drop(answer),
        left = seen => println!("killed with {left} left to count"),
    }
    daemon.kill9().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_amid_forgetting_leaves_nothing_of_20000_memories() {
    let mut daemon = Daemon::start().await;
    let mut client = daemon.memories();
    remember_new(&mut client, fact("ann", "The launch is in May")).await;
    fill(&mut client).await;
    assert_eq!(memory_stats(&mut client).await.memories, COUNT as u64 + 1);
    assert!(
        !files_with(&daemon, &["xanthippe"]).is_empty(),
        "or nothing would be shown"
    );
    dies_amid_forgetting(&mut daemon).await;
    // A second kill, possibly in the middle of the resumed job.
    daemon.restart().await;
    daemon.kill9().await;
    daemon.restart().await;
    let mut client = daemon.memories();
    // From the first reply on, the memories being forgotten are hidden.
    assert!(
        recalled(&mut client, query_of("eve", "gazebo"))
            .await
            .is_empty()
    );
    assert_eq!(manifest(&mut client, "eve").await.lines, 0);
    assert!(memories_of(&mut client, "eve").await.is_empty());
    eventually("the job is done", async || {
        let pages = files_with(&daemon, &["xanthippe", "xanthipp", "gazebo", "wisteria"]);
        pages.is_empty().then_some(())
    })
    .await;
    let stats = memory_stats(&mut client).await;
    assert_eq!(
        (stats.memories, stats.superseded, stats.subjects),
        (1, 0, 1)
    );
    assert_eq!(
        contents(&memories_of(&mut client, "").await),
        ["The launch is in May"]
    );
    assert_eq!(
        recalled(&mut client, query_of("ann", "launch")).await.len(),
        1
    );
}
