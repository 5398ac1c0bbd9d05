//! Deliveries are written in the transaction of the end that causes them.

use rusqlite::{Transaction, params};

use memoird_core::change::EndReason;
use memoird_core::ids::HookName;
use memoird_core::time::Steady;

use super::row::whole;
use crate::StoreError;
use crate::rows::GenerationRow;

/// Inserts the deliveries caused by the end of a generation.
pub(super) fn owe(
    transaction: &Transaction<'_>,
    row: &GenerationRow,
    reason: EndReason,
    due: Steady,
    owed: &[HookName],
) -> Result<(), StoreError> {
    let sql = "INSERT OR IGNORE INTO outbox
                   (generation, hook, tenant, session, reason, state, tries, last_error, due)
               VALUES (?, ?, ?, ?, ?, 'pending', 0, '', ?)";
    let mut insert = transaction.prepare_cached(sql)?;
    for hook in owed {
        insert.execute(params![
            row.head.generation.to_bytes(),
            hook.as_str(),
            row.key.tenant.as_str(),
            row.key.session.as_str(),
            reason.name(),
            whole(due.0),
        ])?;
    }
    Ok(())
}
