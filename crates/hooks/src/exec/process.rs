//! Runs a program: feeds its input, reads its output, waits, and kills its process group.
//!
//! Signalling the group cannot hit an unrelated process. The group's id is the pid of its leader,
//! our child. The system does not reuse it until the child has been reaped *and* the group is empty
//! (POSIX, General Concepts, "Process ID Reuse"). So the group is signalled only before the child
//! is reaped: `waitid` with `WNOWAIT` leaves it a zombie, then the group is killed, then the child
//! is reaped.

use std::io;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::timeout;

use super::excerpt::Excerpt;
use super::{ExecConfig, Variable};

/// How long other processes may keep the pipes open after the program has ended.
const PIPES_PAUSE: Duration = Duration::from_secs(1);
/// Maximum bytes per read: the capacity of a pipe on Linux.
const READ_BYTES: usize = 64 * 1_024;

/// A running program. Dropping it kills its process group.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
}

impl Process {
    pub(super) fn start(config: &ExecConfig, env: &[Variable]) -> io::Result<Self> {
        let (program, arguments) = config
            .argv
            .split_first()
            .ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = Command::new(program);
        command.args(arguments).env_clear();
        command.envs(env.iter().map(|(name, value)| (name, value)));
        if let Some(dir) = &config.dir {
            command.current_dir(dir);
        }
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // The runtime reaps children that are dropped before they were waited for.
        command.process_group(0).kill_on_drop(true);
        Ok(Self {
            child: command.spawn()?,
        })
    }

    /// Feeds the program and waits for its end. Also returns an excerpt of its standard error.
    ///
    /// # Errors
    /// If waiting for the child fails.
    pub(super) async fn finish(mut self, input: &[u8]) -> io::Result<(ExitStatus, Excerpt)> {
        let mut stderr_excerpt = Excerpt::default();
        let stdin = self.child.stdin.take();
        let stdout = self.child.stdout.take();
        let stderr = self.child.stderr.take();
        {
            // All three concurrently, to avoid a deadlock on full pipes.
            let talking = async {
                tokio::join!(
                    feed(stdin, input),
                    drain(stdout, |_| {}),
                    drain(stderr, |bytes| stderr_excerpt.put(bytes))
                )
            };
            let mut talk = pin!(talking);
            let mut ended = pin!(self.ended());
            tokio::select! {
                ended = &mut ended => {
                    ended?;
                    // A process that inherited a pipe may hold it open forever.
                    let _ = timeout(PIPES_PAUSE, talk).await;
                }
                _ = &mut talk => ended.await?,
            }
        }
        self.kill_group();
        Ok((self.child.wait().await?, stderr_excerpt))
    }

    /// Waits until the child has ended, without reaping it.
    async fn ended(&self) -> io::Result<()> {
        // Subscribe before the first check, so that no end is missed.
        let mut signals = signal(SignalKind::child())?;
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        while let Some(pid) = self.pid() {
            if waitid(WaitId::Pid(pid), options)?.is_some() {
                break;
            }
            signals.recv().await;
        }
        Ok(())
    }

    /// The pid of the child, until it is reaped.
    fn pid(&self) -> Option<Pid> {
        self.child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw)
    }

    fn kill_group(&self) {
        if let Some(pid) = self.pid() {
            // Fails if all of them have ended already.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill_group();
    }
}

/// Writes the input until the program closes the pipe.
async fn feed(stdin: Option<ChildStdin>, input: &[u8]) {
    if let Some(mut stdin) = stdin {
        // Not an error: the program need not read its input.
        let _ = stdin.write_all(input).await;
    }
}

async fn drain(pipe: Option<impl AsyncRead + Unpin>, mut take: impl FnMut(&[u8])) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(bytes @ 1..) = pipe.read(&mut buffer).await {
        take(&buffer[..bytes]);
    }
}
