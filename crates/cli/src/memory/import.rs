//! `memoird memory import`: imports memories in batches.
//!
//! A batch is parsed before it is sent, so an invalid line prevents all of it from being stored.

use std::path::PathBuf;

use clap::Args;
use memoird_proto::v1::{ImportMemoriesRequest, Memory};
use prost::Message;

use crate::connect::Target;
use crate::exit::CliError;
use crate::lines::{Line, Lines, ParsedLines};
use crate::progress::Progress;
use crate::{json, output};

/// Fields that every line must have. An export always writes them.
const REQUIRED: [&str; 5] = ["id", "subject", "kind", "content", "importance"];
/// Maximum length of a line in bytes.
const LINE_BYTES_MAX: u64 = 4 << 20;
/// Maximum number of memories in a call, and the encoded size at which it is full.
const BATCH_MAX: usize = 500;
const BATCH_BYTES_MAX: usize = 1 << 20;
/// Maximum number of parsed memories that wait to be stored.
const WAITING_MAX: usize = 64;

#[derive(Args)]
pub struct ImportArgs {
    /// JSON lines written by `memoird memory export`; `-` reads stdin
    file: PathBuf,
}

/// The memories of one call.
#[derive(Debug, Default)]
struct Batch {
    memories: Vec<Memory>,
    /// Numbers of the first and the last line.
    lines: (usize, usize),
    /// Length of these lines in bytes, without blank ones.
    text_bytes: u64,
    bytes: usize,
}

pub(super) async fn run(target: &Target, args: &ImportArgs) -> Result<(), CliError> {
    let lines = Lines::open(&args.file, LINE_BYTES_MAX)?;
    let (name, progress) = (lines.name().to_owned(), lines.progress());
    let memories = lines.parse(WAITING_MAX, read);
    let (imported, skipped) = store(target, memories, &name, &progress).await?;
    drop(progress);
    output::imported(target.json, imported, skipped)
}

/// Stores batches until one has an invalid line.
///
/// Returns how many memories were new, and how many existed already.
async fn store(
    target: &Target,
    mut memories: ParsedLines<Memory>,
    name: &str,
    progress: &Progress,
) -> Result<(u64, u64), CliError> {
    let (mut imported, mut skipped) = (0, 0);
    while let Some(batch) = Batch::next(&mut memories).await.transpose() {
        let located = |error: CliError| {
            if imported + skipped > 0 {
                // Stored memories stay: repeating the command continues here.
                output::note(&format!(
                    "{imported} were imported before, {skipped} already existed"
                ));
            }
            error
        };
        let batch = batch.map_err(located)?;
        let (first, last) = batch.lines;
        let request = ImportMemoriesRequest {
            memories: batch.memories,
        };
        let outcome = target.call(&request).await;
        let place = format!("{name}, lines {first} to {last}");
        let reply = outcome.map_err(|error| located(error.at(&place)))?;
        imported += reply.imported;
        skipped += reply.skipped;
        progress.add(batch.text_bytes);
        progress.show(|| format!("{imported} imported"));
    }
    Ok((imported, skipped))
}

fn read(lines: &Lines, line: &Line<'_>) -> Result<Memory, CliError> {
    json::read(line.text, &REQUIRED).map_err(|error| lines.no_json(line.number, &error))
}

impl Batch {
    /// Collects the memories for one call. `None` at the end.
    async fn next(memories: &mut ParsedLines<Memory>) -> Result<Option<Self>, CliError> {
        let mut batch = Self::default();
        while batch.memories.len() < BATCH_MAX && batch.bytes < BATCH_BYTES_MAX {
            let Some(read) = memories.recv().await.transpose()? else {
                break;
            };
            if batch.memories.is_empty() {
                batch.lines.0 = read.line;
            }
            batch.lines.1 = read.line;
            batch.text_bytes += read.bytes;
            batch.bytes += read.item.encoded_len();
            batch.memories.push(read.item);
        }
        Ok(Some(batch).filter(|batch| !batch.memories.is_empty()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All batches, up to the one with an invalid line.
    async fn batches(text: String) -> Vec<Result<Batch, CliError>> {
        let lines = Lines::new("f", io(text), LINE_BYTES_MAX);
        let mut memories = lines.parse(WAITING_MAX, read);
        let mut batches = Vec::new();
        while let Some(batch) = Batch::next(&mut memories).await.transpose() {
            let is_last = batch.is_err();
            batches.push(batch);
            if is_last {
                break;
            }
        }
        batches
    }

    fn io(text: String) -> std::io::Cursor<String> {
        std::io::Cursor::new(text)
    }

    fn line(content: &str) -> String {
        let exported = Memory {
            id: "x".into(),
            kind: 1,
            content: content.into(),
            ..Memory::default()
        };
        format!("{}\n", json::of(&exported))
    }

    #[tokio::test]
    async fn batches_are_limited_by_count_and_bytes() {
        let many = batches(line("a").repeat(1_001)).await;
        let sizes: Vec<_> = many
            .iter()
            .map(|batch| batch.as_ref().map(|b| b.memories.len()).ok())
            .collect();
        assert_eq!(sizes, [Some(500), Some(500), Some(1)]);
        let places: Vec<_> = many.iter().flatten().map(|batch| batch.lines).collect();
        assert_eq!(places, [(1, 500), (501, 1_000), (1_001, 1_001)]);
        let large = batches(line(&"x".repeat(600 << 10)).repeat(3)).await;
        let sizes: Vec<_> = large
            .iter()
            .flatten()
            .map(|batch| batch.memories.len())
            .collect();
        assert_eq!(sizes, [2, 1]);
        assert!(batches("\n \n".to_owned()).await.is_empty());
    }

    #[tokio::test]
    async fn batch_with_invalid_line_is_not_sent() {
        let text = format!(
            "{}\n{}oops\n{}",
            line("a").repeat(500),
            line("b"),
            line("c")
        );
        let all = batches(text).await;
        assert_eq!(all.len(), 2, "the first batch, and what is wrong");
        let error = all[1].as_ref().expect_err("a bad line").to_string();
        assert!(error.starts_with("f, line 503: "), "{error}");
    }
}
