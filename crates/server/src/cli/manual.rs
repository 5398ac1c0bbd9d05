//! `memoird man` and `memoird completions`, generated from the definitions of the commands.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use memoird_cli::exit::CODES_HELP;
use memoird_cli::output;

use super::Cli;
use crate::exit::CliError;

const NAME: &str = "memoird";

pub(crate) fn completions(shell: Shell) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), NAME, &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

/// Writes a page for every command, or prints the main page if there is no directory.
pub(crate) fn man(dir: Option<&Path>) -> Result<(), CliError> {
    let mut program = worded(Cli::command().disable_help_subcommand(true));
    program.build();
    let Some(dir) = dir else {
        let page = page(&program, &[]).map_err(CliError::of_output)?;
        return output::print(&page);
    };
    fs::create_dir_all(dir).map_err(CliError::cannot_create(dir))?;
    write_pages(&program, &[], dir)
}

/// Writes the pages of a command and of its subcommands, two levels in all.
fn write_pages(command: &Command, above: &[&str], dir: &Path) -> Result<(), CliError> {
    let path = dir.join(format!("{}.1", name_of(command)));
    let written = page(command, above).and_then(|page| fs::write(&path, page));
    written.map_err(CliError::io(format!("cannot write {}", path.display())))?;
    let above = [above, &[name_of(command)]].concat();
    let mut commands = command.get_subcommands();
    commands.try_for_each(|command| write_pages(command, &above, dir))
}

fn page(command: &Command, above: &[&str]) -> io::Result<String> {
    let man = Man::new(command.clone())
        .title(name_of(command).to_uppercase())
        // An empty date would be omitted, and the next argument taken for it.
        .date(" ")
        .source(format!("{NAME} {}", env!("CARGO_PKG_VERSION")))
        .manual("memoird manual");
    let mut bytes = Vec::new();
    man.render_title(&mut bytes)?;
    man.render_name_section(&mut bytes)?;
    man.render_synopsis_section(&mut bytes)?;
    man.render_description_section(&mut bytes)?;
    man.render_options_section(&mut bytes)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut bytes)?;
    }
    match above {
        [] => exit_status().to_writer(&mut bytes)?,
        above => see_also(above).to_writer(&mut bytes)?,
    }
    // Every section starts with the same preamble. A page needs it once.
    let preamble = Roff::new().render();
    let text = String::from_utf8_lossy(&bytes).replace(&preamble, "");
    Ok(preamble + &text)
}

/// The exit codes as a list. clap_mangen would join their lines into a paragraph.
fn exit_status() -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    for line in CODES_HELP.lines().skip(1) {
        if let Some((code, meaning)) = line.trim().split_once("  ") {
            roff.control("TP", [])
                .text([bold(code)])
                .text([roman(meaning)]);
        }
    }
    roff
}

/// References to the parent pages. The first of them lists the exit codes.
fn see_also(above: &[&str]) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    for (place, name) in above.iter().enumerate() {
        let comma = if place + 1 < above.len() { "," } else { "" };
        roff.control("BR", [*name, &format!("(1){comma}")]);
    }
    roff
}

/// Uses the headings of the help for subcommands.
fn worded(command: Command) -> Command {
    let command = command
        .subcommand_value_name("COMMAND")
        .subcommand_help_heading("COMMANDS");
    command.mut_subcommands(worded)
}

/// The full name, such as `memoird-sessions-list`, of a built command.
fn name_of(command: &Command) -> &str {
    let name = command.get_display_name();
    name.unwrap_or(command.get_name())
}
