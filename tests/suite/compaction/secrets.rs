//! Keys and texts that a provider echoes in its errors are not passed on.

use memoird_proto::v1::CompactSessionRequest;

use crate::harness::{
    Daemon, Events, Setup, Summaries, SummaryReply, Wire, ask_as, detail, eventually, http_get,
    try_reload,
};

use super::bot::{Bot, ROOMY, STRICT, event_text};

/// Part of every exchange.
const SAID: &str = "waiting for it since";

#[tokio::test]
async fn provider_echo_leaks_no_secret_into_events_errors_log_or_metrics() {
    for wire in Wire::ALL {
        let provider = Summaries::start(SummaryReply::Echoes).await;
        let own = "tries: 1,";
        let setup = provider.setup(wire, own, STRICT).section(ROOMY);
        let setup = setup.env("MEMOIRD_LOG", "debug").env("RUST_LOG", "trace");
        let mut daemon = Daemon::with(setup.clone()).await;
        let mut bot = Bot::new(daemon.sessions());
        let mut events = Events::now(&mut daemon.sessions()).await;
        let mut seen = String::new();
        let mut look = |text: &str| {
            seen.push_str(text);
            seen.push('\n');
        };
        let event = bot.until(&mut events, "compaction_failed").await;
        assert!(
            event_text(&event, "error").contains("400 Bad Request"),
            "{event:?}"
        );
        look(&detail(&event).to_string());
        // With an unknown key, the provider echoes neither.
        provider.wants_key("another");
        let event = bot.until(&mut events, "compaction_failed").await;
        look(&detail(&event).to_string());
        let asked = CompactSessionRequest {
            session_id: "chat".into(),
            keep_exchanges: None,
        };
        let status = bot
            .client
            .compact_session(asked)
            .await
            .expect_err("refused");
        look(&format!("{status:?}"));
        look(&format!("{:?}", bot.session_detail().await.session));
        look(&http_get(daemon.admin_addr(), "/metrics").await.1);
        for args in [
            &["sessions", "compact", "chat"][..],
            &["stats"],
            &["sessions", "list"],
        ] {
            let outcome = ask_as(&daemon, args, "").await;
            look(&outcome.stdout);
            look(&outcome.stderr);
        }
        daemon.rewrite(provider.setup(wire, "tries: 99,", STRICT).section(ROOMY));
        look(&format!(
            "{:?}",
            try_reload(&mut daemon.admin()).await.expect_err("refused")
        ));
        look(
            &eventually("the log says so", async || {
                let log = daemon.log();
                log.contains("a session was not compacted").then_some(log)
            })
            .await,
        );
        for secret in [Summaries::KEY, &Summaries::KEY[3..], SAID] {
            let line = seen.lines().find(|line| line.contains(secret));
            assert_eq!(line, None, "{wire:?}: {secret}");
        }
    }
}

#[tokio::test]
async fn summarizer_error_text_is_shown_to_operators_only() {
    let provider = Summaries::start(SummaryReply::Echoes).await;
    let setup = provider.setup(Wire::ALL[0], "tries: 1,", STRICT);
    let daemon = Daemon::with(setup.section(ROOMY).two_tenants("", "")).await;
    let mut bot = Bot::new(daemon.sessions_of(Setup::ALPHA));
    let mut operator = Bot::new(daemon.sessions_of(Setup::ADMIN));
    let mut events = Events::now(&mut daemon.sessions_of(Setup::ALPHA)).await;
    let mut operators = Events::now(&mut daemon.sessions_of(Setup::ADMIN)).await;
    let event = bot.until(&mut events, "compaction_failed").await;
    let reason = event_text(&event, "reason");
    assert!(reason.starts_with("provider_"), "{event:?}");
    assert_eq!(detail(&event)["error"], "", "{event:?}");
    let seen = operators.until("compaction_failed").await;
    let seen = seen.last().expect("one");
    assert!(
        event_text(seen, "error").contains("400 Bad Request"),
        "{seen:?}"
    );
    let last_error = async |bot: &mut Bot| {
        let session = bot.session_detail().await.session.expect("a session");
        session.compaction.expect("its state").last_error
    };
    assert_eq!(last_error(&mut bot).await, reason);
    assert!(last_error(&mut operator).await.contains("400 Bad Request"));
    let asked = || CompactSessionRequest {
        session_id: "chat".into(),
        keep_exchanges: None,
    };
    for (who, is_told) in [(&mut bot, false), (&mut operator, true)] {
        let refused = eventually("no other compaction runs", async || {
            let refused = who.client.compact_session(asked()).await;
            let refused = refused.expect_err("no summary");
            (!refused.message().contains("is in progress")).then_some(refused)
        })
        .await;
        assert!(refused.message().contains(&reason), "{refused:?}");
        let is_there = refused.message().contains("400 Bad Request");
        assert_eq!(is_there, is_told, "{refused:?}");
    }
    let log = eventually("the log says so", async || {
        let log = daemon.log();
        log.contains("400 Bad Request").then_some(log)
    });
    log.await;
}
