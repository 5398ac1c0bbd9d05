//! The word index as rows: one row per word and memory, by a hash of the word.
//!
//! Words indexed by their beginning too have its hash in the upper half of the key, so that one
//! range of keys contains all words with this beginning. With rows for beginnings, texts that are
//! not English would have almost twice as many.
//!
//! The caller checks the text of each result, so hash collisions are harmless. PostgreSQL's own
//! full-text index (GIN) is not partitioned by subject: a search for one subject would scan the
//! memories of all.

use std::collections::BTreeSet;

use memoird_core::words::{BEGINS, beginning};
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
/// Maximum rows to sort per beginning.
///
/// In a partition with more, the newest memories with it are not necessarily found.
const BEGUN_MAX: usize = 8 * MATCHES_MAX;

impl WordIndex for Transaction<'_> {
    fn add_words(&self, no: i64, words: &IndexWords, is_new: bool) -> StoreResult<()> {
        let partition = partition_of(no);
        let terms = if is_new { &NEW_TERMS } else { &TERMS };
        let mut keys = keys(words).into_iter();
        keys.try_for_each(|key| self.insert(terms, params![partition, key, no]))
    }

    fn remove_words(&self, no: i64, words: &IndexWords) -> StoreResult<()> {
        let sql = "DELETE FROM terms WHERE partition = $1 AND no = $2 AND form = ANY($3)";
        let partition = Value::Whole(partition_of(no));
        // A daemon of an older version has a key for each word and each beginning.
        let older = words.words.split_ascii_whitespace().map(plain_key);
        let keys = Value::Wholes(keys(words).into_iter().chain(older).collect());
        self.send(sql, vec![partition, Value::Whole(no), keys])
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

/// Lookups in the index, column by column.
#[derive(Debug, Default)]
struct Lookups {
    places: Vec<i64>,
    partitions: Vec<i64>,
    /// Keys, or the first ones of ranges.
    keys: Vec<i64>,
    last_keys: Vec<i64>,
}

impl Lookups {
    fn push(&mut self, place: usize, partition: i64, first: i64, last: i64) {
        self.places.push(limit(place));
        self.partitions.push(partition);
        self.keys.push(first);
        self.last_keys.push(last);
    }
}

fn keys(words: &IndexWords) -> BTreeSet<i64> {
    let has_beginnings = words.words.contains(BEGINS);
    let forms = words.words.split_ascii_whitespace();
    let forms = forms.filter(|form| !form.starts_with(BEGINS));
    let key = |form: &str| match beginning(form) {
        Some(begins) if has_beginnings => begun_key(begins, form),
        _ => plain_key(form),
    };
    forms.map(key).collect()
}

/// Key of a word without a beginning in the index.
fn plain_key(form: &str) -> i64 {
    hash(form).into()
}

/// Key of a word with a beginning in the index.
fn begun_key(begins: &str, form: &str) -> i64 {
    first_begun(begins) | i64::from(hash(form).cast_unsigned())
}

/// First key of the words with this beginning.
fn first_begun(begins: &str) -> i64 {
    i64::from(hash(begins)) << 32
}

/// For each term, finds the newest memories of each of its forms, and therefore of all forms.
fn find(it: &Transaction<'_>, sought: &[TermLookup<'_>]) -> StoreResult<Vec<Vec<i64>>> {
    let (mut words, mut beginnings) = (Lookups::default(), Lookups::default());
    for (place, one) in sought.iter().enumerate() {
        for form in one.forms {
            if let Some(begins) = form.strip_prefix(BEGINS) {
                let first = first_begun(begins);
                beginnings.push(place, one.partition, first, first | i64::from(u32::MAX));
                continue;
            }
            let begun = beginning(form).map(|begins| begun_key(begins, form));
            for key in std::iter::once(plain_key(form)).chain(begun) {
                words.push(place, one.partition, key, key);
            }
        }
    }
    let mut found: Vec<Vec<i64>> = vec![Vec::new(); sought.len()];
    let mut add = |sql: &str, values: &[Value]| -> StoreResult<()> {
        for row in it.rows(sql, values)? {
            let place = whole(&row, 0)?;
            if let Some(found) = usize::try_from(place).ok().and_then(|at| found.get_mut(at)) {
                found.extend(row.list(1)?);
            }
        }
        Ok(())
    };
    if !words.places.is_empty() {
        let sql =
            "SELECT place, ARRAY(SELECT no FROM terms WHERE terms.partition = sought.partition
                AND terms.form = sought.form ORDER BY no DESC LIMIT $4)
            FROM unnest($1, $2, $3) AS sought (place, form, partition)";
        let values = [
            Value::Wholes(words.places),
            Value::Wholes(words.keys),
            Value::Wholes(words.partitions),
            Value::Whole(limit(MATCHES_MAX)),
        ];
        add(sql, &values)?;
    }
    if !beginnings.places.is_empty() {
        let sql = "SELECT place, ARRAY(SELECT DISTINCT no FROM (SELECT no FROM terms
                WHERE terms.partition = sought.partition
                AND terms.form BETWEEN sought.first AND sought.last LIMIT $6) AS begun
                ORDER BY no DESC LIMIT $5)
            FROM unnest($1, $2, $3, $4) AS sought (place, first, last, partition)";
        let values = [
            Value::Wholes(beginnings.places),
            Value::Wholes(beginnings.keys),
            Value::Wholes(beginnings.last_keys),
            Value::Wholes(beginnings.partitions),
            Value::Whole(limit(MATCHES_MAX)),
            Value::Whole(limit(BEGUN_MAX)),
        ];
        add(sql, &values)?;
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
    fn range_of_a_beginning_contains_its_words_only() {
        let words = IndexWords::new("das Boot liegt in Veere");
        let found = keys(&words);
        let forms = words.words.split_ascii_whitespace();
        let (begins, forms): (Vec<_>, Vec<_>) = forms.partition(|form| form.starts_with(BEGINS));
        assert_eq!(found.len(), forms.len());
        assert!(begins.len() > 2);
        for begins in begins {
            let begins = begins.trim_start_matches(BEGINS);
            let first = first_begun(begins);
            let found = found.range(first..=(first | i64::from(u32::MAX))).count();
            let expected = forms.iter().filter(|form| form.starts_with(begins)).count();
            assert_eq!(found, expected, "{begins}");
        }
        // English texts are not searched by beginnings.
        let english = IndexWords::new("the boat is in the harbour of the town");
        let is_plain = |key: &i64| i32::try_from(*key).is_ok();
        assert!(keys(&english).iter().all(is_plain));
    }

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
