//! Positions of memories in their conversation.

use memoird_postgres::Value;

use super::{Transaction, value};
use crate::store::row::limit;
use crate::store::sql::StoreResult;

/// Numbers of the memories at these positions, each with the index of its position.
///
/// Returns at most `each_max` per position.
pub(in crate::store) fn said_at(
    it: &Transaction<'_>,
    places: &[(i64, i64)],
    each_max: usize,
) -> StoreResult<Vec<(usize, i64)>> {
    if places.is_empty() {
        return Ok(Vec::new());
    }
    let sql = "SELECT place, no FROM unnest($1, $2) WITH ORDINALITY AS asked (said, seq, place)
        CROSS JOIN LATERAL (SELECT no FROM places
            WHERE places.said = asked.said AND places.seq = asked.seq ORDER BY no LIMIT $3) AS found
        ORDER BY place, no";
    let (said, seqs) = places.iter().copied().unzip();
    let each_max = Value::Whole(limit(each_max));
    let rows = it.rows(sql, &[Value::Wholes(said), Value::Wholes(seqs), each_max])?;
    let found = rows.iter().map(|row| {
        let place = value(row, 0)?.as_i64().map_err(rusqlite::Error::from)?;
        let no = value(row, 1)?.as_i64().map_err(rusqlite::Error::from)?;
        Ok((usize::try_from(place - 1).unwrap_or(usize::MAX), no))
    });
    found.collect()
}
