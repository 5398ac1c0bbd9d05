//! `memoird migrate`: copies all data between a data directory and PostgreSQL.
//!
//! No daemon may use either side. The command can be interrupted at any time and repeated.

mod memories;

use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use memoird_cli::output;
use memoird_cli::progress::Progress;
use memoird_core::hex;
use memoird_memories::store::{FilesOptions, MemoryStore};
use memoird_store::SqliteTransfer;
use memoird_store::transfer::{
    PageBounds, SourceId, TableComparison, TransferSource, TransferTarget, copy_and_compare,
    identify,
};
use serde_json::json;
use tokio::runtime::Runtime;

use super::verify::check_whole;
use crate::config;
use crate::config::JournalLocation;
use crate::data_files::DataFiles;
use crate::exit::{CliError, Exit, of_store};
use crate::runtime::new_runtime;

/// Migrate all data to PostgreSQL or to a data directory, while no daemon is using it
///
/// The source is the one named by the configuration file: data_dir with long_term.dir, or
/// journal.postgres. It is not changed. Sessions, transcripts, pending hook deliveries, running
/// erasures, memories and documents are copied; then both sides are read again and compared. If the
/// command is interrupted, run it again: it resumes where it stopped, and until it is done no
/// daemon starts on the target. Finally it prints what to change in the configuration.
#[derive(Args)]
pub(crate) struct MigrateArgs {
    /// Configuration file of the source
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Target: postgres://user@host/database, or `host=… dbname=…`, or a data directory, which is
    /// encrypted if the configuration names server.data_key
    #[arg(long, value_name = "URL|DIR")]
    to: String,
    /// CA certificates of the database, in PEM; if omitted, those of the system
    #[arg(long = "database-ca", id = "database_ca", value_name = "FILE")]
    pub(super) ca: Option<PathBuf>,
    /// File with the password of the database; if omitted, MEMOIRD_POSTGRES_PASSWORD is used
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
}

/// One side of a migration.
struct Side {
    files: DataFiles,
    journal: JournalLocation,
}

pub(super) fn run(args: &MigrateArgs, json: bool) -> Result<(), CliError> {
    let (files, journal) = config::data_location(&args.config)?;
    let from = Side { files, journal };
    let to = args.target(&from.files)?;
    to.check_other(&from)?;
    // The database connections need the runtime until both sides are closed.
    let runtime = new_runtime(false)?;
    let mut source = from.open_source(&runtime)?;
    let (id, rows) = identify(&mut *source).map_err(of_store)?;
    let mut target = to.open_target(&id, &runtime)?;
    // The target is marked as unfinished from here on.
    let memories = from.open_memories(&runtime)?;
    let target_memories = to.open_memories(&runtime)?;
    let mut compared = memories::copy_and_compare(&memories, &target_memories)?;
    if !compared.iter().all(TableComparison::is_same) {
        return report(&compared, json);
    }
    let progress = Progress::new(Some(rows.saturating_mul(3)));
    let journals = copy_and_compare(
        &mut *source,
        &mut *target,
        PageBounds::default(),
        &mut |table, rows| {
            progress.add(rows);
            progress.show(|| table.name.to_owned());
        },
    )
    .map_err(of_store)?;
    compared.splice(0..0, journals);
    drop(progress);
    if !to.journal.is_outside_data_dir() {
        let dir = to.files.data_dir.display();
        let failed = CliError::io(format!("cannot change the owner of {dir}"));
        to.files.give_to_owner().map_err(failed)?;
    }
    report(&compared, json)?;
    if json {
        Ok(())
    } else {
        output::print(&to.next(args, &from))
    }
}

impl MigrateArgs {
    fn target(&self, source: &DataFiles) -> Result<Side, CliError> {
        let is_database = ["postgres://", "postgresql://"]
            .iter()
            .any(|scheme| self.to.starts_with(scheme))
            || self.to.contains("host=");
        if is_database {
            return Ok(Side {
                files: source.clone(),
                journal: self.database()?,
            });
        }
        Ok(Side {
            files: DataFiles::of_dir(Path::new(&self.to), source.key),
            journal: JournalLocation::DataDir,
        })
    }

    #[cfg(feature = "postgres")]
    fn database(&self) -> Result<JournalLocation, CliError> {
        use memoird_postgres::PgOptions;
        let invalid = |problem: String| CliError::usage(format!("--to {problem}"));
        let text = |path: &PathBuf| fs::read_to_string(path).map_err(CliError::no_input(path));
        if PgOptions::parse(&self.to, None, None)
            .map_err(invalid)?
            .has_password()
        {
            let problem = "has a password, which every process of this machine can read: use \
                --password-file or MEMOIRD_POSTGRES_PASSWORD";
            return Err(invalid(problem.to_owned()));
        }
        let password = match &self.password_file {
            Some(path) => Some(text(path)?.trim_end().to_owned()),
            None => config::variable("MEMOIRD_POSTGRES_PASSWORD"),
        };
        let ca = self.ca.as_ref().map(text).transpose()?;
        let options = PgOptions::parse(&self.to, password.as_deref(), ca.as_deref())
            .map_err(|problem| CliError::usage(format!("--database-ca: {problem}")))?;
        Ok(JournalLocation::Postgres(Box::new(options)))
    }

    #[cfg(not(feature = "postgres"))]
    fn database(&self) -> Result<JournalLocation, CliError> {
        let problem = "this memoird was built without the feature `postgres`; use a build with it";
        Err(CliError::usage(problem))
    }
}

impl Side {
    /// Rejects the directory that contains the source journal.
    fn check_other(&self, source: &Self) -> Result<(), CliError> {
        let are_files = [self, source].map(|side| !side.journal.is_outside_data_dir());
        let dir = &self.files.data_dir;
        if are_files == [true, true] && is_same(dir, &source.files.data_dir) {
            let problem = format!("--to {}: the journal is already there", dir.display());
            return Err(CliError::usage(problem));
        }
        Ok(())
    }

    /// Returns the remaining steps for the operator.
    fn next(&self, args: &MigrateArgs, source: &Self) -> String {
        let config = args.config.display();
        let (to, rest) = match &self.journal {
            JournalLocation::DataDir => {
                let dir = &self.files.data_dir;
                let whole = fs::canonicalize(dir).unwrap_or_else(|_| dir.clone());
                let mut lines = format!("data_dir: {:?}", whole.display().to_string());
                let files = &source.files;
                if files.memories_dir != DataFiles::of_dir(&files.data_dir, None).memories_dir {
                    lines += "\nlong_term:\n  dir: auto";
                }
                let rest = if source.journal.is_outside_data_dir() {
                    "and take journal.postgres out."
                } else {
                    ""
                };
                (lines, rest)
            }
            #[cfg(feature = "postgres")]
            JournalLocation::Postgres(options) => {
                let mut lines = format!("journal:\n  postgres:\n    url: {:?}", args.to);
                if options.has_password() {
                    lines += "\n    password: { file: PATH }";
                }
                if let Some(ca) = &args.ca {
                    lines += &format!("\n    ca: {:?}", ca.display().to_string());
                }
                (lines, "and leave data_dir as it is.")
            }
        };
        format!("\nIn {config} say\n\n{to}\n\n{rest}")
    }

    #[cfg_attr(not(feature = "postgres"), allow(unused_variables))]
    fn open_memories(&self, runtime: &Runtime) -> Result<MemoryStore, CliError> {
        match &self.journal {
            JournalLocation::DataDir => {
                let options = FilesOptions {
                    key: self.files.key,
                    ..FilesOptions::default()
                };
                MemoryStore::open(&self.files.memories_dir, &options).map_err(of_store)
            }
            #[cfg(feature = "postgres")]
            JournalLocation::Postgres(options) => {
                let options = (**options).clone();
                MemoryStore::in_postgres(options, runtime.handle()).map_err(of_store)
            }
        }
    }

    #[cfg_attr(not(feature = "postgres"), allow(unused_variables))]
    fn open_source(&self, runtime: &Runtime) -> Result<Box<dyn TransferSource>, CliError> {
        let files = &self.files;
        match &self.journal {
            JournalLocation::DataDir => {
                check_whole(files)?;
                if files.journal().is_none() {
                    let problem = format!("{} has no journal", files.data_dir.display());
                    return Err(CliError::failed(Exit::NoInput, problem));
                }
                let source = SqliteTransfer::source(&files.data_dir, files.key);
                Ok(Box::new(source.map_err(of_store)?))
            }
            #[cfg(feature = "postgres")]
            JournalLocation::Postgres(options) => {
                let options = (**options).clone();
                let source = memoird_postgres::PgTransfer::source(options, runtime.handle());
                Ok(Box::new(source.map_err(at("the source"))?))
            }
        }
    }

    #[cfg_attr(not(feature = "postgres"), allow(unused_variables))]
    fn open_target(
        &self,
        source: &SourceId,
        runtime: &Runtime,
    ) -> Result<Box<dyn TransferTarget>, CliError> {
        let files = &self.files;
        match &self.journal {
            JournalLocation::DataDir => {
                check_whole(files)?;
                let dir = &files.data_dir;
                let target = SqliteTransfer::target(dir, files.key, source).map_err(of_store)?;
                // An existing search index would belong to another journal.
                let failed = CliError::io(format!("cannot write to {}", dir.display()));
                files.wipe_derived().map_err(failed)?;
                Ok(Box::new(target))
            }
            #[cfg(feature = "postgres")]
            JournalLocation::Postgres(options) => {
                let options = (**options).clone();
                let handle = runtime.handle();
                let target = memoird_postgres::PgTransfer::target(options, handle, source);
                Ok(Box::new(target.map_err(at("--to"))?))
            }
        }
    }
}

fn is_same(dir: &Path, other: &Path) -> bool {
    let whole = [dir, other].map(fs::canonicalize);
    matches!(&whole, [Ok(dir), Ok(other)] if dir == other)
}

/// Adds to a database error which side it is about.
#[cfg(feature = "postgres")]
fn at(place: &str) -> impl Fn(memoird_store::StoreError) -> CliError {
    move |error| of_store(error).at(place)
}

/// Prints the row counts of both sides. A difference is a failure.
fn report(compared: &[TableComparison], is_json: bool) -> Result<(), CliError> {
    if is_json {
        let tables: Vec<_> = compared
            .iter()
            .map(|table| {
                json!({
                    "table": table.name,
                    "rows": table.source.rows,
                    "sha256": hex::encode(&table.source.sha256),
                    "target_rows": table.target.rows,
                    "target_sha256": hex::encode(&table.target.sha256),
                })
            })
            .collect();
        output::print_json(&json!({ "tables": tables }))?;
    } else {
        let rows = compared.iter().map(|table| {
            let is_same = if table.is_same() { "same" } else { "DIFFERS" };
            let [source, target] =
                [table.source, table.target].map(|side| output::count(side.rows));
            let sha256 = hex::encode(&table.source.sha256[..8]);
            [
                table.name.to_owned(),
                source,
                target,
                sha256,
                is_same.to_owned(),
            ]
        });
        let header = ["TABLE", "SOURCE", "TARGET", "SHA-256", ""];
        output::print(&output::table(&header, rows, &[1, 2], None))?;
    }
    let differing: Vec<&str> = compared
        .iter()
        .filter(|table| !table.is_same())
        .map(|table| table.name)
        .collect();
    if differing.is_empty() {
        return Ok(());
    }
    let problem = format!(
        "the target differs in {}; it stays marked as unfinished. If a daemon used the source in \
         the meantime, empty the target, and start again",
        differing.join(", ")
    );
    Err(CliError::failed(Exit::Data, problem))
}

#[cfg(test)]
mod tests {
    use memoird_store::transfer::TableDigest;

    use super::*;

    #[test]
    fn table_difference_is_named_and_fails() {
        let side = |rows| TableDigest {
            rows,
            sha256: [7; 32],
        };
        let table = |name, target| TableComparison {
            name,
            source: side(3),
            target: side(target),
        };
        assert!(report(&[table("turns", 3)], true).is_ok());
        let compared = [table("turns", 3), table("states", 2), table("outbox", 4)];
        let error = report(&compared, true).expect_err("a difference");
        assert_eq!(error.exit, Exit::Data);
        assert!(error.to_string().contains("differs in states, outbox;"));
    }

    fn target(to: &str) -> Result<Side, CliError> {
        let args = MigrateArgs {
            config: PathBuf::new(),
            to: to.to_owned(),
            ca: None,
            password_file: None,
        };
        args.target(&DataFiles::of_dir(Path::new("here"), None))
    }

    #[test]
    fn target_is_database_or_directory() {
        let dir = target("there/postgres").expect("a directory");
        assert!(matches!(dir.journal, JournalLocation::DataDir));
        assert_eq!(dir.files.data_dir, Path::new("there/postgres"));
        for to in ["postgres://a@b/c", "postgresql://b/c", "host=b dbname=c"] {
            #[cfg(feature = "postgres")]
            {
                let database = target(to).expect("a database");
                assert!(database.journal.is_outside_data_dir(), "{to}");
            }
            #[cfg(not(feature = "postgres"))]
            {
                let error = target(to).err().expect("nothing can reach it");
                assert!(error.to_string().contains("the feature `postgres`"));
            }
        }
    }
}
