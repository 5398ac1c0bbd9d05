//! Commands that an agent writes at the end of its text, for whoever runs it to answer: in a
//! fence, or between tags.

use super::calls::{is_change, is_change_command};
use crate::quote::one_line;

/// Languages of a fence that holds a command; a fence of any other shows code.
const SHELLS: &[&str] = &[
    "",
    "bash",
    "sh",
    "shell",
    "console",
    "zsh",
    "powershell",
    "tool_code",
    "command",
];
/// Characters of the line that stands for a command.
const LINE_CHARS_MAX: usize = 160;
/// Words of a line that somebody says, or letters of it in another script; and bytes of a prompt.
const SPEECH_WORDS_MIN: usize = 4;
const SPEECH_LETTERS_MIN: usize = 5;
const PROMPT_BYTES_MAX: usize = 120;

/// A command at the end of a text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Command<'a> {
    /// What stands before it.
    pub(super) said: &'a str,
    /// All of it.
    text: &'a str,
}

/// The command at the end of a text, where one is.
pub(super) fn command(text: &str) -> Option<Command<'_>> {
    let text = text.trim_end();
    let (said, inside) = fenced(text).or_else(|| tagged(text))?;
    let inside = inside.trim();
    (!inside.is_empty()).then_some(Command { said, text: inside })
}

fn fenced(text: &str) -> Option<(&str, &str)> {
    let body = text.strip_suffix("```")?;
    let at = body.rfind("```")?;
    let (said, inside) = (&body[..at], &body[at + 3..]);
    let (language, inside) = inside.split_once('\n')?;
    let begins_line = said.is_empty() || said.ends_with('\n');
    (begins_line && SHELLS.contains(&language.trim())).then_some((said, inside))
}

fn tagged(text: &str) -> Option<(&str, &str)> {
    let body = text.strip_suffix('>')?;
    let (body, tag) = body.rsplit_once("</")?;
    let is_tag = !tag.is_empty()
        && tag.len() <= 40
        && tag.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    let (said, inside) = body.split_once(&format!("<{tag}")).filter(|_| is_tag)?;
    // `<function=edit>` names its command in the tag.
    let (named, inside) = inside.split_once('>')?;
    Some((
        said,
        if named.is_empty() {
            inside
        } else {
            named.trim_start_matches('=')
        },
    ))
}

impl Command<'_> {
    /// The command in one line: its name, and the rest in parentheses.
    pub(super) fn call(&self) -> String {
        let line = one_line(self.text, LINE_CHARS_MAX);
        match line.split_once(' ') {
            Some((name, rest)) => format!("{name}({rest})"),
            None => format!("{line}()"),
        }
    }

    pub(super) fn is_change(&self) -> bool {
        let name = self.text.split_whitespace().next().unwrap_or_default();
        is_change_command(self.text) && is_change(name, "")
    }
}

/// True of a user's text that ends with a shell's prompt in a line of its own: that says who wrote
/// it, whatever stands before.
pub(super) fn is_framed(text: &str) -> bool {
    let last = text.trim_end().lines().next_back().unwrap_or_default();
    last.len() <= PROMPT_BYTES_MAX && last.ends_with(['$', '#']) && text.trim_end().contains('\n')
}

/// True of a user's text that is the output of the command before it, and not what somebody
/// says to it: it ends with a prompt or a bracket, begins with a bracket, or few of its lines are
/// sentences and it is not one line of plain words. Where the command before was answered by its
/// output, some lines are output even if most are sentences: a file may have been read.
pub(super) fn is_output(text: &str, was_output: bool) -> bool {
    let text = text.trim();
    let last = text.lines().next_back().unwrap_or_default().trim_end();
    let is_prompt = last.len() <= PROMPT_BYTES_MAX && last.ends_with(['$', '#', '>', ')', ']']);
    if text.is_empty() || is_prompt || text.starts_with(['[', '<', '{', '(', '/']) {
        return true;
    }
    let begins = text.get(..12).unwrap_or(text).to_lowercase();
    if ["observation", "output", "traceback", "error", "exit code"]
        .iter()
        .any(|word| begins.starts_with(word))
    {
        return true;
    }
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let said = lines.clone().filter(|line| is_sentence(line)).count();
    let all = lines.count();
    match all {
        0 | 1 => said == 0 && !text.split_whitespace().all(is_word),
        _ if was_output => said < all,
        _ => said * 2 < all,
    }
}

fn is_word(word: &str) -> bool {
    let word = word.trim_end_matches([',', '.', '!', '?']);
    word.chars().all(|c| c.is_alphabetic() || "'’".contains(c))
}

/// True of a line with some words in a row, or with a mark at its end that programs seldom write.
fn is_sentence(line: &str) -> bool {
    let line = line.trim();
    let mut row = 0;
    let has_row = line.split_whitespace().any(|word| {
        let begins = word.trim_start_matches(['"', '\'', '(', '*', '`']);
        let is_plain = is_word(begins) && begins.contains(char::is_alphabetic);
        row = if is_plain { row + 1 } else { 0 };
        row >= SPEECH_WORDS_MIN
    });
    let letters = line.chars().filter(|c| !c.is_ascii() && c.is_alphabetic());
    has_row || letters.count() >= SPEECH_LETTERS_MIN || line.ends_with(['?', '!', '。', '？', '！'])
}
