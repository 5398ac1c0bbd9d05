//! `memoird replay`: plays recorded conversations into sessions, message by message.
//!
//! Each message has an idempotency key made of its place, so that a replay that was
//! broken off goes on where it stopped when the same command runs again, and one
//! whose daemon was killed goes on by itself once the daemon is back.

mod input;
mod player;
mod retry;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use memoird_proto::v1::MessageFormat;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};

use super::choice::{FORMATS, one_of};
use super::exit::CliError;
use super::{ClientArgs, clock, output};
use input::Conversation;
use player::{Counts, Player, Tally};

/// What to play, and where to.
#[derive(Args)]
pub(crate) struct ReplayArgs {
    /// JSON lines of the form {"id", "messages"}; `-` reads stdin
    file: PathBuf,
    /// The provider whose message format the file has
    // Responses have items in their array, not messages that stand alone.
    #[arg(long, value_parser = one_of(&FORMATS[..2]))]
    format: MessageFormat,
    /// Put before each conversation's id to make the session's id
    #[arg(long, value_name = "PREFIX", default_value = "")]
    session_prefix: String,
    /// How long to try a message again while the daemon is away or busy
    #[arg(long, value_name = "TIME", default_value = "30s")]
    #[arg(value_parser = humantime::parse_duration)]
    retry_for: Duration,
    /// Conversations played at the same time
    #[arg(long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,
}

/// Plays all of it and prints what happened.
pub(crate) async fn run(client: &ClientArgs, args: ReplayArgs) -> Result<(), CliError> {
    let input = input::open(&args.file)?;
    let player = Arc::new(Player {
        target: client.connect.target()?,
        format: args.format,
        session_prefix: args.session_prefix,
        retry_for: args.retry_for,
        tally: Tally::default(),
        progress: input.progress(),
    });
    let started = clock::monotonic();
    let concurrency = usize::from(args.concurrency);
    let (lines, conversations) = mpsc::channel(concurrency);
    // Not awaited: it may wait for a line of stdin that nobody needs any more.
    let read = move || input::read(input, &lines);
    drop(tokio::task::spawn_blocking(read));
    play_all(&player, conversations, concurrency).await?;
    let counts = player.tally.counts();
    drop(player);
    summary(&counts, started, client.json)
}

/// Plays the conversations, so many at a time. A line that cannot be read ends the
/// replay once those before it are played; a call that fails ends it at once.
async fn play_all(
    player: &Arc<Player>,
    mut conversations: mpsc::Receiver<Result<Conversation, CliError>>,
    concurrency: usize,
) -> Result<(), CliError> {
    let mut playing = JoinSet::new();
    let mut end = None;
    loop {
        tokio::select! {
            Some(played) = playing.join_next() => finished(played)?,
            line = conversations.recv(), if end.is_none() && playing.len() < concurrency => {
                match line {
                    Some(Ok(conversation)) => {
                        playing.spawn(Arc::clone(player).play(conversation));
                    }
                    Some(Err(error)) => end = Some(Err(error)),
                    None => end = Some(Ok(())),
                }
            }
            else => return end.unwrap_or(Ok(())),
        }
    }
}

fn finished(played: Result<Result<(), CliError>, JoinError>) -> Result<(), CliError> {
    // Nobody cancels a conversation, so all that is left is a panic of its own.
    played.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

fn summary(counts: &Counts, started: Instant, json: bool) -> Result<(), CliError> {
    let seconds = clock::since(started).as_secs_f64();
    let rate = counts.messages as f64 / seconds.max(1e-9);
    if json {
        return output::print_json(&json!({
            "conversations": counts.conversations,
            "messages": counts.messages,
            "duplicates": counts.duplicates,
            "dropped_turns": counts.dropped_turns,
            "retries": counts.retries,
            "seconds": seconds,
            "messages_per_second": rate,
        }));
    }
    output::print(&output::rows([
        ("conversations", output::count(counts.conversations)),
        ("messages", output::count(counts.messages)),
        ("duplicates", output::count(counts.duplicates)),
        ("dropped turns", output::count(counts.dropped_turns)),
        ("retries", output::count(counts.retries)),
        ("seconds", format!("{seconds:.2}")),
        ("messages/s", format!("{rate:.0}")),
    ]))
}
