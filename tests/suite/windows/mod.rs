//! Windows end to end, for bots and for operators.

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

/// Without compaction, to test windows alone.
fn plain() -> Setup {
    Setup::default().section("compaction: { enabled: false }")
}
