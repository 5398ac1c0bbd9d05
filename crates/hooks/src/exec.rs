//! Runs a program as a hook, with the session as JSON on its standard input.
//!
//! The [payload](crate::payload) is the program's only input, and it need not read it. Its
//! environment has only the variables named in [`ExecConfig::env`]. It runs in its own process
//! group, as the daemon's user.
//!
//! | result | delivery |
//! |---|---|
//! | exit code 0 | succeeded |
//! | any other exit code, such as 75 (`EX_TEMPFAIL`) | is retried |
//! | a signal | is retried |
//!
//! There is no permanent failure: once a broken program is fixed, it should receive what it missed.
//! The error contains the first and the last few hundred bytes of standard error. Standard output
//! is discarded, because it may contain the conversation.
//!
//! When the program has ended, was cancelled at its time limit or the daemon stops, **the rest of
//! its process group is killed**. Start a process with `setsid` to keep it running. If the program
//! or the daemon is killed before success is recorded, the program is called again with the same
//! `delivery`. If the daemon is killed, the program's input ends early: it must ignore incomplete
//! JSON.
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

use crate::payload::payload_on_blocking_thread;
use crate::text::line;
use excerpt::Excerpt;
use process::Process;

/// Program to run, and its environment.
#[derive(Clone, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ExecConfig {
    /// Program and arguments.
    ///
    /// A program without a slash is searched in the `PATH` of `env`, or in the system's default
    /// directories if that is not set.
    pub argv: Vec<String>,
    /// Names of the daemon's variables that are passed to the program.
    #[serde(default = "path_only")]
    pub env: Vec<String>,
    /// Working directory. `None` for the daemon's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<PathBuf>,
}

type Variable = (OsString, OsString);

fn path_only() -> Vec<String> {
    vec!["PATH".to_owned()]
}

/// Starts a program for each delivery.
pub struct ExecHook {
    config: ExecConfig,
    env: Vec<Variable>,
}

/// Maximum characters of standard error in an error message.
const STDERR_CHARS_MAX: usize = 400;
/// Maximum characters of the program's name in an error message.
const NAME_CHARS_MAX: usize = 200;

impl ExecHook {
    /// Captures the current values of the variables in [`ExecConfig::env`].
    ///
    /// # Errors
    /// A message for the operator if the configuration is invalid. Whether the program exists is
    /// only checked at each delivery, because it may be installed later.
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
            Some((name, _)) => Err(format!("{name:?} is not a valid variable name")),
            None => Ok(Self { config, env }),
        }
    }

    async fn run(&self, call: &HookCall) -> Result<(), HookError> {
        let input = payload_on_blocking_thread(call, String::into_bytes).await?;
        let process =
            Process::start(&self.config, &self.env).map_err(|error| self.not_started(&error))?;
        let (status, stderr_excerpt) = process
            .finish(&input)
            .await
            .map_err(|error| HookError::later(format!("cannot wait for the program: {error}")))?;
        if status.success() {
            Ok(())
        } else {
            Err(HookError::later(failed(status, &stderr_excerpt)))
        }
    }

    /// Names the missing path: the system's error is the same for the program and the directory.
    fn not_started(&self, error: &io::Error) -> HookError {
        let argument = self.config.argv.first().map_or("", String::as_str);
        let program = line(argument.as_bytes(), NAME_CHARS_MAX);
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
    /// Omits the values of variables, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecHook")
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ExecConfig {
    /// Omits the arguments, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecConfig")
            .field("program", &self.argv.first())
            .field("env", &self.env)
            .field("dir", &self.dir)
            .finish_non_exhaustive()
    }
}

/// Describes how the program ended, with an excerpt of its standard error.
fn failed(status: ExitStatus, stderr_excerpt: &Excerpt) -> String {
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}{}", signal_name(signal)),
        (None, None) => "it did not exit on its own".to_owned(),
    };
    match stderr_excerpt.line(STDERR_CHARS_MAX) {
        stderr_excerpt if stderr_excerpt.is_empty() => how,
        stderr_excerpt => format!("{how}: {stderr_excerpt}"),
    }
}

/// Common fatal signals whose numbers are the same on all systems.
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
