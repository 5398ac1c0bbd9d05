//! Private keys in the armour of PEM and OpenPGP, whole or cut off, with lines or with `\n`
//! in one JSON string (gitleaks: `private-key`; Google's service accounts have one).

use std::sync::LazyLock;

use regex::Regex;

use super::Finding;
use super::rules::compiled;

const DASHES: &str = "-----";

/// The header of a private key.
static BEGIN: LazyLock<Regex> = LazyLock::new(|| {
    compiled(r"-----BEGIN (?:(PGP PRIVATE KEY BLOCK)|[A-Z0-9 ]{0,53}PRIVATE KEY)-----")
});

/// The beginning of a body up to its last line of a key, cut off or not: only what armour is
/// made of, `\n` and headers such as `Proc-Type: 4` included.
static KEY: LazyLock<Regex> =
    LazyLock::new(|| compiled(r"^[A-Za-z0-9+/=\r\n\\:,. -]*[A-Za-z0-9+/=]{24}"));

/// The line that ends a block, or its beginning where it was cut off.
static END: LazyLock<Regex> = LazyLock::new(|| compiled(r"^-----END [A-Z ]{0,64}-{0,5}"));

pub(super) fn find(text: &str, found: &mut Vec<Finding>) {
    let mut from = 0;
    while let Some(captures) = BEGIN.captures_at(text, from) {
        let header = captures.get_match();
        // The dashes behind a header may begin the next one.
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

/// The length of the block from its body on. `None` where it has no key: the text only mentions
/// one.
fn key_length(body: &str) -> Option<usize> {
    // The next dashes end the block, or it was cut off: no key has any.
    let dashes = body.find(DASHES).unwrap_or(body.len());
    let (armour, rest) = body.split_at(dashes);
    let key = KEY.find(armour)?;
    let end = END.find(rest);
    Some(end.map_or(key.end(), |end| dashes + end.end()))
}
