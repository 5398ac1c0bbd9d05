//! Progress of a long command: a line on stderr that is overwritten, if stderr is a terminal.

use std::io::{self, IsTerminal, Write};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::clock;

/// Minimum interval between updates of the line.
const SHOW_EVERY: Duration = Duration::from_millis(100);

/// A progress line. Dropping it clears the line.
pub struct Progress {
    is_shown: bool,
    /// The total amount. `None` if unknown.
    total: Option<u64>,
    done: AtomicU64,
    last_shown: Mutex<Option<Instant>>,
}

impl Progress {
    pub fn new(total: Option<u64>) -> Self {
        Self {
            is_shown: io::stderr().is_terminal(),
            total,
            done: AtomicU64::new(0),
            last_shown: Mutex::new(None),
        }
    }

    /// Adds to the completed amount.
    pub fn add(&self, more: u64) {
        self.done.fetch_add(more, Ordering::Relaxed);
    }

    /// Updates the line, unless it was updated within the last [`SHOW_EVERY`].
    pub fn show(&self, message: impl FnOnce() -> String) {
        if !self.is_shown {
            return;
        }
        let Ok(mut last_shown) = self.last_shown.lock() else {
            return;
        };
        if last_shown.is_some_and(|last| clock::since(last) < SHOW_EVERY) {
            return;
        }
        *last_shown = Some(clock::monotonic());
        let done = self.done.load(Ordering::Relaxed);
        let share = self.total.map_or_else(String::new, |total| {
            format!(
                "{:>3} %  ",
                (done * 100).checked_div(total).unwrap_or(100).min(100)
            )
        });
        // If stderr is closed, the line is lost.
        let _ = write!(io::stderr(), "\r\x1b[K{share}{}", message());
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}
