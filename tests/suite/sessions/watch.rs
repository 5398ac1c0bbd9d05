//! Watchers receive events in order, and never delay other calls.

use std::collections::BTreeMap;

use memoird_proto::v1::{DeliveryState, Event, SweepNowRequest, WatchEventsRequest};
use serde_json::json;
use tokio::task::JoinSet;
use tonic::Code;

use crate::harness::{
    ALL, Daemon, Events, Setup, append, deliveries, detail, end, eventually, http_get, in_state,
    narrow_sessions, refused, refused_code, say, stats, user, wall_ms,
};

/// Number of events retained per tenant.
const RING: u64 = 4_096;

fn kinds(events: &[Event]) -> Vec<(&str, &str)> {
    events
        .iter()
        .map(|event| (event.word(), event.session_id.as_str()))
        .collect()
}

#[tokio::test]
async fn events_report_session_changes_in_order() {
    let hooks = "hooks:\n\
        - { name: works, on: [ended], exec: { argv: ['true'] } }\n\
        - { name: fails, on: [evicted], retry: { tries: 2, pause: 10ms, pause_max: 10ms }, \
            exec: { argv: [sh, -c, 'exit 7'] } }";
    let limits = "short_term: { max_sessions: 2, max_history_turns: 2 }";
    let daemon = Daemon::with(Setup::default().section(hooks).section(limits)).await;
    let mut client = daemon.sessions();
    let mut events = Events::now(&mut client).await;
    let turns: Vec<_> = ["1", "2", "3", "4", "5"].map(user).into();
    let a = client
        .append(append("a", turns))
        .await
        .expect("done")
        .into_inner();
    let a = a.session.expect("a session").generation;
    say(&mut client, "b", "hi").await;
    say(&mut client, "c", "a has to go").await;

    let mut seen = Vec::new();
    while !seen
        .iter()
        .any(|e: &Event| e.word() == "hook_failed" && detail(e)["gave_up"] == true)
    {
        seen.push(events.next().await);
    }
    end(&mut client, "b").await;
    seen.extend(events.until("hook_delivered").await);
    let ids = seen.iter().map(|event| event.event_id);
    let epoch = Events::epoch(&mut client).await;
    assert!(
        ids.eq((epoch + 1..).take(seen.len())),
        "one by one: {seen:?}"
    );
    assert!(
        seen.iter()
            .all(|event| event.tenant == "default" && event.time.is_some())
    );
    let hooks: Vec<&Event> = seen
        .iter()
        .filter(|it| it.word().starts_with("hook"))
        .collect();
    let lives: Vec<Event> = seen
        .iter()
        .filter(|it| !it.word().starts_with("hook"))
        .cloned()
        .collect();
    let expected = [
        ("created", "a"),
        ("appended", "a"),
        ("created", "b"),
        ("appended", "b"),
        ("evicted", "a"),
        ("created", "c"),
        ("appended", "c"),
        ("ended", "b"),
    ];
    assert_eq!(kinds(&lives), expected);
    let appended = json!({"first_seq": 1, "last_seq": 5, "dropped_turns": 2, "client_ids": []});
    assert_eq!(detail(&lives[1]), appended);
    assert_eq!(lives[4].generation, a);
    assert_eq!(detail(&lives[4])["reason"], "END_REASON_EVICTED");
    assert_eq!(detail(&lives[7])["reason"], "END_REASON_ENDED");
    let told: Vec<_> = hooks
        .iter()
        .map(|event| (event.word(), detail(event)))
        .collect();
    let delivery = format!("{a}/fails");
    let failed = |tries: u32, gave_up: bool| {
        let detail = json!({
            "hook": "fails", "delivery_id": delivery, "tries": tries, "error": "exit code 7",
            "gave_up": gave_up,
        });
        ("hook_failed", detail)
    };
    let b = format!("{}/works", lives[7].generation);
    let delivered = json!({"hook": "works", "delivery_id": b, "tries": 1});
    let expected = [
        failed(1, false),
        failed(2, true),
        ("hook_delivered", delivered),
    ];
    assert_eq!(told, expected);
    let dead = deliveries(&mut daemon.admin(), in_state(DeliveryState::Dead)).await;
    assert_eq!(dead[0].id, delivery, "the event names what operators see");
}

#[tokio::test]
async fn expired_session_is_reported_when_swept() {
    let quick = "short_term: { session_ttl: 100ms, sweep_interval: 1h }";
    let daemon = Daemon::with(Setup::default().section(quick)).await;
    let mut client = daemon.sessions();
    let mut events = Events::now(&mut client).await;
    say(&mut client, "a", "hi").await;
    let mut admin = daemon.admin();
    eventually("it has expired", async || {
        let swept = admin
            .sweep_now(SweepNowRequest::default())
            .await
            .expect("swept");
        (swept.into_inner().ended > 0).then_some(())
    })
    .await;
    let seen = events.until("expired").await;
    assert_eq!(
        kinds(&seen),
        [("created", "a"), ("appended", "a"), ("expired", "a")]
    );
    assert_eq!(detail(&seen[2])["reason"], "END_REASON_EXPIRED");
}

#[tokio::test]
async fn watch_shows_own_tenant_and_watch_all_requires_admin() {
    let daemon = Daemon::with(Setup::default().two_tenants("", "")).await;
    let (mut alpha, mut beta) = (
        daemon.sessions_of(Setup::ALPHA),
        daemon.sessions_of(Setup::BETA),
    );
    let mut operator = daemon.sessions_of(Setup::ADMIN);
    for client in [&mut alpha, &mut beta] {
        let request = WatchEventsRequest {
            all_tenants: true,
            ..Default::default()
        };
        let answer = client.watch_events(request).await;
        refused(answer, Code::PermissionDenied, "ROLE_REQUIRED");
    }
    let mut own = Events::now(&mut alpha).await;
    let mut all = Events::of_all_tenants(&mut operator)
        .await
        .expect("an operator");
    let mut of_operator = Events::now(&mut operator).await;
    for number in 0..10 {
        say(&mut beta, "secret", "hi").await;
        say(&mut alpha, "mine", &number.to_string()).await;
    }
    end(&mut alpha, "mine").await;
    end(&mut beta, "secret").await;
    for events in [&mut own, &mut of_operator] {
        let seen = events.until("ended").await;
        assert!(
            seen.iter()
                .all(|it| it.tenant == "alpha" && it.session_id == "mine"),
            "{seen:?}"
        );
        assert_eq!(seen.len(), 12);
    }
    let mut by_tenant = BTreeMap::<String, Vec<u64>>::new();
    for _ in 0..24 {
        let event = all.next().await;
        by_tenant
            .entry(event.tenant)
            .or_default()
            .push(event.event_id);
    }
    let epoch = Events::epoch(&mut alpha).await;
    let in_order: Vec<u64> = (epoch + 1..=epoch + 12).collect();
    let expected = [
        ("alpha".to_owned(), in_order.clone()),
        ("beta".to_owned(), in_order),
    ];
    assert_eq!(by_tenant, BTreeMap::from(expected));
}

/// Number of existing sessions with long names.
const CROWD: usize = 16;

fn crowd(number: usize) -> String {
    format!("{number:-<256}")
}

/// Makes about `count` events with many calls in flight. Returns the exact number.
async fn make_events(daemon: &Daemon, count: u64) -> u64 {
    let each = count / CROWD as u64;
    let mut talking = JoinSet::new();
    for number in 0..CROWD {
        let mut client = daemon.sessions();
        talking.spawn(async move {
            for turn in 0..each {
                say(&mut client, &crowd(number), &turn.to_string()).await;
            }
        });
    }
    talking.join_all().await;
    each * CROWD as u64
}

/// A daemon with these sessions, and without a journal to slow it down.
async fn crowded() -> Daemon {
    let off = Setup::default()
        .section("journal: { durability: off }")
        .section("short_term: { max_history_turns: 1 }");
    let daemon = Daemon::with(off).await;
    for number in 0..CROWD {
        say(&mut daemon.sessions(), &crowd(number), "hi").await;
    }
    daemon
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_resumes_from_ring_and_reports_gap() {
    let daemon = crowded().await;
    let mut client = daemon.sessions();
    let epoch = Events::epoch(&mut client).await;
    let (fourth, so_far) = (epoch + 4, epoch + 2 * CROWD as u64);
    let mut events = Events::after(&mut client, ALL).await.expect("it may");
    let mut cursors = BTreeMap::new();
    for id in epoch + 1..=so_far {
        let told = events.message().await.expect("a message").expect("one");
        assert_eq!(told.event.expect("an event").event_id, id);
        cursors.insert(id, told.cursor);
    }
    let mut events = Events::after(&mut client, &cursors[&fourth])
        .await
        .expect("it may");
    for id in fourth + 1..=so_far {
        assert_eq!(events.next().await.event_id, id);
    }
    drop(events);
    let last = so_far + make_events(&daemon, RING).await;
    let first = last - RING + 1;
    let mut events = Events::after(&mut client, &cursors[&fourth])
        .await
        .expect("it may");
    let told = events.message().await.expect("a message").expect("one");
    assert_eq!(
        (told.missed, told.missed_tenant.as_str()),
        (first - fourth - 1, "default")
    );
    assert_eq!(told.event, None);
    for id in first..=last {
        assert_eq!(events.next().await.event_id, id);
    }
}

/// Reads up to an event. Returns the numbers of received and of missed events.
async fn read_to(events: &mut Events, end: u64) -> (u64, u64) {
    let (mut seen, mut missed, mut last) = (0, 0, 0);
    while last < end {
        let next = events
            .message()
            .await
            .expect("it goes on")
            .expect("it has not ended");
        missed += next.missed;
        if let Some(event) = next.event {
            assert!(event.event_id > last, "in order");
            (seen, last) = (seen + 1, event.event_id);
        }
    }
    (seen, missed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_watchers_do_not_delay_others_and_use_little_memory() {
    let mut daemon = crowded().await;
    // Each on its own connection, with a small flow-control window.
    let mut stalled = Vec::new();
    for _ in 0..20 {
        stalled.push(Events::now(&mut narrow_sessions(daemon.grpc_addr())).await);
    }
    let mut admin = daemon.admin();
    let before = stats(&mut admin).await.rss_bytes;
    let mut quick = Events::now(&mut daemon.sessions()).await;
    let epoch = Events::epoch(&mut daemon.sessions()).await;
    let made = make_events(&daemon, RING + 1_500).await;
    let last = epoch + 2 * CROWD as u64 + made;
    let (seen, missed) = read_to(&mut quick, last).await;
    assert_eq!(seen + missed, made);
    let grown = stats(&mut admin).await.rss_bytes.saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes more");
    let page = http_get(daemon.admin_addr(), "/metrics").await.1;
    assert!(page.contains("memoird_events_watchers 21"), "{page}");
    // A watcher that resumes reading gets the number of missed events, and then the retained ones.
    let (seen, missed) = read_to(&mut stalled[0], last).await;
    assert_eq!(seen + missed, made);
    assert!(missed > 0, "it read nothing, and {seen} were told");
    // Stalled watchers do not delay a stop.
    let asked_ms = wall_ms();
    daemon.stop().await;
    let took_ms = wall_ms() - asked_ms;
    assert!(took_ms < 5_000, "the stop took {took_ms} ms");
}

/// With client ids, an event takes more than a KiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_stalled_watchers_buffer_few_events_each() {
    const WATCHERS_MAX: usize = 64;
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let id = "s".repeat(250);
    say(&mut client, &id, "hi").await;
    let mut stalled = Vec::new();
    for _ in 0..WATCHERS_MAX {
        stalled.push(Events::now(&mut narrow_sessions(daemon.grpc_addr())).await);
    }
    let mut admin = daemon.admin();
    let before = stats(&mut admin).await.rss_bytes;
    for _ in 0..250 {
        let mut turn = user("hi");
        turn.client_id = "c".repeat(250);
        let turns = vec![turn; 4];
        client.append(append(&id, turns)).await.expect("said");
    }
    let grown = stats(&mut admin).await.rss_bytes.saturating_sub(before);
    assert!(grown < 8 << 20, "{grown} bytes more");
}

#[tokio::test]
async fn stop_ends_watch_streams_at_once_with_reason() {
    let mut daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let mut events = Events::now(&mut client).await;
    say(&mut client, "a", "hi").await;
    events.until("appended").await;
    let asked_ms = wall_ms();
    daemon.stop().await;
    let took_ms = wall_ms() - asked_ms;
    assert!(took_ms < 3_000, "the stop took {took_ms} ms");
    let status = events.ending().await.expect("it says why");
    assert_eq!(
        (status.code(), refused_code(&status).as_str()),
        (Code::Unavailable, "STOPPING")
    );
}

#[tokio::test]
async fn watchers_per_tenant_are_limited_to_64() {
    let daemon = Daemon::with(Setup::default().two_tenants("", "")).await;
    let (mut alpha, mut beta) = (
        daemon.sessions_of(Setup::ALPHA),
        daemon.sessions_of(Setup::BETA),
    );
    let mut watching = Vec::new();
    for _ in 0..64 {
        watching.push(Events::now(&mut alpha).await);
    }
    let one_more = alpha.watch_events(WatchEventsRequest::default()).await;
    refused(one_more, Code::ResourceExhausted, "TOO_MANY_WATCHERS");
    Events::after(&mut beta, "")
        .await
        .expect("another tenant has places of its own");
    watching.pop();
    let again = eventually("a place is free again", async || {
        Events::after(&mut alpha, "").await.ok()
    })
    .await;
    watching.push(again);
    say(&mut alpha, "a", "hi").await;
    for events in &mut watching {
        assert_eq!(events.next().await.word(), "created");
    }
    let answer = daemon
        .sessions()
        .watch_events(WatchEventsRequest::default())
        .await;
    refused(answer, Code::Unauthenticated, "NO_KEY");
}
