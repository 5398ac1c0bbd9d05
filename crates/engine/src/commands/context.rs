//! The `BuildContext` command: builds the window for the next model call.
//!
//! Tokens of new turns are counted without the session's lock, and the session is read again
//! afterwards. If turns would be left out and the summarizer is local, the command waits for a
//! summary and plans the window again. The block of memories follows the last turn, so that
//! everything before it is a prefix that the next call repeats.

mod compaction;
mod counting;
mod request;

use std::sync::Arc;

use memoird_core::CoreError;
use memoird_core::budget::Budget;
use memoird_core::compaction::{SummaryTokens, Trigger};
use memoird_core::ids::{SessionId, SessionKey};
use memoird_core::limits::Limits;
use memoird_core::nonce::Nonce;
use memoird_core::seq_ranges::SeqRanges;
use memoird_core::session::Session;
use memoird_core::turn::Turn;
use memoird_core::window::{
    Codec, NextCut, Policy as WindowPolicy, Window, WindowInput, WindowSettings,
};
use memoird_formats::model::MessageRules;
use memoird_formats::tokens::{Calibration, Charge};
use memoird_store::encoding;

use super::handle::Commands;
use crate::compaction::CompactionRequest;
use crate::error::EngineError;
use crate::models::{Model, count_turns, digest};
use crate::sessions::{
    Decision, Effect, SessionRef, SessionVersion, SessionView, Update, UpdateOptions,
};
use crate::tenants::Tenant;
use crate::window_memories::{MemoryBlock, RecalledMemories, SessionPoint, WindowRoom};

use counting::is_short;

pub(super) use counting::TokenCounting;
pub use request::{ContextOutcome, ContextRequest};

/// Maximum time that a session's last access is journaled ahead: 10 minutes.
const GRAIN_MS_MAX: u64 = 600_000;
/// Exceeds the tokens of any model, and is small enough that no sum of them overflows.
const BUDGET_MAX: u64 = 1 << 61;
/// Upper bound for the prompt and overhead. Exceeds [`BUDGET_MAX`], so it never fits.
const FIXED_MAX: u64 = 1 << 62;
/// The learned surcharge may use at most a quarter of a budget.
const LEARNT_SHARE: u64 = 4;
/// Minimum share of a budget by which the provider counts before the soft watermark is reached.
const COUNT_EARLIER_SHARE: f64 = 0.15;
/// Maximum rounds of counting new turns for one window, as clients may append concurrently.
const COUNTING_ROUNDS_MAX: usize = 64;

/// The inputs of a window.
struct Plan {
    model: Arc<Model>,
    calibration: Calibration,
    policy: WindowPolicy,
    budget: Budget,
    input_budget: u64,
    fixed: u64,
    fixed_digest: u64,
    keep: bool,
    /// Whether other daemons may build the session's next window.
    is_shared: bool,
    peek: bool,
    settings: WindowSettings,
    soft_percent: Option<u8>,
    summary_tokens: Option<SummaryTokens>,
    recalled: Option<Box<dyn RecalledMemories>>,
    /// Model name in the call. Empty for the default model.
    asked_model: String,
    rules: MessageRules,
    /// System prompt and tools for the provider's token counter, if there is one.
    counted_by_provider: Option<(String, String)>,
}

struct BuiltWindow {
    window: Window,
    session: SessionView,
    memories: MemoryBlock,
    nonce: Nonce,
    rewound: SeqRanges,
    next_cut: Option<NextCut>,
    /// Whether it leaves out turns whose summary is in progress.
    awaits_summary: bool,
}

enum WindowAttempt {
    /// With a request for a compaction, if one is due.
    Built(Box<BuiltWindow>, Option<CompactionRequest>),
    Refused(CoreError),
    /// Turns of one version of the session that lack token counts, with the nonce of its windows.
    NeedsCounts {
        turns: Vec<(u64, Arc<[u8]>)>,
        version: SessionVersion,
        nonce: Nonce,
    },
}

impl Commands {
    /// Builds the window for the next model call, after an optional append.
    ///
    /// # Errors
    /// If the session is not live, the model is unknown, the budget has no room, the append is
    /// rejected, or the current turn does not fit.
    pub async fn context(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        mut request: ContextRequest,
    ) -> Result<ContextOutcome, EngineError> {
        let append = request.append.take();
        let memories = request.memories.take();
        let recall_tool = request.recall_tool.take();
        let mut plan = self.plan(tenant, session, request).await?;
        let appended = match append {
            Some(command) => {
                let appended = self.append(tenant, session, command).await?;
                // The append may have reported usage.
                let model = &plan.model.profile.name;
                plan.calibration = tenant.calibrations.of_session(model, session);
                Some(appended)
            }
            None => None,
        };
        if let Some(tool) = recall_tool.filter(|_| !plan.peek) {
            self.answer_recall_calls(tenant, session, &tool, plan.input_budget)
                .await?;
        }
        let mut notes = Vec::new();
        if let Some(memories) = memories {
            let room = WindowRoom {
                session,
                input_budget: plan.input_budget,
                scale: &plan.model.scale,
                peek: plan.peek,
            };
            let recalled = memories.recall(room).await;
            plan.recalled = recalled.memories;
            notes = recalled.notes;
        }
        let session = SessionRef::new(tenant, session);
        let mut outcome = self.window(&session, &plan).await;
        let is_tight = matches!(
            outcome,
            Err(EngineError::Core(CoreError::CurrentTurnTooLarge { .. }))
        );
        if is_tight && plan.recalled.take().is_some() {
            notes.push("there is no room for memories".to_owned());
            outcome = self.window(&session, &plan).await;
        }
        let mut built = outcome.inspect_err(|error| {
            if matches!(error, EngineError::Core(_)) && !plan.peek {
                tenant.stats.windows.lock().refused += 1;
            }
        })?;
        if !plan.peek {
            tenant.stats.windows.lock().count(&built.window);
        }
        let report = &mut built.window.report;
        report.degraded |= !notes.is_empty();
        report.notes.append(&mut notes);
        report.notes.extend(plan.relative_note());
        Ok(ContextOutcome {
            session: built.session,
            appended,
            turns: built.window.turns,
            rules: plan.rules,
            cache_breakpoints: built.window.cache_breakpoints,
            memories: built.memories,
            next_cut: built.next_cut,
            report: built.window.report,
            nonce: built.nonce,
            rewound: built.rewound,
        })
    }

    /// Validates the request before anything is changed.
    async fn plan(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        request: ContextRequest,
    ) -> Result<Plan, EngineError> {
        let settings = **self.shared.window_settings.load();
        let compaction_policy = tenant.policy().compaction;
        let models = &self.shared.models;
        let model = models.current().get(&request.model)?;
        let budget = model.profile.budget.overridden(request.budget);
        let input_budget = budget.input(request.attempt)?;
        let prompts = &tenant.prompts;
        let fixed_digest = digest(&[&request.system, &request.tools_json]);
        let is_counted = model.counter.is_some() && !request.peek;
        let counted_by_provider =
            is_counted.then(|| (request.system.clone(), request.tools_json.clone()));
        let key = (model.scale_id, fixed_digest, request.format);
        let prompt_tokens = match prompts.get(key) {
            Some(known) => known,
            None => {
                let (scale, format) = (model.scale.clone(), request.format);
                let (system, tools_json) = (request.system, request.tools_json);
                let bytes = system.len() + tools_json.len();
                // Includes the fixed cost of a request.
                let count = move || {
                    scale.request() + scale.system(&system) + scale.tools(&tools_json, format)
                };
                let tokens = self.shared.counting.count(tenant, bytes, count).await?;
                prompts.put(key, tokens);
                tokens
            }
        };
        Ok(Plan {
            policy: request.policy.unwrap_or(settings.policy()),
            settings: compaction::window_settings(settings, &compaction_policy),
            soft_percent: compaction::soft_percent(
                &compaction_policy,
                self.shared.compaction_queue.is_local(),
                is_counted.then(|| model.scale.margin().max(COUNT_EARLIER_SHARE)),
            ),
            summary_tokens: compaction_policy
                .enabled
                .then_some(compaction_policy.summary_tokens),
            calibration: tenant.calibrations.of_session(&model.profile.name, session),
            keep: !request.peek && request.attempt == 0,
            is_shared: self.shared.sessions.are_shared(),
            peek: request.peek,
            rules: model.profile.rules_of(&request.model, request.format),
            model,
            budget,
            input_budget,
            fixed: prompt_tokens
                .saturating_add(request.overhead_tokens)
                .min(FIXED_MAX),
            fixed_digest,
            recalled: None,
            asked_model: request.model,
            counted_by_provider,
        })
    }

    async fn window(&self, session: &SessionRef, plan: &Plan) -> Result<BuiltWindow, EngineError> {
        let counting = &self.shared.counting;
        let mut turn = None;
        let (mut has_run_compaction, mut has_awaited_summary) = (false, false);
        for _ in 0..COUNTING_ROUNDS_MAX {
            match self
                .try_build(session, plan, has_run_compaction || has_awaited_summary)
                .await?
            {
                WindowAttempt::Built(built, None) => {
                    let queue = &self.shared.compaction_queue;
                    let may_wait = built.awaits_summary && queue.is_local();
                    if !may_wait || std::mem::replace(&mut has_awaited_summary, true) {
                        return Ok(*built);
                    }
                    queue.wait_for(session).await;
                }
                WindowAttempt::Built(built, Some(request)) => {
                    let queue = &self.shared.compaction_queue;
                    let may_wait = is_urgent(&request) && queue.is_local();
                    if !may_wait || std::mem::replace(&mut has_run_compaction, true) {
                        queue.request(request);
                        return Ok(*built);
                    }
                    // A local summarizer is fast. Summarize what the window leaves out, and plan it
                    // again.
                    queue.run_now(request).await;
                }
                WindowAttempt::Refused(refusal) => return Err(refusal.into()),
                WindowAttempt::NeedsCounts {
                    turns,
                    version,
                    nonce,
                } => {
                    let bytes = turns.iter().map(|(_, turn)| turn.len()).sum();
                    if turn.is_none() && !is_short(bytes) {
                        // Another call may be counting them. Wait for it, and read the session
                        // again.
                        turn = Some(counting.turn_of(session).await);
                        continue;
                    }
                    let scale = plan.model.scale.clone();
                    let count = move || count_turns(&scale, turns, nonce);
                    let counts = counting.count(&session.tenant, bytes, count).await?;
                    // The session may have been reset or discarded while its turns were counted.
                    self.shared.sessions.annotate(session, version, |session| {
                        if let Some(windows) = session.windows_mut() {
                            windows.note_counts(plan.model.scale_id, counts);
                        }
                    });
                }
            }
        }
        Err(EngineError::RetriesExhausted)
    }

    /// Builds the window, or returns the turns that must be counted first.
    ///
    /// `is_again` means that the previous window was not sent, so its effects are undone.
    async fn try_build(
        &self,
        session: &SessionRef,
        plan: &Plan,
        is_again: bool,
    ) -> Result<WindowAttempt, EngineError> {
        let mut request = None;
        let is_local = self.shared.compaction_queue.is_local();
        let built = self
            .shared
            .sessions
            .update(session, UpdateOptions::optional(), |update| {
                request = None;
                if is_again
                    && plan.keep
                    && let Some(windows) = update.session.windows_mut()
                {
                    windows.take_back(&plan.model.profile.name, plan.policy);
                }
                let looked_at = plan.policy.looks_at(plan.input_budget);
                let uncounted = update.session.uncounted(plan.model.scale_id, looked_at);
                if !uncounted.is_empty() {
                    let uncounted = WindowAttempt::NeedsCounts {
                        turns: uncounted,
                        version: update.version,
                        nonce: update.session.nonce(),
                    };
                    return Ok::<_, EngineError>(Decision::intermediate(uncounted));
                }
                let scale = &plan.model.scale;
                let weigh = |turn: &Turn| scale.turn(turn);
                let last_charge = update.session.last_charge(&plan.model.profile.name);
                let nonce = update.session.nonce();
                let limits = update.session.limits(&update.policy.limits);
                let input = plan.plan_input(&limits, last_charge, nonce, &weigh);
                let mut window = match update.session.window(&input) {
                    Ok(window) => window,
                    Err(refusal) => {
                        return Ok(Decision::unused(WindowAttempt::Refused(refusal), None));
                    }
                };
                compaction::explain(&mut window, update.session, &update.policy.compaction);
                plan.widen_margin(&mut window);
                let memories = plan.add_memories(&mut window, update.key, update.session);
                let mut effect = None;
                let mut next_cut = None;
                if plan.peek {
                    next_cut = update.session.next_cut(&input).ok().flatten();
                }
                let mut awaits_summary = false;
                if !plan.peek {
                    request =
                        plan.compaction_request(session, update, &window, memories.tokens, &input);
                    awaits_summary = compaction::awaits_summary(&window, update.session);
                    let has_request = request.as_ref().is_some_and(is_urgent);
                    let waits = (has_request || awaits_summary) && is_local && !is_again;
                    // A window that is built again is not sent.
                    if !waits {
                        effect = plan.note_use(update, &window, &input);
                    }
                }
                let finished = Box::new(BuiltWindow {
                    awaits_summary,
                    window,
                    session: update.view(),
                    memories,
                    nonce,
                    rewound: update
                        .session
                        .history()
                        .rewound()
                        .cloned()
                        .unwrap_or_default(),
                    next_cut,
                });
                let built = WindowAttempt::Built(finished, None);
                Ok(if plan.peek {
                    Decision::unused(built, None)
                } else {
                    Decision::used(built, effect)
                })
            });
        Ok(match built.await? {
            WindowAttempt::Built(built, _) => WindowAttempt::Built(built, request),
            other => other,
        })
    }
}

/// Whether the window leaves out turns that the requested summary will cover.
fn is_urgent(request: &CompactionRequest) -> bool {
    request.trigger == Trigger::Reactive
}

impl Plan {
    fn plan_input<'a>(
        &'a self,
        limits: &'a Limits,
        last_charge: Option<(u64, u64)>,
        nonce: Nonce,
        weigh: &'a dyn Fn(&Turn) -> u64,
    ) -> WindowInput<'a> {
        let memories = self
            .recalled
            .as_ref()
            .map_or(0, |recalled| recalled.tokens());
        let factor = self.calibration.factor();
        let margin = self.calibration.margin(self.model.scale.margin());
        let learnt = self.learnt(last_charge);
        WindowInput {
            model: &self.model.profile.name,
            model_budget: self.budget,
            policy: self.policy,
            input_budget: self.input_budget,
            budget: counted_budget(
                self.input_budget,
                self.budget.safety_headroom,
                factor,
                margin,
                self.allowance(),
            ),
            fixed: self
                .fixed
                .saturating_add_signed(learnt)
                .saturating_add(memories),
            memories,
            learnt,
            fixed_digest: self.fixed_digest,
            factor,
            margin,
            settings: &self.settings,
            limits,
            scale: self.model.scale_id,
            overheads: self.model.overheads(),
            weigh,
            nonce,
            codec: Codec {
                open: encoding::open,
                seal: encoding::encode_with_seq,
            },
            keep: self.keep,
            is_shared: self.is_shared,
            soft_percent: self.soft_percent,
            summary_tokens: self.summary_tokens,
        }
    }

    /// Counted tokens for what the provider adds to each request, as learned from reported usage.
    ///
    /// Limited to a quarter of the budget, so that a wrong report does not prevent a window.
    #[allow(clippy::cast_possible_truncation, reason = "bounded above")]
    fn learnt(&self, last_charge: Option<(u64, u64)>) -> i64 {
        let surcharge = last_charge.map_or(0.0, |(counted, charged)| {
            self.calibration.surcharge(Charge { counted, charged })
        });
        let charged = self.calibration.offset() + surcharge;
        let most = (self.input_budget / LEARNT_SHARE) as f64;
        let counted = charged.min(most) / self.calibration.factor();
        counted.max(-(self.fixed as f64)) as i64
    }

    /// Note that the profile of a related model is used.
    fn relative_note(&self) -> Option<String> {
        let (asked, profile) = (&self.asked_model, &self.model.profile.name);
        (!asked.is_empty() && asked != profile).then(|| {
            format!(
                "no profile for model {asked:?}: using {profile:?}, matched by its name's start"
            )
        })
    }

    /// Tokens reserved for tokens of the provider that cannot be counted.
    fn allowance(&self) -> f64 {
        let unseen = self.model.scale.unseen();
        self.calibration.allowance(unseen, self.input_budget)
    }

    /// Adds the allowance to the reported margin, as a share of this window.
    fn widen_margin(&self, window: &mut Window) {
        let report = &mut window.report;
        let tokens = report.blocks.total().max(1) as f64;
        report.token_margin += self.allowance() / tokens;
    }

    /// Adds the recalled memories that the window does not already contain.
    fn add_memories(
        &self,
        window: &mut Window,
        key: &SessionKey,
        session: &Session,
    ) -> MemoryBlock {
        let Some(recalled) = &self.recalled else {
            return MemoryBlock::default();
        };
        let point = SessionPoint {
            session: &key.session,
            generation: session.head().generation,
            last_seq: session.head().last_seq,
            rewound: session.history().rewound(),
            nonce: session.nonce(),
        };
        let block = recalled.block(window, point, &self.model.scale);
        window.hold_memories(block.tokens);
        block
    }

    /// Records that the session was used for a window. Returns the change to write, if any.
    fn note_use(
        &self,
        update: &mut Update<'_>,
        window: &Window,
        input: &WindowInput<'_>,
    ) -> Option<Effect> {
        if let Some(windows) = update.session.windows_mut() {
            let counted = window.counted.saturating_add_signed(-input.learnt);
            windows.note_sent(&self.model.profile.name, self.policy, counted);
        }
        let ttl_ms = update.tenant.ttl_ms(update.session.head());
        // Other daemons list sessions by their last use, and continue from this window.
        let grain_ms = if self.is_shared {
            0
        } else {
            (ttl_ms / 64).clamp(1, GRAIN_MS_MAX)
        };
        let change = update
            .session
            .look(update.now, grain_ms, update.may_note_use);
        change.map(Effect::change)
    }
}

/// Counted tokens that a window may use: the budget less margin and allowance, over the factor.
///
/// The headroom covers margin and allowance first.
#[allow(clippy::cast_possible_truncation)]
fn counted_budget(input: u64, headroom: u64, factor: f64, margin: f64, allowance: f64) -> u64 {
    let whole = (input as f64 + headroom as f64 - allowance).max(1.0);
    let input_max = whole / (1.0 + margin);
    ((input_max.min(input as f64) / factor) as u64).min(BUDGET_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calibration_margin_is_taken_from_headroom_first() {
        let budget = |headroom, factor, margin, allowance| {
            counted_budget(100_000, headroom, factor, margin, allowance)
        };
        assert_eq!(budget(2_000, 1.0, 0.0, 0.0), 100_000);
        assert_eq!(budget(2_000, 1.0, 0.02, 0.0), 100_000);
        assert_eq!(budget(2_000, 1.0, 0.10, 0.0), 92_727);
        assert_eq!(budget(0, 1.25, 0.0, 0.0), 80_000);
        assert_eq!(budget(2_000, 1.0, 0.0, 2_000.0), 100_000);
        assert_eq!(budget(2_000, 1.0, 0.0, 3_000.0), 99_000);
    }
}
