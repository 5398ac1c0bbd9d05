//! One run of a program: it gets its input, its output is read, its end is awaited, and its
//! process group is killed.
//!
//! Why a signal to its group never meets a stranger: the number of a group is the number
//! of the process that leads it, our child. The system gives that number to nobody else
//! until the child has been reaped *and* no process of the group is left (POSIX, General
//! Concepts, "Process ID Reuse"). So the group is signalled only while the child is not
//! reaped: its end is looked for with `WNOWAIT`, which leaves it a zombie, then the group
//! is killed, and only then is the child reaped.

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

/// How long the pipes of a program that ended may stay open in other hands.
const PIPES_PAUSE: Duration = Duration::from_secs(1);
/// Bytes of one read: the size of a pipe on Linux.
const READ_BYTES: usize = 64 * 1_024;

/// A program that runs. Dropping it kills all that is in its process group.
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
        // The runtime reaps what was dropped before it was waited for.
        command.process_group(0).kill_on_drop(true);
        Ok(Self {
            child: command.spawn()?,
        })
    }

    /// Feeds it, and waits for its end. Also returns what it printed on standard error.
    ///
    /// # Errors
    /// What the system says when a child cannot be waited for.
    pub(super) async fn finish(mut self, input: &[u8]) -> io::Result<(ExitStatus, Excerpt)> {
        let mut said = Excerpt::default();
        let stdin = self.child.stdin.take();
        let stdout = self.child.stdout.take();
        let stderr = self.child.stderr.take();
        {
            // All three at once: who waits for one of them while the child waits for another
            // waits for ever.
            let talk = async {
                tokio::join!(
                    feed(stdin, input),
                    drain(stdout, |_| {}),
                    drain(stderr, |bytes| said.put(bytes))
                )
            };
            let mut talk = pin!(talk);
            let mut ended = pin!(self.ended());
            tokio::select! {
                ended = &mut ended => {
                    ended?;
                    // Somebody to whom it passed a pipe on may hold it for ever.
                    let _ = timeout(PIPES_PAUSE, talk).await;
                }
                _ = &mut talk => ended.await?,
            }
        }
        self.kill_group();
        Ok((self.child.wait().await?, said))
    }

    /// Waits until the child has ended, and leaves it unreaped.
    async fn ended(&self) -> io::Result<()> {
        // Before the first look, so that no end falls between.
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

    /// The child, until it is reaped.
    fn pid(&self) -> Option<Pid> {
        self.child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw)
    }

    fn kill_group(&self) {
        if let Some(pid) = self.pid() {
            // It fails when all of them have ended already.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill_group();
    }
}

/// Writes all of the input, as far as the program reads it.
async fn feed(stdin: Option<ChildStdin>, input: &[u8]) {
    if let Some(mut stdin) = stdin {
        // It need not read its input: a pipe that it closed is no failure.
        let _ = stdin.write_all(input).await;
    }
}

/// Reads to the end.
async fn drain(pipe: Option<impl AsyncRead + Unpin>, mut take: impl FnMut(&[u8])) {
    let Some(mut pipe) = pipe else { return };
    let mut buffer = vec![0; READ_BYTES];
    while let Ok(bytes @ 1..) = pipe.read(&mut buffer).await {
        take(&buffer[..bytes]);
    }
}
