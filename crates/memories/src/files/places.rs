//! Where in a conversation a memory was said, so that what was said right before and after it is
//! found: an answer seldom repeats the words of its question.

use memoird_core::ids::Generation;
use rusqlite::{Connection, params};

use super::row::{MemoryRow, limit, partition_of};
use super::sql::{Answer, Sql};
use super::{MemoryReader, MemoryWriter};
use crate::rules::{Memory, Source};

/// A memory that was said in more turns stands at its first and its last only.
const SEQS_MAX: usize = 8;
/// Memories of one turn that are found beside another.
const OF_A_TURN_MAX: usize = 4;

impl MemoryReader<'_> {
    /// The numbers of the memories of the same partition that were said in the turns right before
    /// and right after a memory, and whether it was after it; `None` where nothing says where it
    /// was said.
    pub(super) fn beside(&self, no: i64, memory: &Memory) -> Answer<Option<Vec<(i64, bool)>>> {
        let Some(source) = &memory.source else {
            return Ok(None);
        };
        let (Some(first), Some(last)) = (source.seqs.first(), source.seqs.last()) else {
            return Ok(None);
        };
        let said = self.said(partition_of(no), source)?;
        let sql = "SELECT no FROM places WHERE said = ? AND seq = ? LIMIT ?";
        let mut beside = Vec::new();
        for (seq, is_after) in [(first.checked_sub(1), false), (last.checked_add(1), true)] {
            let Some(seq) = seq.and_then(|seq| i64::try_from(seq).ok()) else {
                continue;
            };
            let parameters = params![said, seq, limit(OF_A_TURN_MAX)];
            let found: Vec<i64> = self.all(sql, parameters, |row| row.get(0))?;
            beside.extend(found.into_iter().map(|other| (other, is_after)));
        }
        Ok(Some(beside))
    }

    /// Whose conversation it is, in which life: a digest with a salt of this file.
    fn said(&self, partition: i64, source: &Source) -> Answer<i64> {
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
    /// Notes where a current memory was said.
    pub(super) fn add_places(&self, row: &MemoryRow) -> Answer<()> {
        let Some(source) = &row.memory.source else {
            return Ok(());
        };
        let said = self.said(row.partition(), source)?;
        let sql = "INSERT INTO places (no, said, seq) VALUES (?, ?, ?) ON CONFLICT DO NOTHING";
        let seqs = match source.seqs.as_slice() {
            few if few.len() <= SEQS_MAX => few.to_vec(),
            [first, .., last] => vec![*first, *last],
            _ => Vec::new(),
        };
        for seq in seqs.into_iter().filter_map(|seq| i64::try_from(seq).ok()) {
            self.connection.run(sql, params![row.no, said, seq])?;
        }
        Ok(())
    }
}

/// Forgets where a memory was said.
pub(super) fn remove(connection: &Connection, no: i64) -> Answer<()> {
    connection.run("DELETE FROM places WHERE no = ?", [no])
}
