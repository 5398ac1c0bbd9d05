//! Which file is whose: names that a person can read and no tenant's id can break out of.

use memoird_core::ids::TenantId;
use sha2::{Digest, Sha256};

/// A name up to this long says the whole id; of a longer one it says the beginning and a
/// digest. In bytes; file systems take 255, and SQLite adds to it.
const NAME_BYTES_MAX: usize = 160;
/// What is left of a longer one.
const STEM_BYTES: usize = 96;
const EXTENSION: &str = ".db";

/// The name of a tenant's file: `a-z`, `0-9`, `-`, `_` and dots that do not come first stand
/// for themselves, the rest as `%XX`; so no two are one where case does not count.
pub(super) fn file_name(tenant: &TenantId) -> String {
    let mut name = String::new();
    for (place, byte) in tenant.as_str().bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
            b'.' if place > 0 => name.push('.'),
            _ => name.push_str(&format!("%{byte:02X}")),
        }
    }
    if name.len() > NAME_BYTES_MAX {
        name.truncate(STEM_BYTES);
        name.push('~');
        let digest = Sha256::digest(tenant.as_str().as_bytes());
        digest
            .iter()
            .take(16)
            .for_each(|byte| name.push_str(&format!("{byte:02x}")));
    }
    name + EXTENSION
}

/// True for what may be a tenant's file.
pub(super) fn is_file_name(name: &str) -> bool {
    name.ends_with(EXTENSION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_id_leaves_the_directory_and_no_two_share_a_name() {
        let long = "x".repeat(256);
        let wide = "\u{1f600}".repeat(64);
        let ids = [
            "a",
            "A",
            "..",
            "../a",
            "a/b",
            "a%2Fb",
            ".a",
            "a.b",
            &long,
            &long[1..],
            &wide,
        ];
        let names: Vec<String> = ids
            .iter()
            .map(|id| file_name(&TenantId::parse(id).unwrap()))
            .collect();
        for (place, name) in names.iter().enumerate() {
            assert!(
                name.len() <= 200 && !name.contains('/') && !name.starts_with('.'),
                "{name}"
            );
            let lower = name.to_lowercase();
            let twin = names[..place]
                .iter()
                .find(|other| other.to_lowercase() == lower);
            assert_eq!(twin, None, "{name}");
        }
        assert_eq!(names[0], "a.db");
    }
}
