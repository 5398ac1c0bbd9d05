//! `memoird doc`: the documents of the key's tenant.

mod import;

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use memoird_proto::v1::put_document_request::Value as Put;
use memoird_proto::v1::{
    DeleteDocumentRequest, DeleteDocumentsRequest, Document, GetDocumentRequest,
    ListDocumentsRequest, ListNamespacesRequest, Namespace, PutDocumentRequest, document,
};
use serde::Serialize;

use super::choice::request;
use super::connect::{ClientArgs, Target};
use super::lines::read_stdin;
use super::list::{Age, Count, ListColumn, Size, Text, Until, with};
use super::{json, output};
use crate::exit::{CliError, Exit};
use import::ImportArgs;

#[derive(Subcommand)]
#[command(
    after_help = "A namespace is written as a path, such as users/ann; a slash in one of \
                        its parts as \\/, and a backslash as \\\\."
)]
pub enum DocCommand {
    /// Print the value of a document
    Get {
        /// Namespace of the document, such as users/ann
        namespace: NamespaceArg,
        /// Key of the document
        key: String,
    },
    /// Store a document
    Put(PutArgs),
    /// List documents by namespace and key
    List(ListArgs),
    /// List namespaces that have documents
    Namespaces {
        /// Namespace to list below [default: all]
        namespace: Option<NamespaceArg>,
        /// Only the first N parts of each namespace
        #[arg(long, value_name = "N", default_value_t = 0, hide_default_value = true)]
        depth: u32,
        /// Maximum number to print; 0 prints all
        #[arg(long, value_name = "N", default_value_t = 100)]
        limit: usize,
    },
    /// Delete a document, or all documents in and below a namespace
    Delete(DeleteArgs),
    /// Write documents to stdout as JSON lines
    Export {
        /// Namespace to export, with those below it [default: all]
        namespace: Option<NamespaceArg>,
    },
    /// Import documents from `memoird doc export`; existing documents are not changed
    Import(ImportArgs),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NamespaceArg(Vec<String>);

#[derive(Args)]
pub struct PutArgs {
    /// Namespace of the document, such as users/ann
    namespace: NamespaceArg,
    /// Key of the document
    key: String,
    /// Value as JSON; `-` reads stdin
    #[arg(required_unless_present = "file")]
    value: Option<String>,
    /// Read the value from a file
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    file: Option<PathBuf>,
    /// Store the value as bytes instead of JSON
    #[arg(long)]
    bytes: bool,
    /// Fail unless the document has this version; 0 means it must not exist
    #[arg(long, value_name = "N")]
    expected_version: Option<u64>,
    /// Time to live, such as 12h [default: until deleted]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    ttl: Option<Duration>,
}

#[derive(Args, Serialize)]
pub struct ListArgs {
    /// Namespace to list, with those below it [default: all]
    #[arg(value_name = "NAMESPACE")]
    namespace_prefix: Option<NamespaceArg>,
    /// Only documents directly in this namespace
    #[arg(long = "exact", requires = "namespace_prefix")]
    exact_namespace: bool,
    /// Only keys with this prefix
    #[arg(long = "prefix", value_name = "TEXT")]
    key_prefix: Option<String>,
    /// Only this key and those after it
    #[arg(long = "from", value_name = "KEY")]
    key_from: Option<String>,
    /// Only keys before this one
    #[arg(long = "before", value_name = "KEY")]
    key_before: Option<String>,
    /// Only documents with matching fields, such as '{"kind": "note", "stars": {"$gte": 3}}'
    #[arg(long = "filter", value_name = "JSON")]
    filter_json: Option<String>,
    /// List in descending order
    #[arg(long)]
    descending: bool,
    /// Maximum number to print; 0 prints all
    #[arg(long, value_name = "N", default_value_t = 100)]
    #[serde(skip)]
    limit: usize,
}

#[derive(Args)]
pub struct DeleteArgs {
    /// Namespace of the document, such as users/ann
    namespace: NamespaceArg,
    /// Key of the document
    #[arg(required_unless_present = "all")]
    key: Option<String>,
    /// Fail unless the document has this version
    #[arg(long, value_name = "N", requires = "key")]
    expected_version: Option<u64>,
    /// Delete all documents in and below the namespace
    #[arg(long, conflicts_with = "key")]
    all: bool,
    /// With --all: also clear the deleted data from the disk's pages now
    #[arg(long, requires = "all")]
    erase: bool,
    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

impl std::str::FromStr for NamespaceArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = vec![String::new()];
        let mut characters = text.chars();
        while let Some(character) = characters.next() {
            let character = match character {
                '/' => {
                    parts.push(String::new());
                    continue;
                }
                '\\' => characters.next().ok_or("ends with a backslash")?,
                character => character,
            };
            if let Some(part) = parts.last_mut() {
                part.push(character);
            }
        }
        Ok(Self(parts))
    }
}

/// Formats a namespace as it can be typed.
fn path(parts: &[String]) -> String {
    let parts = parts
        .iter()
        .map(|part| part.replace('\\', "\\\\").replace('/', "\\/"));
    output::printable(&parts.collect::<Vec<_>>().join("/"))
}

pub(crate) async fn run(client: &ClientArgs, command: DocCommand) -> Result<(), CliError> {
    let target = client.target()?;
    match command {
        DocCommand::Get { namespace, key } => get(&target, namespace, key).await,
        DocCommand::Put(args) => put(&target, args).await,
        DocCommand::List(args) => {
            let request = ListDocumentsRequest {
                include_values: Some(target.json),
                ..request(&args)?
            };
            target.list(&request, args.limit, DOCUMENTS).await
        }
        DocCommand::Namespaces {
            namespace,
            depth,
            limit,
        } => {
            let request = ListNamespacesRequest {
                prefix: namespace.unwrap_or_default().0,
                max_depth: depth,
                ..ListNamespacesRequest::default()
            };
            target.list(&request, limit, NAMESPACES).await
        }
        DocCommand::Delete(args) => delete(&target, args).await,
        DocCommand::Export { namespace } => {
            let request = ListDocumentsRequest {
                namespace_prefix: namespace.unwrap_or_default().0,
                ..ListDocumentsRequest::default()
            };
            target.export(&request).await
        }
        DocCommand::Import(args) => import::run(&target, &args).await,
    }
}

async fn get(target: &Target, namespace: NamespaceArg, key: String) -> Result<(), CliError> {
    let request = GetDocumentRequest {
        namespace: namespace.0,
        key,
        ttl: None,
    };
    let reply = target.call(&request).await?;
    if target.json {
        return output::print_json(&json::of(&reply));
    }
    match reply.document.unwrap_or_default().value {
        Some(document::Value::Json(text)) => output::print(&text),
        Some(document::Value::Bytes(bytes)) => {
            let mut stdout = io::stdout().lock();
            let written = stdout.write_all(&bytes).and_then(|()| stdout.flush());
            written.map_err(CliError::of_output)
        }
        None => Ok(()),
    }
}

async fn put(target: &Target, args: PutArgs) -> Result<(), CliError> {
    let (value, file, is_bytes) = (args.value, args.file, args.bytes);
    let bytes_read = output::blocking(move || read_value(value, file)).await?;
    let value = if is_bytes {
        Put::Bytes(bytes_read.into())
    } else {
        Put::Json(String::from_utf8(bytes_read).map_err(|_| {
            CliError::failed(Exit::Data, "the value is not text; use --bytes to store it")
        })?)
    };
    let ttl = args.ttl.map(prost_types::Duration::try_from).transpose();
    let request = PutDocumentRequest {
        namespace: args.namespace.0,
        key: args.key,
        value: Some(value),
        expected_version: args.expected_version,
        ttl: ttl.map_err(|_| CliError::usage("--ttl is too long"))?,
        ..PutDocumentRequest::default()
    };
    target
        .show(&request, |reply| {
            let stored = reply.document.clone().unwrap_or_default();
            format!("version {}", output::count(stored.version))
        })
        .await
}

/// Returns the value of the argument, a file or stdin. Blocks.
fn read_value(value: Option<String>, file: Option<PathBuf>) -> Result<Vec<u8>, CliError> {
    match (value, file) {
        (_, Some(path)) => std::fs::read(&path).map_err(CliError::no_input(&path)),
        (Some(text), None) if text != "-" => Ok(text.into_bytes()),
        _ => read_stdin(VALUE_BYTES_MAX, "a document"),
    }
}

/// Maximum size of a document in bytes.
const VALUE_BYTES_MAX: u64 = 64 << 20;

const DOCUMENTS: &[ListColumn] = &[
    (
        "NAMESPACE",
        "",
        with!(|document: &Document| path(&document.namespace)),
    ),
    ("KEY", "key", Text),
    ("VERSION", "version", Count),
    ("SIZE", "size", Size),
    ("AGE", "updated_at", Age),
    ("EXPIRES IN", "expires_at", Until),
];

const NAMESPACES: &[ListColumn] = &[(
    "",
    "",
    with!(|namespace: &Namespace| path(&namespace.parts)),
)];

async fn delete(target: &Target, args: DeleteArgs) -> Result<(), CliError> {
    let namespace = args.namespace.0;
    if let Some(key) = args.key {
        let request = DeleteDocumentRequest {
            namespace,
            key,
            expected_version: args.expected_version,
        };
        let gone = |deleted| if deleted { "deleted" } else { "not there" };
        return target
            .show(&request, |reply| gone(reply.deleted).to_owned())
            .await;
    }
    let path = path(&namespace);
    let note = format!("All documents in {path} and below it would go.");
    if !output::confirm(args.yes, &note, "Delete them?", "use --yes").await? {
        return Ok(());
    }
    let request = DeleteDocumentsRequest {
        namespace_prefix: namespace,
        erase: args.erase,
        ..DeleteDocumentsRequest::default()
    };
    let reply = target.call(&request).await?;
    output::show(target.json, &reply, |reply| {
        format!("deleted {}", output::count(reply.deleted))
    })?;
    if args.erase && !reply.erased && !target.json {
        output::note("note: gone from all results; the pages on disk are cleared later");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn printed_namespace_parses_back() {
        for parts in [vec!["a"], vec!["a", "b c", ""], vec!["", "x/y", "\\", "ä"]] {
            let parts: Vec<String> = parts.into_iter().map(str::to_owned).collect();
            assert_eq!(path(&parts).parse(), Ok(NamespaceArg(parts)));
        }
        assert!("a\\".parse::<NamespaceArg>().is_err());
    }
}
