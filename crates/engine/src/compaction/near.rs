//! Near the limit: what decides whether a session is compacted is counted where the
//! provider counts.

use std::sync::Arc;

use memoird_core::turn::MessageFormat;
use memoird_core::turn::Turn;
use memoird_formats::messages::{RenderOptions, render};
use memoird_store::encoding;

use crate::cell::SessionCell;
use crate::counter::CountAsk;
use crate::engine::Engine;
use crate::models::Model;

/// A window near the soft watermark, and who can count its tokens for sure.
#[derive(Debug)]
pub(crate) struct Near {
    pub(crate) model: Arc<Model>,
    pub(crate) system: String,
    pub(crate) tools_json: String,
    /// The turns of the window, encoded.
    pub(crate) turns: Vec<Arc<[u8]>>,
    /// Tokens as they were counted here.
    pub(crate) counted: u64,
    /// Tokens as the provider counts them, from which on a compaction is due.
    pub(crate) due_tokens: u64,
}

impl Near {
    /// What the provider is asked.
    fn ask(&self, format: MessageFormat) -> CountAsk {
        let turns: Vec<Turn> = self
            .turns
            .iter()
            .filter_map(|content| encoding::open(content))
            .collect();
        let options = RenderOptions {
            system: &self.system,
            ..RenderOptions::default()
        };
        let rendered = render(format, &turns, &options);
        CountAsk {
            system: rendered.system,
            tools_json: self.tools_json.clone(),
            messages_json: rendered.messages_json,
        }
    }
}

/// True when a compaction is due by the provider's own count. Where that cannot be had, what
/// was counted here decides.
pub(super) async fn is_due(engine: &Engine, cell: &SessionCell, near: &Near) -> bool {
    let model = &near.model;
    let factor = || cell.tenant.calibration(&model.profile.name).factor();
    let estimated = || near.counted as f64 * factor() >= near.due_tokens as f64;
    let Some(counter) = &model.counter else {
        return estimated();
    };
    let ask = near.ask(counter.format());
    match engine.shared.counts.of(engine, counter, ask).await {
        Some(tokens) => {
            cell.tenant
                .calibrate(&model.profile.name, near.counted, tokens);
            tokens >= near.due_tokens
        }
        None => estimated(),
    }
}
