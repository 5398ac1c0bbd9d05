//! Record of the journal's committed changes, for checks of replies and of invariants.

use std::collections::BTreeMap;

use memoird_core::change::{Appended, Change, ChangeKind, ChangeSet, EndReason};
use memoird_core::ids::{Generation, HookName, SessionKey, TenantId};
use memoird_core::time::Steady;

use crate::bot::text_of;

#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) lives: BTreeMap<Generation, GenerationRecord>,
    pub(crate) live: BTreeMap<SessionKey, Generation>,
    /// Number of changes in each committed set.
    pub(crate) set_sizes: Vec<usize>,
    pub(crate) counts: BTreeMap<TenantId, Counts>,
    pub(crate) failures: u64,
    /// Uses before this time may be missing from the journal, because commits failed.
    pub(crate) unnoted_until: Steady,
    pub(crate) violations: Vec<String>,
    /// The caps and TTLs in force, if they are checked.
    pub(crate) rules: Option<Rules>,
}

/// One generation of a session.
#[derive(Clone, Debug)]
pub(crate) struct GenerationRecord {
    pub(crate) key: SessionKey,
    /// Texts of the turns, in order.
    pub(crate) texts: Vec<String>,
    pub(crate) bytes: Vec<usize>,
    pub(crate) last_access: Steady,
    pub(crate) state_version: u64,
    pub(crate) ended: Option<EndReason>,
    /// Hooks with a delivery of this generation.
    pub(crate) owed: Vec<HookName>,
}

/// Expected values of the engine's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) created: u64,
    pub(crate) expired: u64,
    pub(crate) evicted: u64,
    pub(crate) ended: u64,
    pub(crate) turns: u64,
}

/// Limits that committed changes must respect.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) max_sessions: usize,
    /// Session cap, and TTL in milliseconds.
    pub(crate) tenants: BTreeMap<TenantId, (usize, u64)>,
    /// Whether evictions are checked.
    ///
    /// False after a failed commit, because evictions based on it may be outdated for a while.
    pub(crate) strict: bool,
}

impl Record {
    pub(crate) fn note_failure(&mut self) {
        self.failures += 1;
        if let Some(rules) = &mut self.rules {
            rules.strict = false;
        }
    }

    /// Records a commit that found the disk full. Until one succeeds, mere uses are not written.
    pub(crate) fn note_full(&mut self) {
        self.unnoted_until = Steady(u64::MAX);
        self.note_failure();
    }

    /// Records a commit that found room.
    pub(crate) fn note_room(&mut self, at: Steady) {
        self.unnoted_until = self.unnoted_until.min(at);
    }

    pub(crate) fn note(&mut self, set: &ChangeSet) {
        self.set_sizes.push(set.changes.len());
        let newcomer = set.changes.iter().find_map(|change| match &change.kind {
            ChangeKind::Begin { key, .. } => Some(key.tenant.clone()),
            _ => None,
        });
        for change in &set.changes {
            self.note_change(change, newcomer.as_ref());
        }
        self.check_caps();
    }

    pub(crate) fn live_of(&self, tenant: &TenantId) -> impl Iterator<Item = &GenerationRecord> {
        let mine = self
            .live
            .iter()
            .filter(move |(key, _)| key.tenant == *tenant);
        mine.map(|(_, generation)| &self.lives[generation])
    }

    fn note_change(&mut self, change: &Change, newcomer: Option<&TenantId>) {
        let generation = change.generation;
        match &change.kind {
            ChangeKind::Begin {
                key, last_access, ..
            } => {
                let life = GenerationRecord {
                    key: key.clone(),
                    texts: Vec::new(),
                    bytes: Vec::new(),
                    last_access: *last_access,
                    state_version: 0,
                    ended: None,
                    owed: Vec::new(),
                };
                self.counts.entry(key.tenant.clone()).or_default().created += 1;
                self.lives.insert(generation, life);
                self.live.insert(key.clone(), generation);
            }
            ChangeKind::Append(appended) => self.note_append(generation, appended),
            ChangeKind::PatchState(patched) => {
                let life = self.life(generation);
                (life.state_version, life.last_access) = (patched.version, patched.last_access);
            }
            ChangeKind::Rewind(rewound) => {
                self.life(generation).last_access = rewound.last_access;
            }
            ChangeKind::UpdateTurn(updated) => {
                let place = usize::try_from(updated.seq - 1).unwrap();
                let life = self.life(generation);
                life.texts[place] = text_of(&updated.content);
                life.bytes[place] = updated.content.len();
            }
            ChangeKind::Compact { .. } | ChangeKind::SetOptions(_) => {}
            ChangeKind::Touch { last_access, .. } => {
                self.life(generation).last_access = *last_access;
            }
            ChangeKind::End {
                reason, at, owed, ..
            } => {
                self.check_end(generation, *reason, at.steady, newcomer);
                let life = self.life(generation);
                life.ended = Some(*reason);
                life.owed = owed.to_vec();
                let key = life.key.clone();
                let counts = self.counts.entry(key.tenant.clone()).or_default();
                match reason {
                    EndReason::Expired => counts.expired += 1,
                    EndReason::Evicted => counts.evicted += 1,
                    _ => counts.ended += 1,
                }
                self.live.remove(&key);
            }
        }
    }

    fn note_append(&mut self, generation: Generation, appended: &Appended) {
        let life = self.life(generation);
        life.last_access = appended.last_access;
        for (seq, content) in &appended.turns {
            life.texts.push(text_of(content));
            life.bytes.push(content.len());
            assert_eq!(*seq, life.texts.len() as u64, "seqs follow each other");
        }
        let key = life.key.clone();
        let turns = appended.turns.len() as u64;
        self.counts.entry(key.tenant).or_default().turns += turns;
    }

    fn life(&mut self, generation: Generation) -> &mut GenerationRecord {
        self.lives.get_mut(&generation).unwrap()
    }

    fn check_caps(&mut self) {
        let Some(rules) = self.rules.as_ref().filter(|rules| rules.strict) else {
            return;
        };
        let mut wrong = Vec::new();
        if rules.max_sessions > 0 && self.live.len() > rules.max_sessions {
            wrong.push(format!("{} sessions in the process", self.live.len()));
        }
        for (tenant, (cap, _)) in &rules.tenants {
            let count = self.live_of(tenant).count();
            if *cap > 0 && count > *cap {
                wrong.push(format!("{count} sessions of {tenant}"));
            }
        }
        self.violations.extend(wrong);
    }

    fn check_end(
        &mut self,
        generation: Generation,
        reason: EndReason,
        at: Steady,
        newcomer: Option<&TenantId>,
    ) {
        let Some(rules) = &self.rules else { return };
        let life = &self.lives[&generation];
        let tenant = &life.key.tenant;
        let idle_ms = at.since(life.last_access);
        let mut wrong = Vec::new();
        // For sessions that request windows, the written last use is slightly in the future.
        let ttl_ms = rules.tenants[tenant].1;
        let ahead_ms = ttl_ms / 64;
        if reason == EndReason::Expired && idle_ms + ahead_ms < ttl_ms {
            wrong.push(format!("{:?} expired after {idle_ms} ms", life.key));
        }
        if reason == EndReason::Evicted && rules.strict {
            // A session that seems idle longer may have been used while uses were not written.
            let used = |life: &GenerationRecord| life.last_access.max(self.unnoted_until);
            let oldest = self.live_of(tenant).map(used).min();
            if oldest.is_some_and(|oldest| oldest.0.saturating_add(ahead_ms) < life.last_access.0) {
                wrong.push(format!(
                    "{:?} evicted, and was not the longest idle",
                    life.key
                ));
            }
            let count = |tenant| self.live_of(tenant).count();
            if newcomer.is_some_and(|newcomer| count(newcomer) > count(tenant)) {
                wrong.push(format!("{:?} made room for one that holds more", life.key));
            }
        }
        self.violations.extend(wrong);
    }
}
