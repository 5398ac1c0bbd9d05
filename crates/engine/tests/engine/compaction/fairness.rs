//! One tenant's compactions barely delay another's, however many are queued or hanging.

use std::sync::Arc;
use std::time::Duration;

use memoird_engine::{SummaryRequest, TenantLimits};
use tokio::time::sleep;

use super::compacting;
use super::script::{ModelStep, Script};
use super::talk::Talk;
use crate::bot::Bot;
use crate::kit::{World, poll_once, settle, soon, tenant};

async fn tenants(script: &Arc<Script>, ids: &[&str]) -> (World, Vec<Bot>) {
    let mut config = compacting(script);
    config.tenants = ids
        .iter()
        .map(|id| tenant(id, TenantLimits::default()))
        .collect();
    config.compaction.provider_breaker.failures_max = u32::MAX;
    let world = World::new(config);
    let engine = world.open().await;
    let bots = ids.iter().map(|id| Bot::new(&engine, id)).collect();
    (world, bots)
}

/// Creates sessions that need a summary, and requests a window of each to trigger one.
async fn many(bot: &Bot, count: usize) {
    for number in 0..count {
        let mut talk = Talk::new(bot, &format!("s{number}"));
        talk.exchanges(17).await;
        talk.window().await;
    }
}

fn asked_by(script: &Script, tenant: &str) -> usize {
    let of = |ask: &&Arc<SummaryRequest>| ask.tenant.as_str() == tenant;
    script.asked.lock().unwrap().iter().filter(of).count()
}

#[tokio::test(start_paused = true)]
async fn hanging_compactions_of_one_tenant_do_not_block_others() {
    let script = Script::always(ModelStep::Never);
    let (_world, bots) = tenants(&script, &["crowd", "other"]).await;
    many(&bots[0], 100).await;
    settle().await;
    assert_eq!(asked_by(&script, "crowd"), 2, "two of a tenant at once");
    script.will_now(ModelStep::Well);
    let mut talk = Talk::new(&bots[1], "a");
    talk.exchanges(17).await;
    talk.window().await;
    settle().await;
    assert!(talk.has_summary().await);
    soon(talk.compact(Some(1))).await.unwrap();
    // The queued sessions are served eventually.
    sleep(Duration::from_secs(121)).await;
    settle().await;
    assert_eq!(asked_by(&script, "crowd"), 100);
}

#[tokio::test(start_paused = true)]
async fn tenant_with_fewest_running_compactions_is_next() {
    let script = Script::always(ModelStep::Never);
    let (_world, bots) = tenants(&script, &["crowd", "throng", "other"]).await;
    many(&bots[0], 20).await;
    many(&bots[1], 20).await;
    let mut talk = Talk::new(&bots[2], "a");
    talk.exchanges(17).await;
    talk.window().await;
    settle().await;
    assert_eq!(script.times(), 4, "all places are taken");
    // The first ones time out after two minutes.
    sleep(Duration::from_secs(125)).await;
    assert_eq!(
        asked_by(&script, "other"),
        1,
        "it does not wait behind the crowds"
    );
}

#[tokio::test(start_paused = true)]
async fn cancelled_compaction_in_queue_calls_no_summarizer() {
    let script = Arc::new(Script::then(
        [ModelStep::Never, ModelStep::Never],
        ModelStep::Well,
    ));
    let (_world, bots) = tenants(&script, &["one"]).await;
    let mut calls = Vec::new();
    for session in ["a", "b", "c"] {
        let mut talk = Talk::new(&bots[0], session);
        talk.exchanges(8).await;
        calls.push(Box::pin(async move { talk.compact(Some(2)).await }));
    }
    for call in &mut calls {
        assert!(poll_once(call).await.is_none());
        settle().await;
    }
    drop(calls);
    sleep(Duration::from_secs(300)).await;
    assert_eq!(script.times(), 2);
}
