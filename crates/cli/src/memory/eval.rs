//! `memoird memory eval`: measures the quality and latency of recall on an operator's questions.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use memoird_core::words::normalised;
use memoird_proto::v1::{GetMemoryStatsRequest, Memory, RecallMode, RecallRequest};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::choice::one_of;
use crate::connect::Target;
use crate::exit::{CliError, Exit};
use crate::json::short_name;
use crate::lines::{Lines, ParsedLine};
use crate::progress::Progress;
use crate::{clock, output};

/// The values of k for R@k.
const DEPTHS: [usize; 3] = [1, 5, 10];
/// Maximum length of a line in bytes.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of questions in a file.
const QUESTIONS_MAX: usize = 100_000;
/// Maximum number of parsed lines in the channel.
const WAITING_MAX: usize = 64;

#[derive(Args)]
pub struct EvalArgs {
    /// JSON lines with a question and the expected memories, such as {"question": "Where does Ann
    /// live?", "subject": "ann", "words": ["lives in Riga"]}; a hit is correct if it contains one
    /// of `words`, has one of `ids`, or comes from one of `sources` ([{"session_id": "tg:1",
    /// "seqs": [3]}]); `-` reads stdin
    file: PathBuf,
    /// Search mode; can be repeated [default: lexical, and hybrid if an embedder is configured];
    /// the last one is repeated with the reranker, if one is configured
    #[arg(long = "mode", value_parser = one_of("RecallMode"))]
    modes: Vec<i32>,
    /// Number of hits of each recall
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100))]
    limit: u32,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    question: String,
    #[serde(default)]
    subject: String,
    #[serde(default)]
    ids: Vec<String>,
    #[serde(default)]
    words: Vec<String>,
    #[serde(default)]
    sources: Vec<ExpectedSource>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedSource {
    session_id: String,
    seqs: Vec<u64>,
}

/// A search mode, with or without the reranker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EvalMode {
    mode: RecallMode,
    is_reranked: bool,
}

/// Results of one mode for all questions.
#[derive(Debug, Default)]
struct ModeResults {
    /// Position of the first correct hit of each question, from 1.
    first_hits: Vec<Option<usize>>,
    /// Latencies, sorted when the run is complete.
    latencies: Vec<Duration>,
    /// Number of degraded recalls, and the reason of the last one.
    degraded: usize,
    note: String,
}

pub(super) async fn run(target: &Target, args: EvalArgs) -> Result<(), CliError> {
    let questions = read(&args.file).await?;
    let stats = target.call(&GetMemoryStatsRequest {}).await?;
    let waiting = stats.embedding_queued + stats.words_queued;
    if waiting > 0 {
        let waiting = output::count(waiting);
        output::note(&format!(
            "note: {waiting} memories are not indexed yet; `memoird memory reindex` waits for them"
        ));
    }
    let is_embedding = !stats.embedding_model.is_empty();
    let asked = args.modes.iter();
    let asked: Vec<_> = asked.flat_map(|mode| RecallMode::try_from(*mode)).collect();
    let modes = modes(&asked, is_embedding, !stats.reranker.is_empty());
    let progress = Progress::new(Some((modes.len() * questions.len()) as u64));
    let mut results = Vec::with_capacity(modes.len());
    for mode_run in modes {
        let found = ask(target, mode_run, &questions, args.limit, &progress).await?;
        results.push((mode_run, found));
    }
    drop(progress);
    for (mode_run, found) in results.iter().filter(|(_, found)| found.degraded > 0) {
        let (name, degraded) = (mode_run.title(), output::count(found.degraded as u64));
        let of = output::count(found.first_hits.len() as u64);
        let note = &found.note;
        output::note(&format!(
            "note: {name}: {degraded} of {of} degraded: {note}"
        ));
    }
    let modes = results
        .iter()
        .map(|(mode_run, found)| found.json(*mode_run));
    let value = json!({ "questions": questions.len(), "modes": modes.collect::<Vec<_>>() });
    output::print_as(target.json, &value, &table(&results))
}

/// Returns the requested modes, or by default those available.
///
/// The best comes last, and is repeated with the reranker.
fn modes(asked: &[RecallMode], is_embedding: bool, is_reranking: bool) -> Vec<EvalMode> {
    let is_wanted = |mode: RecallMode| match asked {
        [] => mode == RecallMode::Lexical || mode == RecallMode::Hybrid && is_embedding,
        asked => asked.contains(&mode),
    };
    let order = [RecallMode::Lexical, RecallMode::Vector, RecallMode::Hybrid];
    let wanted = order.into_iter().filter(|mode| is_wanted(*mode));
    let mode_run = |mode| EvalMode {
        mode,
        is_reranked: false,
    };
    let mut modes: Vec<EvalMode> = wanted.map(mode_run).collect();
    let last = modes.last().filter(|_| is_reranking).copied();
    modes.extend(last.map(|mode_run| EvalMode {
        is_reranked: true,
        ..mode_run
    }));
    modes
}

impl EvalMode {
    fn name(self) -> String {
        short_name("RecallMode", self.mode.into())
    }

    fn title(self) -> String {
        let reranked = if self.is_reranked { ", reranked" } else { "" };
        format!("{}{reranked}", self.name())
    }
}

async fn read(file: &Path) -> Result<Vec<Question>, CliError> {
    let lines = Lines::open(file, LINE_BYTES_MAX)?;
    let name = lines.name().to_owned();
    let mut read = lines.parse(WAITING_MAX, |lines, line| {
        let question = serde_json::from_slice::<Question>(line.text)
            .map_err(|error| lines.no_json(line.number, &error))?;
        let problem = |problem| lines.bad(line.number, problem);
        question.checked().map_err(problem)
    });
    let mut questions = Vec::new();
    while let Some(ParsedLine { item, .. }) = read.recv().await.transpose()? {
        if questions.len() == QUESTIONS_MAX {
            let problem = format!("{name}: has more than {QUESTIONS_MAX} questions");
            return Err(CliError::failed(Exit::Data, problem));
        }
        questions.push(item);
    }
    if questions.is_empty() {
        Err(CliError::failed(
            Exit::Data,
            format!("{name}: has no question"),
        ))
    } else {
        Ok(questions)
    }
}

async fn ask(
    target: &Target,
    mode_run: EvalMode,
    questions: &[Question],
    limit: u32,
    progress: &Progress,
) -> Result<ModeResults, CliError> {
    let mut found = ModeResults::default();
    // Warm-up: the first call opens files, which would distort the latencies.
    if let Some(first) = questions.first() {
        target.call(&first.request(mode_run, limit)).await?;
    }
    for question in questions {
        let request = question.request(mode_run, limit);
        let started: Instant = clock::monotonic();
        let answer = target.call(&request).await?;
        found.latencies.push(clock::since(started));
        let memories = answer.hits.iter().filter_map(|hit| hit.memory.as_ref());
        let place = memories
            .enumerate()
            .find(|(_, memory)| question.is_right(memory));
        found.first_hits.push(place.map(|(place, _)| place + 1));
        if answer.degraded {
            found.degraded += 1;
            found.note = answer.notes.join("; ");
        }
        progress.add(1);
        progress.show(|| format!("{}: {} asked", mode_run.title(), found.first_hits.len()));
    }
    found.latencies.sort_unstable();
    Ok(found)
}

impl Question {
    /// Validates the question and normalizes its words.
    fn checked(mut self) -> Result<Self, &'static str> {
        if self.question.trim().is_empty() {
            return Err("the question is empty");
        }
        if self.ids.is_empty() && self.words.is_empty() && self.sources.is_empty() {
            return Err("expects nothing: set ids, words or sources");
        }
        self.words = self.words.iter().map(|words| padded(words)).collect();
        if self.words.iter().any(|words| words.trim().is_empty()) {
            Err("words has a text without a word")
        } else {
            Ok(self)
        }
    }

    fn request(&self, mode_run: EvalMode, limit: u32) -> RecallRequest {
        let subject = Some(self.subject.clone()).filter(|subject| !subject.is_empty());
        RecallRequest {
            query: self.question.clone(),
            subjects: subject.into_iter().collect(),
            limit,
            mode: mode_run.mode.into(),
            // Explained recalls do not count as a use of the memory.
            explain: true,
            rerank: Some(mode_run.is_reranked),
            ..RecallRequest::default()
        }
    }

    fn is_right(&self, memory: &Memory) -> bool {
        let content = padded(&memory.content);
        let said = memory.source.as_ref();
        let is_place = |place: &ExpectedSource| {
            said.is_some_and(|said| {
                said.session_id == place.session_id
                    && said.seqs.iter().any(|seq| place.seqs.contains(seq))
            })
        };
        self.ids.contains(&memory.id)
            || self.words.iter().any(|words| content.contains(words))
            || self.sources.iter().any(is_place)
    }
}

/// Normalizes a text and pads it with blanks, so that only whole words match.
fn padded(text: &str) -> String {
    format!(" {} ", normalised(text))
}

impl ModeResults {
    /// Share of questions with a correct hit among the first `depth`.
    fn share(&self, depth: usize) -> f64 {
        let is_within = |place: &&Option<usize>| place.is_some_and(|place| place <= depth);
        self.first_hits.iter().filter(is_within).count() as f64
            / self.first_hits.len().max(1) as f64
    }

    /// Mean reciprocal rank. A question without a correct hit counts as 0.
    fn reciprocal_rank(&self) -> f64 {
        let first_hits = self.first_hits.iter().flatten();
        // `sum` of an empty iterator would be minus zero.
        let sum = first_hits.fold(0.0, |sum, place| sum + 1.0 / *place as f64);
        sum / self.first_hits.len().max(1) as f64
    }

    /// Percentile of the latencies in milliseconds.
    fn took_ms(&self, percent: usize) -> f64 {
        let rank = (self.latencies.len() * percent).div_ceil(100).max(1) - 1;
        self.latencies
            .get(rank)
            .map_or(0.0, |latencies| latencies.as_secs_f64() * 1e3)
    }

    fn json(&self, mode_run: EvalMode) -> Value {
        let shares = DEPTHS.map(|depth| (depth.to_string(), json!(self.share(depth))));
        json!({
            "mode": mode_run.name(),
            "reranked": mode_run.is_reranked,
            "recall_at": serde_json::Map::from_iter(shares),
            "mrr": self.reciprocal_rank(),
            "p50_ms": self.took_ms(50),
            "p95_ms": self.took_ms(95),
            "degraded": self.degraded,
        })
    }
}

fn table(results: &[(EvalMode, ModeResults)]) -> String {
    let header = [
        "MODE",
        "QUESTIONS",
        "R@1",
        "R@5",
        "R@10",
        "MRR",
        "P50 MS",
        "P95 MS",
    ];
    let row = |(mode_run, found): &(EvalMode, ModeResults)| {
        let [one, five, ten] = DEPTHS.map(|depth| format!("{:.1}", found.share(depth) * 100.0));
        [
            mode_run.title(),
            output::count(found.first_hits.len() as u64),
            one,
            five,
            ten,
            format!("{:.3}", found.reciprocal_rank()),
            format!("{:.2}", found.took_ms(50)),
            format!("{:.2}", found.took_ms(95)),
        ]
    };
    output::table(
        &header,
        results.iter().map(row),
        &[1, 2, 3, 4, 5, 6, 7],
        None,
    )
}

#[cfg(test)]
mod tests {
    use memoird_proto::v1::MemorySource;

    use super::*;

    fn question(text: &str) -> Result<Question, String> {
        let read = serde_json::from_str::<Question>(text).map_err(|error| error.to_string())?;
        read.checked().map_err(str::to_owned)
    }

    #[test]
    fn expected_memory_matches_by_id_words_or_source_turn() {
        let memory = Memory {
            id: "x".into(),
            content: "Ann LIVES in Zürich, not in Bern".into(),
            source: Some(MemorySource {
                session_id: "s".into(),
                seqs: vec![3, 4],
                ..MemorySource::default()
            }),
            ..Memory::default()
        };
        let of = |more: &str| question(&format!(r#"{{"question":"q",{more}}}"#)).unwrap();
        for (more, is_right) in [
            (r#""ids":["x"]"#, true),
            (r#""ids":["y"]"#, false),
            (r#""words":["lives in zurich"]"#, true),
            (r#""words":["ives in zürich"]"#, false),
            (r#""words":["nowhere"],"ids":["x"]"#, true),
            (r#""sources":[{"session_id":"s","seqs":[4]}]"#, true),
            (r#""sources":[{"session_id":"s","seqs":[5]}]"#, false),
            (r#""sources":[{"session_id":"t","seqs":[4]}]"#, false),
        ] {
            assert_eq!(of(more).is_right(&memory), is_right, "{more}");
        }
    }

    #[test]
    fn question_without_expectation_is_rejected() {
        for (text, word) in [
            (r#"{"question":"q"}"#, "ids, words or sources"),
            (r#"{"question":" ","ids":["x"]}"#, "empty"),
            (r#"{"question":"q","words":["?"]}"#, "without a word"),
            (r#"{"question":"q","word":["x"]}"#, "unknown field"),
        ] {
            let problem = question(text).expect_err(text);
            assert!(problem.contains(word), "{problem}");
        }
    }

    #[test]
    fn scores_are_shares_of_all_questions() {
        let found = ModeResults {
            first_hits: vec![Some(1), Some(2), Some(6), None],
            latencies: (1..=20).map(Duration::from_millis).collect(),
            ..ModeResults::default()
        };
        assert_eq!(DEPTHS.map(|depth| found.share(depth)), [0.25, 0.5, 0.75]);
        assert!((found.reciprocal_rank() - (1.0 + 0.5 + 1.0 / 6.0) / 4.0).abs() < 1e-12);
        assert_eq!((found.took_ms(50), found.took_ms(95)), (10.0, 19.0));
        let one = ModeResults {
            latencies: vec![Duration::from_millis(7)],
            ..ModeResults::default()
        };
        assert_eq!((one.took_ms(50), one.took_ms(95)), (7.0, 7.0));
        assert_eq!(format!("{:.3}", one.reciprocal_rank()), "0.000");
    }

    #[test]
    fn without_embedder_only_words_are_evaluated() {
        let names = |asked: &[RecallMode], is_embedding, is_reranking| -> Vec<String> {
            let modes = modes(asked, is_embedding, is_reranking);
            modes.into_iter().map(EvalMode::title).collect()
        };
        assert_eq!(names(&[], false, false), ["lexical"]);
        assert_eq!(names(&[], true, false), ["lexical", "hybrid"]);
        let all = ["lexical", "hybrid", "hybrid, reranked"];
        assert_eq!(names(&[], true, true), all);
        let twice = [RecallMode::Vector, RecallMode::Vector];
        assert_eq!(names(&twice, false, false), ["vector"]);
    }
}
