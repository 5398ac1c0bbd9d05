//! Source of the data key: an environment variable, a file, or the output of a program.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use memoird_core::config::{Environment, Problems, SecretRef};
use memoird_store::{DataKey, DataKeyError};
use rustix::process::{Pid, Signal, kill_process};
use serde::{Deserialize, Serialize};

/// Maximum output of the program in bytes.
const OUTPUT_BYTES_MAX: u64 = 1 << 10;
/// Timeout of the program.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct DataKeySpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    env: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<PathBuf>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<Vec<String>>,
}

impl DataKeySpec {
    /// Validates the setting without reading the key.
    pub(super) fn check(&self, problems: &mut Problems) {
        let places = [
            self.env.is_some(),
            self.file.is_some(),
            self.command.is_some(),
        ];
        let is_one = places.iter().filter(|is_there| **is_there).count() == 1;
        problems.unless(is_one, "", "must have exactly one of env, file, command");
        if self.command.as_ref().is_some_and(Vec::is_empty) {
            problems.add("command", "names no program");
        }
        if !cfg!(feature = "encryption") {
            problems.add("", DataKeyError::NotBuilt);
        }
    }

    /// Reads the key. Blocks while a program runs.
    ///
    /// # Errors
    /// A message for the operator, which never contains the key.
    pub(super) fn read(&self, environment: &dyn Environment) -> Result<DataKey, String> {
        let text = match &self.command {
            Some(command) => output_of(command).map_err(|problem| format!("command: {problem}"))?,
            None => {
                let place = SecretRef {
                    env: self.env.clone(),
                    file: self.file.clone(),
                };
                place.read(environment)?
            }
        };
        DataKey::parse(text.trim()).map_err(|error| error.to_string())
    }
}

/// Runs the program and returns its stdout. Its stderr is inherited.
fn output_of(command: &[String]) -> Result<String, String> {
    let (program, arguments) = command.split_first().ok_or("names no program")?;
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("the program could not be started: {error}"))?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let (sender, receiver) = mpsc::channel();
    let wait = move || {
        let mut text = String::new();
        let output = child
            .stdout
            .take()
            .map(|output| output.take(OUTPUT_BYTES_MAX));
        let read = output.map_or(Ok(0), |mut output| output.read_to_string(&mut text));
        let ended = child.wait().and_then(|status| read.map(|_| (status, text)));
        // The receiver is gone after a timeout.
        let _ = sender.send(ended);
    };
    thread::Builder::new()
        .name("data key".to_owned())
        .spawn(wait)
        .map_err(|error| error.to_string())?;
    match receiver.recv_timeout(COMMAND_TIME_MAX) {
        Ok(Ok((status, text))) if status.success() => Ok(text),
        Ok(Ok((status, _))) => Err(format!("the program failed: {status}")),
        Ok(Err(error)) => Err(format!("its output cannot be read: {error}")),
        Err(_) => {
            // Fails if it has just exited, which is fine.
            let _ = pid.map(|pid| kill_process(pid, Signal::KILL));
            Err(format!("took longer than {COMMAND_TIME_MAX:?}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(script: &str) -> Result<String, String> {
        output_of(&["sh", "-c", script].map(str::to_owned))
    }

    #[test]
    fn key_program_prints_key_or_fails() {
        assert_eq!(printed("echo abc"), Ok("abc\n".to_owned()));
        let failed = printed("echo abc; exit 3").unwrap_err();
        assert!(failed.contains("exit status: 3"), "{failed}");
        let missing = output_of(&["/nonexistent/program".to_owned()]).unwrap_err();
        assert!(missing.contains("could not be started"), "{missing}");
        let endless = printed("yes");
        assert!(endless.is_err(), "more than a key is none");
    }

    #[test]
    fn data_key_has_exactly_one_source() {
        let problem = |spec: &str| {
            let text = format!("server: {{ data_key: {spec} }}");
            super::super::tests::parse(&text).expect_err("a problem was expected")
        };
        for (spec, part) in [
            ("{}", "must have exactly one of env, file, command"),
            (
                "{ env: A, file: ./b }",
                "must have exactly one of env, file, command",
            ),
            ("{ command: [] }", "names no program"),
        ] {
            let problem = problem(spec);
            assert!(problem.contains("server.data_key"), "{problem}");
            assert!(problem.contains(part), "{problem}");
        }
        let written = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
        assert!(!problem(written).contains(written), "it is not shown");
        if !cfg!(feature = "encryption") {
            let problem = problem("{ env: A }");
            assert!(problem.contains("the feature `encryption`"), "{problem}");
        }
    }

    #[test]
    fn invalid_key_is_not_quoted() {
        let spec = DataKeySpec {
            command: Some(["echo", "hunter2"].map(str::to_owned).to_vec()),
            ..DataKeySpec::default()
        };
        let environment = super::super::ProcessEnvironment::default();
        let problem = spec.read(&environment).unwrap_err();
        assert!(!problem.contains("hunter2"), "{problem}");
    }
}
