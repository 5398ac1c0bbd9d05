//! Private keys in the armour of PEM and OpenPGP, whole or cut off, with lines or with `\n`
//! in one JSON string (gitleaks: `private-key`; Google's service accounts have one).

use super::Finding;

const BEGIN: &str = "-----BEGIN ";
const END: &str = "-----END ";
const DASHES: &str = "-----";
/// Bytes of a header's name, such as `ENCRYPTED PRIVATE KEY`.
const NAME_BYTES_MAX: usize = 64;
/// Bytes of a word that make it a line of a key.
const WORD_BYTES_MIN: usize = 24;

pub(super) fn find(text: &str, found: &mut Vec<Finding>) {
    let mut from = 0;
    while let Some(begin) = next(text, from, BEGIN) {
        from = begin + BEGIN.len();
        let Some((what, body)) = private(text, from) else {
            continue;
        };
        if let Some(end) = end(text, body) {
            found.push(Finding {
                range: begin..end,
                what,
            });
            from = end;
        }
    }
}

/// Where a block ends whose body begins here. `None` where there is no key in it: somebody
/// only speaks of one.
fn end(text: &str, body: usize) -> Option<usize> {
    // The next dashes end the block, or it was cut off: no key has any.
    let dashes = next(text, body, DASHES).unwrap_or(text.len());
    let is_whole = text[dashes..].starts_with(END);
    let armour = text[body..dashes]
        .bytes()
        .take_while(|byte| is_armour(*byte))
        .count();
    let key = last_key_word(&text[body..body + armour])?;
    Some(if is_whole {
        tail(text, dashes)
    } else {
        body + key
    })
}

/// Where the last word ends that is long enough for a line of a key.
fn last_key_word(armour: &str) -> Option<usize> {
    let is_key = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
    let (mut last, mut length) = (None, 0);
    for (place, byte) in armour.bytes().enumerate() {
        length = if is_key(byte) { length + 1 } else { 0 };
        if length >= WORD_BYTES_MIN {
            last = Some(place + 1);
        }
    }
    last
}

fn next(text: &str, from: usize, pattern: &str) -> Option<usize> {
    text.get(from..)?.find(pattern).map(|place| from + place)
}

/// What kind of private key the header names, and where its body begins.
fn private(text: &str, name_at: usize) -> Option<(&'static str, usize)> {
    let bytes = &text.as_bytes()[name_at..];
    let is_name = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || *byte == b' ';
    let length = bytes
        .iter()
        .take(NAME_BYTES_MAX)
        .take_while(|byte| is_name(byte))
        .count();
    let name = &text[name_at..name_at + length];
    let what = match name {
        "PGP PRIVATE KEY BLOCK" => "PGP private key",
        _ if name.ends_with("PRIVATE KEY") => "private key",
        _ => return None,
    };
    let body = name_at + length;
    text[body..]
        .starts_with(DASHES)
        .then_some((what, body + DASHES.len()))
}

/// The end of the line that ends the block.
fn tail(text: &str, end: usize) -> usize {
    let name_at = end + END.len();
    let bytes = &text.as_bytes()[name_at..];
    let is_name = |byte: &u8| byte.is_ascii_uppercase() || *byte == b' ';
    let length = bytes
        .iter()
        .take(NAME_BYTES_MAX)
        .take_while(|byte| is_name(byte))
        .count();
    let dashes = bytes[length..]
        .iter()
        .take(5)
        .take_while(|byte| **byte == b'-')
        .count();
    name_at + length + dashes
}

/// What the body of a block is made of, `\n` and headers such as `Proc-Type: 4` included.
fn is_armour(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+/=\r\n\\:,-. ".contains(&byte)
}
