//! Conversations in each provider's message format, with summaries.
//!
//! Every window is a request that the provider accepts.

use std::collections::HashSet;

use memoird_core::budget::BudgetOverride;
use memoird_core::error::CoreError;
use memoird_core::session::AppendCommand;
use memoird_core::turn::{MessageFormat, Turn};
use memoird_core::window::Policy;
use memoird_engine::{ContextOutcome, ContextRequest, EngineError};
use memoird_formats::messages::{RenderOptions, parse, render};
use memoird_store::encoding;
use serde_json::{Value, json};

use super::compacting;
use super::script::Script;
use crate::bot::Bot;
use crate::kit::{World, settle};
use MessageFormat::{Anthropic, OpenAi, OpenAiResponses};

/// In tokens. The test tokenizer counts one token per byte.
const BUDGETS: [u64; 3] = [1_500, 4_000, 30_000];
const POLICIES: [Option<Policy>; 3] = [
    None,
    Some(Policy::Salience),
    Some(Policy::SlidingWindow { turns: 5 }),
];
const STEPS: usize = 16;

/// Seeded pseudorandom numbers (SplitMix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn one_in(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }

    fn words(&mut self) -> String {
        let bytes = match self.below(12) {
            0 => 1_500,
            1 | 2 => 400,
            _ => 40,
        };
        let number = self.below(100_000);
        format!("said {number} {}", "and so on, ".repeat(bytes / 11))
    }
}

/// The appends of a bot in order: messages, and whether the bot calls its model next.
///
/// It does not while a tool call is pending.
fn conversation(format: MessageFormat, counts_anew: bool, dice: &mut Dice) -> Vec<(Value, bool)> {
    let mut appends = Vec::new();
    let mut calls = 0;
    for _ in 0..STEPS {
        appends.push((json!([asks(format, dice)]), true));
        if dice.one_in(9) {
            appends.push((json!([instructs(format, dice)]), true));
        }
        for _ in 0..dice.below(4) {
            let ids: Vec<String> = (0..=dice.below(3))
                .map(|n| format!("c{}", calls + n))
                .collect();
            if !counts_anew {
                calls += ids.len() as u64;
            }
            appends.push((thinks(format, &ids, dice).into(), false));
            let count = ids.len();
            let answered: Vec<String> = ids.into_iter().filter(|_| !dice.one_in(12)).collect();
            let results: Vec<Value> = answered
                .iter()
                .map(|id| answers(format, id, dice))
                .collect();
            let is_over = results.len() == count;
            let groups = match format {
                Anthropic if dice.one_in(2) => vec![results],
                _ => results.into_iter().map(|result| vec![result]).collect(),
            };
            let together: Vec<Vec<Value>> =
                groups.into_iter().filter(|it| !it.is_empty()).collect();
            let last = together.len();
            for (at, results) in together.into_iter().enumerate() {
                let messages = match format {
                    Anthropic => json!([{ "role": "user", "content": results }]),
                    _ => results.into(),
                };
                appends.push((messages, is_over && at + 1 == last));
            }
        }
        if !dice.one_in(8) {
            let said = json!([{ "role": "assistant", "content": dice.words() }]);
            appends.push((said, true));
        }
    }
    appends
}

fn asks(format: MessageFormat, dice: &mut Dice) -> Value {
    let said = dice.words();
    if dice.one_in(2) {
        return json!({ "role": "user", "content": said });
    }
    let content = match format {
        Anthropic => {
            json!([{ "type": "text", "text": said, "cache_control": { "type": "ephemeral" } }])
        }
        OpenAi => json!([{ "type": "text", "text": said },
            { "type": "image_url", "image_url": { "url": "data:image/png;base64,iVBORw0KGgo=" } }]),
        OpenAiResponses => json!([{ "type": "input_text", "text": said }]),
    };
    json!({ "role": "user", "content": content })
}

fn instructs(format: MessageFormat, dice: &mut Dice) -> Value {
    let role = if format == OpenAi && dice.one_in(2) {
        "developer"
    } else {
        "system"
    };
    json!({ "role": role, "content": dice.words() })
}

fn thinks(format: MessageFormat, ids: &[String], dice: &mut Dice) -> Vec<Value> {
    let input = json!({ "of": dice.below(3) });
    let says = dice.one_in(2).then(|| dice.words());
    match format {
        Anthropic => {
            let mut blocks =
                vec![json!({ "type": "thinking", "thinking": "hm", "signature": "s" })];
            blocks.extend(says.map(|text| json!({ "type": "text", "text": text })));
            blocks.extend(
                ids.iter().map(
                    |id| json!({ "type": "tool_use", "id": id, "name": "look", "input": input }),
                ),
            );
            vec![json!({ "role": "assistant", "content": blocks })]
        }
        OpenAi => {
            let call = |id: &String| {
                json!({ "id": id, "type": "function",
                    "function": { "name": "look", "arguments": input.to_string() } })
            };
            let calls: Vec<Value> = ids.iter().map(call).collect();
            vec![json!({ "role": "assistant", "content": says, "tool_calls": calls })]
        }
        OpenAiResponses => {
            let mut items = vec![json!({ "type": "reasoning", "id": format!("rs_{}", ids[0]),
                "summary": [], "encrypted_content": "gAAA" })];
            items.extend(says.map(|text| json!({ "role": "assistant", "content": text })));
            items.extend(ids.iter().map(|id| {
                json!({ "type": "function_call", "id": format!("fc_{id}"), "call_id": id,
                    "name": "look", "arguments": input.to_string() })
            }));
            items
        }
    }
}

fn answers(format: MessageFormat, id: &str, dice: &mut Dice) -> Value {
    let said = dice.words();
    match format {
        Anthropic => json!({ "type": "tool_result", "tool_use_id": id, "content": said,
            "cache_control": { "type": "ephemeral" } }),
        OpenAi => json!({ "role": "tool", "tool_call_id": id, "content": said }),
        OpenAiResponses => json!({ "type": "function_call_output", "call_id": id, "output": said }),
    }
}

#[tokio::test(start_paused = true)]
async fn every_window_is_a_valid_provider_request() {
    for seed in 0..2 {
        // The last case sends turns without a format and repeats the same call ids in each message.
        for (format, is_native) in [
            (Anthropic, false),
            (OpenAi, false),
            (OpenAiResponses, false),
            (OpenAi, true),
        ] {
            let script = Script::new([]);
            let world = World::new(compacting(&script));
            let bot = Bot::acme(&world.open().await);
            let appends = conversation(format, is_native, &mut Dice(seed));
            for (at, (messages, is_asked)) in appends.into_iter().enumerate() {
                let mut turns = parse(format, &messages.to_string()).expect("messages");
                for turn in turns.iter_mut().filter(|_| is_native) {
                    (turn.format, turn.extra_json) = (None, String::new());
                    turn.parts
                        .iter_mut()
                        .for_each(|part| part.extra_json.clear());
                }
                let command = AppendCommand {
                    turns: turns.into_iter().map(encoding::encode).collect(),
                    ..AppendCommand::default()
                };
                bot.append("a", command).await.expect("appended");
                if !is_asked {
                    continue;
                }
                for budget in BUDGETS {
                    for policy in POLICIES {
                        let place =
                            format!("seed {seed}, {format:?}, append {at}, {budget}, {policy:?}");
                        check_windows(&bot, budget, policy, &place).await;
                    }
                }
                settle().await;
            }
            assert!(script.times() > 0, "nothing was summarized");
        }
    }
}

async fn check_windows(bot: &Bot, budget: u64, policy: Option<Policy>, place: &str) {
    let request = ContextRequest {
        budget: BudgetOverride::without_reserves(budget),
        policy,
        ..ContextRequest::default()
    };
    match bot.context("a", request).await {
        Ok(window) => {
            for format in [Anthropic, OpenAi, OpenAiResponses] {
                let messages = requested(format, &window);
                let problem = match format {
                    Anthropic => anthropic(&messages),
                    OpenAi => openai(&messages),
                    OpenAiResponses => responses(&messages),
                };
                if let Err(problem) = problem {
                    let all = serde_json::to_string_pretty(&messages).expect("JSON");
                    panic!("{place}, as {format:?}: {problem}\n{all}");
                }
            }
        }
        Err(EngineError::Core(CoreError::CurrentTurnTooLarge { .. })) => {}
        Err(error) => panic!("{place}: {error:?}"),
    }
}

/// Renders the messages of a window as the server does.
fn requested(format: MessageFormat, window: &ContextOutcome) -> Vec<Value> {
    let opened = window
        .turns
        .iter()
        .map(|turn| encoding::open_with_seq(&turn.content).expect("a turn"));
    let (seqs, turns): (Vec<u64>, Vec<Turn>) = opened.unzip();
    let gaps = (1..seqs.len()).filter(|&at| seqs[at - 1] > 0 && seqs[at] != seqs[at - 1] + 1);
    let options = RenderOptions {
        behind_gap: &gaps.collect::<Vec<_>>(),
        nonce: window.nonce,
        is_request: true,
        ..RenderOptions::default()
    };
    let rendered = render(format, &turns, &options);
    serde_json::from_str(&rendered.messages_json).expect("a list")
}

fn blocks(message: &Value) -> Vec<&Value> {
    message["content"]
        .as_array()
        .into_iter()
        .flatten()
        .collect()
}

fn ids<'a>(blocks: &[&'a Value], kind: &str, id: &str) -> Vec<&'a str> {
    let of_kind = blocks.iter().filter(|block| block["type"] == kind);
    of_kind.filter_map(|block| block[id].as_str()).collect()
}

fn anthropic(messages: &[Value]) -> Result<(), String> {
    if messages
        .first()
        .is_some_and(|first| first["role"] != "user")
    {
        return Err("the user does not begin".into());
    }
    let marks = Value::from(messages.to_vec())
        .to_string()
        .matches("\"cache_control\"")
        .count();
    if marks > 2 {
        return Err(format!("{marks} marks"));
    }
    // The API merges consecutive messages of one role.
    let mut waiting: HashSet<&str> = HashSet::new();
    let mut known = HashSet::new();
    for run in messages.chunk_by(|one, next| one["role"] == next["role"]) {
        let content: Vec<&Value> = run.iter().flat_map(blocks).collect();
        let is_blank = |text: &Value| text.as_str().is_some_and(|text| text.trim().is_empty());
        let is_silent = |message: &Value| {
            is_blank(&message["content"])
                || message["content"].as_array().is_some_and(Vec::is_empty)
        };
        if run.iter().any(is_silent) || content.iter().any(|block| is_blank(&block["text"])) {
            return Err("blank".into());
        }
        let results = ids(&content, "tool_result", "tool_use_id");
        if results.iter().copied().collect::<HashSet<_>>() != waiting
            || results.len() != waiting.len()
        {
            return Err(format!("{waiting:?} wait, {results:?} answer"));
        }
        let begin = content
            .iter()
            .take_while(|block| block["type"] == "tool_result")
            .count();
        if begin != results.len() && run[0]["content"].is_array() {
            return Err(format!("results behind other blocks: {content:?}"));
        }
        let uses = ids(&content, "tool_use", "id");
        if !uses.iter().all(|id| known.insert(*id)) {
            return Err(format!("used again: {uses:?}"));
        }
        waiting = uses.into_iter().collect();
        if run[0]["role"] == "assistant"
            && content
                .last()
                .is_some_and(|last| last["type"] == "thinking")
        {
            return Err("thinking ends a message".into());
        }
    }
    let systems = messages
        .windows(2)
        .filter(|pair| pair[1]["role"] == "system");
    for pair in systems {
        if pair[0]["role"] != "user" {
            return Err("a system message behind the assistant's".into());
        }
    }
    let mut systems = messages
        .windows(2)
        .filter(|pair| pair[0]["role"] == "system");
    if systems.any(|pair| pair[1]["role"] != "assistant") {
        return Err("a system message before the user's".into());
    }
    if waiting.is_empty() {
        Ok(())
    } else {
        Err(format!("{waiting:?} wait at the end"))
    }
}

fn openai(messages: &[Value]) -> Result<(), String> {
    let mut waiting: Vec<&str> = Vec::new();
    for message in messages {
        if message["role"] == "tool" {
            let id = message["tool_call_id"].as_str().unwrap_or_default();
            let place = waiting.iter().position(|waits| *waits == id);
            waiting.remove(place.ok_or_else(|| format!("{id} answers nothing"))?);
            continue;
        }
        if !waiting.is_empty() {
            return Err(format!("{waiting:?} wait"));
        }
        let calls = message["tool_calls"].as_array();
        let is_silent = message["content"].is_null()
            || blocks(message).is_empty() && message["content"].is_array();
        if is_silent && calls.is_none_or(Vec::is_empty) {
            return Err(format!("says nothing: {message}"));
        }
        waiting.extend(
            calls
                .into_iter()
                .flatten()
                .filter_map(|call| call["id"].as_str()),
        );
    }
    if waiting.is_empty() {
        Ok(())
    } else {
        Err(format!("{waiting:?} wait at the end"))
    }
}

fn responses(items: &[Value]) -> Result<(), String> {
    let mut waiting = HashSet::new();
    for (at, item) in items.iter().enumerate() {
        let id = item["call_id"].as_str().unwrap_or_default();
        match item["type"].as_str().unwrap_or_default() {
            "function_call" => {
                waiting.insert(id);
                // OpenAI rejects a call without the reasoning item that produced it.
                let begins = item["id"].is_string()
                    && items[..at]
                        .iter()
                        .rev()
                        .take_while(|before| {
                            before["role"] != "user" && before["type"] != "function_call_output"
                        })
                        .all(|before| before["type"] != "reasoning");
                if begins {
                    return Err(format!("{id} without its reasoning"));
                }
            }
            "function_call_output" if !waiting.remove(id) => {
                return Err(format!("{id} answers nothing"));
            }
            "reasoning" => {
                let next = items.get(at + 1);
                if next.is_none_or(|next| {
                    next["role"] == "user" || next["type"] == "function_call_output"
                }) {
                    return Err("reasoning without what it led to".into());
                }
            }
            _ => {}
        }
    }
    if waiting.is_empty() {
        Ok(())
    } else {
        Err(format!("{waiting:?} wait at the end"))
    }
}
