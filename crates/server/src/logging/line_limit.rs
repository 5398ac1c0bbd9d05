//! Limits log lines per kind, so that an error in every call does not fill the disk.
//!
//! A kind is one place in the code.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tracing::callsite::Identifier;
use tracing::{Event, Metadata, Subscriber, warn};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::DroppedLines;

/// Passes a limited number of lines per minute and kind. Clones share the limit.
#[derive(Clone, Debug)]
pub(super) struct LineLimit {
    shared: Arc<LineLimitInner>,
}

#[derive(Debug)]
struct LineLimitInner {
    /// Maximum lines of one kind per minute; 0 means no limit.
    lines_max: AtomicU64,
    lost: Arc<DroppedLines>,
    /// Counts of this minute, by place in the code.
    kinds: Mutex<HashMap<Identifier, LineKind>>,
}

#[derive(Debug)]
struct LineKind {
    metadata: &'static Metadata<'static>,
    lines: u64,
}

impl LineLimit {
    pub(super) fn new(lines_max: u64, lost: Arc<DroppedLines>) -> Self {
        let shared = LineLimitInner {
            lines_max: AtomicU64::new(lines_max),
            lost,
            kinds: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// Changes the limit; 0 means no limit.
    pub(super) fn set(&self, lines_max: u64) {
        self.shared.lines_max.store(lines_max, Ordering::Relaxed);
    }

    /// Resets the counts, and logs how many lines were dropped.
    pub(super) fn begin_minute(&self) {
        let kinds = std::mem::take(&mut *self.shared.kinds.lock());
        let lines_max = self.lines_max();
        for kind in kinds.into_values() {
            let left_out = kind.lines.saturating_sub(lines_max);
            if left_out > 0 {
                let (target, line) = (kind.metadata.target(), kind.metadata.line());
                warn!(
                    left_out,
                    of = target,
                    line,
                    "log lines of one kind were dropped: over the limit per minute"
                );
            }
        }
    }

    /// Counts a line. Returns false if it exceeds the limit.
    fn admit(&self, metadata: &'static Metadata<'static>) -> bool {
        let lines_max = self.lines_max();
        let mut kinds = self.shared.kinds.lock();
        let kind = kinds
            .entry(metadata.callsite())
            .or_insert(LineKind { metadata, lines: 0 });
        kind.lines += 1;
        let is_taken = kind.lines <= lines_max;
        drop(kinds);
        if !is_taken {
            DroppedLines::count(&self.shared.lost.over_limit);
        }
        is_taken
    }

    fn lines_max(&self) -> u64 {
        match self.shared.lines_max.load(Ordering::Relaxed) {
            0 => u64::MAX,
            lines_max => lines_max,
        }
    }
}

impl<S: Subscriber> Layer<S> for LineLimit {
    fn event_enabled(&self, event: &Event<'_>, _: Context<'_, S>) -> bool {
        self.admit(event.metadata())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use tracing_subscriber::fmt::{self, MakeWriter};
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    /// Captured log output.
    #[derive(Clone, Default)]
    struct Text(Arc<Mutex<Vec<u8>>>);

    impl Text {
        fn count(&self, words: &str) -> usize {
            String::from_utf8_lossy(&self.0.lock())
                .matches(words)
                .count()
        }
    }

    impl io::Write for Text {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl MakeWriter<'_> for Text {
        type Writer = Self;

        fn make_writer(&self) -> Self {
            self.clone()
        }
    }

    #[test]
    fn lines_above_limit_are_dropped_and_counted() {
        let (text, lost) = (Text::default(), Arc::<DroppedLines>::default());
        let limit = LineLimit::new(3, Arc::clone(&lost));
        let subscriber = tracing_subscriber::registry()
            .with(limit.clone())
            .with(fmt::layer().with_ansi(false).with_writer(text.clone()));
        let over_limit = || lost.over_limit.load(Ordering::Relaxed);
        tracing::subscriber::with_default(subscriber, || {
            for number in 0..10 {
                warn!(number, "the flood");
            }
            warn!("something else");
            assert_eq!(
                (text.count("the flood"), text.count("something else")),
                (3, 1)
            );
            assert_eq!((over_limit(), text.count("left out")), (7, 0));
            limit.begin_minute();
            assert_eq!(text.count("left_out=7"), 1);
            limit.begin_minute();
            assert_eq!(text.count("left_out"), 1, "and once only");
            limit.set(0);
            for _ in 0..10 {
                warn!("without a limit");
            }
            assert_eq!((text.count("without a limit"), over_limit()), (10, 7));
        });
    }
}
