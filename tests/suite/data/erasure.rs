//! Erasing a session or a subject.
//!
//! No byte of a marker text is left in any file, both right after the reply and after `kill -9` in
//! the middle of an erasure. Other data is untouched.

use std::path::Path;
use std::process::Command;

use memoird_proto::v1::forget_request::Target;
use memoird_proto::v1::{
    AppendRequest, BackupRequest, CompactSessionRequest, EraseSessionRequest, EraseSubjectRequest,
    Erasure, ForgetRequest, GetErasureRequest, GetHistoryRequest, GetSessionRequest, HistoryScope,
    MemorySource, RememberRequest, SearchTranscriptsRequest, TranscriptHit, UpdateSessionRequest,
};
use tonic::Code;

use crate::harness::{
    Daemon, Events, RECORDING_HOOK, Seed, Sessions, Setup, all_delivered, ask_as, contents,
    delivered, each_once, end, eventually, fact, fsck, journal, keyed, live, memories_of, refused,
    remember, remember_new, say, seeds, text_of, user,
};
use crate::sessions::search;

const CHECKPOINTS: &str = "{ name: checkpoint, retry: { pause: 50ms, pause_max: 200ms }, \
     git: { dir: ./checkpoints, batch_wait: 10ms } }";

/// A unique text, also usable as a name.
fn marker(seed: &mut Seed) -> String {
    let digits = seed.bytes(12).into_iter().map(|byte| format!("{byte:02x}"));
    format!("zq{}", digits.collect::<String>())
}

/// The files below a folder that contain this text.
fn files_with(folder: &Path, text: &str) -> Vec<String> {
    let output = Command::new("grep")
        .args([
            "--recursive",
            "--text",
            "--files-with-matches",
            "--fixed-strings",
            text,
        ])
        .arg(folder)
        .env("LC_ALL", "C")
        .output()
        .expect("grep runs");
    // 1: no match. 2: a file was removed during the search.
    assert!(
        output.status.code().is_some_and(|code| code <= 2),
        "{output:?}"
    );
    let found = String::from_utf8_lossy(&output.stdout).into_owned();
    found.lines().map(str::to_owned).collect()
}

/// Asserts that none of the daemon's files contains the text.
#[track_caller]
fn check_text_is_gone(daemon: &Daemon, text: &str, context: &str) {
    let found = files_with(&daemon.path("data"), text);
    assert!(found.is_empty(), "{context}: {text} is in {found:?}");
    let repository = daemon.path("checkpoints/default.git");
    if repository.exists() {
        fsck(&repository);
        assert!(
            !objects(&repository).contains(text),
            "{context}: {text} is in a checkpoint"
        );
        let names = files_with(&repository, text);
        assert!(names.is_empty(), "{context}: {text} is in {names:?}");
    }
}

/// Every object of a repository as decoded by git, including unreachable ones.
fn objects(repository: &Path) -> String {
    let output = Command::new("git")
        .arg("-C")
        .arg(repository)
        .args([
            "-c",
            "safe.directory=*",
            "cat-file",
            "--batch-all-objects",
            "--batch",
        ])
        .output()
        .expect("git runs");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Fills a session with short and long turns, a state, a summary and keys that contain the marker.
async fn fill(client: &mut Sessions, session: &str, subject: &str, mark: &str) {
    let first = say(client, session, mark).await;
    let life = first.session.expect("a session").generation;
    for number in 0..12 {
        let long = "x".repeat(if number % 4 == 3 { 9_000 } else { 10 });
        let text = format!("{mark} number {number}, Friday: {long} {mark}");
        let request = AppendRequest {
            subject: subject.to_owned(),
            ..keyed(session, &format!("{mark}-{life}-{number}"), [user(&text)])
        };
        client.append(request).await.expect("appended");
    }
    let patch = UpdateSessionRequest {
        session_id: session.to_owned(),
        state_patch_json: format!(r#"{{"note":"{mark}"}}"#),
        ..UpdateSessionRequest::default()
    };
    client.update_session(patch).await.expect("patched");
    let compact = CompactSessionRequest {
        session_id: session.to_owned(),
        keep_exchanges: Some(2),
    };
    client.compact_session(compact).await.expect("compacted");
}

async fn erase(client: &mut Sessions, session: &str, generation: &str) -> Erasure {
    let request = EraseSessionRequest {
        session_id: session.to_owned(),
        generation: generation.to_owned(),
    };
    let answer = client.erase_session(request).await;
    let answer = answer.expect("it is erased").into_inner();
    answer.erasure.expect("an erasure")
}

async fn done(client: &mut Sessions, id: &str) -> Erasure {
    let request = GetErasureRequest { id: id.to_owned() };
    eventually("the erasure is done", async || {
        let found = client.get_erasure(request.clone()).await;
        let found = found.expect("the job").into_inner().erasure;
        found.filter(|erasure| erasure.done)
    })
    .await
}

/// Turns that match this text.
async fn found(daemon: &Daemon, text: &str) -> Vec<TranscriptHit> {
    let request = SearchTranscriptsRequest {
        query: text.to_owned(),
        ..SearchTranscriptsRequest::default()
    };
    search::found(daemon, request).await
}

/// The generation of a live session.
async fn journal_generation(client: &mut Sessions, session: &str) -> String {
    let request = GetSessionRequest {
        session_id: session.to_owned(),
        ..GetSessionRequest::default()
    };
    let answer = client
        .get_session(request)
        .await
        .expect("it lives")
        .into_inner();
    answer.session.expect("a session").generation
}

/// Appends to other sessions, so that their turns are stored among the erased ones.
async fn append_to_others(client: &mut Sessions, round: u64) {
    for number in 0..20 {
        let session = format!("other-{number}");
        say(client, &session, &format!("round {round} of {number}")).await;
    }
}

/// Asserts that the other sessions have every turn.
async fn check_other_sessions(client: &mut Sessions, rounds: u64) {
    for number in 0..20 {
        let turns = live(client, &format!("other-{number}")).await;
        let texts: Vec<&str> = turns.iter().map(text_of).collect();
        let expected: Vec<String> = (1..=rounds)
            .map(|round| format!("round {round} of {number}"))
            .collect();
        assert_eq!(texts, expected, "session {number}");
    }
}

#[tokio::test]
async fn erased_session_is_removed_from_all_files_and_hooks() {
    let mut seed = Seed::new(71);
    let mark = marker(&mut seed);
    println!("the mark is {mark}");
    let hooks = format!("hooks: [ {{ name: crm, {RECORDING_HOOK} }}, {CHECKPOINTS} ]");
    let daemon = Daemon::with(Setup::default().section(hooks)).await;
    let (mut client, mut admin) = (daemon.sessions(), daemon.admin());
    append_to_others(&mut client, 1).await;
    fill(&mut client, &mark, &mark, &mark).await;
    let told_of = end(&mut client, &mark).await;
    say(&mut client, "stays", "as it is").await;
    let stays = end(&mut client, "stays").await;
    all_delivered(&mut admin).await;
    let repository = daemon.path("checkpoints/default.git");
    assert!(objects(&repository).contains(&mark), "or nothing is shown");
    append_to_others(&mut client, 2).await;
    fill(&mut client, &mark, &mark, &mark).await;
    append_to_others(&mut client, 3).await;
    assert!(
        !files_with(&daemon.path("data"), &mark).is_empty(),
        "or nothing is shown"
    );
    // Memories sourced from the session, of its subject and of another one.
    let mut memories = daemon.memories();
    let life = journal_generation(&mut client, &mark).await;
    for (subject, content) in [("ann", "Ann likes trains"), ("bob", "Bob met Ann")] {
        let source = Some(MemorySource {
            session_id: mark.clone(),
            generation: life.clone(),
            seqs: vec![1],
        });
        let content = format!("{content}, {mark}");
        let request = RememberRequest {
            source,
            ..fact(subject, &content)
        };
        remember_new(&mut memories, request).await;
    }
    remember_new(&mut memories, fact("bob", "Bob likes tea")).await;
    assert!(
        !found(&daemon, &mark).await.is_empty(),
        "or nothing is shown"
    );
    let mut events = Events::now(&mut client).await;
    let erased = erase(&mut client, &mark, "").await;
    let erased = done(&mut client, &erased.id).await;
    check_text_is_gone(&daemon, &mark, "at once");
    assert!(found(&daemon, &mark).await.is_empty());
    assert_eq!(
        contents(&memories_of(&mut memories, "").await),
        ["Bob likes tea"]
    );
    let counts = erased.erased.expect("counts");
    assert_eq!(
        (counts.turns, counts.summaries, counts.keys),
        (26, 2, 24),
        "{counts:?}"
    );
    assert_eq!((counts.deliveries, counts.memories), (0, 2), "{counts:?}");
    assert_eq!(
        erased.outside,
        [format!("hook crm received generation {told_of}")]
    );
    events.until("erased").await;
    assert_eq!(
        delivered(&daemon).len(),
        2,
        "of the first life and the other session only"
    );
    assert!(counts.commits > 0, "{counts:?}");
    each_once(&repository, &[stays], "the other one");
    let again = done(&mut client, &erased.id).await;
    assert_eq!(
        (again.erased, again.outside),
        (erased.erased, erased.outside)
    );
    // A repetition finds nothing to erase.
    let nothing = erase(&mut client, &mark, "").await;
    let nothing = done(&mut client, &nothing.id).await;
    assert!(nothing.outside.is_empty(), "{nothing:?}");
    assert_eq!(nothing.erased, Some(Default::default()));
    check_other_sessions(&mut client, 3).await;
    // The next message starts a new generation.
    say(&mut client, &mark, "hello").await;
    assert_eq!(live(&mut client, &mark).await.len(), 1);
}

#[tokio::test]
async fn erasing_one_generation_keeps_the_others() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    client
        .append(keyed("chat", "a", [user("first")]))
        .await
        .expect("done");
    let first = end(&mut client, "chat").await;
    client
        .append(keyed("chat", "b", [user("second")]))
        .await
        .expect("done");
    let erased = erase(&mut client, "chat", &first).await;
    let erased = done(&mut client, &erased.id).await;
    let counts = erased.erased.expect("counts");
    assert_eq!((erased.done, counts.turns, counts.keys), (true, 1, 1));
    let read = GetHistoryRequest {
        session_id: "chat".into(),
        generation: first,
        scope: HistoryScope::Journal.into(),
        ..GetHistoryRequest::default()
    };
    refused(
        client.get_history(read).await,
        Code::NotFound,
        "GENERATION_NOT_FOUND",
    );
    assert_eq!(text_of(&live(&mut client, "chat").await[0]), "second");
    let repeated = client.append(keyed("chat", "b", [user("second")])).await;
    assert!(
        repeated.expect("answered").into_inner().duplicate,
        "its key stays"
    );
}

#[tokio::test]
async fn erasure_cancels_pending_deliveries() {
    let hooks = "hooks: [ { name: crm, retry: { pause: 1h, pause_max: 1h }, exec: { argv: [sh, -c, 'exit 1'] } } ]";
    let daemon = Daemon::with(Setup::default().section(hooks)).await;
    let mut client = daemon.sessions();
    say(&mut client, "chat", "hi").await;
    let generation = end(&mut client, "chat").await;
    eventually("it was tried", async || {
        let owed = crate::harness::deliveries(&mut daemon.admin(), Default::default()).await;
        (owed.first()?.tries > 0).then_some(())
    })
    .await;
    let erased = erase(&mut client, "chat", "").await;
    let erased = done(&mut client, &erased.id).await;
    assert_eq!(erased.erased.expect("counts").deliveries, 1);
    assert_eq!(
        erased.outside,
        [format!("hook crm received generation {generation}")]
    );
    let owed = crate::harness::deliveries(&mut daemon.admin(), Default::default()).await;
    assert!(owed.is_empty(), "{owed:?}");
}

#[tokio::test]
async fn erasure_waits_for_running_hook_and_names_it() {
    let mut seed = Seed::new(73);
    let mark = marker(&mut seed);
    println!("the mark is {mark}");
    // The first hook holds its input until the test releases it, and then fails, so that it would
    // be retried. The second fails at once, and would be retried in an hour.
    let hooks = "hooks: [ \
         { name: slow, retry: { tries: 5, pause: 10ms, pause_max: 10ms }, exec: { argv: [sh, -c, \
           'cat > /dev/null; echo x >> begun; while [ ! -e go ]; do sleep 0.05; done; exit 1'] } }, \
         { name: later, retry: { pause: 1h, pause_max: 1h }, exec: { argv: [sh, -c, \
           'echo x >> later; exit 1'] } } ]";
    let daemon = Daemon::with(Setup::default().section(hooks)).await;
    let mut client = daemon.sessions();
    let lines = |name: &str| {
        let text = std::fs::read_to_string(daemon.path(name)).unwrap_or_default();
        text.lines().count()
    };
    say(&mut client, "chat", &mark).await;
    let generation = end(&mut client, "chat").await;
    eventually("both hooks were given it", async || {
        (lines("begun") == 1 && lines("later") == 1).then_some(())
    })
    .await;
    let erased = erase(&mut client, "chat", "").await;
    assert!(!erased.done, "a hook has it in its hands: {erased:?}");
    std::fs::write(daemon.path("go"), "").expect("written");
    let erased = done(&mut client, &erased.id).await;
    assert_eq!(
        erased.outside,
        [
            format!("hook later received generation {generation}"),
            format!("hook slow received generation {generation}"),
        ]
    );
    check_text_is_gone(&daemon, &mark, "after the hook");
    // Any remaining deliveries of the erased session would come before those of the other one.
    say(&mut client, "other", "hi").await;
    end(&mut client, "other").await;
    eventually("the other session is told", async || {
        (lines("begun") >= 6 && lines("later") == 2).then_some(())
    })
    .await;
    assert_eq!(
        (lines("begun"), lines("later")),
        (6, 2),
        "nothing of the erased one"
    );
    let owed = crate::harness::deliveries(&mut daemon.admin(), Default::default()).await;
    assert!(owed.iter().all(|one| one.session_id == "other"), "{owed:?}");
}

#[tokio::test]
async fn erasure_waits_for_running_backup() {
    let mut seed = Seed::new(75);
    let mark = marker(&mut seed);
    println!("the mark is {mark}");
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    fill(&mut client, "chat", "ann", &mark).await;
    // More than the buffers on the way to a client that does not read.
    for number in 0..64 {
        let text = format!("{number} {}", number.to_string().repeat(250_000));
        say(&mut client, "large", &text).await;
    }
    remember(&mut daemon.memories(), fact("bob", "likes tea")).await;
    let request = BackupRequest::default();
    let steps = daemon.admin().backup(request).await;
    let mut steps = steps.expect("a backup").into_inner();
    let first = steps.message().await.expect("a step");
    let copies = daemon.path("data/backup.tmp");
    assert!(first.is_some() && !files_with(&copies, &mark).is_empty());
    let erased = erase(&mut client, "chat", "").await;
    assert!(!erased.done, "a copy has it: {erased:?}");
    let forget = ForgetRequest {
        target: Some(Target::Subject("bob".to_owned())),
        dry_run: false,
    };
    let forgotten = daemon.memories().forget(forget).await;
    let forgotten = forgotten.expect("forgotten").into_inner();
    assert_eq!((forgotten.memories, forgotten.erased), (1, false));
    drop(steps);
    done(&mut client, &erased.id).await;
    check_text_is_gone(&daemon, &mark, "after the backup");
}

#[tokio::test]
async fn erase_subject_removes_only_sessions_of_that_subject() {
    let mut seed = Seed::new(72);
    let (mark, kept) = (marker(&mut seed), marker(&mut seed));
    println!("the mark is {mark}");
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    for number in 0..5 {
        fill(&mut client, &format!("{mark}-{number}"), &mark, &mark).await;
        fill(&mut client, &format!("stays-{number}"), "bob", &kept).await;
        if number % 2 == 0 {
            end(&mut client, &format!("{mark}-{number}")).await;
        }
    }
    let request = EraseSubjectRequest {
        subject: mark.clone(),
    };
    let erased = client
        .erase_subject(request)
        .await
        .expect("erased")
        .into_inner()
        .erasure
        .expect("an erasure");
    let erased = done(&mut client, &erased.id).await;
    check_text_is_gone(&daemon, &mark, "at once");
    assert_eq!(erased.erased.expect("counts").turns, 65);
    for number in 0..5 {
        assert_eq!(
            journal(&mut client, &format!("stays-{number}"), "")
                .await
                .len(),
            13
        );
    }
}

#[tokio::test]
async fn durability_off_erases_live_session() {
    let daemon = Daemon::with(Setup::default().section("journal: { durability: off }")).await;
    let mut client = daemon.sessions();
    say(&mut client, "chat", "hi").await;
    say(&mut client, "other", "hi").await;
    let erased = erase(&mut client, "chat", "").await;
    let erased = done(&mut client, &erased.id).await;
    assert_eq!(
        (erased.done, erased.erased.expect("counts").turns),
        (true, 1)
    );
    assert_eq!(live(&mut client, "other").await.len(), 1);
}

#[tokio::test]
async fn invalid_erasure_requests_are_refused() {
    let daemon = Daemon::with(Setup::default().two_tenants("", "")).await;
    let (mut alpha, mut beta) = (
        daemon.sessions_of(Setup::ALPHA),
        daemon.sessions_of(Setup::BETA),
    );
    say(&mut alpha, "chat", "hi").await;
    let none = erase(&mut beta, "chat", "").await;
    let none = done(&mut beta, &none.id).await;
    assert_eq!((none.done, none.erased), (true, Some(Default::default())));
    assert_eq!(live(&mut alpha, "chat").await.len(), 1);
    let erased = erase(&mut alpha, "chat", "").await;
    let erased = done(&mut alpha, &erased.id).await;
    assert_eq!(erased.erased.expect("counts").turns, 1);
    let look = |id: &str| GetErasureRequest { id: id.into() };
    let (code, reason) = (Code::NotFound, "ERASURE_NOT_FOUND");
    refused(beta.get_erasure(look(&erased.id)).await, code, reason);
    let invalid = Code::InvalidArgument;
    refused(
        beta.get_erasure(look("x")).await,
        invalid,
        "ERASURE_ID_INVALID",
    );
    let request = |session_id: &str, generation: &str| EraseSessionRequest {
        session_id: session_id.into(),
        generation: generation.into(),
    };
    refused(
        alpha.erase_session(request("", "")).await,
        invalid,
        "ID_INVALID",
    );
    let named = alpha.erase_session(request("chat", "x")).await;
    refused(named, invalid, "GENERATION_INVALID");
    let nobody = EraseSubjectRequest::default();
    refused(alpha.erase_subject(nobody).await, invalid, "ID_INVALID");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_amid_erasure_leaves_nothing_after_retry() {
    let hooks = format!("hooks: [ {CHECKPOINTS} ]");
    let mut daemon = Daemon::with(Setup::default().section(hooks)).await;
    let mut rounds = 0;
    let mut kept = Vec::new();
    for number in seeds(4) {
        let mut seed = Seed::new(number);
        let mark = marker(&mut seed);
        rounds += 1;
        let mut client = daemon.sessions();
        append_to_others(&mut client, rounds).await;
        let session = format!("kept-{rounds}");
        say(&mut client, &session, "stays").await;
        kept.push(end(&mut client, &session).await);
        for life in 0..3 {
            if life > 0 {
                end(&mut client, &mark).await;
            }
            fill(&mut client, &mark, &mark, &mark).await;
        }
        all_delivered(&mut daemon.admin()).await;
        let calls = seed.below(60);
        println!("seed {number}: killed after {calls} calls, the mark is {mark}");
        let mut erasing = daemon.sessions();
        let erasing = erase(&mut erasing, &mark, "");
        let looking = async {
            for _ in 0..calls {
                live(&mut client, "other-0").await;
            }
        };
        tokio::select! {
            erased = erasing => drop(erased),
            () = looking => {}
        }
        daemon.kill9().await;
        daemon.restart().await;
        let mut client = daemon.sessions();
        // If the job was not durable before the kill, this call starts it.
        let erased = erase(&mut client, &mark, "").await;
        done(&mut client, &erased.id).await;
        check_text_is_gone(&daemon, &mark, &format!("seed {number}"));
        check_other_sessions(&mut client, rounds).await;
        let repository = daemon.path("checkpoints/default.git");
        each_once(&repository, &kept, &format!("seed {number}"));
    }
}

#[tokio::test]
async fn erase_command_asks_for_confirmation_and_prints_counts() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let request = AppendRequest {
        subject: "ann".into(),
        ..keyed("chat", "k", [user("hi")])
    };
    client.append(request).await.expect("done");
    let refused = ask_as(&daemon, &["sessions", "erase", "chat"], "").await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert_eq!(live(&mut client, "chat").await.len(), 1);
    let erased = ask_as(&daemon, &["sessions", "erase", "chat", "--yes"], "").await;
    let first = erased.stdout.lines().next().unwrap_or_default();
    assert!(
        first.starts_with("turns ") && first.ends_with(" 1"),
        "{erased:?}"
    );
    let subject = ["--json", "sessions", "erase-subject", "ann", "--yes"];
    let erased = ask_as(&daemon, &subject, "").await;
    assert!(erased.stdout.contains("\"done\": true"), "{erased:?}");
}
