//! File and directory names that encode arbitrary ids readably and without collisions.

use std::fmt::Write;

use git2::{ObjectType, Oid};
use memoird_core::ids::{Generation, SessionId, TenantId};
use memoird_core::time::Timestamp;

use crate::time;

/// Directory of all checkpoints.
pub(super) const ROOT: &str = "sessions";

/// Maximum bytes of an encoded id.
const BYTES_MAX: usize = 120;

/// Extension of the Markdown file.
pub(super) const MARKDOWN: &str = ".md";
/// Extension of the file of turns.
pub(super) const LINES: &str = ".jsonl";

/// The name of a tenant's repository, without its extension.
///
/// Bytes other than `a-z0-9._@+=-`, and a leading `.` or `-`, are percent-encoded. This includes
/// capital letters, so that names differ on case-insensitive file systems. A name longer than 120
/// bytes is truncated, and a `~` and a hash of the id are appended.
pub(super) fn tenant(tenant: &TenantId) -> String {
    let name = encoded(tenant.as_str(), |byte| !byte.is_ascii_uppercase());
    if name.len() <= BYTES_MAX {
        return name;
    }
    // Only fails if the buffer for the hash is too small.
    let digest = Oid::hash_object(ObjectType::Blob, tenant.as_str().as_bytes())
        .unwrap_or(Oid::ZERO_SHA1)
        .to_string();
    let hash = &digest[..16];
    format!("{}~{hash}", cut(&name))
}

/// Encodes a session id for file names.
///
/// Bytes other than `A-Za-z0-9._@+=-`, and a leading `.` or `-`, are percent-encoded. A name longer
/// than 120 bytes is truncated. The generation after it makes names unique, and the file has the
/// whole id.
pub(super) fn session(session: &SessionId) -> String {
    cut(&encoded(session.as_str(), |_| true)).to_owned()
}

/// File name of a generation, without extension.
pub(super) fn stem(id: &SessionId, generation: Generation) -> String {
    format!("{}-{generation}", session(id))
}

/// Parses the encoded session and the generation from the name of a Markdown file.
pub(super) fn parse(file: &str) -> Option<(&str, Generation)> {
    let (session, generation) = file.strip_suffix(MARKDOWN)?.rsplit_once('-')?;
    Some((session, generation.parse().ok()?))
}

/// Parses the generation from a file name of either kind.
pub(super) fn generation(file: &str) -> Option<Generation> {
    let stem = file
        .strip_suffix(MARKDOWN)
        .or_else(|| file.strip_suffix(LINES))?;
    stem.rsplit_once('-')?.1.parse().ok()
}

/// Path of the directory for generations that ended at this time, from [`ROOT`] to the minute.
///
/// Every commit writes its directories again, so they must be small. Older versions wrote the files
/// to the directory of the hour, or to that of the day.
pub(super) fn folders(ended_at: Timestamp) -> [String; 6] {
    let [year, month, day, hour, minute] = time::minute(ended_at);
    [ROOT.to_owned(), year, month, day, hour, minute]
}

fn encoded(id: &str, is_allowed: impl Fn(u8) -> bool) -> String {
    let mut name = String::with_capacity(id.len() + 8);
    for (index, byte) in id.bytes().enumerate() {
        let is_safe = byte.is_ascii_alphanumeric() || b"._@+=-".contains(&byte);
        let is_hidden = index == 0 && b".-".contains(&byte);
        if is_safe && !is_hidden && is_allowed(byte) {
            name.push(char::from(byte));
        } else {
            // Writing to a String does not fail.
            let _ = write!(name, "%{byte:02X}");
        }
    }
    name
}

/// Truncates a name without splitting an escape.
fn cut(name: &str) -> &str {
    if name.len() <= BYTES_MAX {
        return name;
    }
    let escape = name[BYTES_MAX - 2..BYTES_MAX].find('%');
    &name[..escape.map_or(BYTES_MAX, |offset| BYTES_MAX - 2 + offset)]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn session_of(text: &str) -> String {
        session(&SessionId::parse(text).unwrap())
    }

    fn tenant_of(text: &str) -> String {
        tenant(&TenantId::parse(text).unwrap())
    }

    #[test]
    fn ids_become_readable_safe_names() {
        assert_eq!(session_of("telegram:4711"), "telegram%3A4711");
        assert_eq!(session_of("../../etc"), "%2E.%2F..%2Fetc");
        assert_eq!(session_of("-rf"), "%2Drf");
        assert_eq!(session_of("a\0\n%ä"), "a%00%0A%25%C3%A4");
        assert_eq!(tenant_of("Acme"), "%41cme");
    }

    #[test]
    fn long_name_is_cut_between_escapes() {
        for ahead in 0..4 {
            let name = session_of(&format!("{}{}", "x".repeat(ahead), ":".repeat(200)));
            assert!((118..=120).contains(&name.len()), "{name}");
            assert!(name.ends_with("%3A"), "{name}");
        }
        assert_eq!(session_of(&"y".repeat(256)), "y".repeat(120));
    }

    #[test]
    fn different_tenants_get_different_names() {
        let long = "t".repeat(200);
        let ids = [
            "a",
            "A",
            "%41",
            "a.",
            ".a",
            "ä",
            &long,
            &format!("{long}x"),
            &"t".repeat(120),
        ];
        let names: BTreeSet<String> = ids.iter().map(|id| tenant_of(id).to_lowercase()).collect();
        assert_eq!(names.len(), ids.len(), "{names:?}");
    }

    #[test]
    fn file_name_contains_generation() {
        let generation = Generation::new(1_469_918_176_385, 7);
        let name = format!(
            "{}.md",
            stem(&SessionId::parse("a-b:c").unwrap(), generation)
        );
        assert_eq!(parse(&name), Some(("a-b%3Ac", generation)));
        for bad in [
            "README.md",
            "a-b.md",
            "a-01ARYZ6S41TSV4RRFFQ69G5FAV.jsonl",
            "",
        ] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
