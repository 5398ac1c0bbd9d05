//! Random conversations: every window fits its budget, and every result follows its call.

use std::cell::Cell;

use memoird_core::error::CoreError;
use memoird_core::limits::Limits;
use memoird_core::turn::{MessageFormat, Turn};
use memoird_formats::messages::parse;
use memoird_fuzz::Target;
use memoird_store::encoding;
use tokio::runtime::Builder;

use super::*;
use crate::kit::World;

/// In tokens. The test tokenizer counts one token per byte.
const BUDGETS: [u64; 4] = [300, 1_200, 5_000, 1_000_000];

#[test]
fn fuzz_windows() {
    let target = Target {
        name: "windows",
        crate_dir: env!("CARGO_MANIFEST_DIR"),
        words: &[
            "\"role\":",
            "\"user\"",
            "\"assistant\"",
            "\"tool\"",
            "\"c0\"",
            "\"c1\"",
            "\"a\"",
            "\"e\"",
            "\"tool_call_id\":",
            "\"tool_use_id\":",
            ",",
        ],
    };
    let runtime = Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap();
    let mut config = one_model();
    config.limits.max_history_turns = 8;
    let engine = runtime.block_on(async { World::new(config).open().await });
    let (bot, sessions) = (Bot::acme(&engine), Cell::new(0));
    target.check(|input| {
        let Ok(text) = std::str::from_utf8(input) else {
            return;
        };
        for format in [MessageFormat::OpenAi, MessageFormat::Anthropic] {
            if let Ok(turns) = parse(format, text) {
                sessions.set(sessions.get() + 1);
                let session = format!("s{}", sessions.get());
                runtime.block_on(converse(&bot, &session, turns));
            }
        }
    });
}

async fn converse(bot: &Bot, session: &str, turns: Vec<Turn>) {
    let limits = Limits::default();
    for turn in turns {
        if turn.check(0, &limits).is_err() {
            continue;
        }
        let command = AppendCommand {
            turns: vec![encoding::encode(turn)],
            ..AppendCommand::default()
        };
        if bot.append(session, command).await.is_err() {
            continue;
        }
        for budget in BUDGETS {
            match bot.context(session, asking("large", budget)).await {
                Ok(window) => check(&window, budget),
                Err(error) => assert!(
                    matches!(
                        &error,
                        EngineError::Core(CoreError::CurrentTurnTooLarge { .. })
                    ),
                    "{error:?}"
                ),
            }
        }
    }
    bot.end(session).await.ok();
}

/// Asserts that a window is within its budget and every result directly follows its call.
fn check(window: &ContextOutcome, budget: u64) {
    assert!(
        window.report.blocks.total() <= budget,
        "{:?}",
        window.report
    );
    let mut open: Vec<Box<str>> = Vec::new();
    for (place, turn) in window.turns.iter().enumerate() {
        let links = encoding::open(&turn.content).unwrap().links();
        for id in &links.results {
            let waiting = open
                .iter()
                .position(|open| open == id)
                .unwrap_or_else(|| panic!("{place}: {id} answers nothing"));
            open.remove(waiting);
        }
        let is_next = links.results.is_empty();
        assert!(!is_next || open.is_empty(), "{place}: {open:?} wait");
        open.extend(links.uses.iter().cloned());
    }
}
