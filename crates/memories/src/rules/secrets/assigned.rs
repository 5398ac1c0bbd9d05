//! Secrets that are named: `password is …`, `API_KEY=…`, `--token …`, `Bearer …`. What
//! follows counts when it is random enough for one; words do not (gitleaks:
//! `generic-api-key`, `curl-auth-header`).

use std::sync::LazyLock;

use regex::{Captures, Match, Regex};

use super::rules::compiled;
use super::{Finding, entropy_bits, is_placeholder};

/// The kind of secret that the key names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Said {
    /// Chosen by people: short, and not random.
    Password,
    /// Made by machines.
    Token,
}

/// The words of other languages than English.
const LABELS: &str = include_str!("labels.txt");

/// The key, with the lists of [`LABELS`] in place of `%label` and `%bare`: a password's, one after
/// which a blank is enough, or a token's.
const KEY: &str = r#"(?ix)
  (?<password> pass(?:word|wd|phrase|code)s? | \bpwd\b | _pwd\b | (?u:%label) )
| (?<bare> (?u:%bare) )
| (?<token>
      (?:api|access|secret|private|signing|encryption|master|auth|account|service|storage)
      [_\x20.-]?keys?
    | (?:[a-z]{2,20}[_\x20-]?)? (?:secret|token)s? | credentials? | creds
    | (?:authorization["']?\s{0,3}[:=]\s{0,3}["']?)? \b(?:bearer|basic)\b )
"#;

/// What follows a key: what makes it one's value (after options and schemes a blank is enough), a
/// quote, and the value's first character. All gaps are bounded.
const VALUE: &str = r#"(?ix) ^
["'`\]]{0,2}
(?: (?: \s+ (?: for|to|of|on|at|(?u:%for) ) (?:\s+(?u:[^\s"`=:<>()\[\]{},;!?]){1,30}){0,4}? )?
    (?<sign> \s{0,4} (?: => | :=? | ={1,2} | -> | > ) \s{0,4}
    | \s{1,4} (?u:[-–—]) \s{1,4}
    | \s{0,4} (?: (?u:%now) \s{0,4} )? (?u:%joint) \s{0,4} (?: (?u:%now) \s{0,4} )?
    | \s{1,4} (?: (?: is|was|are|(?u:%verb) ) (?: \s+ (?u:%now) )? \s{0,2} :?
                | (?:set|changed|reset|updated)\s+to ) \s{1,4} )
  | \x20 )
(?<quote> ["'`])? (?u:[«„“「『])? (?<value> (?u:[^\t\n\r\x20"'`<>(){}\[\]$]))
"#;

/// Maximum distance in bytes from a key to its value.
const GAP_BYTES_MAX: usize = 700;

/// Bytes of a value that are looked at; where they are a secret, so is the rest of it.
const VALUE_BYTES_MAX: usize = 512;

/// Bytes of a password of several words.
const PHRASE_BYTES_MAX: usize = 128;

/// A text without these has no key.
const NEAR: &str = r"(?i)pass|pwd|key|secret|token|cred|bearer|authorization|(?u:%label|%bare)";

/// A wallet's words.
const PHRASE: &str = r"(?ix)
(?:seed|recovery|mnemonic|backup) \x20 (?:phrase|words?) (?u:[^\n]){0,40}?
\b((?: [a-z]{3,8} [\x20,]{1,2} ){11,23} [a-z]{3,8}) \b";

static NEAR_REGEX: LazyLock<Regex> = LazyLock::new(|| compiled(&with_labels(NEAR)));
static KEY_REGEX: LazyLock<Regex> = LazyLock::new(|| compiled(&with_labels(KEY)));
static VALUE_REGEX: LazyLock<Regex> = LazyLock::new(|| compiled(&with_labels(VALUE)));
static PHRASE_REGEX: LazyLock<Regex> = LazyLock::new(|| compiled(PHRASE));

/// The pattern with the lists of [`LABELS`] in place of their names.
fn with_labels(pattern: &str) -> String {
    let rows = LABELS.lines().filter(|row| !row.starts_with('#'));
    let rows: Vec<Vec<&str>> = rows.map(|row| row.split_whitespace().collect()).collect();
    let lists = ["label", "bare", "for", "verb", "joint", "now"];
    lists.iter().fold(pattern.to_owned(), |pattern, list| {
        let words = rows.iter().filter(|row| row.first() == Some(list));
        let words: Vec<&str> = words.flat_map(|row| &row[2..]).copied().collect();
        // Boundaries of ASCII words keep the search fast.
        let words = words.join("|").replace(r"\b", r"(?-u:\b)");
        pattern.replace(&format!("%{list}"), &format!("(?:{words})"))
    })
}

pub(super) fn find(text: &str, found: &mut Vec<Finding>) {
    if NEAR_REGEX.is_match(text) {
        find_assigned(text, found);
    }
    let phrases = PHRASE_REGEX.captures_iter(text);
    found.extend(phrases.filter_map(|phrase| {
        let range = phrase.get(1)?.range();
        let what = "recovery phrase";
        Some(Finding { range, what })
    }));
}

/// Tries every key. If its value is no secret, the search continues after the key.
fn find_assigned(text: &str, found: &mut Vec<Finding>) {
    let mut from = 0;
    while let Some(captures) = KEY_REGEX.captures_at(text, from) {
        let Some(key) = captures.get(0) else { return };
        let finding = assigned(text, key, &captures);
        from = finding
            .as_ref()
            .map_or(key.end(), |finding| finding.range.end);
        found.extend(finding);
    }
}

/// The value of a key, if it is a secret.
fn assigned(text: &str, key: Match<'_>, kind: &Captures<'_>) -> Option<Finding> {
    let said = match kind.name("token") {
        None => Said::Password,
        Some(_) => Said::Token,
    };
    let gap_end = text.floor_char_boundary(key.end() + GAP_BYTES_MAX);
    let captures = VALUE_REGEX.captures(&text[key.end()..gap_end])?;
    let key_name = key.as_str();
    // A blank alone is enough after options and schemes.
    let is_told = captures.name("sign").is_some()
        || kind.name("bare").is_some()
        || text[..key.start()].ends_with("--")
        || is_scheme(key_name);
    if !is_told || is_no_secret(key_name) {
        return None;
    }
    let start = key.end() + captures.name("value")?.start();
    let quote = captures
        .name("quote")
        .map(|quote| quote.as_str().as_bytes()[0]);
    let bytes = &text.as_bytes()[start..];
    let end = text.floor_char_boundary(start + length(bytes, quote, VALUE_BYTES_MAX));
    let sign = captures
        .name("sign")
        .map_or("", |sign| sign.as_str().trim());
    if let (Said::Password, "=" | ":", Some(quote)) = (said, sign, quote)
        && let Some(length) = phrase_length(&text[start..], quote)
    {
        return Some(Finding {
            range: start..start + length,
            what: said.what(),
        });
    }
    let value = said.secret(&text[start..end])?;
    let is_cut = end - start > VALUE_BYTES_MAX - 4;
    let length = if is_cut {
        length(bytes, quote, usize::MAX)
    } else {
        value.len()
    };
    Some(Finding {
        range: start..start + length,
        what: said.what(),
    })
}

/// How long a value is: up to a blank, or to its quote.
fn length(bytes: &[u8], quote: Option<u8>, bytes_max: usize) -> usize {
    let is_end = |byte: &u8| match quote {
        Some(quote) => *byte == quote || byte.is_ascii_whitespace(),
        None => b"\"'`<>".contains(byte) || byte.is_ascii_whitespace(),
    };
    bytes
        .iter()
        .take(bytes_max)
        .take_while(|byte| !is_end(byte))
        .count()
}

/// How long a password of several words is that ends with this quote; `None`: it is none, such
/// as what a form says.
fn phrase_length(text: &str, quote: u8) -> Option<usize> {
    const WORDS: &str = "password passphrase passcode pwd must should is are be at least max                          characters digits letters string required optional enter forgot                          forgotten wrong invalid incorrect not no none null too short long your                          my the a an it to";
    let length = text
        .bytes()
        .take(PHRASE_BYTES_MAX)
        .position(|byte| byte == quote)?;
    let is_own = |word: &str| {
        let lower = word.to_lowercase();
        !word.is_empty()
            && !word.contains(['.', ',', ':', '(', '\n'])
            && !WORDS.split(' ').any(|word| word == lower)
    };
    let phrase = &text[..length];
    let words = phrase.split(' ');
    let is_phrase = (2..=8).contains(&words.clone().count()) && words.into_iter().all(is_own);
    (is_phrase && length >= 8 && !is_placeholder(phrase)).then_some(length)
}

/// `Bearer` and `Basic` are followed by a blank and the value.
fn is_scheme(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    key.ends_with("bearer") || key.starts_with("authorization")
}

/// Tokens that are counted or that turn pages, and open nothing.
fn is_no_secret(key: &str) -> bool {
    const WORDS: &str = "page next cursor continuation sync csrf xsrf cancellation max input \
                         output total stop";
    let key = key.to_ascii_lowercase();
    key == "basic" || WORDS.split(' ').any(|word| key.starts_with(word))
}

impl Said {
    fn what(self) -> &'static str {
        match self {
            Self::Password => "password",
            Self::Token => "token",
        }
    }

    /// The part of a value that is the secret; `None`: it is none.
    fn secret(self, value: &str) -> Option<&str> {
        let value = without_rest(value).trim_end_matches([',', ';', '.', ')']);
        let is_secret = match self {
            Self::Password => is_password(value.trim_end_matches(['!', '?', ':'])),
            Self::Token => is_token(value),
        };
        (is_secret && !is_placeholder(value)).then_some(value)
    }
}

/// The value without the words that follow it in scripts without blanks, and without other marks
/// that end it.
fn without_rest(value: &str) -> &str {
    let is_rest = |c: char| {
        matches!(c, '\u{2e80}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}' | '\u{f900}'..='\u{faff}'
            | '\u{ff01}'..='\u{ff60}' | '»' | '“' | '”' | '।' | '،' | '؛' | '۔')
    };
    match value.find(is_rest) {
        Some(end) if end > 0 => &value[..end],
        _ => value,
    }
}

/// At least six characters of more than one sort, that are no word of a text about
/// passwords, no name in a program, no date and no address.
fn is_password(value: &str) -> bool {
    const WORDS: [&str; 19] = [
        "sha",
        "md5",
        "base64",
        "base32",
        "argon",
        "oauth",
        "utf",
        "aes",
        "pbkdf",
        "2fa",
        "mfa",
        "http",
        "null",
        "rfc",
        "1password",
        "windows",
        "iphone",
        "office365",
        "wpa",
    ];
    let lower = value.to_ascii_lowercase();
    let has = |is: fn(char) -> bool| value.chars().any(is);
    let is_symbol = |c: char| !c.is_alphanumeric() && !"-_.,'’/:@()".contains(c);
    let (letters, digits) = (has(char::is_alphabetic), has(|c| c.is_ascii_digit()));
    let is_number = value.bytes().all(|byte| byte.is_ascii_digit());
    let is_count = lower.split_once('-').is_some_and(|(count, unit)| {
        count.bytes().all(|byte| byte.is_ascii_digit()) && unit.chars().all(char::is_alphabetic)
    });
    let is_mixed = is_number || letters && (digits || has(is_symbol)) || is_random_word(value);
    (6..=128).contains(&value.len())
        && is_mixed
        && !is_count
        && !value.contains([' ', '('])
        && !value.ends_with(['[', '{'])
        && !is_identifier(value)
        && !WORDS.iter().any(|word| lower.starts_with(word))
}

/// Long enough, of the alphabet of keys, with letters and digits, and with more information
/// than words have.
fn is_token(value: &str) -> bool {
    let is_key = |byte: u8| byte.is_ascii_alphanumeric() || b"_.+/=~-".contains(&byte);
    let has_letter = value.bytes().any(|byte| byte.is_ascii_alphabetic());
    let digits = value.bytes().filter(u8::is_ascii_digit).count();
    let bits_min = if value.len() < 20 { 3.0 } else { 3.4 };
    (12..=VALUE_BYTES_MAX).contains(&value.len())
        && value.bytes().all(is_key)
        && (has_letter && digits > 1 || is_random_word(value))
        && entropy_bits(value) >= bits_min
        && !is_identifier(value)
}

/// True for letters whose case changes as it never does in words or in names of programs.
fn is_random_word(value: &str) -> bool {
    let bytes = value.as_bytes();
    let changes = bytes
        .windows(2)
        .filter(|two| two[0].is_ascii_lowercase() != two[1].is_ascii_lowercase());
    let is_letters = bytes.iter().all(u8::is_ascii_alphabetic);
    is_letters && bytes.len() >= 16 && changes.count() * 5 >= bytes.len() * 2
}

/// True for words and numbers with something between them: `max-tokens-4096`,
/// `user.password1`, `2026-11-22`.
fn is_identifier(value: &str) -> bool {
    let is_plain = |word: &str| {
        let letters = word.trim_end_matches(|c: char| c.is_ascii_digit());
        letters.bytes().all(|byte| byte.is_ascii_lowercase())
            || letters.bytes().all(|byte| byte.is_ascii_uppercase())
            || word.bytes().all(|byte| byte.is_ascii_digit())
    };
    let words: Vec<&str> = value.split(['_', '.', '-', '/', ':']).collect();
    let is_mixed = words
        .iter()
        .any(|word| word.bytes().all(|byte| byte.is_ascii_digit()));
    words.len() > 1
        && words.iter().all(|word| is_plain(word) && word.len() < 16)
        && (is_mixed || value.contains(['.', '_']))
}
