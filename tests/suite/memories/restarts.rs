//! Memories after crashes: acknowledged ones are stored exactly once, with any durability.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memoird_proto::v1::{Memory, RecallRequest, RememberOutcome, RememberRequest};
use tokio::task::JoinSet;

use crate::harness::{
    Daemon, Memories, Seed, Setup, append, eventually, fact, manifest, memories_of, memory_stats,
    query_of, recall, recalled, remember, remember_new, seeds_factor, user,
};

/// Remembers numbered facts, each under its own idempotency key.
#[derive(Debug)]
struct Writer {
    name: usize,
    /// Acknowledged facts with their ids.
    acked: Vec<(u64, String)>,
    next: u64,
}

impl Writer {
    fn request(&self, number: u64) -> RememberRequest {
        let content = format!("Writer {} noted number {number}", self.name);
        let idempotency_key = content.clone();
        RememberRequest {
            idempotency_key,
            ..fact(&format!("s{}", self.name % 3), &content)
        }
    }

    /// Writes until the daemon is gone.
    async fn write(mut self, mut client: Memories, done: Arc<AtomicU64>) -> Self {
        while let Ok(answer) = client.remember(self.request(self.next)).await {
            let answer = answer.into_inner();
            assert_eq!(answer.outcome(), RememberOutcome::Created);
            self.acked
                .push((self.next, answer.memory.expect("a memory").id));
            self.next += 1;
            done.fetch_add(1, Ordering::Relaxed);
        }
        self
    }

    /// Asserts that acknowledged facts are stored once under their ids, and others at most once.
    #[track_caller]
    fn check(&self, all: &[Memory], seed: u64) {
        let prefix = format!("Writer {} ", self.name);
        let mut mine: BTreeMap<&str, &str> = BTreeMap::new();
        for memory in all
            .iter()
            .filter(|memory| memory.content.starts_with(&prefix))
        {
            let twice = mine.insert(&memory.content, &memory.id);
            assert_eq!(twice, None, "seed {seed}: {memory:?} is there twice");
        }
        for (number, id) in &self.acked {
            let content = self.request(*number).content;
            assert_eq!(
                mine.get(&*content),
                Some(&&**id),
                "seed {seed}: {content} is lost"
            );
        }
        let extra = mine.len() - self.acked.len();
        assert!(
            extra <= 1,
            "seed {seed}: at most the one without an answer: {extra}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_amid_remembering_loses_and_duplicates_nothing() {
    const SEED: u64 = 20_261_122;
    let mut random = Seed::new(SEED);
    let mut daemon = Daemon::start().await;
    let writer = |name| Writer {
        name,
        acked: Vec::new(),
        next: 0,
    };
    let mut writers: Vec<Writer> = (0..8).map(writer).collect();
    for _ in 0..4 * seeds_factor() {
        let enough = 50 + random.below(300) as u64;
        let done = Arc::new(AtomicU64::new(0));
        let mut writing = JoinSet::new();
        for writer in writers {
            writing.spawn(writer.write(daemon.memories(), Arc::clone(&done)));
        }
        eventually("enough is acknowledged", async || {
            (done.load(Ordering::Relaxed) >= enough).then_some(())
        })
        .await;
        daemon.kill9().await;
        writers = writing.join_all().await;
        daemon.restart().await;
        let mut client = daemon.memories();
        let all = memories_of(&mut client, "").await;
        for writer in &mut writers {
            writer.check(&all, SEED);
            // The unacknowledged fact is retried under its key, and stored once.
            let again = remember(&mut client, writer.request(writer.next)).await;
            assert_eq!(again.outcome(), RememberOutcome::Created, "seed {SEED}");
            writer
                .acked
                .push((writer.next, again.memory.expect("a memory").id));
            writer.next += 1;
        }
        let all = memories_of(&mut client, "").await;
        writers.iter().for_each(|writer| writer.check(&all, SEED));
        // The index agrees with the rows.
        for writer in &writers {
            let (last, id) = writer.acked.last().expect("one");
            let request = writer.request(*last);
            let asked = RecallRequest {
                limit: 1,
                ..query_of(&request.subject, &request.content)
            };
            let best = recall(&mut client, asked).await.hits.swap_remove(0);
            assert_eq!(
                &best.memory.expect("a memory").id,
                id,
                "seed {SEED}: {request:?}"
            );
        }
        assert_eq!(memory_stats(&mut client).await.memories, all.len() as u64);
    }
}

#[tokio::test]
async fn memories_survive_restart_with_every_durability() {
    for durability in ["sync", "interval", "off"] {
        let setup = Setup::default().section(format!("journal: {{ durability: {durability} }}"));
        let mut daemon = Daemon::with(setup).await;
        let mut client = daemon.memories();
        let old = remember_new(&mut client, fact("ann", "The launch is in May")).await;
        let mut now = fact("ann", "The launch is in June");
        now.supersedes_id = old.id;
        remember_new(&mut client, now).await;
        let pinned = RememberRequest {
            pinned: true,
            ..fact("bob", "The office is in Oslo")
        };
        remember_new(&mut client, pinned).await;
        recalled(&mut client, query_of("ann", "launch")).await;
        eventually("the recall is counted", async || {
            (memory_stats(&mut client).await.recall_events == 1).then_some(())
        })
        .await;
        let before = (
            memories_of(&mut client, "").await,
            manifest(&mut client, "bob").await,
        );
        for how in ["kill -9", "SIGTERM"] {
            match how {
                "kill -9" => daemon.kill9().await,
                _ => daemon.stop().await,
            }
            daemon.restart().await;
            client = daemon.memories();
            let after = (
                memories_of(&mut client, "").await,
                manifest(&mut client, "bob").await,
            );
            assert_eq!(after, before, "{durability}, {how}");
            let counts = memory_stats(&mut client).await;
            let counts = (counts.memories, counts.superseded, counts.recall_events);
            assert_eq!(counts, (2, 1, 1), "{durability}, {how}");
        }
        assert_eq!(
            recalled(&mut client, query_of("ann", "launch")).await,
            ["The launch is in June"]
        );
    }
}

#[tokio::test]
async fn memory_outlives_session_lost_with_durability_off() {
    let setup = Setup::default().section("journal: { durability: off }");
    let mut daemon = Daemon::with(setup).await;
    let mut said = append("chat", [user("My launch is in May")]);
    said.subject = "ann".into();
    daemon.sessions().append(said).await.expect("appended");
    let source = memoird_proto::v1::MemorySource {
        session_id: "chat".into(),
        seqs: vec![1],
        ..Default::default()
    };
    let mut client = daemon.memories();
    let made = remember_new(
        &mut client,
        RememberRequest {
            source: Some(source),
            ..fact("", "")
        },
    )
    .await;
    assert_eq!(made.content, "My launch is in May");
    daemon.stop().await;
    daemon.restart().await;
    assert_eq!(memories_of(&mut daemon.memories(), "ann").await, [made]);
}
