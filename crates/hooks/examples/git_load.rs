//! Measures checkpoint commits: many ends at once, and single ends on a day with many files.
//!
//! Prints CPU time, because other processes may share the machine.
//! ```text
//! cargo run --release -p memoird-hooks --example git_load -- [DIR] [ENDS] [SINGLE_ENDS]
//! ```

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "a measurement that fails may panic, prints, and reads clock and arguments"
)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memoird_core::change::EndReason;
use memoird_core::ids::{DeliveryId, Generation, HookName, SessionId, TenantId};
use memoird_core::state::State;
use memoird_core::time::Timestamp;
use memoird_core::turn::{PartKind, Role, Turn};
use memoird_engine::{Hook, HookCall, SessionContent};
use memoird_hooks::git::{GitConfig, GitHook};

/// 2026-11-22 00:00:00 UTC.
const MIDNIGHT: i64 = 1_795_305_600;
const BATCH: u64 = 1_000;
const TURNS: u64 = 6;
const WORDS: [&str; 8] = [
    "the", "weather", "tomorrow", "please", "a report", "of what", "hello", "number",
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, otherwise| {
        let argument = arguments.get(place);
        argument.map_or(otherwise, |text| text.parse().unwrap())
    };
    let dir = PathBuf::from(arguments.first().map_or("/tmp/git-load", String::as_str));
    let _ = std::fs::remove_dir_all(&dir);
    let config = GitConfig {
        dir: dir.clone(),
        ..GitConfig::default()
    };
    let hook = GitHook::new(config);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let (ends, single_ends) = (number(1, 10_000), number(2, 64));
    let deliver = |first: u64, count: u64| {
        let calls: Vec<HookCall> = (first..first + count).map(call).collect();
        let (cpu, started) = (cpu(), Instant::now());
        for answer in runtime.block_on(hook.deliver(calls)) {
            answer.unwrap();
        }
        (self::cpu() - cpu, started.elapsed())
    };

    let mut total = (Duration::ZERO, Duration::ZERO);
    for first in (0..ends).step_by(usize::try_from(BATCH).unwrap()) {
        let (cpu, wall) = deliver(first, BATCH.min(ends - first));
        total = (total.0 + cpu, total.1 + wall);
    }
    println!(
        "{ends} ends in batches of {BATCH}: {:.2} s CPU, {:.2} s wall, {}",
        total.0.as_secs_f64(),
        total.1.as_secs_f64(),
        size(&dir)
    );

    let mut singles: Vec<Duration> = (0..single_ends)
        .map(|number| deliver(ends + number, 1).0)
        .collect();
    let sum: Duration = singles.iter().sum();
    singles.sort_unstable();
    println!(
        "{single_ends} single ends after them: CPU median {:.1} ms, mean {:.1} ms, most {:.1} ms, {}",
        singles[singles.len() / 2].as_secs_f64() * 1e3,
        sum.as_secs_f64() * 1e3 / singles.len() as f64,
        singles[singles.len() - 1].as_secs_f64() * 1e3,
        size(&dir)
    );
}

fn call(number: u64) -> HookCall {
    let at = Timestamp::new(MIDNIGHT + i64::try_from(number / 10).unwrap(), 0).unwrap();
    let turn = |seq: u64| {
        let words = (0..40).map(|place: u64| {
            let word = (number + 1).wrapping_mul(seq * 7 + place * place + 3) % 8;
            WORDS[usize::try_from(word).unwrap()]
        });
        let text = words.collect::<Vec<_>>().join(" ");
        let role = if seq % 2 == 1 {
            Role::User
        } else {
            Role::Assistant
        };
        let part = PartKind::Text(format!("{text} {number}")).into();
        (seq, Turn::new(role, vec![part]))
    };
    let scattered = u128::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    let generation = Generation::new(at.as_ms(), scattered >> 48);
    let ended = SessionContent {
        tenant: TenantId::parse("acme").unwrap(),
        session: SessionId::parse(&format!("telegram:{number}")).unwrap(),
        generation,
        subject: None,
        reason: EndReason::Ended,
        created_at: at,
        ended_at: at,
        turns: (1..=TURNS).map(turn).collect(),
        turns_omitted: 0,
        state: State::default(),
        summary: None,
    };
    HookCall {
        delivery: DeliveryId {
            generation,
            hook: HookName::parse("checkpoint").unwrap(),
        },
        attempt: 1,
        at,
        content: Arc::new(ended),
    }
}

fn cpu() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        u64::try_from(now.tv_sec).unwrap(),
        u32::try_from(now.tv_nsec).unwrap(),
    )
}

fn size(dir: &Path) -> String {
    let packs = std::fs::read_dir(dir.join("acme.git/objects/pack")).unwrap();
    let sizes: Vec<u64> = packs
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .collect();
    format!(
        "{} files of packs, {} KiB",
        sizes.len(),
        sizes.iter().sum::<u64>() / 1_024
    )
}
