//! Reindexes turns with replaced content, to remove their old words.
//!
//! Such a turn is indexed again and its pages are cleared before the progress is saved.

use memoird_core::ids::Generation;
use rusqlite::{OptionalExtension, TransactionBehavior, params};

use super::add::{day_of, widen_day};
use super::{Index, IndexResult, NewTurn, generation_word, whole};
use crate::lock;
use crate::words::Languages;

impl Index {
    /// Returns the last turn change that was indexed and cleared from the pages.
    pub(crate) fn changes(&self) -> IndexResult<u64> {
        self.read(|connection| {
            let sql = "SELECT changes FROM state";
            let changes = connection.query_row(sql, [], |row| row.get::<_, i64>(0))?;
            Ok(changes.unsigned_abs())
        })
    }

    /// Saves the value returned by [`Self::changes`].
    pub(crate) fn save_changes(&self, change: u64) -> IndexResult<()> {
        let writer = lock(&self.writer);
        writer.execute("UPDATE state SET changes = ?", [whole(change)])?;
        Ok(())
    }

    /// Removes a turn from the index, and adds its current version unless the turn is gone.
    ///
    /// Returns false if the index does not have the turn.
    pub(crate) fn replace(
        &self,
        number: u64,
        generation: Generation,
        turn: Option<&NewTurn>,
    ) -> IndexResult<bool> {
        let mut writer = lock(&self.writer);
        let transaction = writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let sql = "SELECT no, tenant FROM generations WHERE generation = ?";
        let known: Option<(i64, i64)> = transaction
            .prepare_cached(sql)?
            .query_row([generation.to_bytes()], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .optional()?;
        let Some((no, tenant)) = known else {
            return Ok(false);
        };
        let sql = "SELECT turns.no FROM words CROSS JOIN turns ON turns.no = words.rowid
                   WHERE words MATCH ? AND turns.number = ?";
        let word = format!("\"{}\"", generation_word(no));
        let row: Option<i64> = transaction
            .prepare_cached(sql)?
            .query_row(params![word, whole(number)], |row| row.get(0))
            .optional()?;
        let Some(row) = row else { return Ok(false) };
        transaction
            .prepare_cached("DELETE FROM words WHERE rowid = ?")?
            .execute([row])?;
        if let Some(turn) = turn {
            let (stems, language) = turn.words(no);
            transaction
                .prepare_cached("INSERT INTO words (rowid, stems) VALUES (?, ?)")?
                .execute(params![row, stems])?;
            transaction
                .prepare_cached("UPDATE turns SET at = ? WHERE no = ?")?
                .execute([turn.at.as_ms(), row])?;
            widen_day(&transaction, tenant, day_of(turn.at), row, row)?;
            let sql = "SELECT languages FROM tenants WHERE no = ?";
            let bits = transaction
                .prepare_cached(sql)?
                .query_row([tenant], |row| row.get(0))?;
            let languages = Languages::from_bits(bits).with(language);
            transaction
                .prepare_cached("UPDATE tenants SET languages = ? WHERE no = ?")?
                .execute(params![languages.bits(), tenant])?;
        } else {
            transaction
                .prepare_cached("DELETE FROM turns WHERE no = ?")?
                .execute([row])?;
        }
        transaction.commit()?;
        Ok(true)
    }
}
