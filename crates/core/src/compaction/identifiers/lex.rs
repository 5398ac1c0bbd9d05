//! Cuts a text into words and marks.

use super::{IDENTIFIER_BYTES_MAX, Token, What};

/// The name of a URL's scheme is no longer.
const SCHEME_BYTES_MAX: usize = 16;

/// The words and marks of a text. Each byte is looked at a bounded number of times.
pub(super) fn tokens(text: &str) -> Vec<Token> {
    let mut tokens: Vec<Token> = Vec::with_capacity(text.len() / 4);
    let mut place = 0;
    while let Some(c) = char_at(text, place) {
        let end = if begins_word(text, place, c) {
            word_end(text, place, tokens.last())
        } else {
            place + c.len_utf8()
        };
        let (what, end) = match c {
            _ if begins_word(text, place, c) => (Some(What::Word), end),
            '\\' => escape(text, place),
            c => (mark(c), end),
        };
        if let Some(what) = what {
            tokens.push(Token {
                what,
                place: place..end,
            });
        }
        place = end.max(place + c.len_utf8());
    }
    tokens
}

fn char_at(text: &str, place: usize) -> Option<char> {
    match text.as_bytes().get(place)? {
        byte if byte.is_ascii() => Some(char::from(*byte)),
        _ => text[place..].chars().next(),
    }
}

fn is_word_at(text: &str, place: usize) -> bool {
    char_at(text, place).is_some_and(|c| c.is_alphanumeric() || c == '_')
}

fn mark(c: char) -> Option<What> {
    match c {
        '\n' | '.' | '!' | '?' | ';' | '。' | '！' | '？' => Some(What::Stop),
        // Emphasis of Markdown stands around words, not between them.
        '*' => None,
        c if c.is_whitespace() => None,
        '"' | '\'' | '“' | '”' | '„' | '‘' | '’' | '«' | '»' => Some(What::Quote),
        '`' => Some(What::Backquote),
        '{' | '[' => Some(What::Open),
        '}' | ']' => Some(What::Close),
        ':' | '=' => Some(What::Colon),
        ',' => Some(What::Comma),
        _ => Some(What::Mark),
    }
}

/// An escape of JSON: `\n` ends a line, and its `n` begins no word.
fn escape(text: &str, place: usize) -> (Option<What>, usize) {
    match text.as_bytes().get(place + 1) {
        Some(b'n' | b'r') => (Some(What::Stop), place + 2),
        Some(b'"') => (Some(What::Quote), place + 2),
        Some(b't' | b'b' | b'f' | b'/' | b'\\') => (Some(What::Mark), place + 2),
        Some(b'u')
            if text
                .as_bytes()
                .get(place + 2..place + 6)
                .is_some_and(is_hex) =>
        {
            (Some(What::Mark), place + 6)
        }
        _ => (Some(What::Mark), place + 1),
    }
}

fn is_hex(digits: &[u8]) -> bool {
    digits.iter().all(u8::is_ascii_hexdigit)
}

/// True of letters and digits, of `%`, and of a mark that belongs to the word behind it:
/// `$5`, `#12`, `@ann`, `/etc`, `./a`, `~/a`, `.env`, `--all`.
fn begins_word(text: &str, place: usize, c: char) -> bool {
    let next = || char_at(text, place + c.len_utf8());
    match c {
        c if c.is_alphanumeric() => true,
        '_' => is_word_at(text, place + 1),
        '%' => true,
        '$' | '€' | '£' | '¥' | '₹' => next().is_some_and(|c| c.is_ascii_digit()),
        '#' | '@' => next().is_some_and(char::is_alphanumeric),
        '/' | '~' => {
            let is_behind_word = place > 0 && is_word_at(text, floor(text, place - 1));
            !is_behind_word
                && next().is_some_and(|c| c.is_alphanumeric() || "._/@".contains(c))
                && !(c == '/' && next() == Some('/'))
        }
        '.' => {
            let rest = &text.as_bytes()[place..];
            let is_behind_word = place > 0 && is_word_at(text, floor(text, place - 1));
            !is_behind_word
                && (rest.starts_with(b"./")
                    || rest.starts_with(b"../")
                    || rest.get(1).is_some_and(u8::is_ascii_lowercase))
        }
        _ => false,
    }
}

fn floor(text: &str, place: usize) -> usize {
    text.floor_char_boundary(place)
}

/// Where a word ends.
fn word_end(text: &str, start: usize, before: Option<&Token>) -> usize {
    let bytes = text.as_bytes();
    if bytes[start] == b'%' {
        return start + 1;
    }
    let mut place = start + char_at(text, start).map_or(1, char::len_utf8);
    while let Some(c) = char_at(text, place) {
        let behind = place + c.len_utf8();
        if c.is_alphanumeric() || c == '_' {
            place = behind;
            continue;
        }
        if c == ':' && begins_address(&text[start..place], &bytes[place..]) {
            return address_end(text, place);
        }
        if !joins(text, start, place, c, before) {
            break;
        }
        place = behind;
        if matches!(c, '%' | '€' | '£' | '¥' | '₹') {
            break;
        }
    }
    while place > start + 1 && bytes[place - 1] == b'-' {
        place -= 1;
    }
    place
}

/// True where a URL or a path with a drive goes on.
fn begins_address(word: &str, rest: &[u8]) -> bool {
    if word.len() > SCHEME_BYTES_MAX {
        return false;
    }
    let is_letters = word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+');
    let is_drive = word.len() == 1 && word.bytes().all(|b| b.is_ascii_alphabetic());
    is_letters && rest.starts_with(b"://")
        || is_drive && (rest.starts_with(b":\\") || rest.starts_with(b":/"))
}

fn address_end(text: &str, place: usize) -> usize {
    // The backslash ends a URL in JSON, and belongs to a path with a drive.
    let is_path = text[place..].starts_with(":\\");
    let ends =
        |c: char| c.is_whitespace() || "\"'`<>|*){}[]“”".contains(c) || c == '\\' && !is_path;
    let end = text[place..]
        .find(ends)
        .map_or(text.len(), |length| place + length);
    let address = &text[..end];
    address
        .trim_end_matches(['.', ',', ';', ':', '!', '?', '\\'])
        .len()
        .max(place + 1)
}

/// True where this mark stands inside a word.
fn joins(text: &str, start: usize, place: usize, c: char, before: Option<&Token>) -> bool {
    let bytes = text.as_bytes();
    let next = bytes.get(place + 1).copied().unwrap_or(b' ');
    let is_behind_digit = bytes[place - 1].is_ascii_digit();
    let goes_on = || is_word_at(text, place + c.len_utf8());
    match c {
        '-' => goes_on() || next == b'-' && bytes[start] != b'-',
        '.' => {
            let is_step = matches!(bytes[place - 1], b'/' | b'.') && next == b'/';
            goes_on() || is_step || bytes[place - 1] == b'/' && next == b'.'
        }
        '/' => {
            let is_end = next.is_ascii_whitespace() || matches!(next, b'"' | b'`' | b')' | b',');
            goes_on() || matches!(next, b'.' | b'@' | b'~') || is_end && bytes[place - 1] != b'/'
        }
        ':' => {
            is_behind_digit && next.is_ascii_digit()
                || next == b':' && is_word_at(text, place + 2)
                || bytes[place - 1] == b':' && goes_on()
        }
        '@' => goes_on(),
        '+' => next.is_ascii_digit() && recent(bytes, start, place).contains(&b':'),
        '\'' | '’' => {
            let is_letter = |c: Option<char>| c.is_some_and(char::is_alphabetic);
            is_letter(char_at(text, floor(text, place - 1)))
                && is_letter(char_at(text, place + c.len_utf8()))
        }
        ',' => is_behind_digit && is_thousands(bytes, start, place, before),
        '%' | '€' | '£' | '¥' | '₹' | '°' => is_behind_digit,
        _ => false,
    }
}

/// The end of a word so far: however long the word is, a bounded piece is looked at.
fn recent(bytes: &[u8], start: usize, place: usize) -> &[u8] {
    &bytes[start.max(place.saturating_sub(IDENTIFIER_BYTES_MAX))..place]
}

/// True of the comma in `1,234`; not in a list of numbers.
fn is_thousands(bytes: &[u8], start: usize, place: usize, before: Option<&Token>) -> bool {
    let digits = bytes[place + 1..]
        .iter()
        .take(4)
        .take_while(|b| b.is_ascii_digit())
        .count();
    let is_listed = before.is_some_and(|before| {
        before.place.end == start && matches!(before.what, What::Comma | What::Open)
    });
    let is_number = bytes[start..place]
        .iter()
        .rev()
        .take(4)
        .filter(|b| b.is_ascii_digit())
        .count();
    digits == 3 && is_number <= 3 && !is_listed
}
