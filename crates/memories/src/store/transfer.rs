//! Exact copies of a tenant's memories and documents between a file and a database.
//!
//! Derived data such as the word index is rebuilt.

use std::collections::BTreeMap;

use memoird_core::sha256::Sha256;
use rusqlite::ToSql;
use rusqlite::types::Value;

use super::sql::{Connection, Row, Sql, StoreResult};
use super::vectors::{self, FilterColumns};
use super::{MemoryReader, TenantMemories, index};
use crate::MemoryError;

/// Rows per read.
const ROWS_AT_ONCE: usize = 256;
/// Names in `meta` that belong to the storage and are not copied.
///
/// Words are reindexed in the target.
const OWN: [&str; 5] = ["salt", "tenant", "words", "words_at", "words_left"];

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
use Kind::{Bytes, Named, Real, Text, Whole};

/// A table with its columns. The first `key` columns are its key.
struct Table {
    name: &'static str,
    columns: &'static [(&'static str, Kind)],
    key: usize,
}

/// Tables that have exactly one row per tenant from the start.
const ONES: [Table; 2] = [
    Table {
        name: "state",
        columns: &[
            ("memories", Whole),
            ("born", Whole),
            ("next_partition", Whole),
        ],
        key: 1,
    },
    Table {
        name: "document_state",
        columns: &[("documents", Whole), ("bytes", Whole)],
        key: 1,
    },
];

const TABLES: [Table; 15] = [
    Table {
        name: "meta",
        columns: &[("name", Text), ("value", Named)],
        key: 1,
    },
    Table {
        name: "partitions",
        columns: &[
            ("no", Whole),
            ("subject", Text),
            ("next", Whole),
            ("languages", Whole),
        ],
        key: 1,
    },
    Table {
        name: "memories",
        columns: &[
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
            ("session", Text),
            ("generation", Bytes),
            ("seqs", Bytes),
            ("tags", Bytes),
            ("content", Text),
            ("external_key", Text),
            ("metadata", Text),
        ],
        key: 1,
    },
    Table {
        name: "tags",
        columns: &[("tag", Text), ("no", Whole)],
        key: 2,
    },
    Table {
        name: "places",
        columns: &[("no", Whole), ("seq", Whole), ("said", Whole)],
        key: 2,
    },
    Table {
        name: "models",
        columns: &[("no", Whole), ("name", Text), ("dimension", Whole)],
        key: 1,
    },
    Table {
        name: "embeddings_due",
        columns: &[
            ("no", Whole),
            ("due", Whole),
            ("tries", Whole),
            ("failed", Whole),
            ("problem", Text),
        ],
        key: 1,
    },
    Table {
        name: "recall_events",
        columns: &[
            ("no", Whole),
            ("at", Whole),
            ("memory", Bytes),
            ("session", Bytes),
            ("query", Bytes),
            ("rank", Whole),
            ("score", Real),
        ],
        key: 1,
    },
    Table {
        name: "keys",
        columns: &[
            ("no", Whole),
            ("key", Bytes),
            ("content", Bytes),
            ("memory", Bytes),
            ("outcome", Whole),
            ("at", Whole),
        ],
        key: 1,
    },
    Table {
        name: "remembered",
        columns: &[("generation", Bytes), ("session", Bytes), ("seq", Whole)],
        key: 3,
    },
    Table {
        name: "cursors",
        columns: &[
            ("generation", Bytes),
            ("session", Text),
            ("owner", Whole),
            ("seq", Whole),
            ("lease", Bytes),
            ("lease_to", Whole),
            ("lease_until", Whole),
            ("failures", Whole),
            ("failed_at", Whole),
            ("not_before", Whole),
            ("touched", Whole),
        ],
        key: 1,
    },
    Table {
        name: "forgotten",
        columns: &[("subject", Bytes), ("at", Whole)],
        key: 1,
    },
    Table {
        name: "forget_jobs",
        columns: &[
            ("job", Bytes),
            ("at", Whole),
            ("born", Whole),
            ("whole", Whole),
            ("owner", Whole),
            ("memory", Bytes),
            ("kinds", Whole),
            ("tags", Bytes),
            ("after", Whole),
            ("before", Whole),
            ("position", Bytes),
            ("counts", Bytes),
            ("session", Text),
            ("generations", Bytes),
        ],
        key: 1,
    },
    Table {
        name: "extractions",
        columns: &[
            ("no", Whole),
            ("lease", Bytes),
            ("content", Bytes),
            ("generation", Bytes),
            ("owner", Whole),
            ("seq", Whole),
            ("results", Bytes),
            ("at", Whole),
        ],
        key: 1,
    },
    Table {
        name: "namespaces",
        columns: &[("no", Whole), ("path", Bytes), ("documents", Whole)],
        key: 1,
    },
];

/// Separate from [`TABLES`], because its rows may be large.
const DOCUMENTS: Table = Table {
    name: "documents",
    columns: &[
        ("no", Whole),
        ("namespace", Whole),
        ("key", Bytes),
        ("version", Whole),
        ("created", Whole),
        ("updated", Whole),
        ("expires", Whole),
        ("form", Whole),
        ("value", Bytes),
    ],
    key: 1,
};
const DOCUMENTS_AT_ONCE: usize = 16;

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
                for table in &ONES {
                    source.rows_of(table, ROWS_AT_ONCE, |row| table.update(target, row))?;
                }
                target.run("DELETE FROM partitions", &[])?;
                for table in &TABLES {
                    source.rows_of(table, ROWS_AT_ONCE, |row| table.insert(target, row))?;
                }
                let documents = &DOCUMENTS;
                source.rows_of(documents, DOCUMENTS_AT_ONCE, |row| {
                    documents.insert(target, row)
                })?;
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
            for table in ONES.iter().chain(&TABLES).chain([&DOCUMENTS]) {
                let (mut rows, mut digest) = (0, Sha256::new());
                source.rows_of(table, ROWS_AT_ONCE, |row| {
                    rows += 1;
                    row.iter().for_each(|value| add_value(&mut digest, value));
                    Ok(())
                })?;
                let checksum = digest.finalize();
                all.insert(table.name, Contents { rows, checksum });
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
            if source.has(used, &[])? || source.has_documents()? {
                return Ok(false);
            }
            for table in &TABLES {
                // Storage has these rows from the start.
                let is_else = match table.name {
                    "meta" => format!("WHERE name NOT IN ('{}')", OWN.join("', '")),
                    "partitions" => "WHERE no > 0".to_owned(),
                    _ => String::new(),
                };
                if source.has(
                    &format!("SELECT 1 FROM {} {is_else} LIMIT 1", table.name),
                    &[],
                )? {
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
        at_once: usize,
        mut look: impl FnMut(&[Value]) -> StoreResult<()>,
    ) -> StoreResult<()> {
        let names: Vec<&str> = table.columns.iter().map(|(name, _)| *name).collect();
        let sql = format!(
            "SELECT {} FROM {} ORDER BY {}",
            names.join(", "),
            table.name,
            names[..table.key].join(", ")
        );
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
            let found = vectors::vectors_of(self.connection, &[no])?;
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
        let mut vectors = vectors::vectors_of(source.connection, &[no])?;
        match vectors.remove(&no) {
            Some((model, values)) => vectors::carry_over(target, no, model, glance, &values),
            None => Ok(()),
        }
    })
}

impl Table {
    fn read(&self, row: &Row<'_>) -> rusqlite::Result<Vec<Value>> {
        let mut values: Vec<Value> = Vec::with_capacity(self.columns.len());
        for (index, (_, kind)) in self.columns.iter().enumerate() {
            let kind = match (kind, values.first()) {
                (Named, Some(Value::Text(name))) => kind_of(name),
                (kind, _) => *kind,
            };
            let value = match kind {
                Whole => row.get::<Option<i64>>(index)?.map(Value::Integer),
                Real => row.get::<Option<f64>>(index)?.map(Value::Real),
                Text => row
                    .text_or_null(index)?
                    .map(|text| Value::Text(text.to_owned())),
                Bytes | Named => row
                    .bytes_or_null(index)?
                    .map(|bytes| Value::Blob(bytes.to_vec())),
            };
            values.push(value.unwrap_or(Value::Null));
        }
        Ok(values)
    }

    fn insert(&self, target: Connection<'_>, row: &[Value]) -> StoreResult<()> {
        let names: Vec<&str> = self.columns.iter().map(|(name, _)| *name).collect();
        let places = vec!["?"; names.len()].join(", ");
        let (table, names) = (self.name, names.join(", "));
        let sql = format!("INSERT INTO {table} ({names}) VALUES ({places})");
        self.run(target, &sql, row)
    }

    fn update(&self, target: Connection<'_>, row: &[Value]) -> StoreResult<()> {
        let names = self.columns.iter().map(|(name, _)| format!("{name} = ?"));
        let names: Vec<String> = names.collect();
        let sql = format!("UPDATE {} SET {}", self.name, names.join(", "));
        self.run(target, &sql, row)
    }

    fn run(&self, target: Connection<'_>, sql: &str, row: &[Value]) -> StoreResult<()> {
        let mut parameters = Vec::with_capacity(row.len());
        for ((_, kind), value) in self.columns.iter().zip(row) {
            parameters.push(match kind {
                Named => target.any(value)?,
                _ => value.to_sql()?,
            });
        }
        let parameters: Vec<&dyn ToSql> = parameters.iter().map(|it| it as &dyn ToSql).collect();
        target.run(sql, &parameters)
    }
}

/// Type of the value with this name in `meta`.
fn kind_of(name: &str) -> Kind {
    match name {
        "embedding_model" | "tenant" => Text,
        "salt" => Bytes,
        _ => Whole,
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

#[cfg(test)]
mod tests {
    use memoird_core::ids::TenantId;
    use tempfile::TempDir;

    use super::*;
    use crate::store::{FilesOptions, MemoryStore};

    /// Tables that are rebuilt.
    const NOT_CARRIED: [&str; 3] = ["vectors", "vector_blocks", "terms"];

    #[test]
    fn every_column_of_every_table_is_carried() {
        let dir = TempDir::new().unwrap();
        let store = MemoryStore::open(dir.path(), &FilesOptions::default()).unwrap();
        let tenant = store.tenant(&TenantId::parse("acme").unwrap()).unwrap();
        let sql = "SELECT tables.name, columns.name FROM pragma_table_list() AS tables
            CROSS JOIN pragma_table_info(tables.name) AS columns
            WHERE tables.schema = 'main' AND tables.type = 'table'
            AND tables.name NOT LIKE 'sqlite_%' AND columns.name <> 'id' OR tables.name = 'memories'";
        let columns = tenant.read(|reader| {
            reader.all(sql, &[], |row| {
                Ok((row.get::<String>(0)?, row.get::<String>(1)?))
            })
        });
        let tables: Vec<&Table> = ONES.iter().chain(&TABLES).chain([&DOCUMENTS]).collect();
        let columns = columns.unwrap();
        assert!(columns.len() > 100, "{columns:?}");
        for (table, column) in columns {
            let carried = tables.iter().find(|it| it.name == table);
            let has_it =
                carried.is_some_and(|it| it.columns.iter().any(|(name, _)| *name == column));
            let is_made_anew = NOT_CARRIED.contains(&table.as_str());
            assert!(has_it || is_made_anew, "{table}.{column}");
        }
    }
}
