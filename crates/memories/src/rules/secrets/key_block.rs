//! Private keys in PEM or OpenPGP armour.
//!
//! They may be complete or truncated, and have real line breaks or `\n` within one JSON string
//! (gitleaks: `private-key`; Google's service accounts have one).

use std::sync::LazyLock;

use regex::Regex;

use super::Finding;
use super::rules::compiled;

const DASHES: &str = "-----";

/// Header of a private key.
static BEGIN: LazyLock<Regex> = LazyLock::new(|| {
    compiled(r"-----BEGIN (?:(PGP PRIVATE KEY BLOCK)|[A-Z0-9 ]{0,53}PRIVATE KEY)-----")
});

/// Start of a body through the last line of key material, which may be truncated.
///
/// Contains only characters of armour, including `\n` escapes and headers such as `Proc-Type: 4`.
static KEY: LazyLock<Regex> =
    LazyLock::new(|| compiled(r"^[A-Za-z0-9+/=\r\n\\:,. -]*[A-Za-z0-9+/=]{24}"));

/// The last line of a block, or the start of it if it was truncated.
static END: LazyLock<Regex> = LazyLock::new(|| compiled(r"^-----END [A-Z ]{0,64}-{0,5}"));

pub(super) fn find(text: &str, found: &mut Vec<Finding>) {
    let mut from = 0;
    while let Some(captures) = BEGIN.captures_at(text, from) {
        let header = captures.get_match();
        // The dashes after a header may start the next one.
        from = header.end() - DASHES.len();
        let what = match captures.get(1) {
            Some(_) => "PGP private key",
            None => "private key",
        };
        if let Some(length) = key_length(&text[header.end()..]) {
            from = header.end() + length;
            found.push(Finding {
                range: header.start()..from,
                what,
            });
        }
    }
}

/// Length of the block after its header.
///
/// `None` if there is no key material and the text only mentions a key.
fn key_length(body: &str) -> Option<usize> {
    // The next dashes end the block, since keys contain none. Without any, the block was truncated.
    let dashes = body.find(DASHES).unwrap_or(body.len());
    let (armour, rest) = body.split_at(dashes);
    let key = KEY.find(armour)?;
    let end = END.find(rest);
    Some(end.map_or(key.end(), |end| dashes + end.end()))
}
