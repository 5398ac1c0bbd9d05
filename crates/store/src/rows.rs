//! Decodes rows of the journal, whichever database they come from.

use std::sync::Arc;

use memoird_core::CoreError;
use memoird_core::change::EndReason;
use memoird_core::history::{LiveSet, Totals, TurnRecord};
use memoird_core::ids::{Generation, SessionId, SessionKey, Subject, TenantId};
use memoird_core::session::{Head, SavedTurn};
use memoird_core::time::{Now, Steady, Timestamp};
use memoird_proto::v1;

use crate::checksum::{StoredTurn, TurnCounters, TurnKey, Verdict, examine, unknown_turn};
use crate::transfer::{Row, Value};
use crate::{
    ClockAnchor, GenerationOwner, StoreError, WrittenTurn, encoding, lock, options, summaries,
};

/// A row of a query. Columns count from 0.
pub trait StoredRow {
    /// Reads an integer or a boolean. `None` for NULL.
    fn int_or_null(&self, column: usize) -> Result<Option<i64>, StoreError>;

    /// Reads text, bytes or a ULID. `None` for NULL.
    fn bytes_or_null(&self, column: usize) -> Result<Option<&[u8]>, StoreError>;

    fn int(&self, column: usize) -> Result<i64, StoreError> {
        self.int_or_null(column)?.ok_or(damaged("number"))
    }

    /// Reads a count, which is never negative.
    fn count(&self, column: usize) -> Result<u64, StoreError> {
        self.int(column).map(i64::unsigned_abs)
    }

    fn is_true(&self, column: usize) -> Result<bool, StoreError> {
        self.int(column).map(|number| number != 0)
    }

    fn bytes(&self, column: usize) -> Result<&[u8], StoreError> {
        self.bytes_or_null(column)?.ok_or(damaged("value"))
    }

    fn text(&self, column: usize) -> Result<&str, StoreError> {
        str::from_utf8(self.bytes(column)?).map_err(|_| damaged("text"))
    }

    /// Reads a ULID or an idempotency key.
    fn ulid(&self, column: usize) -> Result<[u8; 16], StoreError> {
        self.bytes(column)?.try_into().map_err(|_| damaged("id"))
    }

    fn generation(&self, column: usize) -> Result<Generation, StoreError> {
        self.ulid(column).map(Generation::from_bytes)
    }

    /// Reads an id chosen by a client, or the name of a hook.
    fn id<T>(
        &self,
        column: usize,
        parse: impl FnOnce(&str) -> Result<T, CoreError>,
    ) -> Result<T, StoreError>
    where
        Self: Sized,
    {
        parse(self.text(column)?).map_err(|_| damaged("id"))
    }

    /// Reads a session's key from the columns of its tenant and of its id.
    fn key(&self, tenant: usize, session: usize) -> Result<SessionKey, StoreError>
    where
        Self: Sized,
    {
        Ok(SessionKey {
            tenant: self.id(tenant, TenantId::parse)?,
            session: self.id(session, SessionId::parse)?,
        })
    }

    /// Reads the owner of a generation's memories. One that cannot be parsed counts as unknown.
    fn subject(&self, column: usize) -> Result<Option<Subject>, StoreError> {
        let bytes = self.bytes_or_null(column)?;
        let text = bytes.and_then(|bytes| str::from_utf8(bytes).ok());
        Ok(text.and_then(|text| Subject::parse(text).ok()))
    }

    fn reason(&self, column: usize) -> Result<EndReason, StoreError> {
        let name = self.text(column)?;
        let mut known = EndReason::ALL.into_iter();
        let reason = known.find(|reason| reason.name() == name);
        reason.ok_or(damaged("reason"))
    }

    /// Reads steady time, wall time, boot id, and milliseconds since the boot.
    fn clock(&self) -> Result<ClockAnchor, StoreError> {
        Ok(ClockAnchor {
            steady: Steady(self.count(0)?),
            wall: Timestamp::from_ms(self.int(1)?),
            boot_id: self.text(2)?.to_owned(),
            boot_ms: self.count(3)?,
        })
    }
}

impl StoredRow for rusqlite::Row<'_> {
    fn int_or_null(&self, column: usize) -> Result<Option<i64>, StoreError> {
        Ok(self.get(column)?)
    }

    fn bytes_or_null(&self, column: usize) -> Result<Option<&[u8]>, StoreError> {
        let value = self.get_ref(column)?;
        Ok(value.as_bytes_or_null().map_err(rusqlite::Error::from)?)
    }
}

impl StoredRow for Row {
    fn int_or_null(&self, column: usize) -> Result<Option<i64>, StoreError> {
        match self.get(column) {
            Some(Value::Number(number)) => Ok(Some(*number)),
            _ => Ok(None),
        }
    }

    fn bytes_or_null(&self, column: usize) -> Result<Option<&[u8]>, StoreError> {
        match self.get(column) {
            Some(Value::Bytes(bytes)) => Ok(Some(bytes)),
            _ => Ok(None),
        }
    }
}

/// State of a generation without its turns and its JSON.
#[derive(Clone, Debug)]
pub struct GenerationRow {
    pub key: SessionKey,
    pub head: Head,
    pub live_set: LiveSet,
    pub ended: Option<(Now, EndReason)>,
}

impl GenerationRow {
    /// Columns that every row of a generation has. Compaction status and options follow them.
    pub const COLUMNS: &str = "generation, format, tenant, session, subject, created_ms, \
         last_access, revision, last_seq, kept, turns, bytes, tokens, partial, state_version, \
         ended_ms, ended_at, reason, newest_seq";
    /// Number of columns that [`Self::read`] reads.
    pub const COUNT: usize = 21;

    /// Reads [`Self::COLUMNS`], compaction status and options.
    pub fn read(row: &impl StoredRow) -> Result<Self, StoreError> {
        let live_set = encoding::decode_live_set(row.bytes(9)?);
        let ended = match (row.int_or_null(15)?, row.int_or_null(16)?) {
            (Some(wall), Some(steady)) => {
                let at = Now {
                    wall: Timestamp::from_ms(wall),
                    steady: Steady(steady.unsigned_abs()),
                };
                Some((at, row.reason(17)?))
            }
            _ => None,
        };
        // Without a status, the session compacts as if it had never done so.
        let status = row.bytes_or_null(19)?.and_then(summaries::decode_status);
        let options = row.bytes_or_null(20)?.and_then(options::decode);
        let last_seq = row.count(8)?;
        let newest_seq = row.int_or_null(18)?;
        Ok(Self {
            key: row.key(2, 3)?,
            live_set: live_set.ok_or(damaged("live set"))?,
            ended,
            head: Head {
                generation: row.generation(0)?,
                subject: row.subject(4)?,
                created_at: Timestamp::from_ms(row.int(5)?),
                last_access: Steady(row.count(6)?),
                revision: row.count(7)?,
                last_seq,
                newest_seq: newest_seq.map_or(last_seq, i64::unsigned_abs),
                totals: Totals {
                    turns: row.count(10)?,
                    bytes: row.count(11)?,
                    tokens: row.count(12)?,
                },
                partial: row.is_true(13)?,
                state_version: row.count(14)?,
                compaction: status.map(Arc::new),
                options: options.map(Arc::new),
            },
        })
    }

    pub fn into_owner(self) -> GenerationOwner {
        GenerationOwner {
            generation: self.head.generation,
            key: self.key,
            subject: self.head.subject,
        }
    }
}

/// Seq and content of a turn. `None` if nothing else is known of it.
type KnownTurn = (u64, Option<Arc<[u8]>>);

/// Reads and verifies turns of a generation.
#[derive(Clone, Copy, Debug)]
pub struct TurnReader<'a> {
    pub generation: Generation,
    counters: &'a TurnCounters,
}

impl<'a> TurnReader<'a> {
    pub fn new(generation: Generation, counters: &'a TurnCounters) -> Self {
        Self {
            generation,
            counters,
        }
    }

    /// Reads seq, content, header and checksum. A damaged content is replaced.
    pub fn read(self, row: &impl StoredRow) -> Result<(u64, Arc<[u8]>), StoreError> {
        let (seq, known) = self.read_known(row)?;
        let content = known.unwrap_or_else(|| unknown_turn(seq, v1::Role::System));
        Ok((seq, content))
    }

    /// As [`Self::read`], but returns no content if the header is damaged as well.
    fn read_known(self, row: &impl StoredRow) -> Result<KnownTurn, StoreError> {
        let key = TurnKey {
            generation: self.generation,
            seq: row.count(0)?,
        };
        let stored = StoredTurn {
            content: row.bytes(1)?,
            header: row.bytes_or_null(2)?,
            checksum: row.int_or_null(3)?,
        };
        let content = match examine(key, &stored) {
            Verdict::Whole => Some(stored.content.into()),
            Verdict::Unchecked => {
                lock(self.counters).unchecked += 1;
                Some(stored.content.into())
            }
            Verdict::Damaged { stand_in } => {
                lock(self.counters).damaged += 1;
                stand_in
            }
        };
        Ok((key.seq, content))
    }

    fn damaged(self, seq: u64) -> StoreError {
        StoreError::TurnDamaged {
            generation: self.generation.to_string(),
            seq,
        }
    }
}

/// Reads a turn and, after its columns, its number and generation.
pub fn written_turn(
    row: &impl StoredRow,
    counters: &TurnCounters,
) -> Result<WrittenTurn, StoreError> {
    let generation = row.generation(5)?;
    let reader = TurnReader::new(generation, counters);
    let (seq, content) = reader.read(row)?;
    Ok(WrittenTurn {
        number: row.count(4)?,
        generation,
        seq,
        content,
    })
}

/// Reads the turns of a live set.
///
/// If a turn is unreadable, including its header, its calls are unknown. From then on, a result
/// without a known call is taken for a late one.
#[derive(Debug)]
pub struct LiveTurns<'a> {
    reader: TurnReader<'a>,
    anchor: Option<u64>,
    turns: Vec<SavedTurn>,
    has_unknown: bool,
}

impl<'a> LiveTurns<'a> {
    pub fn new(reader: TurnReader<'a>, live_set: &LiveSet) -> Self {
        Self {
            reader,
            anchor: live_set.anchor,
            turns: Vec::new(),
            has_unknown: false,
        }
    }

    /// Adds a row that [`TurnReader::read`] can read.
    pub fn add(&mut self, row: &impl StoredRow) -> Result<(), StoreError> {
        let (seq, content) = self.reader.read_known(row)?;
        let known = content.and_then(|content| encoding::decode_saved(seq, content));
        let turn = known.or_else(|| {
            self.has_unknown = true;
            let role = if self.anchor == Some(seq) {
                v1::Role::User
            } else {
                v1::Role::System
            };
            encoding::decode_saved(seq, unknown_turn(seq, role))
        });
        self.turns
            .push(turn.ok_or_else(|| self.reader.damaged(seq))?);
        Ok(())
    }

    /// Adds a turn in memory that is stored unchanged.
    ///
    /// # Errors
    /// If its content cannot be decoded.
    pub fn reuse(&mut self, known: &TurnRecord) -> Result<(), StoreError> {
        let turn = match known.as_arrived() {
            Some(record) => (record, Vec::new()),
            None => encoding::decode_saved(known.seq, Arc::clone(&known.content))
                .ok_or_else(|| self.reader.damaged(known.seq))?,
        };
        self.turns.push(turn);
        Ok(())
    }

    /// Returns the turns, ascending.
    ///
    /// # Errors
    /// If a turn below the floor is missing.
    pub fn finish(mut self, live_set: &mut LiveSet) -> Result<Vec<SavedTurn>, StoreError> {
        self.turns.sort_by_key(|(record, _)| record.seq);
        for seq in live_set.seqs_below_floor() {
            let found = self
                .turns
                .binary_search_by_key(&seq, |(record, _)| record.seq);
            found.map_err(|_| self.reader.damaged(seq))?;
        }
        live_set.departed_overflow |= self.has_unknown;
        Ok(self.turns)
    }
}

pub fn damaged(what: &'static str) -> StoreError {
    StoreError::RowDamaged { what }
}
