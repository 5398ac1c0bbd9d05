//! Memories as they are kept: listed, shown, exported.

use clap::Args;
use jiff::Timestamp;
use memoird_proto::v1::{GetMemoryRequest, ListMemoriesRequest, Memory, MemoryKind};
use serde_json::json;

use super::words::{self, kind_name};
use crate::cli::choice::{number, one_of};
use crate::cli::connect::Target;
use crate::cli::exit::CliError;
use crate::cli::json::short_name;
use crate::cli::pages::{PAGE_MAX, Page, Pages, Reply};
use crate::cli::{clock, json, output};

/// Where no terminal says how wide it is, a content ends here.
const CONTENT_CHARS_MAX: usize = 400;

/// Which memories to list.
#[derive(Args)]
pub(crate) struct ListArgs {
    /// Only of this subject [default: all]
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    /// Only of this kind [default: any]
    #[arg(long, value_parser = one_of(words::KINDS))]
    kind: Option<MemoryKind>,
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

pub(super) async fn list(target: &Target, args: ListArgs, json: bool) -> Result<(), CliError> {
    let request = ListMemoriesRequest {
        subject: args.subject.unwrap_or_default(),
        kind: number(args.kind),
        tag: args.tag.unwrap_or_default(),
        include_history: args.history,
        ..ListMemoriesRequest::default()
    };
    let found = Pages::of(listing(target, request))
        .first(args.limit)
        .await?;
    if json {
        return output::print_json(&json!({ "memories": json::all(&found) }));
    }
    let now = clock::now();
    let header = ["ID", "SUBJECT", "KIND", "AGE", "", "CONTENT"];
    let row = |memory: &Memory| {
        [
            output::printable(&memory.id),
            output::printable(&memory.subject),
            kind_name(memory.kind),
            clock::age(memory.observed_at.as_ref(), now),
            state(memory, now).to_owned(),
            content(memory),
        ]
    };
    output::print(&output::fitted_table(Some(header), found.iter().map(row)))
}

/// The call that gives a page of memories, ordered by id.
fn listing(
    target: &Target,
    request: ListMemoriesRequest,
) -> impl AsyncFnMut(Page) -> Reply<Memory> {
    async move |page: Page| {
        let request = ListMemoriesRequest {
            page_size: page.size,
            page_token: page.token,
            ..request.clone()
        };
        let reply = target.done(target.memories().list_memories(request).await)?;
        Ok((reply.memories, reply.next_page_token))
    }
}

pub(super) async fn show(target: &Target, id: String, json: bool) -> Result<(), CliError> {
    let request = GetMemoryRequest {
        id,
        subject: String::new(),
    };
    let reply = target.done(target.memories().get_memory(request).await)?;
    output::show(json, &reply, |reply| {
        described(&reply.memory.clone().unwrap_or_default())
    })
}

/// Page by page: of a tenant there may be more than fit into memory.
pub(super) async fn export(target: &Target, args: ExportArgs) -> Result<(), CliError> {
    let request = ListMemoriesRequest {
        subject: args.subject.unwrap_or_default(),
        include_history: true,
        ..ListMemoriesRequest::default()
    };
    let mut pages = Pages::of(listing(target, request));
    while let Some(page) = pages.next(PAGE_MAX).await? {
        let lines = page.iter().map(|memory| format!("{}\n", json::of(memory)));
        let lines: String = lines.collect();
        if !lines.is_empty() {
            output::print(&lines)?;
        }
    }
    Ok(())
}

/// What a memory says, on one line.
pub(super) fn content(memory: &Memory) -> String {
    output::one_line(&memory.content, CONTENT_CHARS_MAX)
}

/// What a list says of a memory beside its age, in a word.
fn state(memory: &Memory, now: Timestamp) -> &'static str {
    match () {
        () if !memory.superseded_by.is_empty() => "superseded",
        () if clock::is_past(memory.expires_at.as_ref(), now) => "expired",
        () if memory.pinned => "pinned",
        () => "",
    }
}

/// A memory, value by value.
pub(super) fn described(memory: &Memory) -> String {
    let now = clock::now();
    let mut rows = vec![
        ("id", output::printable(&memory.id)),
        ("subject", output::printable(&memory.subject)),
        ("kind", kind_name(memory.kind)),
        ("content", output::printable(&memory.content)),
        ("visibility", short_name("Visibility", memory.visibility)),
    ];
    if memory.polarity != 0 {
        rows.push(("polarity", short_name("Polarity", memory.polarity)));
    }
    if !memory.tags.is_empty() {
        rows.push(("tags", output::printable(&memory.tags.join(", "))));
    }
    rows.push(("importance", memory.importance.to_string()));
    if let Some(from) = &memory.source {
        let seqs: Vec<String> = from.seqs.iter().map(ToString::to_string).collect();
        let seqs = seqs.join(" ");
        let source = format!("{}, {}, turns {seqs}", from.session_id, from.generation);
        rows.push(("source", output::printable(&source)));
    }
    for (name, at) in [
        ("observed", &memory.observed_at),
        ("created", &memory.created_at),
        ("updated", &memory.updated_at),
    ] {
        let moment = at.as_ref().map_or("-".to_owned(), ToString::to_string);
        let age = clock::age(at.as_ref(), now);
        rows.push((name, format!("{moment}, {age} ago")));
    }
    if let Some(expires_at) = &memory.expires_at {
        rows.push(("expires in", clock::left(Some(expires_at), now)));
    }
    if !memory.superseded_by.is_empty() {
        rows.push(("superseded by", output::printable(&memory.superseded_by)));
    }
    rows.push(("said again", output::count(memory.reinforced)));
    let mut recalled = output::count(memory.recall_count);
    if let Some(last) = &memory.last_recalled_at {
        recalled += &format!(", {} ago", clock::age(Some(last), now));
    }
    rows.push(("recalled", recalled));
    rows.push(("pinned", pin(memory).to_owned()));
    let maker = match memory.origin {
        0 => "bot".to_owned(),
        origin => short_name("MemoryOrigin", origin),
    };
    rows.push(("made by", maker));
    output::rows(rows)
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
    use prost_types::Timestamp as Moment;

    #[test]
    fn a_memory_is_described_on_lines_that_move_no_cursor() {
        let memory = Memory {
            subject: "ann\u{1b}[2J".into(),
            content: "likes tea\nand cake".into(),
            kind: MemoryKind::User.into(),
            pinned: true,
            ..Memory::default()
        };
        let text = described(&memory);
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
        let now = Timestamp::new(10, 0).expect("a moment");
        let pinned = Memory {
            pinned: true,
            ..Memory::default()
        };
        let expires_at = Some(Moment {
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
