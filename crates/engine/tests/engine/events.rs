//! Event streams.
//!
//! A watcher receives every committed event of its own tenant in order, and a count of the events
//! it was too slow for.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use memoird_core::change::EndReason;
use memoird_engine::{
    EVENTS_MAX, Engine, EngineConfig, Event, EventKind, WatchFrom, WatchItem, WatchScope, Watcher,
};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::bot::{Bot, saying};
use crate::hooks::script::{HookStep, ScriptedHook};
use crate::hooks::{hooked, with_hooks};
use crate::kit::{TTL, World, capped, poll_once, settle, soon, unswept, unswept_with_cap};

/// Returns the items that are available without waiting.
async fn available_items(watcher: &mut Watcher) -> Vec<WatchItem> {
    let mut all = Vec::new();
    while let Some(seen) = poll_once(&mut Box::pin(watcher.next())).await {
        all.push(seen);
    }
    all
}

async fn events(watcher: &mut Watcher) -> Vec<Event> {
    let event = |seen| match seen {
        WatchItem::Event { event, .. } => event,
        WatchItem::Missed { count, .. } => panic!("{count} were missed"),
    };
    available_items(watcher)
        .await
        .into_iter()
        .map(event)
        .collect()
}

/// Short descriptions of events.
fn words(events: &[Event]) -> Vec<String> {
    let word = |event: &Event| {
        let what = match &event.kind {
            EventKind::Created => "created".to_owned(),
            EventKind::Appended {
                first_seq,
                last_seq,
                dropped_turns,
                ..
            } => {
                format!("{first_seq}-{last_seq}-{dropped_turns}")
            }
            EventKind::Rewound {
                after_seq,
                through_seq,
            } => format!("rewound {after_seq} {through_seq}"),
            EventKind::TurnUpdated { seq } => format!("updated {seq}"),
            EventKind::Ended(reason) => format!("{reason:?}"),
            EventKind::Compacted {
                number,
                through_seq,
                ..
            } => {
                format!("summary {number} {through_seq}")
            }
            EventKind::CompactionFailed { reason, .. } => format!("no summary: {reason}"),
            EventKind::Erased => "erased".to_owned(),
            EventKind::CompactionUndone { number } => format!("no summary {number} any more"),
            EventKind::Learned { through_seq, .. } => format!("learned {through_seq}"),
            EventKind::ExtractionFailed { reason, .. } => format!("nothing learned: {reason}"),
            EventKind::HookDelivered { hook, tries } => format!("{hook} done {tries}"),
            EventKind::HookFailed {
                hook,
                tries,
                problem,
                gave_up,
            } => {
                format!("{hook} {problem} {tries} {gave_up}")
            }
        };
        format!("{} {what}", event.session)
    };
    events.iter().map(word).collect()
}

/// A watcher of the bot's tenant from now on.
fn mine(engine: &Engine, bot: &Bot) -> Watcher {
    from(engine, bot, &WatchFrom::Now)
}

fn from(engine: &Engine, bot: &Bot, from: &WatchFrom) -> Watcher {
    let scope = WatchScope::Tenant(bot.tenant.clone());
    engine.events.watch(scope, from)
}

#[tokio::test(start_paused = true)]
async fn events_of_a_session_are_in_order_with_consecutive_ids() {
    let mut config = unswept();
    config.limits.max_history_turns = 2;
    let engine = World::new(config).open().await;
    let bot = Bot::acme(&engine);
    let mut watcher = mine(&engine, &bot);
    assert!(available_items(&mut watcher).await.is_empty());
    let first = bot
        .append("s", saying(&["one", "two"]))
        .await
        .unwrap()
        .record
        .generation;
    bot.append("s", saying(&["three", "four"])).await.unwrap();
    bot.patch("s", "{}", None).await.unwrap();
    let (view, _) = bot.reset("s").await.unwrap();
    sleep(TTL).await;
    bot.say("s", "again").await.unwrap();
    bot.end("s").await.unwrap();
    let events = events(&mut watcher).await;
    let expected = [
        "s created",
        "s 1-2-0",
        "s 3-4-1",
        "s Reset",
        "s created",
        "s Expired",
        "s created",
        "s 1-1-0",
        "s Ended",
    ];
    assert_eq!(words(&events), expected);
    assert!(events.iter().map(|event| event.id).eq(1..=9));
    assert!(events.is_sorted_by_key(|event| event.at));
    let generations: Vec<_> = events.iter().map(|event| event.generation).collect();
    assert_eq!(generations[..4], [first; 4]);
    assert_eq!(generations[4..6], [view.head.generation; 2]);
    assert!(
        generations[6..]
            .iter()
            .all(|generation| *generation == generations[6])
    );
}

#[tokio::test(start_paused = true)]
async fn evicted_event_precedes_created_event() {
    let engine = World::new(unswept_with_cap(1)).open().await;
    let bot = Bot::acme(&engine);
    bot.say("old", "hello").await.unwrap();
    let mut watcher = mine(&engine, &bot);
    bot.say("new", "hello").await.unwrap();
    assert_eq!(
        words(&events(&mut watcher).await),
        ["old Evicted", "new created", "new 1-1-0"]
    );
    // The same across two tenants: each receives only its own event.
    let mut config = EngineConfig {
        tenants: vec![capped("a", 0), capped("b", 0)],
        ..unswept()
    };
    config.sessions.max_sessions = 2;
    let engine = World::new(config).open().await;
    let (large, small) = (Bot::new(&engine, "a"), Bot::new(&engine, "b"));
    for id in ["one", "two"] {
        large.say(id, "hello").await.unwrap();
    }
    let mut watchers = [&large, &small].map(|bot| mine(&engine, bot));
    small.say("new", "hello").await.unwrap();
    assert_eq!(words(&events(&mut watchers[0]).await), ["one Evicted"]);
    assert_eq!(
        words(&events(&mut watchers[1]).await),
        ["new created", "new 1-1-0"]
    );
}

#[tokio::test(start_paused = true)]
async fn uncommitted_changes_emit_no_events() {
    let world = World::new(unswept_with_cap(1));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    let mut watcher = mine(&engine, &bot);
    world.store.fail_commits(1);
    bot.say("s", "lost").await.unwrap_err();
    bot.say("s", "hello").await.unwrap();
    for failing in 0..3 {
        world.store.fail_commits(1);
        match failing {
            0 => drop(bot.say("s", "lost").await.unwrap_err()),
            1 => drop(bot.end("s").await.unwrap_err()),
            _ => drop(bot.say("t", "lost").await.unwrap_err()),
        }
    }
    settle().await;
    assert_eq!(words(&events(&mut watcher).await), ["s created", "s 1-1-0"]);
}

#[tokio::test(start_paused = true)]
async fn events_are_emitted_only_after_commit() {
    let world = World::with_pool(unswept());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    let mut watcher = mine(&engine, &bot);
    world.store.hold_commits();
    let mut say = Box::pin(bot.say("s", "hello"));
    assert!(poll_once(&mut say).await.is_none());
    world.store.commit_begun(1).await;
    let mut next = Box::pin(watcher.next());
    assert!(poll_once(&mut next).await.is_none());
    world.store.let_commits_go();
    say.await.unwrap();
    let WatchItem::Event { event, .. } = soon(next).await else {
        panic!("nothing was missed")
    };
    assert_eq!(event.kind, EventKind::Created);
}

#[tokio::test(start_paused = true)]
async fn watch_of_tenant_excludes_events_of_others() {
    let tenants = vec![capped("a", 0), capped("b", 0), capped("quiet", 0)];
    let engine = World::new(EngineConfig {
        tenants,
        ..unswept()
    })
    .open()
    .await;
    let bots = ["a", "b", "quiet"].map(|id| Bot::new(&engine, id));
    let mut watchers = bots
        .each_ref()
        .map(|bot| from(&engine, bot, &WatchFrom::Start));
    let mut all = engine.events.watch(WatchScope::All, &WatchFrom::Now);
    for text in ["one", "two", "three"] {
        for bot in &bots[..2] {
            bot.say("s", text).await.unwrap();
        }
    }
    for watcher in &mut watchers[..2] {
        assert_eq!(events(watcher).await.len(), 4);
    }
    assert!(available_items(&mut watchers[2]).await.is_empty());
    let mut by_tenant = std::collections::BTreeMap::<_, Vec<_>>::new();
    for seen in available_items(&mut all).await {
        let WatchItem::Event { tenant, event } = seen else {
            panic!("nothing was missed")
        };
        by_tenant
            .entry(tenant.id.to_string())
            .or_default()
            .push(event.id);
    }
    assert_eq!(
        by_tenant.into_iter().collect::<Vec<_>>(),
        [
            ("a".to_owned(), vec![1, 2, 3, 4]),
            ("b".to_owned(), vec![1, 2, 3, 4]),
        ]
    );
}

/// Counts how often a task was woken.
#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// An append of one tenant must not wake the waiting watchers of all others.
#[tokio::test(start_paused = true)]
async fn events_of_another_tenant_do_not_wake_watcher() {
    let tenants = vec![capped("busy", 0), capped("quiet", 0)];
    let config = EngineConfig {
        tenants,
        ..unswept()
    };
    let engine = World::new(config).open().await;
    let [busy, quiet] = ["busy", "quiet"].map(|id| Bot::new(&engine, id));
    let mut watcher = mine(&engine, &quiet);
    let wakes = Arc::<Wakes>::default();
    let waker = Waker::from(Arc::clone(&wakes));
    let mut next = Box::pin(watcher.next());
    let polled = next.as_mut().poll(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    busy.say("s", "hello").await.unwrap();
    busy.end("s").await.unwrap();
    settle().await;
    assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
    quiet.say("s", "hello").await.unwrap();
    assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn watch_all_includes_tenants_added_later() {
    let engine = World::new(unswept()).open().await;
    Bot::acme(&engine).say("before", "hello").await.unwrap();
    let mut all = engine.events.watch(WatchScope::All, &WatchFrom::Now);
    let mut config = unswept();
    config.tenants.push(capped("new", 0));
    engine.reconfigure(config).await;
    Bot::new(&engine, "new").say("s", "hello").await.unwrap();
    assert_eq!(words(&events(&mut all).await), ["s created", "s 1-1-0"]);
}

#[tokio::test(start_paused = true)]
async fn slow_watcher_gets_number_of_missed_events() {
    let engine = World::new(unswept()).open().await;
    let bot = Bot::acme(&engine);
    let mut slow = mine(&engine, &bot);
    let total = EVENTS_MAX as u64 + 100;
    bot.say("s", "hello").await.unwrap();
    for _ in 2..10 {
        bot.say("s", "more").await.unwrap();
    }
    let mut late = mine(&engine, &bot);
    for _ in 10..total {
        bot.say("s", "more").await.unwrap();
    }
    for (watcher, after) in [(&mut slow, 0), (&mut late, 10)] {
        let mut seen = available_items(watcher).await.into_iter();
        let Some(WatchItem::Missed { count, .. }) = seen.next() else {
            panic!("nothing is missing")
        };
        assert_eq!(count, total - EVENTS_MAX as u64 - after);
        let ids = seen.map(|seen| match seen {
            WatchItem::Event { event, .. } => event.id,
            WatchItem::Missed { count, .. } => panic!("{count} more are missing"),
        });
        assert!(ids.eq(total - EVENTS_MAX as u64 + 1..=total));
    }
}

#[tokio::test(start_paused = true)]
async fn cursor_of_earlier_start_reports_missed_events() {
    let world = World::new(unswept());
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    let mut watcher = mine(&engine, &bot);
    bot.say("s", "hello").await.unwrap();
    assert_eq!(events(&mut watcher).await.len(), 2);
    let from = WatchFrom::Cursor(watcher.cursor().unwrap().clone());
    drop(watcher);
    engine.close().await;

    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    for _ in 0..EVENTS_MAX + 5 {
        bot.say("s", "more").await.unwrap();
    }
    let scope = WatchScope::Tenant(bot.tenant.clone());
    let mut seen = available_items(&mut engine.events.watch(scope, &from))
        .await
        .into_iter();
    let Some(WatchItem::Missed { count, .. }) = seen.next() else {
        panic!("nothing is missing")
    };
    assert_eq!((count, seen.len()), (5, EVENTS_MAX));
}

#[tokio::test(start_paused = true)]
async fn cancelled_wait_loses_no_event() {
    let engine = World::new(unswept()).open().await;
    let bot = Bot::acme(&engine);
    let mut watcher = mine(&engine, &bot);
    let mut ids = Vec::new();
    let mut calls = JoinSet::new();
    for call in 0..50 {
        let bot = bot.clone();
        calls.spawn(async move {
            sleep(Duration::from_millis(call)).await;
            bot.say(&format!("s{}", call % 5), "hello").await.unwrap();
        });
    }
    for pause_us in 0..400 {
        let wait = Duration::from_micros(pause_us % 700);
        if let Ok(WatchItem::Event { event, .. }) = tokio::time::timeout(wait, watcher.next()).await
        {
            ids.push(event.id);
        }
    }
    calls.join_all().await;
    ids.extend(events(&mut watcher).await.iter().map(|event| event.id));
    assert_eq!(ids, (1..=55).collect::<Vec<u64>>());
}

#[tokio::test(start_paused = true)]
async fn delivery_outcomes_are_reported_to_their_tenant() {
    let hook = ScriptedHook::new([HookStep::Later, HookStep::Ok, HookStep::Never]);
    let world = World::new(with_hooks(unswept(), [hooked("a", &hook)]));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    let mut watcher = mine(&engine, &bot);
    for id in ["s", "t"] {
        bot.say(id, "hello").await.unwrap();
        bot.end(id).await.unwrap();
        sleep(Duration::from_secs(5)).await;
    }
    let events = events(&mut watcher).await;
    let words = words(&events);
    assert_eq!(words[2..5], ["s Ended", "s a no 1 false", "s a done 2"]);
    assert_eq!(words[7..], ["t Ended", "t a no 1 true"]);
    assert!(
        events[2..5]
            .iter()
            .all(|event| event.generation == events[0].generation)
    );
    assert_eq!(events[2].kind, EventKind::Ended(EndReason::Ended));
}
