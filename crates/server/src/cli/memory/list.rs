//! Memories as they are kept: listed, shown, exported.

use std::io::{self, Write};
use std::time::SystemTime;

use clap::Args;
use comfy_table::{Row, Table};
use memoird_proto::v1::{GetMemoryRequest, ListMemoriesRequest, Memory, MemoryKind};
use serde_json::{Value, json};

use super::json;
use super::words::{Kind, kind_name};
use crate::cli::connect::Target;
use crate::cli::exit::CliError;
use crate::cli::json::time;
use crate::cli::sessions::{since, until};
use crate::cli::{clock, output};

/// As many as one page may have.
const PAGE_MAX: usize = 1_000;
/// Where no terminal says how wide it is, a content ends here.
const CONTENT_CHARS_MAX: usize = 400;

/// Which memories to list.
#[derive(Args)]
pub(crate) struct ListArgs {
    /// Only of this subject [default: all]
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    /// Only of this kind [default: any]
    #[arg(long, value_enum)]
    kind: Option<Kind>,
    /// Only those with this label
    #[arg(long)]
    tag: Option<String>,
    /// Also those that were superseded or have expired
    #[arg(long)]
    history: bool,
    /// At most so many; 0: all of them
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
}

/// Which memories to export.
#[derive(Args)]
pub(crate) struct ExportArgs {
    /// Only of this subject [default: all]
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
}

/// Pages of memories, ordered by id.
struct Pages<'a> {
    target: &'a Target,
    request: ListMemoriesRequest,
    is_over: bool,
}

impl<'a> Pages<'a> {
    fn new(target: &'a Target, request: ListMemoriesRequest) -> Self {
        Self {
            target,
            request,
            is_over: false,
        }
    }

    /// The next ones, at most so many; `None` after the last.
    async fn next(&mut self, max: usize) -> Result<Option<Vec<Memory>>, CliError> {
        if self.is_over {
            return Ok(None);
        }
        self.request.page_size = u32::try_from(max.min(PAGE_MAX)).unwrap_or(u32::MAX);
        let reply = self
            .target
            .memories()
            .list_memories(self.request.clone())
            .await;
        let page = reply.map_err(|e| self.target.explain(e))?.into_inner();
        self.is_over = page.next_page_token.is_empty();
        self.request.page_token = page.next_page_token;
        Ok(Some(page.memories))
    }
}

pub(super) async fn list(target: &Target, args: ListArgs, json: bool) -> Result<(), CliError> {
    let limit = if args.limit == 0 {
        usize::MAX
    } else {
        args.limit
    };
    let mut pages = Pages::new(
        target,
        ListMemoriesRequest {
            subject: args.subject.unwrap_or_default(),
            kind: args.kind.map_or(0, |kind| MemoryKind::from(kind).into()),
            tag: args.tag.unwrap_or_default(),
            include_history: args.history,
            ..ListMemoriesRequest::default()
        },
    );
    let mut found: Vec<Memory> = Vec::new();
    while found.len() < limit
        && let Some(page) = pages.next(limit - found.len()).await?
    {
        found.extend(page);
    }
    found.truncate(limit);
    if json {
        let memories: Vec<Value> = found.iter().map(json::memory).collect();
        return output::print_json(&json!({ "memories": memories }));
    }
    let now = clock::wall();
    let header = ["ID", "SUBJECT", "KIND", "AGE", "", "CONTENT"];
    let row = |memory: &Memory| {
        [
            output::printable(&memory.id),
            output::printable(&memory.subject),
            kind_name(memory.kind),
            since(memory.observed_at.as_ref(), now),
            state(memory, now).to_owned(),
            content(memory),
        ]
    };
    output::print_table(&table(header, found.iter().map(row)))
}

pub(super) async fn show(target: &Target, id: String, json: bool) -> Result<(), CliError> {
    let request = GetMemoryRequest {
        id,
        subject: String::new(),
    };
    let reply = target
        .memories()
        .get_memory(request)
        .await
        .map_err(|e| target.explain(e))?;
    let memory = reply.into_inner().memory.unwrap_or_default();
    print(&memory, json)
}

/// Writes one memory.
pub(super) fn print(memory: &Memory, json: bool) -> Result<(), CliError> {
    match json {
        true => output::print_json(&json!({ "memory": json::memory(memory) })),
        false => output::print_table(&described(memory)),
    }
}

/// Page by page: of a tenant there may be more than fit into memory.
pub(super) async fn export(target: &Target, args: ExportArgs) -> Result<(), CliError> {
    let mut pages = Pages::new(
        target,
        ListMemoriesRequest {
            subject: args.subject.unwrap_or_default(),
            include_history: true,
            ..ListMemoriesRequest::default()
        },
    );
    while let Some(page) = pages.next(PAGE_MAX).await? {
        let mut lines = String::new();
        for memory in &page {
            lines.push_str(&json::memory(memory).to_string());
            lines.push('\n');
        }
        let mut stdout = io::stdout().lock();
        stdout
            .write_all(lines.as_bytes())
            .map_err(CliError::of_output)?;
        stdout.flush().map_err(CliError::of_output)?;
    }
    Ok(())
}

/// A table whose last column is what memories say, a line each.
pub(super) fn table<const N: usize>(
    header: [&str; N],
    rows: impl Iterator<Item = [String; N]>,
) -> Table {
    let mut table = output::plain_table();
    table.set_header(header);
    for row in rows {
        let mut row = Row::from(row);
        row.max_height(1);
        table.add_row(row);
    }
    output::flush_left(&mut table);
    output::fit_terminal(&mut table);
    table
}

/// What a memory says, on one line.
pub(super) fn content(memory: &Memory) -> String {
    output::one_line(&memory.content, CONTENT_CHARS_MAX)
}

/// What a list says of a memory beside its age, in a word.
fn state(memory: &Memory, now: SystemTime) -> &'static str {
    let expires = memory
        .expires_at
        .and_then(|at| SystemTime::try_from(at).ok());
    match () {
        () if !memory.superseded_by.is_empty() => "superseded",
        () if expires.is_some_and(|expires| expires <= now) => "expired",
        () if memory.pinned => "pinned",
        () => "",
    }
}

fn described(memory: &Memory) -> Table {
    let now = clock::wall();
    let whole = json::memory(memory);
    let mut table = output::plain_table();
    let mut row = |name: &str, value: String| {
        table.add_row([name, &value]);
    };
    row("id", output::printable(&memory.id));
    row("subject", output::printable(&memory.subject));
    row("kind", kind_name(memory.kind));
    row("content", output::printable(&memory.content));
    let word = |name: &str, prefix| {
        let name = whole.get(name).and_then(Value::as_str);
        name.map(|name| crate::cli::json::short_name(name, prefix))
    };
    let seen = word("visibility", "VISIBILITY_").unwrap_or_default();
    row("visibility", seen);
    if let Some(points) = word("polarity", "POLARITY_") {
        row("polarity", points);
    }
    if !memory.tags.is_empty() {
        row("tags", output::printable(&memory.tags.join(", ")));
    }
    row("importance", memory.importance.to_string());
    if let Some(from) = &memory.source {
        let seqs: Vec<String> = from.seqs.iter().map(ToString::to_string).collect();
        let source = format!(
            "{}, {}, turns {}",
            from.session_id,
            from.generation,
            seqs.join(" ")
        );
        row("source", output::printable(&source));
    }
    for (name, at) in [
        ("observed", &memory.observed_at),
        ("created", &memory.created_at),
        ("updated", &memory.updated_at),
    ] {
        let moment = time(at.as_ref());
        let moment = moment.as_str().unwrap_or("-");
        row(name, format!("{moment}, {} ago", since(at.as_ref(), now)));
    }
    if memory.expires_at.is_some() {
        row("expires in", until(memory.expires_at.as_ref(), now));
    }
    if !memory.superseded_by.is_empty() {
        row("superseded by", output::printable(&memory.superseded_by));
    }
    row("said again", output::count(memory.reinforced));
    let recalled = match &memory.last_recalled_at {
        None => output::count(memory.recall_count),
        at => format!(
            "{}, {} ago",
            output::count(memory.recall_count),
            since(at.as_ref(), now)
        ),
    };
    row("recalled", recalled);
    row("pinned", pin(memory).to_owned());
    row(
        "made by",
        word("origin", "MEMORY_ORIGIN_").unwrap_or_else(|| "bot".to_owned()),
    );
    output::flush_left(&mut table);
    table
}

fn pin(memory: &Memory) -> &'static str {
    match (memory.pinned, memory.pinned_by_dream) {
        (false, _) => "no",
        (true, false) => "yes",
        (true, true) => "by a dream sweep",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost_types::Timestamp;

    #[test]
    fn a_memory_is_described_on_lines_that_move_no_cursor() {
        let memory = Memory {
            subject: "ann\u{1b}[2J".into(),
            content: "likes tea\nand cake".into(),
            kind: MemoryKind::User.into(),
            pinned: true,
            ..Memory::default()
        };
        let text = described(&memory).trim_fmt();
        assert!(
            !text.contains('\u{1b}') && text.contains("likes tea\\nand cake"),
            "{text}"
        );
        assert!(
            text.contains("kind        user") && text.contains("made by     bot"),
            "{text}"
        );
    }

    #[test]
    fn a_list_says_of_a_memory_what_matters_most() {
        let now = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(10);
        let pinned = Memory {
            pinned: true,
            ..Memory::default()
        };
        let expires_at = Some(Timestamp {
            seconds: 10,
            nanos: 0,
        });
        let expired = Memory {
            expires_at,
            ..pinned.clone()
        };
        let old = Memory {
            superseded_by: "x".into(),
            ..expired.clone()
        };
        let states = [&Memory::default(), &pinned, &expired, &old].map(|of| state(of, now));
        assert_eq!(states, ["", "pinned", "expired", "superseded"]);
    }
}
