//! Summarizes recorded conversations as compaction does, and prints what came out: one JSON
//! object for each summary. `.ci/ledger.py` measures them.
//!
//! `summaries FILE [BUDGET [JOINED]]`: FILE has a conversation in each line, `{"id", "messages"}`
//! with OpenAI's messages; BUDGET is that of the window, in tokens; so many conversations are
//! JOINED, one behind the other, with the system prompt of the first.

#![allow(
    clippy::cast_possible_truncation,
    clippy::disallowed_methods,
    clippy::print_stdout,
    clippy::unwrap_used
)]

use std::sync::Arc;
use std::time::Instant;

use memoird_core::compaction::notes::Notes;
use memoird_core::compaction::transcript::{TranscriptTurn, transcript_turn};
use memoird_core::compaction::{CompactionPolicy, Summary};
use memoird_core::ids::{Generation, SessionId, TenantId};
use memoird_core::mark::Mark;
use memoird_core::time::Timestamp;
use memoird_core::turn::{MessageFormat, Role};
use memoird_engine::SummaryRequest;
use memoird_formats::messages;
use memoird_formats::tokens::{Estimate, Tokenizer};
use memoird_models::ExtractiveSummarizer;
use serde_json::{Value, json};

/// Exchanges that stay after the last compaction of a conversation.
const KEPT_AT_END: usize = 1;
/// The engine's: a summary may have one part in so many of what the rest of a window leaves.
const SUMMARY_SHARE: usize = 8;

struct Chain {
    counter: Estimate,
    summarizer: ExtractiveSummarizer,
    policy: CompactionPolicy,
    budget: usize,
    /// Tokens of the system prompt, which no share of the budget is for.
    system: usize,
    /// Tokens of the first user turn, which windows show whatever is summarized.
    anchor: usize,
    previous: Option<Arc<Summary>>,
    notes: Notes,
}

fn main() {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let path = args.remove(0);
    let mut numbers = args.iter().map(|number| number.parse().unwrap());
    let budget = numbers.next().unwrap_or(8_000);
    let joined = numbers.next().unwrap_or(1);
    let file = std::fs::read_to_string(path).unwrap();
    let lines = file
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let conversations: Vec<(String, Vec<Value>)> = lines.map(|line| conversation(&line)).collect();
    for group in conversations.chunks(joined) {
        let id = &group[0].0;
        let all = group.iter().enumerate().flat_map(|(at, (_, messages))| {
            let is_said = move |message: &&Value| at == 0 || message["role"] != "system";
            messages.iter().filter(is_said).cloned()
        });
        let messages: Vec<Value> = all.collect();
        let said = Value::Array(messages).to_string();
        let turns = messages::parse(MessageFormat::OpenAi, &said).unwrap();
        let turns = turns.iter().enumerate();
        let turns = turns.map(|(index, turn)| transcript_turn(index as u64, turn, 0));
        Chain::new(budget).run(id, &turns.collect::<Vec<_>>());
    }
}

fn conversation(line: &Value) -> (String, Vec<Value>) {
    let id = line["id"].to_string();
    (id, line["messages"].as_array().unwrap().clone())
}

impl Chain {
    fn new(budget: usize) -> Self {
        Self {
            counter: Estimate::default(),
            summarizer: ExtractiveSummarizer::default(),
            policy: CompactionPolicy::default(),
            budget,
            system: 0,
            anchor: 0,
            previous: None,
            notes: Notes::default(),
        }
    }

    fn tokens(&self, turns: &[TranscriptTurn]) -> usize {
        let texts = turns.iter().map(|turn| self.counter.count(&turn.text) + 4);
        texts.sum()
    }

    /// The first user turn and the system prompt stay; all else is summarized now and then.
    fn run(&mut self, id: &str, turns: &[TranscriptTurn]) {
        let is_user = |turn: &TranscriptTurn| turn.role == Role::User;
        let from = turns
            .iter()
            .position(is_user)
            .map_or(0, |anchor| anchor + 1);
        self.anchor = self.tokens(&turns[from.saturating_sub(1)..from]);
        self.system = self.tokens(&turns[..from]) - self.anchor;
        let (mut start, mut round) = (from, 0);
        for end in from + 1..=turns.len() {
            let shown = self.summary_tokens() + self.tokens(&turns[start..end]);
            let shown = self.system + self.anchor + shown;
            let is_due =
                shown * 100 > self.budget * usize::from(self.policy.soft_watermark_percent);
            let is_last = end == turns.len();
            if !is_last && (!is_due || turns[end - 1].role == Role::Assistant) {
                continue;
            }
            let exchanges = match is_last {
                true => KEPT_AT_END,
                false => self.policy.keep_exchanges as usize,
            };
            let through = self.boundary(turns, start, end, exchanges);
            if through > start {
                round += 1;
                self.compact(id, round, turns, start..through, end);
                start = through;
            }
        }
    }

    fn summary_tokens(&self) -> usize {
        let text = self.previous.as_ref().map_or("", |summary| &summary.text);
        self.counter.count(text)
    }

    /// What a share of the budget beside system prompt and anchor leaves to a summary, in tokens.
    fn left(&self, percent: usize, tail: usize) -> usize {
        let share = self.budget.saturating_sub(self.system + self.anchor) * percent / 100;
        share.saturating_sub(tail)
    }

    fn floor(&self, tail: usize) -> usize {
        self.left(usize::from(self.policy.floor_percent), tail)
    }

    /// Where the tail begins: at a user's turn, else where no call waits for its result.
    fn boundary(&self, turns: &[TranscriptTurn], start: usize, end: usize, most: usize) -> usize {
        let floor = self.floor(0);
        let kept = floor - (self.policy.summary_tokens_max as usize).min(floor / 2);
        let (mut exchanges, mut at) = (0, None);
        for index in (start..end).rev() {
            let fits = self.tokens(&turns[index..end]) <= kept;
            match turns[index].role {
                Role::User => exchanges += 1,
                Role::Assistant if exchanges == 0 => {}
                _ => continue,
            }
            if fits || at.is_none() {
                at = Some(index);
            }
            if exchanges >= most || !fits {
                break;
            }
        }
        at.unwrap_or(start)
    }

    fn compact(
        &mut self,
        id: &str,
        round: u32,
        turns: &[TranscriptTurn],
        span: std::ops::Range<usize>,
        end: usize,
    ) {
        let said = &turns[span.clone()];
        said.iter().for_each(|turn| self.notes.note(turn));
        let tail = self.tokens(&turns[span.end..end]);
        // Beside a long tail the floor leaves nothing: a part of the rest then.
        let left = self.floor(tail).max(self.left(100, tail) / SUMMARY_SHARE);
        let most = (left as u64).min(self.policy.summary_tokens_max).max(256);
        let bytes: usize = said.iter().map(|turn| turn.text.len()).sum();
        let before = self.previous.as_ref().map_or(0, |last| last.text.len());
        let request = SummaryRequest {
            tenant: TenantId::parse("acme").unwrap(),
            session: SessionId::parse("s").unwrap(),
            generation: "01ARYZ6S410000000000000001".parse::<Generation>().unwrap(),
            previous: self.previous.clone(),
            mark: Mark::default(),
            chunks: Vec::new(),
            turns: said.to_vec().into(),
            notes: self.notes.clone(),
            tokens_max: most.min((before / 4 + bytes / 4 * 3 / 4) as u64),
        };
        let body = self.summarizer.body(&request);
        // The machine does other things as well: the shortest time is what it takes.
        let times = (0..3).map(|_| {
            let begun = Instant::now();
            self.summarizer.body(&request);
            begun.elapsed().as_secs_f64() * 1e3
        });
        let ms = times.fold(f64::MAX, f64::min);
        let text = body.text(span.end as u64, &self.notes);
        let tokens = self.counter.count(&text);
        println!(
            "{}",
            json!({"id": id, "round": round, "from": span.start, "through": span.end, "end": end,
                "tokens_max": request.tokens_max, "tokens": tokens, "ms": ms, "text": text})
        );
        self.previous = Some(Arc::new(Summary {
            number: round,
            first_seq: 1,
            through_seq: span.end as u64,
            turns: span.end as u64,
            made_at: Timestamp::new(1_795_341_723, 0).unwrap(),
            by: "extractive".into(),
            text: text.into(),
            body,
            notes: self.notes.clone(),
        }));
    }
}
