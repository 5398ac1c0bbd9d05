//! Daemons that share a journal in PostgreSQL.
//!
//! All of them serve, each sees what any of them acknowledged, and background work is done by one.
//! Failures are tested in `chaos.rs`.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memoird_proto::v1::{
    BuildContextRequest, ForgetRequest, GetClusterRequest, GetDocumentRequest, GetStatsRequest,
    ListMemoriesRequest, ListSessionsRequest, PutDocumentRequest, RememberOutcome, RememberRequest,
    RunDreamRequest, SearchTranscriptsRequest, WatchEventsRequest, WatchEventsResponse,
    forget_request, put_document_request,
};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::{Code, Streaming};

use crate::data::postgres::over;
use crate::data::postgres::server::Server;
use crate::harness::{
    Clock, Daemon, RECORDING_HOOK, Setup, append, ask_as, delivered, detail, end, eventually, fact,
    field, http_get, keyed, live, manifest, memories_at, memories_of, memory_stats, query_of,
    recalled, refused_code, reload, remember, remember_new, run, say, tenant, text_of, user,
    wall_ms,
};
use crate::repo::deploy::{metrics_of, metrics_shown};
use crate::sessions::search::found;

/// Configuration of one daemon of a cluster over this database.
pub(crate) fn member_setup(words: &str, more: &str) -> Setup {
    let hook = format!("hooks: [ {{ name: keeps, {RECORDING_HOOK} }} ]");
    let section = format!("journal: {{ postgres: {{ url: '{words}', cluster: true }} }}");
    let mut setup = Setup::default().section(section).section(hook);
    if !more.is_empty() {
        setup = setup.section(more);
    }
    setup
}

/// Starts `count` daemons over a new database. Also returns its connection string.
pub(crate) async fn daemons(count: usize, more: &str) -> Option<(Vec<Daemon>, String)> {
    let words = Server::shared()?.database();
    let mut daemons = Vec::new();
    for _ in 0..count {
        daemons.push(Daemon::with(member_setup(&words, more)).await);
    }
    Some((daemons, words))
}

async fn metric(daemon: &Daemon, name: &str) -> f64 {
    let (_, page) = http_get(daemon.admin_addr(), "/metrics").await;
    let line = page.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.rsplit(' ').next());
    value
        .and_then(|value| value.parse().ok())
        .unwrap_or(f64::NAN)
}

/// Waits until exactly one daemon leads, and returns its index.
async fn leader(daemons: &[&Daemon]) -> usize {
    eventually("one of them leads", async || {
        let mut leading = Vec::new();
        for (place, daemon) in daemons.iter().enumerate() {
            if metric(daemon, "memoird_cluster_leads").await > 0.0 {
                leading.push(place);
            }
        }
        (leading.len() == 1).then(|| leading[0])
    })
    .await
}

#[tokio::test]
async fn turn_acknowledged_by_one_member_is_visible_on_all() {
    let Some((daemons, _)) = daemons(3, "").await else {
        return;
    };
    let [mut a, mut b, mut c] = [0, 1, 2].map(|place: usize| daemons[place].sessions());
    say(&mut a, "chat", "one").await;
    assert_eq!(live(&mut b, "chat").await.len(), 1);
    say(&mut b, "chat", "two").await;
    say(&mut c, "chat", "three").await;
    for client in [&mut a, &mut b, &mut c] {
        let turns = live(client, "chat").await;
        let said: Vec<&str> = turns.iter().map(text_of).collect();
        assert_eq!(said, ["one", "two", "three"]);
    }
    // A retry on another daemon is applied once.
    let request = keyed("chat", "m4", [user("four")]);
    let first = a.append(request.clone()).await.expect("done").into_inner();
    let again = b.append(request).await.expect("known").into_inner();
    assert!(!first.duplicate && again.duplicate);
    assert_eq!(first.last_seq, again.last_seq);
    // All daemons build the same window, byte for byte.
    let ask = BuildContextRequest {
        session_id: "chat".into(),
        ..BuildContextRequest::default()
    };
    let windows = [
        a.build_context(ask.clone()).await.expect("a window"),
        c.build_context(ask).await.expect("a window"),
    ];
    let [first, second] = windows.map(|window| window.into_inner().turns);
    assert_eq!(first, second);
    // Lists and counters cover all daemons.
    say(&mut c, "other", "hello").await;
    let list = a.list_sessions(ListSessionsRequest::default()).await;
    let list = list.expect("a list").into_inner().sessions;
    let ids: BTreeSet<&str> = list.iter().map(|info| &*info.session_id).collect();
    assert_eq!(ids, BTreeSet::from(["chat", "other"]));
    eventually("all are counted", async || {
        let mut admin = daemons[1].admin();
        let stats = admin.get_stats(GetStatsRequest::default()).await;
        let stats = stats.expect("counts").into_inner();
        (stats.sessions_live == 2).then_some(())
    })
    .await;
}

/// Returns the next message of an event stream.
async fn next_message(events: &mut Streaming<WatchEventsResponse>) -> WatchEventsResponse {
    let told = timeout(Duration::from_secs(60), events.message()).await;
    told.expect("in time").expect("no error").expect("more")
}

#[tokio::test]
async fn watch_on_one_member_shows_events_of_all_and_resumes_on_any() {
    let Some((daemons, _)) = daemons(2, "").await else {
        return;
    };
    let [mut a, mut b] = [0, 1].map(|place: usize| daemons[place].sessions());
    say(&mut b, "before", "nobody watches").await;
    let watched = a.watch_events(WatchEventsRequest::default()).await;
    let mut events = watched.expect("a stream").into_inner();
    let mut cursor = String::new();
    say(&mut b, "chat", "one").await;
    for expected in ["created", "appended"] {
        // Events from just before the subscription may be sent too.
        let told = loop {
            let told = next_message(&mut events).await;
            if told
                .event
                .as_ref()
                .is_some_and(|it| it.session_id == "chat")
            {
                break told;
            }
        };
        let event = told.event.expect("an event");
        assert_eq!((event.word(), &*event.session_id), (expected, "chat"));
        cursor = told.cursor;
    }
    drop(events);
    say(&mut a, "chat", "two").await;
    say(&mut b, "chat", "three").await;
    // The other daemon continues from the cursor.
    let request = WatchEventsRequest {
        after_cursor: cursor,
        ..WatchEventsRequest::default()
    };
    let watched = b.watch_events(request).await;
    let mut events = watched.expect("a stream").into_inner();
    let mut seqs = BTreeSet::new();
    while seqs.len() < 2 {
        let event = next_message(&mut events).await.event.expect("an event");
        assert_eq!((event.word(), &*event.session_id), ("appended", "chat"));
        seqs.insert(detail(&event)["last_seq"].as_u64().expect("a seq"));
    }
    assert_eq!(seqs, BTreeSet::from([2, 3]));
    let wrong = WatchEventsRequest {
        after_cursor: "7".into(),
        ..WatchEventsRequest::default()
    };
    let refused = b.watch_events(wrong).await.expect_err("refused");
    assert_eq!(refused.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn get_cluster_shows_members_leader_and_differing_settings() {
    let Some((mut all, words)) = daemons(2, "").await else {
        return;
    };
    let other = member_setup(&words, "short_term: { session_ttl: 1h }");
    all.push(Daemon::with(other).await);
    let place = leader(&all.iter().collect::<Vec<_>>()).await;
    let mut admin = all[0].admin();
    let seen = eventually("all are seen", async || {
        let seen = admin.get_cluster(GetClusterRequest {}).await;
        let seen = seen.expect("an answer").into_inner();
        let lead = seen.members.iter().filter(|member| member.leads).count();
        (seen.members.len() == 3 && lead == 1).then_some(seen)
    })
    .await;
    assert!(seen.is_shared && seen.schema_version >= 3);
    assert_eq!(seen.members.iter().filter(|it| it.is_self).count(), 1);
    assert!(seen.members.iter().all(|member| member.is_here));
    let differing = seen.members.iter().flat_map(|it| &it.differing_settings);
    assert_eq!(differing.collect::<Vec<_>>(), ["short_term.session_ttl"]);
    eventually("readiness says so", async || {
        let (status, page) = http_get(all[0].admin_addr(), "/readyz").await;
        (status == 200 && page.contains("short_term.session_ttl")).then_some(())
    })
    .await;
    let text = ask_as(&all[0], &["cluster"], "").await.stdout;
    assert!(
        text.contains("leads") && text.contains("1 differs"),
        "{text}"
    );
    let (_, page) = http_get(all[0].admin_addr(), "/metrics").await;
    let known = metrics_of(&page);
    let mut shown = metrics_shown();
    shown.retain(|name| name.starts_with("memoird_cluster_"));
    assert!(shown.len() >= 5 && shown.is_subset(&known), "{shown:?}");
    // The leader reports a killed member as gone.
    let gone = (place + 1) % 3;
    all[gone].kill9().await;
    let mut admin = all[place].admin();
    eventually("who was killed is gone", async || {
        let seen = admin.get_cluster(GetClusterRequest {}).await;
        let members = seen.expect("an answer").into_inner().members;
        members.iter().any(|member| !member.is_here).then_some(())
    })
    .await;
}

#[tokio::test]
async fn cluster_wide_metrics_are_exported_once_and_races_are_no_failures() {
    let Some((daemons, _)) = daemons(2, "").await else {
        return;
    };
    let mut bots = JoinSet::new();
    for daemon in &daemons {
        for _ in 0..2 {
            let mut client = daemon.sessions();
            bots.spawn(async move {
                for _ in 0..25 {
                    say(&mut client, "contested", "hello").await;
                }
            });
        }
    }
    bots.join_all().await;
    say(&mut daemons[0].sessions(), "ended", "bye").await;
    end(&mut daemons[1].sessions(), "ended").await;
    leader(&daemons.iter().collect::<Vec<_>>()).await;
    let sum = async |name: &str| {
        let mut sum = 0.0;
        for daemon in &daemons {
            let value = metric(daemon, name).await;
            sum += if value.is_nan() { 0.0 } else { value };
        }
        sum
    };
    for (name, expected) in [
        ("memoird_sessions_live{", 1.0),
        ("memoird_hooks_dead{", 0.0),
    ] {
        eventually(name, async || {
            let mut told = 0;
            for daemon in &daemons {
                told += usize::from(!metric(daemon, name).await.is_nan());
            }
            (told == 1 && sum(name).await.total_cmp(&expected).is_eq()).then_some(())
        })
        .await;
    }
    let failures = sum("memoird_commit_failures_total").await;
    assert!(
        failures.total_cmp(&0.0).is_eq(),
        "{failures} of a healthy journal"
    );
}

#[tokio::test]
async fn search_at_any_member_finds_turns_of_all_members() {
    let Some((daemons, _)) = daemons(2, "").await else {
        return;
    };
    for (place, daemon) in daemons.iter().enumerate() {
        let session = format!("chat{place}");
        say(&mut daemon.sessions(), &session, &format!("tea {place}")).await;
    }
    for daemon in &daemons {
        let request = SearchTranscriptsRequest {
            query: "tea".into(),
            ..SearchTranscriptsRequest::default()
        };
        let hits = found(daemon, request).await;
        let mut texts: Vec<&str> = hits.iter().map(|hit| &*hit.snippet).collect();
        texts.sort_unstable();
        assert_eq!(texts, ["tea 0", "tea 1"]);
    }
}

#[tokio::test]
async fn memories_are_shared_by_all_members() {
    let Some((mut daemons, _)) = daemons(2, "").await else {
        return;
    };
    let [mut a, mut b] = [0, 1].map(|place: usize| daemons[place].memories());
    remember_new(&mut a, fact("ann", "the boat is called Zuiderzee")).await;
    assert_eq!(
        recalled(&mut b, query_of("ann", "boat")).await,
        ["the boat is called Zuiderzee"]
    );
    // A daemon's cache is invalidated by writes on other daemons.
    assert_eq!(manifest(&mut b, "ann").await.lines, 1);
    remember_new(&mut a, fact("ann", "the dog is called Rex")).await;
    assert_eq!(manifest(&mut b, "ann").await.lines, 2);
    // A retry on another daemon is applied once.
    let request = RememberRequest {
        idempotency_key: "k1".into(),
        ..fact("ann", "the cat is called Tom")
    };
    let first = remember_new(&mut a, request.clone()).await;
    let again = remember(&mut b, request).await;
    assert_eq!(again.memory.expect("a memory").id, first.id);
    // Windows built by any daemon include the memories.
    say(
        &mut daemons[0].sessions(),
        "chat",
        "what is my boat called?",
    )
    .await;
    let window = BuildContextRequest {
        session_id: "chat".into(),
        memories: Some(query_of("ann", "boat")),
        ..BuildContextRequest::default()
    };
    let window = daemons[1].sessions().build_context(window).await;
    let window = window.expect("a window").into_inner();
    assert!(window.memories_text.contains("Zuiderzee"), "{window:?}");
    // A forgotten memory is gone everywhere, and a crash of one daemon loses nothing.
    let forget = ForgetRequest {
        target: Some(forget_request::Target::Id(first.id)),
        ..ForgetRequest::default()
    };
    b.forget(forget).await.expect("forgotten");
    assert!(recalled(&mut a, query_of("ann", "cat")).await.is_empty());
    daemons[0].kill9().await;
    assert_eq!(
        recalled(&mut b, query_of("ann", "dog")).await,
        ["the dog is called Rex"]
    );
    let mut admin = daemons[1].admin();
    let dream = admin.run_dream(RunDreamRequest::default()).await;
    dream.expect("a dream");
}

#[tokio::test]
async fn documents_are_shared_by_all_members() {
    let Some((daemons, _)) = daemons(2, "").await else {
        return;
    };
    let [mut a, mut b] = [0, 1].map(|place: usize| daemons[place].documents());
    let put = PutDocumentRequest {
        namespace: vec!["settings".into()],
        key: "ann".into(),
        value: Some(put_document_request::Value::Json("{\"n\": 1}".into())),
        ..PutDocumentRequest::default()
    };
    a.put_document(put.clone()).await.expect("stored");
    let get = GetDocumentRequest {
        namespace: vec!["settings".into()],
        key: "ann".into(),
        ..GetDocumentRequest::default()
    };
    let found = b.get_document(get.clone()).await.expect("there");
    assert_eq!(found.into_inner().document.expect("one").version, 1);
    // Of two changes to the same version, one is refused.
    let change = PutDocumentRequest {
        expected_version: Some(1),
        ..put
    };
    let (one, other) = tokio::join!(a.put_document(change.clone()), b.put_document(change));
    let refused: Vec<_> = [one, other].into_iter().filter_map(Result::err).collect();
    assert_eq!(refused.len(), 1);
    assert_eq!(refused_code(&refused[0]), "STALE_VERSION");
    let found = a.get_document(get).await.expect("there");
    assert_eq!(found.into_inner().document.expect("one").version, 2);
}

/// Documents kept in the database, including expired ones.
async fn documents_kept(daemon: &Daemon) -> u64 {
    memory_stats(&mut daemon.memories()).await.documents
}

#[tokio::test]
async fn member_whose_clock_is_ahead_uses_time_of_database_for_memories() {
    let test = "data::cluster::member_whose_clock_is_ahead_uses_time_of_database_for_memories";
    let Some(clock) = Clock::new(test) else {
        return;
    };
    let Some((mut daemons, words)) = daemons(1, "").await else {
        return;
    };
    clock.set("+10800");
    daemons.push(Daemon::with(clock.applied_to(member_setup(&words, ""))).await);
    let [mut a, mut b] = [0, 1].map(|place: usize| daemons[place].documents());
    let put = |key: &str, seconds: i64| PutDocumentRequest {
        namespace: vec!["settings".into()],
        key: key.into(),
        value: Some(put_document_request::Value::Json("1".into())),
        ttl: Some(prost_types::Duration { seconds, nanos: 0 }),
        ..PutDocumentRequest::default()
    };
    let get = |key: &str| GetDocumentRequest {
        namespace: vec!["settings".into()],
        key: key.into(),
        ..GetDocumentRequest::default()
    };
    a.put_document(put("live", 3_600)).await.expect("stored");
    b.get_document(get("live")).await.expect("live");
    b.put_document(put("short", 1)).await.expect("stored");
    eventually("it expires", async || {
        let gone = a.get_document(get("short")).await.is_err();
        (gone && b.get_document(get("short")).await.is_err()).then_some(())
    })
    .await;
    // Only the leader deletes expired documents. Next, that is the daemon whose clock is ahead.
    assert_eq!(documents_kept(&daemons[0]).await, 2);
    daemons[0].kill9().await;
    eventually("the new leader deletes it", async || {
        (documents_kept(&daemons[1]).await < 2).then_some(())
    })
    .await;
    b.get_document(get("live")).await.expect("still live");

    clock.set("+86500");
    daemons[0].restart().await;
    let request = RememberRequest {
        idempotency_key: "k1".into(),
        ..fact("ann", "the cat is called Tom")
    };
    let [mut a, mut b] = [0, 1].map(|place: usize| daemons[place].memories());
    let first = remember_new(&mut a, request.clone()).await;
    let again = remember(&mut b, request.clone()).await;
    assert_eq!(again.outcome(), RememberOutcome::Created, "{again:?}");
    let other = RememberRequest {
        content: "the cat was sold".into(),
        ..request
    };
    let refused = b.remember(other).await.expect_err("another fact");
    assert_eq!(refused_code(&refused), "IDEMPOTENCY_KEY_REUSED");
    assert_eq!(again.memory.expect("a memory").id, first.id);
}

#[tokio::test]
async fn facts_are_stored_exactly_once_while_members_are_killed() {
    let Some((mut daemons, _)) = daemons(3, "").await else {
        return;
    };
    // Bots retry unacknowledged calls on any daemon with the same key.
    let addresses: Vec<String> = daemons.iter().map(|it| it.grpc_addr().to_owned()).collect();
    let addresses = Arc::new(Mutex::new(addresses));
    let mut bots = JoinSet::new();
    for bot in 0..4_usize {
        let addresses = Arc::clone(&addresses);
        bots.spawn(async move {
            for number in 0..40 {
                let request = RememberRequest {
                    idempotency_key: format!("{bot}-{number}"),
                    ..fact(
                        &format!("bot-{bot}"),
                        &format!("fact number {number} of bot {bot}"),
                    )
                };
                for place in number.. {
                    let address = {
                        let addresses = addresses.lock().expect("no panic");
                        addresses[place % addresses.len()].clone()
                    };
                    let mut client = memories_at(&address);
                    if client.remember(request.clone()).await.is_ok() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            }
        });
    }
    for place in [0, 1, 2, 0] {
        eventually("something is remembered", async || {
            let mut client = daemons[place].memories();
            let all = ListMemoriesRequest::default();
            client.list_memories(all).await.is_ok().then_some(())
        })
        .await;
        daemons[place].kill9().await;
        daemons[place].restart().await;
        let address = daemons[place].grpc_addr().to_owned();
        addresses.lock().expect("no panic")[place] = address;
    }
    while let Some(done) = bots.join_next().await {
        done.expect("a bot");
    }
    let mut client = daemons[0].memories();
    for bot in 0..4 {
        let all = memories_of(&mut client, &format!("bot-{bot}")).await;
        assert_eq!(all.len(), 40, "bot {bot}");
        assert!(all.iter().all(|memory| memory.reinforced == 0), "bot {bot}");
    }
}

#[tokio::test]
async fn leader_expires_sessions_and_delivers_hooks_and_failover_continues() {
    let limits = "short_term: { session_ttl: 2s, sweep_interval: 500ms }";
    let Some((mut daemons, _)) = daemons(3, limits).await else {
        return;
    };
    let first = leader(&daemons.iter().collect::<Vec<_>>()).await;
    let mut expected = BTreeSet::new();
    for (place, daemon) in daemons.iter().enumerate() {
        let session = format!("chat{place}");
        let mut client = daemon.sessions();
        let said = client.append(append(&session, [user("hi")])).await;
        let said = said.expect("done").into_inner();
        expected.insert(said.session.expect("a session").generation);
    }
    let all_told = |daemons: &[Daemon]| -> BTreeSet<String> {
        let told = daemons.iter().flat_map(delivered);
        told.map(|content| field(&content, "generation").to_owned())
            .collect()
    };
    eventually("all are told", async || {
        (all_told(&daemons) == expected).then_some(())
    })
    .await;
    assert_eq!(delivered(&daemons[first]).len(), 3, "by the one that leads");
    daemons[first].kill9().await;
    let left: Vec<&Daemon> = daemons
        .iter()
        .enumerate()
        .filter_map(|(place, daemon)| (place != first).then_some(daemon))
        .collect();
    leader(&left).await;
    say(&mut left[0].sessions(), "late", "hello").await;
    let generation = end(&mut left[1].sessions(), "late").await;
    expected.insert(generation);
    eventually("the end is told", async || {
        (all_told(&daemons) == expected).then_some(())
    })
    .await;
}

#[tokio::test]
async fn single_daemon_and_cluster_member_exclude_each_other() {
    let Some((mut daemons, words)) = daemons(1, "").await else {
        return;
    };
    say(&mut daemons[0].sessions(), "chat", "hello").await;
    let (mut alone, _) = Daemon::standby(over(&words, "")).await;
    daemons[0].stop().await;
    alone.serves().await;
    assert_eq!(live(&mut alone.sessions(), "chat").await.len(), 1);
    // And the reverse: a cluster member waits for the single daemon.
    let (mut member, _) = Daemon::standby(member_setup(&words, "")).await;
    alone.stop().await;
    member.serves().await;
    assert_eq!(live(&mut member.sessions(), "chat").await.len(), 1);
}

/// Waits until a worker of this daemon has taken some more steps.
async fn steps_on(daemon: &Daemon, worker: &str) {
    let name = format!("memoird_worker_steps_total{{worker=\"{worker}\"");
    let before = metric(daemon, &name).await;
    eventually(worker, async || {
        (metric(daemon, &name).await >= before + 3.0).then_some(())
    })
    .await;
}

/// The sessions that a daemon lists, sorted.
async fn listed(daemon: &Daemon) -> Vec<String> {
    let mut client = daemon.sessions();
    let list = client.list_sessions(ListSessionsRequest::default()).await;
    let list = list.expect("a list").into_inner().sessions;
    let mut ids: Vec<String> = list.into_iter().map(|info| info.session_id).collect();
    ids.sort();
    ids
}

#[tokio::test]
async fn locked_sessions_are_evicted_and_expire_soon_after_the_lock() {
    let limits = "short_term: { max_sessions: 5, ttl_classes: { short: 2s }, sweep_interval: 1s }";
    let Some((daemons, words)) = daemons(2, limits).await else {
        return;
    };
    leader(&daemons.iter().collect::<Vec<_>>()).await;
    let database = words.rsplit("dbname=").next().expect("a name").to_owned();
    let mut client = daemons[0].sessions();
    let mut request = append("expiring", [user("hi")]);
    request.ttl_class = "short".into();
    client.append(request).await.expect("done");
    for number in 0..9 {
        say(&mut client, &format!("chat{number}"), "hello").await;
    }
    let lock = tokio::task::spawn_blocking(move || {
        let server = Server::shared().expect("it was there before");
        let sql = "BEGIN; LOCK TABLE memoird.generations IN ACCESS EXCLUSIVE MODE;
                   SELECT pg_sleep(6); COMMIT";
        server.run(&database, sql);
        wall_ms()
    });
    let unlocked_ms = lock.await.expect("it was locked");
    let sql = "SELECT count(*) FROM memoird.generations WHERE ended_at IS NULL";
    let database = words.rsplit("dbname=").next().expect("a name");
    let server = Server::shared().expect("it was there before");
    eventually("five are left", async || {
        (server.run(database, sql) == "5").then_some(())
    })
    .await;
    let late_ms = wall_ms() - unlocked_ms;
    assert!(late_ms < 10_000, "{late_ms} ms after the lock");
}

/// The TTL of the tenant `default`, as this daemon applies it.
async fn ttl_seconds(daemon: &Daemon) -> i64 {
    let tenant = tenant(&mut daemon.admin()).await;
    tenant.session_ttl.expect("a duration").seconds
}

#[tokio::test]
async fn member_adopts_policy_and_goes_on_with_it_as_the_last_one() {
    let caps = "short_term: { max_sessions: 10, session_ttl: 2h }";
    let Some((mut first, words)) = daemons(1, caps).await else {
        return;
    };
    let other = "short_term: { max_sessions: 3, session_ttl: 1h }";
    let mut second = Daemon::with(member_setup(&words, other)).await;
    assert_eq!(ttl_seconds(&second).await, 2 * 60 * 60);
    for number in 0..10 {
        say(&mut second.sessions(), &format!("chat{number}"), "hello").await;
    }
    let differing = ["short_term.max_sessions", "short_term.session_ttl"];
    eventually("the difference is shown", async || {
        let text = ask_as(&second, &["cluster"], "").await.stdout;
        let is_shown = text.contains(&format!("settings differ: {}", differing.join(", ")));
        (is_shown && text.matches("settings differ").count() == 1).then_some(())
    })
    .await;
    assert!(second.log().contains("differs from the cluster's policy"));
    // The one whose file has the policy is gone. The other one leads, counts and sweeps.
    first[0].kill9().await;
    leader(&[&second]).await;
    steps_on(&second, "journal_keeper").await;
    assert_eq!(listed(&second).await.len(), 10);
    assert_eq!(ttl_seconds(&second).await, 2 * 60 * 60);
    // Another changed setting does not replace the policy. A requested reload does.
    let changed = format!("{other}\nlog: {{ lines_per_minute: 99 }}");
    second.rewrite(member_setup(&words, &changed));
    eventually("the file is read", async || {
        let reloads = "memoird_reloads_total{outcome=\"applied\"";
        (metric(&second, reloads).await > 0.0).then_some(())
    })
    .await;
    assert_eq!(ttl_seconds(&second).await, 2 * 60 * 60);
    assert_eq!(listed(&second).await.len(), 10);
    reload(&mut second.admin()).await;
    assert_eq!(ttl_seconds(&second).await, 60 * 60);
    eventually("the surplus is evicted", async || {
        (listed(&second).await.len() == 3).then_some(())
    })
    .await;
}

#[tokio::test]
async fn reload_at_leader_replaces_policy_and_elsewhere_does_not() {
    let ttl = |hours: u32| format!("short_term: {{ session_ttl: {hours}h }}");
    let Some((mut daemons, words)) = daemons(2, &ttl(2)).await else {
        return;
    };
    let leads = leader(&daemons.iter().collect::<Vec<_>>()).await;
    let follows = 1 - leads;
    daemons[follows].rewrite(member_setup(&words, &ttl(3)));
    let (applied, _) = reload(&mut daemons[follows].admin()).await;
    assert_eq!(applied, [""; 0]);
    daemons[leads].rewrite(member_setup(&words, &ttl(4)));
    let (applied, _) = reload(&mut daemons[leads].admin()).await;
    assert_eq!(applied, ["short_term.session_ttl"]);
    eventually("the other one adopts it", async || {
        (ttl_seconds(&daemons[follows]).await == 4 * 60 * 60).then_some(())
    })
    .await;
    assert_eq!(ttl_seconds(&daemons[leads]).await, 4 * 60 * 60);
    // The next one is stored by hand. No file has it.
    let file = daemons[follows].path("other.yaml");
    let text = member_setup(&words, &ttl(5)).yaml(&daemons[follows].path("."));
    std::fs::write(&file, text).expect("written");
    let file = file.display().to_string();
    let done = run(&["cluster", "apply", &file], &[]).await;
    assert!(
        done.stdout.contains("version 3")
            && done.stdout.contains("changed: short_term.session_ttl"),
        "{done:?}"
    );
    for daemon in &daemons {
        eventually("it is adopted", async || {
            (ttl_seconds(daemon).await == 5 * 60 * 60).then_some(())
        })
        .await;
    }
}

#[tokio::test]
async fn strict_member_with_other_policy_is_not_ready_until_its_file_agrees() {
    let Some((first, words)) = daemons(1, "").await else {
        return;
    };
    let strict = |more: &str| member_setup(&words, more).section("cluster: { strict: true }");
    let mut second = Daemon::with(strict("short_term: { session_ttl: 1h }")).await;
    let (status, page) = http_get(second.admin_addr(), "/readyz").await;
    assert!(
        status == 503 && page.contains("short_term.session_ttl"),
        "{page}"
    );
    assert_eq!(http_get(first[0].admin_addr(), "/readyz").await.0, 200);
    second.rewrite(strict(""));
    reload(&mut second.admin()).await;
    assert_eq!(http_get(second.admin_addr(), "/readyz").await.0, 200);
}
