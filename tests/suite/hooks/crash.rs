//! `kill -9` between an end and its delivery, and between a delivery and the record of it:
//! what is owed is delivered by the next start, at least once.

use std::collections::BTreeSet;

use memoird_proto::v1::DeliveryState;

use crate::harness::{
    Daemon, Setup, all_delivered, deliveries, end, eventually, field, in_state, say, stats, told,
};

/// Keeps what it is told, and kills the daemon that told it, the first time.
const KILLER: &str = "exec: { argv: [sh, -c, 'mkdir -p told && f=$(mktemp told/XXXXXXXX) && \
    cat > $f && mv $f $f.json; mkdir killed && kill -9 $PPID; exit 0'] }";

/// Keeps what it is told when it is whole: the input of a program whose daemon dies ends
/// early.
const CAREFUL: &str = "exec: { argv: [sh, -c, 'mkdir -p told && f=$(mktemp told/XXXXXXXX) && \
    cat > $f && [ \"$(tail -c 2 $f)\" = \"]}\" ] && mv $f $f.json'] }";

/// The same, but waits for a file before.
const WAITER: &str = "exec: { argv: [sh, -c, 'echo x >> started; \
    until [ -e go ]; do sleep 0.02; done; mkdir -p told && f=$(mktemp told/XXXXXXXX) && \
    cat > $f && [ \"$(tail -c 2 $f)\" = \"]}\" ] && mv $f $f.json'] }";

#[tokio::test]
async fn a_delivery_that_was_made_and_not_recorded_is_made_again() {
    let setup = Setup::default().section(format!("hooks: [ {{ name: it, {KILLER} }} ]"));
    let mut daemon = Daemon::with(setup).await;
    let mut client = daemon.sessions();
    say(&mut client, "chat", "remember me").await;
    let generation = end(&mut client, "chat").await;
    daemon.killed().await;
    assert_eq!(told(&daemon).len(), 1, "it was done once before the crash");
    daemon.restart().await;
    all_delivered(&mut daemon.admin()).await;
    let all = told(&daemon);
    assert_eq!(all.len(), 2, "and again, because nobody could know");
    let keys: BTreeSet<&str> = all.iter().map(|told| field(told, "delivery")).collect();
    assert_eq!(keys, BTreeSet::from([format!("{generation}/it").as_str()]), "under one key");
    assert_eq!(all[0]["turns"], all[1]["turns"]);
    assert_eq!(deliveries(&mut daemon.admin(), in_state(DeliveryState::Done)).await.len(), 1);
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
    eventually("a hook is at work", async || daemon.path("started").exists().then_some(())).await;
    daemon.kill9().await;
    daemon.restart().await;
    let mut admin = daemon.admin();
    let pending = stats(&mut admin).await.hooks_pending;
    assert!(pending >= SESSIONS as u64, "{pending} are owed still");
    std::fs::write(daemon.path("go"), "").expect("a file");
    all_delivered(&mut admin).await;
    let all = told(&daemon);
    let keys: BTreeSet<String> = all.iter().map(|it| field(it, "delivery").to_owned()).collect();
    assert_eq!(keys, owed);
    assert_eq!(deliveries(&mut admin, in_state(DeliveryState::Done)).await.len(), owed.len());
}
