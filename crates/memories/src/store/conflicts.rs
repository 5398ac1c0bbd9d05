//! Possible contradictions among the memories of one subject.

use std::ops::Range;

use memoird_core::ids::Subject;
use memoird_core::time::Timestamp;
use rusqlite::params;

use super::reader::MemoryReader;
use super::row::{MemoryRow, limit};
use super::sql::StoreResult;
use super::time::moment;
use super::vectors;
use crate::requests::{Conflict, Conflicts};
use crate::rules::conflicts::{Pair, conflicts};

impl MemoryReader<'_> {
    /// Finds possible contradictions among a subject's newest memories, most similar first.
    ///
    /// Returns the pairs in `page` of their list.
    pub fn conflicts(
        &self,
        subject: &Subject,
        looked_at_max: usize,
        page: Range<usize>,
        now: Timestamp,
    ) -> StoreResult<Conflicts> {
        let Some(owner) = self.partition(subject)? else {
            return Ok(Conflicts::default());
        };
        let rest = "WHERE owner = ? AND superseded_by IS NULL AND (expires IS NULL OR expires > ?)
                    ORDER BY id DESC LIMIT ?";
        let parameters = params![owner, moment(now), limit(looked_at_max + 1)];
        let mut rows = MemoryRow::all(self, rest, parameters)?;
        let is_incomplete = rows.len() > looked_at_max;
        rows.truncate(looked_at_max);
        // The older memory of a pair comes first.
        rows.sort_by_key(|row| (row.memory.observed_at, row.memory.id));
        let mut meanings = Vec::with_capacity(rows.len());
        let nos: Vec<i64> = rows.iter().map(|row| row.no).collect();
        let mut vectors = self.connection.vectors_of(&nos)?;
        for no in nos {
            meanings.push(vectors.remove(&no));
        }
        let texts: Vec<&str> = rows.iter().map(|row| &*row.memory.content).collect();
        let (found, has_more) = conflicts(&texts, page.end, |one, other| {
            let ((model, one), (other_model, other)) =
                meanings[one].as_ref().zip(meanings[other].as_ref())?;
            (model == other_model).then(|| vectors::cosine(one, other))
        });
        let conflict = |pair: &Pair| Conflict {
            older: rows[pair.places.0].memory.clone(),
            newer: rows[pair.places.1].memory.clone(),
            likeness: pair.likeness,
            difference: pair.difference,
        };
        Ok(Conflicts {
            list: found.iter().skip(page.start).map(conflict).collect(),
            has_more,
            is_incomplete,
        })
    }
}
