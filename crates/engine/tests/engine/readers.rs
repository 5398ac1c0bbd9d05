//! Journal reads: limited concurrency, with tenants served in turn.

use memoird_core::session::AppendCommand;
use memoird_core::turn::{MessageFormat, PartKind, Role, Turn};
use memoird_engine::{HistoryQuery, HistoryScope};
use memoird_store::{JournalRange, READERS_MAX, encoding};
use tokio::task::JoinSet;

use crate::bot::{Bot, saying};
use crate::kit::{World, capped, poll_once, unswept};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_reads_of_one_tenant_do_not_delay_others() {
    let mut config = unswept();
    config.tenants = vec![capped("flood", 0), capped("other", 0)];
    let world = World::with_threads(config);
    let engine = world.open().await;
    let (flood, other) = (Bot::new(&engine, "flood"), Bot::new(&engine, "other"));
    for bot in [&flood, &other] {
        bot.say("a", "hello").await.unwrap();
    }
    let readers = READERS_MAX as u64;
    world.store.hold_journals();
    let mut reads = JoinSet::new();
    for _ in 0..3_000 {
        let flood = flood.clone();
        reads.spawn(async move { flood.journal("a", None).await });
    }
    world.store.journal_begun(readers).await;
    let mut read = Box::pin(other.journal("a", None));
    assert!(poll_once(&mut read).await.is_none());
    other.say("a", "appends go on").await.unwrap();
    other.say("new", "and starts").await.unwrap();
    assert_eq!(world.store.journal_reads().len(), READERS_MAX);

    // A read queued earlier may go first; then `other` is served.
    let served = async {
        world.store.let_one_journal_go();
        world.store.let_one_journal_go();
        world.store.journal_begun(readers + 2).await;
        let begun = world.store.journal_reads();
        assert!(begun[READERS_MAX..].contains(&other.tenant.id), "{begun:?}");
        world.store.let_journals_go();
    };
    let (read, ()) = tokio::join!(read, served);
    assert!(read.unwrap().contains(&"hello".to_owned()));
    while let Some(read) = reads.join_next().await {
        read.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn newest_turns_are_read_from_memory_if_all_are_loaded() {
    let mut config = unswept();
    config.limits.max_history_turns = 4;
    let world = World::new(config);
    let bot = Bot::acme(&world.open().await);
    let owned: Vec<String> = (1..=9).map(|no| no.to_string()).collect();
    let texts: Vec<&str> = owned.iter().map(String::as_str).collect();
    bot.append("a", saying(&texts)).await.unwrap();
    let newest = |scope, turns_max| HistoryQuery {
        scope,
        generation: None,
        range: JournalRange {
            last: true,
            turns_max,
            ..JournalRange::ALL
        },
    };
    for scope in [HistoryScope::Journal, HistoryScope::Longest] {
        for (count, reads) in [(1, 0), (4, 0), (5, 1), (8, 1), (9, 1)] {
            let before = world.store.journal_reads().len();
            let (read, _) = bot.read("a", newest(scope, count)).await.unwrap();
            assert_eq!(read, texts[9 - count..], "the last {count}");
            assert_eq!(world.store.journal_reads().len() - before, reads, "{count}");
        }
    }
    // A result without a call is stored in the journal but not in the history.
    let mut lone_turn = Turn::new(
        Role::Tool,
        vec![
            PartKind::ToolResult {
                tool_use_id: "nobody's".into(),
                content: "[[lone]]".into(),
                parts: Vec::new(),
                is_error: false,
            }
            .into(),
        ],
    );
    lone_turn.format = Some(MessageFormat::OpenAiResponses);
    let lone = AppendCommand {
        turns: vec![encoding::encode(lone_turn)],
        ..AppendCommand::default()
    };
    bot.append("a", lone).await.unwrap();
    for _ in 0..3 {
        let all = bot.journal("a", None).await.unwrap();
        for count in 1..=4 {
            let query = newest(HistoryScope::Longest, count);
            let (read, _) = bot.read("a", query).await.unwrap();
            assert_eq!(read, all[all.len() - count..], "the last {count}");
        }
        bot.say("a", "more").await.unwrap();
    }
    // Reading the newest turns does not load the session into memory.
    bot.engine.close().await;
    let bot = Bot::acme(&world.open().await);
    let (read, _) = bot
        .read("a", newest(HistoryScope::Journal, 2))
        .await
        .unwrap();
    assert_eq!(read, ["more", "more"]);
    assert_eq!(world.store.loads(), 0);
}
