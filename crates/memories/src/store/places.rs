//! Positions of memories in their conversation.
//!
//! They are used to find the memories stated directly before and after another one, because an
//! answer seldom repeats the words of its question.

use memoird_core::ids::Generation;
use rusqlite::params;

use super::reader::MemoryReader;
use super::row::{MemoryRow, partition_of};
use super::sql::ColumnType::Whole;
use super::sql::{Connection, Insert, StoreResult};
use super::writer::MemoryWriter;
use crate::rules::{Memory, Source};

/// Maximum positions per memory. A memory with more source turns has only the first and the last.
const SEQS_MAX: usize = 8;
/// Maximum memories per turn to return as neighbors.
const OF_A_TURN_MAX: usize = 4;

static PLACES: Insert = Insert::new(
    "places",
    &[("no", Whole), ("said", Whole), ("seq", Whole)],
    "ON CONFLICT DO NOTHING",
);

impl MemoryReader<'_> {
    /// Finds memories of the same partition from the turns directly before or after these.
    ///
    /// Returns the number of the given memory, the number of its neighbor, and whether the neighbor
    /// comes after it. Memories without known source turns have no neighbors.
    pub(super) fn beside<'m>(
        &self,
        memories: impl Iterator<Item = (i64, &'m Memory)>,
    ) -> StoreResult<Vec<(i64, i64, bool)>> {
        let mut sought: Vec<(i64, bool)> = Vec::new();
        let mut places: Vec<(i64, i64)> = Vec::new();
        for (no, memory) in memories {
            let Some(source) = &memory.source else {
                continue;
            };
            let (Some(first), Some(last)) = (source.seqs.first(), source.seqs.last()) else {
                continue;
            };
            let said = self.said(partition_of(no), source)?;
            for (seq, is_after) in [(first.checked_sub(1), false), (last.checked_add(1), true)] {
                if let Some(seq) = seq.and_then(|seq| i64::try_from(seq).ok()) {
                    sought.push((no, is_after));
                    places.push((said, seq));
                }
            }
        }
        let found = self.connection.said_at(&places, OF_A_TURN_MAX)?;
        let told = |(place, other): (usize, i64)| {
            let (no, is_after) = sought.get(place)?;
            Some((*no, other, *is_after))
        };
        Ok(found.into_iter().filter_map(told).collect())
    }

    /// Identifies the conversation: a salted digest of partition, generation and session.
    fn said(&self, partition: i64, source: &Source) -> StoreResult<i64> {
        let generation = source
            .generation
            .map(Generation::to_bytes)
            .unwrap_or_default();
        let name = format!("{partition} {generation:?} {}", source.session.as_str());
        let digest = self.digest(&name)?;
        Ok(i64::from_le_bytes(std::array::from_fn(|byte| digest[byte])))
    }
}

impl MemoryWriter<'_> {
    /// Records the positions of a current memory.
    pub(super) fn add_places(&self, row: &MemoryRow) -> StoreResult<()> {
        let Some(source) = &row.memory.source else {
            return Ok(());
        };
        let said = self.said(row.partition(), source)?;
        let seqs = match source.seqs.as_slice() {
            few if few.len() <= SEQS_MAX => few.to_vec(),
            [first, .., last] => vec![*first, *last],
            _ => Vec::new(),
        };
        for seq in seqs.into_iter().filter_map(|seq| i64::try_from(seq).ok()) {
            self.connection
                .insert(&PLACES, params![row.no, said, seq])?;
        }
        Ok(())
    }
}

pub(super) fn remove(connection: Connection<'_>, no: i64) -> StoreResult<()> {
    connection.run("DELETE FROM places WHERE no = ?", params![no])
}
