//! Changes to memories: updates, imports, and merges of near-duplicates.

use memoird_core::ids::{MemoryId, Subject};
use memoird_core::time::Timestamp;
use rusqlite::params;

use super::remember::take_over;
use super::requests::Imported;
use super::row::MemoryRow;
use super::sql::StoreResult;
use super::writer::MemoryWriter;
use crate::MemoryError;
use crate::requests::ForgetOutcome;
use crate::rules::{Memory, MemoryLimits, Origin, Patch, Pin};

impl MemoryWriter<'_> {
    /// Changes a memory. With a subject, only if the memory belongs to it.
    ///
    /// # Errors
    /// [`MemoryError::NotFound`], [`MemoryError::Superseded`], [`MemoryError::Invalid`],
    /// [`MemoryError::MemoryDamaged`].
    pub fn update(
        &self,
        id: MemoryId,
        subject: Option<&Subject>,
        patch: &Patch,
        at: Timestamp,
        limits: &MemoryLimits,
    ) -> StoreResult<Memory> {
        let found = MemoryRow::by_id(self, id)?;
        let mine = found.filter(|row| subject.is_none_or(|subject| row.memory.subject == *subject));
        let Some(was) = mine else {
            return Err(MemoryError::NotFound { id });
        };
        if let Some(by) = was.memory.superseded_by {
            return Err(MemoryError::Superseded { id, by });
        }
        let mut row = was.clone();
        patch.clone().apply(&mut row.memory, limits)?;
        row.memory.updated_at = at;
        self.save(&was, &mut row)?;
        Ok(row.memory)
    }

    /// Stores memories unchanged.
    ///
    /// Skips a memory if its id exists already, even if the stored one has changed since, or if its
    /// external key belongs to another memory.
    ///
    /// # Errors
    /// [`MemoryError::Full`].
    pub fn import(
        &self,
        memories: &[Memory],
        at: Timestamp,
        limits: &MemoryLimits,
    ) -> StoreResult<Imported> {
        let mut imported = Imported::default();
        for memory in memories {
            let is_taken = match &memory.external_key {
                Some(key) if memory.superseded_by.is_none() => {
                    let holder = self.holder(&memory.subject, key)?;
                    holder.is_some_and(|id| id != memory.id)
                }
                _ => false,
            };
            if is_taken || MemoryRow::whole(self, memory.id)?.is_some() {
                imported.skipped += 1;
                continue;
            }
            // A row with this id that is damaged, or still being forgotten, is deleted first.
            for doomed in self.doomed("id = ?", params![memory.id.to_bytes()])? {
                self.erase(&doomed, &mut ForgetOutcome::default())?;
            }
            // Memories that were separate in the exported data stay separate.
            self.add(memory.clone(), true, None, at, limits)?;
            imported.added += 1;
        }
        Ok(imported)
    }

    /// Merges the older of two memories of a subject into the newer. The older one becomes history.
    ///
    /// Returns `false` if one of them is no longer current.
    pub fn merge(&self, older: MemoryId, newer: MemoryId, at: Timestamp) -> StoreResult<bool> {
        let current = |id| -> StoreResult<Option<MemoryRow>> {
            let row = MemoryRow::whole(self, id)?;
            Ok(row.filter(|row| row.memory.is_current(at)))
        };
        let (Some(old), Some(was)) = (current(older)?, current(newer)?) else {
            return Ok(false);
        };
        if old.no == was.no || old.owner != was.owner || old.memory.kind != was.memory.kind {
            return Ok(false);
        }
        // A memory pinned by the bot must not be replaced by one from a model.
        let stays = old.memory.pin == Some(Pin::Bot) && was.memory.origin == Origin::Extraction;
        let (old, was) = if stays { (was, old) } else { (old, was) };
        let mut row = was.clone();
        take_over(&mut row.memory, &old.memory);
        row.memory.updated_at = at;
        self.save(&was, &mut row)?;
        self.supersede(&old, was.memory.id, at)?;
        Ok(true)
    }
}
