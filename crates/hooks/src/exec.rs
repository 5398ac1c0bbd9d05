//! A program as a hook: it gets the session as JSON on its standard input.
//!
//! The [payload](crate::payload) is all that the program gets: of the environment it sees
//! only what [`ExecConfig::env`] names, and it may read its input or not. It is started
//! in a process group of its own, as the daemon's user.
//!
//! | it ends with | the delivery |
//! |---|---|
//! | exit code 0 | is made |
//! | any other exit code, such as 75 (`EX_TEMPFAIL`) | is tried again later |
//! | a signal | is tried again later |
//!
//! A program decides nothing for good: one with a mistake in it is corrected, and then it
//! should get what it missed. Of what it prints on standard error the first and the last
//! few hundred bytes stand in the problem; its standard output is thrown away, since it
//! may well hold the conversation.
//!
//! When the program has ended, and also when it is cancelled at its time limit or because
//! the daemon stops, **what is left in its process group is killed**. Something that shall
//! stay longer is started with `setsid`. A program that did its work and is killed before
//! that was recorded, or whose daemon was, is called again with the same `delivery`. The
//! input of a program whose daemon is killed ends early: a program must ignore JSON that is not
//! complete.

mod excerpt;
mod process;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::ExitStatus;

use memoird_core::config::Environment;
use memoird_engine::{Hook, HookCall, HookError, HookFuture};
use serde::{Deserialize, Serialize};

use crate::payload::payload_aside;
use crate::text::line;
use excerpt::Excerpt;
use process::Process;

/// What to start, and how.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ExecConfig {
    /// The program and its arguments. Without a slash in it, the program is looked for in
    /// the `PATH` of `env`, and without that in the system's own few directories.
    pub argv: Vec<String>,
    /// The names of all variables that it sees, of those that the daemon has.
    #[serde(default = "path_only")]
    pub env: Vec<String>,
    /// Where it is started; `None`: where the daemon was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
}

/// A variable and its value.
type Variable = (OsString, OsString);

fn path_only() -> Vec<String> {
    vec!["PATH".to_owned()]
}

/// Starts a program for each call.
pub struct ExecHook {
    config: ExecConfig,
    env: Vec<Variable>,
}

/// What it printed, at most, in a problem.
const SAID_CHARS_MAX: usize = 400;
/// A program's name, at most, in a problem.
const NAME_CHARS_MAX: usize = 200;

impl ExecHook {
    /// Takes the variables of [`ExecConfig::env`] as they are now.
    ///
    /// # Errors
    /// A sentence for the operator about a configuration that cannot work. Whether the program
    /// is there is seen at each delivery: it may be installed later.
    pub fn new(config: ExecConfig, environment: &dyn Environment) -> Result<Self, String> {
        if config.argv.first().is_none_or(String::is_empty) {
            return Err("argv is empty; its first item is the program to start".to_owned());
        }
        let is_bad = |name: &OsString| {
            let bytes = name.as_encoded_bytes();
            bytes.is_empty() || bytes.iter().any(|byte| matches!(byte, b'=' | 0))
        };
        let named = |name: &String| Some((name.into(), environment.variable(name)?));
        let env: Vec<Variable> = config.env.iter().filter_map(named).collect();
        match env.iter().find(|(name, _)| is_bad(name)) {
            Some((name, _)) => Err(format!("{name:?} cannot be the name of a variable")),
            None => Ok(Self { config, env }),
        }
    }

    async fn run(&self, call: &HookCall) -> Result<(), HookError> {
        let input = payload_aside(call, String::into_bytes).await?;
        let process = Process::start(&self.config, &self.env);
        let process = process.map_err(|error| self.not_started(&error))?;
        let (status, said) = process
            .finish(&input)
            .await
            .map_err(|error| HookError::later(format!("cannot wait for the program: {error}")))?;
        match status.success() {
            true => Ok(()),
            false => Err(HookError::later(failed(status, &said))),
        }
    }

    /// The system's "not found" does not say what: the directory looks the same.
    fn not_started(&self, error: &io::Error) -> HookError {
        let program = self.config.argv.first().map_or("", String::as_str);
        let program = line(program.as_bytes(), NAME_CHARS_MAX);
        let missing = self.config.dir.as_ref().filter(|dir| !dir.is_dir());
        HookError::later(match missing {
            Some(dir) => {
                let dir = line(dir.as_os_str().as_encoded_bytes(), NAME_CHARS_MAX);
                format!("cannot start {program}: there is no directory {dir}")
            }
            None => format!("cannot start {program}: {error}"),
        })
    }
}

impl Hook for ExecHook {
    fn deliver(&self, calls: Vec<HookCall>) -> HookFuture<'_> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(calls.len());
            for call in &calls {
                answers.push(self.run(call).await);
            }
            answers
        })
    }
}

impl fmt::Debug for ExecHook {
    /// Without the values of variables: they may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecHook")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ExecConfig {
    /// Without the arguments: they may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecConfig")
            .field("program", &self.argv.first())
            .field("env", &self.env)
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

/// How it ended, and what it said.
fn failed(status: ExitStatus, said: &Excerpt) -> String {
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}{}", signal_name(signal)),
        (None, None) => "it did not end by itself".to_owned(),
    };
    match said.line(SAID_CHARS_MAX) {
        said if said.is_empty() => how,
        said => format!("{how}: {said}"),
    }
}

/// Those by which a program usually dies, with the numbers that all systems share.
fn signal_name(signal: i32) -> &'static str {
    match signal {
        2 => " (SIGINT)",
        3 => " (SIGQUIT)",
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        13 => " (SIGPIPE)",
        15 => " (SIGTERM)",
        _ => "",
    }
}
