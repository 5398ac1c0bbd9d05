//! Data directories of older versions, one for each step of the data format.
//!
//! The current daemon serves them completely and continues from there. It refuses directories of
//! newer versions without changing them. The directories are in `tests/fixtures/data`, and its
//! README describes how they were made.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use memoird_proto::DESCRIPTOR_POOL;
use memoird_proto::prost_reflect::{DeserializeOptions, DynamicMessage};
use memoird_proto::v1::{
    AppendRequest, AppendResponse, BreakerState, BuildContextRequest, BuildContextResponse,
    DeliveryState, GetHistoryRequest, GetHistoryResponse, GetManifestRequest, GetManifestResponse,
    GetMemoryRequest, GetMemoryResponse, GetSessionRequest, GetSessionResponse,
    LeaseExtractionRequest, ListHookDeliveriesRequest, ListHookDeliveriesResponse,
    ListMemoriesRequest, ListMemoriesResponse, ListSessionsRequest, ListSessionsResponse, Memory,
    Part, RecallRequest, RecallResponse, RememberRequest, RememberResponse,
    RetryHookDeliveryRequest, SessionInfo, Turn, UndoCompactionRequest, UpdateSessionRequest,
};
use prost::{Message, Name};
use serde_json::Value;
use tempfile::TempDir;
use tonic::Code;

use crate::harness::{
    Clock, Daemon, Embeddings, Outcome, RECORDING_HOOK, Setup, all_delivered, all_embedded, append,
    assistant, delivered, deliveries, each_once, end, eventually, fact, field, files_with, fsck,
    git, in_state, journal, live, memories_of, memory_stats, query_of, recalled, refused,
    refused_code, remember_new, run, say, tool_results, user, wall_ms,
};

/// Embedding model of the stored vectors.
const MODEL: &str = "fixtures";
/// Offset of `user_version` in a SQLite file, a big-endian `u32`.
///
/// See <https://www.sqlite.org/fileformat.html>, section 1.3.
const USER_VERSION: usize = 60;

/// The directories, by the step that made them.
const STEPS: [&str; 5] = ["step-1", "step-2", "step-3", "step-4", "step-5"];
/// Like the last one, but the daemon was killed, so its newest changes are in SQLite's WAL.
const KILLED: &str = "step-5-killed";

/// The replies recorded when a directory was made.
struct Old {
    expected: Value,
}

impl Old {
    /// Unpacks a directory into a temporary one, with its recorded replies.
    fn copy(name: &str) -> (TempDir, Self) {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("fixtures/data")
            .join(name);
        let home = tempfile::tempdir().expect("a directory");
        let unpacked = Command::new("tar")
            .args(["--extract", "--gzip", "--no-same-owner", "--file"])
            .arg(dir.join("data.tar.gz"))
            .arg("--directory")
            .arg(home.path())
            .status();
        assert!(unpacked.expect("tar runs").success(), "{name}");
        let text = std::fs::read_to_string(dir.join("expected.json")).expect("expectations");
        let expected = serde_json::from_str(&text).expect("JSON");
        (home, Self { expected })
    }

    fn list(&self, name: &str) -> Vec<Value> {
        let list = self.expected[name].as_array();
        list.unwrap_or_else(|| panic!("no {name}")).clone()
    }

    /// The sessions that were live, with their tenants.
    fn sessions(&self) -> Vec<(String, SessionInfo)> {
        let calls = self.list("calls").into_iter();
        let lists = calls.filter(|call| call["rpc"] == "ListSessions");
        lists
            .flat_map(|call| {
                let answer: ListSessionsResponse = decoded(&call, "answered");
                let of_tenant = answer.sessions.into_iter();
                of_tenant.map(move |info| (field(&call, "tenant").to_owned(), info))
            })
            .collect()
    }
}

/// A setup with the hook names of the old one. Their deliveries succeed now.
fn setup(embeddings: &Embeddings) -> Setup {
    let hooks = format!(
        "hooks:\n\
         - {{ name: checkpoint, git: {{ dir: ./checkpoints, batch_wait: 20ms }} }}\n\
         - {{ name: mirror, git: {{ dir: ./mirror, batch_wait: 20ms }} }}\n\
         - {{ name: archive, tenants: [ alpha ], {RECORDING_HOOK} }}\n\
         - {{ name: crm, tenants: [ beta ], {RECORDING_HOOK} }}"
    );
    // TTLs and retention in decades, because the directories only get older.
    Setup::default()
        .two_tenants("", "max_history_turns: 100")
        .section("short_term: { max_history_turns: 12, session_ttl: 36500d }")
        .section("journal: { retention: 36500d }")
        .section(hooks)
        .section(embeddings.section(MODEL))
}

fn key_of(tenant: &str) -> &'static str {
    match tenant {
        "alpha" => Setup::ALPHA,
        "beta" => Setup::BETA,
        "admin" => Setup::ADMIN,
        other => panic!("no key of {other}"),
    }
}

fn decoded<M: Message + Name + Default>(call: &Value, name: &str) -> M {
    let descriptor = DESCRIPTOR_POOL.get_message_by_name(&M::full_name());
    // Older versions had fields that are gone.
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let (descriptor, json) = (descriptor.expect("known"), &call[name]);
    let message = DynamicMessage::deserialize_with_options(descriptor, json, &options);
    message.expect("JSON").transcode_to().expect("a message")
}

/// Repeats a recorded call, and asserts an equivalent reply.
async fn check_same_reply(daemon: &Daemon, call: &Value) {
    let key = key_of(field(call, "tenant"));
    let mut sessions = daemon.sessions_of(key);
    let mut memories = daemon.memories_of(key);
    let mut admin = daemon.admin_of(key);
    let context = format!("{} {} {}", call["tenant"], call["rpc"], call["asked"]);
    match field(call, "rpc") {
        "ListSessions" => {
            let request: ListSessionsRequest = decoded(call, "asked");
            let is = sessions.list_sessions(request).await;
            let (mut is, mut was) = both::<ListSessionsResponse>(is, call, &context);
            for list in [&mut is.sessions, &mut was.sessions] {
                list.iter_mut().for_each(timeless);
                // Uses by windows have coarse times that may be in the future, so the order may
                // differ.
                list.sort_by(|one, other| one.session_id.cmp(&other.session_id));
            }
            assert_eq!(is, was, "{context}");
        }
        "GetSession" => {
            let request: GetSessionRequest = decoded(call, "asked");
            let is = sessions.get_session(request).await;
            let (mut is, mut was) = both::<GetSessionResponse>(is, call, &context);
            is.session.iter_mut().for_each(timeless);
            was.session.iter_mut().for_each(timeless);
            assert_eq!(is, was, "{context}");
        }
        "GetHistory" => {
            let request: GetHistoryRequest = decoded(call, "asked");
            let is = sessions.get_history(request).await;
            let (mut is, was) = both::<GetHistoryResponse>(is, call, &context);
            // Older versions returned the session in `GetSession` only.
            is.session = is.session.filter(|_| was.session.is_some());
            assert_eq!(is, was, "{context}");
        }
        "BuildContext" => {
            let request: BuildContextRequest = decoded(call, "asked");
            let is = sessions.build_context(request).await;
            let (is, was) = both::<BuildContextResponse>(is, call, &context);
            // Summaries and markers are worded differently now, and the first user turn is shown in
            // the summary. The tail may begin elsewhere.
            let stored = |turns: &[Turn]| -> Vec<(u64, Vec<Part>)> {
                let whole = turns
                    .iter()
                    .filter(|turn| turn.metadata.is_empty() && turn.seq > 1);
                whole.map(|turn| (turn.seq, turn.parts.clone())).collect()
            };
            let (shown, shown_then) = (stored(&is.turns), stored(&was.turns));
            assert!(!shown.is_empty(), "{context}");
            assert!(
                shown_then.ends_with(&shown) || shown.ends_with(&shown_then),
                "{context}"
            );
            let (is, was) = (is.report.expect("a report"), was.report.expect("a report"));
            assert_eq!(is.summary, was.summary, "{context}");
        }
        "ListHookDeliveries" => {
            let request: ListHookDeliveriesRequest = decoded(call, "asked");
            let is = admin.list_hook_deliveries(request).await;
            let (mut is, mut was) = both::<ListHookDeliveriesResponse>(is, call, &context);
            for delivery in is.deliveries.iter_mut().chain(&mut was.deliveries) {
                assert!(delivery.due_at.take().is_some(), "{context}");
            }
            assert_eq!(is, was, "{context}");
        }
        "ListMemories" => {
            let request: ListMemoriesRequest = decoded(call, "asked");
            let is = memories.list_memories(request).await;
            let (is, was) = both::<ListMemoriesResponse>(is, call, &context);
            assert_eq!(is.next_page_token, was.next_page_token, "{context}");
            check_same_memories(is.memories, was.memories, &context);
        }
        "GetMemory" => {
            let request: GetMemoryRequest = decoded(call, "asked");
            let is = memories.get_memory(request).await;
            let (is, was) = both::<GetMemoryResponse>(is, call, &context);
            check_same_memories(is.memory, was.memory, &context);
        }
        "GetManifest" => {
            let request: GetManifestRequest = decoded(call, "asked");
            let is = memories.get_manifest(request).await;
            let (is, was) = both::<GetManifestResponse>(is, call, &context);
            assert_eq!(is, was, "{context}");
        }
        "Recall" => {
            let request: RecallRequest = decoded(call, "asked");
            let is = memories.recall(request).await;
            let (is, was) = both::<RecallResponse>(is, call, &context);
            assert_eq!(
                (is.mode, is.degraded, &is.notes),
                (was.mode, was.degraded, &was.notes),
                "{context}"
            );
            check_same_hits(is, was, &context);
        }
        other => panic!("{other} is asked by no directory"),
    }
}

/// The current and the recorded reply.
#[track_caller]
fn both<M: Message + Name + Default>(
    is: Result<tonic::Response<M>, tonic::Status>,
    call: &Value,
    context: &str,
) -> (M, M) {
    let is = is.unwrap_or_else(|status| panic!("{context}: {status:?}"));
    (is.into_inner(), decoded(call, "answered"))
}

/// Removes fields that depend on the time of the call, or that the oldest version did not have.
fn timeless(info: &mut SessionInfo) {
    info.last_access = None;
    info.expires_at = None;
    let is_untouched = |one: &memoird_proto::v1::CompactionInfo| {
        one.breaker() == BreakerState::Closed && one.summaries == 0 && one.consecutive_failures == 0
    };
    info.compaction = info.compaction.take().filter(|one| !is_untouched(one));
}

/// Compares memories without recall counts, which the calls of this test increase.
#[track_caller]
fn check_same_memories(
    is: impl IntoIterator<Item = Memory>,
    was: impl IntoIterator<Item = Memory>,
    context: &str,
) {
    let uncounted = |memory: Memory| Memory {
        recall_count: 0,
        last_recalled_at: None,
        ..memory
    };
    let is: Vec<Memory> = is.into_iter().collect();
    let was: Vec<Memory> = was.into_iter().collect();
    for (is, was) in is.iter().zip(&was) {
        assert!(is.recall_count >= was.recall_count, "{context}");
    }
    let is: Vec<Memory> = is.into_iter().map(uncounted).collect();
    let was: Vec<Memory> = was.into_iter().map(uncounted).collect();
    assert_eq!(is, was, "{context}");
}

/// The best hit is the same. The order of the others depends on their age.
#[track_caller]
fn check_same_hits(is: RecallResponse, was: RecallResponse, context: &str) {
    let ranked = |answer: RecallResponse| {
        let hits = answer.hits.into_iter();
        let hits = hits.map(|hit| (hit.memory.expect("a memory").content, hit.lexical_rank));
        hits.collect::<Vec<_>>()
    };
    let (is, was) = (ranked(is), ranked(was));
    assert_eq!(is.first(), was.first(), "{context}");
    let sorted = |hits: Vec<(String, u32)>| hits.into_iter().collect::<BTreeMap<_, _>>();
    assert_eq!(sorted(is), sorted(was), "{context}");
}

/// Asserts that everything the old daemon served is still served.
async fn check_existing_data(daemon: &Daemon, old: &Old) {
    let calls = old.list("calls");
    assert!(calls.len() > 30, "{} calls", calls.len());
    for call in &calls {
        check_same_reply(daemon, call).await;
    }
    for gone in old.list("forgotten") {
        let mut memories = daemon.memories_of(key_of(field(&gone, "tenant")));
        if let Some(id) = gone["id"].as_str() {
            let request = GetMemoryRequest {
                id: id.to_owned(),
                ..GetMemoryRequest::default()
            };
            let answer = memories.get_memory(request).await;
            refused(answer, Code::NotFound, "MEMORY_NOT_FOUND");
        }
        if let Some(subject) = gone["subject"].as_str() {
            assert_eq!(memories_of(&mut memories, subject).await, []);
        }
        let word = field(&gone, "word");
        assert_eq!(files_with(daemon, &[word]), [""; 0], "{word}");
    }
}

/// Sessions accept turns and pending results, and states can be patched.
async fn check_sessions(daemon: &Daemon, old: &Old) {
    for (tenant, info) in old.sessions() {
        let mut client = daemon.sessions_of(key_of(&tenant));
        let id = &info.session_id;
        let before = journal(&mut client, id, "").await;
        let turns = match id.as_str() {
            "pending" => vec![tool_results(&["p2"]), assistant("Both.")],
            "streaming" => vec![user("And then?")],
            _ => vec![user("Are you still there?"), assistant("Yes.")],
        };
        let request = AppendRequest {
            expected_seq: Some(info.last_seq),
            expected_generation: info.generation.clone(),
            ..append(id, turns.clone())
        };
        let answer = client.append(request).await;
        let answer = answer.unwrap_or_else(|status| panic!("{tenant} {id}: {status:?}"));
        let answer = answer.into_inner();
        let added = turns.len() as u64;
        assert_eq!(
            (answer.first_seq, answer.last_seq),
            (info.last_seq + 1, info.last_seq + added),
            "{tenant} {id}"
        );
        let after = journal(&mut client, id, &info.generation).await;
        assert_eq!(after[..before.len()], before[..], "{tenant} {id}");
        assert_eq!(after.len() as u64, answer.last_seq, "{tenant} {id}");
        let window = BuildContextRequest {
            session_id: id.clone(),
            ..BuildContextRequest::default()
        };
        let window = client.build_context(window).await.expect("a window");
        let newest = window.into_inner().turns.last().map(|turn| turn.seq);
        assert_eq!(newest, Some(answer.last_seq), "{tenant} {id}");
    }
    for state in old.list("states") {
        let mut client = daemon.sessions_of(key_of(field(&state, "tenant")));
        let request = UpdateSessionRequest {
            session_id: field(&state, "session").to_owned(),
            state_patch_json: r#"{"mood":"better"}"#.to_owned(),
            expected_state_version: state["version"].as_u64(),
            ..UpdateSessionRequest::default()
        };
        let answer = client.update_session(request).await.expect("patched");
        let mut patched: Value = serde_json::from_str(field(&state, "json")).expect("JSON");
        patched["mood"] = "better".into();
        let session = answer.into_inner().session.expect("a session");
        let found: Value = serde_json::from_str(&session.state_json).expect("JSON");
        assert_eq!(found, patched);
    }
}

/// Dead and long delayed deliveries succeed when an operator retries them.
async fn check_deliveries(daemon: &Daemon, old: &Old) -> Vec<(String, String)> {
    let mut admin = daemon.admin_of(Setup::ADMIN);
    let all = deliveries(&mut admin, ListHookDeliveriesRequest::default()).await;
    let owed = all
        .iter()
        .filter(|one| one.state() != DeliveryState::Done)
        .collect::<Vec<_>>();
    for delivery in &owed {
        let id = delivery.id.clone();
        let request = RetryHookDeliveryRequest { id };
        admin.retry_hook_delivery(request).await.expect("retried");
    }
    let documents = eventually("all that is owed is told", async || {
        let documents = delivered(daemon);
        (documents.len() >= owed.len()).then_some(documents)
    })
    .await;
    for delivery in &owed {
        let document = documents
            .iter()
            .find(|document| document["delivery"] == delivery.id.as_str())
            .unwrap_or_else(|| panic!("{} in {documents:?}", delivery.id));
        assert_eq!(field(document, "session_id"), delivery.session_id);
        let mut client = daemon.sessions_of(key_of(&delivery.tenant));
        let turns = journal(&mut client, "ended", &delivery.generation).await;
        let told = document["turns"].as_array().expect("turns");
        assert_eq!(told.len(), turns.len(), "{document}");
        assert!(document["state"]["life"].is_number(), "{document}");
    }
    eventually("all are done", async || {
        let left = deliveries(&mut admin, in_state(DeliveryState::Pending)).await;
        left.is_empty().then_some(())
    })
    .await;
    assert_eq!(
        deliveries(&mut admin, in_state(DeliveryState::Dead)).await,
        []
    );
    let generations = all
        .iter()
        .map(|one| (one.tenant.clone(), one.generation.clone()));
    let ended: BTreeSet<_> = generations.collect();
    let is_old = !old.list("commits").is_empty();
    assert_eq!(ended.len(), if is_old { 4 } else { 0 });
    ended.into_iter().collect()
}

/// New checkpoints are committed on top of the existing ones.
async fn check_repositories(daemon: &Daemon, old: &Old, before: Vec<(String, String)>) {
    let mut ended = before;
    for tenant in ["alpha", "beta"] {
        let mut client = daemon.sessions_of(key_of(tenant));
        for session in ["rich", "new"] {
            say(&mut client, session, "The last word.").await;
            ended.push((tenant.to_owned(), end(&mut client, session).await));
        }
    }
    let mut admin = daemon.admin_of(Setup::ADMIN);
    all_delivered(&mut admin).await;
    let commits = old.list("commits");
    for tenant in ["alpha", "beta"] {
        let name = format!("checkpoints/{tenant}.git");
        let dir = daemon.path(&name);
        let of_tenant = ended.iter().filter(|(owner, _)| owner == tenant);
        let generations: Vec<String> = of_tenant.map(|(_, life)| life.clone()).collect();
        each_once(&dir, &generations, &name);
        fsck(&dir);
        let known = commits.iter().find(|known| known["dir"] == name.as_str());
        let Some(known) = known else { continue };
        let log = git(&dir, &["rev-list", "--reverse", "main"]);
        let files = git(&dir, &["ls-tree", "-r", "main"]);
        let lines = |name: &str| {
            let list = known[name].as_array().expect("a list").iter();
            list.map(|line| line.as_str().expect("text").to_owned())
                .collect::<Vec<_>>()
        };
        let old_commits = lines("commits");
        assert!(log.lines().count() > old_commits.len(), "{name}");
        assert!(
            log.lines().zip(&old_commits).all(|(is, was)| is == was),
            "{name}"
        );
        let now: Vec<&str> = files.lines().collect();
        for file in lines("files") {
            assert!(now.contains(&file.as_str()), "{name}: {file}");
        }
    }
}

/// New facts are stored, and recalled together with the old ones.
async fn check_memories(daemon: &Daemon, has_memories: bool) {
    let mut client = daemon.memories_of(Setup::ALPHA);
    let before = memory_stats(&mut client).await.memories;
    assert_eq!(before > 0, has_memories);
    let new = remember_new(
        &mut client,
        fact("ann", "Ann keeps a tortoise at the harbour."),
    )
    .await;
    all_embedded(&mut client).await;
    let found = recalled(&mut client, query_of("ann", "tortoise at the harbour")).await;
    assert_eq!(found[0], new.content);
    assert_eq!(memory_stats(&mut client).await.memories, before + 1);
    if !has_memories {
        return;
    }
    assert!(found.len() > 1, "the old ones are found as well: {found:?}");
    // An old vector matches the model's.
    let hits = recalled(
        &mut client,
        query_of("ann", "physician at the harbour hospital"),
    )
    .await;
    assert_eq!(hits[0], "Ann is a doctor at the harbour hospital.");
    // Turns that an extraction has committed are not leased again.
    let request = LeaseExtractionRequest {
        session_id: "long".into(),
        subject: "ann".into(),
        ..LeaseExtractionRequest::default()
    };
    let lease = client.lease_extraction(request).await.expect("a lease");
    let lease = lease.into_inner();
    assert_eq!(lease.cursor_seq, 30, "{lease:?}");
    assert!(lease.turns.iter().all(|turn| turn.seq > 30), "{lease:?}");
}

/// Undoing the last summary restores the one before.
async fn check_compactions(daemon: &Daemon) {
    let mut client = daemon.sessions_of(Setup::BETA);
    let request = UndoCompactionRequest {
        session_id: "compacted".into(),
    };
    let answer = client.undo_compaction(request).await.expect("undone");
    assert!(answer.into_inner().restored_turns > 0);
    let request = GetSessionRequest {
        session_id: "compacted".into(),
        ..Default::default()
    };
    let session = client.get_session(request).await.expect("a session");
    let summary = session.into_inner().summary.expect("the one before");
    assert_eq!(summary.number, 1);
}

/// Asserts that `memoird verify` finds no damage and nothing foreign.
async fn check_verified(data: &Path) {
    let verified = run(&["verify", data.to_str().expect("a path")], &[]).await;
    assert_eq!(verified.code, Some(0), "{verified:?}");
}

async fn check_upgrade(name: &str, step: usize) {
    let (home, old) = Old::copy(name);
    check_verified(&home.path().join("data")).await;
    let embeddings = Embeddings::at(field(&old.expected, "embeddings")).await;
    let mut daemon = Daemon::in_home(home, setup(&embeddings)).await;
    check_existing_data(&daemon, &old).await;
    let texts: Vec<String> = embeddings.calls().concat();
    // The embedder also receives the query and some calibration sentences.
    let query = "doctor at the harbour hospital";
    let stored = old.expected.to_string();
    let is_stored = |text: &&String| *text != query && stored.contains(text.as_str());
    let again: Vec<&String> = texts.iter().filter(is_stored).collect();
    assert!(again.is_empty(), "vectors are made again: {again:?}");
    let ended = check_deliveries(&daemon, &old).await;
    check_sessions(&daemon, &old).await;
    check_memories(&daemon, step >= 4).await;
    if step >= 5 {
        check_compactions(&daemon).await;
    }
    check_repositories(&daemon, &old, ended).await;
    daemon.stop().await;
    check_verified(&daemon.path("data")).await;
    daemon.restart().await;
    let mut client = daemon.sessions_of(Setup::ALPHA);
    assert_eq!(live(&mut client, "pending").await.len(), 5);
    let mut client = daemon.memories_of(Setup::ALPHA);
    let found = recalled(&mut client, query_of("ann", "tortoise at the harbour")).await;
    assert_eq!(found[0], "Ann keeps a tortoise at the harbour.");
}

#[tokio::test]
async fn data_directory_of_each_version_is_served() {
    for (step, name) in (1..).zip(STEPS) {
        check_upgrade(name, step).await;
    }
}

#[tokio::test]
async fn data_directory_of_killed_daemon_is_served() {
    let (home, _) = Old::copy(KILLED);
    let log = std::fs::metadata(home.path().join("data/journal.db-wal"));
    assert!(log.expect("a log").len() > 0);
    check_upgrade(KILLED, 5).await;
}

#[tokio::test]
async fn idempotency_keys_of_old_data_directory_are_still_known() {
    let test = "old_data::idempotency_keys_of_old_data_directory_are_still_known";
    let Some(clock) = Clock::new(test) else {
        return;
    };
    for name in [&STEPS[..], &[KILLED]].concat() {
        let (home, old) = Old::copy(name);
        // One hour after the end of the old daemon.
        let made_at_ms = old.expected["made_at_ms"].as_i64().expect("a time");
        let offset_s = (made_at_ms - wall_ms()) / 1_000 + 3_600;
        clock.set(&format!("{offset_s:+}"));
        let setup = Setup::default().two_tenants("", "");
        let daemon = Daemon::in_home(home, clock.applied_to(setup)).await;
        for call in old.list("keyed") {
            let key = key_of(field(&call, "tenant"));
            if call["rpc"] == "Append" {
                let request: AppendRequest = decoded(&call, "asked");
                let is = daemon.sessions_of(key).append(request).await;
                let (is, was) = both::<AppendResponse>(is, &call, name);
                assert!(is.duplicate, "{name}");
                assert_eq!(
                    (is.first_seq, is.last_seq),
                    (was.first_seq, was.last_seq),
                    "{name}"
                );
            } else {
                let request: RememberRequest = decoded(&call, "asked");
                let is = daemon.memories_of(key).remember(request).await;
                let (is, was) = both::<RememberResponse>(is, &call, name);
                assert_eq!(is.outcome, was.outcome, "{name}");
                check_same_memories(is.memory, was.memory, name);
            }
        }
    }
}

/// All files below a directory with their contents.
fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = std::fs::read_dir(dir).expect("a directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut all = BTreeMap::new();
    for path in paths {
        if path.is_dir() {
            all.extend(files(&path));
        } else {
            let content = std::fs::read(&path).expect("a file");
            all.insert(path, content);
        }
    }
    all
}

/// Increments the schema version of a SQLite file, and returns the old one.
fn make_newer(path: &Path) -> u32 {
    let mut bytes = std::fs::read(path).expect("a file");
    let place = USER_VERSION..USER_VERSION + 4;
    let found = bytes[place.clone()].try_into().expect("four bytes");
    let known = u32::from_be_bytes(found);
    bytes[place].copy_from_slice(&(known + 1).to_be_bytes());
    std::fs::write(path, bytes).expect("written");
    known
}

/// The newest directory after an upgrade and a clean stop.
async fn up_to_date() -> Daemon {
    let (home, _) = Old::copy(STEPS[STEPS.len() - 1]);
    let mut daemon = Daemon::in_home(home, Setup::default().two_tenants("", "")).await;
    memory_stats(&mut daemon.memories_of(Setup::ALPHA)).await;
    daemon.stop().await;
    daemon
}

#[tokio::test]
async fn newer_journal_schema_is_refused_and_left_unchanged() {
    let daemon = up_to_date().await;
    let known = make_newer(&daemon.path("data/journal.db"));
    let before = files(&daemon.path(""));
    let data_dir = daemon.path("data").display().to_string();
    let setup = daemon.setup().data_dir(&data_dir);
    let Outcome { code, stderr, .. } = Daemon::refused(&setup).await;
    assert_eq!(code, Some(69), "{stderr}");
    let newer = format!(
        "journal.db has schema {}, this memoird knows up to {known}",
        known + 1
    );
    for words in [newer.as_str(), "nothing was changed"] {
        assert!(stderr.contains(words), "{words:?} in {stderr}");
    }
    let after = files(&daemon.path(""));
    assert!(before.keys().eq(after.keys()), "{:?}", after.keys());
    for (path, content) in &before {
        assert!(after[path] == *content, "{} was changed", path.display());
    }
}

#[tokio::test]
async fn newer_memories_schema_is_refused_for_that_tenant_only() {
    let mut daemon = up_to_date().await;
    let known = make_newer(&daemon.path("data/memories/alpha.db"));
    let of_alpha = |daemon: &Daemon| {
        let mut all = files(&daemon.path("data/memories"));
        all.retain(|path, _| path.display().to_string().contains("alpha"));
        all
    };
    let before = of_alpha(&daemon);
    daemon.restart().await;
    let answer = daemon
        .memories_of(Setup::ALPHA)
        .remember(fact("ann", "Ann is here."))
        .await;
    assert_eq!(
        refused_code(&answer.expect_err("refused")),
        "MEMORIES_FAILED"
    );
    let newer = format!(
        "alpha.db has schema {}, this memoird knows up to {known}",
        known + 1
    );
    assert!(
        daemon.log().contains(&newer),
        "{newer:?} in {}",
        daemon.log()
    );
    remember_new(
        &mut daemon.memories_of(Setup::BETA),
        fact("bob", "Bob is here."),
    )
    .await;
    say(&mut daemon.sessions_of(Setup::ALPHA), "rich", "Still here?").await;
    daemon.stop().await;
    assert!(of_alpha(&daemon) == before, "the newer file was changed");
}
