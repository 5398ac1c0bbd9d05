//! Forgetting: no response contains the memories after the call, even if callers or daemons die.

use std::sync::Arc;
use std::time::Duration;

use memoird_core::ids::MemoryId;
use memoird_engine::{Blocking, Cluster, EraseRequest, EraseTarget, Eraser, Machine};
use memoird_memories::rules::MemoryKind;
use memoird_memories::store::MemoryWriter;
use memoird_memories::{ForgetRequest, MemoryFilter, RememberRequest};
use tokio::sync::watch;
use tokio::time::sleep;

use super::embedder::{Mood, ScriptedEmbedder};
use super::{ANN, BOB, Daemon, acme, fact, query_in, subject, team, world, world_with};
use crate::kit::{poll_once, session_id, settle, soon};
use crate::world::Bot;
use crate::world::{World, unswept};

/// More memories than one step of a job deletes.
const MANY: usize = 1_300;

fn all_of(whose: &str) -> ForgetRequest {
    ForgetRequest::Subject(subject(whose))
}

/// Records a job without running it.
fn leave_job(world: &World, bot: &Bot, ask: ForgetRequest) {
    let now = world.machine.now().wall;
    let job = MemoryId::new(now.as_ms(), 1);
    world
        .kept_of(bot)
        .write_one(move |writer| writer.forget_begin(job, &ask, now))
        .unwrap();
}

/// Memory rows on disk, including those without an owner.
fn rows(world: &World) -> i64 {
    let path = world.memories.as_ref().unwrap().dir.path().join("acme.db");
    let file = rusqlite::Connection::open(path).unwrap();
    let count = "SELECT count(*) FROM memories";
    file.query_row(count, [], |row| row.get(0)).unwrap()
}

async fn knows_nothing(bot: &Bot, whose: &str, words: &str) {
    assert!(bot.finds(whose, words).await.is_empty());
    assert!(bot.listed(whose).await.is_empty());
    assert!(bot.list_of(Some(whose), true).await.is_empty());
    assert_eq!(bot.manifest(whose).await, "");
}

async fn learn_many(bot: &Bot, whose: &str) {
    for number in 0..MANY {
        bot.remember(fact(whose, &format!("tea number {number}")))
            .await
            .unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn forgotten_memory_is_gone_at_once() {
    let embedder = Arc::new(ScriptedEmbedder::new("m"));
    let world = world_with(&embedder);
    let bot = acme(&world.open().await);
    let old = bot.learn(ANN, "drank tea in Rome").await;
    let ask = RememberRequest {
        supersedes: Some(old),
        ..fact(ANN, "drinks tea in Oslo")
    };
    let id = bot.learn_so(ask).await;
    bot.learn(ANN, "likes chess").await;
    settle().await;
    assert!(bot.manifest(ANN).await.contains("Oslo"));
    assert_eq!(bot.finds(ANN, "tea").await[0], "drinks tea in Oslo");
    sleep(Duration::from_secs(1)).await;

    let dry = bot
        .memories
        .forgetting
        .forget(&bot.tenant, ForgetRequest::One(id), true)
        .await
        .unwrap();
    assert_eq!(
        bot.memory(id).await.unwrap().content,
        "drinks tea in Oslo",
        "only counted"
    );
    let real = bot.forget(ForgetRequest::One(id)).await.unwrap();
    assert_eq!((dry.memories, dry.superseded, dry.vectors), (1, 1, 1));
    assert!(dry.recall_events > 0 && !dry.erased && real.erased);
    assert_eq!(
        memoird_memories::ForgetOutcome {
            erased: true,
            ..dry
        },
        real
    );
    for gone in [id, old] {
        assert!(super::is_not_found(&bot.memory(gone).await));
    }
    assert!(
        !bot.finds(ANN, "tea")
            .await
            .iter()
            .any(|content| content.contains("tea"))
    );
    assert!(!bot.manifest(ANN).await.contains("Oslo"));
    assert_eq!(bot.listed(ANN).await, ["likes chess"]);
    assert!(
        bot.forget(ForgetRequest::One(id)).await.is_err(),
        "it is not there any more"
    );
}

#[tokio::test(start_paused = true)]
async fn forgetting_a_subject_removes_all_of_it_alone() {
    let world = world();
    let bot = acme(&world.open().await);
    learn_many(&bot, ANN).await;
    bot.learn_so(team(ANN, "tea for all")).await;
    bot.learn(BOB, "tea of Bob").await;
    assert!(bot.manifest(BOB).await.contains("tea for all"));
    assert!(bot.manifest(ANN).await.contains("tea number"));
    let dry = bot
        .memories
        .forgetting
        .forget(&bot.tenant, all_of(ANN), true)
        .await
        .unwrap();
    let real = bot.forget(all_of(ANN)).await.unwrap();
    assert_eq!(
        (real.memories, dry.memories),
        (MANY as u64 + 1, MANY as u64 + 1)
    );
    knows_nothing(&bot, ANN, "tea").await;
    assert_eq!(bot.finds(BOB, "tea").await, ["tea of Bob"]);
    let manifest = bot.manifest(BOB).await;
    assert!(
        manifest.contains("tea of Bob") && !manifest.contains("tea for all"),
        "{manifest}"
    );
    bot.learn(ANN, "is back, with tea").await;
    assert_eq!(bot.finds(ANN, "tea").await, ["is back, with tea"]);
    assert_eq!(
        bot.memories.counts(&bot.tenant.id).forgotten,
        real.memories + real.superseded
    );
}

#[tokio::test(start_paused = true)]
async fn forget_filter_matches_all_conditions() {
    let world = world();
    let bot = acme(&world.open().await);
    let so = |kind, tags: &[&str], content: &str| RememberRequest {
        kind,
        tags: tags.iter().map(|tag| (*tag).to_owned()).collect(),
        ..fact(ANN, content)
    };
    bot.learn_so(so(MemoryKind::Project, &["a"], "one")).await;
    bot.learn_so(so(MemoryKind::Project, &["a", "b"], "two"))
        .await;
    bot.learn_so(so(MemoryKind::Reference, &["a", "b"], "three"))
        .await;
    let filter = MemoryFilter {
        subject: Some(subject(ANN)),
        kinds: vec![MemoryKind::Project],
        tags: vec!["a".to_owned(), "b".to_owned()],
        ..MemoryFilter::default()
    };
    let ask = ForgetRequest::Filter(filter);
    let dry = bot
        .memories
        .forgetting
        .forget(&bot.tenant, ask.clone(), true)
        .await
        .unwrap();
    assert_eq!(
        (dry.memories, bot.forget(ask).await.unwrap().memories),
        (1, 1)
    );
    assert_eq!(bot.listed(ANN).await, ["one", "three"]);
}

/// Dropped after each possible number of steps.
#[tokio::test(start_paused = true)]
async fn cancelled_forget_is_finished_by_maintenance() {
    for polls in 1..6 {
        for ask in [all_of(ANN), ForgetRequest::Filter(MemoryFilter::default())] {
            let world = World {
                blocking: Blocking::Pool,
                ..world()
            };
            let bot = acme(&world.open().await);
            learn_many(&bot, ANN).await;
            bot.manifest(ANN).await;
            sleep(Duration::from_secs(5)).await;
            let mut call = Box::pin(bot.forget(ask));
            for poll in 0..polls {
                if poll_once(&mut call).await.is_some() {
                    break;
                }
                if poll + 1 < polls {
                    sleep(Duration::from_millis(1)).await;
                }
            }
            drop(call);
            sleep(Duration::from_secs(5)).await;
            knows_nothing(&bot, ANN, "tea").await;
            let stats = bot.memories.facts.stats(&bot.tenant).await.unwrap();
            assert_eq!((stats.memories, stats.superseded), (0, 0), "after {polls}");
            soon(bot.engine.close()).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn forget_is_not_erased_while_earlier_job_runs() {
    for is_erasure in [false, true] {
        let world = world();
        let bot = acme(&world.open().await);
        learn_many(&bot, ANN).await;
        leave_job(&world, &bot, all_of(ANN));
        if is_erasure {
            let request = EraseRequest {
                tenant: bot.tenant.id.clone(),
                target: EraseTarget::Subject(subject(ANN)),
                generations: [].into(),
            };
            bot.memories.forgetting.erase(request).await.unwrap();
        } else {
            assert!(bot.forget(all_of(ANN)).await.unwrap().erased);
        }
        assert_eq!(rows(&world), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_forgets_do_not_report_erased_early() {
    let world = World {
        blocking: Blocking::Pool,
        ..world()
    };
    let bot = acme(&world.open().await);
    learn_many(&bot, ANN).await;
    let forget = async || {
        let outcome = bot.forget(all_of(ANN)).await.unwrap();
        assert!(!outcome.erased || rows(&world) == 0);
        outcome.memories
    };
    let (one, other) = tokio::join!(forget(), forget());
    assert_eq!(one + other, MANY as u64);
    assert_eq!(rows(&world), 0);
}

#[test]
fn forget_resumes_after_crash() {
    for ask in [all_of(ANN), ForgetRequest::Filter(MemoryFilter::default())] {
        let mut daemon = Daemon::new(unswept());
        daemon.live(async |engine, world| {
            let bot = acme(engine);
            learn_many(&bot, ANN).await;
            // The job is recorded, and one step of it is done.
            let store = world
                .memories
                .as_ref()
                .unwrap()
                .files
                .tenant(&bot.tenant.id)
                .unwrap();
            let filter = match &ask {
                ForgetRequest::Subject(subject) => ForgetRequest::Subject(subject.clone()),
                _ => ForgetRequest::Filter(MemoryFilter {
                    subject: None,
                    kinds: Vec::new(),
                    tags: Vec::new(),
                    after: None,
                    before: None,
                }),
            };
            let job = MemoryId::new(1, 1);
            let at = memoird_core::time::Timestamp::from_ms(1_700_000_000_000);
            store
                .write_one(move |writer| {
                    writer.forget_begin(job, &filter, at)?;
                    writer.forget_step(job, 100)
                })
                .unwrap();
        });
        daemon.live(async |engine, _| {
            sleep(Duration::from_secs(2)).await;
            let bot = acme(engine);
            knows_nothing(&bot, ANN, "tea").await;
            assert_eq!(
                bot.memories
                    .facts
                    .stats(&bot.tenant)
                    .await
                    .unwrap()
                    .memories,
                0
            );
        });
    }
}

#[tokio::test(start_paused = true)]
async fn leader_finishes_forgets_of_other_daemons() {
    let embedder = Arc::new(ScriptedEmbedder::new("m"));
    let mut world = world_with(&embedder);
    let (_leads, leads) = watch::channel(true);
    world.config.cluster = Some(Cluster::new(1, leads));
    world.store = Arc::new(world.store.shared(1));
    let bot = acme(&world.open().await);
    let tea = bot.learn(BOB, "likes tea").await;
    bot.learn(ANN, "likes chess").await;
    sleep(Duration::from_secs(60)).await;
    let memories = bot.list_of(Some(BOB), false).await;
    bot.forget(ForgetRequest::One(tea)).await.unwrap();
    let now = world.machine.now().wall;
    let import =
        move |writer: &MemoryWriter<'_>| writer.import(&memories, now, &Default::default());
    world.kept_of(&bot).write_one(import).unwrap();
    leave_job(&world, &bot, all_of(ANN));
    let outcome = bot.forget(all_of("zoe")).await.unwrap();
    assert!(!outcome.erased, "a caller elsewhere may still do the other");
    sleep(Duration::from_secs(300)).await;
    assert_eq!(rows(&world), 2, "and count what went");
    sleep(Duration::from_secs(3_600)).await;
    assert_eq!(rows(&world), 1);
    assert_eq!(
        bot.memories
            .facts
            .stats(&bot.tenant)
            .await
            .unwrap()
            .embedded,
        1
    );
}

#[tokio::test(start_paused = true)]
async fn forget_resumes_although_first_read_fails() {
    let world = world();
    let engine = world.open().await;
    let bot = acme(&engine);
    bot.learn(ANN, "likes chess").await;
    leave_job(&world, &bot, all_of(ANN));
    engine.close().await;
    let dir = world.memories.as_ref().unwrap().dir.path();
    let elsewhere = dir.with_extension("elsewhere");
    std::fs::rename(dir, &elsewhere).unwrap();
    let _engine = world.open().await;
    settle().await;
    std::fs::rename(&elsewhere, dir).unwrap();
    assert_eq!(rows(&world), 1);
    sleep(Duration::from_secs(3_600)).await;
    assert_eq!(rows(&world), 0);
}

/// The maintenance worker looks for work left by a crash as soon as an engine is opened.
#[tokio::test(start_paused = true)]
async fn forget_counts_rows_while_maintenance_runs() {
    let world = World {
        blocking: Blocking::Pool,
        ..world()
    };
    let engine = world.open().await;
    learn_many(&acme(&engine), ANN).await;
    let all = acme(&engine).list_of(None, true).await;
    engine.close().await;
    for yields in 0..25 {
        let engine = world.open().await;
        let bot = acme(&engine);
        for _ in 0..4 * yields * yields {
            tokio::task::yield_now().await;
            std::thread::yield_now();
        }
        assert_eq!(bot.forget(all_of(ANN)).await.unwrap().memories, MANY as u64);
        for some in all.chunks(500) {
            bot.memories
                .facts
                .import(&bot.tenant, some.to_vec())
                .await
                .unwrap();
        }
        engine.close().await;
    }
}

/// Texts queued for embedding whose owner is gone are no work for the embedder.
#[tokio::test(start_paused = true)]
async fn pending_forget_does_not_keep_embedder_busy() {
    let embedder = Arc::new(ScriptedEmbedder::new("m"));
    let world = world_with(&embedder);
    let bot = acme(&world.open().await);
    bot.learn(BOB, "is there so that the file knows its model")
        .await;
    settle().await;
    bot.learn(ANN, "likes tea").await;
    let filter = ForgetRequest::Subject(subject(ANN));
    let (job, now) = (MemoryId::new(1, 1), world.machine.now().wall);
    let store = world
        .memories
        .as_ref()
        .unwrap()
        .files
        .tenant(&bot.tenant.id)
        .unwrap();
    store
        .write_one(move |writer| writer.forget_begin(job, &filter, now))
        .unwrap();
    let steps = || {
        let workers = bot.engine.workers();
        workers
            .iter()
            .find(|worker| worker.name == "embedder")
            .unwrap()
            .steps()
    };
    let before = steps();
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
    let taken = steps() - before;
    assert!((1..10).contains(&taken), "{taken} steps");
}

#[tokio::test(start_paused = true)]
async fn text_at_embedder_is_not_restored() {
    let embedder = Arc::new(ScriptedEmbedder::new("m"));
    let world = world_with(&embedder);
    let bot = acme(&world.open().await);
    embedder.feels(Mood::Hangs);
    let id = bot.learn(ANN, "likes tea").await;
    settle().await;
    assert_eq!(embedder.times("likes tea"), 1);
    let counts = bot.forget(ForgetRequest::One(id)).await.unwrap();
    assert_eq!(counts.queued_embeddings, 1);
    embedder.feels(Mood::Fine);
    sleep(Duration::from_secs(200)).await;
    let stats = bot.memories.facts.stats(&bot.tenant).await.unwrap();
    assert_eq!((stats.embedded, stats.embedding_queued), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn recall_event_does_not_restore_forgotten_memory() {
    let world = world();
    let bot = acme(&world.open().await);
    bot.tell("s", ANN, "hello").await;
    bot.learn(ANN, "likes tea").await;
    bot.recall(query_in("s", "tea")).await.unwrap();
    let counts = bot.forget(all_of(ANN)).await.unwrap();
    assert_eq!(
        counts.recall_events, 1,
        "the note was before it in the lane"
    );
    bot.learn(ANN, "likes tea").await;
}

#[tokio::test(start_paused = true)]
async fn lease_before_forget_restores_nothing() {
    let world = world();
    let bot = acme(&world.open().await);
    for ask in [all_of(ANN), ForgetRequest::Filter(MemoryFilter::default())] {
        bot.tell("s", ANN, "I like tea").await;
        bot.learn(ANN, "likes chess").await;
        let session = session_id("s");
        let lease = bot
            .memories
            .learning
            .lease(&bot.tenant, &session, None, None)
            .await
            .unwrap();
        sleep(Duration::from_secs(1)).await;
        bot.forget(ask).await.unwrap();
        let facts = Vec::new();
        let late = bot
            .memories
            .learning
            .commit(&bot.tenant, lease.lease.unwrap(), facts)
            .await;
        assert!(late.is_err());
        knows_nothing(&bot, ANN, "tea").await;
    }
}
