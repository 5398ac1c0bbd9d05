//! Fuzz targets as ordinary tests.
//!
//! A target edits inputs of a committed corpus and checks a property of each. A plain `cargo test`
//! checks the corpus, and deterministic edits of it for about a second.
//!
//! With `MEMOIRD_FUZZ_SECONDS`, a target runs in rounds with new seeds until it has used that much
//! time in total. `target/fuzz/NAME.tsv` has a line per round, so that an interrupted run continues
//! after the last one. `target/fuzz/NAME.failed` has the smallest input that violates the property.
//! Add it to the corpus when fixing the bug.

mod edits;
mod rounds;

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use rounds::{Round, Rounds};

/// Duration of the edits in an ordinary test.
const ORDINARY: Duration = Duration::from_secs(1);
/// Duration of a round in a long run.
const ROUND: Duration = Duration::from_secs(10);

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Name, which is also used as a file name.
    pub name: &'a str,
    /// Directory of the crate, `env!("CARGO_MANIFEST_DIR")`, with valid inputs in `corpus/NAME`.
    pub crate_dir: &'a str,
    /// Words with a meaning to the tested code, inserted anywhere.
    pub words: &'a [&'a str],
}

impl Target<'_> {
    /// Checks `property` for the corpus, and for inputs generated from it.
    ///
    /// The property panics if it is violated.
    ///
    /// # Panics
    /// With the seed and the smallest input that violates `property`, or if the corpus cannot be
    /// read.
    pub fn check(&self, property: impl Fn(&[u8])) {
        let corpus = self.corpus();
        // Checked directly: the panic shows the property, and the input is already in a file.
        for input in &corpus {
            property(input);
        }
        let rounds = Rounds::new(&self.directory(), self.name);
        let Some(seconds) = rounds::seconds_asked() else {
            let round = self.round(&corpus, 0, ORDINARY, &property);
            return round.check(self.name);
        };
        let mut done = rounds.done();
        let mut had: Duration = done.iter().map(|round| round.took).sum();
        while had < seconds {
            let seed = done.last().map_or(1, |round| round.seed + 1);
            let round = self.round(&corpus, seed, ROUND.min(seconds - had), &property);
            rounds.keep(&round);
            round.check(self.name);
            had += round.took;
            done.push(round);
        }
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let dir = Path::new(self.crate_dir).join("corpus").join(self.name);
        let entries = std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{dir:?}: {error}"));
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        files.sort();
        assert!(!files.is_empty(), "{dir:?} has no files");
        let read = |file: &PathBuf| std::fs::read(file).expect("a file of the corpus");
        files.iter().map(read).collect()
    }

    /// The results directory in the workspace's target directory.
    fn directory(&self) -> PathBuf {
        Path::new(self.crate_dir).join("../../target/fuzz")
    }

    /// Checks edited inputs for this long.
    fn round(
        &self,
        corpus: &[Vec<u8>],
        seed: u64,
        span: Duration,
        property: &impl Fn(&[u8]),
    ) -> Round {
        let config = Config {
            failure_persistence: None,
            max_shrink_iters: 4_096,
            max_shrink_time: 10_000,
            ..Config::default()
        };
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let mut runner = TestRunner::new_with_rng(config, rng);
        let strategy = edits::inputs(corpus, self.words);
        let (started, slowest) = (now(), Cell::new(Duration::ZERO));
        let mut round = Round {
            seed,
            ..Round::default()
        };
        while round.took < span && round.failed.is_none() {
            let tree = strategy.new_tree(&mut runner);
            let tree = tree.unwrap_or_else(|reason| panic!("{}: {reason}", self.name));
            let result = runner.run_one(tree, |input| {
                let asked = now();
                property(&input);
                slowest.set(slowest.get().max(now() - asked));
                Ok::<(), TestCaseError>(())
            });
            round.failed = match result {
                Ok(_) => None,
                Err(TestError::Fail(reason, input)) => Some((reason.to_string(), input)),
                Err(TestError::Abort(reason)) => panic!("{}: {reason}", self.name),
            };
            round.inputs += 1;
            round.took = now() - started;
        }
        round.slowest = slowest.get();
        round
    }
}

/// The clock only limits the duration of a round.
#[allow(
    clippy::disallowed_methods,
    reason = "measures the machine, not the program"
)]
fn now() -> Instant {
    Instant::now()
}
