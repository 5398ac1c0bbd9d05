//! The word index as rows: one row per word and memory, by a hash of the word.
//!
//! The caller checks the text of each result, so hash collisions are harmless. PostgreSQL's own
//! full-text index (GIN) is not partitioned by subject: a search for one subject would scan the
//! memories of all.

use std::collections::BTreeSet;

use memoird_postgres::Value;
use rusqlite::params;

use super::{Transaction, whole};
use crate::store::row::{limit, partition_of};
use crate::store::sql::{ColumnType, Dialect, Insert, StoreResult};
use crate::store::word_index::{IndexWords, MATCHES_MAX, TermCount, TermLookup, WordIndex};

const COLUMNS: &[(&str, ColumnType)] = &[
    ("partition", ColumnType::Whole),
    ("form", ColumnType::Whole),
    ("no", ColumnType::Whole),
];
static TERMS: Insert = Insert::new("terms", COLUMNS, "ON CONFLICT DO NOTHING");
/// Terms of a new number. Without the check for conflicts, they take half as long.
static NEW_TERMS: Insert = Insert::new("terms", COLUMNS, "");

/// Terms per lookup. Their results are in memory at the same time.
const SOUGHT_AT_ONCE: usize = 64;

impl WordIndex for Transaction<'_> {
    fn add_words(&self, no: i64, words: &IndexWords, is_new: bool) -> StoreResult<()> {
        let partition = partition_of(no);
        let terms = if is_new { &NEW_TERMS } else { &TERMS };
        let mut forms = forms(words).into_iter();
        forms.try_for_each(|form| self.insert(terms, params![partition, form, no]))
    }

    fn remove_words(&self, no: i64, words: &IndexWords) -> StoreResult<()> {
        let sql = "DELETE FROM terms WHERE partition = $1 AND no = $2 AND form = ANY($3)";
        let partition = Value::Whole(partition_of(no));
        let forms = Value::Halves(forms(words).into_iter().collect());
        self.send(sql, vec![partition, Value::Whole(no), forms])
    }

    fn look_up_terms(
        &self,
        sought: &[TermLookup<'_>],
        note: &mut dyn FnMut(usize, &[i64]),
    ) -> StoreResult<Vec<TermCount>> {
        let mut looked = Vec::with_capacity(sought.len());
        for some in sought.chunks(SOUGHT_AT_ONCE) {
            for mut found in find(self, some)? {
                found.sort_unstable_by(|one, other| other.cmp(one));
                found.dedup();
                found.truncate(MATCHES_MAX);
                note(looked.len(), &found);
                looked.push(TermCount {
                    found: found.len(),
                    last: found.last().copied().unwrap_or_default(),
                });
            }
        }
        Ok(looked)
    }
}

fn forms(words: &IndexWords) -> BTreeSet<i32> {
    words.words.split_ascii_whitespace().map(hash).collect()
}

/// For each term, finds the newest memories of each of its forms, and therefore of all forms.
fn find(it: &Transaction<'_>, sought: &[TermLookup<'_>]) -> StoreResult<Vec<Vec<i64>>> {
    let (mut places, mut forms, mut partitions) = (Vec::new(), Vec::new(), Vec::new());
    for (place, one) in sought.iter().enumerate() {
        for form in one.forms {
            places.push(limit(place));
            forms.push(hash(form));
            partitions.push(one.partition);
        }
    }
    let sql = "SELECT place, ARRAY(SELECT no FROM terms WHERE terms.partition = sought.partition
            AND terms.form = sought.form ORDER BY no DESC LIMIT $4)
        FROM unnest($1, $2, $3) AS sought (place, form, partition)";
    let values = [
        Value::Wholes(places),
        Value::Halves(forms),
        Value::Wholes(partitions),
        Value::Whole(limit(MATCHES_MAX)),
    ];
    let mut found: Vec<Vec<i64>> = vec![Vec::new(); sought.len()];
    for row in it.rows(sql, &values)? {
        let place = whole(&row, 0)?;
        if let Some(found) = usize::try_from(place).ok().and_then(|at| found.get_mut(at)) {
            found.extend(row.list(1)?);
        }
    }
    Ok(found)
}

/// FNV-1a, 32 bits (G. Fowler, L. C. Noll, K.-P. Vo).
///
/// Hashes are stored, so the function must never change.
fn hash(word: &str) -> i32 {
    let mix = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    word.bytes().fold(0x811c_9dc5, mix).cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_match_published_values() {
        for (word, known) in [
            ("", 0x811c_9dc5_u32),
            ("a", 0xe40c_292c),
            ("foobar", 0xbf9c_f968),
        ] {
            assert_eq!(hash(word), known.cast_signed(), "{word}");
        }
    }
}
