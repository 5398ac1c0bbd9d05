//! The expected outcome, computed in the simplest possible way.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use memoird_core::idempotency::KeyRecord;
use memoird_core::ids::{Generation, SessionKey};
use memoird_engine::{SessionView, TenantSnapshot};

use crate::bot::{Bot, text_of};
use crate::record::{Counts, Record};
use crate::store::FaultyStore;

/// All appends of the simulation, with their known outcomes.
#[derive(Debug, Default)]
pub(crate) struct Model {
    pub(crate) says: Vec<AppendRecord>,
}

/// An append, possibly retried under the same idempotency key.
#[derive(Clone, Debug)]
pub(crate) struct AppendRecord {
    pub(crate) key: SessionKey,
    /// Unique texts.
    pub(crate) texts: Vec<String>,
    pub(crate) name: Option<String>,
    pub(crate) under_way: u32,
    /// Whether a call was aborted, so that the append may or may not be written.
    pub(crate) in_doubt: bool,
    /// Calls acknowledged as original, not as duplicate.
    pub(crate) fresh: u32,
    pub(crate) done: Option<KeyRecord>,
}

impl Model {
    /// Marks the appends in flight as uncertain after a kill.
    pub(crate) fn note_kill(&mut self) {
        for say in self.says.iter_mut().filter(|say| say.under_way > 0) {
            say.under_way = 0;
            say.in_doubt = true;
        }
    }

    /// Asserts that the journal holds each acknowledged append once, at its position.
    ///
    /// Appends that were cut off are there whole or not at all, and there are no others.
    pub(crate) fn check(&self, record: &Record) {
        let mut places: BTreeMap<&str, Vec<(Generation, u64)>> = BTreeMap::new();
        for (generation, life) in &record.lives {
            for (seq, text) in (1..).zip(&life.texts) {
                places.entry(text).or_default().push((*generation, seq));
            }
        }
        for say in &self.says {
            assert_eq!(say.under_way, 0);
            let found: Vec<&[_]> = say
                .texts
                .iter()
                .map(|text| places.remove(text.as_str()).unwrap_or_default().leak() as &[_])
                .collect();
            let whole_at = |generation, first_seq: u64| {
                (first_seq..)
                    .zip(&found)
                    .all(|(seq, places)| **places == [(generation, seq)])
            };
            match say.done {
                Some(done) => {
                    assert!(
                        whole_at(done.generation, done.first_seq),
                        "{say:?}: {found:?}"
                    );
                }
                None if found.iter().all(|places| places.is_empty()) => {}
                None => {
                    let (generation, first_seq) = found[0][0];
                    assert!(
                        say.in_doubt && whole_at(generation, first_seq),
                        "{say:?}: {found:?}"
                    );
                }
            }
        }
        assert!(places.is_empty(), "said by nobody: {places:?}");
    }
}

/// The history: the anchor, and the newest `turns_max` of the other turns.
pub(crate) fn kept(texts: &[String], turns_max: usize) -> Vec<&String> {
    let (anchor, rest) = texts.split_at(texts.len().min(1));
    anchor
        .iter()
        .chain(&rest[rest.len().saturating_sub(turns_max)..])
        .collect()
}

/// Asserts that a view shows only what the journal has.
pub(crate) fn check_view(record: &Record, bot: &Bot, view: &SessionView) {
    let life = record
        .lives
        .get(&view.head.generation)
        .unwrap_or_else(|| panic!("{view:?} was never written"));
    assert_eq!(
        (&life.key.tenant, &life.key.session),
        (&bot.tenant.id, &view.session)
    );
    assert!(
        view.head.last_seq <= life.texts.len() as u64,
        "{view:?} of {life:?}"
    );
    assert!(
        view.head.state_version <= life.state_version,
        "{view:?} of {life:?}"
    );
}

/// Asserts that the tenant's live sessions equal those of the journal, to the last turn.
pub(crate) async fn check_sessions(bot: &Bot, turns_max: usize, store: &FaultyStore) {
    let views = bot.views(4).await;
    assert!(
        views.is_sorted_by_key(|view| Reverse(view.head.last_access)),
        "{views:?}"
    );
    let ahead_ms_max = (bot.stats().session_ttl_ms / 64).min(600_000);
    let seen: BTreeMap<Generation, &SessionView> = views
        .iter()
        .map(|view| (view.head.generation, view))
        .collect();
    assert_eq!(seen.len(), views.len(), "each once");
    let (lives, unnoted_until): (Vec<_>, _) = {
        let record = store.record();
        let mine = record
            .live
            .iter()
            .filter(|(key, _)| key.tenant == bot.tenant.id);
        let lives = mine.map(|(_, generation)| (*generation, record.lives[generation].clone()));
        (lives.collect(), record.unnoted_until)
    };
    assert_eq!(seen.len(), lives.len(), "{seen:?} instead of {lives:?}");
    for (generation, life) in lives {
        let head = &seen[&generation].head;
        // For sessions that request windows, the written last use is slightly in the future.
        let ahead_ms = life.last_access.since(head.last_access);
        assert!(
            head.last_access <= life.last_access.max(unnoted_until) && ahead_ms <= ahead_ms_max,
            "{head:?} {life:?}"
        );
        assert_eq!(
            (head.last_seq, head.state_version),
            (life.texts.len() as u64, life.state_version)
        );
        let query = crate::bot::ALL;
        let page = bot
            .engine
            .commands
            .history(&bot.tenant, &life.key.session, query)
            .await
            .unwrap_or_else(|error| panic!("{error}: {head:?}, {life:?}"));
        let live: Vec<String> = page.turns.iter().map(|turn| text_of(turn)).collect();
        assert_eq!(
            live.iter().collect::<Vec<_>>(),
            kept(&life.texts, turns_max)
        );
    }
}

/// The engine's counters, for comparison with the record.
pub(crate) fn counted(stats: &TenantSnapshot) -> Counts {
    Counts {
        created: stats.sessions_created,
        expired: stats.expired,
        evicted: stats.evicted,
        ended: stats.ended,
        turns: stats.turns_appended,
    }
}

impl Counts {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            created: self.created - before.created,
            expired: self.expired - before.expired,
            evicted: self.evicted - before.evicted,
            ended: self.ended - before.ended,
            turns: self.turns - before.turns,
        }
    }
}
