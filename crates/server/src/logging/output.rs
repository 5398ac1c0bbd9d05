//! Writes log lines to stderr without ever failing or blocking.
//!
//! A line is lost if the disk is full, or the pipe is full or closed.

use std::io::{self, Stderr, Write};
use std::os::fd::AsFd;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tracing_subscriber::fmt::MakeWriter;

use super::DroppedLines;

/// Bytes that a writable pipe accepts without blocking (`PIPE_BUF`).
const CHUNK_BYTES: usize = 4_096;

#[derive(Debug)]
pub(super) struct Output<W = Stderr> {
    target: Mutex<Target<W>>,
    lost: Arc<DroppedLines>,
}

#[derive(Debug)]
struct Target<W> {
    file: W,
    /// Whether the last line was only partly written.
    is_torn: bool,
}

pub(super) struct LineWriter<'a, W> {
    target: MutexGuard<'a, Target<W>>,
    lost: &'a DroppedLines,
}

impl<W: AsFd + Write> Output<W> {
    pub(super) fn new(file: W, lost: Arc<DroppedLines>) -> Self {
        let target = Mutex::new(Target {
            file,
            is_torn: false,
        });
        Self { target, lost }
    }
}

impl<W: AsFd + Write> Target<W> {
    fn write_line(&mut self, line: &[u8]) -> io::Result<()> {
        if self.is_torn {
            self.write_chunk(b"\n")?;
            self.is_torn = false;
        }
        for (index, chunk) in line.chunks(CHUNK_BYTES).enumerate() {
            self.is_torn = index > 0;
            self.write_chunk(chunk)?;
        }
        self.is_torn = false;
        Ok(())
    }

    fn write_chunk(&mut self, chunk: &[u8]) -> io::Result<()> {
        let mut ready = [PollFd::new(&self.file, PollFlags::OUT)];
        let can_write = poll(&mut ready, Some(&Timespec::default()))? > 0;
        if can_write {
            self.file.write_all(chunk)
        } else {
            Err(io::ErrorKind::WouldBlock.into())
        }
    }
}

impl<W: AsFd + Write> Write for LineWriter<'_, W> {
    /// Receives a whole line. Always succeeds: there is no place to report an error.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        if self.target.write_line(line).is_err() {
            DroppedLines::count(&self.lost.unwritable);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a, W: AsFd + Write + 'a> MakeWriter<'a> for Output<W> {
    type Writer = LineWriter<'a, W>;

    fn make_writer(&'a self) -> Self::Writer {
        LineWriter {
            target: self.target.lock(),
            lost: &self.lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn unread_pipe_drops_lines_without_blocking() {
        let (mut reader, writer) = io::pipe().unwrap();
        let lost = Arc::<DroppedLines>::default();
        let output = Output::new(writer, Arc::clone(&lost));
        let write = |line: &str| output.make_writer().write_all(line.as_bytes()).unwrap();
        let unwritable = || lost.unwritable.load(Ordering::Relaxed);
        let line = "a".repeat(3 * CHUNK_BYTES / 2) + "\n";
        while unwritable() == 0 {
            write(&line);
        }
        let mut space = vec![0; 1 << 20];
        let read = reader.read(&mut space).unwrap();
        assert!(read > line.len(), "some lines are there");
        write("the next one\n");
        drop(output);
        let mut text = String::from_utf8_lossy(&space[..read]).into_owned();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text.lines().last(), Some("the next one"));
    }

    #[test]
    fn closed_pipe_drops_lines_without_error() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let lost = Arc::<DroppedLines>::default();
        let output = Output::new(writer, Arc::clone(&lost));
        output.make_writer().write_all(b"gone\n").unwrap();
        assert_eq!(lost.unwritable.load(Ordering::Relaxed), 1);
    }
}
