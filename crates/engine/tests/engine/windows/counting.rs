//! Token counts are cached, and calibration applies only to the tenant and model of the charge.

use std::sync::Arc;

use memoird_core::window::OmissionReason;
use memoird_engine::ContextRequest;
use tokio::task::JoinSet;

use super::{RecordingTokenizer, Remembered, asking, charged, model, peeking, with_models};
use crate::bot::Bot;
use crate::kit::{ACME, World, settle, tenant, unswept};

#[tokio::test(start_paused = true)]
async fn turn_is_counted_once_per_start() {
    let tokenizer = Arc::<RecordingTokenizer>::default();
    let mut config = with_models(
        unswept(),
        ["m", "twin"]
            .map(|name| model(name, 500_000, &tokenizer))
            .into(),
    );
    config.limits.max_history_turns = 8;
    let world = World::new(config);
    for life in 1..=3 {
        let engine = world.open().await;
        let bot = Bot::acme(&engine);
        for number in 0..20 {
            bot.say("a", &format!("{life}.{number}")).await.unwrap();
            for name in ["m", "twin", "m"] {
                bot.context("a", asking(name, 100_000 + number))
                    .await
                    .unwrap();
                bot.context("a", peeking()).await.unwrap();
            }
        }
        assert_eq!(
            tokenizer.times("[[1.0]]"),
            life,
            "the anchor, once each life"
        );
        for number in 0..20 {
            // The last eight turns of one run are in memory at the start of the next.
            let text = format!("[[{life}.{number}]]");
            assert_eq!(tokenizer.times(&text), 1, "{text}");
        }
        settle().await;
        engine.close().await;
    }
    assert_eq!(
        (tokenizer.times("[[1.11]]"), tokenizer.times("[[1.15]]")),
        (1, 2)
    );
}

#[tokio::test(start_paused = true)]
async fn each_scale_counts_separately_and_keeps_counts_across_reload() {
    let (first, second) = (
        Arc::<RecordingTokenizer>::default(),
        Arc::<RecordingTokenizer>::default(),
    );
    let models = || {
        let mut other = model("other", 500_000, &second);
        other.profile.provider = memoird_formats::model::Provider::Open;
        vec![model("m", 500_000, &first), other]
    };
    let world = World::new(with_models(unswept(), models()));
    let engine = world.open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    for _ in 0..5 {
        for name in ["m", "other"] {
            bot.context("a", asking(name, 1_000)).await.unwrap();
        }
        engine.reconfigure(with_models(unswept(), models())).await;
    }
    assert_eq!(
        (first.times("[[hello]]"), second.times("[[hello]]")),
        (1, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn prompt_is_counted_once_for_all_sessions() {
    let tokenizer = Arc::<RecordingTokenizer>::default();
    let models = ["m", "twin"].map(|name| model(name, 500_000, &tokenizer));
    let engine = World::new(with_models(unswept(), models.into()))
        .open()
        .await;
    let bot = Bot::acme(&engine);
    let (system, tools) = ("be kind", r#"[{"name":"look"}]"#);
    let ask = |name: &str, system: &str| ContextRequest {
        model: name.to_owned(),
        system: system.to_owned(),
        tools_json: tools.to_owned(),
        overhead_tokens: 7,
        ..ContextRequest::default()
    };
    let mut seen = Vec::new();
    for id in ["a", "b", "c"] {
        bot.say(id, "hello").await.unwrap();
        for name in ["m", "twin"] {
            seen.push(
                bot.context(id, ask(name, system))
                    .await
                    .unwrap()
                    .report
                    .blocks
                    .system,
            );
        }
    }
    let shown = "# Tools\n\n## functions\n\nnamespace functions {\n\ntype look = () => any;\n\n\
                 } // namespace functions";
    assert_eq!((tokenizer.times(system), tokenizer.times(shown)), (1, 1));
    assert_eq!(seen, [seen[0]; 6]);
    let other = bot
        .context("a", ask("m", "be kinder"))
        .await
        .unwrap()
        .report
        .blocks
        .system;
    assert_eq!(other, seen[0] + 2);
    let asked = tokenizer.asked();
    bot.context("a", ask("m", system)).await.unwrap();
    assert_eq!(tokenizer.asked(), asked, "there is nothing left to count");
}

#[tokio::test(start_paused = true)]
async fn charges_calibrate_one_tenant_and_model_only() {
    let tokenizer = Arc::<RecordingTokenizer>::default();
    let models = ["m", "n"].map(|name| model(name, 500_000, &tokenizer));
    let mut config = with_models(unswept(), models.into());
    config.tenants.push(tenant("other", Default::default()));
    let engine = World::new(config).open().await;
    let (bot, other) = (Bot::new(&engine, ACME), Bot::new(&engine, "other"));
    for bot in [&bot, &other] {
        bot.say("a", &"x".repeat(20_000)).await.unwrap();
    }
    let factor = async |bot: &Bot, name: &str| {
        let ask = ContextRequest {
            peek: true,
            ..asking(name, 400_000)
        };
        bot.context("a", ask).await.unwrap().report.token_factor
    };
    for _ in 0..40 {
        let ask = ContextRequest {
            model: "m".into(),
            ..ContextRequest::default()
        };
        let sent = bot.context("a", ask).await.unwrap();
        let counted = sent.report.blocks.total() as f64 / sent.report.token_factor;
        let tokens = format!("{:.0}", counted * 1.3).parse().unwrap();
        bot.append("a", charged("m-2024-08-06", tokens))
            .await
            .unwrap();
        // A second charge is not matched to a window.
        bot.append("a", charged("m", 9_000_000)).await.unwrap();
    }
    let learnt = factor(&bot, "m").await;
    assert!((1.25..1.35).contains(&learnt), "{learnt}");
    for (bot, name) in [(&bot, "n"), (&other, "m"), (&other, "n")] {
        assert!((factor(bot, name).await - 1.0).abs() < 1e-9);
    }
    // The factor applies to later windows: the first turn's 20,000 tokens become 26,000.
    for (tokens, is_excerpt) in [(50_000, false), (25_000, true)] {
        let report = bot.context("a", asking("m", tokens)).await.unwrap().report;
        assert!(report.blocks.total() <= tokens);
        let mut omissions = report.omissions.iter();
        let has_excerpt = omissions.any(|omission| omission.reason == OmissionReason::Excerpt);
        assert_eq!(has_excerpt, is_excerpt, "{report:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn memory_block_does_not_affect_calibration() {
    let mut config = with_models(unswept(), vec![model("m", 500_000, &Arc::default())]);
    config.tenants.push(tenant("other", Default::default()));
    let engine = World::new(config).open().await;
    let (bot, other) = (Bot::new(&engine, ACME), Bot::new(&engine, "other"));
    for bot in [&bot, &other] {
        bot.say("a", &"x".repeat(4_000)).await.unwrap();
    }
    let tokens = async |bot: &Bot| {
        let ask = ContextRequest {
            memories: Some(Arc::new(Remembered(800))),
            ..asking("m", 400_000)
        };
        bot.context("a", ask).await.unwrap().report.blocks.total()
    };
    for _ in 0..20 {
        // The tenant `other` reports no charges.
        let counted = tokens(&other).await;
        assert_eq!(tokens(&bot).await, counted);
        bot.append("a", charged("m", counted)).await.unwrap();
        other.say("a", "answer").await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn concurrent_windows_count_long_history_once() {
    let tokenizer = Arc::<RecordingTokenizer>::default();
    let config = with_models(unswept(), vec![model("m", 500_000, &tokenizer)]);
    let engine = World::with_pool(config).open().await;
    let bot = Bot::acme(&engine);
    let text = "x".repeat(100_000);
    bot.say("a", &text).await.unwrap();
    let mut windows = JoinSet::new();
    for _ in 0..16 {
        let bot = bot.clone();
        windows.spawn(async move { bot.context("a", asking("m", 400_000)).await });
    }
    while let Some(window) = windows.join_next().await {
        assert_eq!(window.unwrap().unwrap().turns.len(), 1);
    }
    assert_eq!(tokenizer.times(&format!("[[{text}]]")), 1);
}

#[tokio::test(start_paused = true)]
async fn wrong_usage_of_one_session_does_not_affect_others() {
    let config = with_models(unswept(), vec![model("m", 500_000, &Arc::default())]);
    let engine = World::new(config).open().await;
    let bot = Bot::acme(&engine);
    let ask = |peek| ContextRequest {
        peek,
        ..asking("m", 400_000)
    };
    bot.say("right", &"x".repeat(6_000)).await.unwrap();
    let before = bot.context("right", ask(true)).await.unwrap().report;
    for number in 0..12 {
        bot.say("wrong", &"x".repeat(500)).await.unwrap();
        let sent = bot.context("wrong", ask(false)).await.unwrap().report;
        let tenth = sent.blocks.total() / 10;
        bot.append("wrong", charged("m", tenth)).await.unwrap();
        let after = bot.context("right", ask(true)).await.unwrap().report;
        assert_eq!(after.blocks, before.blocks, "{number}");
        assert!((after.token_factor - before.token_factor).abs() < 1e-9);
    }
}

#[tokio::test(start_paused = true)]
async fn dated_model_name_uses_the_profile_of_its_family() {
    let config = with_models(unswept(), vec![model("gpt-4.1", 500_000, &Arc::default())]);
    let engine = World::new(config).open().await;
    let bot = Bot::acme(&engine);
    bot.say("a", "hello").await.unwrap();
    for (asked, is_noted) in [
        ("gpt-4.1", false),
        ("", false),
        ("gpt-4.1-2025-04-14", true),
        ("openai/gpt-4.1", true),
    ] {
        let ask = ContextRequest {
            model: asked.into(),
            ..ContextRequest::default()
        };
        let report = bot.context("a", ask).await.unwrap().report;
        assert_eq!(&*report.model, "gpt-4.1", "{asked}");
        let has_note = report.notes.iter().any(|note| note.contains("matched by"));
        assert_eq!(has_note, is_noted, "{asked}: {:?}", report.notes);
        assert!(!report.degraded, "{asked}");
    }
}
