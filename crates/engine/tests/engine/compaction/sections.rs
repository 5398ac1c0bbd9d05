//! Sections of a summary: the merge of turns, and which parts a model may change.

use std::sync::Arc;

use memoird_core::compaction::transcript::DECISION;
use memoird_core::compaction::{ModelSections, SummaryTokens, prompt};
use memoird_core::time::Timestamp;
use memoird_core::turn::LABEL;
use memoird_core::turn::{PartKind, Role, Turn};
use memoird_core::window::Omission;
use memoird_engine::{FaultKind, ModelFault};

use super::opened;
use super::script::{ModelStep, Script};
use super::talk::{Talk, answering, opened as turns_of, text_turn};
use crate::bot::Bot;
use crate::kit::{World, settle};
use crate::windows::{model, with_models};

fn wrote(standing: &[&str], withdrawn: &[&str], details: &str) -> ModelStep {
    let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
    ModelStep::Answers(ModelSections {
        standing: texts(standing),
        withdrawn: texts(withdrawn),
        open_questions: Vec::new(),
        details: details.to_owned(),
    })
}

/// A call of a tool with side effects.
fn changing(name: &str, input: &str, id: &str) -> Turn {
    let kind = PartKind::ToolUse {
        id: id.to_owned(),
        name: name.to_owned(),
        input_json: input.to_owned(),
    };
    Turn::new(Role::Assistant, vec![kind.into()])
}

async fn append(talk: &Talk, turns: Vec<Turn>) {
    let command = super::talk::command(turns);
    talk.bot.append(&talk.session, command).await.unwrap();
}

/// Windows of 40,000 tokens, with up to 4,000 for a summary.
async fn roomy(script: &Arc<Script>) -> (World, Talk) {
    let mut config = super::compacting(script);
    config.compaction.policy.summary_tokens = SummaryTokens::Fixed(4_000);
    let models = vec![model("m", 40_000, &Arc::default())];
    let world = World::new(with_models(config, models));
    let talk = Talk::new(&Bot::acme(&world.open().await), "a");
    (world, talk)
}

/// Appends an exchange: the user requests a booking and the assistant makes it.
async fn booking(talk: &Talk, id: &str) {
    let input = format!(r#"{{"flight":"{id}","seats":2}}"#);
    append(
        talk,
        vec![text_turn(Role::User, &format!("please take {id}"))],
    )
    .await;
    append(talk, vec![changing("book_flight", &input, id)]).await;
    append(talk, vec![answering("confirmed", id)]).await;
    append(talk, vec![text_turn(Role::Assistant, "done, it is booked")]).await;
}

#[tokio::test(start_paused = true)]
async fn local_summary_is_made_at_the_cut_within_the_same_call() {
    let mut scripted = Script::then([], ModelStep::Panics);
    scripted.is_remote = false;
    let script = Arc::new(scripted);
    let (_world, bot) = opened(&script).await;
    let mut talk = Talk::new(&bot, "a");
    let (mut cuts, mut last_through) = (0, 0);
    for _ in 0..100 {
        talk.exchange().await;
        let before = talk.status().await;
        let window = talk.window().await;
        let report = &window.report;
        assert!(!report.degraded, "{report:?}");
        assert!(
            !report.omissions.iter().any(Omission::is_left_out),
            "{report:?}"
        );
        let through = report
            .summary
            .as_ref()
            .map_or(0, |summary| summary.through_seq);
        if through == last_through {
            // A local summarizer prepares nothing in advance.
            settle().await;
            assert_eq!(talk.status().await, before);
            continue;
        }
        let summary = report.summary.as_ref().unwrap();
        assert_eq!(
            (summary.first_seq, &*summary.by),
            (last_through + 1, "script")
        );
        assert!(
            report.blocks.total() < report.input_budget * 3 / 4,
            "{report:?}"
        );
        cuts += 1;
        last_through = through;
    }
    assert!(cuts > 3, "{cuts}");
    assert_eq!(script.times(), 0, "a local summarizer is not called");
    talk.check_journal().await;
}

#[tokio::test(start_paused = true)]
async fn model_keeps_earlier_instructions_unless_it_withdraws_them() {
    let (peanuts, french) = ("I have a severe peanut allergy", "Always answer in French");
    let script = Script::new([
        wrote(&[peanuts, french], &[], "They greeted each other."),
        wrote(&[], &[], "They talked about the weather."),
        wrote(
            &["Answer in English from now on"],
            &[french],
            "The language changed.",
        ),
    ]);
    let (_world, mut talk) = roomy(&script).await;
    let mut texts = Vec::new();
    for _ in 0..3 {
        talk.exchanges(20).await;
        let summary = talk.compact(Some(1)).await.unwrap().summary.unwrap();
        let standing = summary.body.standing.iter();
        texts.push(standing.map(|one| one.text.clone()).collect::<Vec<_>>());
        assert!(summary.text.contains("\n## Standing instructions\n"));
    }
    let contains = |round: usize, text: &str| texts[round].iter().any(|one| one == text);
    for round in 0..3 {
        assert!(contains(round, peanuts), "{texts:?}");
        assert_eq!(contains(round, french), round < 2, "{texts:?}");
    }
    assert!(contains(2, "Answer in English from now on"), "{texts:?}");
}

#[tokio::test(start_paused = true)]
async fn model_cannot_lose_calls_that_changed_something() {
    let script = Script::always(wrote(&[], &[], "Nothing of note happened."));
    let (_world, mut talk) = roomy(&script).await;
    for id in ["HAT170", "HAT171"] {
        booking(&talk, id).await;
        talk.exchanges(20).await;
        let summary = talk.compact(Some(1)).await.unwrap().summary.unwrap();
        let line = format!("- book_flight(flight={id}, seats=2) → [[confirmed]]");
        assert!(
            summary.text.lines().any(|found| found == line),
            "{}",
            summary.text
        );
        assert!(
            summary.text.contains("Nothing of note happened."),
            "{}",
            summary.text
        );
    }
    let detail = talk.compact(Some(0)).await.unwrap().summary.unwrap();
    let done: Vec<&str> = detail.body.done.iter().map(|done| &*done.text).collect();
    assert_eq!(done.len(), 2, "each once: {done:?}");
}

#[tokio::test(start_paused = true)]
async fn decisions_that_the_bot_marked_are_in_the_summary() {
    for is_remote in [true, false] {
        let mut script = Script::then([], ModelStep::Well);
        script.is_remote = is_remote;
        let (_world, mut talk) = roomy(&Arc::new(script)).await;
        talk.exchange().await;
        let mut turn = text_turn(Role::Assistant, "we take the red one");
        turn.metadata.insert(DECISION.into(), "the red one".into());
        append(&talk, vec![text_turn(Role::User, "which?"), turn]).await;
        talk.exchanges(20).await;
        let summary = talk.compact(Some(1)).await.unwrap().summary.unwrap();
        let text = &summary.text;
        assert!(text.contains("\n- decided: the red one\n"), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn details_that_are_too_long_are_shortened() {
    let script = Script::always(ModelStep::Details("word ".repeat(20_000)));
    let (_world, bot) = opened(&script).await;
    let mut talk = Talk::new(&bot, "a");
    talk.exchanges(10).await;
    let made = talk.compact(Some(2)).await.unwrap();
    assert!(made.tokens_after < made.tokens_before, "{made:?}");
    let window = talk.window().await;
    assert!(window.report.summary.unwrap().text.contains("word word"));
}

#[tokio::test(start_paused = true)]
async fn window_is_cut_without_a_summary_while_the_provider_fails() {
    let script = Script::always(ModelStep::Fails(ModelFault::new(FaultKind::Later, "down")));
    let (_world, bot) = opened(&script).await;
    let mut talk = Talk::new(&bot, "a");
    let mut cuts = 0;
    for _ in 0..60 {
        talk.exchange().await;
        let window = talk.window().await;
        settle().await;
        let report = &window.report;
        assert!(report.summary.is_none(), "{report:?}");
        if !report.omissions.iter().any(Omission::is_left_out) {
            continue;
        }
        cuts += 1;
        let failures = talk.status().await.failures;
        let note = report
            .notes
            .iter()
            .find(|note| note.contains("left out without a summary"));
        assert!(failures > 0 && note.is_some(), "{failures}: {report:?}");
        let turns = turns_of(&window.turns);
        let is_marker = |turn: &&Turn| turn.metadata.get(LABEL).is_some_and(|it| it == "elision");
        let marker = turns.iter().find(is_marker).expect("a marker");
        let PartKind::Text(text) = &marker.parts[0].kind else {
            panic!("{marker:?}")
        };
        let last = report
            .omissions
            .iter()
            .map(|gap| gap.last_seq)
            .max()
            .unwrap();
        assert!(
            text.contains(&format!("-{last} are not shown here")),
            "{text}"
        );
    }
    assert!(cuts > 10, "{cuts}");
    assert!(script.times() >= 3, "{}", script.times());
    talk.check_journal().await;
}

#[tokio::test(start_paused = true)]
async fn input_of_a_summarizer_has_timestamps_and_the_previous_summary() {
    let script = Script::new([wrote(&[], &[], "They met on 2026-11-19.")]);
    let (_world, mut talk) = roomy(&script).await;
    let (noon, minute) = (1_795_348_800, 60);
    for number in 0..40 {
        let role = [Role::User, Role::Assistant][usize::from(number % 2 == 1)];
        let mut turn = text_turn(role, &format!("number {number} {}", "x".repeat(80)));
        turn.timestamp = Timestamp::new(noon + i64::from(number) * minute, 0);
        append(&talk, vec![turn]).await;
    }
    talk.compact(Some(4)).await.unwrap();
    talk.exchanges(2).await;
    let second = talk.compact(Some(2)).await.unwrap().summary.unwrap();
    let asked = script.asked.lock().unwrap().clone();
    assert_eq!(asked[0].turns[1].said_at, Timestamp::new(noon + minute, 0));
    assert!(asked[0].previous.is_none());
    let prompts = [0, 1].map(|call| {
        let request = &asked[call];
        prompt::prompt(&prompt::SummaryPrompt {
            previous: request.previous.as_deref(),
            pieces: &request.chunks,
            turns: &request.turns,
            tokens_max: request.tokens_max,
            nonce: request.nonce,
        })
    });
    let previous = asked[1].previous.as_ref().expect("the previous summary");
    assert_eq!(previous.through_seq + 1, asked[1].turns[0].seq);
    assert!(previous.text.contains("They met on 2026-11-19."));
    let (first, text) = (&prompts[0], &prompts[1]);
    assert!(first.contains("[5 user 2026-11-22 12:04 UTC] "), "{first}");
    assert!(text.contains("They met on 2026-11-19."), "{text}");
    assert!(second.text.contains("until 2026-11-22"), "{}", second.text);
}

#[tokio::test(start_paused = true)]
async fn model_is_not_asked_for_a_summary_that_would_be_longer_than_the_turns() {
    let script = Script::new([]);
    let (_world, bot) = opened(&script).await;
    let mut talk = Talk::new(&bot, "a");
    talk.exchange().await;
    for _ in 0..4 {
        assert!(!talk.compact(Some(0)).await.unwrap().is_new);
    }
    assert_eq!((script.times(), talk.status().await.failures), (0, 0));
    talk.exchanges(10).await;
    assert!(talk.compact(Some(0)).await.unwrap().is_new);
}

/// A summary made in advance may use a quarter of the room of one needed at a cut.
///
/// In a large window most of that room is reserved for requests, which are short here.
#[tokio::test(start_paused = true)]
async fn short_requests_leave_their_room_to_the_other_sections() {
    let mut script = Script::then([], ModelStep::Well);
    script.is_remote = false;
    let mut config = super::compacting(&Arc::new(script));
    config.compaction.policy.summary_tokens = SummaryTokens::Auto;
    let models = vec![model("m", 1_000_000, &Arc::default())];
    let bot = Bot::acme(&World::new(with_models(config, models)).open().await);
    let mut talk = Talk::new(&bot, "a");
    for number in 0..20 {
        booking(&talk, &format!("HAT{number:03}")).await;
    }
    talk.exchanges(20).await;
    talk.window().await;
    let summary = talk.compact(Some(1)).await.unwrap().summary.unwrap();
    assert!(summary.body.done.len() >= 10, "{}", summary.text);
}

/// The requests in a summary of a large window exceed the input of a small model.
#[tokio::test(start_paused = true)]
async fn previous_summary_is_shortened_to_the_input_of_the_summarizer() {
    for says_so in [true, false] {
        let mut scripted = Script::then([], ModelStep::Well);
        scripted.too_long_over = 2_000;
        scripted.input_tokens_max = if says_so { 1_500 } else { u64::MAX };
        let script = Arc::new(scripted);
        let mut config = super::compacting(&script);
        config.compaction.policy.summary_tokens = SummaryTokens::Fixed(8_000);
        let models = vec![model("m", 1_000_000, &Arc::default())];
        let bot = Bot::acme(&World::new(with_models(config, models)).open().await);
        let mut talk = Talk::new(&bot, "a");
        talk.add(vec![text_turn(
            Role::User,
            &"do all of this ".repeat(2_000),
        )])
        .await;
        talk.add(vec![text_turn(Role::Assistant, "I begin")]).await;
        for round in 1..=3 {
            talk.exchanges(60).await;
            let made = talk.compact(Some(1)).await;
            let summary = made
                .unwrap_or_else(|error| panic!("{round}: {error}"))
                .summary
                .unwrap();
            assert_eq!(summary.number, round);
            assert!(summary.text.len() > 20_000, "{}", summary.text.len());
        }
        let asked = script.asked.lock().unwrap();
        let previous = asked.iter().filter_map(|ask| ask.previous.as_ref());
        assert!(previous.clone().count() > 0);
        assert!(asked.iter().any(|ask| super::script::weight(ask) <= 1_500));
    }
}
