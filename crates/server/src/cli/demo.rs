//! `memoird demo`: a 30-second tour on a private daemon, through the public API only.
//!
//! All data shown is what the daemon returned.

use std::collections::HashMap;
use std::io;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use memoird_cli::connect::{ClientArgs, Target};
use memoird_cli::json::short_name;
use memoird_cli::watch::Columns;
use memoird_cli::{clock, daemon, output, transcript, watch};
use memoird_core::ids::{SessionId, TenantId};
use memoird_hooks::git::{Checkpoints, GitConfig, LogEntry};
use memoird_proto::v1::event::Kind as EventKind;
use memoird_proto::v1::part::Part as Kind;
use memoird_proto::v1::{
    AppendRequest, AppendResponse, EndSessionRequest, Event, GetHistoryRequest,
    ListSessionsRequest, MessageFormat, ReloadConfigRequest, Role, SessionInfo, Turn,
    WatchEventsRequest, WatchEventsResponse,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};
use tonic::Streaming;

use super::private::{self, Daemon};
use crate::exit::{CliError, Exit, of_git};

#[derive(Args)]
pub(crate) struct DemoArgs {
    /// Skip the pauses for reading
    #[arg(long)]
    fast: bool,
    /// Keep the daemon's directory, with its journal and the checkpoints
    #[arg(long)]
    keep: bool,
}

pub(crate) async fn run(client: &ClientArgs, args: DemoArgs) -> Result<(), CliError> {
    if client.connect.addr.is_some() || client.json {
        let problem = "the demo is for people, and starts a daemon of its own: leave --addr and \
                       --json out";
        return Err(CliError::usage(problem));
    }
    run_demo(&args).await
}

const TRIP: &str = "telegram:4711";
const DEPLOY: &str = "slack:C024";
const SHOP: &str = "web:guest-7";
const NEWCOMER: &str = "whatsapp:31";

const HISTORY_TURNS: u32 = 6;
const SESSIONS: u32 = 3;
/// Initial TTL, long enough that nothing expires before its step.
const LONG_TTL: &str = "24h";
/// TTL of the step that shows an expiry.
const SHORT_TTL: &str = "3s";
/// Interval at which the sessions that must not expire append turns.
const TALK_EVERY: Duration = Duration::from_millis(500);
/// Lines of a checkpoint to show.
const LINES_SHOWN: usize = 24;
const COMMITS_SHOWN: usize = 10;

struct Demo<'a> {
    printer: Printer,
    dir: &'a Path,
    bot: Bot,
    chats: Chats,
    feed: EventFeed,
    /// Generations that have ended.
    ended: Vec<String>,
}

/// Starts a daemon, runs all steps, and removes the daemon.
async fn run_demo(args: &DemoArgs) -> Result<(), CliError> {
    let printer = Printer::new(args.fast);
    let version = env!("CARGO_PKG_VERSION");
    printer.title(&format!("memoird {version}, on a private daemon"))?;
    printer.heading("1  A daemon starts")?;
    let mut temp_dir = private::temp_dir("memoird-demo-", &std::env::temp_dir())?;
    temp_dir.disable_cleanup(args.keep);
    let started = clock::monotonic();
    private::write_config(temp_dir.path(), &yaml(temp_dir.path(), LONG_TTL))?;
    let mut daemon = in_time("the start of the daemon", Daemon::start(temp_dir)).await?;
    let took = clock::since(started);
    let target = daemon.target()?;
    let ready = format!("{} is ready after {} ms", target.addr(), took.as_millis());
    printer.say(&format!("{ready}. Its data is in"))?;
    printer.show(&daemon.dir().display().to_string())?;
    printer.say(&format!(
        "A chat keeps its first turn and {HISTORY_TURNS} more. At most {SESSIONS} chats are live. A \
         hook\ncommits each chat that ends to git."
    ))?;
    printer.pause(2.0).await;
    let dir = daemon.dir().to_owned();
    let mut story = Demo {
        printer,
        dir: &dir,
        bot: Bot {
            target: target.clone(),
        },
        chats: Chats::read(),
        feed: EventFeed::open(target, printer).await?,
        ended: Vec::new(),
    };
    story.slide().await?;
    story.evict().await?;
    story.expire().await?;
    story.commit().await?;
    story.whats_next(args.keep)?;
    daemon.stop().await
}

impl Demo<'_> {
    /// Shows how a history drops its oldest turns.
    async fn slide(&mut self) -> Result<(), CliError> {
        let (printer, bot) = (self.printer, &self.bot);
        printer.heading("2  A chat with tool calls: its history drops the oldest turns first")?;
        printer.say("[1], the first user turn, is never dropped; 2─3 is a call and its result.")?;
        printer.show(&format!("{:<20}{:<20}{}", "appended", "history", "dropped"))?;
        let mut before = Vec::new();
        for said in self.chats.trip.clone() {
            let reply = bot.say(TRIP, said).await?;
            let after = bot.history(TRIP).await?;
            let new_turns = after.iter().filter(|turn| turn.seq >= reply.first_seq);
            let new = named(&new_turns.cloned().collect::<Vec<_>>());
            let left = left(&before, &after);
            printer.show(&format!("{new:<20}{:<20}{left}", drawn(&after)))?;
            printer.pause(0.4).await;
            before = after;
        }
        printer.say("The window for the next model call:")?;
        // Hide the times: all turns are new.
        before.iter_mut().for_each(|turn| turn.timestamp = None);
        printer.show(&transcript::table(&before))?;
        printer.pause(3.0).await;
        Ok(())
    }

    /// Shows how a fourth session evicts the longest idle one.
    async fn evict(&mut self) -> Result<(), CliError> {
        let (printer, bot, feed) = (self.printer, &self.bot, &mut self.feed);
        printer.heading("3  A chat too many: the longest idle one is evicted")?;
        bot.say(DEPLOY, self.chats.deploy.clone()).await?;
        bot.say(SHOP, self.chats.shipping.clone()).await?;
        let reply = bot.say(TRIP, self.chats.thanks.clone()).await?;
        let generation = reply.session.unwrap_or_default().generation;
        feed.catch_up(&generation, reply.last_seq).await?;
        let live = names(&bot.sessions().await?);
        printer.say(&format!("live, most recently used first: {live}"))?;
        printer.say(&format!("{NEWCOMER} sends its first message:"))?;
        printer.pause(1.0).await;
        let reply = bot.say(NEWCOMER, self.chats.greeting.clone()).await?;
        let generation = reply.session.unwrap_or_default().generation;
        feed.until("created", &generation).await?;
        let is_evicted = |event: &Event| event.word() == "evicted";
        let evicted = in_time("an eviction", feed.seek(&SHOWN, is_evicted)).await?;
        feed.until("hook_delivered", &evicted.generation).await?;
        printer.say(&format!("live: {}", names(&bot.sessions().await?)))?;
        self.ended.push(evicted.generation);
        self.printer.pause(2.0).await;
        Ok(())
    }

    /// Shows how an idle session expires while active ones do not.
    async fn expire(&mut self) -> Result<(), CliError> {
        let (printer, bot, feed) = (self.printer, &self.bot, &mut self.feed);
        printer.heading("4  An idle chat expires")?;
        printer.say(&format!(
            "`session_ttl: {SHORT_TTL}` is configured, and the file reloaded:"
        ))?;
        for session in [TRIP, NEWCOMER, SHOP] {
            bot.say(session, user("One moment, please.")).await?;
        }
        reload(bot, printer, self.dir, SHORT_TTL).await?;
        let live = bot.sessions().await?;
        let silent = live
            .into_iter()
            .find(|info| info.session_id == SHOP)
            .unwrap_or_default();
        printer.say(&format!("{SHOP} stays silent, while the other two go on:"))?;
        let is_it = |it: &Event| it.word() == "expired" && it.generation == silent.generation;
        let waiting = async {
            loop {
                match timeout(TALK_EVERY, feed.seek(&SHOWN, is_it)).await {
                    Ok(found) => return found,
                    Err(_) => {
                        bot.say(TRIP, user("Still there.")).await?;
                        bot.say(NEWCOMER, user("Still there.")).await?;
                    }
                }
            }
        };
        let expired = in_time("the expiry of a chat", waiting).await?;
        let idle = clock::seconds_between(silent.last_access.as_ref(), expired.time.as_ref())
            .unwrap_or(f64::NAN);
        printer.say(&format!(
            "It was idle for {idle:.1} s. `session_ttl: {LONG_TTL}` is restored:"
        ))?;
        // Restore the TTL at once: the others must not expire while the user reads.
        reload(bot, printer, self.dir, LONG_TTL).await?;
        feed.until("hook_delivered", &expired.generation).await?;
        self.ended.push(expired.generation);
        self.printer.pause(2.0).await;
        Ok(())
    }

    /// Shows the checkpoints that the hook wrote.
    async fn commit(&mut self) -> Result<(), CliError> {
        let (printer, bot, feed) = (self.printer, &self.bot, &mut self.feed);
        printer.heading("5  Ended chats are in git")?;
        printer.say(&format!("The bot ends {TRIP}:"))?;
        bot.say(TRIP, user("That is all, bye.")).await?;
        let ended = bot.end(TRIP).await?;
        feed.until("ended", &ended.generation).await?;
        self.ended.push(ended.generation.clone());
        for generation in &self.ended {
            feed.until("hook_delivered", generation).await?;
        }
        printer.pause(1.0).await;
        let git = GitConfig {
            dir: checkpoints_in(self.dir),
            ..GitConfig::default()
        };
        let checkpoints = Checkpoints::open(&git, &TenantId::default_tenant()).map_err(of_git)?;
        printer.say("git log --stat:")?;
        for commit in checkpoints.log(COMMITS_SHOWN).map_err(of_git)? {
            printer.show(&described(&commit))?;
        }
        printer.pause(2.0).await;
        let found = checkpoints.list(1, Some(&id(TRIP)?)).map_err(of_git)?;
        let markdown = checkpoints.show(&id(TRIP)?, None).map_err(of_git)?;
        let (Some(entry), Some(markdown)) = (found.first(), markdown) else {
            let problem = format!("the checkpoint of {TRIP} is not in {}", git.dir.display());
            return Err(CliError::failed(Exit::NoInput, problem));
        };
        printer.say(&format!("{}:", entry.path))?;
        printer.show(&beginning(&markdown))?;
        printer.pause(3.0).await;
        Ok(())
    }

    /// Lists commands to try next.
    fn whats_next(&self, keep: bool) -> Result<(), CliError> {
        self.printer.heading("6  What to try next")?;
        let mut commands = vec![
            "memoird serve                  # your own daemon, on 127.0.0.1:7717".to_owned(),
            "memoird watch                  # its events, as they happen".to_owned(),
            "memoird config print-default   # every setting, explained".to_owned(),
        ];
        if keep {
            let dir = checkpoints_in(self.dir);
            let shown = dir.display();
            commands.push(format!("memoird checkpoints list --dir {shown}"));
            commands.push(format!("git --git-dir {shown}/default.git log --stat"));
        } else {
            commands.push(
                "memoird demo --keep            # keeps the folder: see the log in git".to_owned(),
            );
        }
        self.printer.show(&commands.join("\n"))
    }
}

/// Changes the TTL and reloads the configuration.
async fn reload(bot: &Bot, printer: Printer, dir: &Path, ttl: &str) -> Result<(), CliError> {
    private::write_config(dir, &yaml(dir, ttl))?;
    printer.show(&daemon::reload_text(
        &bot.target.call(&ReloadConfigRequest {}).await?,
    ))
}

/// Configuration of the daemon, without compaction, which would hide that turns are dropped.
fn yaml(dir: &Path, session_ttl: &str) -> String {
    format!(
        "version: 1\n\
         data_dir: {}\n\
         server: {{ listen: \"127.0.0.1:0\", admin_listen: \"127.0.0.1:0\", \
         allow_without_keys: true }}\n\
         short_term:\n  \
           max_history_turns: {HISTORY_TURNS}\n  \
           max_sessions: {SESSIONS}\n  \
           session_ttl: {session_ttl}\n\
         compaction: {{ enabled: false }}\n\
         hooks:\n  \
           - {{ name: checkpoint, git: {{ dir: {} }} }}\n",
        private::quoted(&private::data_in(dir)),
        private::quoted(&checkpoints_in(dir)),
    )
}

fn checkpoints_in(dir: &Path) -> PathBuf {
    dir.join("checkpoints")
}

fn names(live: &[SessionInfo]) -> String {
    let names: Vec<&str> = live.iter().map(|info| &*info.session_id).collect();
    names.join(", ")
}

fn id(session: &str) -> Result<SessionId, CliError> {
    SessionId::parse(session).map_err(|error| CliError::usage(error.to_string()))
}

/// Formats a commit like `git log --stat`, in fewer lines.
fn described(commit: &LogEntry) -> String {
    let id: String = commit.id.chars().take(7).collect();
    let mut text = format!("{id} {}", output::printable(&commit.subject));
    for file in &commit.files {
        text.push_str("\n  ");
        text.push_str(&output::printable(file));
    }
    text
}

fn beginning(markdown: &str) -> String {
    let mut lines: Vec<&str> = markdown.lines().take(LINES_SHOWN).collect();
    let more = markdown.lines().count() - lines.len();
    let note = format!("… {more} more lines");
    if more > 0 {
        lines.push(&note);
    }
    lines.join("\n")
}

/// A client of the private daemon.
struct Bot {
    target: Target,
}

/// Messages of one append, in OpenAI's format.
type AppendMessages = Vec<Value>;

#[derive(Deserialize)]
struct Chats {
    /// A conversation long enough to lose turns: two tool calls among ten turns.
    trip: Vec<AppendMessages>,
    /// The message that almost ends it.
    thanks: AppendMessages,
    /// A short conversation with a tool call.
    deploy: AppendMessages,
    /// A short conversation without one.
    shipping: AppendMessages,
    /// The message of the session that exceeds the limit.
    greeting: AppendMessages,
}

impl Bot {
    async fn say(&self, session: &str, said: AppendMessages) -> Result<AppendResponse, CliError> {
        let request = AppendRequest {
            session_id: session.to_owned(),
            messages_json: Value::Array(said).to_string(),
            format: MessageFormat::Openai.into(),
            ..AppendRequest::default()
        };
        self.target.call(&request).await
    }

    /// Returns the history, as the next model call gets it.
    async fn history(&self, session: &str) -> Result<Vec<Turn>, CliError> {
        let request = GetHistoryRequest {
            session_id: session.to_owned(),
            ..GetHistoryRequest::default()
        };
        Ok(self.target.call(&request).await?.turns)
    }

    /// Returns the live sessions, most recently used first.
    async fn sessions(&self) -> Result<Vec<SessionInfo>, CliError> {
        let request = ListSessionsRequest::default();
        Ok(self.target.call(&request).await?.sessions)
    }

    async fn end(&self, session: &str) -> Result<SessionInfo, CliError> {
        let request = EndSessionRequest {
            session_id: session.to_owned(),
            ..EndSessionRequest::default()
        };
        Ok(self
            .target
            .call(&request)
            .await?
            .session
            .unwrap_or_default())
    }
}

impl Chats {
    /// Reads the conversations from a file next to this one.
    fn read() -> Self {
        serde_json::from_str(include_str!("demo/chats.json"))
            .expect("a test reads the file as well")
    }
}

fn user(text: &str) -> AppendMessages {
    vec![json!({ "role": "user", "content": text })]
}

/// Timeout of a step, generous enough for a busy machine.
const STEP_TIME_MAX: Duration = Duration::from_secs(30);

/// Kinds of events that are shown.
const SHOWN: [&str; 6] = [
    "created",
    "expired",
    "evicted",
    "ended",
    "hook_delivered",
    "hook_failed",
];

/// The event stream, and the events received so far: some dozens.
struct EventFeed {
    target: Target,
    printer: Printer,
    stream: Streaming<WatchEventsResponse>,
    received: Vec<Event>,
}

impl EventFeed {
    async fn open(target: Target, printer: Printer) -> Result<Self, CliError> {
        let request = WatchEventsRequest::default();
        let stream = target.done(target.sessions().watch_events(request).await)?;
        Ok(Self {
            target,
            printer,
            stream,
            received: Vec::new(),
        })
    }

    /// Waits for a matching event, unless it has already arrived.
    ///
    /// Shows events of these `kinds` that arrive in the meantime. Cancel-safe: no event is lost.
    async fn seek(
        &mut self,
        kinds: &[&str],
        is_it: impl Fn(&Event) -> bool,
    ) -> Result<Event, CliError> {
        if let Some(event) = self.received.iter().find(|event| is_it(event)) {
            return Ok(event.clone());
        }
        loop {
            let message = self
                .stream
                .message()
                .await
                .map_err(|status| self.target.explain(status))?;
            let problem = "the daemon ended the stream of events";
            let received = message.ok_or_else(|| CliError::failed(Exit::Unavailable, problem))?;
            let is_wanted = |event: &Event| kinds.contains(&event.word());
            if received.event.as_ref().is_none_or(is_wanted) {
                self.printer
                    .show(&watch::line(&received, Columns::default()))?;
            }
            if let Some(event) = received.event {
                self.received.push(event.clone());
                if is_it(&event) {
                    return Ok(event);
                }
            }
        }
    }

    /// Waits for an event of this kind for a generation.
    async fn until(&mut self, kind: &str, generation: &str) -> Result<Event, CliError> {
        let is_it = |event: &Event| event.word() == kind && event.generation == generation;
        in_time(kind, self.seek(&SHOWN, is_it)).await
    }

    /// Reads events without showing them, up to the append of this turn.
    async fn catch_up(&mut self, generation: &str, seq: u64) -> Result<(), CliError> {
        let is_it = |event: &Event| {
            let appended = match &event.kind {
                Some(EventKind::Appended(appended)) => appended.last_seq,
                _ => 0,
            };
            event.generation == generation && appended == seq
        };
        let append = in_time("the word of an append", self.seek(&[], is_it));
        append.await.map(drop)
    }
}

/// Waits with a timeout.
async fn in_time<T>(
    what: &str,
    waiting: impl Future<Output = Result<T, CliError>>,
) -> Result<T, CliError> {
    let late = |_| {
        let within = STEP_TIME_MAX.as_secs();
        let problem = format!("{what} did not happen within {within} s");
        CliError::failed(Exit::Unavailable, problem)
    };
    timeout(STEP_TIME_MAX, waiting).await.map_err(late)?
}

/// Draws the seqs of turns, oldest first: `[1] 4 5 6─7 8`.
fn drawn(turns: &[Turn]) -> String {
    let anchor = turns
        .iter()
        .find(|turn| turn.role() == Role::User)
        .map(|turn| turn.seq);
    let mut calls = HashMap::new();
    let mut line = String::new();
    for turn in turns {
        let uses = kinds(turn).filter_map(|kind| match kind {
            Kind::ToolUse(call) => Some((call.id.as_str(), turn.seq)),
            _ => None,
        });
        calls.extend(uses);
        let is_answer = kinds(turn).any(
            |kind| matches!(kind, Kind::ToolResult(it) if calls.contains_key(&*it.tool_use_id)),
        );
        if !line.is_empty() {
            line.push(if is_answer { '─' } else { ' ' });
        }
        if anchor == Some(turn.seq) {
            line.push_str(&format!("[{}]", turn.seq));
        } else {
            line.push_str(&turn.seq.to_string());
        }
    }
    line
}

/// Draws the turns that left a history.
fn left(before: &[Turn], after: &[Turn]) -> String {
    let gone: Vec<Turn> = before
        .iter()
        .filter(|turn| after.iter().all(|kept| kept.seq != turn.seq))
        .cloned()
        .collect();
    drawn(&gone)
}

/// Names turns, in a word each: `2 call, 3 result`.
fn named(turns: &[Turn]) -> String {
    let names = turns.iter().map(|turn| {
        let what = kinds(turn).find_map(|kind| match kind {
            Kind::ToolUse(_) => Some("call".to_owned()),
            Kind::ToolResult(_) => Some("result".to_owned()),
            _ => None,
        });
        format!(
            "{} {}",
            turn.seq,
            what.unwrap_or_else(|| short_name("Role", turn.role))
        )
    });
    names.collect::<Vec<_>>().join(", ")
}

fn kinds(turn: &Turn) -> impl Iterator<Item = &Kind> {
    turn.parts.iter().filter_map(|part| part.part.as_ref())
}

/// Prints the demo to stdout.
#[derive(Clone, Copy)]
struct Printer {
    has_styles: bool,
    has_pauses: bool,
}

impl Printer {
    /// `fast` skips the pauses. Styles are used only on a terminal.
    fn new(fast: bool) -> Self {
        Self {
            has_styles: io::stdout().is_terminal(),
            has_pauses: !fast,
        }
    }

    fn title(&self, text: &str) -> Result<(), CliError> {
        output::print(text)
    }

    fn heading(&self, title: &str) -> Result<(), CliError> {
        output::print("")?;
        self.styled("1", title)
    }

    fn say(&self, text: &str) -> Result<(), CliError> {
        text.lines()
            .try_for_each(|line| output::print(format!("  {line}").trim_end()))
    }

    /// Prints text of the daemon or of a file, in a different style.
    fn show(&self, text: &str) -> Result<(), CliError> {
        text.lines()
            .try_for_each(|line| self.styled("36", format!("    {line}").trim_end()))
    }

    /// Waits to let the user read.
    async fn pause(&self, seconds: f64) {
        if self.has_pauses {
            sleep(Duration::from_secs_f64(seconds)).await;
        }
    }

    fn styled(&self, style: &str, text: &str) -> Result<(), CliError> {
        if self.has_styles && !text.is_empty() {
            output::print(&format!("\x1b[{style}m{text}\x1b[0m"))
        } else {
            output::print(text)
        }
    }
}

#[cfg(test)]
mod tests {
    use memoird_proto::v1::{Part, ToolResult, ToolUse};

    use super::*;

    #[test]
    fn long_text_is_truncated_at_the_end() {
        assert_eq!(beginning("a\nb\n"), "a\nb");
        let long = "x\n".repeat(LINES_SHOWN + 5);
        assert!(beginning(&long).ends_with("x\n… 5 more lines"));
    }

    #[test]
    fn demo_configuration_is_valid() {
        let yaml = yaml(Path::new("/tmp/demo"), "3s");
        assert!(
            yaml.contains("short_term:\n  max_history_turns: 6\n  max_sessions: 3\n"),
            "{yaml}"
        );
        let hook = "hooks:\n  - { name: checkpoint, git: { dir: \"/tmp/demo/checkpoints\" } }\n";
        assert!(yaml.ends_with(hook), "{yaml}");
    }

    #[test]
    fn demo_chats_parse() {
        assert_eq!(Chats::read().trip.len(), 8);
    }

    fn turn(seq: u64, role: Role, kind: Kind) -> Turn {
        let part = Part {
            part: Some(kind),
            extra_json: String::new(),
        };
        Turn {
            seq,
            role: role.into(),
            parts: vec![part],
            ..Turn::default()
        }
    }

    fn says(seq: u64, role: Role) -> Turn {
        turn(seq, role, Kind::Text("words".into()))
    }

    fn call(seq: u64, id: &str) -> Turn {
        let call = ToolUse {
            id: id.into(),
            ..ToolUse::default()
        };
        turn(seq, Role::Assistant, Kind::ToolUse(call))
    }

    fn result(seq: u64, id: &str) -> Turn {
        let result = ToolResult {
            tool_use_id: id.into(),
            ..ToolResult::default()
        };
        turn(seq, Role::Tool, Kind::ToolResult(result))
    }

    #[test]
    fn calls_are_joined_with_results() {
        let turns = [
            says(1, Role::User),
            call(2, "c1"),
            result(3, "c1"),
            says(4, Role::Assistant),
            says(5, Role::User),
            call(6, "c2"),
            result(7, "c2"),
            says(8, Role::Assistant),
            says(9, Role::User),
            says(10, Role::Assistant),
        ];
        assert_eq!(drawn(&turns), "[1] 2─3 4 5 6─7 8 9 10");
        assert_eq!(named(&turns[..4]), "1 user, 2 call, 3 result, 4 assistant");
        assert_eq!(drawn(&turns[1..3]), "2─3");
        assert_eq!(drawn(&turns[2..4]), "3 4", "its call is not there");
        let kept: Vec<Turn> = [&turns[..1], &turns[3..]].concat();
        assert_eq!(left(&turns, &kept), "2─3");
        assert_eq!(left(&kept, &kept), "");
    }
}
