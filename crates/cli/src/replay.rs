//! `memoird replay`: replays recorded conversations into sessions, message by message.
//!
//! Each message has an idempotency key derived from its position. A repeated command therefore
//! continues an interrupted replay, and a replay continues once a killed daemon is back.

use std::borrow::Cow;
use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use memoird_proto::v1::{AppendRequest, AppendResponse, MessageFormat};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::connect::{ClientArgs, Target};
use super::lines::{Lines, ParsedLines};
use super::progress::Progress;
use super::{clock, output};
use crate::exit::{CliError, is_transport};

#[derive(Args)]
pub struct ReplayArgs {
    /// JSON lines of the form {"id", "messages"}, and "system" for anthropic; `-` reads stdin
    file: PathBuf,
    /// Message format of the file
    // Not `openai-responses`: the items of its array are not standalone messages.
    #[arg(long, value_parser = ["openai", "anthropic"])]
    format: String,
    /// Prefix for the ids of the sessions
    #[arg(long, value_name = "PREFIX", default_value = "")]
    session_prefix: String,
    /// How long to retry a message while the daemon is unreachable or busy
    #[arg(long, value_name = "TIME", default_value = "30s")]
    #[arg(value_parser = humantime::parse_duration)]
    retry_for: Duration,
    /// Number of conversations to replay concurrently
    #[arg(long, value_name = "N", default_value_t = 8)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: u16,
}

impl ReplayArgs {
    pub fn format(&self) -> MessageFormat {
        match &*self.format {
            "anthropic" => MessageFormat::Anthropic,
            _ => MessageFormat::Openai,
        }
    }

    /// Starts to read the file, at most `ahead` conversations in advance.
    ///
    /// The first error ends the conversations.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn conversations(&self, ahead: usize) -> Result<(Progress, Conversations), CliError> {
        let (lines, format) = (Lines::open(&self.file, LINE_BYTES_MAX)?, self.format());
        let progress = lines.progress();
        Ok((progress, read(lines, format, ahead)))
    }
}

/// Replays all conversations and prints a summary.
///
/// # Errors
/// If a line is invalid or a call fails.
pub async fn run(client: &ClientArgs, args: ReplayArgs) -> Result<(), CliError> {
    let concurrency = usize::from(args.concurrency);
    let (progress, conversations) = args.conversations(concurrency)?;
    let player = Arc::new(ReplayContext {
        target: client.target()?,
        format: args.format(),
        session_prefix: args.session_prefix,
        retry_for: args.retry_for,
        counts: Mutex::default(),
        progress,
    });
    let started = clock::monotonic();
    play_all(&player, conversations, concurrency).await?;
    let counts = *player.counts();
    drop(player);
    summary(&counts, started, client.json)
}

/// Replays at most `concurrency` conversations at a time.
///
/// An invalid line ends the replay after the conversations before it, a failed call at once.
async fn play_all(
    player: &Arc<ReplayContext>,
    mut conversations: Conversations,
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
                        playing.spawn(Arc::clone(player).play(conversation.item));
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
    // Conversations are never cancelled, so the error is a panic.
    played.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

fn summary(counts: &Counts, started: Instant, json: bool) -> Result<(), CliError> {
    let seconds = clock::since(started).as_secs_f64();
    let rate = counts.messages as f64 / seconds.max(1e-9);
    if json {
        let mut shown = json!(counts);
        shown["seconds"] = seconds.into();
        shown["messages_per_second"] = rate.into();
        return output::print_json(&shown);
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

/// Timeout of a call. Retries are safe due to the idempotency key.
const CALL_TIME_MAX: Duration = Duration::from_secs(30);
/// Distance between the messages that are checked for a known key.
///
/// The daemon remembers the newest 1,024 keys of a session. Of 1,024 consecutive messages, at least
/// one has an index divisible by this number.
const PROBE_EVERY: usize = 1_000;

/// State shared by all conversations of a replay.
struct ReplayContext {
    target: Target,
    format: MessageFormat,
    /// Prefix of the session ids.
    session_prefix: String,
    /// How long a message is retried.
    retry_for: Duration,
    counts: Mutex<Counts>,
    progress: Progress,
}

#[derive(Clone, Copy, Default, Serialize)]
struct Counts {
    /// Conversations replayed completely.
    conversations: u64,
    /// Messages that are in their sessions now, including duplicates.
    messages: u64,
    /// Messages that were in their sessions before.
    duplicates: u64,
    /// Turns dropped from a history to make room.
    dropped_turns: u64,
    /// Retried calls.
    retries: u64,
}

impl ReplayContext {
    async fn play(self: Arc<Self>, conversation: Conversation) -> Result<(), CliError> {
        let mut next = self.played_before(&conversation).await?;
        let share = conversation.bytes / conversation.messages.len().max(1) as u64;
        self.progress.add(share * next as u64);
        self.counts().messages += next as u64;
        self.counts().duplicates += next as u64;
        while next < conversation.messages.len() {
            let request = self.request(&conversation, next);
            let reply = self.append(&request).await;
            self.count(&reply.map_err(|status| self.failed(&conversation, next, status))?);
            self.progress.add(share);
            next += 1;
        }
        self.counts().conversations += 1;
        self.progress
            .add(conversation.bytes - share * conversation.messages.len() as u64);
        Ok(())
    }

    /// Returns how many messages of a long conversation an earlier replay has appended.
    ///
    /// For a short one the idempotency keys suffice, so it returns 0. Of a long one the daemon has
    /// forgotten the first keys, and would append these messages again.
    async fn played_before(&self, conversation: &Conversation) -> Result<usize, CliError> {
        if conversation.messages.len() <= PROBE_EVERY {
            return Ok(0);
        }
        for index in (0..conversation.messages.len()).step_by(PROBE_EVERY).rev() {
            // A known key returns the original result. Any other append fails with STALE_SEQ,
            // because no session has that many turns.
            let request = AppendRequest {
                expected_seq: Some(u64::MAX),
                ..self.request(conversation, index)
            };
            match self.append(&request).await {
                Ok(_) => return Ok(index + 1),
                Err(status) if has_reason(&status, "STALE_SEQ") => {}
                Err(status) => return Err(self.failed(conversation, index, status)),
            }
        }
        Ok(0)
    }

    fn session_id(&self, conversation: &Conversation) -> String {
        format!("{}{}", self.session_prefix, conversation.id)
    }

    fn request(&self, conversation: &Conversation, index: usize) -> AppendRequest {
        AppendRequest {
            session_id: self.session_id(conversation),
            messages_json: conversation.messages[index].clone(),
            format: self.format as i32,
            idempotency_key: conversation.key(index),
            ..AppendRequest::default()
        }
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        // No code panics while it holds the lock.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends a message, with retries while `Backoff` allows.
    async fn append(&self, request: &AppendRequest) -> Result<AppendResponse, Status> {
        let mut patience = Backoff::new(self.retry_for);
        loop {
            let call = timeout(CALL_TIME_MAX, self.target.try_call(request)).await;
            let status = match call {
                Ok(Ok(reply)) => return Ok(reply),
                Ok(Err(status)) => status,
                Err(_) => Status::unavailable("no answer within 30 s"),
            };
            let Some(wait) = patience.wait(&status, clock::monotonic()) else {
                return Err(status);
            };
            self.counts().retries += 1;
            self.show();
            sleep(wait).await;
        }
    }

    fn count(&self, reply: &AppendResponse) {
        let mut counts = self.counts();
        counts.messages += 1;
        if reply.duplicate {
            counts.duplicates += 1;
        } else {
            counts.dropped_turns += reply.dropped_turns;
        }
        drop(counts);
        self.show();
    }

    fn show(&self) {
        self.progress.show(|| {
            let counts = *self.counts();
            match counts.retries {
                0 => format!("{} messages", counts.messages),
                retries => format!("{} messages, {retries} retries", counts.messages),
            }
        });
    }

    fn failed(&self, conversation: &Conversation, index: usize, status: Status) -> CliError {
        let place = format!(
            "line {}, {} of session {}{}",
            conversation.line,
            conversation.name(index),
            self.session_prefix,
            conversation.id
        );
        self.target.explain(status).at(&place)
    }
}

fn has_reason(status: &Status, reason: &str) -> bool {
    status
        .get_details_error_info()
        .is_some_and(|info| info.reason == reason)
}

const WAIT_MIN: Duration = Duration::from_millis(50);
const WAIT_MAX: Duration = Duration::from_secs(2);

/// Backoff between the attempts for one message.
struct Backoff {
    retry_for: Duration,
    failing_since: Option<Instant>,
    next_wait: Duration,
}

impl Backoff {
    /// Allows retries for `retry_for` after the first failure.
    fn new(retry_for: Duration) -> Self {
        Self {
            retry_for,
            failing_since: None,
            next_wait: WAIT_MIN,
        }
    }

    /// Returns the wait before the next attempt, if there must be one.
    fn wait(&mut self, status: &Status, now: Instant) -> Option<Duration> {
        if !is_retryable(status) {
            return None;
        }
        let since = *self.failing_since.get_or_insert(now);
        let left = self.retry_for.checked_sub(now.duration_since(since))?;
        if left.is_zero() {
            return None;
        }
        let own = self.next_wait;
        self.next_wait = (own * 2).min(WAIT_MAX);
        let asked = status
            .get_details_retry_info()
            .and_then(|info| info.retry_delay);
        Some(asked.unwrap_or(own).min(left))
    }
}

fn is_retryable(status: &Status) -> bool {
    matches!(status.code(), Code::Unavailable | Code::ResourceExhausted)
        || is_transport(status)
        || status.get_details_retry_info().is_some()
}

/// Maximum length of a line in bytes.
const LINE_BYTES_MAX: u64 = 256 << 20;

pub type Conversations = ParsedLines<Conversation>;

/// One line of the file.
#[derive(Debug)]
pub struct Conversation {
    /// Line number, from 1.
    pub line: usize,
    /// Length of the line in bytes.
    bytes: u64,
    /// Id of the conversation in the file.
    id: String,
    /// Each message as an array of one, the form that an append takes.
    pub messages: Vec<String>,
    /// Whether the first message is the system prompt, not one of the file's messages.
    has_system: bool,
}

impl Conversation {
    /// Name of a message in errors. Messages are counted as in the file, from 1.
    pub fn name(&self, index: usize) -> String {
        match self.message_index(index) {
            None => "the system prompt".to_owned(),
            Some(place) => format!("message {}", place + 1),
        }
    }

    /// Idempotency key of a message.
    fn key(&self, index: usize) -> String {
        match self.message_index(index) {
            None => "replay:system".to_owned(),
            Some(place) => format!("replay:{place}"),
        }
    }

    /// Index among the file's messages. `None` for the system prompt.
    fn message_index(&self, index: usize) -> Option<usize> {
        index.checked_sub(usize::from(self.has_system))
    }
}

#[derive(Deserialize)]
struct ConversationLine<'a> {
    #[serde(borrow)]
    id: Cow<'a, str>,
    #[serde(borrow)]
    messages: Vec<&'a RawValue>,
    #[serde(borrow)]
    system: Option<&'a RawValue>,
}

/// Converts the system prompt of an Anthropic request to a message, as in other formats.
fn system_message(format: MessageFormat, parsed: &ConversationLine<'_>) -> Option<String> {
    let system = parsed.system?.get();
    let is_given = format == MessageFormat::Anthropic && !matches!(system, "null" | "\"\"" | "[]");
    is_given.then(|| format!(r#"[{{"role":"system","content":{system}}}]"#))
}

fn read(lines: Lines, format: MessageFormat, ahead: usize) -> Conversations {
    let mut ids = HashSet::new();
    lines.parse(ahead, move |lines, line| {
        let parsed: ConversationLine<'_> = serde_json::from_slice(line.text)
            .map_err(|error| lines.no_json(line.number, &error))?;
        let system = system_message(format, &parsed);
        let id = parsed.id.into_owned();
        if !ids.insert(id.clone()) {
            // Both would have the same session and the same keys.
            let problem = format!("duplicate id {id:?}");
            return Err(lines.bad(line.number, &problem));
        }
        let messages = parsed.messages.iter();
        Ok(Conversation {
            line: line.number,
            bytes: line.text.len() as u64,
            id,
            has_system: system.is_some(),
            messages: system
                .into_iter()
                .chain(messages.map(|message| format!("[{message}]")))
                .collect(),
        })
    })
}

#[cfg(test)]
mod tests {
    use tonic_types::ErrorDetails;

    use super::{clock, *};

    #[test]
    fn retry_pauses_grow_up_to_time_limit() {
        let mut patience = Backoff::new(Duration::from_secs(10));
        let gone = Status::unavailable("gone");
        let start = clock::monotonic();
        let mut now = start;
        let mut waits = Vec::new();
        while let Some(wait) = patience.wait(&gone, now) {
            waits.push(wait.as_millis());
            now += wait;
        }
        assert_eq!(
            waits,
            [50, 100, 200, 400, 800, 1_600, 2_000, 2_000, 2_000, 850]
        );
        assert_eq!(now - start, Duration::from_secs(10));
    }

    #[test]
    fn retry_info_of_daemon_is_respected() {
        let details = ErrorDetails::with_retry_info(Some(Duration::from_millis(7)));
        let busy = Status::with_error_details(Code::ResourceExhausted, "busy", details);
        let now = clock::monotonic();
        assert_eq!(
            Backoff::new(Duration::from_secs(1)).wait(&busy, now),
            Some(Duration::from_millis(7))
        );
        assert_eq!(Backoff::new(Duration::ZERO).wait(&busy, now), None);
    }

    #[test]
    fn rejection_is_not_retried() {
        let now = clock::monotonic();
        let mut patience = Backoff::new(Duration::from_secs(1));
        assert_eq!(patience.wait(&Status::invalid_argument("no"), now), None);
        assert_eq!(patience.wait(&Status::internal("no"), now), None);
        let broken = Status::from_error(Box::new(std::io::Error::other("reset")));
        assert!(patience.wait(&broken, now).is_some());
    }

    fn conversations(text: &'static str) -> Vec<Result<Conversation, CliError>> {
        conversations_in(MessageFormat::Openai, text)
    }

    fn conversations_in(
        format: MessageFormat,
        text: &'static str,
    ) -> Vec<Result<Conversation, CliError>> {
        let lines = Lines::new("f", text.as_bytes(), LINE_BYTES_MAX);
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let mut from = read(lines, format, 16);
            let mut all = Vec::new();
            while let Some(conversation) = from.recv().await {
                all.push(conversation.map(|parsed| parsed.item));
            }
            all
        })
    }

    #[test]
    fn messages_are_sent_byte_for_byte() {
        let lines = conversations(
            "\n{\"id\":\"a\\u0062\", \"x\": 1, \
             \"messages\": [ {\"b\" : 1.50,\"a\":\"\\u00e4\"} ,{}]}\r\n\n\
             {\"id\":\"c\",\"messages\":[]}",
        );
        let first = lines[0].as_ref().expect("a conversation");
        assert_eq!((first.line, first.id.as_str()), (2, "ab"));
        assert_eq!(first.messages, [r#"[{"b" : 1.50,"a":"\u00e4"}]"#, "[{}]"]);
        let second = lines[1].as_ref().expect("a conversation");
        assert_eq!((second.line, second.messages.len()), (4, 0));
        assert_eq!(lines.len(), 2);
    }

    #[test]
    fn byte_order_mark_before_first_line_is_ignored() {
        let lines = conversations("\u{feff}{\"id\":\"a\",\"messages\":[]}\n");
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0].as_ref().expect("a conversation").id, "a");
        let text = "{\"id\":\"a\",\"messages\":[]}\n\u{feff}{\"id\":\"b\",\"messages\":[]}";
        let second = conversations(text).pop().expect("an item");
        second.expect_err("a mark within a file is no JSON");
    }

    #[test]
    fn anthropic_system_prompt_comes_first() {
        let blocks = r#"[{"type":"text","text":"Be brief."}]"#;
        for system in ["\"Be brief.\"", blocks] {
            let line = format!(r#"{{"id":"a","system":{system},"messages":[{{"b":1}},{{}}]}}"#);
            let lines = conversations_in(MessageFormat::Anthropic, line.leak());
            let conversation = lines[0].as_ref().expect("a conversation");
            let first = format!(r#"[{{"role":"system","content":{system}}}]"#);
            assert_eq!(conversation.messages, [&first, r#"[{"b":1}]"#, "[{}]"]);
            // Keys and names refer to the file's messages.
            let keys = [0, 1, 2].map(|index| conversation.key(index));
            assert_eq!(keys, ["replay:system", "replay:0", "replay:1"]);
            let names = [0, 1].map(|index| conversation.name(index));
            assert_eq!(names, ["the system prompt", "message 1"]);
        }
        let without = [
            r#"{"id":"a","messages":[{}]}"#,
            r#"{"id":"a","system":null,"messages":[{}]}"#,
            r#"{"id":"a","system":"","messages":[{}]}"#,
        ];
        for line in without {
            let lines = conversations_in(MessageFormat::Anthropic, line);
            let conversation = lines[0].as_ref().expect("a conversation");
            assert_eq!(
                (conversation.messages.len(), conversation.key(0)),
                (1, "replay:0".into())
            );
        }
        // OpenAI has it among its messages.
        let lines = conversations(r#"{"id":"a","system":"Be brief.","messages":[{}]}"#);
        assert_eq!(
            lines[0].as_ref().expect("a conversation").messages,
            ["[{}]"]
        );
    }

    #[test]
    fn invalid_line_is_named_and_ends_replay() {
        let cases = [
            (
                "{\"id\":\"a\",\"messages\":[]}\n{\"id\":\"b\"}\n{}",
                "f, line 2: missing field",
            ),
            ("\n\nnot json\n", "f, line 3: expected ident at column 2"),
            ("{\"id\":7,\"messages\":[]}", "f, line 1: invalid type: "),
            (
                "{\"id\":\"a\",\"messages\":[]}\n{\"id\":\"a\",\"messages\":[]}",
                "f, line 2: duplicate id",
            ),
        ];
        for (text, expected) in cases {
            let last = conversations(text).pop().expect("an item");
            let error = last.expect_err("an error").to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
