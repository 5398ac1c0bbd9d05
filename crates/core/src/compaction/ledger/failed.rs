//! Whether a result says that its call failed, by the forms in which tools, programs and HTTP
//! report it. A result that only mentions a failure, such as a log that was read, does not count:
//! of a call that only looks at something, fewer forms are taken for a failure.

use serde_json::{Map, Value};

use super::calls::has;

/// Keys of a report, in small letters and without what joins words; those of other languages are
/// their word for "error".
const ERROR_KEYS: &str = "error errors err errorcode errormessage errormsg errordetail errortype exception fault \
    failure failurereason iserror erreur errore erro fehler fout fel feil hata błąd ошибка помилка 错误 錯誤 エラー \
    오류 त्रुटि خطأ";
const SUCCESS_KEYS: &str = "success successful succeeded ok";
const STATE_KEYS: &str = "status state result outcome severity";
const EXIT_KEYS: &str = "exitcode exitstatus returncode rc";
const HTTP_KEYS: &str = "status statuscode httpstatus httpcode";
/// Keys that stand beside a `code` that is one of HTTP.
const TELLING_KEYS: &str = "message error detail details reason title description";
/// Words of a state.
const FAILURES: &str = "error fail failed failure rejected declined denied refused forbidden unauthorized invalid \
    aborted timeout timedout unavailable notfound conflict unsuccessful";
/// How a text begins, or a line of a program, in small letters.
const BEGINNINGS: &[&str] = &[
    "error",
    "err ",
    "err:",
    "failed",
    "failure",
    "fatal",
    "traceback",
    "exception",
    "access denied",
    "permission denied",
    "cannot ",
    "can't ",
    "could not ",
    "couldn't ",
    "unable to ",
    "unauthorized",
    "forbidden",
    "invalid ",
];
const LINE_BEGINNINGS: &[&str] = &["error:", "error[", "fatal:", "fatal error:", "npm err!"];
/// Before the number with which a program ended.
const EXITS: &[&str] = &[
    "exit code",
    "exit status",
    "exited with code",
    "exited with status",
    "exited with",
    "return code",
    "returncode",
];
/// What is not, in a line that says how a change went.
const NEGATED: &str =
    "allowed authorized available enough exist found permitted possible supported valid";
/// Bytes of a text that is such a line; and of a value that is a state.
const SENTENCE_BYTES_MAX: usize = 160;
const STATE_BYTES_MAX: usize = 40;
/// Letters of a word that stands in the name of a tool in another form.
const STEM_BYTES: usize = 5;

/// The call that a result answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Caller<'a> {
    /// The tool.
    pub(super) name: &'a str,
    /// True unless it only looks at something.
    pub(super) is_change: bool,
}

impl Caller<'_> {
    /// True of JSON that reports an error: itself, or the object that its result stands in.
    pub(super) fn failed_with(self, value: &Value) -> bool {
        self.fails(value)
            || only(value).is_some_and(|fields| {
                let mut inner = fields.values().filter(|inner| only(inner).is_some());
                inner.any(|inner| self.fails(inner))
            })
    }

    fn fails(self, value: &Value) -> bool {
        only(value).is_some_and(|fields| {
            let mut all = fields.iter();
            all.any(|(key, value)| self.tells_failure(&plain(key), value, fields))
        })
    }

    fn tells_failure(self, key: &str, value: &Value, fields: &Map<String, Value>) -> bool {
        let number = value.as_i64();
        let is_http = number.is_some_and(|number| (400..600).contains(&number));
        let is_told = || fields.keys().any(|key| has(TELLING_KEYS, &plain(key)));
        has(ERROR_KEYS, key) && self.is_set(value)
            || has(SUCCESS_KEYS, key) && *value == Value::Bool(false)
            || has(EXIT_KEYS, key) && number.is_some_and(|it| it > i64::from(!self.is_change))
            || has(HTTP_KEYS, key) && is_http
            || key == "code" && is_http && is_told()
            || has(STATE_KEYS, key) && value.as_str().is_some_and(|state| self.is_failure(state))
    }

    fn is_set(self, value: &Value) -> bool {
        match value {
            Value::Null | Value::Bool(false) => false,
            Value::Bool(true) => true,
            // Something that is looked at may count errors.
            Value::Number(number) => self.is_change && number.as_f64() != Some(0.0),
            Value::String(text) => {
                !matches!(plain(text).as_str(), "" | "none" | "no" | "null" | "ok")
            }
            Value::Array(items) => !items.is_empty(),
            Value::Object(fields) => !fields.is_empty(),
        }
    }

    /// True of the state of a change that was not made; that of a thing that is looked at tells of
    /// the thing.
    fn is_failure(self, state: &str) -> bool {
        let is_plain = self.is_change && state.len() <= STATE_BYTES_MAX;
        is_plain
            && (self.is_failing(&plain(state)) || words(state).any(|word| self.is_failing(&word)))
    }

    /// True of a word that says that something failed, where the tool is not there for that:
    /// `decline_offer` gives `declined`.
    fn is_failing(self, word: &str) -> bool {
        has(FAILURES, word)
            && !self
                .name
                .to_lowercase()
                .contains(&word[..word.len().min(STEM_BYTES)])
    }

    /// True of a text that reports an error: programs say so in these words, whatever the
    /// language of the conversation.
    pub(super) fn failed_with_text(self, text: &str) -> bool {
        let begins = beginning(text);
        BEGINNINGS.iter().any(|word| begins.starts_with(word))
            || is_http_error(text)
            || lines_of_ends(text).any(|line| self.is_failing_line(line))
            || self.is_change && !text.contains('\n') && self.says_no(text)
    }

    /// True of a line that a program writes when it fails.
    pub(super) fn is_failing_line(self, line: &str) -> bool {
        let name = line.split(':').next().unwrap_or_default();
        let is_exception = line.contains(':')
            && !name.contains(' ')
            && (name.ends_with("Error") || name.ends_with("Exception"));
        is_exception
            || line.ends_with("command not found")
            || self.is_change && is_failing_change(line)
    }

    /// True of one line that says that a change was not made.
    fn says_no(self, text: &str) -> bool {
        if text.len() > SENTENCE_BYTES_MAX {
            return false;
        }
        let mut before = String::new();
        words(text).any(|word| {
            let is_none = matches!(before.as_str(), "no" | "0" | "without" | "not");
            let is_not = before == "not" && has(NEGATED, &word);
            let is_failed = !is_none && self.is_failing(&word);
            before = word;
            is_not || is_failed
        })
    }
}

fn is_failing_change(line: &str) -> bool {
    let begins = beginning(line);
    LINE_BEGINNINGS.iter().any(|word| begins.starts_with(word))
        || line
            .split(|c: char| !c.is_alphanumeric())
            .any(|word| word == "FAILED")
        || counts_failures(line)
        || exits_with_failure(line)
}

/// True of `2 failed` and `1 error`.
fn counts_failures(line: &str) -> bool {
    let mut before = 0_u64;
    line.split_whitespace().any(|word| {
        let is_counted = before > 0
            && matches!(
                word.trim_end_matches([',', ';', '.', ')']),
                "failed" | "failures" | "failure" | "errors" | "error"
            );
        before = word.trim_start_matches('(').parse().unwrap_or(0);
        is_counted
    })
}

/// True of `exit code: 101`.
fn exits_with_failure(line: &str) -> bool {
    if line.len() > SENTENCE_BYTES_MAX {
        return false;
    }
    let line = line.to_ascii_lowercase();
    EXITS.iter().any(|said| {
        let behind = line.split_once(said).map_or("", |(_, behind)| behind);
        let number = behind.trim_start_matches([':', '=', ' ', '>']);
        number.starts_with(|c: char| c.is_ascii_digit() && c != '0')
    })
}

/// True of a text that begins with a status of HTTP: `HTTP 409 Conflict`, `HTTP/1.1 404`.
fn is_http_error(text: &str) -> bool {
    let Some(behind) = text.strip_prefix("HTTP") else {
        return false;
    };
    let code = behind
        .split(' ')
        .find(|word| word.len() >= 3 && !word.starts_with('/'));
    let code = code.map(|code| code.trim_matches([':', ',', '.']));
    code.is_some_and(|code| {
        code.len() == 3 && code.starts_with(['4', '5']) && code.parse::<u16>().is_ok()
    })
}

/// The object, or the only one of a list.
fn only(value: &Value) -> Option<&Map<String, Value>> {
    match value {
        Value::Object(fields) => Some(fields),
        Value::Array(items) if items.len() == 1 => items[0].as_object(),
        _ => None,
    }
}

/// The first and the last lines.
pub(super) fn lines_of_ends(text: &str) -> impl Iterator<Item = &str> {
    const ENDS: usize = 8;
    let first = text.lines().take(ENDS);
    first.chain(text.lines().rev().take(ENDS)).map(str::trim)
}

fn beginning(text: &str) -> String {
    text[..text.floor_char_boundary(24)].to_lowercase()
}

/// In small letters, without what joins words.
fn plain(text: &str) -> String {
    let letters = text.chars().filter(|c| !matches!(c, '_' | '-' | ' ' | '.'));
    letters.flat_map(char::to_lowercase).collect()
}

fn words(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|c: char| !c.is_alphanumeric());
    words.filter(|word| !word.is_empty()).map(str::to_lowercase)
}
