//! `memoird doc import`: stores the documents of an export.
//!
//! Existing documents are not changed, so an import can be repeated.

use std::path::PathBuf;

use clap::Args;
use memoird_proto::v1::put_document_request::Value as Put;
use memoird_proto::v1::{Document, PutDocumentRequest, document};

use crate::connect::Target;
use crate::exit::CliError;
use crate::lines::{Lines, ParsedLine};
use crate::{clock, json, output};

/// Maximum length of a line in bytes, larger than that of any document in JSON.
const LINE_BYTES_MAX: u64 = 128 << 20;
/// Maximum number of parsed documents that wait to be stored.
const WAITING_MAX: usize = 8;

#[derive(Args)]
pub struct ImportArgs {
    /// JSON lines written by `memoird doc export`; `-` reads stdin
    file: PathBuf,
}

/// Imports the documents. Their versions restart at 1, and expired documents are skipped.
pub(super) async fn run(target: &Target, args: &ImportArgs) -> Result<(), CliError> {
    let lines = Lines::open(&args.file, LINE_BYTES_MAX)?;
    let (name, progress) = (lines.name().to_owned(), lines.progress());
    let mut documents = lines.parse(WAITING_MAX, |lines, line| {
        let document = json::read(line.text, &["namespace", "key"]);
        document.map_err(|error| lines.no_json(line.number, &error))
    });
    let (mut imported, mut skipped) = (0_u64, 0_u64);
    while let Some(ParsedLine { item, line, bytes }) = documents.recv().await.transpose()? {
        match store(target, item).await {
            Ok(true) => imported += 1,
            Ok(false) => skipped += 1,
            Err(error) => {
                // Imported documents stay: repeating the command continues here.
                output::note(&format!("{imported} were imported before"));
                return Err(error.at(&format!("{name}, line {line}")));
            }
        }
        progress.add(bytes);
        progress.show(|| format!("{imported} imported"));
    }
    drop(progress);
    output::imported(target.json, imported, skipped)
}

/// Stores a document unless it exists or has expired. Returns whether it was stored.
async fn store(target: &Target, document: Document) -> Result<bool, CliError> {
    let ttl = document.expires_at.map(|moment| clock::until(&moment));
    if ttl.is_some_and(|ttl| ttl.is_zero()) {
        return Ok(false);
    }
    let request = PutDocumentRequest {
        namespace: document.namespace,
        key: document.key,
        value: document.value.map(|value| match value {
            document::Value::Json(text) => Put::Json(text),
            document::Value::Bytes(bytes) => Put::Bytes(bytes),
        }),
        expected_version: Some(0),
        ttl: ttl.and_then(|ttl| prost_types::Duration::try_from(ttl).ok()),
        ..PutDocumentRequest::default()
    };
    match target.call(&request).await {
        Ok(_) => Ok(true),
        Err(error) if error.is_because("STALE_VERSION") => Ok(false),
        Err(error) => Err(error),
    }
}
