//! Conversions between column values and memoird's types.

use std::error::Error;

use bytes::BytesMut;
use memoird_core::ids::Generation;
use memoird_store::StoreError;
use memoird_store::rows::StoredRow;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

use crate::error::failed;
use crate::transactions::{Column, ResultRow};

/// A ULID in a column of type `uuid`: 16 bytes, most significant first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ulid(pub(crate) [u8; 16]);

impl From<Generation> for Ulid {
    fn from(generation: Generation) -> Self {
        Self(generation.to_bytes())
    }
}

impl From<Ulid> for Generation {
    fn from(ulid: Ulid) -> Self {
        Self::from_bytes(ulid.0)
    }
}

impl ToSql for Ulid {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.extend_from_slice(&self.0);
        Ok(IsNull::No)
    }

    accepts!(UUID);
    to_sql_checked!();
}

impl FromSql<'_> for Ulid {
    fn from_sql(_: &Type, raw: &[u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(raw.try_into()?))
    }

    accepts!(UUID);
}

/// Converts a count to PostgreSQL's signed `bigint`. Real counts are far below the limit.
pub(crate) fn whole(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Converts a maximum number of rows for `LIMIT`.
pub(crate) fn limit(rows: usize) -> i64 {
    i64::try_from(rows).unwrap_or(i64::MAX)
}

pub(crate) fn get<'a, T: FromSql<'a>>(row: &'a ResultRow, column: usize) -> Result<T, StoreError> {
    row.0.try_get(column).map_err(failed)
}

impl StoredRow for ResultRow {
    fn int_or_null(&self, column: usize) -> Result<Option<i64>, StoreError> {
        match self.column(column)? {
            Column::Whole(number) => Ok(Some(number)),
            _ => Ok(None),
        }
    }

    fn bytes_or_null(&self, column: usize) -> Result<Option<&[u8]>, StoreError> {
        match self.column(column)? {
            Column::Bytes(bytes) => Ok(Some(bytes)),
            _ => Ok(None),
        }
    }
}
