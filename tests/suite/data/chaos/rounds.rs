//! The completed rounds of chaos, so that a longer run can be resumed.

use std::io::Write as _;
use std::path::PathBuf;

use crate::harness::seeds_factor;

#[allow(
    clippy::disallowed_methods,
    reason = "variables of the environment say how long this test goes on"
)]
pub(super) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// The completed rounds, one line each.
pub(super) struct Rounds {
    file: Option<PathBuf>,
    /// Stops after this total duration in milliseconds. `None`: after as many rounds as seeds.
    ms_max: Option<i64>,
    pub(super) made: u64,
    ms: i64,
}

impl Rounds {
    /// Continues the rounds in `MEMOIRD_CHAOS_DIR`, for `MEMOIRD_CHAOS_MINUTES` in total.
    pub(super) fn open() -> Self {
        let file = variable("MEMOIRD_CHAOS_DIR").map(|dir| PathBuf::from(dir).join("chaos.tsv"));
        let minutes = variable("MEMOIRD_CHAOS_MINUTES");
        let minutes = minutes.map(|text| text.parse::<i64>().expect("MEMOIRD_CHAOS_MINUTES"));
        let known = file.as_ref().map(std::fs::read_to_string);
        let known = known.and_then(Result::ok).unwrap_or_default();
        let ms = |line: &str| line.split('\t').nth(1)?.parse::<i64>().ok();
        Self {
            file,
            ms_max: minutes.map(|minutes| minutes * 60_000),
            made: known.lines().count() as u64,
            ms: known.lines().filter_map(ms).sum(),
        }
    }

    pub(super) fn goes_on(&self) -> bool {
        match self.ms_max {
            Some(ms_max) => self.ms < ms_max,
            None => self.made < seeds_factor(),
        }
    }

    #[allow(
        clippy::print_stdout,
        reason = "who lets it run for long wants to see how far it is"
    )]
    pub(super) fn keep(&mut self, seed: u64, ms: i64, outcome: &str, what: &str) {
        let line = format!("{seed}\t{ms}\t{outcome}\t{what}");
        println!("{line}");
        if let Some(file) = &self.file {
            let file = std::fs::File::options()
                .create(true)
                .append(true)
                .open(file);
            writeln!(file.expect("a file for results"), "{line}").expect("room for a line");
        }
        self.made += 1;
        self.ms += ms;
    }
}
