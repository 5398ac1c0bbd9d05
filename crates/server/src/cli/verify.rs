//! `memoird verify`: checks the integrity of a daemon's data.
//!
//! A running daemon checks its own data, also in a database. A directory is checked here.

use std::path::{Path, PathBuf};

use clap::Args;
use memoird_cli::connect::ClientArgs;
use memoird_cli::list::{self, Count, ListColumn, Size, Sum, Text};
use memoird_cli::output;
use memoird_proto::v1::{VerifyRequest, VerifyResponse};
use memoird_store::DataKey;

use super::encrypt::DataKeyArgs;
use crate::data_files::DataFiles;
use crate::exit::{CliError, Exit, of_store};
use crate::wire::to;

#[derive(Args)]
pub(crate) struct VerifyArgs {
    /// Data directory or backup to check; if omitted, the running daemon checks its own data (role
    /// admin)
    pub(super) dir: Option<PathBuf>,
    #[command(flatten)]
    pub(super) key: DataKeyArgs,
}

/// Checks a directory. A daemon may use it at the same time.
pub(super) fn directory(dir: &Path, key: &DataKeyArgs, json: bool) -> Result<(), CliError> {
    report(&check(dir, key.read()?)?, json)
}

/// Lets the daemon check its data.
pub(super) async fn daemon(client: &ClientArgs) -> Result<(), CliError> {
    let target = client.target()?;
    let reply = target.call(&VerifyRequest {}).await?;
    report(&reply, client.json)
}

/// Rejects a directory with another key, or with an interrupted restore or encryption.
pub(super) fn check_whole(files: &DataFiles) -> Result<(), CliError> {
    check_restored(files)?;
    files.check_key().map_err(of_store)
}

pub(super) fn check_restored(files: &DataFiles) -> Result<(), CliError> {
    if !files.is_restoring() {
        return Ok(());
    }
    let dir = files.data_dir.display();
    let problem = format!("{dir} contains an unfinished restore; run `memoird restore` again");
    Err(CliError::failed(Exit::Data, problem))
}

pub(super) fn check(dir: &Path, key: Option<DataKey>) -> Result<VerifyResponse, CliError> {
    let files = DataFiles::of_dir(dir, key);
    check_whole(&files)?;
    let checks = files
        .verify()
        .map_err(|error| CliError::failed(Exit::Io, error.to_string()))?;
    if checks.is_empty() {
        let problem = format!(
            "{} contains neither a journal nor memories; a journal in a database is checked by \
             its daemon: omit the directory",
            dir.display()
        );
        return Err(CliError::failed(Exit::NoInput, problem));
    }
    Ok(to::verified(&checks))
}

/// Prints the result. Damage is a failure.
pub(super) fn report(reply: &VerifyResponse, json: bool) -> Result<(), CliError> {
    output::show(json, reply, described)?;
    let damaged = reply.files.iter().filter(|file| file.damages_total > 0);
    let paths: Vec<&str> = damaged.map(|file| &*file.path).collect();
    if paths.is_empty() {
        return Ok(());
    }
    let problem = format!("damaged: {}", paths.join(", "));
    Err(CliError::failed(Exit::Data, problem))
}

/// Formats the table of all files, followed by one line per damage.
fn described(reply: &VerifyResponse) -> String {
    if reply.files.is_empty() {
        return "there is nothing to check: this daemon has neither journal nor memories"
            .to_owned();
    }
    let mut text = list::table(FILES, &reply.files);
    for file in &reply.files {
        for damage in &file.damages {
            let (path, damage) = (output::printable(&file.path), output::flat(damage, 1_000));
            text.push_str(&format!("\n{path}: {damage}"));
        }
        let more = file.damages_total - file.damages.len() as u64;
        if more > 0 {
            let (path, more) = (output::printable(&file.path), output::count(more));
            text.push_str(&format!("\n{path}: and {more} more"));
        }
    }
    text
}

const FILES: &[ListColumn] = &[
    ("FILE OR DATABASE", "path", Text),
    ("SIZE", "bytes", Size),
    ("TURNS", "", Sum(&TURNS)),
    ("UNCHECKED", "turns_unchecked", Count),
    ("DAMAGED TURNS", "turns_damaged", Count),
    ("DAMAGES", "damages_total", Count),
];

const TURNS: [&str; 3] = ["turns_whole", "turns_unchecked", "turns_damaged"];

#[cfg(test)]
mod tests {
    use memoird_proto::v1::VerifiedFile;

    use super::*;

    #[test]
    fn damage_is_listed_below_table_and_fails() {
        let whole_file = VerifiedFile {
            path: "a/journal.db".into(),
            bytes: 2_048,
            turns_whole: 1_998,
            turns_unchecked: 2,
            ..VerifiedFile::default()
        };
        let damaged = VerifiedFile {
            turns_damaged: 1,
            damages: vec!["turn 3 of generation\nX".into()],
            damages_total: 5,
            path: "b.db".into(),
            ..VerifiedFile::default()
        };
        let reply = VerifyResponse {
            files: vec![whole_file.clone(), damaged],
        };
        let text = described(&reply);
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[1].contains("2.0 KiB") && lines[1].contains("2,000"),
            "{text}"
        );
        assert_eq!(lines[3], "b.db: turn 3 of generation X");
        assert_eq!(lines[4], "b.db: and 4 more");
        let error = report(&reply, true).expect_err("damage");
        assert_eq!(
            (error.exit, &*error.to_string()),
            (Exit::Data, "damaged: b.db")
        );
        let nothing = described(&VerifyResponse::default());
        assert!(nothing.starts_with("there is nothing"), "{nothing}");
        let whole = VerifyResponse {
            files: vec![whole_file],
        };
        assert!(report(&whole, true).is_ok());
    }
}
