//! The demo's story, step by step.

use std::path::{Path, PathBuf};
use std::time::Duration;

use memoird_core::ids::{SessionId, TenantId};
use memoird_hooks::git::{Checkpoints, GitConfig, LogEntry};
use memoird_proto::v1::{Event, SessionInfo};
use tokio::time::timeout;

use super::DemoArgs;
use super::bot::{self, Bot, Chats};
use super::feed::{Feed, SHOWN, in_time};
use super::history;
use super::stage::Stage;
use crate::cli::exit::{CliError, Exit};
use crate::cli::private::{self, Daemon};
use crate::cli::{clock, output, reload, transcript};

const TRIP: &str = "telegram:4711";
const DEPLOY: &str = "slack:C024";
const SHOP: &str = "web:guest-7";
const NEWCOMER: &str = "whatsapp:31";

const HISTORY_TURNS: u32 = 6;
const SESSIONS: u32 = 3;
/// The TTL at first: nothing expires before its step.
const LONG_TTL: &str = "24h";
/// The TTL of the step in which something does.
const SHORT_TTL: &str = "3s";
/// How often those talk who do not want to expire.
const TALK_EVERY: Duration = Duration::from_millis(500);
/// Lines of a checkpoint that are shown.
const LINES_SHOWN: usize = 24;
const COMMITS_SHOWN: usize = 10;

struct Story<'a> {
    stage: Stage,
    dir: &'a Path,
    bot: Bot,
    chats: Chats,
    feed: Feed,
    /// Generations that ended so far.
    ended: Vec<String>,
}

/// Starts a daemon, tells the story on it, and takes the daemon away again.
pub(super) async fn tell(args: &DemoArgs) -> Result<(), CliError> {
    let stage = Stage::new(args.fast);
    let version = env!("CARGO_PKG_VERSION");
    stage.title(&format!("memoird {version}, on a daemon of its own"))?;
    stage.heading("1  A daemon starts")?;
    let mut dir = private::temp_dir("memoird-demo-", &std::env::temp_dir())?;
    dir.disable_cleanup(args.keep);
    let started = clock::monotonic();
    private::write_config(dir.path(), &yaml(dir.path(), LONG_TTL))?;
    let mut daemon = in_time("the start of the daemon", Daemon::start(dir)).await?;
    let took = clock::since(started);
    let target = daemon.target()?;
    let serves = format!("{} serves after {} ms", target.addr(), took.as_millis());
    stage.say(&format!("{serves}, in the folder"))?;
    stage.show(&daemon.dir().display().to_string())?;
    stage.say(&format!(
        "A chat keeps {HISTORY_TURNS} turns beside its first one, {SESSIONS} chats may live, and \
         a hook\ncommits to git what ends."
    ))?;
    stage.pause(2.0).await;
    let dir = daemon.dir().to_owned();
    let mut story = Story {
        stage,
        dir: &dir,
        bot: Bot::new(target.clone()),
        chats: Chats::read(),
        feed: Feed::open(target, stage).await?,
        ended: Vec::new(),
    };
    story.slide().await?;
    story.evict().await?;
    story.expire().await?;
    story.commit().await?;
    story.whats_next(args.keep)?;
    daemon.stop().await
}

impl Story<'_> {
    /// A history slides.
    async fn slide(&mut self) -> Result<(), CliError> {
        let Self {
            stage, bot, chats, ..
        } = self;
        stage.heading("2  A chat with tool calls: its history slides, first in, first out")?;
        stage.say("[1] is its first user turn, which stays; 2─3 is a call with its result.")?;
        stage.show(&format!("{:<20}{:<20}{}", "appended", "history", "left"))?;
        let mut before = Vec::new();
        for said in chats.trip.clone() {
            let reply = bot.say(TRIP, said).await?;
            let after = bot.history(TRIP).await?;
            let new = after.iter().filter(|turn| turn.seq >= reply.first_seq);
            let new = history::named(&new.cloned().collect::<Vec<_>>());
            let left = history::left(&before, &after);
            stage.show(&format!("{new:<20}{:<20}{left}", history::drawn(&after)))?;
            stage.pause(0.4).await;
            before = after;
        }
        stage.say("What the next call of the model gets:")?;
        // Said just now, all of them.
        before.iter_mut().for_each(|turn| turn.timestamp = None);
        stage.show(&transcript::table(&before))?;
        stage.pause(3.0).await;
        Ok(())
    }

    /// A fourth chat takes the place of the longest idle one.
    async fn evict(&mut self) -> Result<(), CliError> {
        let Self {
            stage, bot, feed, ..
        } = self;
        stage.heading("3  One chat too many: the longest idle one is evicted")?;
        bot.say(DEPLOY, self.chats.deploy.clone()).await?;
        bot.say(SHOP, self.chats.shipping.clone()).await?;
        let reply = bot.say(TRIP, self.chats.thanks.clone()).await?;
        let generation = reply.session.unwrap_or_default().generation;
        feed.catch_up(&generation, reply.last_seq).await?;
        let live = names(&bot.sessions().await?);
        stage.say(&format!("live, most recently used first: {live}"))?;
        stage.say(&format!("{NEWCOMER} says its first words:"))?;
        stage.pause(1.0).await;
        let reply = bot.say(NEWCOMER, self.chats.greeting.clone()).await?;
        let generation = reply.session.unwrap_or_default().generation;
        feed.until("created", &generation).await?;
        let is_evicted = |event: &Event| event.kind == "evicted";
        let evicted = in_time("an eviction", feed.seek(&SHOWN, is_evicted)).await?;
        feed.until("hook_delivered", &evicted.generation).await?;
        stage.say(&format!("live: {}", names(&bot.sessions().await?)))?;
        self.ended.push(evicted.generation);
        self.stage.pause(2.0).await;
        Ok(())
    }

    /// The chat that falls silent expires; those that go on talking do not.
    async fn expire(&mut self) -> Result<(), CliError> {
        let Self {
            stage, bot, feed, ..
        } = self;
        stage.heading("4  A silent chat expires")?;
        stage.say(&format!(
            "The configuration is given `session_ttl: {SHORT_TTL}`, and read again:"
        ))?;
        for session in [TRIP, NEWCOMER, SHOP] {
            bot.say(session, bot::user("One moment, please.")).await?;
        }
        reload(bot, stage, self.dir, SHORT_TTL).await?;
        let live = bot.sessions().await?;
        let silent = live.into_iter().find(|info| info.session_id == SHOP);
        let silent = silent.unwrap_or_default();
        stage.say(&format!(
            "{SHOP} says nothing more, the two others go on talking:"
        ))?;
        let is_it = |it: &Event| it.kind == "expired" && it.generation == silent.generation;
        let waiting = async {
            loop {
                match timeout(TALK_EVERY, feed.seek(&SHOWN, is_it)).await {
                    Ok(found) => return found,
                    Err(_) => {
                        bot.say(TRIP, bot::user("Still there.")).await?;
                        bot.say(NEWCOMER, bot::user("Still there.")).await?;
                    }
                }
            }
        };
        let expired = in_time("the expiry of a chat", waiting).await?;
        let idle = clock::seconds_between(silent.last_access.as_ref(), expired.time.as_ref());
        let idle = idle.unwrap_or(f64::NAN);
        stage.say(&format!(
            "It had been idle for {idle:.1} s. Now `session_ttl: {LONG_TTL}` again:"
        ))?;
        // At once: the others must not expire while somebody reads.
        reload(bot, stage, self.dir, LONG_TTL).await?;
        feed.until("hook_delivered", &expired.generation).await?;
        self.ended.push(expired.generation);
        self.stage.pause(2.0).await;
        Ok(())
    }

    /// The checkpoints that the hook wrote.
    async fn commit(&mut self) -> Result<(), CliError> {
        let Self {
            stage, bot, feed, ..
        } = self;
        stage.heading("5  What ended is in git")?;
        stage.say(&format!("The bot ends {TRIP}:"))?;
        bot.say(TRIP, bot::user("That is all, bye.")).await?;
        let ended = bot.end(TRIP).await?;
        feed.until("ended", &ended.generation).await?;
        self.ended.push(ended.generation.clone());
        for generation in &self.ended {
            feed.until("hook_delivered", generation).await?;
        }
        stage.pause(1.0).await;
        let git = GitConfig {
            dir: checkpoints_in(self.dir),
            ..GitConfig::default()
        };
        let checkpoints = Checkpoints::open(&git, &TenantId::default_tenant())?;
        stage.say("git log --stat:")?;
        for commit in checkpoints.log(COMMITS_SHOWN)? {
            stage.show(&described(&commit))?;
        }
        stage.pause(2.0).await;
        let found = checkpoints.list(1, Some(&id(TRIP)?))?;
        let markdown = checkpoints.show(&id(TRIP)?, None)?;
        let (Some(entry), Some(markdown)) = (found.first(), markdown) else {
            let problem = format!("the checkpoint of {TRIP} is not in {}", git.dir.display());
            return Err(CliError::failed(Exit::NoInput, problem));
        };
        stage.say(&format!("{}:", entry.path))?;
        stage.show(&beginning(&markdown))?;
        stage.pause(3.0).await;
        Ok(())
    }

    /// What to try on one's own.
    fn whats_next(&self, keep: bool) -> Result<(), CliError> {
        let Self { stage, dir, .. } = self;
        stage.heading("6  What to try next")?;
        let mut commands = vec![
            "memoird serve                  # your own daemon, on 127.0.0.1:7717".to_owned(),
            "memoird watch                  # its events, as they happen".to_owned(),
            "memoird config print-default   # every setting, explained".to_owned(),
        ];
        if keep {
            let dir = checkpoints_in(dir);
            let shown = dir.display();
            commands.push(format!("memoird checkpoints list --dir {shown}"));
            commands.push(format!("git --git-dir {shown}/default.git log --stat"));
        } else {
            commands.push(
                "memoird demo --keep            # keeps the folder: see the log in git".to_owned(),
            );
        }
        stage.show(&commands.join("\n"))
    }
}

/// Gives the daemon another TTL, as an operator does.
async fn reload(bot: &Bot, stage: &Stage, dir: &Path, ttl: &str) -> Result<(), CliError> {
    private::write_config(dir, &yaml(dir, ttl))?;
    stage.show(&reload::described(&bot.reload_config().await?))
}

/// Nothing is compacted: it is first in, first out that is shown.
fn yaml(dir: &Path, session_ttl: &str) -> String {
    format!(
        "version: 1\n\
         data_dir: {}\n\
         server: {{ listen: \"127.0.0.1:0\", admin_listen: \"127.0.0.1:0\" }}\n\
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

/// A commit as `git log --stat` has it, in fewer lines.
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
    let told = format!("… {more} more lines");
    if more > 0 {
        lines.push(&told);
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_shown_from_its_beginning() {
        assert_eq!(beginning("a\nb\n"), "a\nb");
        let long = "x\n".repeat(LINES_SHOWN + 5);
        assert!(beginning(&long).ends_with("x\n… 5 more lines"));
    }

    #[test]
    fn the_configuration_is_what_a_person_would_write() {
        let yaml = yaml(Path::new("/tmp/demo"), "3s");
        assert!(
            yaml.contains("short_term:\n  max_history_turns: 6\n  max_sessions: 3\n"),
            "{yaml}"
        );
        let hook = "hooks:\n  - { name: checkpoint, git: { dir: \"/tmp/demo/checkpoints\" } }\n";
        assert!(yaml.ends_with(hook), "{yaml}");
    }
}
