//! Windows end to end, for bots and for operators.

mod append_and_window;
pub(crate) mod bot;
mod budgets;
mod calibration;
mod client_fields;
mod drawing;
mod forged;
mod formats;
mod invalid_requests;
mod pairs;
mod policies;
mod prefix;
mod recall_tool;
mod settings;
mod touches;

use crate::harness::Setup;

/// Without compaction, to test windows alone.
fn plain() -> Setup {
    Setup::default().section("compaction: { enabled: false }")
}
