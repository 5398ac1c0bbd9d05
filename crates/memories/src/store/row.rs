//! Memories as rows.

use std::sync::LazyLock;

use memoird_core::ids::{Generation, MemoryId, SessionId, Subject};
use memoird_core::sha256::Sha256;
use rusqlite::params;
use rusqlite::types::{ToSqlOutput, Type, ValueRef};

use super::checksum::{DamagedRow, memory_checksum};
use super::reader::MemoryReader;
use super::sql::ColumnType::{Bytes, Real, Whole};
use super::sql::{Connection, Insert, Parameters, Row, Sql, StoreResult};
use super::time::{moment, timestamp};
use crate::rules::documents::behind;
use crate::rules::wording;
use crate::rules::{Memory, MemoryKind, Origin, Outcome, Pin, Polarity, Source, Visibility};

/// Version of the row format that is written.
const FORMAT: i64 = 1;
/// Bits of a `no` that number a memory within its partition.
pub(super) const LOCAL_BITS: u32 = 32;
/// Partition of the team's memories.
pub(super) const TEAM: i64 = 0;

/// A memory with its storage columns.
#[derive(Clone, Debug)]
pub(super) struct MemoryRow {
    pub(super) no: i64,
    /// Partition of its subject, even for a team memory.
    pub(super) owner: i64,
    /// Creation order among the tenant's memories.
    pub(super) born: i64,
    /// Number of text changes.
    pub(super) revision: i64,
    /// Time of the last pin or unpin.
    pub(super) pin_changed: Option<i64>,
    /// Whether the bot stored it separately from a memory that states the same.
    pub(super) apart: bool,
    pub(super) memory: Memory,
}

/// A stored row, or the position of one that is damaged.
pub(super) type CheckedRow = Result<MemoryRow, DamagedRow>;

const BY_ID: &str = "WHERE id = ?";

/// The columns that [`read`] expects. Excludes memories of forgotten owners.
const SELECT: &str = "SELECT memories.no, owner, born, revision, id, subject, kind,
    polarity, importance, observed, created, updated, expires, superseded_by, reinforced,
    recalls, recalled, pin, origin, session, generation, seqs, tags, content, pin_changed,
    apart, external_key, metadata, checksum FROM memories CROSS JOIN partitions ON partitions.no = memories.owner";

/// Inserts what [`MemoryRow::write`] writes.
static MEMORIES: Insert = Insert::new(
    "memories",
    &[
        ("no", Whole),
        ("format", Whole),
        ("partition", Whole),
        ("id", Bytes),
        ("owner", Whole),
        ("born", Whole),
        ("revision", Whole),
        ("kind", Whole),
        ("polarity", Whole),
        ("importance", Real),
        ("observed", Whole),
        ("created", Whole),
        ("updated", Whole),
        ("expires", Whole),
        ("superseded_by", Bytes),
        ("reinforced", Whole),
        ("recalls", Whole),
        ("recalled", Whole),
        ("pin", Whole),
        ("pin_changed", Whole),
        ("apart", Whole),
        ("origin", Whole),
        ("says", Whole),
        ("session", Bytes),
        ("generation", Bytes),
        ("seqs", Bytes),
        ("tags", Bytes),
        ("content", Bytes),
        ("external_key", Bytes),
        ("metadata", Bytes),
        ("checksum", Whole),
    ],
    "",
);
/// Inserts number, subject and next number of a partition.
pub(super) static PARTITIONS: Insert = Insert::new(
    "partitions",
    &[("no", Whole), ("subject", Bytes), ("next", Whole)],
    "",
);

/// First and last number of a partition, inclusive.
pub(super) fn range(partition: i64) -> (i64, i64) {
    (
        partition << LOCAL_BITS,
        (partition << LOCAL_BITS) | ((1 << LOCAL_BITS) - 1),
    )
}

pub(super) fn partition_of(no: i64) -> i64 {
    no >> LOCAL_BITS
}

/// Returns the partition of a subject, if it has one.
pub(super) fn find_partition(
    connection: Connection<'_>,
    subject: &Subject,
) -> StoreResult<Option<i64>> {
    let sql = "SELECT no FROM partitions WHERE subject = ?";
    connection.value(sql, params![subject.as_str()])
}

/// Condition on `partitions` for a subject prefix. Its two parameters come from [`prefix_bounds`].
pub(super) const BEGINS: &str = "subject >= ? AND subject < ?";

/// Bytes that are compared as text.
#[derive(Debug)]
pub(super) struct TextBytes(Vec<u8>);

impl rusqlite::ToSql for TextBytes {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(&self.0)))
    }
}

/// Inclusive lower and exclusive upper bound of all subjects with a prefix.
pub(super) fn prefix_bounds(prefix: &str) -> (&str, TextBytes) {
    (prefix, TextBytes(behind(prefix.as_bytes())))
}

impl MemoryRow {
    /// The partition of its visibility: its subject's, or the team's.
    pub(super) fn partition(&self) -> i64 {
        match self.memory.visibility {
            Visibility::Private => self.owner,
            Visibility::Team => TEAM,
        }
    }

    /// Returns the memory found by the rest of a `SELECT`.
    ///
    /// # Errors
    /// [`MemoryError::MemoryDamaged`].
    pub(super) fn find(
        reader: &MemoryReader<'_>,
        rest: &str,
        parameters: Parameters<'_>,
    ) -> StoreResult<Option<Self>> {
        let found = reader.one(&format!("{SELECT} {rest}"), parameters, read)?;
        found
            .map(|row| row.map_err(|damaged| reader.damage.refuse(&damaged)))
            .transpose()
    }

    /// Returns all memories found by the rest of a `SELECT`, without damaged ones.
    pub(super) fn all(
        reader: &MemoryReader<'_>,
        rest: &str,
        parameters: Parameters<'_>,
    ) -> StoreResult<Vec<Self>> {
        let found = Self::all_checked(reader, rest, parameters)?;
        Ok(reader.damage.left_out(found))
    }

    /// Returns all rows found by the rest of a `SELECT`.
    pub(super) fn all_checked(
        reader: &MemoryReader<'_>,
        rest: &str,
        parameters: Parameters<'_>,
    ) -> StoreResult<Vec<CheckedRow>> {
        reader.all(&format!("{SELECT} {rest}"), parameters, read)
    }

    /// Returns a memory.
    ///
    /// # Errors
    /// [`MemoryError::MemoryDamaged`].
    pub(super) fn by_id(reader: &MemoryReader<'_>, id: MemoryId) -> StoreResult<Option<Self>> {
        Self::find(reader, BY_ID, params![id.to_bytes()])
    }

    /// Returns a memory, unless it is damaged.
    pub(super) fn whole(reader: &MemoryReader<'_>, id: MemoryId) -> StoreResult<Option<Self>> {
        Ok(Self::all(reader, BY_ID, params![id.to_bytes()])?.pop())
    }

    pub(super) fn by_no(reader: &MemoryReader<'_>, no: i64) -> StoreResult<Option<Self>> {
        Ok(Self::of_numbers(reader, &[no])?.pop())
    }

    /// Returns the memories with these numbers, in this order, without missing and damaged ones.
    pub(super) fn of_numbers(reader: &MemoryReader<'_>, numbers: &[i64]) -> StoreResult<Vec<Self>> {
        static SQL: LazyLock<String> = LazyLock::new(|| format!("{SELECT} WHERE memories.no = ?1"));
        let found = reader.of_numbers(&SQL, numbers, read)?;
        Ok(reader.damage.left_out(found))
    }

    /// Inserts the row. `says` is the [`content_hash`] of its text.
    pub(super) fn insert(&self, connection: Connection<'_>, says: i64) -> StoreResult<()> {
        self.write(connection, says, None)
    }

    /// Replaces the row with number `was`.
    pub(super) fn replace(&self, connection: Connection<'_>, was: i64) -> StoreResult<()> {
        let says = content_hash(&self.memory.content);
        self.write(connection, says, Some(was))
    }

    fn write(&self, connection: Connection<'_>, says: i64, was: Option<i64>) -> StoreResult<()> {
        let memory = &self.memory;
        let source = memory.source.as_ref();
        let parameters = params![
            self.no,
            FORMAT,
            self.partition(),
            memory.id.to_bytes(),
            self.owner,
            self.born,
            self.revision,
            memory.kind as u8,
            memory.polarity.map(|polarity| polarity as u8),
            f64::from(memory.importance),
            moment(memory.observed_at),
            moment(memory.created_at),
            moment(memory.updated_at),
            memory.expires_at.map(moment),
            memory.superseded_by.map(MemoryId::to_bytes),
            whole(memory.reinforced),
            whole(memory.recalls),
            memory.recalled_at.map(moment),
            memory.pin.map(|pin| pin as u8),
            self.pin_changed,
            self.apart,
            memory.origin as u8,
            says,
            source.map(|source| source.session.as_str()),
            source
                .and_then(|source| source.generation)
                .map(Generation::to_bytes),
            source.map(|source| pack_seqs(&source.seqs)),
            (!memory.tags.is_empty()).then(|| pack_tags(&memory.tags)),
            memory.content,
            memory.external_key,
            memory.metadata,
            memory_checksum(memory),
        ];
        match was {
            None => connection.insert(&MEMORIES, parameters),
            Some(was) => {
                static SQL: LazyLock<String> = LazyLock::new(|| {
                    let (names, places) = (MEMORIES.names(), MEMORIES.places());
                    format!("UPDATE memories SET ({names}) = ({places}) WHERE no = ?")
                });
                let was: &dyn rusqlite::ToSql = &was;
                connection.run(&SQL, &[parameters, &[was]].concat())
            }
        }
    }
}

/// Reads the columns of [`SELECT`], and checks them.
fn read(row: &Row<'_>) -> rusqlite::Result<CheckedRow> {
    let checksum: Option<i64> = row.get(28)?;
    match decode(row) {
        Ok(found) if checksum.is_none_or(|it| it == memory_checksum(&found.memory)) => {
            Ok(Ok(found))
        }
        Ok(_) | Err(rusqlite::Error::FromSqlConversionFailure(..)) => Ok(Err(DamagedRow {
            no: row.get(0)?,
            id: MemoryId::from_bytes(row.get(4).unwrap_or_default()),
        })),
        Err(error) => Err(error),
    }
}

fn decode(row: &Row<'_>) -> rusqlite::Result<MemoryRow> {
    let no: i64 = row.get(0)?;
    let session: Option<String> = row.get(19)?;
    let source = match session {
        None => None,
        Some(session) => Some(Source {
            session: SessionId::parse(&session).map_err(|_| damaged(19, "session"))?,
            generation: row.get::<Option<_>>(20)?.map(Generation::from_bytes),
            seqs: unpack_seqs(row.bytes(21)?).ok_or(damaged(21, "list of turns"))?,
        }),
    };
    let tags = match row.bytes_or_null(22)? {
        None => Vec::new(),
        Some(packed) => unpack_tags(packed).ok_or(damaged(22, "list of tags"))?,
    };
    #[allow(
        clippy::cast_possible_truncation,
        reason = "it was an f32 when it was written"
    )]
    let importance = row.get::<f64>(8)? as f32;
    let moment = |column| row.get::<Option<i64>>(column).map(|at| at.map(timestamp));
    let at = |column| row.get::<i64>(column).map(timestamp);
    let memory = Memory {
        id: MemoryId::from_bytes(row.get(4)?),
        subject: Subject::parse(row.text(5)?).map_err(|_| damaged(5, "subject"))?,
        kind: named(&MemoryKind::ALL, row.get(6)?).ok_or(damaged(6, "kind"))?,
        visibility: match partition_of(no) {
            TEAM => Visibility::Team,
            _ => Visibility::Private,
        },
        polarity: row
            .get::<Option<_>>(7)?
            .and_then(|found| named(&POLARITIES, found)),
        content: row.get(23)?,
        tags,
        importance,
        source,
        observed_at: at(9)?,
        created_at: at(10)?,
        updated_at: at(11)?,
        expires_at: moment(12)?,
        superseded_by: row.get::<Option<_>>(13)?.map(MemoryId::from_bytes),
        reinforced: row.get::<i64>(14)?.unsigned_abs(),
        recalls: row.get::<i64>(15)?.unsigned_abs(),
        recalled_at: moment(16)?,
        pin: row
            .get::<Option<_>>(17)?
            .and_then(|found| named(&PINS, found)),
        origin: named(&ORIGINS, row.get(18)?).ok_or(damaged(18, "origin"))?,
        external_key: row.get(26)?,
        metadata: row.get(27)?,
    };
    Ok(MemoryRow {
        no,
        owner: row.get(1)?,
        born: row.get(2)?,
        revision: row.get(3)?,
        pin_changed: row.get(24)?,
        apart: row.get(25)?,
        memory,
    })
}

/// Converts a count to SQLite's signed integer. No count comes near its maximum.
pub(super) fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Converts a row limit for SQL.
pub(super) fn limit(rows_max: usize) -> i64 {
    i64::try_from(rows_max).unwrap_or(i64::MAX)
}

pub(super) fn damaged(column: usize, what: &'static str) -> rusqlite::Error {
    let problem = format!("a {what} that does not decode");
    rusqlite::Error::FromSqlConversionFailure(column, Type::Blob, problem.into())
}

/// Digest for finding memories with the same text. Equal for texts that are [`wording::same`].
pub(super) fn content_hash(text: &str) -> i64 {
    let digest = Sha256::digest(wording::key(text).as_bytes());
    i64::from_le_bytes(std::array::from_fn(|index| digest[index]))
}

/// Enum values in the order of their stored numbers.
const POLARITIES: [Polarity; 2] = [Polarity::Correction, Polarity::Confirmation];
const PINS: [Pin; 2] = [Pin::Bot, Pin::Consolidation];
const ORIGINS: [Origin; 3] = [Origin::Bot, Origin::Extraction, Origin::Import];
const OUTCOMES: [Outcome; 5] = [
    Outcome::Created,
    Outcome::Reinforced,
    Outcome::Merged,
    Outcome::Recalled,
    Outcome::Replaced,
];

fn named<T: Copy>(values: &[T], number: u8) -> Option<T> {
    values.get(usize::from(number)).copied()
}

pub(super) fn outcome_of(number: u8) -> Outcome {
    named(&OUTCOMES, number).unwrap_or(Outcome::Created)
}

/// Kinds as a bit set. No kinds means all.
pub(super) fn kind_bits(kinds: &[MemoryKind]) -> u8 {
    if kinds.is_empty() {
        u8::MAX
    } else {
        kinds.iter().fold(0, |bits, kind| bits | 1 << *kind as u8)
    }
}

/// Whether a bit set has a kind. That of all kinds also has an unknown one, of a damaged row.
pub(super) fn has_kind(bits: u8, kind: u8) -> bool {
    bits == u8::MAX || bits.checked_shr(kind.into()).unwrap_or_default() & 1 == 1
}

/// Packs ascending numbers as variable-length differences (LEB128).
fn pack_seqs(seqs: &[u64]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(seqs.len() + 8);
    let mut last = 0;
    for seq in seqs {
        let mut rest = seq.wrapping_sub(last);
        last = *seq;
        while rest > 0x7f {
            bytes.push((rest & 0x7f) as u8 | 0x80);
            rest >>= 7;
        }
        bytes.push(rest.to_le_bytes()[0]);
    }
    bytes
}

fn unpack_seqs(bytes: &[u8]) -> Option<Vec<u64>> {
    let (mut seqs, mut last, mut rest, mut shift) = (Vec::new(), 0_u64, 0_u64, 0_u32);
    for byte in bytes {
        rest |= u64::from(byte & 0x7f).checked_shl(shift)?;
        shift += 7;
        if byte & 0x80 == 0 {
            last = last.wrapping_add(rest);
            seqs.push(last);
            (rest, shift) = (0, 0);
        }
    }
    (shift == 0).then_some(seqs)
}

/// Packs tags, each preceded by its length, because a tag may contain any character.
pub(super) fn pack_tags(tags: &[String]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for tag in tags {
        let length = u32::try_from(tag.len()).unwrap_or(u32::MAX);
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(tag.as_bytes());
    }
    bytes
}

pub(super) fn unpack_tags(mut bytes: &[u8]) -> Option<Vec<String>> {
    let mut tags = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<4>()?;
        let (tag, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        tags.push(str::from_utf8(tag).ok()?.to_owned());
        bytes = rest;
    }
    Some(tags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_lists_round_trip() {
        for seqs in [
            vec![],
            vec![1],
            vec![1, 2, 127, 128, 300, 1 << 40, u64::MAX],
        ] {
            assert_eq!(unpack_seqs(&pack_seqs(&seqs)), Some(seqs));
        }
        for tags in [
            vec![],
            vec!["a"],
            vec!["", "b\n\0", "ä".repeat(90).as_str()],
        ] {
            let tags: Vec<String> = tags.into_iter().map(str::to_owned).collect();
            assert_eq!(unpack_tags(&pack_tags(&tags)), Some(tags));
        }
        assert_eq!(unpack_tags(&[9, 0, 0, 0, 1]), None);
        assert_eq!(unpack_seqs(&[0x80]), None);
    }
}
