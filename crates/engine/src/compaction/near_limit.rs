//! Near the budget limit, the provider's own token count decides whether a session is compacted.

use std::sync::Arc;

use memoird_core::turn::MessageFormat;
use memoird_core::turn::Turn;
use memoird_formats::messages::{RenderOptions, render};
use memoird_formats::tokens::Charge;
use memoird_store::encoding;

use super::Compaction;
use crate::models::Model;
use crate::sessions::SessionRef;
use crate::token_counter::CountRequest;

/// A window near the soft watermark, with the input for the provider's token counter.
#[derive(Debug)]
pub(crate) struct NearLimit {
    pub(crate) model: Arc<Model>,
    pub(crate) system: String,
    pub(crate) tools_json: String,
    /// Encoded turns of the window.
    pub(crate) turns: Vec<Arc<[u8]>>,
    /// Locally counted tokens.
    pub(crate) counted: u64,
    /// A compaction is due from this number of tokens, as counted by the provider.
    pub(crate) due_tokens: u64,
}

impl NearLimit {
    fn count_request(&self, format: MessageFormat) -> CountRequest {
        let turns: Vec<Turn> = self
            .turns
            .iter()
            .filter_map(|content| encoding::open(content))
            .collect();
        let options = RenderOptions {
            system: &self.system,
            is_request: true,
            rules: self.model.profile.rules_of("", Some(format)),
            ..RenderOptions::default()
        };
        let rendered = render(format, &turns, &options);
        CountRequest {
            system: rendered.system,
            tools_json: self.tools_json.clone(),
            messages_json: rendered.messages_json,
        }
    }
}

impl Compaction {
    /// Whether a compaction is due by the provider's count, or by the estimate if the count fails.
    pub(super) async fn is_due(&self, session: &SessionRef, near_limit: &NearLimit) -> bool {
        let model = &near_limit.model;
        let tenant = &session.tenant;
        let name = &model.profile.name;
        if let Some(counter) = &model.counter {
            let request = near_limit.count_request(counter.format());
            let now = || self.sessions().now().steady;
            let counts = &self.shared.remote_counts;
            let counted = counts.count(&tenant.id, counter, request, now);
            if let Some(tokens) = counted.await {
                let counted = near_limit.counted;
                let charged = tokens;
                let charge = Charge { counted, charged };
                tenant.calibrations.observe_provider(name, charge);
                return tokens >= near_limit.due_tokens;
            }
        }
        let calibration = tenant.calibrations.shared(name);
        calibration.expected(near_limit.counted) >= near_limit.due_tokens as f64
    }
}
