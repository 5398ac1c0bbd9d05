//! Names on disk. Ids hold any character; names of files and folders are made of few,
//! stay readable, and are never the same for two ids.

use std::fmt::Write;

use git2::{ObjectType, Oid};
use memoird_core::ids::{Generation, SessionId, TenantId};
use memoird_core::time::Timestamp;

use crate::time;

/// The folder that holds all checkpoints.
pub(super) const ROOT: &str = "sessions";

/// Bytes of an id in a name, before the rest is cut.
const BYTES_MAX: usize = 120;

/// How a generation's readable file ends.
pub(super) const MARKDOWN: &str = ".md";
/// How the file with its turns ends.
pub(super) const LINES: &str = ".jsonl";

/// The name of a tenant's repository, without its ending.
///
/// Bytes other than `a-z0-9._@+=-`, and a leading `.` or `-`, are percent-encoded:
/// capital letters too, so that no two tenants meet on a file system that ignores case.
/// A name longer than 120 bytes is cut, and gets `~` and a hash of the whole.
pub(super) fn tenant(tenant: &TenantId) -> String {
    let name = encoded(tenant.as_str(), |byte| !byte.is_ascii_uppercase());
    if name.len() <= BYTES_MAX {
        return name;
    }
    // Only a hash without room for it fails.
    let hash = Oid::hash_object(ObjectType::Blob, tenant.as_str().as_bytes());
    let hash = hash.unwrap_or(Oid::ZERO_SHA1).to_string();
    let hash = &hash[..16];
    format!("{}~{hash}", cut(&name))
}

/// A session as it stands in file names: bytes other than `A-Za-z0-9._@+=-`, and a
/// leading `.` or `-`, are percent-encoded, and a name longer than 120 bytes is cut. The
/// generation beside it keeps names apart; the file holds the whole id.
pub(super) fn session(session: &SessionId) -> String {
    cut(&encoded(session.as_str(), |_| true)).to_owned()
}

/// The name of a generation's files, without their endings.
pub(super) fn stem(id: &SessionId, generation: Generation) -> String {
    format!("{}-{generation}", session(id))
}

/// The name of the session and the generation in the name of a Markdown file.
pub(super) fn parse(file: &str) -> Option<(&str, Generation)> {
    let (session, generation) = file.strip_suffix(MARKDOWN)?.rsplit_once('-')?;
    Some((session, generation.parse().ok()?))
}

/// The generation whose file this is, of either kind.
pub(super) fn generation(file: &str) -> Option<Generation> {
    let stem = file
        .strip_suffix(MARKDOWN)
        .or_else(|| file.strip_suffix(LINES))?;
    stem.rsplit_once('-')?.1.parse().ok()
}

/// The folders of what ended then.
pub(super) fn folders(ended_at: Timestamp) -> [String; 4] {
    let [year, month, day] = time::day(ended_at);
    [ROOT.to_owned(), year, month, day]
}

fn encoded(id: &str, may_stand: impl Fn(u8) -> bool) -> String {
    let mut name = String::with_capacity(id.len() + 8);
    for (index, byte) in id.bytes().enumerate() {
        let is_safe = byte.is_ascii_alphanumeric() || b"._@+=-".contains(&byte);
        let is_hidden = index == 0 && b".-".contains(&byte);
        if is_safe && !is_hidden && may_stand(byte) {
            name.push(char::from(byte));
        } else {
            // Writing to a String does not fail.
            let _ = write!(name, "%{byte:02X}");
        }
    }
    name
}

/// The beginning of a name, without half of an escape.
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
    fn names_are_readable_and_safe() {
        assert_eq!(session_of("telegram:4711"), "telegram%3A4711");
        assert_eq!(session_of("../../etc"), "%2E.%2F..%2Fetc");
        assert_eq!(session_of("-rf"), "%2Drf");
        assert_eq!(session_of("a\0\n%ä"), "a%00%0A%25%C3%A4");
        assert_eq!(tenant_of("Acme"), "%41cme");
    }

    #[test]
    fn a_long_name_is_cut_between_escapes() {
        for ahead in 0..4 {
            let name = session_of(&format!("{}{}", "x".repeat(ahead), ":".repeat(200)));
            assert!((118..=120).contains(&name.len()), "{name}");
            assert!(name.ends_with("%3A"), "{name}");
        }
        assert_eq!(session_of(&"y".repeat(256)), "y".repeat(120));
    }

    #[test]
    fn two_tenants_never_share_a_name() {
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
    fn a_name_tells_its_generation() {
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
