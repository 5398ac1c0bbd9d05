//! The tool `read_earlier_turns`: where turns are read from, and when calls are answered.

use std::sync::{Arc, Mutex};

use memoird_core::session::AppendCommand;
use memoird_core::turn::{Part, PartKind, Role, Turn};
use memoird_engine::{
    ContextRequest, FoundTurns, RecallCall, RecallReply, RecallTool, TranscriptQuery,
    TranscriptSearch, TranscriptSearchError, TranscriptSearchFuture,
};
use memoird_store::encoding;

use crate::bot::{Bot, saying};
use crate::kit::{World, session_id, unswept};
use crate::windows::{asking, model, with_models};

const TOOL: &str = "read_earlier_turns";

/// A history limited to four turns, over a journal of nine.
async fn short_history() -> (World, Bot) {
    let mut config = with_models(unswept(), vec![model("m", 100_000, &Arc::default())]);
    config.limits.max_history_turns = 4;
    let world = World::new(config);
    let bot = Bot::acme(&world.open().await);
    let owned: Vec<String> = (1..=9).map(|number| format!("text {number}")).collect();
    let texts: Vec<&str> = owned.iter().map(String::as_str).collect();
    bot.append("a", saying(&texts)).await.unwrap();
    (world, bot)
}

async fn resolve(bot: &Bot, tool: &RecallTool, arguments: &str) -> RecallReply {
    let call = RecallCall {
        arguments_json: arguments.into(),
        ..RecallCall::default()
    };
    let commands = &bot.engine.commands;
    let session = session_id("a");
    let reply = commands.resolve_recall_tool(&bot.tenant, &session, tool, &call);
    reply.await.unwrap()
}

fn calling(calls: &[(&str, &str, &str)]) -> AppendCommand {
    let calls = calls.iter().map(|(id, name, arguments)| {
        Part::from(PartKind::ToolUse {
            id: (*id).into(),
            name: (*name).into(),
            input_json: (*arguments).into(),
        })
    });
    let turn = Turn::new(Role::Assistant, calls.collect());
    AppendCommand {
        turns: vec![encoding::encode(turn)],
        ..AppendCommand::default()
    }
}

fn offering(append: Option<AppendCommand>) -> ContextRequest {
    ContextRequest {
        append,
        recall_tool: Some(RecallTool::default()),
        ..asking("m", 100_000)
    }
}

async fn newest(bot: &Bot) -> String {
    bot.live("a").await.unwrap().pop().unwrap()
}

#[tokio::test(start_paused = true)]
async fn turns_in_memory_are_read_without_the_journal() {
    let (world, bot) = short_history().await;
    let reads = || world.store.journal_reads().len();
    let tool = RecallTool::default();
    let reply = resolve(&bot, &tool, r#"{"from_seq": 7, "to_seq": 9}"#).await;
    assert!(reply.text.contains("[[text 7]]") && reply.text.contains("[[text 9]]"));
    assert_eq!((reads(), reply.is_error), (0, false));
    let reply = resolve(&bot, &tool, r#"{"from_seq": 3, "to_seq": 7}"#).await;
    assert!(reply.text.contains("[[text 3]]") && reply.text.contains("[[text 7]]"));
    assert_eq!((reads(), reply.is_error), (1, false));
    let reply = resolve(&bot, &tool, r#"{"from_seq": 10}"#).await;
    assert_eq!((reads(), reply.is_error), (1, true));
}

#[tokio::test(start_paused = true)]
async fn open_calls_are_answered_unless_a_reply_streams_or_the_window_peeks() {
    let (_world, bot) = short_history().await;
    let call = calling(&[("c1", TOOL, r#"{"from_seq": 2}"#)]);
    let streaming = AppendCommand {
        partial: true,
        ..call
    };
    bot.context("a", offering(Some(streaming))).await.unwrap();
    assert_eq!(bot.view("a").await.unwrap().head.newest_seq, 10);
    bot.append(
        "a",
        AppendCommand {
            ..calling(&[("c2", TOOL, "{}")])
        },
    )
    .await
    .unwrap();
    let peek = ContextRequest {
        peek: true,
        ..offering(None)
    };
    bot.context("a", peek).await.unwrap();
    assert_eq!(bot.view("a").await.unwrap().head.newest_seq, 11);
    bot.context("a", offering(None)).await.unwrap();
    assert_eq!(bot.view("a").await.unwrap().head.newest_seq, 12);
    bot.context("a", offering(None)).await.unwrap();
    assert_eq!(bot.view("a").await.unwrap().head.newest_seq, 12);
}

#[tokio::test(start_paused = true)]
async fn parallel_calls_are_answered_together_and_after_those_of_other_tools() {
    let (_world, bot) = short_history().await;
    let both = calling(&[
        ("c1", TOOL, r#"{"from_seq": 2}"#),
        ("c2", TOOL, r#"{"from_seq": 3}"#),
    ]);
    bot.context("a", offering(Some(both))).await.unwrap();
    assert_eq!(bot.view("a").await.unwrap().head.newest_seq, 12);
    assert!(newest(&bot).await.contains("text 3"));
    let mixed = calling(&[("c3", TOOL, r#"{"from_seq": 4}"#), ("c4", "book", "{}")]);
    bot.context("a", offering(Some(mixed))).await.unwrap();
    assert_eq!(bot.view("a").await.unwrap().head.newest_seq, 13);
}

/// A search that returns these turns or fails.
#[derive(Debug)]
struct Script(Mutex<Option<Result<FoundTurns, TranscriptSearchError>>>);

impl TranscriptSearch for Script {
    fn find<'a>(&'a self, query: TranscriptQuery<'a>) -> TranscriptSearchFuture<'a> {
        assert_eq!((query.words, query.seqs), ("text", (2, u64::MAX)));
        let found = self.0.lock().unwrap().take().unwrap();
        Box::pin(async { found })
    }
}

#[tokio::test(start_paused = true)]
async fn found_turns_are_shown_in_order_and_failures_are_explained() {
    let (_world, bot) = short_history().await;
    let turn = |seq: u64, text: &str| {
        let part = PartKind::Text(text.into()).into();
        let turn = encoding::encode(Turn::new(Role::User, vec![part]));
        (seq, Arc::from(turn.body))
    };
    let found = FoundTurns {
        turns: vec![turn(6, "best text"), turn(2, "second text")],
        has_more: true,
        is_incomplete: true,
    };
    for (script, parts) in [
        (
            Ok(found),
            &[
                "#2 user\n  second text\n#6 user\n  best text\n2 of more than 2 matching",
                "newest turns may be missing",
            ][..],
        ),
        (Ok(FoundTurns::default()), &["No turn matches"][..]),
        (Err(TranscriptSearchError::NoWords), &["no words"][..]),
        (Err(TranscriptSearchError::NotReady), &["not available"][..]),
    ] {
        let is_error = script.is_err();
        let search: Arc<dyn TranscriptSearch> = Arc::new(Script(Mutex::new(Some(script))));
        let tool = RecallTool {
            search: Some(search),
        };
        let reply = resolve(&bot, &tool, r#"{"query": "text", "from_seq": 2}"#).await;
        assert_eq!(reply.is_error, is_error, "{}", reply.text);
        for part in parts {
            assert!(reply.text.contains(part), "{}", reply.text);
        }
    }
}
