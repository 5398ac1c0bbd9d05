//! Replaces the summarizer or its key in a running daemon.

use crate::harness::{
    Daemon, Events, Setup, Summaries, SummaryReply, Wire, detail, reload, try_reload,
};

use super::bot::{Bot, ROOMY, STRICT, event_maker, event_text, sum};

fn with(provider: &Summaries, wire: Wire) -> Setup {
    provider.setup(wire, "tries: 1,", STRICT).section(ROOMY)
}

/// A setup with the summarizer's key in a file.
fn with_file(provider: &Summaries, path: &str) -> Setup {
    let summarizer =
        provider.summarizer(Wire::Webhook, &format!("{{ file: {path} }}"), "tries: 1,");
    let section = format!("compaction: {{ {STRICT} summarizer: {summarizer} }}");
    Setup::default().section(section).section(ROOMY)
}

#[tokio::test]
async fn reload_changes_summarizer_for_next_summary() {
    let [first, second] = [
        Summaries::start(SummaryReply::Well).await,
        Summaries::start(SummaryReply::Well).await,
    ];
    let mut daemon = Daemon::with(with(&first, Wire::Anthropic)).await;
    let mut bot = Bot::new(daemon.sessions());
    let mut events = Events::now(&mut daemon.sessions()).await;
    let event = bot.until(&mut events, "compacted").await;
    assert_eq!(event_maker(&event), "anthropic:small");
    let asked = first.calls().len();

    daemon.rewrite(with(&second, Wire::OpenAi));
    let (applied, refused) = reload(&mut daemon.admin()).await;
    assert!(
        applied
            .iter()
            .any(|it| it.starts_with("compaction.summarizer")),
        "{applied:?}"
    );
    assert_eq!(refused, [""; 0]);
    let event = bot.until(&mut events, "compacted").await;
    assert_eq!(
        (event_maker(&event), detail(&event)["number"].clone()),
        ("openai:small".into(), 2.into())
    );
    assert_eq!((first.calls().len(), second.calls().len()), (asked, 1));
    assert_eq!(
        sum(&daemon, "memoird_summarizer_breaker{", "openai:small").await,
        0
    );

    daemon.rewrite(Setup::default().section(ROOMY));
    reload(&mut daemon.admin()).await;
    let event = bot.until(&mut events, "compacted").await;
    assert_eq!(event_maker(&event), "extractive");
    assert_eq!(second.calls().len(), 1);
    bot.journal_is_whole().await;
}

#[tokio::test]
async fn running_compaction_finishes_with_old_summarizer_after_reload() {
    let [first, second] = [
        Summaries::start(SummaryReply::Held).await,
        Summaries::start(SummaryReply::Well).await,
    ];
    let mut daemon = Daemon::with(with(&first, Wire::Anthropic)).await;
    let mut bot = Bot::new(daemon.sessions());
    let mut events = Events::now(&mut daemon.sessions()).await;
    while first.calls().is_empty() {
        bot.exchange().await;
    }
    daemon.rewrite(with(&second, Wire::OpenAi));
    reload(&mut daemon.admin()).await;
    first.let_through(1);
    let event = bot.until(&mut events, "compacted").await;
    assert_eq!(event_maker(&event), "anthropic:small");
    let event = bot.until(&mut events, "compacted").await;
    assert_eq!(event_maker(&event), "openai:small");
}

#[tokio::test]
async fn reload_reads_summarizer_key_file_again() {
    let provider = Summaries::start(SummaryReply::Well).await;
    let key = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(key.path(), "sk-an-old-key-5e1f\n").expect("written");
    let path = key.path().display().to_string();
    let daemon = Daemon::with(with_file(&provider, &path)).await;
    let mut bot = Bot::new(daemon.sessions());
    let mut events = Events::now(&mut daemon.sessions()).await;
    let event = bot.until(&mut events, "compaction_failed").await;
    assert_eq!(event_text(&event, "reason"), "provider_misconfigured");
    assert!(event_text(&event, "error").contains("api_key"), "{event:?}");
    std::fs::write(key.path(), Summaries::KEY).expect("written");
    let (_, refused) = reload(&mut daemon.admin()).await;
    assert_eq!(refused, [""; 0]);
    bot.until(&mut events, "compacted").await;
    for secret in ["sk-an-old-key-5e1f", Summaries::KEY] {
        assert!(!daemon.log().contains(secret), "{secret} is in the log");
    }
}

#[tokio::test]
async fn unusable_summarizer_key_file_is_refused_and_changes_nothing() {
    let provider = Summaries::start(SummaryReply::Well).await;
    let missing = with_file(&provider, "/proc/no-such-key");
    let ended = Daemon::refused(&missing).await;
    assert_eq!(ended.code, Some(64), "{ended:?}");
    let place = "compaction.summarizer.webhook.api_key";
    assert!(
        ended.stderr.contains(place) && ended.stderr.contains("/proc/no-such-key"),
        "{ended:?}"
    );

    let mut daemon = Daemon::with(with(&provider, Wire::Webhook)).await;
    let bad = tempfile::NamedTempFile::new().expect("a file");
    for content in ["", " \n", "two\nlines-of-a-secret"] {
        std::fs::write(bad.path(), content).expect("written");
        daemon.rewrite(with_file(&provider, &bad.path().display().to_string()));
        let status = try_reload(&mut daemon.admin()).await.expect_err("refused");
        assert!(status.message().contains(place), "{content:?}: {status:?}");
        assert!(
            !status.message().contains("lines-of-a-secret"),
            "{status:?}"
        );
    }
    let mut bot = Bot::new(daemon.sessions());
    let mut events = Events::now(&mut daemon.sessions()).await;
    bot.until(&mut events, "compacted").await;
    assert!(!daemon.log().contains("lines-of-a-secret"));
}
