//! History limits: turns are dropped first in, first out, in whole units.

use std::collections::{BTreeMap, BTreeSet};

use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::{AppendRequest, Turn};
use tonic::Code;

use crate::harness::{
    Daemon, Seed, Sessions, Setup, append, assistant, journal, live, refused, say, seeds, text_of,
    tool_results, tool_uses, user,
};

/// Appends and asserts success. Returns the number of dropped turns.
async fn done(client: &mut Sessions, request: AppendRequest) -> u64 {
    client
        .append(request)
        .await
        .expect("the append is done")
        .into_inner()
        .dropped_turns
}

fn seqs(turns: &[Turn]) -> Vec<u64> {
    turns.iter().map(|turn| turn.seq).collect()
}

async fn capped(turns: usize) -> Daemon {
    let cap = format!("short_term: {{ max_history_turns: {turns} }}");
    Daemon::with(Setup::default().section(cap)).await
}

#[tokio::test]
async fn capped_history_keeps_first_user_turn_and_newest_turns() {
    let daemon = capped(5).await;
    let mut client = daemon.sessions();
    let mut dropped = done(&mut client, append("chat", [assistant("hello!")])).await;
    for number in 0..20 {
        dropped += done(
            &mut client,
            append("chat", [user(&format!("message {number}"))]),
        )
        .await;
    }
    let turns = live(&mut client, "chat").await;
    assert_eq!(seqs(&turns), [2, 17, 18, 19, 20, 21]);
    assert_eq!(text_of(&turns[0]), "message 0");
    assert_eq!(dropped, 15);
    assert_eq!(
        journal(&mut client, "chat", "").await.len(),
        21,
        "the journal has them all"
    );
    let session = say(&mut client, "chat", "more")
        .await
        .session
        .expect("a session");
    assert_eq!((session.history_turns, session.last_seq), (6, 22));
}

#[tokio::test]
async fn append_larger_than_cap_drops_its_own_first_turns() {
    let daemon = capped(3).await;
    let mut client = daemon.sessions();
    let turns: Vec<Turn> = (1..=10).map(|number| user(&number.to_string())).collect();
    assert_eq!(done(&mut client, append("chat", turns)).await, 6);
    assert_eq!(seqs(&live(&mut client, "chat").await), [1, 8, 9, 10]);
}

#[tokio::test]
async fn tool_call_and_its_results_are_dropped_together() {
    let daemon = capped(5).await;
    let mut client = daemon.sessions();
    let calls = [
        user("go"),
        tool_uses(&["a", "b", "c"]),
        tool_results(&["b"]),
        user("well?"),
    ];
    assert_eq!(done(&mut client, append("chat", calls)).await, 0);
    let rest = [tool_results(&["a", "c"]), assistant("so")];
    assert_eq!(done(&mut client, append("chat", rest)).await, 0);
    assert_eq!(seqs(&live(&mut client, "chat").await), [1, 2, 3, 4, 5, 6]);
    assert_eq!(
        done(&mut client, append("chat", [user("next")])).await,
        3,
        "the whole unit"
    );
    assert_eq!(seqs(&live(&mut client, "chat").await), [1, 4, 6, 7]);
}

#[tokio::test]
async fn late_result_of_dropped_call_is_accepted_and_dropped_with_it() {
    let daemon = capped(4).await;
    let mut client = daemon.sessions();
    let never = append("chat", [user("go"), tool_results(&["never"])]);
    let said = refused(
        client.append(never).await,
        Code::InvalidArgument,
        "TOOL_USE_UNKNOWN",
    );
    assert!(
        said.contains("never") && said.contains("turns[1]"),
        "it names the call: {said}"
    );
    done(
        &mut client,
        append("chat", [user("go"), tool_uses(&["slow"])]),
    )
    .await;
    for number in 0..6 {
        done(&mut client, append("chat", [user(&number.to_string())])).await;
    }
    let before = seqs(&live(&mut client, "chat").await);
    assert_eq!(before, [1, 5, 6, 7, 8], "the call has left unanswered");
    let late = client
        .append(append("chat", [tool_results(&["slow"])]))
        .await;
    let late = late.expect("a late result is taken").into_inner();
    assert_eq!((late.first_seq, late.dropped_turns), (9, 1));
    assert_eq!(
        seqs(&live(&mut client, "chat").await),
        before,
        "and is no orphan"
    );
    let again = client
        .append(append("chat", [tool_results(&["slow"])]))
        .await;
    refused(again, Code::InvalidArgument, "TOOL_USE_UNKNOWN");
    assert_eq!(journal(&mut client, "chat", "").await.len(), 9);
}

#[tokio::test]
async fn history_bytes_are_capped() {
    let cap = "short_term: { max_history_bytes: 10KiB }";
    let daemon = Daemon::with(Setup::default().section(cap)).await;
    let mut client = daemon.sessions();
    say(&mut client, "chat", "the task").await;
    let large = "x".repeat(3_000);
    for _ in 0..10 {
        say(&mut client, "chat", &large).await;
    }
    assert_eq!(seqs(&live(&mut client, "chat").await), [1, 9, 10, 11]);
    let session = say(&mut client, "chat", "small")
        .await
        .session
        .expect("a session");
    assert_eq!(session.history_turns, 5);
    assert!(
        session.history_bytes < (10 << 10) + 100,
        "the anchor is beside the cap"
    );
    let huge = append("chat", [user(&"x".repeat(11_000))]);
    refused(
        client.append(huge).await,
        Code::InvalidArgument,
        "TURN_TOO_LARGE",
    );
}

#[tokio::test]
async fn pinned_turn_is_kept_with_its_tool_unit() {
    let daemon = capped(5).await;
    let mut client = daemon.sessions();
    let mut pinned = tool_uses(&["a"]);
    pinned.pinned = true;
    done(
        &mut client,
        append("chat", [user("go"), pinned, tool_results(&["a"])]),
    )
    .await;
    for number in 0..8 {
        done(&mut client, append("chat", [user(&number.to_string())])).await;
    }
    let turns = live(&mut client, "chat").await;
    assert_eq!(seqs(&turns), [1, 2, 3, 9, 10, 11], "pins count in the cap");
    assert!(turns[1].pinned && !turns[2].pinned);
}

#[tokio::test]
async fn pinned_turns_are_limited_in_number_and_bytes() {
    let limits = Setup::default().section("limits: { pinned_turns: 2, pinned_bytes: 4KiB }");
    let daemon = Daemon::with(limits).await;
    let mut client = daemon.sessions();
    let pin = |text: &str| Turn {
        pinned: true,
        ..user(text)
    };
    say(&mut client, "many", "the task").await;
    done(&mut client, append("many", [pin("1"), pin("2")])).await;
    let code = Code::FailedPrecondition;
    refused(
        client.append(append("many", [pin("3")])).await,
        code,
        "PINNED_TOO_MANY",
    );
    say(&mut client, "large", "the task").await;
    let large = client
        .append(append("large", [pin(&"x".repeat(5_000))]))
        .await;
    refused(large, code, "PINNED_TOO_MANY");
    assert_eq!(
        live(&mut client, "many").await.len(),
        3,
        "a refusal changes nothing"
    );
}

/// A generated conversation, with its calls and results.
#[derive(Default)]
struct Model {
    seq: u64,
    /// Calls without a result: id and seq.
    open: Vec<(String, u64)>,
    /// The seqs of a result's turn and of its call.
    answers: Vec<(u64, u64)>,
}

impl Model {
    fn add(&mut self, turns: &mut Vec<Turn>, turn: Turn) {
        self.seq += 1;
        for part in &turn.parts {
            match &part.part {
                Some(Kind::ToolUse(call)) => self.open.push((call.id.clone(), self.seq)),
                Some(Kind::ToolResult(result)) => {
                    let found = self
                        .open
                        .iter()
                        .rposition(|(id, _)| *id == result.tool_use_id);
                    let (_, call) = self.open.remove(found.expect("an open call"));
                    self.answers.push((self.seq, call));
                }
                _ => {}
            }
        }
        turns.push(turn);
    }

    /// Generates the turns of the next append.
    fn next(&mut self, seed: &mut Seed) -> Vec<Turn> {
        let mut turns = Vec::new();
        for _ in 0..1 + seed.below(3) {
            let text = "x".repeat(seed.below(40));
            match seed.below(10) {
                0..3 => self.add(&mut turns, user(&text)),
                3..5 => self.add(&mut turns, assistant(&text)),
                5..7 => {
                    let count = 1 + seed.below(3);
                    let ids: Vec<String> = (0..count)
                        .map(|call| format!("c{}-{call}", self.seq))
                        .collect();
                    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
                    self.add(&mut turns, tool_uses(&ids));
                }
                _ => {
                    let mut ids = Vec::new();
                    for _ in 0..1 + seed.below(2) {
                        // Mostly the newest calls get results. Some never do.
                        let newest = self.open.len().saturating_sub(4);
                        let Some(open) = self.open.get(newest..).filter(|open| !open.is_empty())
                        else {
                            break;
                        };
                        let id = open[seed.below(open.len())].0.clone();
                        if !ids.contains(&id) {
                            ids.push(id);
                        }
                    }
                    let ids: Vec<&str> = ids.iter().map(String::as_str).collect();
                    let answer = tool_results(&ids);
                    if !ids.is_empty() {
                        self.add(&mut turns, answer);
                    }
                }
            }
        }
        if turns.is_empty() {
            self.add(&mut turns, user("well?"));
        }
        turns
    }

    /// Asserts that the history has both or neither of each call and its result.
    #[track_caller]
    fn check(&self, turns: &[Turn], cap: usize, seed: u64) {
        let kept: BTreeSet<u64> = seqs(turns).into_iter().collect();
        assert!(
            turns.is_sorted_by_key(|turn| turn.seq),
            "seed {seed}: in order"
        );
        for (result, call) in &self.answers {
            let (has_result, has_call) = (kept.contains(result), kept.contains(call));
            assert_eq!(
                has_result, has_call,
                "seed {seed}: {call} and {result} in {kept:?}"
            );
        }
        assert!(turns.len() <= cap + 1, "seed {seed}: {} turns", turns.len());
        assert_eq!(turns.last().map(|turn| turn.seq), kept.last().copied());
    }
}

#[tokio::test]
async fn history_of_random_tool_conversation_holds_no_orphans() {
    const CAP: usize = 9;
    let daemon = capped(CAP).await;
    let mut client = daemon.sessions();
    for seed in seeds(6) {
        let (mut random, mut model) = (Seed::new(seed), Model::default());
        let session = format!("seed {seed}");
        let (mut dropped, mut first_user) = (0, None);
        for _ in 0..40 {
            let turns = model.next(&mut random);
            dropped += done(&mut client, append(&session, turns)).await;
            let kept = live(&mut client, &session).await;
            model.check(&kept, CAP, seed);
            let user_turn = kept.iter().find(|turn| turn.role == 1).map(|turn| turn.seq);
            first_user = first_user.or(user_turn);
            assert!(
                first_user.is_none() || user_turn == first_user,
                "seed {seed}: the anchor"
            );
            assert_eq!(
                model.seq - dropped,
                kept.len() as u64,
                "seed {seed}: dropped turns"
            );
        }
        let all = journal(&mut client, &session, "").await;
        assert_eq!(
            seqs(&all),
            (1..=model.seq).collect::<Vec<_>>(),
            "seed {seed}"
        );
    }
}

#[tokio::test]
async fn restart_preserves_capped_history_exactly() {
    let mut daemon = capped(9).await;
    let mut models: BTreeMap<u64, (Seed, Model)> = (11..=16)
        .map(|seed| (seed, (Seed::new(seed), Model::default())))
        .collect();
    for round in 0..4 {
        let mut client = daemon.sessions();
        let mut before = Vec::new();
        for (seed, (random, model)) in &mut models {
            let session = format!("seed {seed}");
            for _ in 0..8 {
                let turns = model.next(random);
                done(&mut client, append(&session, turns)).await;
            }
            before.push((session.clone(), live(&mut client, &session).await));
        }
        match round % 2 {
            0 => daemon.kill9().await,
            _ => daemon.stop().await,
        }
        daemon.restart().await;
        let mut client = daemon.sessions();
        for (session, turns) in before {
            assert_eq!(
                live(&mut client, &session).await,
                turns,
                "{session}, round {round}"
            );
        }
    }
}
