//! Exact copies of a tenant's memories and documents between a file and a database.
//!
//! Derived data such as the word index is rebuilt.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use memoird_core::sha256::Sha256;
use rusqlite::ToSql;
use rusqlite::types::Value;

use super::sql::{Connection, Row, Sql, StoreResult};
use super::vector_index::{FilterColumns, Model};
use super::{MemoryReader, TenantMemories, index, sqlite};
use crate::MemoryError;

/// Rows per read.
const ROWS_AT_ONCE: usize = 256;
/// Names in `meta` that belong to the storage and are not copied.
///
/// Words are reindexed in the target.
const OWN: [&str; 5] = ["salt", "tenant", "words", "words_at", "words_left"];

/// Rows of documents per read. They may be large.
const DOCUMENTS_AT_ONCE: usize = 16;

/// Type of a column.
#[derive(Clone, Copy)]
enum Kind {
    Whole,
    Real,
    Text,
    Bytes,
    /// A text, a number or bytes, depending on the name in the first column.
    Named,
}

/// A table to copy. It has the same columns in a file and in a database.
struct Table {
    name: String,
    columns: Vec<(String, Kind)>,
    /// Columns of the primary key. Empty for a table that has exactly one row from the start.
    key: Vec<String>,
}

/// Number and checksum of the rows of a table. Equal contents have equal values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contents {
    pub rows: u64,
    /// SHA-256 of all rows in the order of their keys.
    pub checksum: [u8; 32],
}

impl TenantMemories {
    /// Copies everything to empty storage of this tenant, in a single transaction of the target.
    ///
    /// Vectors are not copied to a target that cannot store them.
    ///
    /// # Errors
    /// If the source or the target cannot be used.
    pub fn copy_to(&self, target: &Self) -> Result<(), MemoryError> {
        self.read(|source| {
            target.transact(|target| {
                // Digests in the copied rows depend on the salt.
                target.set_salt(&source.connection.salt()?)?;
                target.run("DELETE FROM partitions", &[])?;
                for table in tables()? {
                    source.rows_of(table, |row| table.write(target, row))?;
                }
                copy_indexed(source, target)
            })
        })
    }

    /// Row counts and checksums of all tables.
    ///
    /// # Errors
    /// If they cannot be read.
    pub fn contents(&self) -> Result<BTreeMap<&'static str, Contents>, MemoryError> {
        self.read(|source| {
            let mut all = BTreeMap::new();
            for table in tables()? {
                let (mut rows, mut digest) = (0, Sha256::new());
                source.rows_of(table, |row| {
                    rows += 1;
                    row.iter().for_each(|value| add_value(&mut digest, value));
                    Ok(())
                })?;
                let checksum = digest.finalize();
                all.insert(table.name.as_str(), Contents { rows, checksum });
            }
            all.insert("vectors", source.vector_contents()?);
            Ok(all)
        })
    }

    /// Whether the storage is empty and was never used.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn is_unused(&self) -> Result<bool, MemoryError> {
        self.read(|source| {
            let used = "SELECT 1 FROM state WHERE born > 0 OR next_partition > 1";
            if source.has(used, &[])? {
                return Ok(false);
            }
            for table in tables()?.iter().filter(|table| !table.key.is_empty()) {
                // Storage has these rows from the start.
                let is_else = match table.name.as_str() {
                    "meta" => format!("WHERE name NOT IN ('{}')", OWN.join("', '")),
                    "partitions" => "WHERE no > 0".to_owned(),
                    _ => String::new(),
                };
                let sql = format!("SELECT 1 FROM {} {is_else} LIMIT 1", table.name);
                if source.has(&sql, &[])? {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }
}

impl MemoryReader<'_> {
    /// Passes the rows of a table to `look`, in the order of its key.
    fn rows_of(
        &self,
        table: &Table,
        mut look: impl FnMut(&[Value]) -> StoreResult<()>,
    ) -> StoreResult<()> {
        let mut sql = format!("SELECT {} FROM {}", table.names().join(", "), table.name);
        if !table.key.is_empty() {
            sql += &format!(" ORDER BY {}", table.key.join(", "));
        }
        let at_once = if table.name == "documents" {
            DOCUMENTS_AT_ONCE
        } else {
            ROWS_AT_ONCE
        };
        self.each(&sql, &[], at_once, |row| {
            let values = table.read(row)?;
            let is_own = matches!(&values[0], Value::Text(name) if OWN.contains(&name.as_str()));
            if table.name != "meta" || !is_own {
                look(&values)?;
            }
            Ok(true)
        })
    }

    fn vector_contents(&self) -> StoreResult<Contents> {
        let (mut rows, mut digest) = (0, Sha256::new());
        self.each_current(|no, _, _| {
            let found = self.connection.vectors_of(&[no])?;
            for (no, (model, values)) in found {
                rows += 1;
                digest.update(no.to_le_bytes());
                digest.update(model.to_le_bytes());
                values
                    .iter()
                    .for_each(|value| digest.update(value.to_le_bytes()));
            }
            Ok(())
        })?;
        let checksum = digest.finalize();
        Ok(Contents { rows, checksum })
    }

    /// Passes all current memories to `look` in order of number, including those without an owner.
    fn each_current(
        &self,
        mut look: impl FnMut(i64, FilterColumns, &str) -> StoreResult<()>,
    ) -> StoreResult<()> {
        let sql = "SELECT no, kind, observed, expires, content FROM memories
                   WHERE superseded_by IS NULL ORDER BY no";
        self.each(sql, &[], ROWS_AT_ONCE, |row| {
            let glance = FilterColumns {
                kind: row.get(1)?,
                observed: row.get(2)?,
                expires: row.get(3)?,
            };
            look(row.get(0)?, glance, row.text(4)?)?;
            Ok(true)
        })
    }
}

/// Rebuilds the word index, and copies the vectors with their filter properties.
fn copy_indexed(source: &MemoryReader<'_>, target: Connection<'_>) -> StoreResult<()> {
    source.each_current(|no, glance, content| {
        index::add(target, no, content)?;
        let Some((model, values)) = source.connection.vectors_of(&[no])?.remove(&no) else {
            return Ok(());
        };
        let model = Model {
            no: model,
            dimension: values.len(),
        };
        target.put_vector(no, model, glance, &values)
    })
}

/// The tables to copy, from the schema of a file. Vectors and words are not among them.
static TABLES: LazyLock<StoreResult<Vec<Table>>> = LazyLock::new(read_tables);

fn tables() -> StoreResult<&'static [Table]> {
    TABLES.as_deref().map_err(Clone::clone)
}

fn read_tables() -> StoreResult<Vec<Table>> {
    let schema = sqlite::empty_schema()?;
    let schema: Connection<'_> = &schema;
    let sql = "SELECT name FROM pragma_table_list()
        WHERE schema = 'main' AND type = 'table' AND name NOT LIKE 'sqlite_%'
        AND name NOT IN ('vectors', 'vector_blocks') ORDER BY name";
    // The number of the only row is not a column in a database.
    let columns_of = "SELECT name, type FROM pragma_table_info(?)
        WHERE (name, type) <> ('id', 'INTEGER') ORDER BY cid";
    let key_of = "SELECT name FROM pragma_table_info(?)
        WHERE pk > 0 AND (name, type) <> ('id', 'INTEGER') ORDER BY pk";
    let mut tables = Vec::new();
    for name in schema.all(sql, &[], |row| row.get::<String>(0))? {
        let columns = schema.all(columns_of, &[&name], |row| {
            let kind = match row.text(1)? {
                "INTEGER" => Kind::Whole,
                "REAL" => Kind::Real,
                "TEXT" => Kind::Text,
                "BLOB" => Kind::Bytes,
                _ => Kind::Named,
            };
            Ok((row.get(0)?, kind))
        })?;
        let key = schema.all(key_of, &[&name], |row| row.get(0))?;
        tables.push(Table { name, columns, key });
    }
    Ok(tables)
}

impl Table {
    fn read(&self, row: &Row<'_>) -> rusqlite::Result<Vec<Value>> {
        let mut values: Vec<Value> = Vec::with_capacity(self.columns.len());
        for (index, (_, kind)) in self.columns.iter().enumerate() {
            let kind = match (kind, values.first()) {
                (Kind::Named, Some(Value::Text(name))) => kind_of(name),
                (kind, _) => *kind,
            };
            let value = match kind {
                Kind::Whole => row.get::<Option<i64>>(index)?.map(Value::Integer),
                Kind::Real => row.get::<Option<f64>>(index)?.map(Value::Real),
                Kind::Text => row
                    .text_or_null(index)?
                    .map(|text| Value::Text(text.to_owned())),
                Kind::Bytes | Kind::Named => row
                    .bytes_or_null(index)?
                    .map(|bytes| Value::Blob(bytes.to_vec())),
            };
            values.push(value.unwrap_or(Value::Null));
        }
        Ok(values)
    }

    fn names(&self) -> Vec<&str> {
        self.columns.iter().map(|(name, _)| name.as_str()).collect()
    }

    fn write(&self, target: Connection<'_>, row: &[Value]) -> StoreResult<()> {
        let (table, names) = (&self.name, self.names().join(", "));
        let places = vec!["?"; row.len()].join(", ");
        let sql = if self.key.is_empty() {
            format!("UPDATE {table} SET ({names}) = ({places})")
        } else {
            format!("INSERT INTO {table} ({names}) VALUES ({places})")
        };
        let mut parameters = Vec::with_capacity(row.len());
        for ((_, kind), value) in self.columns.iter().zip(row) {
            parameters.push(match kind {
                Kind::Named => target.any(value)?,
                _ => value.to_sql()?,
            });
        }
        let parameters: Vec<&dyn ToSql> = parameters.iter().map(|it| it as &dyn ToSql).collect();
        target.run(&sql, &parameters)
    }
}

/// Type of the value with this name in `meta`.
fn kind_of(name: &str) -> Kind {
    match name {
        "embedding_model" | "tenant" => Kind::Text,
        "salt" => Kind::Bytes,
        _ => Kind::Whole,
    }
}

fn add_value(digest: &mut Sha256, value: &Value) {
    let (kind, bytes): (u8, &[u8]) = match value {
        Value::Null => (0, &[]),
        Value::Integer(whole) => {
            digest.update([1]);
            return digest.update(whole.to_le_bytes());
        }
        Value::Real(real) => {
            digest.update([2]);
            return digest.update(real.to_le_bytes());
        }
        Value::Text(text) => (3, text.as_bytes()),
        Value::Blob(bytes) => (4, bytes),
    };
    digest.update([kind]);
    digest.update((bytes.len() as u64).to_le_bytes());
    digest.update(bytes);
}
