//! Leases of turns: held until their facts are committed, and without forgotten turns.

use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;

use memoird_core::ids::{Generation, LeaseId};
use memoird_core::session::{AppendCommand, RewindCommand};
use memoird_core::time::Timestamp;
use memoird_core::turn::{PartKind, Role, Turn};
use memoird_engine::{Durability, TurnRef, TurnUpdateCommand};
use memoird_memories::rules::{Origin, Outcome, Patch};
use memoird_memories::{
    ExtractedFact, ExtractionLease, ExtractionOutcome, ForgetRequest, MemoryError, RememberRequest,
};
use memoird_store::encoding;
use tokio::time::sleep;

use super::{ANN, BOB, Daemon, acme, fact, from, query_in, subject, world};
use crate::bot::saying;
use crate::kit::{session_id, settle};
use crate::world::Bot;
use crate::world::{Folder, World, unswept};

const SECOND: Duration = Duration::from_secs(1);
const LEASE: Duration = Duration::from_secs(300);

fn found(content: &str, seqs: &[u64]) -> ExtractedFact {
    ExtractedFact {
        fact: fact(ANN, content),
        seqs: seqs.to_vec(),
    }
}

/// Seqs of the leased turns.
fn seqs(lease: &ExtractionLease) -> Vec<u64> {
    let placed = lease
        .turns
        .iter()
        .map(|content| encoding::open_with_seq(content).unwrap().0);
    placed.collect()
}

impl Bot {
    async fn lease_of(
        &self,
        generation: Option<Generation>,
        whose: Option<&str>,
    ) -> Result<ExtractionLease, MemoryError> {
        let session = session_id("s");
        let whose = whose.map(subject);
        self.memories
            .learning
            .lease(&self.tenant, &session, generation, whose)
            .await
    }

    async fn lease(&self) -> ExtractionLease {
        self.lease_of(None, None).await.unwrap()
    }

    async fn commit(
        &self,
        lease: Option<LeaseId>,
        facts: Vec<ExtractedFact>,
    ) -> Result<ExtractionOutcome, MemoryError> {
        self.memories
            .learning
            .commit(&self.tenant, lease.unwrap(), facts)
            .await
    }

    /// Replaces the text of a turn of session `s`.
    pub(super) async fn update(&self, seq: u64, text: &str) {
        let command = TurnUpdateCommand {
            turn_name: TurnRef::Seq(seq),
            turn: Turn::new(Role::User, vec![PartKind::Text(text.to_owned()).into()]),
            expected_generation: None,
            idempotency: None,
        };
        let (commands, session) = (&self.engine.commands, session_id("s"));
        let updated = commands.update_turn(&self.tenant, &session, command);
        updated.await.unwrap();
    }

    /// Rewinds session `s`.
    pub(super) async fn rewind(&self, after_seq: u64) {
        let command = RewindCommand {
            after_seq,
            append: AppendCommand::default(),
        };
        let (commands, session) = (&self.engine.commands, session_id("s"));
        let rewound = commands.rewind(&self.tenant, &session, command);
        rewound.await.unwrap();
    }

    async fn tell_all(&self, texts: &[&str]) {
        for text in texts {
            self.tell("s", ANN, text).await;
        }
    }
}

fn is_lost<T>(answer: &Result<T, MemoryError>) -> bool {
    matches!(answer, Err(MemoryError::LeaseLost))
}

fn is_held<T>(answer: &Result<T, MemoryError>) -> bool {
    matches!(answer, Err(MemoryError::LeaseHeld { .. }))
}

#[tokio::test(start_paused = true)]
async fn turns_are_leased_once() {
    let world = world();
    let bot = acme(&world.open().await);
    bot.learn(ANN, "is known already").await;
    bot.tell_all(&["I like tea", "and chess"]).await;
    let lease = bot.lease().await;
    assert_eq!((seqs(&lease), lease.cursor_seq), (vec![1, 2], 0));
    assert!(lease.manifest.contains("is known already"));
    for piece in ["I like tea", "is known already", "[2 ", "2023-11-14"] {
        assert!(lease.prompt.contains(piece), "{piece}\n{}", lease.prompt);
    }
    assert!(is_held(&bot.lease_of(None, None).await));

    let facts = vec![found("likes tea", &[1]), found("likes chess", &[])];
    let outcome = bot.commit(lease.lease, facts).await.unwrap();
    assert_eq!(outcome.cursor_seq, 2);
    let memories: Vec<_> = outcome
        .results
        .iter()
        .map(|result| &result.memory)
        .collect();
    assert_eq!(memories[0].source.as_ref().unwrap().seqs, [1]);
    assert_eq!(memories[1].source.as_ref().unwrap().seqs, [1, 2]);
    assert_eq!(
        (memories[0].origin, memories[0].subject.as_str()),
        (Origin::Extraction, ANN)
    );
    assert_eq!(memories[0].observed_at.as_ms() / 1_000, 1_700_000_000);
    assert!(
        is_lost(&bot.commit(lease.lease, Vec::new()).await),
        "it is over"
    );

    let nothing = bot.lease().await;
    assert_eq!((nothing.lease, nothing.cursor_seq), (None, 2));
    bot.tell_all(&["and go"]).await;
    assert_eq!(
        seqs(&bot.lease().await),
        [3],
        "what an extraction stored skips nothing"
    );
}

#[tokio::test(start_paused = true)]
async fn repeated_commit_returns_first_outcome() {
    let world = world();
    let bot = acme(&world.open().await);
    bot.tell_all(&["I like tea", "and chess"]).await;
    let first = bot.lease().await.lease;
    let facts = vec![found("likes tea", &[1]), found("likes chess", &[])];
    let done = bot.commit(first, facts.clone()).await.unwrap();
    let same = |again: &ExtractionOutcome| {
        let pairs = again.results.iter().zip(&done.results);
        again.cursor_seq == done.cursor_seq
            && again.results.len() == done.results.len()
            && pairs
                .into_iter()
                .all(|(again, was)| again.memory == was.memory && again.outcome == was.outcome)
    };
    let again = bot.commit(first, facts.clone()).await.unwrap();
    assert!(same(&again) && again.results.iter().all(|one| one.is_repetition));
    assert!(is_lost(&bot.commit(first, Vec::new()).await), "other facts");

    // The next lease, its commit, and a restart do not make the store forget the first commit.
    bot.tell_all(&["and go"]).await;
    let next = bot.lease().await.lease;
    assert!(same(&bot.commit(first, facts.clone()).await.unwrap()));
    bot.commit(next, Vec::new()).await.unwrap();
    let bot = acme(&world.open().await);
    assert!(same(&bot.commit(first, facts.clone()).await.unwrap()));
    assert!(
        bot.commit(next, Vec::new())
            .await
            .unwrap()
            .results
            .is_empty()
    );
    assert_eq!(bot.listed(ANN).await.len(), 2);
    let kept = bot.memories.counts(&bot.tenant.id);
    assert_eq!((kept.created, kept.reinforced), (0, 0), "of this daemon");

    let one = ForgetRequest::One(done.results[0].memory.id);
    bot.memories
        .forgetting
        .forget(&bot.tenant, one, false)
        .await
        .unwrap();
    assert!(
        is_lost(&bot.commit(first, facts).await),
        "what it stored is gone"
    );
}

#[tokio::test(start_paused = true)]
async fn commit_after_update_or_rewind_of_leased_turn_is_refused() {
    for (is_update, left) in [(true, &[1, 2][..]), (false, &[1])] {
        let world = world();
        let bot = acme(&world.open().await);
        bot.tell_all(&["I like tea", "my code is 1234"]).await;
        let old = bot.lease().await.lease;
        if is_update {
            bot.update(2, "my code is secret").await;
        } else {
            bot.rewind(1).await;
        }
        let code = vec![found("the code is 1234", &[2])];
        assert!(is_lost(&bot.commit(old, code.clone()).await), "{left:?}");
        assert!(is_lost(&bot.commit(old, Vec::new()).await), "{left:?}");
        assert!(bot.listed(ANN).await.is_empty(), "{left:?}");

        // The turns are leased again at once, as they are now.
        let new = bot.lease().await;
        assert_eq!(seqs(&new), left);
        assert!(!new.prompt.contains("1234"), "{}", new.prompt);
        let tea = vec![found("likes tea", &[1])];
        bot.commit(new.lease, tea.clone()).await.unwrap();
        // A repeated commit is no new one.
        bot.update(1, "I like coffee").await;
        let again = bot.commit(new.lease, tea).await.unwrap();
        assert!(again.results[0].is_repetition, "{left:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn commit_after_changes_of_other_turns_is_accepted() {
    let mut world = world();
    world.config.long_term.limits.lease_turns = 2;
    let bot = acme(&world.open().await);
    bot.tell_all(&["0", "I like tea", "and chess", "and go"])
        .await;
    bot.rewind(3).await;
    let first = bot.lease().await;
    assert_eq!(seqs(&first), [1, 2]);
    bot.commit(first.lease, Vec::new()).await.unwrap();
    bot.tell_all(&["and cards", "and dice"]).await;
    let second = bot.lease().await;
    assert_eq!(seqs(&second), [3, 5]);
    bot.update(1, "1").await;
    bot.update(6, "and darts").await;
    bot.rewind(5).await;
    bot.commit(second.lease, vec![found("likes chess", &[3])])
        .await
        .unwrap();
    assert_eq!(bot.listed(ANN).await, ["likes chess"]);
}

#[tokio::test(start_paused = true)]
async fn relative_date_counts_from_its_turn() {
    let world = world();
    let bot = acme(&world.open().await);
    bot.tell_all(&["I moved to Rome yesterday"]).await;
    let mut moved = found("Moved to Rome yesterday", &[1]);
    // The time of the fact is not that of the turn.
    moved.fact.observed_at = Some(Timestamp::new(1_600_000_000, 0).unwrap());
    let lease = bot.lease().await.lease;
    bot.commit(lease, vec![moved]).await.unwrap();
    let dated = "Moved to Rome yesterday (2023-11-13)";
    assert_eq!(bot.listed(ANN).await, [dated]);

    let mut told = fact(BOB, "Sails next week");
    told.observed_at = Some(Timestamp::new(1_600_000_000, 0).unwrap());
    let kept = bot.remember(told).await.unwrap().memory;
    assert_eq!(kept.content, "Sails next week (week of 2020-09-14)");
    let kept = bot.remember(fact(BOB, "Sails today")).await.unwrap().memory;
    assert_eq!(kept.content, "Sails today (2023-11-14)");
    let patch = Patch {
        content: Some("Sails tomorrow".into()),
        ..Patch::default()
    };
    let changed = bot
        .memories
        .facts
        .update(&bot.tenant, kept.id, None, patch)
        .await;
    assert_eq!(changed.unwrap().0.content, "Sails tomorrow (2023-11-15)");
}

#[tokio::test(start_paused = true)]
async fn expired_lease_returns_its_turns() {
    let mut world = world();
    world.config.sessions.session_ttl = 10 * LEASE;
    let bot = acme(&world.open().await);
    bot.tell_all(&["I like tea"]).await;
    let lost = bot.lease().await.lease;
    sleep(LEASE - SECOND).await;
    assert!(is_held(&bot.lease_of(None, None).await));
    sleep(SECOND).await;
    assert!(is_lost(
        &bot.commit(lost, vec![found("likes tea", &[])]).await
    ));
    let again = bot.lease().await;
    assert_eq!(seqs(&again), [1]);
    assert!(
        is_lost(&bot.commit(lost, vec![found("likes tea", &[])]).await),
        "another has it"
    );
    bot.commit(again.lease, vec![found("likes tea", &[])])
        .await
        .unwrap();
    assert_eq!(bot.listed(ANN).await, ["likes tea"]);
}

#[tokio::test(start_paused = true)]
async fn commit_is_atomic() {
    let mut world = world();
    world.config.long_term.limits.memories = 2;
    let bot = acme(&world.open().await);
    bot.tell_all(&["I like tea"]).await;
    let lease = bot.lease().await;
    let too_many = ["one", "two", "three"]
        .map(|content| found(content, &[]))
        .to_vec();
    assert!(bot.commit(lease.lease, too_many).await.is_err());
    let foreign = vec![found("one", &[]), found("two", &[7])];
    assert!(
        bot.commit(lease.lease, foreign).await.is_err(),
        "turn 7 is not leased"
    );
    let stranger = bot.learn(BOB, "of Bob").await;
    let mut supersedes = found("one", &[]);
    supersedes.fact.supersedes = Some(stranger);
    assert!(bot.commit(lease.lease, vec![supersedes]).await.is_err());
    assert!(bot.listed(ANN).await.is_empty());
    let outcome = bot
        .commit(lease.lease, vec![found("one", &[])])
        .await
        .unwrap();
    assert_eq!(
        (outcome.cursor_seq, outcome.results[0].outcome),
        (1, Outcome::Created)
    );
}

#[tokio::test(start_paused = true)]
async fn turns_remembered_by_bot_are_skipped() {
    let world = world();
    let bot = acme(&world.open().await);
    bot.tell_all(&["one", "two"]).await;
    bot.remember(RememberRequest {
        source: from("s", &[1]),
        ..fact(ANN, "x")
    })
    .await
    .unwrap();
    let lease = bot.lease().await;
    assert_eq!(
        (lease.lease, lease.cursor_seq),
        (None, 2),
        "it had seen all of them"
    );
    bot.tell_all(&["three"]).await;
    assert_eq!(seqs(&bot.lease().await), [3]);
}

#[tokio::test(start_paused = true)]
async fn ended_generation_is_leased_until_its_retention() {
    let mut world = world();
    world.config.journal.retention = Duration::from_secs(600);
    let bot = acme(&world.open().await);
    bot.tell_all(&["one", "two"]).await;
    let ended = bot.end("s").await.unwrap().head.generation;
    let lease = bot.lease_of(None, Some(ANN)).await.unwrap();
    assert_eq!((seqs(&lease), lease.generation), (vec![1, 2], Some(ended)));
    bot.commit(lease.lease, vec![found("likes tea", &[2])])
        .await
        .unwrap();
    bot.tell_all(&["a new life"]).await;
    assert_eq!(
        seqs(&bot.lease().await),
        [1],
        "each life has a cursor of its own"
    );
    let old = bot.lease_of(Some(ended), Some(ANN)).await.unwrap();
    assert_eq!((old.lease, old.cursor_seq), (None, 2));
    sleep(Duration::from_secs(3_600)).await;
    assert!(bot.lease_of(Some(ended), Some(ANN)).await.is_err());
}

/// The subject of an earlier generation is not that of the current one.
#[tokio::test(start_paused = true)]
async fn earlier_generation_is_not_leased_for_new_subject() {
    let world = world();
    let bot = acme(&world.open().await);
    bot.tell("s", ANN, "Ann's secret").await;
    let anns = bot.end("s").await.unwrap().head.generation;
    bot.tell("s", BOB, "hello").await;
    match bot.lease_of(Some(anns), None).await {
        Ok(lease) => {
            let outcome = bot
                .commit(lease.lease, vec![found("a secret", &[])])
                .await
                .unwrap();
            assert_eq!(outcome.results[0].memory.subject, subject(ANN));
        }
        Err(MemoryError::Invalid { field, .. }) => {
            assert_eq!(field, "subject");
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn long_history_is_leased_in_parts() {
    let mut world = world();
    world.config.long_term.limits.lease_turns = 3;
    let bot = acme(&world.open().await);
    bot.tell_all(&["1", "2", "3", "4", "5", "6", "7"]).await;
    for expected in [&[1, 2, 3][..], &[4, 5, 6], &[7]] {
        let lease = bot.lease().await;
        assert_eq!(seqs(&lease), expected);
        bot.commit(lease.lease, vec![found(&format!("{expected:?}"), expected)])
            .await
            .unwrap();
    }
    assert_eq!(bot.lease().await.lease, None);
}

#[tokio::test(start_paused = true)]
async fn without_journal_live_history_is_leased() {
    let mut config = unswept();
    config.journal.durability = Durability::Off;
    config.limits.max_history_turns = 2;
    let world = World {
        memories: Some(Folder::new()),
        ..World::new(config)
    };
    let bot = acme(&world.open().await);
    bot.tell_all(&["anchor", "2", "3"]).await;
    let lease = bot.lease().await;
    bot.commit(lease.lease, Vec::new()).await.unwrap();
    bot.tell_all(&["4", "5", "6", "7"]).await;
    // The cursor's turn and the one after it were evicted. The remaining turns are leased.
    assert_eq!(seqs(&bot.lease().await), [6, 7]);
    bot.end("s").await.unwrap();
    assert!(bot.lease_of(None, Some(ANN)).await.is_err());
}

/// With an asynchronous journal, a crash loses acknowledged turns.
///
/// The cursor, which is durable, is then after the last of them.
#[test]
fn missing_cursor_turn_restarts_extraction() {
    let mut config = unswept();
    config.journal.durability = Durability::Interval;
    let mut daemon = Daemon::new(config);
    daemon.live(async |engine, world| {
        let bot = acme(engine);
        bot.tell_all(&["1", "2"]).await;
        sleep(5 * SECOND).await;
        world.store.fail_commits(1_000_000);
    });
    daemon.live(async |engine, world| {
        world.store.forgive();
        let bot = acme(engine);
        let generation = bot.view("s").await.unwrap().head.generation;
        // The memory state that refers to the lost turns.
        let store = world
            .memories
            .as_ref()
            .unwrap()
            .files
            .tenant(&bot.tenant.id)
            .unwrap();
        let now = Timestamp::from_ms(1_700_000_000_000);
        store
            .write_one(move |writer| {
                writer.skip_turns(&session_id("s"), generation, &subject(ANN), 9, now)
            })
            .unwrap();
        let lease = bot.lease().await;
        assert_eq!(seqs(&lease), [1, 2]);
        let outcome = bot
            .commit(lease.lease, vec![found("likes tea", &[2])])
            .await
            .unwrap();
        assert_eq!(outcome.cursor_seq, 2, "the next ones come after these");
        bot.tell_all(&["3"]).await;
        let lease = bot.lease().await;
        assert_eq!(seqs(&lease), [3]);
        bot.commit(lease.lease, vec![found("likes chess", &[])])
            .await
            .unwrap();
    });
}

#[tokio::test(start_paused = true)]
async fn turns_before_forgetting_are_never_leased() {
    let world = world();
    let bot = acme(&world.open().await);
    bot.tell_all(&["one", "two"]).await;
    bot.learn(ANN, "likes tea").await;
    sleep(SECOND).await;
    bot.forget(ForgetRequest::Subject(subject(ANN)))
        .await
        .unwrap();
    let lease = bot.lease().await;
    assert_eq!((lease.lease, lease.cursor_seq), (None, 2));
    assert!(!lease.prompt.contains("one"));
    sleep(SECOND).await;
    bot.tell_all(&["three"]).await;
    assert_eq!(seqs(&bot.lease().await), [3]);
    // Another session of the subject, which was never extracted.
    bot.tell("t", ANN, "later").await;
}

#[tokio::test(start_paused = true)]
async fn recalled_memory_is_in_prompt_and_no_new_fact() {
    let world = world();
    let bot = acme(&world.open().await);
    bot.tell_all(&["what do I drink?"]).await;
    let id = bot.learn(ANN, "drinks green tea every day").await;
    bot.recall(query_in("s", "drink")).await.unwrap();
    sleep(SECOND).await;
    let lease = bot.lease().await;
    let recalled = lease.prompt.split("\n<recalled ").nth(1).unwrap();
    assert!(
        recalled
            .split("</recalled>")
            .next()
            .unwrap()
            .contains("drinks green tea every day")
    );
    let outcome = bot
        .commit(lease.lease, vec![found("green tea every day", &[])])
        .await
        .unwrap();
    let result = &outcome.results[0];
    assert_eq!((result.outcome, result.memory.id), (Outcome::Recalled, id));
    assert_eq!(bot.listed(ANN).await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn session_without_subject_needs_one_in_the_request() {
    let world = world();
    let bot = acme(&world.open().await);
    assert!(
        bot.lease_of(None, Some(ANN)).await.is_err(),
        "there is no such session"
    );
    bot.append("s", saying(&["x"])).await.unwrap();
    let nobody = bot.lease_of(None, None).await;
    assert!(matches!(
        nobody,
        Err(MemoryError::Invalid {
            field: "subject",
            ..
        })
    ));
    assert_eq!(seqs(&bot.lease_of(None, Some(ANN)).await.unwrap()), [1]);
}

#[tokio::test(start_paused = true)]
async fn cancelled_lease_is_released_without_model() {
    let world = world();
    let bot = acme(&world.open().await);
    for steps in 1.. {
        bot.tell_all(&["I like tea"]).await;
        let mut call = Box::pin(bot.lease_of(None, None));
        let mut left = steps;
        let done = poll_fn(|context| match call.as_mut().poll(context) {
            Poll::Pending if left > 0 => {
                left -= 1;
                context.waker().wake_by_ref();
                Poll::Pending
            }
            answer => Poll::Ready(answer.is_ready()),
        });
        let is_done = done.await;
        drop(call);
        settle().await;
        if is_done {
            break;
        }
        let lease = bot.lease().await;
        bot.commit(lease.lease, Vec::new()).await.unwrap();
    }
    for _ in 0..1_000 {
        assert!(is_held(&bot.lease_of(None, None).await));
    }
    let kept = format!("{:?}", bot.memories);
    assert_eq!(kept.matches("DroppedLease").count(), 0);
}
