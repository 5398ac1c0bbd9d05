//! Search results, isolation of tenants, and recovery of the index file.

#![allow(
    clippy::disallowed_methods,
    reason = "a test's clients are tasks of their own"
)]

#[path = "search_tests/fuzz.rs"]
mod fuzz;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use memoird_core::ids::Subject;
use memoird_core::session::{AppendCommand, RewindCommand};
use memoird_core::turn::{PartKind, Turn};
use memoird_engine::{
    Blocking, Durability, EndCommand, EngineConfig, EraseTarget, JournalConfig, SystemMachine,
    TenantConfig, TenantLimits, TurnRef, TurnUpdateCommand, Worker,
};
use memoird_store::{ErasedCounts, ErasureStage, SqliteOptions, SqliteStore, Store};
use rusqlite::Connection;
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::*;

/// An engine with its journal, and the index.
struct Fixture {
    engine: Engine,
    search: Search,
}

async fn open(dir: &Path, config: SearchConfig) -> Fixture {
    open_with(dir, config, JournalConfig::default()).await
}

async fn open_with(dir: &Path, config: SearchConfig, journal: JournalConfig) -> Fixture {
    let engine = open_engine(dir, journal).await;
    let search = Search::open(engine.clone(), config).await;
    Fixture { engine, search }
}

async fn open_engine(dir: &Path, journal: JournalConfig) -> Engine {
    let store: Arc<dyn Store> = Arc::new(SqliteStore::open(dir, SqliteOptions::default()).unwrap());
    let tenant = |id| TenantConfig {
        id: TenantId::parse(id).unwrap(),
        limits: TenantLimits::default(),
    };
    let config = EngineConfig {
        tenants: vec![tenant("acme"), tenant("other")],
        journal,
        ..EngineConfig::default()
    };
    let machine = Arc::new(SystemMachine::resume(store.clock().unwrap().as_ref()));
    let engine = Engine::open(config, Some(store), machine, Blocking::Inline);
    engine.await.unwrap()
}

fn tenant(engine: &Engine, id: &str) -> Arc<Tenant> {
    engine.tenants.get(&TenantId::parse(id).unwrap()).unwrap()
}

/// Appends turns to a session whose subject is derived from its name.
async fn append(engine: &Engine, of: &str, session: &str, turns: Vec<Turn>) {
    let command = AppendCommand {
        turns: turns.into_iter().map(encoding::encode).collect(),
        subject: Some(Subject::parse(&format!("subject of {session}")).unwrap()),
        ..AppendCommand::default()
    };
    let (tenant, session) = (tenant(engine, of), session_id(session));
    let appended = engine.commands.append(&tenant, &session, command);
    appended.await.unwrap();
}

/// Appends a user turn for each text.
async fn say(engine: &Engine, of: &str, session: &str, texts: &[&str]) {
    let turns = texts.iter().map(|text| turn(Role::User, text)).collect();
    append(engine, of, session, turns).await;
}

/// Replaces the content of a turn.
async fn update(engine: &Engine, of: &str, session: &str, seq: u64, turn: Turn) {
    let command = TurnUpdateCommand {
        turn_name: TurnRef::Seq(seq),
        turn,
        expected_generation: None,
        idempotency: None,
    };
    let (tenant, session) = (tenant(engine, of), session_id(session));
    let updated = engine.commands.update_turn(&tenant, &session, command);
    updated.await.unwrap();
}

impl Fixture {
    async fn append(&self, of: &str, session: &str, turns: Vec<Turn>) {
        append(&self.engine, of, session, turns).await;
    }

    async fn say(&self, of: &str, session: &str, texts: &[&str]) {
        say(&self.engine, of, session, texts).await;
    }

    async fn update(&self, of: &str, session: &str, seq: u64, turn: Turn) {
        update(&self.engine, of, session, seq, turn).await;
    }

    async fn end(&self, of: &str, session: &str) {
        let (tenant, session) = (tenant(&self.engine, of), session_id(session));
        let ended = self
            .engine
            .commands
            .end_session(&tenant, &session, EndCommand::default());
        ended.await.unwrap();
    }

    async fn ask(&self, request: SearchRequest) -> SearchPage {
        self.ask_of("acme", request).await
    }

    async fn ask_of(&self, of: &str, request: SearchRequest) -> SearchPage {
        let page = self
            .search
            .search(&tenant(&self.engine, of), request)
            .await
            .unwrap();
        assert!(
            !page.incomplete,
            "the index has what was said before the call"
        );
        page
    }

    async fn refusal(&self, request: SearchRequest) -> SearchError {
        let asked = self
            .search
            .search(&tenant(&self.engine, "acme"), request)
            .await;
        asked.unwrap_err()
    }

    /// Returns the snippets of the first page.
    async fn found(&self, query: &str) -> Vec<String> {
        snippets(&self.ask(words(query)).await)
    }

    async fn close(self) {
        self.engine.close().await;
    }
}

fn session_id(id: &str) -> SessionId {
    SessionId::parse(id).unwrap()
}

fn turn(role: Role, text: &str) -> Turn {
    Turn::new(role, vec![PartKind::Text(text.to_owned()).into()])
}

fn words(query: &str) -> SearchRequest {
    SearchRequest {
        query: query.to_owned(),
        limit: 20,
        ..SearchRequest::default()
    }
}

fn snippets(page: &SearchPage) -> Vec<String> {
    page.hits.iter().map(|hit| hit.snippet.clone()).collect()
}

fn index_file(dir: &TempDir) -> PathBuf {
    memoird_store::index_file(dir.path())
}

/// Runs a query on the index file.
fn count_in_index(dir: &TempDir, sql: &str) -> i64 {
    let connection = Connection::open(index_file(dir)).unwrap();
    connection.query_row(sql, [], |row| row.get(0)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn search_ranks_best_first_including_ended_sessions() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = open(dir.path(), SearchConfig::default()).await;
    assert_eq!(fixture.found("refund").await, [""; 0]);
    let old = [
        "Where is my refund?",
        "It is late",
        "The refund of an invoice is late",
    ];
    fixture.say("acme", "old", &old).await;
    fixture.end("acme", "old").await;
    fixture
        .say("acme", "new", &["Some refunds are quick", "Thanks"])
        .await;
    let page = fixture.ask(words("late refunds of invoices")).await;
    assert_eq!(snippets(&page)[0], "The refund of an invoice is late");
    assert_eq!(page.hits.len(), 4);
    assert!(
        page.hits
            .is_sorted_by(|one, other| one.score >= other.score)
    );
    let best = &page.hits[0];
    assert_eq!(
        (best.session.as_str(), best.seq, best.role),
        ("old", 3, Role::User)
    );
    assert_eq!(best.turns.len(), 1);
    let around = SearchRequest {
        context_turns: 1,
        session: Some(session_id("old")),
        ..words("late")
    };
    let hits = fixture.ask(around).await.hits;
    let seqs = |hit: &Hit| -> Vec<u64> {
        let placed = hit
            .turns
            .iter()
            .map(|turn| encoding::open_with_seq(turn).unwrap().0);
        placed.collect()
    };
    assert_eq!(hits.iter().map(|hit| hit.seq).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(
        hits.iter().map(seqs).collect::<Vec<_>>(),
        [vec![1, 2, 3], vec![2, 3]]
    );
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn search_matches_inflections_digits_and_emoji() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = open(dir.path(), SearchConfig::default()).await;
    let said = [
        "Köpeğimin adı Karabaş",
        "أحب شرب الشاي بالنعناع",
        "मेरी बहन की गाड़ी २०१८ की है",
        "Kupiłem samochód w Krakowie",
        "heute Pizza 🍕!",
        "we bought a car",
    ];
    fixture.say("acme", "chat", &said).await;
    for (query, place) in [
        ("köpek", 0),
        ("شاي", 1),
        ("2018", 2),
        ("बहनें", 2),
        ("samochody", 3),
        ("kraków", 3),
        ("🍕", 4),
    ] {
        assert_eq!(fixture.found(query).await, [said[place]], "{query}");
    }
    for query in ["carpet", "2019", "🍔"] {
        assert_eq!(fixture.found(query).await, [""; 0], "{query}");
    }
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn each_filter_excludes_non_matching_turns() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = open(dir.path(), SearchConfig::default()).await;
    let at = |mut turn: Turn, ms| {
        turn.timestamp = Some(Timestamp::from_ms(ms));
        turn
    };
    let call = PartKind::ToolUse {
        id: "1".into(),
        name: "find seat!".into(),
        input_json: r#"{"train":"oslo"}"#.into(),
    };
    let said = vec![
        at(turn(Role::User, "oslo on monday"), 1_000),
        at(Turn::new(Role::Assistant, vec![call.into()]), 2_000),
    ];
    fixture.append("acme", "a", said).await;
    // Indexed before its result arrives.
    assert_eq!(fixture.found("oslo").await.len(), 2);
    let result = PartKind::ToolResult {
        tool_use_id: "1".into(),
        content: "no seat to oslo".into(),
        parts: Vec::new(),
        is_error: true,
    };
    fixture
        .append(
            "acme",
            "a",
            vec![at(Turn::new(Role::Tool, vec![result.into()]), 86_400_000)],
        )
        .await;
    fixture
        .append("acme", "b", vec![at(turn(Role::User, "oslo again"), 3_000)])
        .await;
    let seqs = async |request| -> Vec<(String, u64)> {
        let mut found: Vec<_> = fixture
            .ask(request)
            .await
            .hits
            .iter()
            .map(|hit| (hit.session.to_string(), hit.seq))
            .collect();
        found.sort();
        found
    };
    let a = |seq| ("a".to_owned(), seq);
    let b = |seq| ("b".to_owned(), seq);
    let oslo = || words("oslo");
    assert_eq!(seqs(oslo()).await, [a(1), a(2), a(3), b(1)]);
    let request = SearchRequest {
        session: Some(session_id("b")),
        ..oslo()
    };
    assert_eq!(seqs(request).await, [b(1)]);
    let subject = Some(Subject::parse("subject of a").unwrap());
    let request = SearchRequest { subject, ..oslo() };
    assert_eq!(seqs(request).await, [a(1), a(2), a(3)]);
    let request = SearchRequest {
        roles: vec![Role::Tool, Role::Assistant],
        ..oslo()
    };
    assert_eq!(seqs(request).await, [a(2), a(3)]);
    let tool = || Some("find seat!".to_owned());
    let request = SearchRequest {
        tool: tool(),
        ..oslo()
    };
    assert_eq!(seqs(request).await, [a(2), a(3)]);
    let request = SearchRequest {
        tool: Some("find".into()),
        ..oslo()
    };
    assert_eq!(seqs(request).await, []);
    let (after, before) = (
        Some(Timestamp::from_ms(2_000)),
        Some(Timestamp::from_ms(3_000)),
    );
    let request = SearchRequest { after, ..oslo() };
    assert_eq!(seqs(request).await, [a(2), a(3), b(1)]);
    let request = SearchRequest { before, ..oslo() };
    assert_eq!(seqs(request).await, [a(1), a(2)]);
    let request = SearchRequest {
        after,
        before,
        ..oslo()
    };
    assert_eq!(seqs(request).await, [a(2)]);
    let request = SearchRequest {
        session: Some(session_id("none")),
        ..oslo()
    };
    assert_eq!(seqs(request).await, []);
    // Without words: newest first, with a score of 0.
    let request = SearchRequest {
        tool: tool(),
        ..words(" ")
    };
    let hits = fixture.ask(request).await.hits;
    let newest_first: Vec<_> = hits.iter().map(|hit| (hit.seq, hit.score)).collect();
    assert_eq!(newest_first, [(3, 0.0), (2, 0.0)]);
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn search_is_isolated_by_tenant() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = open(dir.path(), SearchConfig::default()).await;
    fixture
        .say("acme", "chat", &["the secret launch", "of acme"])
        .await;
    fixture.say("other", "chat", &["another launch"]).await;
    fixture.say("acme", "chat", &["the launch moved"]).await;
    let all = [
        words("secret launch moved"),
        SearchRequest {
            session: Some(session_id("chat")),
            ..words("launch")
        },
        SearchRequest {
            roles: vec![Role::User],
            ..words("")
        },
        SearchRequest {
            subject: Some(Subject::parse("subject of chat").unwrap()),
            context_turns: 10,
            ..words("launch")
        },
    ];
    for request in all {
        let page = fixture.ask_of("other", request.clone()).await;
        assert_eq!(snippets(&page), ["another launch"], "{request:?}");
        assert_eq!(page.hits[0].turns.len(), 1);
        assert!(fixture.ask(request).await.hits.len() >= 2);
    }
    // A token of another tenant is only a position in the tenant's own list.
    let request = SearchRequest {
        limit: 1,
        ..words("launch")
    };
    let page = fixture.ask(request).await.next;
    assert!(page.is_some());
    let request = SearchRequest {
        page,
        ..words("launch")
    };
    for snippet in snippets(&fixture.ask_of("other", request).await) {
        assert_eq!(snippet, "another launch");
    }
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn pages_have_every_hit_once_during_appends() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = open(dir.path(), SearchConfig::default()).await;
    for number in 0..50 {
        let more = "tea ".repeat(number % 4);
        fixture
            .say("acme", "chat", &[&format!("tea {more}number {number}")])
            .await;
    }
    for (query, said) in [("tea", 50), ("", 57)] {
        let request = SearchRequest {
            roles: vec![Role::User],
            limit: 7,
            ..words(query)
        };
        let (mut page, mut seqs) = (None, Vec::new());
        loop {
            let found = fixture
                .ask(SearchRequest {
                    page,
                    ..request.clone()
                })
                .await;
            assert!(found.hits.len() <= 7);
            seqs.extend(found.hits.iter().map(|hit| hit.seq));
            page = found.next;
            if page.is_none() {
                break;
            }
            fixture.say("acme", "chat", &["tea tea tea"]).await;
        }
        let is_newest_first = seqs.is_sorted_by(|one, other| one > other);
        assert_eq!(is_newest_first, query.is_empty());
        seqs.sort_unstable();
        assert_eq!(seqs, (1..=said).collect::<Vec<u64>>(), "{query:?}");
    }
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn index_resumes_after_restart() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = open(dir.path(), SearchConfig::default()).await;
    fixture.say("acme", "chat", &["one tea", "two teas"]).await;
    assert_eq!(fixture.found("tea").await.len(), 2);
    fixture.close().await;
    // Appended while no worker updates the index.
    let engine = open_engine(dir.path(), JournalConfig::default()).await;
    say(&engine, "acme", "chat", &["three teas"]).await;
    engine.close().await;
    drop(engine);
    let fixture = open(dir.path(), SearchConfig::default()).await;
    assert_eq!(fixture.found("tea").await.len(), 3);
    let counts = fixture.search.counts();
    assert_eq!((counts.indexed, counts.rebuilds, counts.behind), (1, 0, 0));
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn lost_damaged_or_foreign_index_is_rebuilt() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = open(dir.path(), SearchConfig::default()).await;
    fixture.say("acme", "chat", &["one tea", "two teas"]).await;
    assert_eq!(fixture.found("tea").await.len(), 2);
    fixture.close().await;
    let path = index_file(&dir);
    let whole = std::fs::read(&path).unwrap();
    let mut middle = whole.clone();
    middle[whole.len() / 2..].fill(0x5a);
    let mut other_version = whole.clone();
    // `user_version` in the header.
    other_version[60..64].copy_from_slice(&99_u32.to_be_bytes());
    for damage in [
        None,
        Some(b"not SQLite".to_vec()),
        Some(middle),
        Some(other_version),
    ] {
        match &damage {
            None => std::fs::remove_file(&path).unwrap(),
            Some(bytes) => std::fs::write(&path, bytes).unwrap(),
        }
        let fixture = open(dir.path(), SearchConfig::default()).await;
        assert_eq!(fixture.found("tea").await.len(), 2);
        let counts = fixture.search.counts();
        assert_eq!((counts.indexed, counts.rebuilds), (2, 1));
        fixture.close().await;
    }
    // A journal restored by hand, with a different history.
    std::fs::remove_file(dir.path().join("journal.db")).unwrap();
    for texts in [&["another tea"][..], &["more tea", "and more tea"]] {
        let fixture = open(dir.path(), SearchConfig::default()).await;
        fixture.say("acme", "new", texts).await;
        let found = fixture.found("tea").await;
        assert!(
            found
                .iter()
                .all(|snippet| snippet.contains("more") || snippet.contains("another"))
        );
        assert!(found.contains(&texts[0].to_owned()), "{found:?}");
        fixture.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn damage_found_during_search_triggers_rebuild() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = open(dir.path(), SearchConfig::default()).await;
    fixture.say("acme", "chat", &["one tea"]).await;
    assert_eq!(fixture.found("tea").await.len(), 1);
    let damage = Connection::open(index_file(&dir)).unwrap();
    damage
        .execute_batch("DELETE FROM words_data WHERE id = 10")
        .unwrap();
    drop(damage);
    let error = fixture.refusal(words("tea")).await;
    assert!(matches!(error, SearchError::Failed { .. }), "{error:?}");
    assert_eq!(fixture.found("tea").await.len(), 1);
    assert_eq!(fixture.search.counts().rebuilds, 2);
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn pruned_turns_are_removed_from_index() {
    let dir = tempfile::tempdir().unwrap();
    let journal = JournalConfig {
        retention: Duration::ZERO,
        ..JournalConfig::default()
    };
    let fixture = open_with(dir.path(), SearchConfig::default(), journal).await;
    fixture.say("acme", "gone", &["one tea", "two teas"]).await;
    fixture.say("acme", "live", &["three teas"]).await;
    assert_eq!(fixture.found("tea").await.len(), 3);
    fixture.end("acme", "gone").await;
    while fixture.search.counts().forgotten == 0 {
        tokio::time::sleep(Duration::from_secs(60)).await;
    }
    assert_eq!(fixture.found("tea").await, ["three teas"]);
    assert_eq!(fixture.search.counts().forgotten, 2);
    assert_eq!(count_in_index(&dir, "SELECT count(*) FROM generations"), 1);
    fixture.close().await;
}

/// Erases a session of `acme`.
async fn erase(engine: &Engine, session: &str) -> ErasedCounts {
    let target = EraseTarget::Session {
        session: session_id(session),
        generation: None,
    };
    let tenant = tenant(engine, "acme");
    let erased = engine.erasures.erase(&tenant, target).await.unwrap();
    assert_eq!(erased.stage, ErasureStage::Done);
    erased.counts
}

/// Indexing without pauses.
fn without_rests() -> SearchConfig {
    SearchConfig {
        cpu_share: 100,
        ..SearchConfig::default()
    }
}

/// Another tenant that keeps writing more than the worker indexes per step.
///
/// In its second round, `acme` writes something too.
struct Flood {
    tasks: JoinSet<()>,
    rounds: Arc<AtomicU64>,
}

impl Flood {
    const ROUNDS: u64 = 12;

    fn begin(engine: &Engine) -> Self {
        let (engine, rounds) = (engine.clone(), Arc::new(AtomicU64::new(0)));
        let counted = Arc::clone(&rounds);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            for round in 0..Self::ROUNDS {
                for _ in 0..8 {
                    say(&engine, "other", "flood", &["x"; 250]).await;
                }
                if round == 1 {
                    say(&engine, "acme", "chat", &["more tea"]).await;
                }
                counted.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
            }
        });
        Self { tasks, rounds }
    }

    async fn reaches(&self, rounds: u64) {
        while self.rounds.load(Ordering::Relaxed) < rounds {
            tokio::task::yield_now().await;
        }
    }

    /// Expects that the caller did not wait for all rounds.
    async fn end(self) {
        let rounds = self.rounds.load(Ordering::Relaxed);
        assert!(rounds < Self::ROUNDS, "it waited for the others");
        self.tasks.join_all().await;
    }
}

#[tokio::test(start_paused = true)]
async fn erasure_does_not_wait_for_appends_of_other_tenants() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = open(dir.path(), without_rests()).await;
    fixture.say("acme", "gone", &["one tea"]).await;
    assert_eq!(fixture.found("tea").await.len(), 1);
    let flood = Flood::begin(&fixture.engine);
    flood.reaches(1).await;
    fixture.engine.start_erasing(Vec::new());
    assert_eq!(erase(&fixture.engine, "gone").await.turns, 1);
    flood.end().await;
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn search_does_not_wait_for_later_appends_of_other_tenants() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = open(dir.path(), without_rests()).await;
    fixture.say("acme", "chat", &["one tea"]).await;
    assert_eq!(fixture.found("tea").await.len(), 1);
    let flood = Flood::begin(&fixture.engine);
    for (after, found) in [(1, 1), (2, 2)] {
        flood.reaches(after).await;
        assert_eq!(fixture.found("tea").await.len(), found);
    }
    flood.end().await;
    fixture.close().await;
}

/// An index that is updated only by the steps of this indexer.
async fn open_by_steps(dir: &Path) -> (Fixture, Indexer) {
    let off = SearchConfig {
        enabled: false,
        ..SearchConfig::default()
    };
    let fixture = open(dir, off).await;
    let indexer = Indexer::new(Arc::clone(&fixture.search.shared));
    (fixture, indexer)
}

#[tokio::test(start_paused = true)]
async fn many_updated_turns_are_indexed_in_bounded_steps() {
    let dir = tempfile::tempdir().unwrap();
    let (fixture, mut indexer) = open_by_steps(dir.path()).await;
    let turns = 190;
    fixture.say("other", "flood", &vec!["x"; turns]).await;
    fixture.say("acme", "chat", &["coffee"]).await;
    let update_some = async |some: std::ops::Range<usize>| {
        let mut updates = JoinSet::new();
        for seq in some {
            let (engine, seq) = (fixture.engine.clone(), 1 + seq as u64);
            updates.spawn(async move {
                update(&engine, "other", "flood", seq, turn(Role::User, "y")).await;
            });
        }
        updates.join_all().await;
    };
    indexer.step().await.unwrap();
    update_some(0..turns).await;
    fixture.say("acme", "chat", &["tea"]).await;
    let tea = turn(Role::User, "more tea");
    fixture.update("acme", "chat", 1, tea).await;
    let last = turns as u64 + 2;
    let has_indexed = async || {
        let acme = TenantId::parse("acme").unwrap();
        let has_indexed = move |index: &dyn SearchIndex| index.has_indexed(&acme, last);
        let transcripts = &fixture.engine.transcripts;
        let outcome = transcripts.on_index(None, has_indexed).await;
        outcome.unwrap().unwrap()
    };
    let mut steps = 0;
    while !has_indexed().await {
        indexer.step().await.unwrap();
        steps += 1;
        // The maximum number of changes per step.
        update_some(0..64).await;
    }
    assert_eq!(steps, 3);
    assert_eq!(fixture.search.counts().indexed, last);
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn old_words_are_purged_in_steps_that_let_others_proceed() {
    let dir = tempfile::tempdir().unwrap();
    let (fixture, mut indexer) = open_by_steps(dir.path()).await;
    let owned: Vec<String> = (0..300)
        .map(|turn| (0..500).map(|word| format!("w{turn}x{word} ")).collect())
        .collect();
    let texts: Vec<&str> = owned.iter().map(String::as_str).collect();
    for some in texts.chunks(10) {
        fixture.say("acme", "chat", some).await;
        indexer.step().await.unwrap();
    }
    fixture.say("acme", "chat", &["zqpears"]).await;
    indexer.step().await.unwrap();
    let updated = turn(Role::User, "something else");
    fixture.update("acme", "chat", 301, updated).await;
    let (mut steps, mut indexed) = (0, fixture.search.counts().indexed);
    loop {
        indexer.step().await.unwrap();
        assert_eq!(fixture.search.counts().indexed, indexed);
        if count_in_index(&dir, "SELECT unclean FROM state") == 0 {
            break;
        }
        steps += 1;
        fixture.say("other", "chat", &["more"]).await;
        indexed += 1;
    }
    assert!(steps > 1, "{steps}");
    let file = std::fs::read(index_file(&dir)).unwrap();
    assert!(!file.windows(5).any(|bytes| bytes == b"qpear"));
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn words_of_pruned_turns_leave_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let journal = JournalConfig {
        retention: Duration::ZERO,
        ..JournalConfig::default()
    };
    let fixture = open_with(dir.path(), SearchConfig::default(), journal).await;
    let owned: Vec<String> = (0..2_000).map(|name| format!("zqname{name}x")).collect();
    let texts: Vec<&str> = owned.iter().map(String::as_str).collect();
    for (session, texts) in texts.chunks(200).enumerate() {
        fixture.say("acme", &format!("gone{session}"), texts).await;
    }
    fixture.say("acme", "live", &["three teas"]).await;
    assert_eq!(fixture.found("tea").await.len(), 1);
    assert!(has_bytes(&dir, b"qname"));
    for session in 0..10 {
        fixture.end("acme", &format!("gone{session}")).await;
    }
    let mut hours = 0;
    while has_bytes(&dir, b"qname") {
        tokio::time::sleep(Duration::from_secs(20 * 60)).await;
        hours += 1;
        assert!(hours < 12, "retention left words in a file");
    }
    assert_eq!(fixture.search.counts().forgotten, 2_000);
    fixture.close().await;
}

/// Whether a file of the data directory contains these bytes.
fn has_bytes(dir: &TempDir, bytes: &[u8]) -> bool {
    let files = std::fs::read_dir(dir.path()).unwrap();
    let mut contents = files.map(|file| std::fs::read(file.unwrap().path()).unwrap());
    contents.any(|content| content.windows(bytes.len()).any(|some| some == bytes))
}

#[tokio::test(start_paused = true)]
async fn erased_words_are_in_no_file_when_erasure_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = open(dir.path(), SearchConfig::default()).await;
    fixture.engine.start_erasing(Vec::new());
    fixture.say("acme", "gone", &["zqpears are one"; 600]).await;
    fixture.say("acme", "chat", &["one tea"]).await;
    assert_eq!(fixture.found("one").await.len(), 20);
    assert!(has_bytes(&dir, b"qpear"));
    assert_eq!(erase(&fixture.engine, "gone").await.turns, 600);
    assert!(!has_bytes(&dir, b"qpear"));
    assert_eq!(fixture.found("one").await, ["one tea"]);
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn index_of_older_version_is_overwritten_and_built_again() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = open(dir.path(), SearchConfig::default()).await;
    fixture.say("acme", "chat", &["one tea"]).await;
    assert_eq!(fixture.found("tea").await.len(), 1);
    fixture.close().await;
    let old = Connection::open(index_file(&dir)).unwrap();
    old.pragma_update(None, "user_version", 3).unwrap();
    drop(old);
    // A second name keeps the overwritten bytes readable.
    let kept = dir.path().join("kept");
    std::fs::hard_link(index_file(&dir), &kept).unwrap();
    let fixture = open(dir.path(), SearchConfig::default()).await;
    assert_eq!(fixture.found("tea").await.len(), 1);
    assert_eq!(fixture.search.counts().rebuilds, 1);
    assert!(std::fs::read(kept).unwrap().iter().all(|byte| *byte == 0));
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn empty_query_disabled_search_and_durability_off_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = open(dir.path(), SearchConfig::default()).await;
    fixture.say("acme", "chat", &["one tea"]).await;
    assert_eq!(fixture.found("tea").await.len(), 1);
    for empty in [
        words(""),
        words(" … "),
        SearchRequest {
            roles: vec![Role::User],
            ..words("…")
        },
    ] {
        let refused = fixture.refusal(empty).await;
        assert!(matches!(refused, SearchError::QueryEmpty), "{refused:?}");
    }
    fixture.close().await;
    assert!(index_file(&dir).exists());
    let off = SearchConfig {
        enabled: false,
        ..SearchConfig::default()
    };
    let fixture = open(dir.path(), off).await;
    let refused = fixture.refusal(words("tea")).await;
    assert!(matches!(refused, SearchError::Off), "{refused:?}");
    assert!(
        !index_file(&dir).exists(),
        "nobody would take out what is forgotten"
    );
    fixture.close().await;
    let journal = JournalConfig {
        durability: Durability::Off,
        ..JournalConfig::default()
    };
    let fixture = open_with(dir.path(), SearchConfig::default(), journal).await;
    let refused = fixture.refusal(words("tea")).await;
    assert!(
        matches!(refused, SearchError::Engine(EngineError::JournalOff)),
        "{refused:?}"
    );
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn updated_turn_is_found_only_by_its_new_text() {
    let dir = TempDir::new().unwrap();
    for is_followed in [true, false] {
        let session = format!("s{is_followed}");
        let fixture = open(dir.path(), SearchConfig::default()).await;
        fixture
            .say("acme", &session, &["apples", "zqpears", "plums"])
            .await;
        if is_followed {
            assert_eq!(fixture.found("zqpears").await.len(), 1);
        }
        fixture
            .update("acme", &session, 2, turn(Role::User, "cherries"))
            .await;
        assert_eq!(fixture.found("zqpears").await.len(), 0);
        let found = if is_followed { 1 } else { 2 };
        assert_eq!(fixture.found("cherries").await.len(), found);
        assert_eq!(fixture.found("plums").await.len(), found);
        fixture.close().await;
    }
}

#[tokio::test(start_paused = true)]
async fn updated_turn_is_found_only_by_its_new_time() {
    const DAY_MS: i64 = 86_400_000;
    let said_on = |day: i64, text| {
        let mut turn = turn(Role::User, text);
        turn.timestamp = Some(Timestamp::from_ms(day * DAY_MS));
        turn
    };
    let dir = tempfile::tempdir().unwrap();
    let fixture = open(dir.path(), SearchConfig::default()).await;
    let said = [1, 1, 1, 5, 5].map(|day| said_on(day, "tea"));
    fixture.append("acme", "chat", said.to_vec()).await;
    let seqs_of = async |query, day: i64| -> Vec<u64> {
        let request = SearchRequest {
            after: Some(Timestamp::from_ms(day * DAY_MS)),
            before: Some(Timestamp::from_ms((day + 1) * DAY_MS)),
            ..words(query)
        };
        let hits = fixture.ask(request).await.hits;
        let mut seqs: Vec<u64> = hits.iter().map(|hit| hit.seq).collect();
        seqs.sort_unstable();
        seqs
    };
    assert_eq!(seqs_of("tea", 1).await, [1, 2, 3]);
    // Move turns to a day with only later turns, one with only earlier turns, and one without any.
    fixture.update("acme", "chat", 2, said_on(5, "tea")).await;
    fixture.update("acme", "chat", 4, said_on(1, "tea")).await;
    fixture.update("acme", "chat", 5, said_on(9, "tea")).await;
    for query in ["tea", ""] {
        assert_eq!(seqs_of(query, 1).await, [1, 3, 4]);
        assert_eq!(seqs_of(query, 5).await, [2]);
        assert_eq!(seqs_of(query, 9).await, [5]);
    }
    fixture.close().await;
}

#[tokio::test(start_paused = true)]
async fn pages_by_filter_skip_rewound_turns() {
    let dir = tempfile::tempdir().unwrap();
    let fixture = open(dir.path(), SearchConfig::default()).await;
    fixture.say("acme", "chat", &["tea"; 100]).await;
    fixture
        .say("acme", "chat", &["more"; 2 * CANDIDATES_MAX])
        .await;
    let by_session = SearchRequest {
        session: Some(session_id("chat")),
        ..words("")
    };
    assert_eq!(fixture.ask(by_session.clone()).await.hits.len(), 20);
    let rewind = RewindCommand {
        after_seq: 100,
        ..RewindCommand::default()
    };
    let (tenant, session) = (tenant(&fixture.engine, "acme"), session_id("chat"));
    let commands = &fixture.engine.commands;
    let rewound = commands.rewind(&tenant, &session, rewind);
    rewound.await.unwrap();
    let (mut page, mut seqs) = (None, Vec::new());
    loop {
        let request = SearchRequest {
            page,
            ..by_session.clone()
        };
        let found = fixture.ask(request).await;
        seqs.extend(found.hits.iter().map(|hit| hit.seq));
        page = found.next;
        if page.is_none() {
            break;
        }
    }
    assert_eq!(seqs, (1..=100).rev().collect::<Vec<u64>>());
    fixture.close().await;
}
