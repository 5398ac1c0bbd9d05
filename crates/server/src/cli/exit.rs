//! Exit codes that mean something to a script, and the one error that carries them.
//!
//! The codes from 64 on are those of `sysexits.h`, where others look them up.

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use memoird_hooks::git::GitError;
use thiserror::Error;
use tonic::{Code, Status};
use tonic_types::StatusExt;

use super::output::printable;

/// What the process ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Done. Also when whoever read our output closed it early.
    Ok = 0,
    /// The daemon answered, and refused.
    Refused = 1,
    /// The command line is wrong; clap ends with the same.
    Usage = 2,
    /// The configuration is wrong.
    Config = 64,
    /// The input file is there and wrong.
    Data = 65,
    /// The input file cannot be opened.
    NoInput = 66,
    /// The daemon cannot be reached, did not start, or takes no calls.
    Unavailable = 69,
    /// The daemon found a mistake of its own.
    Internal = 70,
    /// The data directory cannot be created or written to.
    CannotCreate = 73,
    /// Reading or writing failed.
    Io = 74,
    /// No key, a wrong key, or a key that may not do this.
    NoPermission = 77,
    /// Ctrl-C or SIGTERM, as shells say it.
    Interrupted = 130,
}

/// The same for `--help`.
pub(crate) const CODES_HELP: &str = "\
Exit codes:
   0  done
   1  refused by the daemon
   2  wrong usage
  64  wrong configuration
  65  wrong input
  66  no such input
  69  the daemon cannot be reached, did not start, or takes no calls
  70  a defect of memoird itself
  73  the data directory cannot be created or written to
  74  reading or writing failed
  77  no key, a wrong key, or one that may not do this
 130  interrupted";

/// Why a command did not do what it was asked.
#[derive(Debug, Error)]
pub(crate) enum CliError {
    /// What cannot be done, and the code that says of which kind this is.
    #[error("{problem}")]
    Failed {
        /// The code to end with.
        exit: Exit,
        /// What is wrong, and where.
        problem: String,
    },
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Io {
        /// The code to end with.
        exit: Exit,
        /// What was being done.
        what: String,
        /// What went wrong.
        source: io::Error,
    },
    /// A configuration that cannot be used. May have several lines.
    #[error("{problem}")]
    Config {
        /// All that is wrong with it.
        problem: String,
    },
    /// No daemon answered.
    #[error("memoird at {addr} does not answer: {problem}")]
    Unavailable {
        /// Where it should be.
        addr: String,
        /// What the transport said.
        problem: String,
    },
    /// Checkpoints that cannot be read.
    #[error("{0}")]
    Checkpoints(GitError),
    /// The daemon answered, and refused.
    #[error("{message}{}", in_parentheses(reason.as_deref()))]
    Refused {
        /// Its status code.
        code: Code,
        /// What the daemon said.
        message: String,
        /// Its stable reason.
        reason: Option<String>,
    },
    /// The daemon ended because a part of it panicked.
    #[error("a background worker panicked; the log says which")]
    Broken,
    /// Ctrl-C or SIGTERM.
    #[error("interrupted")]
    Interrupted,
    /// Whoever read our output has gone; nobody needs to be told.
    #[error("the output was closed")]
    OutputClosed,
}

impl CliError {
    /// What a failed call means to the person who made it.
    pub(crate) fn of_call(addr: &str, status: &Status) -> Self {
        let reason = status.get_details_error_info().map(|info| info.reason);
        let code = status.code();
        if is_transport(status) || (code == Code::Unavailable && reason.is_none()) {
            return Self::Unavailable {
                addr: addr.to_owned(),
                problem: transport_problem(status),
            };
        }
        let message = match status.message() {
            "" => code.description().to_owned(),
            message => message.to_owned(),
        };
        Self::Refused {
            code,
            message,
            reason,
        }
    }

    /// The same error, saying first where it happened.
    pub(crate) fn at(mut self, place: &str) -> Self {
        match &mut self {
            Self::Unavailable { problem, .. } => *problem = format!("{problem} ({place})"),
            Self::Refused { message, .. } => *message = format!("{place}: {message}"),
            _ => {}
        }
        self
    }

    /// A failure with its code.
    pub(crate) fn failed(exit: Exit, problem: impl Into<String>) -> Self {
        Self::Failed {
            exit,
            problem: problem.into(),
        }
    }

    /// Arguments that parse and make no sense together.
    pub(crate) fn usage(problem: impl Into<String>) -> Self {
        Self::failed(Exit::Usage, problem)
    }

    /// What a failure to read or write means, and what was being done.
    pub(crate) fn io(what: impl Into<String>) -> impl Fn(io::Error) -> Self {
        Self::io_with(Exit::Io, what.into())
    }

    /// What a failure to open a file for reading means.
    pub(crate) fn no_input(path: &Path) -> impl Fn(io::Error) -> Self {
        Self::io_with(Exit::NoInput, format!("cannot open {}", path.display()))
    }

    /// What a failure to make a directory means.
    pub(crate) fn cannot_create(path: &Path) -> impl Fn(io::Error) -> Self {
        let what = format!("cannot create {}", path.display());
        Self::io_with(Exit::CannotCreate, what)
    }

    fn io_with(exit: Exit, what: String) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io {
            exit,
            what: what.clone(),
            source,
        }
    }

    /// Turns a failed write into an error, a closed reader into a quiet one.
    pub(crate) fn of_output(source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::io("cannot write the output")(source),
        }
    }

    /// The code that the process ends with.
    pub(crate) fn exit(&self) -> Exit {
        match self {
            Self::Failed { exit, .. } | Self::Io { exit, .. } => *exit,
            Self::Config { .. } => Exit::Config,
            Self::Checkpoints(error) => of_git(error),
            Self::Unavailable { .. } => Exit::Unavailable,
            Self::Refused { code, .. } => match code {
                Code::Unauthenticated | Code::PermissionDenied => Exit::NoPermission,
                _ => Exit::Refused,
            },
            Self::Broken => Exit::Internal,
            Self::Interrupted => Exit::Interrupted,
            Self::OutputClosed => Exit::Ok,
        }
    }

    /// What to try, where there is something to try.
    fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Unavailable { .. } => {
                Some("start it with `memoird serve`, or say where it is with --addr")
            }
            Self::Refused { .. } if self.exit() == Exit::NoPermission => Some(
                "give a key in MEMOIRD_KEY or --key-file; what `memoird --help` says so of needs \
                 the role admin",
            ),
            Self::Checkpoints(GitError::Missing { .. }) => {
                Some("say where they are with --dir or --config, and whose with --tenant")
            }
            _ => None,
        }
    }
}

fn of_git(error: &GitError) -> Exit {
    match error {
        GitError::Missing { .. } => Exit::NoInput,
        GitError::Unusable { .. } => Exit::Data,
        GitError::Io { .. } | GitError::Contended { .. } | GitError::Stopped => Exit::Io,
    }
}

/// True when no daemon said this: the connection failed, or broke while it was used.
pub(crate) fn is_transport(status: &Status) -> bool {
    status.source().is_some()
}

/// Says on stderr what went wrong, if anything did, and gives the code to end with.
pub(crate) fn report(result: &Result<(), CliError>) -> ExitCode {
    let Err(error) = result else {
        return ExitCode::from(Exit::Ok as u8);
    };
    if error.exit() != Exit::Ok {
        // A stderr that is closed leaves nobody to complain to.
        let _ = say(error);
    }
    ExitCode::from(error.exit() as u8)
}

fn say(error: &CliError) -> io::Result<()> {
    let mut stderr = io::stderr().lock();
    match error {
        CliError::Config { problem } => writeln!(stderr, "error: {problem}")?,
        // Whoever pressed Ctrl-C knows, and nothing went wrong.
        CliError::Interrupted => writeln!(stderr, "interrupted")?,
        // All that is wrong with a configuration has many lines.
        error => {
            let lines = error.to_string();
            let lines: Vec<String> = lines.lines().map(printable).collect();
            writeln!(stderr, "error: {}", lines.join("\n"))?;
        }
    }
    match error.hint() {
        Some(hint) => writeln!(stderr, "hint: {hint}"),
        None => Ok(()),
    }
}

fn in_parentheses(reason: Option<&str>) -> String {
    reason.map_or_else(String::new, |reason| format!(" ({reason})"))
}

/// The transport's own words and their innermost cause, which is the one that helps.
fn transport_problem(status: &Status) -> String {
    let mut cause = status.source();
    while let Some(inner) = cause.and_then(Error::source) {
        cause = Some(inner);
    }
    match cause.map(ToString::to_string) {
        Some(cause) if !status.message().contains(&cause) => {
            format!("{}: {cause}", status.message())
        }
        _ => status.message().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic_types::ErrorDetails;

    fn refused(code: Code, reason: &str) -> CliError {
        let details =
            ErrorDetails::with_error_info(reason, "memoird", std::collections::HashMap::new());
        let status = Status::with_error_details(code, "no such session", details);
        CliError::of_call("http://x", &status)
    }

    #[test]
    fn a_refusal_shows_its_reason() {
        let error = refused(Code::NotFound, "SESSION_NOT_FOUND");
        assert_eq!(error.to_string(), "no such session (SESSION_NOT_FOUND)");
        assert_eq!(error.exit(), Exit::Refused);
        let placed = error.at("line 3");
        assert_eq!(
            placed.to_string(),
            "line 3: no such session (SESSION_NOT_FOUND)"
        );
    }

    #[test]
    fn codes_decide_the_exit() {
        assert_eq!(
            refused(Code::Unauthenticated, "NO_KEY").exit(),
            Exit::NoPermission
        );
        assert_eq!(
            refused(Code::PermissionDenied, "ROLE").exit(),
            Exit::NoPermission
        );
        assert_eq!(
            refused(Code::ResourceExhausted, "QUEUE_FULL").exit(),
            Exit::Refused
        );
        let gone = CliError::of_call("http://x", &Status::unavailable("tcp connect error"));
        assert_eq!(gone.exit(), Exit::Unavailable);
        let broken = Status::from_error(Box::new(io::Error::other("reset")));
        assert_eq!(
            CliError::of_call("http://x", &broken).exit(),
            Exit::Unavailable
        );
    }

    #[test]
    fn a_closed_pipe_is_no_failure() {
        let closed = CliError::of_output(io::ErrorKind::BrokenPipe.into());
        assert_eq!(closed.exit(), Exit::Ok);
        let full = CliError::of_output(io::ErrorKind::StorageFull.into());
        assert_eq!(full.exit(), Exit::Io);
    }
}
