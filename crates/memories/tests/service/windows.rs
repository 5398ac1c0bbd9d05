//! Memories in windows: a block after the turns, within the budget, without duplicates of turns.
//!
//! A window is returned in any case.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::budget::BudgetOverride;
use memoird_core::session::AppendCommand;
use memoird_core::window::{Policy, Report};
use memoird_engine::{ContextRequest, WindowMemories, WindowTurn};
use memoird_memories::{MemoryError, RecallHit, RecallRequest, RememberRequest};
use tokio::time::sleep;

use super::embedder::{Mood, ScriptedEmbedder};
use super::{ANN, acme, contents, fact, from, query, telling, with_embedder};
use crate::kit::{Dice, session_id, settle};
use crate::world::{Bot, Config, Folder, World, unswept, with_model};

#[derive(Debug, Default)]
struct Wanted {
    append: Option<AppendCommand>,
    budget: BudgetOverride,
    overhead_tokens: u64,
    policy: Option<Policy>,
    peek: bool,
    memories: Option<RecallRequest>,
}

/// A window with the memories shown in it.
#[derive(Debug)]
struct Shown {
    turns: Vec<WindowTurn>,
    memories: Vec<RecallHit>,
    memories_text: String,
    report: Report,
}

impl Bot {
    async fn context(&self, session: &str, wanted: Wanted) -> Result<Shown, MemoryError> {
        let recall = wanted
            .memories
            .map(|request| self.memories.recall.for_window(&self.tenant, request));
        let recall = recall.transpose()?;
        let request = ContextRequest {
            append: wanted.append,
            budget: wanted.budget,
            overhead_tokens: wanted.overhead_tokens,
            policy: wanted.policy,
            peek: wanted.peek,
            memories: recall
                .clone()
                .map(|recall| recall as Arc<dyn WindowMemories>),
            ..ContextRequest::default()
        };
        let session = session_id(session);
        let outcome = self
            .engine
            .commands
            .context(&self.tenant, &session, request);
        let outcome = outcome.await?;
        let shown = recall
            .iter()
            .flat_map(|recall| recall.shown(&outcome.memories));
        Ok(Shown {
            memories: shown.cloned().collect(),
            turns: outcome.turns.to_vec(),
            memories_text: outcome.memories.text.clone(),
            report: outcome.report,
        })
    }
}

fn asking(context_window: u64) -> Wanted {
    Wanted {
        budget: BudgetOverride::without_reserves(context_window),
        ..Wanted::default()
    }
}

fn config() -> Config {
    with_model(unswept(), 100_000)
}

fn world() -> World {
    World::new(config()).remembering()
}

/// Requests a window with memories for this query.
fn with_memories(words: &str) -> Wanted {
    let memories = Some(RecallRequest {
        query: words.to_owned(),
        ..RecallRequest::default()
    });
    Wanted {
        memories,
        ..Wanted::default()
    }
}

fn held(window: &Shown) -> Vec<String> {
    contents(window.memories.iter().map(|hit| &hit.memory))
}

/// Checks the guarantees of every window.
fn check(window: &Shown) {
    let blocks = &window.report.blocks;
    assert!(
        blocks.total() <= window.report.input_budget,
        "{:?}",
        window.report
    );
    let turns: u64 = window.turns.iter().map(|turn| turn.tokens).sum();
    assert_eq!(turns, blocks.anchor + blocks.tail);
    assert_eq!(blocks.memories == 0, window.memories_text.is_empty());
    for hit in &window.memories {
        assert!(window.memories_text.contains(&hit.memory.content));
    }
    assert_eq!(window.memories.is_empty(), window.memories_text.is_empty());
}

async fn contents_of(bot: &Bot, request: Wanted) -> Shown {
    let window = bot.context("s", request).await.unwrap();
    check(&window);
    window
}

#[tokio::test(start_paused = true)]
async fn memories_follow_turns_and_keep_prefix() {
    let world = world();
    let bot = acme(&world.open().await);
    bot.learn(ANN, "Ann likes green tea").await;
    let append = |text: &str| Some(telling(ANN, text));
    let first = Wanted {
        append: append("hello"),
        ..Wanted::default()
    };
    let first = contents_of(&bot, first).await;
    let second = Wanted {
        append: append("what tea?"),
        ..with_memories("tea")
    };
    let second = contents_of(&bot, second).await;
    assert_eq!(held(&second), ["Ann likes green tea"]);
    let mark = &second.memories_text["<recalled_memories ".len()..][..9];
    assert!(
        second
            .memories_text
            .starts_with(&format!("<recalled_memories {mark}>\n"))
    );
    assert!(
        second
            .memories_text
            .ends_with(&format!("\n</recalled_memories {mark}>"))
    );
    assert_eq!(second.turns[0].content, first.turns[0].content);
    assert_eq!(second.turns.len(), 2);
    assert!(second.report.stable_prefix_tokens > 0 && !second.report.degraded);
    let third = Wanted {
        append: append("more"),
        ..Wanted::default()
    };
    let third = contents_of(&bot, third).await;
    assert!(third.memories.is_empty() && third.report.blocks.memories == 0);
    assert_eq!(third.turns[..2].len(), 2);
    for (sent, again) in second.turns.iter().zip(&third.turns) {
        assert_eq!(
            sent.content, again.content,
            "without the memories nothing has moved"
        );
    }
    let plain = third.report.stable_prefix_tokens;
    assert_eq!(
        plain,
        second.turns.iter().map(|turn| turn.tokens).sum::<u64>() + third.report.blocks.system
    );
}

#[tokio::test(start_paused = true)]
async fn memory_that_window_contains_is_not_repeated() {
    let world = world();
    let bot = acme(&world.open().await);
    bot.tell("s", ANN, "I like green tea, you know").await;
    bot.tell("s", ANN, "Ann plays chess with the tea club")
        .await;
    let ask = RememberRequest {
        source: from("s", &[1]),
        ..fact(ANN, "Ann likes green tea")
    };
    bot.learn_so(ask).await;
    bot.learn(ANN, "chess with the tea club").await;
    bot.learn(ANN, "Ann keeps tea in a tin").await;
    let window = contents_of(&bot, with_memories("tea")).await;
    assert_eq!(held(&window), ["Ann keeps tea in a tin"]);
    // Once the turns have left the window, the memory is shown.
    for _ in 0..30 {
        bot.tell("s", ANN, &"x".repeat(300)).await;
    }
    let request = Wanted {
        memories: with_memories("tea").memories,
        ..asking(5_000)
    };
    let request = Wanted {
        policy: Some(Policy::SlidingWindow { turns: 2 }),
        ..request
    };
    let window = contents_of(&bot, request).await;
    assert_eq!(
        held(&window).len(),
        3,
        "{:?} {:?}",
        held(&window),
        window.report
    );
}

#[tokio::test(start_paused = true)]
async fn empty_query_uses_current_exchange() {
    let world = world();
    let bot = acme(&world.open().await);
    bot.learn(ANN, "Ann keeps her passport in a tin").await;
    bot.learn(ANN, "Ann plays chess").await;
    bot.tell("s", ANN, "do you know a chess club?").await;
    bot.tell("s", ANN, "where is my passport?").await;
    let window = contents_of(&bot, with_memories(" ")).await;
    assert_eq!(held(&window), ["Ann keeps her passport in a tin"]);
    // A request appended by the same call is the query.
    let with_append = |text: &str| Wanted {
        append: Some(telling(ANN, text)),
        ..with_memories("")
    };
    let window = contents_of(&bot, with_append("tell me about playing chess")).await;
    assert_eq!(held(&window), ["Ann plays chess"]);
}

#[tokio::test(start_paused = true)]
async fn barely_relevant_memory_is_not_shown() {
    let world = world();
    let bot = acme(&world.open().await);
    bot.learn(
        ANN,
        "Ann keeps her green passport in a tin box in the kitchen",
    )
    .await;
    bot.learn(ANN, "Ann painted the kitchen").await;
    bot.tell("s", ANN, "hello").await;
    let question = "Where in the kitchen is the tin box with the green passport?";
    let all = bot.recall(query(ANN, question)).await.unwrap();
    assert_eq!(all.hits.len(), 2, "a recall gives what there is");
    let window = contents_of(&bot, with_memories(question)).await;
    assert_eq!(held(&window).len(), 1, "{:?}", held(&window));
    assert!(!window.report.degraded, "{:?}", window.report);
}

#[tokio::test(start_paused = true)]
async fn short_memory_is_shown_although_a_question_contains_it() {
    let world = world();
    let bot = acme(&world.open().await);
    bot.tell("s", ANN, "are you vegan?").await;
    bot.learn(ANN, "vegan").await;
    assert_eq!(
        held(&contents_of(&bot, with_memories("vegan")).await),
        ["vegan"]
    );
}

#[tokio::test(start_paused = true)]
async fn memories_in_window_free_no_extra_room() {
    let mut world = world();
    world.config.long_term.window_tokens = 1_000;
    let bot = acme(&world.open().await);
    // Three hits, of which the second does not fit. The window contains it already.
    let long = format!("tea tea tea tea {}", "y".repeat(500));
    bot.tell("s", ANN, &long).await;
    bot.learn_so(RememberRequest {
        importance: Some(1.0),
        ..fact(ANN, "tea tea tea tea tea")
    })
    .await;
    bot.learn(ANN, &long).await;
    let last = format!("tea {}", "z".repeat(400));
    bot.learn_so(RememberRequest {
        importance: Some(0.0),
        ..fact(ANN, &last)
    })
    .await;
    let found = bot.recall(query(ANN, "tea")).await.unwrap();
    assert_eq!(
        found.hits[1].memory.content, long,
        "else this test says nothing"
    );
    for tokens in 650..=1_600 {
        world.config.long_term.window_tokens = tokens;
        bot.memories.adopt(world.config.long_term.clone());
        // As small as possible.
        let mut request = Wanted {
            peek: true,
            ..with_memories("tea")
        };
        request.budget = asking(10_400).budget;
        request.overhead_tokens = 10_400 - 660 - tokens / 2;
        if let Ok(window) = bot.context("s", request).await {
            check(&window);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn current_turn_that_fits_without_memories_is_accepted() {
    let seed = 5;
    println!("seed {seed}");
    let mut dice = Dice(seed);
    let world = world();
    let bot = acme(&world.open().await);
    for number in 0..20 {
        bot.learn(ANN, &format!("tea {number} {}", "t".repeat(number * 7)))
            .await;
    }
    bot.tell("s", ANN, "hello").await;
    let (mut with, mut without) = (0, 0);
    for _ in 0..300 {
        let text = "x".repeat(1 + usize::try_from(dice.below(900)).unwrap());
        bot.tell("s", ANN, &text).await;
        let tokens = 500 + dice.below(6_000);
        let budget = asking(tokens).budget;
        let peek = dice.once_in(2);
        let plain = Wanted {
            budget,
            peek: true,
            ..Wanted::default()
        };
        let plain = bot.context("s", plain).await;
        let asked = Wanted {
            budget,
            peek,
            ..with_memories("tea")
        };
        let asked = bot.context("s", asked).await;
        assert_eq!(
            plain.is_ok(),
            asked.is_ok(),
            "{tokens} tokens, {:?}",
            asked.err()
        );
        if let Ok(window) = asked {
            check(&window);
            with += usize::from(!window.memories.is_empty());
            without += usize::from(window.memories.is_empty());
        }
    }
    assert!(
        with > 50 && without > 10,
        "{with} with memories, {without} without"
    );
}

#[tokio::test(start_paused = true)]
async fn memory_block_stays_within_its_share() {
    let world = world();
    let bot = acme(&world.open().await);
    for number in 0..8 {
        bot.learn(ANN, &format!("tea number {number} {}", "t".repeat(200)))
            .await;
    }
    bot.tell("s", ANN, "hello").await;
    let window = contents_of(&bot, with_memories("tea")).await;
    assert!((1..8).contains(&window.memories.len()));
    assert!(window.report.blocks.memories <= 1_000);
    assert!(
        window
            .report
            .notes
            .iter()
            .any(|note| note.contains("of 8 recalled"))
    );
    let small = Wanted {
        memories: with_memories("tea").memories,
        ..asking(4_000)
    };
    assert!(contents_of(&bot, small).await.report.blocks.memories <= 400);
}

#[tokio::test(start_paused = true)]
async fn peek_records_no_recall_event() {
    let world = world();
    let bot = acme(&world.open().await);
    let id = bot.learn(ANN, "likes tea").await;
    bot.tell("s", ANN, "hello").await;
    let peek = Wanted {
        peek: true,
        ..with_memories("tea")
    };
    assert_eq!(contents_of(&bot, peek).await.memories.len(), 1);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(bot.memory(id).await.unwrap().recalls, 0);
    contents_of(&bot, with_memories("tea")).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(bot.memory(id).await.unwrap().recalls, 1);
}

#[tokio::test(start_paused = true)]
async fn failed_recall_returns_window_with_note() {
    let embedder = Arc::new(ScriptedEmbedder::new("m"));
    let embedding = with_embedder(config(), &embedder);
    let world = World {
        memories: Some(Folder::new()),
        ..World::new(embedding)
    };
    let bot = acme(&world.open().await);
    bot.learn(ANN, "likes tea").await;
    bot.tell("s", ANN, "hello").await;
    settle().await;
    embedder.feels(Mood::Hangs);
    let by_words = contents_of(&bot, with_memories("tea")).await;
    assert!(by_words.report.degraded && !by_words.report.notes.is_empty());
    assert_eq!(held(&by_words), ["likes tea"]);
    let mut by_meaning = with_memories("other tea");
    by_meaning.memories.as_mut().unwrap().mode = memoird_memories::RecallMode::Vector;
    let nothing = contents_of(&bot, by_meaning).await;
    assert!(nothing.report.degraded && nothing.memories.is_empty());
    assert_eq!(nothing.turns.len(), 1);
    // An invalid request is rejected before anything is appended.
    let mut wrong = Wanted {
        append: Some(telling(ANN, "x")),
        ..with_memories("tea")
    };
    wrong.memories.as_mut().unwrap().limit = 101;
    assert!(bot.context("s", wrong).await.is_err());
    assert_eq!(bot.view("s").await.unwrap().head.last_seq, 1);

    let off = World {
        memories: None,
        ..World::new(config())
    };
    let bot = acme(&off.open().await);
    bot.tell("s", ANN, "hello").await;
    let window = contents_of(&bot, with_memories("tea")).await;
    assert!(window.report.degraded && window.turns.len() == 1);
}

#[tokio::test(start_paused = true)]
async fn unrelated_message_brings_no_memory_into_a_window() {
    let embedder = Arc::new(ScriptedEmbedder::new("m"));
    let by_meaning = World::new(with_embedder(config(), &embedder)).remembering();
    for world in [world(), by_meaning] {
        let bot = acme(&world.open().await);
        for content in [
            "Ann likes green tea from Japan",
            "the release happens each Friday",
            "please send the invoice to the office, thanks",
            "Ann's brother lives in the capital of France",
        ] {
            bot.learn(ANN, content).await;
        }
        settle().await;
        let window = |words: &str| Wanted {
            append: Some(telling(ANN, words)),
            ..with_memories(words)
        };
        for unrelated in [
            "please, thanks",
            "which planets have rings and moons, thanks",
        ] {
            let shown = contents_of(&bot, window(unrelated)).await;
            assert!(held(&shown).is_empty(), "{unrelated}: {:?}", held(&shown));
        }
        let shown = contents_of(&bot, window("which green tea?")).await;
        assert_eq!(held(&shown), ["Ann likes green tea from Japan"]);
        let mut all = window("please, thanks, tea");
        let request = all.memories.get_or_insert_default();
        request.min_relevance = Some(0.0);
        assert!(!held(&contents_of(&bot, all).await).is_empty());
    }
}
