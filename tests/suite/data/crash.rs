//! Repeated `kill -9` under load, with retries: acknowledged turns are stored once and in order.
//!
//! `just crash` kills more often, and resumes an interrupted series.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use memoird_proto::v1::{AppendResponse, GetStatsRequest, Turn};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tonic::Status;

use crate::harness::{
    Admin, Daemon, Seed, Sessions, Setup, eventually, journal, keyed, live, seeds_factor, text_of,
    user, wall_ms,
};

/// Number of kills before a new data directory is used.
const KILLS_OF_ONE_HOME: u64 = 10;
const WRITERS: usize = 8;
const SEED: u64 = 20_260_101;
const FLUSH_MS: u64 = 100;

/// Appends numbered turns to a session, each under its own idempotency key.
#[derive(Clone, Debug)]
struct Writer {
    name: usize,
    session: String,
    acked: Vec<Acked>,
    next: u64,
}

#[derive(Clone, Copy, Debug)]
struct Acked {
    number: u64,
    seq: u64,
    at_ms: i64,
}

/// The number of commits at the time of the request or slightly later.
#[derive(Clone, Copy, Debug)]
struct CommitSample {
    asked_ms: i64,
    commits: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    kills: u64,
    acknowledged: u64,
    /// Acknowledged but lost, in violation of the durability.
    lost: u64,
    /// Acknowledged but lost within `flush_interval`, which is allowed.
    unflushed: u64,
    /// Stored more than once.
    doubled: u64,
    /// Stored at another seq than acknowledged.
    misplaced: u64,
}

/// A series of kills, and the file with its results.
struct Series {
    durability: &'static str,
    seed: u64,
    kills_wanted: u64,
    tally: Tally,
    file: Option<PathBuf>,
}

impl Writer {
    fn text(&self, number: u64) -> String {
        format!("writer {} turn {number}", self.name)
    }

    async fn append(&mut self, client: &mut Sessions) -> Result<AppendResponse, Status> {
        let text = self.text(self.next);
        let request = keyed(&self.session, &text, [user(&text)]);
        let answer = client.append(request).await?.into_inner();
        assert_eq!(answer.first_seq, answer.last_seq);
        self.acked.push(Acked {
            number: self.next,
            seq: answer.first_seq,
            at_ms: wall_ms(),
        });
        self.next += 1;
        Ok(answer)
    }

    /// Appends until the daemon is gone.
    async fn write(mut self, mut client: Sessions, done: Arc<AtomicU64>) -> Self {
        while self.append(&mut client).await.is_ok() {
            done.fetch_add(1, Ordering::Relaxed);
        }
        self
    }

    /// Compares the stored turns, which have no gaps, with the acknowledged ones.
    ///
    /// Turns acknowledged after `promised_ms` may be lost, and are appended again.
    fn check(&mut self, turns: &[Turn], promised_ms: i64, tally: &mut Tally) {
        let mine = |turn: &&Turn| text_of(turn).starts_with(&format!("writer {} ", self.name));
        let seen = turns.iter().filter(mine);
        let mut there = 0;
        for turn in seen {
            if text_of(turn) == self.text(there) {
                there += 1;
            } else if (0..there).any(|number| text_of(turn) == self.text(number)) {
                tally.doubled += 1;
            } else {
                tally.misplaced += 1;
            }
        }
        for acked in &self.acked {
            let place = usize::try_from(acked.seq - 1).expect("a place");
            let turn = turns.get(place);
            let is_there = turn.is_some_and(|turn| text_of(turn) == self.text(acked.number));
            if acked.number < there {
                if !is_there {
                    tally.misplaced += 1;
                }
            } else if acked.at_ms > promised_ms {
                tally.unflushed += 1;
            } else {
                tally.lost += 1;
            }
        }
        self.acked.retain(|acked| acked.number < there);
        self.next = self.next.min(there);
    }
}

impl Series {
    /// Resumes the series in `MEMOIRD_CRASH_DIR`, or starts one of `MEMOIRD_KILLS` kills.
    #[allow(
        clippy::disallowed_methods,
        reason = "variables of the environment say how hard this test tries"
    )]
    fn open(durability: &'static str) -> Self {
        let file = std::env::var("MEMOIRD_CRASH_DIR").ok();
        let file = file.map(|dir| PathBuf::from(dir).join(format!("{durability}.json")));
        let kills = std::env::var("MEMOIRD_KILLS").ok();
        let kills = kills.map(|text| text.parse().expect("MEMOIRD_KILLS is a number"));
        let text = file
            .as_ref()
            .and_then(|file| std::fs::read_to_string(file).ok());
        let known: Value = text.map_or(Value::Null, |text| {
            serde_json::from_str(&text).expect("a result of this test")
        });
        let count = |name: &str| known[name].as_u64().unwrap_or(0);
        let tally = Tally {
            kills: count("kills"),
            acknowledged: count("acknowledged"),
            lost: count("lost"),
            unflushed: count("unflushed"),
            doubled: count("doubled"),
            misplaced: count("misplaced"),
        };
        Self {
            durability,
            seed: known["seed"].as_u64().unwrap_or(SEED),
            kills_wanted: kills.unwrap_or(5 * seeds_factor()),
            tally,
            file,
        }
    }

    #[allow(
        clippy::print_stdout,
        reason = "who kills for an hour wants to see how far it is"
    )]
    fn save(&self) {
        let Tally {
            kills,
            acknowledged,
            lost,
            unflushed,
            doubled,
            misplaced,
        } = self.tally;
        let result = json!({
            "durability": self.durability,
            "seed": self.seed,
            "kills": kills,
            "acknowledged": acknowledged,
            "lost": lost,
            "unflushed": unflushed,
            "doubled": doubled,
            "misplaced": misplaced,
        });
        println!("{result}");
        if let Some(file) = &self.file {
            let new = file.with_extension("new");
            std::fs::write(&new, result.to_string()).expect("the result is written");
            std::fs::rename(&new, file).expect("it is moved");
        }
    }

    fn setup(&self) -> Setup {
        let journal = match self.durability {
            "interval" => {
                format!("journal: {{ durability: interval, flush_interval: {FLUSH_MS}ms }}")
            }
            other => format!("journal: {{ durability: {other} }}"),
        };
        Setup::default()
            .section(&journal)
            .section("short_term: { max_history_turns: 100000 }")
    }

    /// Number of acknowledged appends before a kill. With `interval`, enough for several commits.
    fn acks(&self, random: &mut Seed) -> u64 {
        let acks = match self.durability {
            "interval" => 1_000 + random.below(5_000),
            _ => 20 + random.below(200),
        };
        acks as u64
    }

    /// Turns acknowledged before this time must survive the kill.
    ///
    /// With `interval`, a commit writes everything acknowledged before it began, which is at the
    /// earliest when the previous commit ended.
    fn promised_ms(&self, looks: &[CommitSample]) -> i64 {
        if self.durability != "interval" {
            return i64::MAX;
        }
        let last = looks.last().map_or(0, |look| look.commits);
        let before = looks.iter().filter(|look| look.commits + 2 <= last);
        before.map(|look| look.asked_ms).max().unwrap_or(0)
    }

    async fn run(&mut self) {
        while self.tally.kills < self.kills_wanted {
            // A resumed series keeps its tally, and continues with another seed.
            let mut random = Seed::new(self.seed.wrapping_add(self.tally.kills));
            let mut daemon = Daemon::with(self.setup()).await;
            let mut all = writers();
            let kills_left = self.kills_wanted - self.tally.kills;
            for _ in 0..kills_left.min(KILLS_OF_ONE_HOME) {
                let acks = self.acks(&mut random);
                let acked_before: usize = all.iter().map(|writer| writer.acked.len()).sum();
                let looks;
                (all, looks) = write_until_killed(&mut daemon, all, acks).await;
                let promised_ms = self.promised_ms(&looks);
                let acked: usize = all.iter().map(|writer| writer.acked.len()).sum();
                self.tally.acknowledged += (acked - acked_before) as u64;
                daemon.restart().await;
                self.check_promised_turns(&daemon, &mut all, promised_ms)
                    .await;
                self.tally.kills += 1;
                self.save();
            }
        }
        let Tally {
            lost,
            doubled,
            misplaced,
            ..
        } = self.tally;
        let seed = self.seed;
        assert_eq!((lost, doubled, misplaced), (0, 0, 0), "seed {seed}");
    }

    /// Asserts that all promised turns are stored, and appends the unacknowledged ones again.
    async fn check_promised_turns(
        &mut self,
        daemon: &Daemon,
        all: &mut [Writer],
        promised_ms: i64,
    ) {
        let mut client = daemon.sessions();
        for writer in &mut *all {
            let turns = journal(&mut client, &writer.session, "").await;
            let history = live(&mut client, &writer.session).await;
            assert_eq!(history, turns, "seed {}", self.seed);
            let seqs = turns.iter().map(|turn| turn.seq);
            let is_whole = seqs.eq(1..=turns.len() as u64);
            assert!(is_whole, "seed {}: without gaps", self.seed);
            writer.check(&turns, promised_ms, &mut self.tally);
            // The unacknowledged turn is retried under its key, and stored once.
            let next = writer.text(writer.next);
            let is_there = turns.iter().any(|turn| text_of(turn) == next);
            let answer = writer.append(&mut client).await.expect("done");
            assert_eq!(answer.duplicate, is_there, "seed {}: {writer:?}", self.seed);
        }
        for writer in all {
            let turns = journal(&mut client, &writer.session, "").await;
            writer.check(&turns, i64::MAX, &mut self.tally);
        }
    }
}

fn writers() -> Vec<Writer> {
    // Half of the writers share a session, the others have their own.
    let session = |name| match name % 2 {
        0 => "shared".to_owned(),
        _ => format!("own {name}"),
    };
    let writer = |name| Writer {
        name,
        session: session(name),
        acked: Vec::new(),
        next: 0,
    };
    (0..WRITERS).map(writer).collect()
}

/// Samples the number of commits until the daemon is gone.
async fn sample_commits_until_killed(mut client: Admin) -> Vec<CommitSample> {
    let mut looks = Vec::new();
    loop {
        let asked_ms = wall_ms();
        let Ok(stats) = client.get_stats(GetStatsRequest::default()).await else {
            return looks;
        };
        let commits = stats.into_inner().commits;
        looks.push(CommitSample { asked_ms, commits });
        tokio::time::sleep(Duration::from_millis(FLUSH_MS / 10)).await;
    }
}

/// Runs the writers until at least `acks` turns are acknowledged, and then kills the daemon.
async fn write_until_killed(
    daemon: &mut Daemon,
    writers: Vec<Writer>,
    acks: u64,
) -> (Vec<Writer>, Vec<CommitSample>) {
    let mut looking = JoinSet::new();
    looking.spawn(sample_commits_until_killed(daemon.admin()));
    let done = Arc::new(AtomicU64::new(0));
    let mut writing = JoinSet::new();
    for writer in writers {
        writing.spawn(writer.write(daemon.sessions(), Arc::clone(&done)));
    }
    eventually("enough is acknowledged", async || {
        (done.load(Ordering::Relaxed) >= acks).then_some(())
    })
    .await;
    daemon.kill9().await;
    let looks = looking.join_all().await.concat();
    (writing.join_all().await, looks)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_amid_appends_loses_and_duplicates_nothing() {
    Series::open("sync").run().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_with_interval_loses_only_unflushed_appends() {
    Series::open("interval").run().await;
}
