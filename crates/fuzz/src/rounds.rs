//! Persists finished rounds in a file, one line per round.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Results for the inputs of one seed.
#[derive(Debug, Default)]
pub(crate) struct Round {
    pub(crate) seed: u64,
    pub(crate) took: Duration,
    pub(crate) inputs: u64,
    /// Longest time for one input.
    pub(crate) slowest: Duration,
    /// Reason of a violation, and the smallest input that shows it.
    pub(crate) failed: Option<(String, Vec<u8>)>,
}

pub(crate) struct Rounds {
    lines: PathBuf,
    failed: PathBuf,
}

/// Total fuzzing time per target. `None` for an ordinary test.
#[allow(
    clippy::disallowed_methods,
    reason = "tests are asked for more by a variable"
)]
pub(crate) fn seconds_asked() -> Option<Duration> {
    let text = std::env::var("MEMOIRD_FUZZ_SECONDS").ok()?;
    let seconds = text.parse().map(Duration::from_secs);
    Some(seconds.unwrap_or_else(|_| panic!("MEMOIRD_FUZZ_SECONDS={text} is no number")))
}

impl Round {
    /// Panics if the property was violated.
    pub(crate) fn check(&self, name: &str) {
        if let Some((reason, input)) = &self.failed {
            let text = String::from_utf8_lossy(input);
            panic!(
                "{name}, seed {}: {reason}\nfor {text:?}\nwhich are {input:?}",
                self.seed
            );
        }
    }
}

impl Rounds {
    pub(crate) fn new(directory: &Path, name: &str) -> Self {
        Self {
            lines: directory.join(format!("{name}.tsv")),
            failed: directory.join(format!("{name}.failed")),
        }
    }

    /// The finished rounds.
    pub(crate) fn done(&self) -> Vec<Round> {
        let text = fs::read_to_string(&self.lines).unwrap_or_default();
        let round = |line: &str| {
            let mut columns = line.split('\t');
            Some(Round {
                seed: columns.next()?.parse().ok()?,
                took: Duration::from_millis(columns.next()?.parse().ok()?),
                ..Round::default()
            })
        };
        text.lines().filter_map(round).collect()
    }

    /// Appends a round: seed, milliseconds, inputs, microseconds of the slowest input, outcome.
    pub(crate) fn keep(&self, round: &Round) {
        let outcome = match &round.failed {
            None => "held",
            Some(_) => "failed",
        };
        let line = format!(
            "{}\t{}\t{}\t{}\t{outcome}\n",
            round.seed,
            round.took.as_millis(),
            round.inputs,
            round.slowest.as_micros()
        );
        let directory = self.lines.parent().expect("a file in a directory");
        fs::create_dir_all(directory).expect("a directory for results");
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&self.lines);
        let written = file.as_mut().map(|file| file.write_all(line.as_bytes()));
        written
            .expect("a file for results")
            .expect("room for a line");
        if let Some((_, input)) = &round.failed {
            fs::write(&self.failed, input).expect("room for an input");
        }
    }
}
