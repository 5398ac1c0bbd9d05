//! How a summary comes about, cheapest first: from the session's notes where they say it all,
//! else from the summarizer, whose answer is not believed before it was checked.

use std::sync::Arc;

use memoird_core::compaction::check::{Facts, Rejection, check};
use memoird_core::compaction::notes::Notes;
use memoird_core::compaction::probe::Probe;
use memoird_core::compaction::transcript::{TranscriptTurn, transcript_turn};
use memoird_core::compaction::{Body, CompactionPolicy, Failure, Summary, acknowledgement};
use memoird_core::session::Snapshot;
use memoird_core::time::Timestamp;
use memoird_core::turn::{Role, Turn, estimate_tokens};
use memoird_formats::tokens::Scale;
use memoird_store::encoding;

use super::attempt::{Ended, Life, Made};
use super::pieces::Summarizing;
use super::{span, stats::Outcome};
use crate::cell::SessionCell;
use crate::engine::Engine;
use crate::machine::Stopwatch;

/// What is said of the user's first words, where nobody sums them up.
const INTENT_BYTES_MAX: usize = 300;
/// Bytes of a span for each token that the summarizer takes at once: about twenty calls, so
/// that their number is never reached. The rest comes with the next summary.
const SPAN_BYTES_PER_TOKEN: u64 = 80;

/// No summary is shorter than so many bytes, and nobody is asked for one that would be longer
/// than what it stands for.
const SPAN_BYTES_MIN: usize = 200;

/// What a summary is made of.
pub(super) struct Material {
    pub(super) turns: Arc<[TranscriptTurn]>,
    /// What windows go on showing, for the probe.
    shown: Vec<TranscriptTurn>,
    /// What was noted up to the end of the span.
    pub(super) notes: Notes,
    /// The last turn of the span: less than was wanted where there was too much to read.
    through_seq: u64,
}

/// Makes a summary of a snapshot, whose turns are true once its ticket is settled.
pub(super) async fn climb(
    engine: &Engine,
    cell: &SessionCell,
    snapshot: &Snapshot,
    life: Life,
) -> Result<Made, Ended> {
    let material = Arc::new(gather(engine, cell, snapshot, life).await?);
    let said: usize = material.turns.iter().map(|turn| turn.text.len()).sum();
    if material.turns.is_empty() || (snapshot.previous.is_none() && said < SPAN_BYTES_MIN) {
        return Err(Ended::Nothing);
    }
    let judge = Judge {
        snapshot: Arc::new(snapshot.clone()),
        material: Arc::clone(&material),
        scale: snapshot
            .scale
            .and_then(|id| engine.shared.models.load().scale(id)),
        policy: cell.tenant.policy().compaction,
        now: engine.shared.machine.now().wall,
    };
    if material.notes.cover(&material.turns)
        && let Ok(made) = judge
            .believe(engine, from_notes(snapshot, &material), "notes")
            .await?
    {
        return Ok(made);
    }
    let config = engine.shared.config.load_full();
    let missing = || Failure {
        reason: "no_summarizer",
        problem: "compaction.summarizer is none".to_owned(),
    };
    let Some(summarizer) = config.compaction.summarizer.clone() else {
        return Err(Ended::Failed(missing(), Outcome::Failed));
    };
    let watch = Stopwatch::start();
    let summarizing = Summarizing {
        engine,
        cell,
        snapshot,
        summarizer: &summarizer,
    };
    let answered =
        tokio::time::timeout(config.compaction.timeout, summarizing.body(&material)).await;
    engine
        .shared
        .stats
        .compaction_seconds
        .observe(watch.seconds());
    let body = match answered {
        Ok(answered) => answered?,
        Err(_) => {
            summarizing.note_provider(false);
            let problem = format!("no summary within {:?}", config.compaction.timeout);
            return Err(Ended::Failed(
                Failure {
                    reason: "timeout",
                    problem,
                },
                Outcome::Failed,
            ));
        }
    };
    let believed = judge.believe(engine, body, summarizer.name()).await?;
    believed.map_err(|rejection| match rejection {
        // What computes here does not lie: so little cannot be said in fewer tokens.
        Rejection::LongerThanTheSpan if !summarizer.is_remote() => Ended::Nothing,
        rejection => Ended::Failed(rejected(&rejection), Outcome::Rejected),
    })
}

pub(super) fn rejected(rejection: &Rejection) -> Failure {
    let problem = match rejection {
        Rejection::NotTheStructure { problem } => problem.clone(),
        Rejection::FieldMissing { field } => format!("{field} is empty"),
        Rejection::IdentifiersLost { lost, of } => {
            format!("{lost} of {of} identifiers of the last turns are lost")
        }
        Rejection::Empty
        | Rejection::CutOff
        | Rejection::LongerThanTheSpan
        | Rejection::OverBudget
        | Rejection::Refusal => "the summarizer's answer was not believed".to_owned(),
    };
    Failure {
        reason: rejection.reason(),
        problem,
    }
}

/// Reads what is to be summarized, as text.
async fn gather(
    engine: &Engine,
    cell: &SessionCell,
    snapshot: &Snapshot,
    life: Life,
) -> Result<Material, Ended> {
    let config = engine.shared.config.load_full();
    let summarizer = config.compaction.summarizer.as_ref();
    let tokens_max = summarizer.map_or(u64::MAX, |summarizer| summarizer.input_tokens_max());
    let bytes_max = usize::try_from(tokens_max.saturating_mul(SPAN_BYTES_PER_TOKEN));
    let bytes_max = bytes_max.unwrap_or(usize::MAX);
    engine.shared.journal.visible(life.ticket).await;
    if !life.is_of(&cell.lock()) {
        return Err(Ended::Discarded);
    }
    let (turns, through_seq) = span::read(engine, cell, snapshot, bytes_max).await?;
    let shown = snapshot.shown.clone();
    let notes = snapshot
        .previous
        .as_ref()
        .map(|last| last.notes.clone())
        .unwrap_or_default();
    let decode = move || {
        let text = |(seq, content): &(u64, Arc<[u8]>)| {
            let turn = encoding::open(content)?;
            Some(transcript_turn(*seq, &turn, content.len()))
        };
        // One that is damaged can be read by nobody.
        let turns: Arc<[TranscriptTurn]> = turns.iter().filter_map(text).collect();
        let mut notes = notes;
        turns.iter().for_each(|turn| notes.note(turn));
        let shown = shown
            .iter()
            .filter_map(|content| text(&(0, Arc::clone(content))))
            .collect();
        Material {
            turns,
            shown,
            notes,
            through_seq,
        }
    };
    engine
        .shared
        .blocking
        .run(decode)
        .await
        .map_err(Ended::Refused)
}

/// What notes say, as a summary: what the last summary said is carried on.
fn from_notes(snapshot: &Snapshot, material: &Material) -> Body {
    let mut body = snapshot
        .previous
        .as_ref()
        .map(|last| last.body.clone())
        .unwrap_or_default();
    if body.session_intent.is_empty() {
        let asked = material.turns.iter().find(|turn| turn.role == Role::User);
        let asked = asked.map_or("", |turn| turn.text.trim());
        body.session_intent = asked[..asked.floor_char_boundary(INTENT_BYTES_MAX)].to_owned();
    }
    if body.narrative.is_empty() {
        body.narrative = "What was decided stands in the notes, step by step.".to_owned();
    }
    body.decisions.clone_from(&material.notes.decisions);
    body.pending_questions
        .clone_from(&material.notes.pending_questions);
    body.files_touched.clone_from(&material.notes.files);
    body
}

/// What checks an answer, where it holds up nobody.
#[derive(Clone)]
struct Judge {
    snapshot: Arc<Snapshot>,
    material: Arc<Material>,
    scale: Option<Scale>,
    policy: CompactionPolicy,
    now: Timestamp,
}

impl Judge {
    /// Checks an answer, and probes what can still be found.
    async fn believe(
        &self,
        engine: &Engine,
        body: Body,
        by: &str,
    ) -> Result<Result<Made, Rejection>, Ended> {
        let (judge, by) = (self.clone(), Box::from(by));
        engine
            .shared
            .blocking
            .run(move || judge.judge(body, by))
            .await
            .map_err(Ended::Refused)
    }

    fn judge(&self, body: Body, by: Box<str>) -> Result<Made, Rejection> {
        let (snapshot, material) = (&self.snapshot, &self.material);
        let before = snapshot.previous.as_ref();
        let turns = before.map_or(0, |last| last.turns) + material.turns.len() as u64;
        let text: Arc<str> = body.text(turns, &material.notes).into();
        let (number, first_seq) = (snapshot.number, snapshot.span.first_seq);
        let (through_seq, made_at, notes) =
            (material.through_seq, self.now, material.notes.clone());
        let summary = Summary {
            number,
            first_seq,
            through_seq,
            turns,
            made_at,
            by,
            body,
            notes,
            text,
        };
        let weigh = |turn: &Turn| self.scale.as_ref().map(|scale| scale.turn(turn));
        let turn_tokens = weigh(&summary.turn());
        let overhead = weigh(&acknowledgement()).unwrap_or(16);
        let tokens_after = turn_tokens.unwrap_or_else(|| self.weigh(&summary.text)) + overhead;
        let said: u64 = material
            .turns
            .iter()
            .map(|turn| self.weigh(&turn.text))
            .sum();
        let tokens_before = said + before.map_or(0, |last| self.weigh(&last.text) + overhead);
        let facts = Facts {
            span: &material.turns,
            previous: before.map(|last| &**last),
            span_tokens: tokens_before,
            tokens: tokens_after,
            room: snapshot.room,
        };
        check(&summary.body, &summary.text, &facts, &self.policy)?;
        let mut left: Vec<&str> = vec![&summary.text];
        left.extend(material.shown.iter().map(|turn| turn.text.as_str()));
        let probe = Probe::of(&material.turns, &left);
        Ok(Made {
            summary: Arc::new(summary),
            tokens_before,
            tokens_after,
            probe,
            turn_tokens,
        })
    }

    fn weigh(&self, text: &str) -> u64 {
        match &self.scale {
            Some(scale) => scale.text(text),
            None => estimate_tokens(text.len()).into(),
        }
    }
}
