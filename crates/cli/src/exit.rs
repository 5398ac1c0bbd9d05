//! The exit codes of all commands, and the error that carries them.
//!
//! Codes from 64 to 78 are those of `sysexits.h`.

use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use memoird_core::quote::printable;
use thiserror::Error;
use tonic::{Code, Status};
use tonic_types::StatusExt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// Success, also if the reader of the output closed it early.
    Ok = 0,
    /// The daemon rejected the call.
    Refused = 1,
    /// Invalid command line. The same code as clap's.
    Usage = 2,
    /// Invalid configuration.
    Config = 64,
    /// Invalid input file.
    Data = 65,
    /// The input file cannot be opened.
    NoInput = 66,
    /// The daemon cannot be reached, did not start, or does not accept calls.
    Unavailable = 69,
    /// A bug in memoird.
    Internal = 70,
    /// The data directory cannot be created or written to.
    CannotCreate = 73,
    /// Reading or writing failed.
    Io = 74,
    /// No key, a wrong key, or a key without the required role.
    NoPermission = 77,
    /// Ctrl-C or SIGTERM, as shells report it.
    Interrupted = 130,
}

pub const CODES_HELP: &str = "\
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

#[derive(Debug, Error)]
#[error("{problem}")]
pub struct CliError {
    pub exit: Exit,
    /// The problem and where it occurred. May have several lines.
    problem: String,
    /// What to try, if there is a suggestion.
    hint: Option<&'static str>,
    /// The daemon's stable error reason, if it rejected a call with one.
    reason: Option<String>,
    /// The code of a failed call.
    code: Option<Code>,
}

impl CliError {
    pub fn of_call(addr: &str, status: &Status) -> Self {
        let reason = status.get_details_error_info().map(|info| info.reason);
        let code = status.code();
        // Daemons give a reason. Otherwise the code is from a proxy, or a server that does not
        // speak gRPC.
        let is_foreign = matches!(code, Code::Unavailable | Code::Internal | Code::Unknown);
        if is_transport(status) || (is_foreign && reason.is_none()) {
            return Self::unavailable(addr, &transport_problem(status));
        }
        let message = match status.message() {
            "" => code.description(),
            message => message,
        };
        let problem = match &reason {
            Some(reason) => format!("{message} ({reason})"),
            None => message.to_owned(),
        };
        let error = match code {
            Code::Unauthenticated | Code::PermissionDenied => Self {
                hint: Some(match reason.as_deref() {
                    Some("NO_KEYS_HERE") => "unset MEMOIRD_KEY, and omit --key-file",
                    Some("ROLE_REQUIRED") => "this requires a key with the role admin",
                    _ => "set a key with MEMOIRD_KEY or --key-file",
                }),
                ..Self::failed(Exit::NoPermission, problem)
            },
            _ => Self::failed(Exit::Refused, problem),
        };
        Self {
            reason,
            code: Some(code),
            ..error
        }
    }

    /// Whether the content of the request is at fault. Other requests may succeed.
    pub fn is_of_content(&self) -> bool {
        let codes = [
            Code::InvalidArgument,
            Code::FailedPrecondition,
            Code::OutOfRange,
        ];
        codes.into_iter().any(|code| self.has_code(code))
    }

    /// Whether a call failed with this code.
    pub fn has_code(&self, code: Code) -> bool {
        self.code == Some(code)
    }

    /// Whether the daemon rejected a call for this reason.
    pub fn is_because(&self, reason: &str) -> bool {
        self.reason.as_deref() == Some(reason)
    }

    pub fn unavailable(addr: &str, problem: &str) -> Self {
        Self {
            hint: Some("start it with `memoird serve`, or set its address with --addr"),
            ..Self::failed(
                Exit::Unavailable,
                format!("memoird at {addr} does not answer: {problem}"),
            )
        }
    }

    pub fn at(self, place: &str) -> Self {
        let problem = match self.exit {
            Exit::Unavailable => format!("{} ({place})", self.problem),
            _ => format!("{place}: {}", self.problem),
        };
        Self { problem, ..self }
    }

    pub fn failed(exit: Exit, problem: impl Into<String>) -> Self {
        Self {
            exit,
            problem: problem.into(),
            hint: None,
            reason: None,
            code: None,
        }
    }

    pub fn with_hint(self, hint: &'static str) -> Self {
        Self {
            hint: Some(hint),
            ..self
        }
    }

    /// Arguments that are valid on their own but not together.
    pub fn usage(problem: impl Into<String>) -> Self {
        Self::failed(Exit::Usage, problem)
    }

    /// Creates errors for failed I/O; `what` describes the operation.
    pub fn io(what: impl Into<String>) -> impl Fn(io::Error) -> Self {
        Self::io_with(Exit::Io, what.into())
    }

    pub fn no_input(path: &Path) -> impl Fn(io::Error) -> Self {
        Self::io_with(Exit::NoInput, format!("cannot open {}", path.display()))
    }

    pub fn cannot_create(path: &Path) -> impl Fn(io::Error) -> Self {
        let what = format!("cannot create {}", path.display());
        Self::io_with(Exit::CannotCreate, what)
    }

    fn io_with(exit: Exit, what: String) -> impl Fn(io::Error) -> Self {
        move |source| Self::failed(exit, format!("{what}: {source}"))
    }

    /// The error for a failed write to stdout. A closed pipe is not a failure.
    pub fn of_output(source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::BrokenPipe => Self::output_closed(),
            _ => Self::io("cannot write the output")(source),
        }
    }

    /// Ends the command with exit code 0 and no message, because the reader is gone.
    pub fn output_closed() -> Self {
        Self::failed(Exit::Ok, "the output was closed")
    }
}

/// Whether no daemon answered, because the connection failed or broke.
pub fn is_transport(status: &Status) -> bool {
    status.source().is_some()
}

/// Prints the error, if any, and returns the exit code.
pub fn report(result: &Result<(), CliError>) -> ExitCode {
    let exit = result.as_ref().err().map_or(Exit::Ok, |error| error.exit);
    if let Err(error) = result
        && exit != Exit::Ok
    {
        // If stderr is closed, the message is lost.
        let _ = print(error);
    }
    ExitCode::from(exit as u8)
}

fn print(error: &CliError) -> io::Result<()> {
    let mut stderr = io::stderr().lock();
    let printed: Vec<String> = error.problem.lines().map(printable).collect();
    let lines = printed.join("\n");
    match error.exit {
        // Not an error: the user pressed Ctrl-C.
        Exit::Interrupted => writeln!(stderr, "{lines}")?,
        _ => writeln!(stderr, "error: {lines}")?,
    }
    match error.hint {
        Some(hint) => writeln!(stderr, "hint: {hint}"),
        None => Ok(()),
    }
}

/// Appends the innermost cause to the transport's message.
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
    fn rejection_shows_reason() {
        let error = refused(Code::NotFound, "SESSION_NOT_FOUND");
        assert_eq!(error.to_string(), "no such session (SESSION_NOT_FOUND)");
        assert_eq!(error.exit, Exit::Refused);
        let placed = error.at("line 3");
        assert_eq!(
            placed.to_string(),
            "line 3: no such session (SESSION_NOT_FOUND)"
        );
    }

    #[test]
    fn exit_code_follows_status_code() {
        assert_eq!(
            refused(Code::Unauthenticated, "NO_KEY").exit,
            Exit::NoPermission
        );
        assert_eq!(
            refused(Code::PermissionDenied, "ROLE").exit,
            Exit::NoPermission
        );
        assert_eq!(
            refused(Code::ResourceExhausted, "QUEUE_FULL").exit,
            Exit::Refused
        );
        let gone = CliError::of_call("http://x", &Status::unavailable("tcp connect error"));
        assert_eq!(gone.exit, Exit::Unavailable);
        let broken = Status::from_error(Box::new(io::Error::other("reset")));
        // The status that tonic returns for an HTML page.
        let page =
            Status::internal("protocol error: received message with invalid compression flag");
        for status in [broken, page] {
            assert_eq!(
                CliError::of_call("http://x", &status).exit,
                Exit::Unavailable
            );
        }
        assert_eq!(refused(Code::Internal, "INTERNAL").exit, Exit::Refused);
    }

    #[test]
    fn closed_pipe_is_no_failure() {
        let closed = CliError::of_output(io::ErrorKind::BrokenPipe.into());
        assert_eq!(closed.exit, Exit::Ok);
        let full = CliError::of_output(io::ErrorKind::StorageFull.into());
        assert_eq!(full.exit, Exit::Io);
    }
}
