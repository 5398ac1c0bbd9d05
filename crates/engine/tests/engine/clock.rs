//! Wall clock steps: sessions neither expire early nor live longer.

use std::time::Duration;

use tokio::time::sleep;

use crate::bot::{Bot, named};
use crate::kit::{DAY_MS, TTL, World, config, settle, unswept};

const STEPS: [i64; 3] = [-DAY_MS, DAY_MS, -30 * 365 * DAY_MS];

#[tokio::test(start_paused = true)]
async fn wall_clock_step_does_not_change_expiry() {
    for step in STEPS {
        let world = World::new(config());
        let engine = world.open().await;
        let bot = Bot::acme(&engine);
        bot.say("a", "hello").await.unwrap();
        sleep(TTL / 2).await;
        world.machine.step_wall(step);
        let view = bot.view("a").await.unwrap();
        let ttl_ms = i64::try_from(TTL.as_millis()).unwrap();
        if step > -30 * DAY_MS {
            // Displayed times are consistent with the stepped wall clock.
            let idle_ms = view.expires_at.unwrap().as_ms() - view.last_access.as_ms();
            assert_eq!(idle_ms, ttl_ms);
        }
        sleep(TTL / 2 - Duration::from_millis(1)).await;
        assert_eq!(bot.list().await, ["a"], "after a step of {step} ms");
        sleep(TTL / 4 + Duration::from_millis(1)).await;
        assert_eq!(bot.stats().expired, 1, "after a step of {step} ms");
    }
}

#[tokio::test(start_paused = true)]
async fn wall_clock_step_during_downtime_does_not_change_expiry() {
    for step in STEPS {
        let world = World::new(unswept());
        let engine = world.open().await;
        let bot = Bot::acme(&engine);
        bot.append("a", named("key", &["hello"])).await.unwrap();
        engine.close().await;
        world.machine.step_wall(step);
        sleep(TTL - Duration::from_millis(1)).await;
        let engine = world.open().await;
        let bot = Bot::acme(&engine);
        assert_eq!(bot.list().await, ["a"], "after a step of {step} ms");
        assert!(
            bot.append("a", named("key", &["hello"]))
                .await
                .unwrap()
                .duplicate
        );
        engine.close().await;
        world.machine.step_wall(-step);
        sleep(TTL).await;
        let engine = world.open().await;
        settle().await;
        assert_eq!(
            Bot::acme(&engine).stats().expired,
            1,
            "after a step of {step} ms"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn lru_order_survives_wall_clock_step_back() {
    let world = World::new(crate::kit::unswept_with_cap(2));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    world.machine.step_wall(-DAY_MS);
    for id in ["b", "c"] {
        settle().await;
        bot.say(id, "hello").await.unwrap();
    }
    assert_eq!(bot.list().await, ["c", "b"]);
}
