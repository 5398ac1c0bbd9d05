//! Windows: the turns that the next model call sees, and the report that explains them.
//!
//! A window consists of the system prompt, pinned turns, the first user turn or a summary that
//! covers it, the request that is being answered, and a tail of the newest turns. While it stays
//! within the `watermark` share of its budget, it only grows at its end, so that the provider's
//! prompt cache stays valid. Beyond the watermark, a **cut** reduces it to the `floor`; see
//! [`choose`]. How turns are shown is only decided at a cut.
//!
//! Only cuts count text and decode turns. So does the plan of the next cut if summaries are
//! prepared, once per twentieth of the budget above the soft watermark. All other windows add up
//! cached counts.
//!
//! A system turn at the very start stays when the history drops it, because it may be the bot's
//! system prompt. Later system turns belong to their exchange. The error margin of token counts is
//! taken from `safety_headroom` first. The windows of a session with compaction are cut at
//! `hard_watermark`.

mod block;
mod choose;
mod content;
mod counts;
mod cut;
mod input;
mod items;
mod kept;
mod memory;
mod plan;
mod policy;
mod reduce;
mod report;
mod salience;
mod tail_starts;
#[cfg(test)]
mod tests;
mod trim;
mod words;

pub use counts::ScaleId;
pub use cut::{CachedPlan, Cut, CutKey, ReducedTurn, Shortening, ShownTurn};
pub(crate) use input::percent;
pub use input::{Codec, Overheads, WindowInput, WindowTurn};
pub use kept::WindowTurns;
pub use memory::{SavedCut, SavedWindow, WindowTokens, Windows};
pub use plan::{NextCut, SentWindow, Window, overheads};
pub use policy::{Policy, PolicyName, WindowSettings};
pub use report::{Blocks, Omission, OmissionReason, Report};
