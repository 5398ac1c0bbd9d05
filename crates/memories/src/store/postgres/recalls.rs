//! Recording of recalls, in one statement per recall.

use memoird_postgres::Value;

use super::Transaction;
use crate::store::RecallEvent;
use crate::store::sql::StoreResult;
use crate::store::time::moment;

/// Counts a recall for each of its memories and stores its events.
///
/// Skips memories that were deleted in the meantime.
pub(in crate::store) fn count_hits(
    it: &Transaction<'_>,
    event: &RecallEvent,
    session: Option<[u8; 16]>,
) -> StoreResult<()> {
    // Incrementing the maximum integer would overflow.
    let sql = "WITH hits AS (
            SELECT id, rank, score FROM unnest($1, $2, $3) AS hits (id, rank, score)),
        counted AS (
            UPDATE memories SET
            recalls = recalls + CASE WHEN recalls < 9223372036854775807 THEN 1 ELSE 0 END,
            recalled = CASE WHEN recalled > $4 THEN recalled ELSE $4 END
            FROM hits WHERE memories.id = hits.id AND owner IN (SELECT no FROM partitions)
            RETURNING memories.id, hits.rank, hits.score)
        INSERT INTO recall_events (no, at, memory, session, query, rank, score)
        SELECT (SELECT coalesce(max(no), 0) FROM recall_events) + row_number() OVER (ORDER BY rank),
            $4, id, $5, $6, rank, score FROM counted";
    let ids = event.hits.iter().map(|hit| hit.id.to_bytes().to_vec());
    let ranks = event.hits.iter().map(|hit| i64::from(hit.rank));
    let scores = event.hits.iter().map(|hit| f64::from(hit.score));
    let session = session.map_or(Value::Null, |session| Value::Bytes(session.to_vec()));
    let values = vec![
        Value::Lists(ids.collect()),
        Value::Wholes(ranks.collect()),
        Value::Doubles(scores.collect()),
        Value::Whole(moment(event.at)),
        session,
        Value::Bytes(event.query.to_vec()),
    ];
    it.send(sql, values)
}
