//! Data to read before a batch can be planned.

use std::collections::{BTreeMap, HashSet};

use memoird_core::change::{ChangeKind, ChangeSet, SummaryChange};
use memoird_core::ids::{Generation, SessionKey};
use memoird_store::plan::{BaseRow, RowState};

/// The current version of a live generation.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    pub(crate) key: SessionKey,
    pub(crate) revision: u64,
    /// Distinguishes versions with the same revision. A failover may have lost one of them.
    pub(crate) stamp: i64,
    pub(crate) last_seq: u64,
}

impl BaseRow for Version {
    fn state(&self) -> RowState<'_> {
        RowState {
            key: &self.key,
            revision: self.revision,
            last_seq: self.last_seq,
            is_live: true,
        }
    }
}

/// Data to read before a batch can be planned.
#[derive(Debug, Default)]
pub(crate) struct RequiredReads {
    /// The generations that the batch changes, with the revision expected by the first change.
    pub(crate) versions: BTreeMap<Generation, u64>,
    /// Generations to start that may have conflicts which the statement cannot detect.
    pub(crate) begins: Vec<(SessionKey, Generation)>,
    /// Generations with a changed compaction. True if the bodies of summaries are needed as well.
    pub(crate) summaries: BTreeMap<Generation, bool>,
}

impl RequiredReads {
    /// `is_live`: whether this process knows a generation as live. The batch may reuse its id.
    pub(crate) fn of(sets: &[ChangeSet], is_live: impl Fn(&Generation) -> bool) -> Self {
        let mut needs = Self::default();
        let (mut begins, mut begun) = (Vec::new(), HashSet::new());
        let mut of_begun = BTreeMap::new();
        let (mut sessions, mut is_twisted) = (HashSet::new(), false);
        for set in sets {
            let mut names = set.changes.iter().map(|change| change.generation);
            let first = names.next();
            is_twisted |= names.any(|name| Some(name) != first);
            for change in &set.changes {
                let name = change.generation;
                match &change.kind {
                    ChangeKind::Begin { key, .. } => {
                        is_twisted |= !sessions.insert(key) || is_live(&name);
                        begun.insert(name);
                        begins.push((key.clone(), name));
                        continue;
                    }
                    ChangeKind::Compact { summary, .. } => {
                        let is_rewound = matches!(summary, SummaryChange::Rewound { .. });
                        *needs.summaries.entry(name).or_default() |= is_rewound;
                    }
                    _ => {}
                }
                let versions = if begun.contains(&name) {
                    &mut of_begun
                } else {
                    &mut needs.versions
                };
                versions.entry(name).or_insert(change.expected_revision);
            }
        }
        if is_twisted {
            needs.begins = begins;
            // The id may already belong to another generation, which is then the one that changes.
            needs.versions.append(&mut of_begun);
        }
        needs
    }
}
