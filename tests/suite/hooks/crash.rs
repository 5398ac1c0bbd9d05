//! `kill -9` between an end and its delivery, and between a delivery and its record.
//!
//! After a restart, pending deliveries are made at least once.

use std::collections::BTreeSet;

use memoird_proto::v1::{
    DeliveryState, GetHistoryRequest, HistoryScope, ResetSessionRequest, RetryHookDeliveryRequest,
};

use crate::harness::{
    Daemon, Setup, all_delivered, delivered, deliveries, end, eventually, field, in_state, say,
    stats,
};

/// Stores each delivery, and kills the daemon during the first one.
const KILLER: &str = "exec: { argv: [sh, -c, 'mkdir -p told && f=$(mktemp told/XXXXXXXX) && \
    cat > $f && mv $f $f.json; mkdir killed && kill -9 $PPID; exit 0'] }";

/// Stores each delivery if it is complete: the input is truncated if the daemon dies.
const CAREFUL: &str = "exec: { argv: [sh, -c, 'mkdir -p told && f=$(mktemp told/XXXXXXXX) && \
    cat > $f && [ \"$(tail -c 2 $f)\" = \"]}\" ] && mv $f $f.json'] }";

/// The same, but waits for the file `go` first.
const WAITER: &str = "exec: { argv: [sh, -c, 'echo x >> started; \
    until [ -e go ]; do sleep 0.02; done; mkdir -p told && f=$(mktemp told/XXXXXXXX) && \
    cat > $f && [ \"$(tail -c 2 $f)\" = \"]}\" ] && mv $f $f.json'] }";

#[tokio::test]
async fn delivery_made_but_not_recorded_before_crash_is_repeated() {
    let setup = Setup::default().section(format!("hooks: [ {{ name: it, {KILLER} }} ]"));
    let mut daemon = Daemon::with(setup).await;
    let mut client = daemon.sessions();
    say(&mut client, "chat", "remember me").await;
    let generation = end(&mut client, "chat").await;
    daemon.killed().await;
    assert_eq!(
        delivered(&daemon).len(),
        1,
        "it was done once before the crash"
    );
    daemon.restart().await;
    all_delivered(&mut daemon.admin()).await;
    let all = delivered(&daemon);
    assert_eq!(all.len(), 2, "and again, because nobody could know");
    let keys: BTreeSet<&str> = all.iter().map(|told| field(told, "delivery")).collect();
    assert_eq!(
        keys,
        BTreeSet::from([format!("{generation}/it").as_str()]),
        "under one key"
    );
    assert_eq!(all[0]["turns"], all[1]["turns"]);
    assert_eq!(
        deliveries(&mut daemon.admin(), in_state(DeliveryState::Done))
            .await
            .len(),
        1
    );
}

#[tokio::test]
async fn kill_9_between_end_and_delivery_loses_none() {
    const SESSIONS: usize = 25;
    let hooks = format!(
        "hooks:\n- {{ name: waits, timeout: 10m, {WAITER} }}\n- {{ name: keeps, {CAREFUL} }}"
    );
    let mut daemon = Daemon::with(Setup::default().section(hooks)).await;
    let mut client = daemon.sessions();
    let mut owed = BTreeSet::new();
    for number in 0..SESSIONS {
        let session = format!("s{number}");
        say(&mut client, &session, "hi").await;
        let generation = end(&mut client, &session).await;
        owed.extend([format!("{generation}/waits"), format!("{generation}/keeps")]);
    }
    eventually("a hook is at work", async || {
        daemon.path("started").exists().then_some(())
    })
    .await;
    daemon.kill9().await;
    daemon.restart().await;
    let mut admin = daemon.admin();
    let pending = stats(&mut admin).await.hooks_pending;
    assert!(pending >= SESSIONS as u64, "{pending} are owed still");
    std::fs::write(daemon.path("go"), "").expect("a file");
    all_delivered(&mut admin).await;
    let all = delivered(&daemon);
    let keys: BTreeSet<String> = all
        .iter()
        .map(|it| field(it, "delivery").to_owned())
        .collect();
    assert_eq!(keys, owed);
    assert_eq!(
        deliveries(&mut admin, in_state(DeliveryState::Done))
            .await
            .len(),
        owed.len()
    );
}

#[tokio::test]
async fn pending_deliveries_outlive_retention_of_turns() {
    let fails = "{ name: fails, retry: { tries: 1 }, exec: { argv: ['false'] } }";
    let waits = "{ name: waits, retry: { pause: 1h, pause_max: 1h }, exec: { argv: ['false'] } }";
    let setup = |hooks: &str| {
        let brief = "journal: { durability: sync, retention: 1ms }";
        Setup::default()
            .section(brief)
            .section(format!("hooks: [ {hooks} ]"))
    };
    let mut daemon = Daemon::with(setup(&format!("{fails}, {waits}"))).await;
    let (mut client, mut admin) = (daemon.sessions(), daemon.admin());
    say(&mut client, "kept", "first").await;
    say(&mut client, "kept", "second").await;
    let kept = end(&mut client, "kept").await;
    say(&mut client, "forgotten", "hi").await;
    let request = ResetSessionRequest {
        session_id: "forgotten".to_owned(),
        run_hooks: false,
        ..ResetSessionRequest::default()
    };
    let reset = client
        .reset_session(request)
        .await
        .expect("reset")
        .into_inner();
    let dead = async || {
        deliveries(&mut admin, in_state(DeliveryState::Dead))
            .await
            .pop()
    };
    eventually("one hook gave up", dead).await;
    // Shortly after a start, turns without pending deliveries are deleted.
    daemon.stop().await;
    let keeps = |name: &str| format!("{{ name: {name}, {CAREFUL} }}");
    daemon
        .restart_with(setup(&format!("{}, {}", keeps("fails"), keeps("waits"))))
        .await;
    let (mut client, mut admin) = (daemon.sessions(), daemon.admin());
    let look = GetHistoryRequest {
        session_id: "forgotten".to_owned(),
        generation: reset.ended_generation,
        scope: HistoryScope::Journal.into(),
        ..Default::default()
    };
    eventually("it is forgotten", async || {
        client.get_history(look.clone()).await.err()
    })
    .await;
    for hook in ["fails", "waits"] {
        let request = RetryHookDeliveryRequest {
            id: format!("{kept}/{hook}"),
        };
        admin
            .retry_hook_delivery(request)
            .await
            .expect("it is retried");
    }
    all_delivered(&mut admin).await;
    let all = delivered(&daemon);
    assert_eq!(all.len(), 2);
    for told in &all {
        let texts = [&told["turns"][0], &told["turns"][1]].map(|turn| &turn["parts"][0]["text"]);
        assert_eq!(texts, ["first", "second"], "{told}");
    }
}
