//! How the demo looks: headings, indented text, and pauses in which it can be read.

use std::io::{self, IsTerminal};
use std::time::Duration;

use tokio::time::sleep;

use crate::cli::exit::CliError;
use crate::cli::output;

/// What the demo is shown on.
#[derive(Clone, Copy)]
pub(super) struct Stage {
    has_styles: bool,
    has_pauses: bool,
}

impl Stage {
    /// Stdout; in a pipe the same text without styles.
    pub(super) fn new(fast: bool) -> Self {
        Self {
            has_styles: io::stdout().is_terminal(),
            has_pauses: !fast,
        }
    }

    /// What this is.
    pub(super) fn title(&self, text: &str) -> Result<(), CliError> {
        output::print(text)
    }

    /// The beginning of a step.
    pub(super) fn heading(&self, title: &str) -> Result<(), CliError> {
        output::print("")?;
        self.styled("1", title)
    }

    /// A line, or several.
    pub(super) fn say(&self, text: &str) -> Result<(), CliError> {
        text.lines()
            .try_for_each(|line| output::print(format!("  {line}").trim_end()))
    }

    /// What the daemon or a file said, apart from what the demo says.
    pub(super) fn show(&self, text: &str) -> Result<(), CliError> {
        text.lines()
            .try_for_each(|line| self.styled("36", format!("    {line}").trim_end()))
    }

    /// Time to read so many lines.
    pub(super) async fn pause(&self, seconds: f64) {
        if self.has_pauses {
            sleep(Duration::from_secs_f64(seconds)).await;
        }
    }

    fn styled(&self, style: &str, text: &str) -> Result<(), CliError> {
        match self.has_styles && !text.is_empty() {
            true => output::print(&format!("\x1b[{style}m{text}\x1b[0m")),
            false => output::print(text),
        }
    }
}
