//! `memoird import`: imports sessions from an export of memoird or of another product.
//!
//! An existing session is compared turn by turn. Only turns missing at its end are appended, and
//! its state is set only if it never had one, so an import can be repeated. Rejected sessions are
//! reported at the end, and do not stop the others.

mod chats;

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use clap::Args;
use memoird_proto::v1::{
    AppendRequest, GetHistoryRequest, SessionInfo, Turn, UpdateSessionRequest,
};
use prost::Message;
use serde::Deserialize;
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::sync::mpsc::Sender;

use super::connect::{ClientArgs, Target};
use super::lines::{Line, Lines, ParsedLine};
use super::{export, json, output};
use crate::exit::{CliError, Exit};

/// Maximum length of a line in bytes. Turns have up to 20 MiB by default, more in JSON.
const LINE_BYTES_MAX: u64 = 64 << 20;
/// Maximum number of turns of one call, and of their encoded bytes.
const BATCH_TURNS: usize = 256;
const BATCH_BYTES: usize = 1 << 20;
/// Maximum number of parsed lines that wait to be imported.
const WAITING_MAX: usize = 64;

#[derive(Args)]
pub struct ImportArgs {
    /// JSON lines written by `memoird export`, or the export of another product; `-` reads stdin
    file: PathBuf,
    /// Product that the export comes from
    #[arg(long, value_enum, value_name = "PRODUCT")]
    from: Option<chats::Source>,
    /// Prefix for the ids of the imported sessions
    #[arg(long, value_name = "PREFIX", default_value = "", requires = "from")]
    session_prefix: String,
}

/// A line of the file, before its parts are parsed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLine<'a> {
    #[serde(borrow)]
    session: Option<&'a RawValue>,
    #[serde(borrow)]
    state: Option<&'a RawValue>,
    session_id: Option<String>,
    #[serde(borrow)]
    turn: Option<&'a RawValue>,
}

/// Parsed content of a line.
enum Item {
    Session {
        info: SessionInfo,
        state: Option<String>,
    },
    Turn {
        session_id: String,
        turn: Turn,
    },
}

struct SessionImport {
    /// Line number of the session.
    line: usize,
    /// Whether part of it was rejected. The rest is skipped.
    is_refused: bool,
    info: SessionInfo,
    state: Option<String>,
    /// Number of turns matched or appended so far.
    turns: u64,
    /// Seq of the last of these turns. Turns before it may have been rewound.
    last_seq: u64,
    batch: Vec<Turn>,
    batch_bytes: usize,
}

struct Importer<'a> {
    target: &'a Target,
    current: Option<SessionImport>,
    sessions: u64,
    imported: u64,
    already_stored: u64,
    /// Errors of the rejected sessions.
    refused: Vec<CliError>,
}

pub(super) async fn run(client: &ClientArgs, args: ImportArgs) -> Result<(), CliError> {
    let target = client.target()?;
    let lines = Lines::open(&args.file, LINE_BYTES_MAX)?;
    let (name, progress) = (lines.name().to_owned(), lines.progress());
    let mut items = match args.from {
        None => lines.parse(WAITING_MAX, read),
        Some(source) => {
            let (to, items) = mpsc::channel(WAITING_MAX);
            // Not awaited: it may be blocked on stdin.
            let reading = move || read_chats(source, &args, &to);
            drop(tokio::task::spawn_blocking(reading));
            items
        }
    };
    let mut importer = Importer {
        target: &target,
        current: None,
        sessions: 0,
        imported: 0,
        already_stored: 0,
        refused: Vec::new(),
    };
    while let Some(read) = items.recv().await.transpose()? {
        let ParsedLine { item, line, bytes } = read;
        let taken = importer.take(item, line).await;
        taken.map_err(|error| error.at(&name))?;
        progress.add(bytes);
        progress.show(|| format!("{} turns imported", importer.imported));
    }
    importer
        .finish_session()
        .await
        .map_err(|error| error.at(&name))?;
    drop(progress);
    let Importer {
        sessions,
        imported,
        already_stored,
        refused,
        ..
    } = importer;
    if let Some(first) = refused.first() {
        let exit = first.exit;
        let why: Vec<String> = refused.iter().map(ToString::to_string).collect();
        let [sessions, refused, imported] =
            [sessions, why.len() as u64, imported].map(output::count);
        let problem = format!(
            "{refused} sessions were refused ({sessions} were not, {imported} turns imported)\n{}",
            why.join("\n")
        );
        return Err(CliError::failed(exit, problem).at(&name));
    }
    let value = json!({
        "sessions": sessions,
        "turns_imported": imported,
        "turns_there": already_stored,
    });
    let [sessions, imported, there] = [sessions, imported, already_stored].map(output::count);
    let text = format!("{sessions} sessions: {imported} turns imported, {there} there already");
    output::print_as(target.json, &value, &text)
}

/// Sends the items of another product's export, until the first error. Blocks.
fn read_chats(
    source: chats::Source,
    args: &ImportArgs,
    to: &Sender<Result<ParsedLine<Item>, CliError>>,
) {
    let mut number = 0;
    let each = |items: Vec<Item>| {
        number += 1;
        items.into_iter().all(|item| {
            let read = ParsedLine {
                item,
                line: number,
                bytes: 0,
            };
            to.blocking_send(Ok(read)).is_ok()
        })
    };
    let ended = open(&args.file)
        .map_err(CliError::no_input(&args.file))
        .and_then(|file| {
            chats::read(source, file, &args.session_prefix, each)
                .map_err(|error| CliError::failed(Exit::Data, format!("no export: {error}")))
        });
    if let Err(error) = ended {
        // Fails if the import has ended, which is fine.
        to.blocking_send(Err(error)).ok();
    }
}

fn open(path: &Path) -> io::Result<Box<dyn BufRead>> {
    if path == Path::new("-") {
        return Ok(Box::new(BufReader::new(io::stdin())));
    }
    Ok(Box::new(BufReader::new(File::open(path)?)))
}

fn read(lines: &Lines, line: &Line<'_>) -> Result<Item, CliError> {
    let bad = |error: serde_json::Error| lines.no_json(line.number, &error);
    match serde_json::from_slice(line.text).map_err(bad)? {
        RawLine {
            session: Some(session),
            state,
            session_id: None,
            turn: None,
        } => Ok(Item::Session {
            info: json::read(session.get().as_bytes(), &["session_id"]).map_err(bad)?,
            state: state
                .map(|state| state.get().to_owned())
                .filter(|state| !["null", "{}"].contains(&state.as_str())),
        }),
        RawLine {
            session: None,
            state: None,
            session_id: Some(session_id),
            turn: Some(turn),
        } => Ok(Item::Turn {
            session_id,
            turn: json::read(turn.get().as_bytes(), &["role", "parts"]).map_err(bad)?,
        }),
        _ => {
            let problem = "expected session and state, or session_id and turn";
            Err(lines.bad(line.number, problem))
        }
    }
}

impl Importer<'_> {
    async fn take(&mut self, item: Item, line: usize) -> Result<(), CliError> {
        match item {
            Item::Session { info, state } => {
                self.finish_session().await?;
                self.current = Some(SessionImport {
                    line,
                    is_refused: false,
                    info,
                    state,
                    turns: 0,
                    last_seq: 0,
                    batch: Vec::new(),
                    batch_bytes: 0,
                });
                Ok(())
            }
            Item::Turn {
                session_id,
                mut turn,
            } => {
                let current = self
                    .current
                    .as_mut()
                    .filter(|current| current.info.session_id == session_id)
                    .ok_or_else(|| {
                        let problem = format!("a turn of {session_id} precedes its session");
                        CliError::failed(Exit::Data, problem)
                    })?;
                if current.is_refused {
                    return Ok(());
                }
                turn.seq = 0;
                let bytes = turn.encoded_len();
                let is_full =
                    current.batch.len() >= BATCH_TURNS || current.batch_bytes + bytes > BATCH_BYTES;
                if is_full {
                    let flushed = self.flush().await;
                    self.unless_refused(flushed)?;
                }
                if let Some(current) = &mut self.current {
                    current.batch_bytes += bytes;
                    current.batch.push(turn);
                }
                Ok(())
            }
        }
    }

    /// Appends the batch to the session, except for turns it already has.
    async fn flush(&mut self) -> Result<(), CliError> {
        let Some(current) = &mut self.current else {
            return Ok(());
        };
        if current.batch.is_empty() {
            return Ok(());
        }
        let appended = append(self.target, current).await;
        let turns = match appended {
            Err(error) if is_stale(&error) => {
                let already_stored = skip_what_is_there(self.target, current).await?;
                self.already_stored += already_stored;
                match current.batch.len() {
                    0 => 0,
                    _ => append(self.target, current).await?,
                }
            }
            appended => appended?,
        };
        self.imported += turns;
        current.batch.clear();
        current.batch_bytes = 0;
        Ok(())
    }

    /// Completes the current session.
    async fn finish_session(&mut self) -> Result<(), CliError> {
        let finished = match self.flush().await {
            Ok(()) => self.add_state().await,
            flushed => flushed,
        };
        self.unless_refused(finished)?;
        self.current = None;
        Ok(())
    }

    /// Records a rejected session, so that the others are still imported.
    fn unless_refused(&mut self, outcome: Result<(), CliError>) -> Result<(), CliError> {
        match (outcome, &mut self.current) {
            (Err(error), Some(current)) if error.is_of_content() || error.exit == Exit::Data => {
                current.is_refused = true;
                current.batch.clear();
                let place = format!("line {}, session {}", current.line, current.info.session_id);
                self.refused.push(error.at(&place));
                Ok(())
            }
            (outcome, _) => outcome,
        }
    }

    /// Sets the state of the session, and creates the session if it has no turns.
    async fn add_state(&mut self) -> Result<(), CliError> {
        let Some(current) = self.current.as_ref().filter(|current| !current.is_refused) else {
            return Ok(());
        };
        let (mut info, state, turns) = (current.info.clone(), current.state.clone(), current.turns);
        let has_options = !info.labels.is_empty() || !info.ttl_class.is_empty() || info.keep_all;
        if turns == 0 && state.is_none() && !has_options {
            return Ok(());
        }
        self.sessions += 1;
        let session_id = std::mem::take(&mut info.session_id);
        // Otherwise the first turn has created it.
        let create = turns == 0 && is_missing(self.target, &session_id).await?;
        if state.is_none() && !create {
            return Ok(());
        }
        let options = if create { info } else { SessionInfo::default() };
        let request = UpdateSessionRequest {
            session_id,
            allow_missing: create,
            labels: options.labels,
            ttl_class: options.ttl_class,
            keep_all: options.keep_all.then_some(true),
            expected_state_version: state.is_some().then_some(0),
            state_json: state.unwrap_or_default(),
            ..UpdateSessionRequest::default()
        };
        match self.target.call(&request).await {
            // It already has a state, from an earlier import or a newer one.
            Err(error) if error.is_because("STALE_STATE_VERSION") => Ok(()),
            patched => patched.map(drop),
        }
    }
}

/// Whether no live session has this id.
async fn is_missing(target: &Target, session_id: &str) -> Result<bool, CliError> {
    match export::session(target, session_id.to_owned()).await {
        Err(error) if error.is_because("SESSION_NOT_FOUND") => Ok(true),
        session => session.map(|_| false),
    }
}

/// Appends the batch if the session ends with the turns before it. Returns their number.
async fn append(target: &Target, current: &mut SessionImport) -> Result<u64, CliError> {
    let request = AppendRequest {
        session_id: current.info.session_id.clone(),
        turns: current.batch.clone(),
        subject: current.info.subject.clone(),
        labels: current.info.labels.clone(),
        ttl_class: current.info.ttl_class.clone(),
        keep_all: current.info.keep_all.then_some(true),
        expected_seq: Some(current.last_seq),
        ..AppendRequest::default()
    };
    let appended = target.call(&request).await?;
    let turns = current.batch.len() as u64;
    current.turns += turns;
    current.last_seq = appended.last_seq;
    Ok(turns)
}

/// Removes turns that the session already has from the batch. Returns their number.
///
/// Fails if the session has different turns: it is another conversation.
async fn skip_what_is_there(target: &Target, current: &mut SessionImport) -> Result<u64, CliError> {
    let mut already_stored = 0;
    let mut after_seq = current.last_seq;
    while !current.batch.is_empty() {
        let request = GetHistoryRequest {
            session_id: current.info.session_id.clone(),
            after_seq,
            limit: u32::try_from(current.batch.len()).unwrap_or(u32::MAX),
            ..GetHistoryRequest::default()
        };
        let (turns, next) = export::history(target, request).await?;
        for mut turn in turns {
            let seq = std::mem::take(&mut turn.seq);
            if current.batch.first() != Some(&turn) {
                let problem = format!(
                    "session {} has different turns from seq {seq} on; end it first",
                    current.info.session_id
                );
                return Err(CliError::failed(Exit::Data, problem));
            }
            current.batch.remove(0);
            current.turns += 1;
            current.last_seq = seq;
            already_stored += 1;
        }
        if next == 0 {
            break;
        }
        after_seq = next;
    }
    Ok(already_stored)
}

fn is_stale(error: &CliError) -> bool {
    error.is_because("STALE_SEQ")
}
