//! Classifies tool calls as reading or mutating, by tool name and shell command.
//!
//! Unknown calls count as mutating.

use std::borrow::Cow;

use serde_json::Value;

/// Words at the start of the names of reading tools.
const READS: &str = "analyse analyze ask browse calc calculate cat check compare compute count current \
    describe detect details diff estimate evaluate exists explain explore fetch find get glob goto grep has \
    head help history info inspect is list load locate logs look lookup ls measure open parse ping plan preview \
    print query read recall reflect retrieve screenshot scroll search select show stat status summarize \
    tail think thought validate verify view wait watch whoami";

/// Words that mark a tool as mutating at any position: `find_and_replace`, `check_out`.
const CHANGES: &str = "add apply approve assign book buy cancel change charge checkout commit create delete \
    drop edit execute in insert install modify move out patch pay post publish push put refund remove rename \
    replace reserve reset run save schedule send set submit transfer update upload write";

/// Words in the names of tools that run commands.
const SHELLS: &str = "bash cmd command console exec execute powershell run sh shell terminal zsh";
/// Arguments that contain the command.
const COMMANDS: &[&str] = &["command", "cmd", "script", "commands", "keystrokes"];

/// Arguments that select the action of a multi-purpose tool.
const ACTIONS: &[&str] = &["action", "operation", "subcommand", "args"];

/// Shell commands that only read.
const LOOKS: &str = "awk basename cat cd cut date df diff dirname du echo egrep env fgrep file find grep head \
    history jq less ls man md5sum more nl objdump od printenv printf ps pwd readelf realpath rg sha256sum \
    sort stat strings tail test tr tree true type uname uniq wc whereis which whoami xxd";
/// Programs whose subcommand decides.
const PROGRAMS: &str = "apt aws az brew cargo docker gcloud gh helm kubectl npm pip pip3 podman systemctl terraform yarn";
const GIT_LOOKS: &str = "blame branch diff grep log ls-files ls-tree rev-parse show status";

/// Whether a call is mutating. False only if it clearly just reads.
///
/// The first two words of the tool's name decide (`get_user`, `browserFind`, the last part of
/// `mcp__server__list`), unless another of its words is mutating. If the tool runs commands, the
/// commands decide. Names in other languages and unclear ones count as mutating.
pub fn is_change(name: &str, input: &str) -> bool {
    let own_name = name.rsplit("__").next().unwrap_or(name);
    let name = own_name.rsplit(['.', '/', ':']).next().unwrap_or(own_name);
    let words = words(name);
    let first = &words[..words.len().min(2)];
    let is_shell = first.iter().any(|word| has(SHELLS, word));
    let is_read = first.iter().any(|word| has(READS, word));
    if (is_shell || !is_read)
        && let Ok(Value::Object(fields)) = serde_json::from_str(input)
    {
        let run = COMMANDS.iter().find_map(|key| command(fields.get(*key)?));
        if let Some(run) = run {
            return is_change_command(&run);
        }
        let is_get = |method: &Value| {
            method
                .as_str()
                .is_some_and(|it| it.eq_ignore_ascii_case("get"))
        };
        if fields.get("method").is_some_and(is_get) {
            return false;
        }
        let called = ACTIONS.iter().find_map(|key| command(fields.get(*key)?));
        let action = called
            .as_deref()
            .and_then(|action| action.split_whitespace().next());
        if action.is_some_and(|action| has(READS, action)) {
            return words.iter().any(|word| has(CHANGES, word));
        }
    }
    !is_read || words.iter().any(|word| has(CHANGES, word))
}

/// Extracts a command that is a string or a list of words.
///
/// If the first word of a list is a shell, the last one is the script.
fn command(value: &Value) -> Option<Cow<'_, str>> {
    let entries = match value {
        Value::String(text) => return Some(Cow::Borrowed(text)),
        Value::Array(words) => words,
        _ => return None,
    };
    let words: Vec<&str> = entries.iter().filter_map(Value::as_str).collect();
    let shell = words.first()?.rsplit('/').next().unwrap_or_default();
    Some(match words.last() {
        Some(script) if words.len() > 1 && has(SHELLS, shell) => Cow::Borrowed(*script),
        _ => Cow::Owned(words.join(" ")),
    })
}

/// Whether any part of a shell command is mutating.
fn is_change_command(command: &str) -> bool {
    let first = command.trim().lines().next().unwrap_or_default();
    let is_written = |at: usize| {
        let target = first[at + 1..].trim_start_matches(['>', ' ']);
        !target.starts_with('&') && !target.starts_with("/dev/null")
    };
    if first.contains("<<") || first.match_indices('>').any(|(at, _)| is_written(at)) {
        return true;
    }
    let mut parts = first
        .split(['|', ';', '&'])
        .map(str::trim)
        .filter(|part| !part.is_empty());
    parts.any(|part| {
        let mut words = part.split_whitespace().filter(|word| !word.contains('='));
        let program = words.next().unwrap_or_default();
        let verb = program.rsplit('/').next().unwrap_or(program);
        let next = words.next().unwrap_or_default();
        match verb {
            "" => false,
            // The file descriptor after `2>&1`.
            number if number.bytes().all(|byte| byte.is_ascii_digit()) => false,
            "git" => !has(GIT_LOOKS, next),
            "sed" => next != "-n",
            program if has(PROGRAMS, program) => !has(READS, next),
            // Agent tools that are called as commands.
            other if other.contains('_') => is_change(other, ""),
            other => !has(LOOKS, other) && !has(READS, other),
        }
    })
}

fn has(list: &str, word: &str) -> bool {
    list.split(' ').any(|known| known == word)
}

/// Splits a name into lower-case words: `getUser`, `get_user`, `get-user`.
fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut before = '_';
    for c in name.chars() {
        let begins = c.is_uppercase() && before.is_lowercase() || !before.is_alphanumeric();
        if c.is_alphanumeric() {
            match words.last_mut().filter(|_| !begins) {
                Some(word) => word.extend(c.to_lowercase()),
                None => words.push(c.to_lowercase().collect()),
            }
        }
        before = c;
    }
    words
}
