//! The tables of a tenant's file, and how one of an older memoird becomes one of this.

use rusqlite::Connection;

use crate::FileError;

/// Marks the file as memoird's memories: "memm".
pub(super) const APPLICATION_ID: i64 = 0x6d65_6d6d;

/// Each step leads from one schema to the next; what has been released is never
/// changed, only followed. `PRAGMA user_version` counts the steps taken.
pub(super) const MIGRATIONS: [&str; 1] = [V1];

/// The `no` of a memory is its partition, and a number in it: what one subject may recall
/// privately is one range in every table and index, whatever others have. Partition 0 is
/// the team's. A partition's number is never given twice, and a subject's name stands in
/// `partitions` only: without its row nobody owns the memories, and nothing finds them.
///
/// `words` holds what is current, history left it; so do the vectors. `vector_blocks` has
/// one bit for each dimension and what filters ask, 32 memories a row: a first look over
/// ten thousand reads a few hundred rows. Moments sort as integers (`time.rs`), ids are
/// 16 bytes. `format` is the version of the row. The text is the last column, so that
/// whoever asks for another does not read it.
///
/// Small pages let `words` find its way to a partition's rows: of a term on more than four
/// of them it knows where they begin. With the usual 4,050 bytes, a subject of 100 among
/// 100,000 took twice as long; backwards it jumps further than forwards.
const V1: &str = include_str!("schema_1.sql");

/// The newest schema.
pub(super) const KNOWN: i64 = MIGRATIONS.len() as i64;

/// Takes the steps that are missing, each in a transaction of its own; a new file is this
/// tenant's.
pub(super) fn migrate(
    connection: &mut Connection,
    from: i64,
    tenant: &str,
) -> Result<(), FileError> {
    let done = usize::try_from(from).unwrap_or(0);
    for (version, step) in (1_i64..).zip(MIGRATIONS).skip(done) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(step)?;
        if version == 1 {
            let salt = "INSERT INTO meta VALUES ('salt', randomblob(16)), ('tenant', ?)";
            transaction.execute(salt, [tenant])?;
        }
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", version)?;
        transaction.commit()?;
    }
    Ok(())
}
