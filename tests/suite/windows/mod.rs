//! Windows as bots ask for them and as operators look at them.

mod asking;
pub(crate) mod bot;
mod budgets;
mod calibration;
mod drawing;
mod forged;
mod formats;
mod looking;
mod operating;
mod pairs;
mod policies;
mod prefix;
mod recall_tool;
mod together;

use crate::harness::Setup;

/// Nothing is summarized: these tests are of windows by themselves.
fn plain() -> Setup {
    Setup::default().section("compaction: { enabled: false }")
}
