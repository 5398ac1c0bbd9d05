//! Maps PostgreSQL errors to store errors, and determines whether a statement was aborted.

use memoird_store::StoreError;
use tokio_postgres::error::{Severity, SqlState};

/// SQLSTATE raised by `commit.sql` if a set that must be written completely cannot be.
const PARTIAL: &str = "MD001";
/// SQLSTATE `read_only_sql_transaction`.
const READ_ONLY: &str = "25006";

/// Converts an error of a statement.
#[allow(clippy::needless_pass_by_value, reason = "it is given to map_err")]
pub(crate) fn failed(error: tokio_postgres::Error) -> StoreError {
    let Some(db) = error.as_db_error() else {
        return StoreError::Unavailable {
            detail: chain_text(&error),
        };
    };
    if *db.code() == SqlState::DISK_FULL {
        return StoreError::Full;
    }
    let detail = format!("{} ({}){}", db.message(), db.code().code(), hint(db.code()));
    if !is_aborted(&error) {
        StoreError::Unavailable { detail }
    } else if *db.code() == SqlState::LOCK_NOT_AVAILABLE {
        StoreError::Locked { detail }
    } else {
        StoreError::Database { detail }
    }
}

/// Advice to the operator for an error that persists.
fn hint(code: &SqlState) -> &'static str {
    match code.code() {
        READ_ONLY => {
            "; it is a standby or read-only: name the primary in journal.postgres.url, or add \
             target_session_attrs=read-write to it"
        }
        "42501" => {
            "; the role of journal.postgres.url must own the schemas memoird, memoird_memories, \
             memoird_tenant and memoird_vectors, or be allowed to CREATE them in the database"
        }
        _ => "",
    }
}

/// Converts an error of connecting, with a hint for the operator.
pub(crate) fn not_connected(error: tokio_postgres::Error) -> StoreError {
    let hint = match error.code().map(SqlState::code) {
        Some("28P01" | "28000") => {
            "; name the role in journal.postgres.url, and its password in journal.postgres.password"
        }
        Some("3D000") => "; create the database, or name another one in journal.postgres.url",
        Some(_) => "",
        None => "; check that the server runs, and that journal.postgres.url names it",
    };
    match failed(error) {
        StoreError::Database { detail } => StoreError::Database {
            detail: format!("{detail}{hint}"),
        },
        StoreError::Unavailable { detail } => StoreError::Unavailable {
            detail: format!("{detail}{hint}"),
        },
        other => other,
    }
}

/// Whether the server reported that the statement was aborted, so that nothing was written.
///
/// This excludes `FATAL` errors: a connection that ends may report one after the commit.
pub(crate) fn is_aborted(error: &tokio_postgres::Error) -> bool {
    let db = error.as_db_error();
    db.and_then(tokio_postgres::error::DbError::parsed_severity) == Some(Severity::Error)
}

/// Whether the same statement may succeed if it is retried.
pub(crate) fn is_transient(error: &tokio_postgres::Error) -> bool {
    let passing = [
        SqlState::LOCK_NOT_AVAILABLE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::T_R_SERIALIZATION_FAILURE,
    ];
    is_aborted(error) && error.code().is_some_and(|code| passing.contains(code))
}

/// Whether the server cannot read its own files.
pub(crate) fn is_damage(error: &tokio_postgres::Error) -> bool {
    // XX: corrupted pages and indexes, and errors caused by them. 58: files and the system.
    let classes = ["XX", "58"];
    let is_of = |code: &SqlState| classes.iter().any(|class| code.code().starts_with(class));
    is_aborted(error) && error.code().is_some_and(is_of)
}

pub(crate) fn is_read_only(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code() == READ_ONLY)
}

/// Whether a set that must be written completely was not.
pub(crate) fn is_partial(error: &tokio_postgres::Error) -> bool {
    is_aborted(error) && error.code().is_some_and(|code| code.code() == PARTIAL)
}

/// The error with its causes, without repetitions.
fn chain_text(error: &tokio_postgres::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text = format!("{text}: {inner_text}");
        }
        cause = inner.source();
    }
    text
}
