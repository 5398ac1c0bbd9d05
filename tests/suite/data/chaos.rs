//! Daemons that share a journal in PostgreSQL, under random failures.
//!
//! Daemons are killed, paused and replaced, and their clocks step. The network cuts and delays
//! their traffic, backends are terminated, and the server crashes. In the end every acknowledged
//! turn is stored once and in order, every end is delivered, and all daemons agree. `just chaos`
//! runs it for longer.

mod changer;
mod clients;
mod delivered;
mod rounds;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use memoird_proto::v1::{
    BuildContextRequest, EndSessionRequest, GetSessionRequest, ListSessionsRequest,
    ResetSessionRequest, SessionInfo,
};
use tokio::task::{JoinSet, LocalSet, spawn_blocking};
use tokio::time::{sleep, timeout};
use tonic::{Code, Status};

use self::changer::Changer;
use self::clients::Clients;
use self::delivered::{DeliveredContent, all_delivered_content};
use self::rounds::{Rounds, variable};
use crate::data::cluster::member_setup;
use crate::data::postgres::proxy::{NetworkFaults, behind_proxy};
use crate::data::postgres::server::{Server, ServerOptions};
use crate::harness::{
    Clock, Daemon, Seed, Sessions, append, eventually, http_get, journal, keyed, live, text_of,
    user, wall_ms,
};

const SEED: u64 = 20_261_125;
const WRITERS: usize = 15;
const CHANGERS: usize = 3;
/// Duration of the failures in a round.
const TROUBLE: Duration = Duration::from_secs(50);
/// A slower call is retried on another daemon.
const CALL_TIME_MAX: Duration = Duration::from_secs(3);
/// Maximum time for all writers to finish after the failures stop.
const CALM_TIME_MAX: Duration = Duration::from_secs(90);

/// State shared by all tasks of a round.
struct Chaos {
    server: Server,
    /// Clients of each daemon. `None` while the daemon is down.
    clients: Mutex<Vec<Option<Clients>>>,
    /// Injected failures by kind.
    troubles: Mutex<BTreeMap<&'static str, u64>>,
    is_calm: AtomicBool,
    is_over: AtomicBool,
    turns: AtomicU64,
}

/// A daemon with its network proxy and its clock.
struct Member {
    place: usize,
    daemon: Daemon,
    faults: Arc<NetworkFaults>,
    clock: Option<Clock>,
    random: Seed,
}

/// Appends numbered turns to a session through random daemons, each under its own idempotency key.
struct Writer {
    name: usize,
    session: String,
    kind: Kind,
    random: Seed,
    /// Acknowledged turns as (seq, number), by generation.
    acked: BTreeMap<String, Vec<(u64, u64)>>,
    next: u64,
    /// The last end. It is repeated late, once the next generation has started.
    late_end: Option<EndSessionRequest>,
}

/// How a writer uses its session.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Other writers append to it too.
    Shared,
    Own,
    /// Ended from time to time.
    Ending,
    /// Reset from time to time, which ends and starts it in one call.
    Reset,
    /// Left idle from time to time until it expires.
    Expiring,
    /// Each turn is appended at several daemons at once under one key, while they end the session.
    Contested,
}

/// Number of concurrent calls with one key.
const CONTENDERS: usize = 3;

fn some_ms(random: &mut Seed, from: usize, to: usize) -> Duration {
    Duration::from_millis((from + random.below(to - from)) as u64)
}

impl Chaos {
    /// Clients of a random daemon, or `None` if that daemon is down.
    fn random_clients(&self, random: &mut Seed) -> Option<Clients> {
        let clients = self.clients.lock().expect("nobody panics");
        clients[random.below(clients.len())].clone()
    }

    fn is_calm(&self) -> bool {
        self.is_calm.load(Ordering::Relaxed)
    }

    fn note(&self, trouble: &'static str) {
        let mut troubles = self.troubles.lock().expect("nobody panics");
        *troubles.entry(trouble).or_default() += 1;
    }

    fn describe_troubles(&self) -> String {
        let troubles = self.troubles.lock().expect("nobody panics");
        let mut text = String::new();
        for (trouble, times) in &*troubles {
            let _ = write!(text, "{times} {trouble}, ");
        }
        text + &format!("{} turns", self.turns.load(Ordering::Relaxed))
    }

    /// Injects failures into the database server.
    async fn trouble_database(self: Arc<Self>, mut random: Seed) {
        while !self.is_calm() {
            sleep(some_ms(&mut random, 500, 5_000)).await;
            if random.below(6) == 0 {
                self.note("crashes of the server");
                let chaos = Arc::clone(&self);
                let crash = spawn_blocking(move || chaos.server.crash());
                crash.await.expect("it starts again");
            } else {
                self.note("rounds of terminated backends");
                let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                           WHERE application_name = 'memoird' AND random() < 0.6";
                self.server.run("postgres", sql);
            }
        }
    }
}

impl Member {
    /// Starts a daemon. Its clock can step if libfaketime is installed.
    async fn begin(place: usize, words: &str, random: Seed, env: &[(&str, &str)]) -> Self {
        let faults = Arc::<NetworkFaults>::default();
        let words = behind_proxy(words, &faults).expect("a server of its own");
        let more = "short_term: { max_history_turns: 100, session_ttl: 1h, ttl_classes: { short: 2s }, \
                    sweep_interval: 500ms }";
        let mut setup = member_setup(&words, more);
        for (name, value) in env {
            setup = setup.env(name, value);
        }
        let clock = Clock::new("chaos");
        if let Some(clock) = &clock {
            setup = clock.applied_to(setup);
        }
        Self {
            place,
            daemon: Daemon::with(setup).await,
            faults,
            clock,
            random,
        }
    }

    /// Injects one failure after another until the round is over.
    async fn inject_failures(mut self, chaos: Arc<Chaos>) -> Self {
        while !chaos.is_calm() {
            sleep(some_ms(&mut self.random, 200, 3_000)).await;
            let trouble = self.inject_failure(&chaos).await;
            chaos.note(trouble);
        }
        self.faults.clear();
        self
    }

    async fn inject_failure(&mut self, chaos: &Chaos) -> &'static str {
        let set = |client: Option<Clients>| {
            chaos.clients.lock().expect("nobody panics")[self.place] = client;
        };
        match self.random.below(10) {
            0 | 1 => {
                set(None);
                self.daemon.kill9().await;
                self.daemon.supervise().await;
                set(Some(Clients::of(&self.daemon)));
                "kills"
            }
            2 => {
                set(None);
                self.daemon.stop().await;
                self.daemon.supervise().await;
                set(Some(Clients::of(&self.daemon)));
                "restarts"
            }
            3 | 4 => {
                // The daemon stays listed, so calls to it hang.
                let most = [1_000, 3_000, 20_000][self.random.below(3)];
                self.daemon.signal("-STOP");
                sleep(some_ms(&mut self.random, 100, most)).await;
                self.daemon.signal("-CONT");
                "pauses"
            }
            5 => {
                self.faults.stalls.store(true, Ordering::Relaxed);
                let most = [1_000, 4_000, 13_000][self.random.below(3)];
                sleep(some_ms(&mut self.random, 100, most)).await;
                self.faults.stalls.store(false, Ordering::Relaxed);
                "stalls of the network"
            }
            6 => {
                self.faults.is_away.store(true, Ordering::Relaxed);
                self.faults.cut();
                sleep(some_ms(&mut self.random, 1, 4_000)).await;
                self.faults.is_away.store(false, Ordering::Relaxed);
                "times cut off"
            }
            7 => {
                self.faults.before.store(true, Ordering::Relaxed);
                self.faults.after.store(true, Ordering::Relaxed);
                "cuts before and after a commit"
            }
            8 => {
                let commits = [1, 2, 3, 4][self.random.below(4)];
                self.faults.late.store(commits, Ordering::Relaxed);
                "series of late commits"
            }
            _ => {
                let offsets = ["+0", "+5", "-5", "+3600", "-3600", "+86400", "-86400"];
                let offset = offsets[self.random.below(offsets.len())];
                if let Some(clock) = &self.clock {
                    clock.set(offset);
                }
                "steps of a clock"
            }
        }
    }
}

/// Retries a call on random daemons until one succeeds.
async fn until_answered<T>(
    chaos: &Chaos,
    random: &mut Seed,
    writer: usize,
    call: impl AsyncFn(&mut Clients) -> Result<T, Status>,
) -> T {
    loop {
        let Some(mut clients) = chaos.random_clients(random) else {
            sleep(Duration::from_millis(5)).await;
            continue;
        };
        match timeout(CALL_TIME_MAX, call(&mut clients)).await {
            Ok(Ok(answer)) => return answer,
            Ok(Err(refused)) => match refused.code() {
                Code::Unavailable
                | Code::Cancelled
                | Code::Unknown
                | Code::DeadlineExceeded
                | Code::ResourceExhausted
                | Code::Aborted => sleep(Duration::from_millis(20)).await,
                _ => panic!("writer {writer}: {refused:?}"),
            },
            // The daemon may be paused.
            Err(_) => {}
        }
    }
}

impl Writer {
    fn new(name: usize, seed: u64) -> Self {
        let (session, kind) = match name % 6 {
            0 => ("shared".to_owned(), Kind::Shared),
            1 => (format!("own {name}"), Kind::Own),
            2 => (format!("ending {name}"), Kind::Ending),
            3 => (format!("reset {name}"), Kind::Reset),
            4 => (format!("contested {name}"), Kind::Contested),
            _ => (format!("expiring {name}"), Kind::Expiring),
        };
        Self {
            name,
            session,
            kind,
            random: Seed::new(seed * 100 + name as u64),
            acked: BTreeMap::new(),
            next: 0,
            late_end: None,
        }
    }

    fn text(&self, number: u64) -> String {
        format!("writer {} turn {number}", self.name)
    }

    async fn write(mut self, chaos: Arc<Chaos>) -> Self {
        while !chaos.is_over.load(Ordering::Relaxed) {
            if self.kind == Kind::Contested {
                self.contend(&chaos).await;
            } else {
                self.say(&chaos).await;
            }
            chaos.turns.fetch_add(1, Ordering::Relaxed);
            if self.next.is_multiple_of(7) {
                self.check_newest_turn(&chaos).await;
            }
            if self.next.is_multiple_of(11) {
                self.end(&chaos).await;
            }
        }
        self
    }

    async fn until_answered<T>(
        &mut self,
        chaos: &Chaos,
        call: impl AsyncFn(&mut Sessions) -> Result<T, Status>,
    ) -> T {
        let call = async |clients: &mut Clients| call(&mut clients.sessions).await;
        until_answered(chaos, &mut self.random, self.name, call).await
    }

    /// Appends a turn at several daemons at once under one key, and ends the session within 2 ms.
    ///
    /// Asserts that all calls are answered with the same place, and at most one as the first.
    async fn contend(&mut self, chaos: &Arc<Chaos>) {
        let text = self.text(self.next);
        let mut contenders = JoinSet::new();
        for _ in 0..CONTENDERS {
            let (chaos, name) = (Arc::clone(chaos), self.name);
            let mut random = Seed::new(self.random.below(1 << 32) as u64);
            let request = keyed(&self.session, &text, [user(&text)]);
            contenders.spawn_local(async move {
                let append =
                    async |clients: &mut Clients| clients.sessions.append(request.clone()).await;
                let answer = until_answered(&chaos, &mut random, name, append).await;
                let answer = answer.into_inner();
                (answer.last_seq, answer.duplicate)
            });
        }
        sleep(Duration::from_micros(self.random.below(2_000) as u64)).await;
        self.end_now(chaos).await;
        let answers = contenders.join_all().await;
        let firsts = answers.iter().filter(|(_, is_duplicate)| !is_duplicate);
        // The reply of the first one may be lost.
        assert!(firsts.count() <= 1, "{text}: {answers:?}");
        let seq = answers[0].0;
        assert!(answers.iter().all(|answer| answer.0 == seq), "{answers:?}");
        self.end_now(chaos).await;
        self.next += 1;
    }

    async fn say(&mut self, chaos: &Chaos) {
        let text = self.text(self.next);
        let mut request = keyed(&self.session, &text, [user(&text)]);
        if self.kind == Kind::Expiring {
            request.ttl_class = "short".into();
        }
        let append = async |client: &mut Sessions| client.append(request.clone()).await;
        let answer = self.until_answered(chaos, append).await.into_inner();
        // If the session has expired by now, the reply does not name the generation of the turn.
        if self.kind != Kind::Expiring {
            let generation = answer.session.expect("a session").generation;
            let acked = self.acked.entry(generation).or_default();
            acked.push((answer.last_seq, self.next));
        }
        self.next += 1;
        if let Some(request) = self.late_end.take() {
            let end = async |client: &mut Sessions| client.end_session(request.clone()).await;
            let answer = self.until_answered(chaos, end).await.into_inner();
            assert!(answer.duplicate, "{} ended a new generation", self.session);
        }
    }

    /// Asserts that any daemon that replies shows the last acknowledged turn.
    async fn check_newest_turn(&mut self, chaos: &Chaos) {
        if matches!(self.kind, Kind::Expiring | Kind::Contested) {
            return;
        }
        let request = GetSessionRequest {
            session_id: self.session.clone(),
            ..GetSessionRequest::default()
        };
        let look = async |client: &mut Sessions| client.get_session(request.clone()).await;
        let seen = self.until_answered(chaos, look).await.into_inner();
        let seen = seen.session.expect("a session");
        let acked = self.acked.get(&seen.generation);
        let (seq, number) = acked
            .and_then(|acked| acked.last())
            .expect("the generation of what was said last");
        assert!(
            *seq <= seen.last_seq,
            "{} has seen {} of {}, where {number} is {seq}",
            self.name,
            seen.last_seq,
            self.session
        );
    }

    /// Ends the session, if this kind of session ends.
    async fn end(&mut self, chaos: &Chaos) {
        let session_id = self.session.clone();
        match self.kind {
            Kind::Shared | Kind::Own | Kind::Contested => {}
            Kind::Expiring => sleep(some_ms(&mut self.random, 500, 4_000)).await,
            Kind::Ending => self.end_now(chaos).await,
            Kind::Reset => {
                let request = ResetSessionRequest {
                    session_id,
                    run_hooks: true,
                    idempotency_key: format!("reset {}", self.next),
                    ..ResetSessionRequest::default()
                };
                let reset =
                    async |client: &mut Sessions| client.reset_session(request.clone()).await;
                self.until_answered(chaos, reset).await;
            }
        }
    }

    async fn end_now(&mut self, chaos: &Chaos) {
        let request = EndSessionRequest {
            session_id: self.session.clone(),
            idempotency_key: format!("end {}", self.random.below(1 << 32)),
            ..EndSessionRequest::default()
        };
        let end = async |client: &mut Sessions| match client.end_session(request.clone()).await {
            // Nothing was live, so the daemon has not stored the key.
            Err(refused) if refused.code() == Code::NotFound => Ok(None),
            answer => answer.map(|_| Some(request.clone())),
        };
        self.late_end = self.until_answered(chaos, end).await;
    }

    /// A turn that no hook has received. `None` for sessions that may still be live.
    fn undelivered(&self, told: &DeliveredContent) -> Option<String> {
        if !matches!(self.kind, Kind::Expiring | Kind::Contested) {
            return None;
        }
        let lives = told.values().filter(|life| life.session == self.session);
        let texts: BTreeSet<&String> = lives.flat_map(|life| &life.texts).collect();
        let mut all = (0..self.next).map(|number| self.text(number));
        all.find(|text| !texts.contains(text))
    }

    /// Asserts that each acknowledged turn is in its generation once, at its seq.
    ///
    /// The content delivered for ended generations must be the same.
    async fn check(&self, client: &mut Sessions, told: &DeliveredContent) {
        let mut there = BTreeMap::<String, usize>::new();
        // Their replies do not name the generation of the turn.
        if matches!(self.kind, Kind::Expiring | Kind::Contested) {
            let lives = told.values().filter(|life| life.session == self.session);
            for text in lives.flat_map(|life| &life.texts) {
                *there.entry(text.clone()).or_default() += 1;
            }
        }
        for (generation, acked) in &self.acked {
            let turns = journal(client, &self.session, generation).await;
            let seqs = turns.iter().map(|turn| turn.seq);
            assert!(seqs.eq(1..=turns.len() as u64), "{generation}: no gaps");
            let texts: Vec<String> = turns.iter().map(|turn| text_of(turn).to_owned()).collect();
            if let Some(life) = told.get(generation) {
                assert_eq!(life.texts, texts, "{generation}");
            }
            for text in texts {
                *there.entry(text).or_default() += 1;
            }
            for (seq, number) in acked {
                let turn = turns.get(usize::try_from(seq - 1).expect("a place"));
                let text = turn.map(text_of);
                let expected = self.text(*number);
                assert_eq!(text, Some(&*expected), "{generation} at {seq}");
            }
        }
        for number in 0..self.next {
            let text = self.text(number);
            assert_eq!(there.get(&text), Some(&1), "{text} in {}", self.session);
        }
        if matches!(self.kind, Kind::Shared | Kind::Own) {
            assert_eq!(self.acked.len(), 1, "nobody has ended {}", self.session);
        }
    }
}

/// Returns a session, or `None` if it is not live.
async fn info(client: &mut Sessions, session: &str) -> Option<SessionInfo> {
    let request = GetSessionRequest {
        session_id: session.to_owned(),
        ..GetSessionRequest::default()
    };
    match client.get_session(request).await {
        Ok(answer) => answer.into_inner().session,
        Err(refused) if refused.code() == Code::NotFound => None,
        Err(refused) => panic!("{refused:?}"),
    }
}

/// Describes a session as one daemon shows it, without times of use.
async fn seen(client: &mut Sessions, session: &str) -> String {
    let Some(info) = info(client, session).await else {
        return "it does not live".to_owned();
    };
    let window = client.build_context(BuildContextRequest {
        session_id: session.to_owned(),
        ..BuildContextRequest::default()
    });
    let window = window.await.expect("a window").into_inner();
    let turns = live(client, session).await;
    format!(
        "{} {} {} {} {turns:?} {:?}",
        info.generation, info.last_seq, info.history_turns, info.history_bytes, window.turns
    )
}

/// Checks all guarantees after the failures have stopped.
async fn check(
    chaos: &Chaos,
    database: &str,
    members: &[Member],
    writers: &[Writer],
    changers: &[Changer],
) {
    for member in members {
        eventually("it is ready", async || {
            let page = http_get(member.daemon.admin_addr(), "/readyz").await;
            (page.0 == 200).then_some(())
        })
        .await;
    }
    let number = |sql: &str| -> u64 {
        let text = chaos.server.run(database, sql);
        text.parse().expect("a number")
    };
    let clients = || members.iter().map(|member| member.daemon.sessions());
    // Idle sessions expire, and every end is delivered.
    for writer in writers
        .iter()
        .filter(|writer| writer.kind == Kind::Expiring)
    {
        for mut client in clients() {
            eventually("it has expired", async || {
                let info = info(&mut client, &writer.session).await;
                info.is_none().then_some(())
            })
            .await;
        }
    }
    // Calls stop seeing an expired session before its end is written and its hook is due.
    let told = eventually("every end is told", async || {
        // First, so that the list of ends is complete when it is read.
        let unwritten = "SELECT count(*) FROM memoird.generations
                         WHERE ended_at IS NULL AND convert_from(session, 'UTF8') LIKE 'expiring%'";
        if number(unwritten) > 0 {
            return None;
        }
        let ended = "SELECT convert_from(session, 'UTF8') || ': ' || count(*)
                     FROM memoird.generations WHERE ended_at IS NOT NULL GROUP BY session";
        let ended = chaos.server.run(database, ended);
        let ended: BTreeSet<String> = ended.lines().map(str::to_owned).collect();
        if number("SELECT count(*) FROM memoird.outbox WHERE state <> 'done'") > 0 {
            return None;
        }
        let told = all_delivered_content(members);
        let mut counts = BTreeMap::new();
        for life in told.values() {
            *counts.entry(life.session.as_str()).or_insert(0) += 1;
        }
        let counts = counts.iter();
        let counts = counts.map(|(session, count)| format!("{session}: {count}"));
        let counts = BTreeSet::from_iter(counts);
        (counts == ended).then_some(told)
    })
    .await;
    for writer in writers {
        if let Some(text) = writer.undelivered(&told) {
            let places = delivered::places(&chaos.server, database, &writer.session, &text);
            panic!("{text} is not delivered: {places}");
        }
        for mut client in clients() {
            writer.check(&mut client, &told).await;
        }
    }
    let sessions: BTreeSet<&str> = writers.iter().map(|writer| &*writer.session).collect();
    for session in sessions {
        let mut first = None;
        for mut client in clients() {
            let seen = seen(&mut client, session).await;
            assert_eq!(*first.get_or_insert_with(|| seen.clone()), seen);
        }
    }
    let mut lists = BTreeSet::new();
    for mut client in clients() {
        let list = client.list_sessions(ListSessionsRequest::default()).await;
        let list = list.expect("a list").into_inner().sessions;
        let mut ids: Vec<String> = list.into_iter().map(|info| info.session_id).collect();
        ids.sort();
        lists.insert(ids);
    }
    assert_eq!(lists.len(), 1, "{lists:?}");
    // The database holds no other turns and no gaps, and heads match their turns.
    let said: u64 = writers.iter().map(|writer| writer.next).sum();
    let of_writers = format!(
        "convert_from(g.session, 'UTF8') NOT LIKE '{}%'",
        changer::PREFIX
    );
    let turns = format!(
        "SELECT count(*) FROM memoird.turns JOIN memoird.generations g USING (generation)
         WHERE {of_writers}"
    );
    assert_eq!(number(&turns), said);
    let wrong = format!(
        "SELECT count(*) FROM memoird.generations g, LATERAL
             (SELECT count(*) turns, max(seq) last FROM memoird.turns t
              WHERE t.generation = g.generation) there
         WHERE {of_writers}
             AND (g.last_seq <> there.turns OR there.turns <> coalesce(there.last, 0))"
    );
    assert_eq!(number(&wrong), 0, "heads that differ from their turns");
    let mut all: Vec<_> = members
        .iter()
        .map(|member| Clients::of(&member.daemon))
        .collect();
    for changer in changers {
        for clients in &mut all {
            changer.check(clients).await;
        }
        changer.erase(&mut all).await;
    }
}

/// Runs a round and describes what happened in it.
async fn round(
    seed: u64,
    trouble: Duration,
    env: &'static [(&'static str, &'static str)],
) -> String {
    let server = Server::start(&ServerOptions::default()).expect("it was there before");
    let words = server.database();
    let database = words.rsplit("dbname=").next().expect("a name").to_owned();
    let mut random = Seed::new(seed);
    let count = 3 + random.below(4);
    let mut members = Vec::new();
    for place in 0..count {
        let random = Seed::new(seed * 10 + place as u64);
        members.push(Member::begin(place, &words, random, env).await);
    }
    let clients = members
        .iter()
        .map(|member| Some(Clients::of(&member.daemon)));
    let chaos = Arc::new(Chaos {
        server,
        clients: Mutex::new(clients.collect()),
        troubles: Mutex::default(),
        is_calm: AtomicBool::new(false),
        is_over: AtomicBool::new(false),
        turns: AtomicU64::new(0),
    });
    let mut writing = JoinSet::new();
    for name in 0..WRITERS {
        writing.spawn_local(Writer::new(name, seed).write(Arc::clone(&chaos)));
    }
    let mut changing = JoinSet::new();
    for name in 0..CHANGERS {
        changing.spawn_local(Changer::new(name, seed).change(Arc::clone(&chaos)));
    }
    let mut suffering = JoinSet::new();
    for member in members {
        suffering.spawn_local(member.inject_failures(Arc::clone(&chaos)));
    }
    let mut troubling = JoinSet::new();
    let of_database = Arc::clone(&chaos);
    troubling.spawn_local(of_database.trouble_database(random));
    sleep(trouble).await;
    chaos.is_calm.store(true, Ordering::Relaxed);
    troubling.join_all().await;
    let members = suffering.join_all().await;
    chaos.is_over.store(true, Ordering::Relaxed);
    let writers = timeout(CALM_TIME_MAX, writing.join_all()).await;
    let writers = writers.expect("everybody is answered once it is calm");
    let changers = timeout(CALM_TIME_MAX, changing.join_all()).await;
    let changers = changers.expect("everybody is answered once it is calm");
    check(&chaos, &database, &members, &writers, &changers).await;
    format!("{count} daemons, {}", chaos.describe_troubles())
}

#[tokio::test]
async fn chaos_rounds_keep_acknowledged_turns_exactly_once_in_order() {
    if Server::shared().is_none() {
        return;
    }
    let env: &[_] = match variable("MEMOIRD_TEST_NO_FENCE") {
        Some(_) => &[("MEMOIRD_TEST_NO_FENCE", "1")],
        None => &[],
    };
    LocalSet::new().run_until(rounds(env)).await;
}

async fn rounds(env: &'static [(&'static str, &'static str)]) {
    let mut rounds = Rounds::open();
    while rounds.goes_on() {
        let (seed, started) = (SEED + rounds.made, wall_ms());
        let mut running = JoinSet::new();
        running.spawn_local(round(seed, TROUBLE, env));
        let outcome = running.join_next().await.expect("a round");
        let ms = wall_ms() - started;
        match outcome {
            Ok(what) => rounds.keep(seed, ms, "held", &what),
            Err(failed) => {
                rounds.keep(seed, ms, "failed", &failed.to_string());
                std::panic::resume_unwind(failed.into_panic());
            }
        }
    }
}

/// Whether a turn survives that is acknowledged after an earlier commit was given up and came late.
async fn turn_survives_late_commit(env: &[(&str, &str)]) -> Option<bool> {
    let server = Server::shared()?;
    let words = server.database();
    let member = Member::begin(0, &words, Seed::new(SEED), env).await;
    let mut client = member.daemon.sessions();
    // The number of attempts per commit.
    member.faults.late.store(3, Ordering::Relaxed);
    let given_up = client.append(append("given up", [user("hello")])).await;
    assert_eq!(given_up.expect_err("given up").code(), Code::Unavailable);
    eventually("they have come late", async || {
        (member.faults.arrived.load(Ordering::Relaxed) == 3).then_some(())
    })
    .await;
    let database = words.rsplit("dbname=").next().expect("a name");
    let idle = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
                AND state = 'active' AND pid <> pg_backend_pid()";
    let mut looks = 0;
    eventually("the server has done with them", async || {
        let active = server.run(database, idle);
        looks = if active == "0" { looks + 1 } else { 0 };
        (looks > 5).then_some(())
    })
    .await;
    let said = client.append(append("acknowledged", [user("hello")])).await;
    said.expect("acknowledged");
    let count = "SELECT count(*) FROM memoird.generations WHERE session = 'acknowledged'";
    let count = server.run(database, count);
    Some(count == "1")
}

#[tokio::test]
async fn append_acknowledged_after_late_commit_survives() {
    if let Some(stays) = turn_survives_late_commit(&[]).await {
        assert!(stays);
    }
}

/// Control experiment: without the fence, the tests above fail.
#[tokio::test]
async fn append_acknowledged_after_late_commit_is_lost_without_fence() {
    let env = [("MEMOIRD_TEST_NO_FENCE", "1")];
    if let Some(stays) = turn_survives_late_commit(&env).await {
        assert!(!stays, "the fence is on, or nothing came late");
    }
}
