//! Measures appends to a journal in PostgreSQL: rows per second, and CPU time of the server.
//!
//! Run `cargo run --release -p memoird-postgres --example appends -- 'host=… dbname=…' BATCH`.

#![allow(clippy::print_stdout, reason = "it prints what it measured")]
#![allow(clippy::unwrap_used, reason = "it stops where something is wrong")]
#![allow(clippy::disallowed_methods, reason = "it measures")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use memoird_core::change::{Appended, Change, ChangeKind, ChangeSet};
use memoird_core::history::{LiveSet, Totals};
use memoird_core::ids::{Generation, SessionId, SessionKey, TenantId};
use memoird_core::time::{Steady, Timestamp};
use memoird_postgres::{PgOptions, PgStore};
use memoird_store::{ClockAnchor, Store};

const SESSIONS: usize = 20_000;
const TURN_BYTES: usize = 200;
const TIME: Duration = Duration::from_secs(10);

fn main() {
    let mut args = std::env::args().skip(1);
    let words = args.next().expect("where the database is");
    let batch: usize = args.next().expect("appends of a commit").parse().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .worker_threads(1)
        .build()
        .unwrap();
    let options = PgOptions::parse(&words, None, None).unwrap();
    let store = PgStore::open(options, runtime.handle()).unwrap();
    let mut seed = u128::from(std::process::id()) << 32;
    let mut sessions: Vec<Session> = (0..SESSIONS)
        .map(|number| {
            seed += 1;
            Session {
                key: SessionKey {
                    tenant: TenantId::parse("bench").unwrap(),
                    session: SessionId::parse(&format!("{seed:x}-{number}")).unwrap(),
                },
                generation: Generation::new(1_700_000_000_000, seed),
                seq: 0,
            }
        })
        .collect();
    for some in sessions.chunks(1_000) {
        let begins = some.iter().map(Session::begin).collect::<Vec<_>>();
        commit(&store, &begins);
    }
    let (before, started) = (server_ms(), Instant::now());
    let (mut appends, mut commits, mut next) = (0, 0, 0);
    while started.elapsed() < TIME {
        let sets: Vec<ChangeSet> = (0..batch)
            .map(|_| {
                next = (next + 7_919) % SESSIONS;
                sessions[next].append()
            })
            .collect();
        commit(&store, &sets);
        appends += sets.len();
        commits += 1;
    }
    let seconds = started.elapsed().as_secs_f64();
    let cpu_us = (server_ms() - before) as f64 * 1_000.0 / appends as f64;
    println!(
        "batches of {batch}: {:.0} appends/s, {:.2} ms a commit, {cpu_us:.0} us of the server's \
         CPU an append",
        appends as f64 / seconds,
        seconds * 1_000.0 / f64::from(commits),
    );
}

struct Session {
    key: SessionKey,
    generation: Generation,
    seq: u64,
}

impl Session {
    fn change(&self, expected_revision: u64, kind: ChangeKind) -> ChangeSet {
        ChangeSet {
            changes: vec![Change {
                generation: self.generation,
                expected_revision,
                kind,
            }],
        }
    }

    fn begin(&self) -> ChangeSet {
        self.change(
            0,
            ChangeKind::Begin {
                key: self.key.clone(),
                created_at: Timestamp::from_ms(1),
                last_access: Steady(1),
            },
        )
    }

    fn append(&mut self) -> ChangeSet {
        self.seq += 1;
        let content: Arc<[u8]> = vec![b'x'; TURN_BYTES].into();
        let appended = Appended {
            key: self.key.clone(),
            turns: vec![(self.seq, content)],
            client_ids: Vec::new(),
            dropped_turns: 0,
            kept: LiveSet::default(),
            totals: Totals::default(),
            subject: None,
            former_subject: None,
            copied_from: None,
            partial: false,
            last_access: Steady(self.seq),
            idempotency: None,
            cuts: None,
        };
        self.change(self.seq - 1, ChangeKind::Append(Box::new(appended)))
    }
}

fn commit(store: &PgStore, sets: &[ChangeSet]) {
    let clock = ClockAnchor::default();
    let answers = store.commit(&clock, sets).unwrap();
    assert!(answers.iter().all(Result::is_ok));
}

/// Total CPU time of all PostgreSQL backends of the machine.
fn server_ms() -> u64 {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let stats =
        processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
    let ticks = stats.filter_map(|stat| {
        let rest = stat.split_once("(postgres)")?.1;
        let mut fields = rest.split_whitespace().skip(11);
        let mut next = || fields.next()?.parse::<u64>().ok();
        Some(next()? + next()?)
    });
    // A tick is 10 ms.
    ticks.sum::<u64>() * 10
}
