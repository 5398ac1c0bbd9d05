//! Detects damage to stored memories and documents.
//!
//! Each row has a checksum of everything that a caller receives, except for the number and time of
//! recalls, which are counted in place. A damaged row is left out of lists and recalls, and is an
//! error of the calls that request it. It can still be forgotten or replaced. Rows written before
//! the checksums existed have none until [`MemoryWriter::checksums_step`] has visited them.

use std::cell::RefCell;

use memoird_core::ids::{Generation, MemoryId};
use memoird_store::checksum::FieldsChecksum;
use rusqlite::params;

use super::documents;
use super::reader::MemoryReader;
use super::row::{CheckedRow, MemoryRow, limit, whole};
use super::sql::{Sql, StoreResult};
use super::time::moment;
use super::writer::MemoryWriter;
use crate::MemoryError;
use crate::rules::documents::{Document, DocumentValue};
use crate::rules::{Memory, Visibility};

/// A row of a memory that does not match its checksum or cannot be decoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct DamagedRow {
    pub(super) no: i64,
    /// As stored, so it may be damaged too.
    pub(super) id: MemoryId,
}

/// Damaged rows found during a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    pub rows: u64,
    /// Names the first one.
    pub first: String,
}

/// Collects the damaged rows found during a transaction.
#[derive(Debug, Default)]
pub(super) struct DamageLog(RefCell<Option<Damage>>);

impl DamageLog {
    pub(super) fn take(&self) -> Option<Damage> {
        self.0.take()
    }

    /// Records a damaged row.
    pub(super) fn note(&self, name: impl FnOnce() -> String) {
        let mut damage = self.0.borrow_mut();
        damage
            .get_or_insert_with(|| Damage {
                rows: 0,
                first: name(),
            })
            .rows += 1;
    }

    /// Records a damaged memory, and returns the error of the call that requested it.
    pub(super) fn refuse(&self, damaged: &DamagedRow) -> MemoryError {
        self.note(|| damaged.name());
        MemoryError::MemoryDamaged { id: damaged.id }
    }

    /// Returns the whole rows, and records the others.
    pub(super) fn left_out(&self, rows: Vec<CheckedRow>) -> Vec<MemoryRow> {
        let whole = |row: CheckedRow| row.map_err(|damaged| self.note(|| damaged.name())).ok();
        rows.into_iter().filter_map(whole).collect()
    }
}

impl DamagedRow {
    pub(super) fn name(&self) -> String {
        format!("memory {} (number {})", self.id, self.no)
    }
}

/// Checksum of a memory, except for the number and time of its recalls.
pub(super) fn memory_checksum(memory: &Memory) -> i64 {
    let mut sum = FieldsChecksum::default();
    sum.bytes(&memory.id.to_bytes());
    sum.bytes(memory.subject.as_str().as_bytes());
    sum.number(memory.kind as i64);
    sum.number((memory.visibility == Visibility::Team).into());
    let of_small = FieldsChecksum::number;
    sum.optional(memory.polarity.map(|polarity| polarity as i64), of_small);
    sum.bytes(memory.content.as_bytes());
    sum.number(whole(memory.tags.len() as u64));
    memory.tags.iter().for_each(|tag| sum.bytes(tag.as_bytes()));
    sum.number(memory.importance.to_bits().into());
    sum.optional(memory.source.as_ref(), |sum, source| {
        sum.bytes(source.session.as_str().as_bytes());
        let generation = source.generation.map(Generation::to_bytes);
        sum.optional(generation, |sum, id| sum.bytes(&id));
        sum.number(whole(source.seqs.len() as u64));
        let seqs = source.seqs.iter();
        seqs.for_each(|seq| sum.bytes(&seq.to_le_bytes()));
    });
    for at in [memory.observed_at, memory.created_at, memory.updated_at] {
        sum.number(moment(at));
    }
    sum.optional(memory.expires_at.map(moment), of_small);
    let superseded_by = memory.superseded_by.map(MemoryId::to_bytes);
    sum.optional(superseded_by, |sum, id| sum.bytes(&id));
    sum.number(whole(memory.reinforced));
    sum.optional(memory.pin.map(|pin| pin as i64), of_small);
    sum.number(memory.origin as i64);
    for text in [&memory.external_key, &memory.metadata] {
        let bytes = text.as_ref().map(String::as_bytes);
        sum.optional(bytes, FieldsChecksum::bytes);
    }
    sum.finish()
}

/// Bits of the checksum of a document that cover its value.
const VALUE_MASK: i64 = 0xffff_ffff;

/// Checksum of a document: of everything but its value in the upper 32 bits, of its value in the
/// lower 32 bits.
pub(super) fn document_checksum(document: &Document, value: Option<&DocumentValue>) -> i64 {
    let mut header = FieldsChecksum::default();
    header.bytes(document.name.namespace.as_bytes());
    header.bytes(document.name.key.as_bytes());
    header.number(whole(document.version));
    let mut of_value = header.clone();
    header.number(moment(document.created_at));
    header.number(moment(document.updated_at));
    header.optional(document.expires_at.map(moment), FieldsChecksum::number);
    header.number(whole(document.size));
    of_value.optional(value, |sum, value| {
        sum.number(matches!(value, DocumentValue::Json(_)).into());
        sum.bytes(value.as_bytes());
    });
    header.finish() << 32 | of_value.finish()
}

/// Whether a document matches its checksum. A value that was not read is not compared.
pub(super) fn is_whole(document: &Document, checksum: Option<i64>) -> bool {
    let compared = if document.value.is_some() {
        !0
    } else {
        !VALUE_MASK
    };
    let found = document_checksum(document, document.value.as_ref());
    checksum.is_none_or(|expected| (expected ^ found) & compared == 0)
}

impl MemoryReader<'_> {
    /// Takes the damaged rows that this transaction has found.
    pub fn take_damage(&self) -> Option<Damage> {
        self.damage.take()
    }
}

impl MemoryWriter<'_> {
    /// Computes missing checksums of about `max` memories and documents.
    ///
    /// Returns how many were computed; 0 if none are missing. Rows that cannot be decoded never get
    /// one.
    pub fn checksums_step(&self, max: usize) -> StoreResult<usize> {
        let mut computed = 0;
        let rest = "WHERE checksum IS NULL LIMIT ?";
        for row in MemoryRow::all(self, rest, params![limit(max)])? {
            let sql = "UPDATE memories SET checksum = ? WHERE no = ?";
            self.run(sql, params![memory_checksum(&row.memory), row.no])?;
            computed += 1;
        }
        if computed > 0 {
            return Ok(computed);
        }
        let mut found = Vec::new();
        let sql = format!("{} WHERE checksum IS NULL", documents::SELECT);
        self.each(&sql, &[], documents::VALUES_AT_ONCE, |row| {
            if let Ok(document) = documents::read(row)? {
                let checksum = document_checksum(&document, document.value.as_ref());
                found.push((row.get::<i64>(documents::NO)?, checksum));
            }
            Ok(found.len() < max.min(documents::VALUES_AT_ONCE))
        })?;
        for (no, checksum) in &found {
            let sql = "UPDATE documents SET checksum = ? WHERE no = ?";
            self.run(sql, params![checksum, no])?;
        }
        Ok(found.len())
    }
}
