//! Building a window: what the next model call sees.

mod asks;
mod compaction;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use memoird_core::CoreError;
use memoird_core::change::ChangeSet;
use memoird_core::ids::{Generation, SessionId, SessionKey};
use memoird_core::limits::Limits;
use memoird_core::model::Budget;
use memoird_core::session::{ModelUsage, Session};
use memoird_core::tokens::{Calibration, Scale};
use memoird_core::turn::{Turn, estimate_tokens};
use memoird_core::window::{Ask, Codec, Policy as WindowPolicy, SoftMark, Window, WindowSettings};
use memoird_store::encoding;

use crate::append::ATTEMPTS;
use crate::cell::SessionCell;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::long_term::{Recalled, Told};
use crate::models::Model;
use crate::read::SessionView;
use crate::tenant::Tenant;

pub use asks::{ContextConfig, ContextModel, ContextOutcome, ContextRequest};

/// What is counted where it stands; counting more takes longer than a hand-over.
const INLINE_BYTES_MAX: usize = 32 << 10;
/// How far ahead a session's last access is written, at most: 10 minutes.
const GRAIN_MS_MAX: u64 = 600_000;
/// More tokens than any model takes, and few enough that no sum of them overflows.
const BUDGET_MAX: u64 = 1 << 61;
/// What a bot adds is at most so much: it never fits.
const FIXED_MAX: u64 = 1 << 62;

/// What a window is built from.
struct Plan {
    model: Arc<Model>,
    calibration: Calibration,
    policy: WindowPolicy,
    budget: Budget,
    input_budget: u64,
    fixed: u64,
    fixed_digest: u64,
    keep: bool,
    peek: bool,
    settings: WindowSettings,
    soft: Option<SoftMark>,
    /// What is to be told of memories.
    recalled: Option<Recalled>,
    /// Where the provider can count: what it is to count beside the turns.
    counted_by_provider: Option<(String, String)>,
}

/// One life of a session in memory: another one's turns have the same seqs.
type Life = (Generation, u32);

/// A look at a session for a window.
enum Look {
    Done(Box<Looked>),
    NeedsLoad,
    /// Turns that have to be counted first, and whose they are.
    Uncounted(Vec<(u64, Arc<[u8]>)>, Life),
}

/// A session as it was when somebody looked, with what it must wait for to be true.
struct Looked {
    answer: Result<(Window, SessionView, Told), CoreError>,
    ticket: u64,
    epoch: u32,
    /// What was written of the look itself.
    touch: u64,
}

impl Engine {
    /// Builds the window for the next model call, after an append where one is given.
    ///
    /// # Errors
    /// An unknown model, a budget without room, [`EngineError::SessionNotFound`], what the
    /// append may be refused for, a current turn that does not fit.
    pub async fn context(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        mut request: ContextRequest,
    ) -> Result<ContextOutcome, EngineError> {
        let (append, memories) = (request.append.take(), request.memories.take());
        let memories = memories.map(|ask| self.checked_recall(ask)).transpose()?;
        let mut plan = self.plan(tenant, request).await?;
        let appended = match append {
            Some(command) => {
                let appended = self.append(tenant, session, command).await?;
                // What the provider charged may just have been said.
                plan.calibration = tenant.calibration(&plan.model.profile.name);
                Some(appended)
            }
            None => None,
        };
        let mut notes = Vec::new();
        if let Some(ask) = memories {
            let room = (plan.input_budget, &plan.model.scale, plan.peek);
            (plan.recalled, notes) = self.recall_for_window(tenant, session, ask, room).await;
        }
        let mut built = self.window(tenant, session, &plan).await;
        let is_tight = matches!(
            built,
            Err(EngineError::Core(CoreError::CurrentTurnTooLarge { .. }))
        );
        if is_tight && plan.recalled.take().is_some() {
            notes.push("there is no room for memories".to_owned());
            built = self.window(tenant, session, &plan).await;
        }
        let (mut window, view, told) = built.inspect_err(|error| {
            if matches!(error, EngineError::Core(_)) && !plan.peek {
                tenant.stats.windows.refused.fetch_add(1, Ordering::Relaxed);
            }
        })?;
        if !plan.peek {
            tenant.stats.windows.count(&window);
        }
        window.report.degraded |= !notes.is_empty();
        window.report.notes.append(&mut notes);
        let Window {
            turns,
            cache_breakpoints,
            report,
            ..
        } = window;
        Ok(ContextOutcome {
            session: view,
            appended,
            turns,
            cache_breakpoints,
            memories: told.hits,
            memories_text: told.text,
            report,
        })
    }

    /// Checks what is asked, before anything is done.
    async fn plan(
        &self,
        tenant: &Arc<Tenant>,
        request: ContextRequest,
    ) -> Result<Plan, EngineError> {
        let config = self.shared.config.load_full();
        let model = self.shared.models.load().get(&request.model)?;
        let budget = model.profile.budget.overridden(request.budget);
        let input_budget = budget.input(request.attempt)?;
        let fixed_digest = self
            .shared
            .prompts
            .digest([&request.system, &request.tools_json]);
        let is_counted = model.counter.is_some() && !request.peek;
        let counted_by_provider =
            is_counted.then(|| (request.system.clone(), request.tools_json.clone()));
        let prompts = self.prompt_tokens(&model, request.system, request.tools_json, fixed_digest);
        let fixed = prompts
            .await?
            .saturating_add(request.overhead_tokens)
            .min(FIXED_MAX);
        Ok(Plan {
            policy: request.policy.unwrap_or(config.context.settings.policy()),
            settings: compaction::settings(&config),
            soft: compaction::soft(&config),
            calibration: tenant.calibration(&model.profile.name),
            keep: !request.peek && request.attempt == 0,
            peek: request.peek,
            model,
            budget,
            input_budget,
            fixed,
            fixed_digest,
            recalled: None,
            counted_by_provider,
        })
    }

    /// Tokens of the system prompt, the tool schemas, and what every request costs.
    async fn prompt_tokens(
        &self,
        model: &Arc<Model>,
        system: String,
        tools_json: String,
        digest: u64,
    ) -> Result<u64, EngineError> {
        if let Some(known) = self.shared.prompts.get(model.scale_id, digest) {
            return Ok(known);
        }
        let (bytes, scale) = (system.len() + tools_json.len(), model.scale.clone());
        let count = move || scale.request() + scale.system(&system) + scale.tools(&tools_json);
        let tokens = self.counting(bytes, count).await?;
        self.shared.prompts.put(model.scale_id, digest, tokens);
        Ok(tokens)
    }

    /// Counts, and not on a thread of the executor when that takes long.
    async fn counting<T: Send + 'static>(
        &self,
        bytes: usize,
        count: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, EngineError> {
        match bytes <= INLINE_BYTES_MAX {
            true => Ok(count()),
            false => self.shared.blocking.run(count).await,
        }
    }

    async fn window(
        &self,
        tenant: &Arc<Tenant>,
        session: &SessionId,
        plan: &Plan,
    ) -> Result<(Window, SessionView, Told), EngineError> {
        let not_found = || EngineError::SessionNotFound {
            session: session.clone(),
        };
        let key = SessionKey {
            tenant: tenant.id.clone(),
            session: session.clone(),
        };
        for _ in 0..ATTEMPTS {
            let cell = self.shared.table.get(&key).ok_or_else(not_found)?;
            if self.end_if_expired(&cell).await? {
                return Err(not_found());
            }
            match self.look_for_window(&cell, plan) {
                Look::Done(looked) => {
                    self.shared.journal.visible(looked.ticket).await;
                    if cell.lock().epoch == looked.epoch {
                        // Else a crash right now would make the session older than it is.
                        self.shared.journal.visible(looked.touch).await;
                        return Ok(looked.answer?);
                    }
                }
                Look::Uncounted(turns, life) => {
                    let (bytes, scale) = (
                        turns.iter().map(|(_, turn)| turn.len()).sum(),
                        plan.model.scale.clone(),
                    );
                    let counted = self
                        .counting(bytes, move || count_turns(&scale, turns))
                        .await?;
                    let mut inner = cell.lock();
                    let epoch = inner.epoch;
                    let session = inner.session_mut();
                    // It may have been reset, or thrown away, while its turns were counted.
                    let same = session.filter(|session| (session.head().generation, epoch) == life);
                    if let Some(session) = same {
                        session.note_counts(plan.model.scale_id, counted);
                    }
                }
                Look::NeedsLoad => {
                    let is_gone = cell.lock().is_gone();
                    match is_gone && self.is_gone_for_good(&cell).await {
                        true => tokio::task::yield_now().await,
                        false => self.load(&cell).await?,
                    }
                }
            }
        }
        Err(EngineError::NoPlace)
    }

    fn look_for_window(&self, cell: &Arc<SessionCell>, plan: &Plan) -> Look {
        let mut inner = cell.lock();
        let (now, ticket, epoch) = (self.shared.machine.now(), inner.ticket, inner.epoch);
        let Some(session) = inner.session_mut() else {
            return Look::NeedsLoad;
        };
        let uncounted = session.uncounted(plan.model.scale_id, plan.input_budget);
        if !uncounted.is_empty() {
            let life = (session.head().generation, epoch);
            return Look::Uncounted(uncounted, life);
        }
        let policy = cell.tenant.policy();
        let scale = &plan.model.scale;
        let weigh = |turn: &Turn| scale.turn(turn);
        let ask = plan.ask(&policy.limits, &weigh);
        let mut window = match session.window(&ask) {
            Ok(window) => window,
            Err(error) => {
                return Look::Done(Box::new(Looked {
                    answer: Err(error),
                    ticket,
                    epoch,
                    touch: 0,
                }));
            }
        };
        compaction::explain(&mut window, session, &self.shared.config.load());
        let place = (
            &cell.key.session,
            session.head().generation,
            session.head().last_seq,
        );
        let told = plan.recalled.as_ref();
        let told = told.map(|recalled| recalled.tell(&mut window, place, &plan.model.scale));
        let told = told.unwrap_or_default();
        let (mut touch, mut wish) = (0, None);
        if !plan.peek {
            let budget = ask.budget;
            wish = plan.wish(session, &window, budget, now.steady, &policy.compaction);
        }
        if !plan.keep && !plan.peek {
            session.note_sent(&plan.model.profile.name, plan.policy, window.counted);
        }
        if !plan.peek {
            let grain_ms = (cell.tenant.ttl_ms() / 64).clamp(1, GRAIN_MS_MAX);
            // Where the queue is full, nothing of this is worth waiting for, and where
            // commits fail, nothing of it is worth the session.
            let permit = self.shared.journal.permit_now(0);
            let may_write = permit.is_some() && !self.shared.journal.is_failing();
            let change = session.look(now, grain_ms, may_write);
            if let (Some(permit), Some(change)) = (permit, change) {
                let (set, cells) = (
                    ChangeSet {
                        changes: vec![change],
                    },
                    vec![Arc::clone(cell)],
                );
                touch = self.shared.journal.submit(permit, set, cells, 0).ticket;
                inner.ticket = touch;
            }
        }
        let Some(head) = inner.head() else {
            return Look::NeedsLoad;
        };
        let view = SessionView::of(&cell.key, head, &cell.tenant, now);
        drop(inner);
        if !plan.peek {
            cell.tenant.idle.touch(cell, now.steady);
        }
        if let Some(wish) = wish {
            self.shared.compactions.want(cell, wish);
        }
        Look::Done(Box::new(Looked {
            answer: Ok((window, view, told)),
            ticket,
            epoch,
            touch,
        }))
    }

    /// Learns from what a provider charged for the last window of a session.
    pub(crate) fn calibrate(&self, tenant: &Tenant, session: &mut Session, usage: &ModelUsage) {
        let models = self.shared.models.load();
        let Some(windows) = session.windows_mut() else {
            return;
        };
        let charged = windows.charged(|profile| models.may_mean(&usage.model, profile));
        if let Some((model, counted)) = charged {
            tenant.calibrate(&model, counted, usage.input_tokens);
        }
    }
}

impl Plan {
    fn ask<'a>(&'a self, limits: &'a Limits, weigh: &'a dyn Fn(&Turn) -> u64) -> Ask<'a> {
        let memories = self.recalled.as_ref().map_or(0, Recalled::tokens);
        let factor = self.calibration.factor();
        let margin = self.calibration.margin(self.model.scale.margin());
        Ask {
            model: &self.model.profile.name,
            model_budget: self.budget,
            policy: self.policy,
            input_budget: self.input_budget,
            budget: counted_budget(
                self.input_budget,
                self.budget.safety_headroom,
                factor,
                margin,
            ),
            fixed: self.fixed.saturating_add(memories),
            memories,
            fixed_digest: self.fixed_digest,
            factor,
            margin,
            settings: &self.settings,
            limits,
            scale: self.model.scale_id,
            overheads: self.model.overheads(),
            weigh,
            codec: Codec {
                open: encoding::open,
                seal: encoding::seal_again,
            },
            keep: self.keep,
            soft: self.soft,
        }
    }
}

/// What a window may use as it is counted here: what the provider takes, by the factor, and
/// less what the margin exceeds the headroom that is kept free for it anyway.
#[allow(clippy::cast_possible_truncation)]
fn counted_budget(input: u64, headroom: u64, factor: f64, margin: f64) -> u64 {
    let input_max = (input as f64 + headroom as f64) / (1.0 + margin);
    ((input_max.min(input as f64) / factor) as u64).min(BUDGET_MAX)
}

fn count_turns(scale: &Scale, turns: Vec<(u64, Arc<[u8]>)>) -> Vec<(u64, u64)> {
    let count = |(seq, content): (u64, Arc<[u8]>)| {
        let turn = encoding::open(&content);
        // One that is damaged is not small.
        let tokens = turn.map_or(u64::from(estimate_tokens(content.len())), |t| {
            scale.turn(&t)
        });
        (seq, tokens)
    };
    turns.into_iter().map(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_margin_is_taken_from_the_headroom_first() {
        assert_eq!(counted_budget(100_000, 2_000, 1.0, 0.0), 100_000);
        assert_eq!(counted_budget(100_000, 2_000, 1.0, 0.02), 100_000);
        assert_eq!(counted_budget(100_000, 2_000, 1.0, 0.10), 92_727);
        assert_eq!(counted_budget(100_000, 0, 1.25, 0.0), 80_000);
    }
}
