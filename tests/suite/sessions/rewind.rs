//! Rewinding turns: removed, answered again, edited or replaced.
//!
//! Rewound turns are hidden from windows, summaries, search and hooks, and stay marked in the
//! journal until retention deletes them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use memoird_proto::v1::{
    BuildContextRequest, CompactSessionRequest, GetHistoryRequest, GetSessionRequest, HistoryScope,
    MessageFormat, ResetSessionRequest, RewindSessionRequest, RewindSessionResponse,
    SearchTranscriptsRequest, Turn,
};
use tokio::task::JoinSet;
use tonic::{Code, Response, Status};

use crate::harness::{
    Daemon, Seed, Sessions, Setup, append, assistant, eventually, journal, keyed, live, refused,
    say, seeds_factor, text_of, tool_results, tool_uses, user,
};

fn rewind(after_seq: u64, turns: impl Into<Vec<Turn>>) -> RewindSessionRequest {
    RewindSessionRequest {
        session_id: "chat".into(),
        after_seq,
        turns: turns.into(),
        ..RewindSessionRequest::default()
    }
}

async fn try_rewind(
    client: &mut Sessions,
    request: RewindSessionRequest,
) -> Result<Response<RewindSessionResponse>, Status> {
    client.rewind_session(request).await
}

async fn done(client: &mut Sessions, request: RewindSessionRequest) -> RewindSessionResponse {
    let answer = try_rewind(client, request).await;
    answer.expect("it is taken back").into_inner()
}

fn texts(turns: &[Turn]) -> Vec<&str> {
    turns.iter().map(text_of).collect()
}

/// The texts of the window.
async fn window(client: &mut Sessions) -> (Vec<String>, bool) {
    let request = BuildContextRequest {
        session_id: "chat".into(),
        ..BuildContextRequest::default()
    };
    let answer = client.build_context(request).await.expect("a window");
    let answer = answer.into_inner();
    let shown = answer.turns.iter().map(|turn| text_of(turn).to_owned());
    (shown.collect(), answer.report.expect("a report").degraded)
}

async fn say_all(client: &mut Sessions, texts: &[&str]) {
    let turns = texts
        .iter()
        .enumerate()
        .map(|(place, text)| match place % 2 {
            0 => user(text),
            _ => assistant(text),
        });
    let turns: Vec<Turn> = turns.collect();
    client.append(append("chat", turns)).await.expect("said");
}

#[tokio::test]
async fn pop_regenerate_edit_and_replace_survive_kill() {
    for durability in ["sync", "interval", "off"] {
        let setup = format!("journal: {{ durability: {durability} }}");
        let mut daemon = Daemon::with(Setup::default().section(setup)).await;
        let mut client = daemon.sessions();
        say_all(&mut client, &["q1", "r1", "q2", "r2"]).await;

        let popped = done(&mut client, rewind(3, [])).await;
        assert_eq!(texts(&popped.removed), ["r2"]);
        assert!(popped.removed[0].removed && popped.removed_turns == 1);
        let session = popped.session.expect("a session");
        assert_eq!((session.history_turns, session.last_seq), (3, 3));
        let again = done(&mut client, rewind(3, [assistant("r2 again")])).await;
        assert_eq!((again.first_seq, again.last_seq), (5, 5));
        let edited = done(&mut client, rewind(2, [user("q2 edited"), assistant("r3")])).await;
        assert_eq!(texts(&edited.removed), ["q2", "r2 again"]);

        let expected = ["q1", "r1", "q2 edited", "r3"];
        assert_eq!(
            window(&mut client).await,
            (expected.map(String::from).to_vec(), false)
        );
        assert_eq!(texts(&live(&mut client, "chat").await), expected);
        if durability == "off" {
            continue;
        }
        if durability == "sync" {
            daemon.kill9().await;
        } else {
            daemon.stop().await;
        }
        daemon.restart().await;
        client = daemon.sessions();
        assert_eq!(window(&mut client).await.0, expected);
        let all = journal(&mut client, "chat", "").await;
        assert_eq!(
            all.iter().map(|turn| turn.seq).collect::<Vec<_>>(),
            [1, 2, 3, 4, 5, 6, 7]
        );
        let removed: Vec<bool> = all.iter().map(|turn| turn.removed).collect();
        assert_eq!(removed, [false, false, true, true, true, false, false]);
        assert_eq!(
            texts(&all)[2..5],
            ["q2", "r2", "r2 again"],
            "as they were said"
        );

        let set = done(&mut client, rewind(0, [user("new"), assistant("talk")])).await;
        assert_eq!((texts(&set.removed), set.first_seq), (expected.to_vec(), 8));
        assert_eq!(
            window(&mut client).await,
            (vec!["new".into(), "talk".into()], false)
        );
    }
}

#[tokio::test]
async fn ten_pops_leave_earlier_turns_only_and_seqs_are_not_reused() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    say_all(&mut client, &["one", "two"]).await;
    for round in 0..10 {
        let said = say(&mut client, "chat", &format!("popped {round}")).await;
        let popped = done(&mut client, rewind(said.last_seq - 1, [])).await;
        assert_eq!(texts(&popped.removed), [format!("popped {round}")]);
        assert_eq!(window(&mut client).await.0, ["one", "two"]);
    }
    let next = say(&mut client, "chat", "three").await;
    assert_eq!(next.first_seq, 13, "no seq is given again");
    assert_eq!(
        window(&mut client).await,
        (vec!["one".into(), "two".into(), "three".into()], false)
    );
    let request = GetHistoryRequest {
        session_id: "chat".into(),
        scope: HistoryScope::Journal.into(),
        format: MessageFormat::Openai.into(),
        ..GetHistoryRequest::default()
    };
    let read = client
        .get_history(request)
        .await
        .expect("read")
        .into_inner();
    assert_eq!(read.turns.len(), 13);
    assert!(
        !read.messages_json.contains("popped"),
        "{}",
        read.messages_json
    );
}

#[tokio::test]
async fn history_cap_applies_after_rewind() {
    let cap = "short_term: { max_history_turns: 4 }";
    let daemon = Daemon::with(Setup::default().section(cap)).await;
    let mut client = daemon.sessions();
    for number in 1..=8 {
        say(&mut client, "chat", &number.to_string()).await;
    }
    assert_eq!(
        texts(&live(&mut client, "chat").await),
        ["1", "5", "6", "7", "8"]
    );
    let rewound = done(&mut client, rewind(3, [user("9")])).await;
    assert_eq!(
        texts(&rewound.removed),
        ["5", "6", "7", "8"],
        "4 had been dropped before"
    );
    assert_eq!(texts(&live(&mut client, "chat").await), ["1", "9"]);
    let all = journal(&mut client, "chat", "").await;
    let removed = all.iter().filter(|turn| turn.removed);
    assert_eq!(removed.count(), 5);
    for number in 10..=13 {
        say(&mut client, "chat", &number.to_string()).await;
    }
    assert_eq!(
        texts(&live(&mut client, "chat").await),
        ["1", "10", "11", "12", "13"]
    );
}

#[tokio::test]
async fn invalid_rewind_is_refused_and_changes_nothing() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    for request in [rewind(0, []), rewind(1, [user("x")])] {
        let absent = try_rewind(&mut client, request).await;
        refused(absent, Code::NotFound, "SESSION_NOT_FOUND");
    }
    let turns = [
        user("look"),
        tool_uses(&["a", "b"]),
        tool_results(&["a"]),
        tool_results(&["b"]),
    ];
    client.append(append("chat", turns)).await.expect("said");
    say(&mut client, "chat", "thanks").await;
    let before = live(&mut client, "chat").await;
    let (bad, failed) = (Code::InvalidArgument, Code::Aborted);
    let with = |change: fn(&mut RewindSessionRequest)| {
        let mut request = rewind(4, []);
        change(&mut request);
        request
    };
    for (request, code, reason) in [
        (rewind(2, []), bad, "TOOL_UNIT_SPLIT"),
        (rewind(3, []), bad, "TOOL_UNIT_SPLIT"),
        (rewind(6, []), bad, "AFTER_SEQ_INVALID"),
        (rewind(u64::MAX, []), bad, "AFTER_SEQ_INVALID"),
        (rewind(1, [tool_results(&["a"])]), bad, "TOOL_USE_UNKNOWN"),
        (with(|it| it.expected_seq = Some(4)), failed, "STALE_SEQ"),
        (
            with(|it| it.expected_generation = "01ARZ3NDEKTSV4RRFFQ69G5FAV".into()),
            failed,
            "STALE_GENERATION",
        ),
        (
            with(|it| it.expected_generation = "x".into()),
            bad,
            "GENERATION_INVALID",
        ),
        (
            with(|it| it.messages_json = "{".into()),
            bad,
            "FORMAT_INVALID",
        ),
        (
            with(|it| it.idempotency_key = "k".repeat(257)),
            bad,
            "ID_INVALID",
        ),
        (with(|it| it.session_id = String::new()), bad, "ID_INVALID"),
        (
            with(|it| {
                it.turns = vec![user("x")];
                it.messages_json = "[]".into();
            }),
            bad,
            "TURNS_AMBIGUOUS",
        ),
    ] {
        refused(try_rewind(&mut client, request).await, code, reason);
    }
    assert_eq!(live(&mut client, "chat").await, before);
    let unit = done(&mut client, rewind(1, [])).await;
    assert_eq!(unit.removed_turns, 4, "a unit goes whole");
}

#[tokio::test]
async fn idempotency_key_of_rewound_append_is_refused_not_duplicate() {
    let mut daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let first = keyed("chat", "m1", [user("one")]);
    let second = keyed("chat", "m2", [user("two")]);
    client.append(first.clone()).await.expect("said");
    client.append(second.clone()).await.expect("said");
    let pop = RewindSessionRequest {
        idempotency_key: "pop".into(),
        ..rewind(1, [])
    };
    assert!(!done(&mut client, pop.clone()).await.duplicate);
    for _ in 0..2 {
        let again = done(&mut client, pop.clone()).await;
        assert!(again.duplicate && !again.removed_forgotten && again.removed[0].removed);
        assert_eq!(
            (texts(&again.removed), again.removed_turns),
            (vec!["two"], 1)
        );
        let rewound = client.append(second.clone()).await;
        refused(rewound, Code::FailedPrecondition, "IDEMPOTENCY_KEY_REWOUND");
        let known = client.append(first.clone()).await.expect("known");
        assert!(known.into_inner().duplicate);
        let other = RewindSessionRequest {
            after_seq: 0,
            ..pop.clone()
        };
        let other = try_rewind(&mut client, other).await;
        refused(other, Code::InvalidArgument, "IDEMPOTENCY_KEY_REUSED");
        daemon.kill9().await;
        daemon.restart().await;
        client = daemon.sessions();
    }
}

#[tokio::test]
async fn rewind_removes_summaries_and_search_hits_of_rewound_turns() {
    let mut daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    // Long enough for a summary to be shorter.
    let more = "and so on, as people do who have time ".repeat(12);
    let talk = (1..=16).map(|number| format!("word{number} is said {more}"));
    let talk: Vec<String> = talk.collect();
    let talk: Vec<&str> = talk.iter().map(String::as_str).collect();
    say_all(&mut client, &talk).await;
    for keep_exchanges in [Some(6), Some(3)] {
        let request = CompactSessionRequest {
            session_id: "chat".into(),
            keep_exchanges,
        };
        client.compact_session(request).await.expect("compacted");
    }
    let summary = async |client: &mut Sessions| {
        let request = GetSessionRequest {
            session_id: "chat".into(),
            ..GetSessionRequest::default()
        };
        let detail = client.get_session(request).await.expect("it lives");
        let detail = detail.into_inner();
        (
            detail.summary.map_or(0, |it| it.through_seq),
            detail.summary_text,
        )
    };
    let (through_seq, _) = summary(&mut client).await;
    assert!(through_seq >= 8, "{through_seq}");
    let rewound = done(&mut client, rewind(through_seq - 2, [user("edited")])).await;
    let session = rewound.session.expect("a session");
    let told = session.compaction.expect("its compaction").through_seq;
    for _ in 0..2 {
        let (stands, text) = summary(&mut client).await;
        assert!(stands > 0 && stands < through_seq && stands == told);
        assert!(!text.contains(&format!("word{through_seq} ")), "{text}");
        daemon.kill9().await;
        daemon.restart().await;
        client = daemon.sessions();
    }
    done(&mut client, rewind(1, [])).await;
    assert_eq!(summary(&mut client).await.0, 0);
    assert_eq!(window(&mut client).await, (vec![talk[0].to_owned()], false));
    for (word, hits) in [("word1", 1), ("word16", 0), ("edited", 0)] {
        let request = SearchTranscriptsRequest {
            query: word.into(),
            ..SearchTranscriptsRequest::default()
        };
        let found = client.search_transcripts(request).await.expect("found");
        assert_eq!(found.into_inner().hits.len(), hits, "{word}");
    }
}

#[tokio::test]
async fn concurrent_pops_each_take_a_different_turn_or_are_refused() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let talk: Vec<String> = (1..=24).map(|number| number.to_string()).collect();
    say_all(
        &mut client,
        &talk.iter().map(String::as_str).collect::<Vec<_>>(),
    )
    .await;
    let mut pops = JoinSet::new();
    for name in 0..12 {
        let mut client = daemon.sessions();
        pops.spawn(async move {
            let mut expected = 24;
            loop {
                let request = RewindSessionRequest {
                    expected_seq: Some(expected),
                    idempotency_key: format!("pop {name}"),
                    ..rewind(expected - 1, [])
                };
                match try_rewind(&mut client, request).await {
                    Ok(popped) => return popped.into_inner().removed.remove(0),
                    Err(stale) => assert_eq!(stale.code(), Code::Aborted, "{stale}"),
                }
                let request = GetSessionRequest {
                    session_id: "chat".into(),
                    ..GetSessionRequest::default()
                };
                let seen = client.get_session(request).await.expect("it lives");
                expected = seen.into_inner().session.expect("a session").last_seq;
            }
        });
    }
    let mut popped: Vec<u64> = pops.join_all().await.iter().map(|turn| turn.seq).collect();
    popped.sort_unstable();
    assert_eq!(popped, (13..=24).collect::<Vec<u64>>());
    assert_eq!(live(&mut client, "chat").await.len(), 12);
}

#[tokio::test]
async fn rewind_to_zero_creates_session_with_given_turns() {
    let daemon = Daemon::start().await;
    let mut client = daemon.sessions();
    let set = done(&mut client, rewind(0, [user("a"), assistant("b")])).await;
    assert_eq!((set.first_seq, set.last_seq, set.removed_turns), (1, 2, 0));
    assert_eq!(texts(&live(&mut client, "chat").await), ["a", "b"]);
}

/// Appends, rewinds and edits, each step under its own key, until the daemon is gone.
struct Writer {
    random: Seed,
    step: u64,
    /// Seq and text of the current turns.
    said: Vec<(u64, String)>,
    last_seq: u64,
}

impl Writer {
    /// The next request, the turns after it, and the number of new turns.
    fn next(&self, random: &mut Seed) -> (RewindSessionRequest, Vec<(u64, String)>, usize) {
        let place = random.below(self.said.len() + 1);
        let place = place.max(self.said.len().saturating_sub(4));
        let after_seq = place.checked_sub(1).map_or(0, |before| self.said[before].0);
        let new = if self.said.len() < 3 {
            2
        } else {
            random.below(3)
        };
        let texts = (0..new).map(|part| format!("{}.{part}", self.step));
        let mut then = self.said[..place].to_vec();
        then.extend((self.last_seq + 1..).zip(texts.clone()));
        let request = RewindSessionRequest {
            idempotency_key: format!("step {}", self.step),
            expected_seq: Some(self.said.last().map_or(0, |(seq, _)| *seq)),
            ..rewind(after_seq, texts.map(|text| user(&text)).collect::<Vec<_>>())
        };
        (request, then, new)
    }

    async fn step(&mut self, client: &mut Sessions) -> Result<(), Status> {
        let mut random = self.random.clone();
        let (request, then, new) = self.next(&mut random);
        let answer = try_rewind(client, request).await?.into_inner();
        let gone = self.said.iter().filter(|turn| !then.contains(turn));
        let gone: Vec<&str> = gone.map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts(&answer.removed), gone, "step {}", self.step);
        self.said = then;
        self.last_seq += new as u64;
        self.step += 1;
        self.random = random;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kill_9_amid_rewinds_applies_each_once_or_not_at_all() {
    let mut daemon = Daemon::with(Setup::default()).await;
    for seed in 1..=4 * seeds_factor() {
        let mut random = Seed::new(seed);
        let mut writer = Writer {
            random: Seed::new(seed),
            step: 0,
            said: Vec::new(),
            last_seq: 0,
        };
        let mut client = daemon.sessions();
        let reset = ResetSessionRequest {
            session_id: "chat".into(),
            run_hooks: false,
            ..ResetSessionRequest::default()
        };
        // The session does not exist in the first round.
        let _ = client.reset_session(reset).await;
        writer.step += seed * 1_000_000;
        for _ in 0..3 {
            let steps = writer.step + 5 + random.below(40) as u64;
            let (mut cut, killed) = (daemon.sessions(), Arc::new(AtomicU64::new(0)));
            let done = Arc::clone(&killed);
            let mut writing = JoinSet::new();
            writing.spawn(async move {
                while writer.step(&mut cut).await.is_ok() {
                    done.store(writer.step, Ordering::Relaxed);
                }
                writer
            });
            eventually("enough is done", async || {
                (killed.load(Ordering::Relaxed) >= steps).then_some(())
            })
            .await;
            daemon.kill9().await;
            writer = writing.join_all().await.remove(0);
            daemon.restart().await;
            client = daemon.sessions();
            // The unacknowledged step is retried, and applied once.
            writer.step(&mut client).await.expect("done");
            let there = live(&mut client, "chat").await;
            let there = there
                .iter()
                .map(|turn| (turn.seq, text_of(turn).to_owned()));
            assert_eq!(there.collect::<Vec<_>>(), writer.said, "seed {seed}");
            let all = journal(&mut client, "chat", "").await;
            let seqs: Vec<u64> = all.iter().map(|turn| turn.seq).collect();
            assert_eq!(
                seqs,
                (1..=writer.last_seq).collect::<Vec<_>>(),
                "seed {seed}"
            );
            let stays = all.iter().filter(|turn| !turn.removed).map(|turn| turn.seq);
            let said = writer.said.iter().map(|(seq, _)| *seq);
            assert!(stays.eq(said), "seed {seed}");
        }
    }
}
