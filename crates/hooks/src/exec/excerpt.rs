//! Keeps the beginning and the end of an output in a fixed amount of memory.

use crate::text::{line, line_of_ends};

/// Maximum bytes kept of the beginning.
const FIRST_BYTES: usize = 512;
/// Maximum bytes kept of the end, which is larger because errors are usually reported there.
const LAST_BYTES: usize = 1_024;

#[derive(Debug, Default)]
pub(super) struct Excerpt {
    first: Vec<u8>,
    last: Vec<u8>,
    is_cut: bool,
}

impl Excerpt {
    pub(super) fn put(&mut self, bytes: &[u8]) {
        let room = FIRST_BYTES - self.first.len();
        let (first, rest) = bytes.split_at(room.min(bytes.len()));
        self.first.extend_from_slice(first);
        let fits = rest.len().min(LAST_BYTES);
        let excess = (self.last.len() + fits).saturating_sub(LAST_BYTES);
        self.last.drain(..excess);
        self.last.extend_from_slice(&rest[rest.len() - fits..]);
        self.is_cut |= excess > 0 || fits < rest.len();
    }

    /// Formats the excerpt as one line of at most `chars_max` characters.
    pub(super) fn line(&self, chars_max: usize) -> String {
        if self.is_cut {
            return line_of_ends(&self.first, &self.last, chars_max);
        }
        let whole = [self.first.as_slice(), &self.last].concat();
        let shown = line(&whole, usize::MAX);
        if shown.chars().count() <= chars_max {
            shown
        } else {
            line_of_ends(&whole, &whole, chars_max)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_output_keeps_first_and_last_bytes() {
        let all: Vec<u8> = (0..20_000_u32)
            .map(|n| b'a' + u8::try_from(n % 23).unwrap())
            .collect();
        for piece in [1, 7, 511, 512, 513, 1_024, 5_000, 20_000] {
            let mut excerpt = Excerpt::default();
            all.chunks(piece).for_each(|chunk| excerpt.put(chunk));
            assert_eq!(excerpt.first, all[..FIRST_BYTES], "pieces of {piece}");
            assert_eq!(
                excerpt.last,
                all[all.len() - LAST_BYTES..],
                "pieces of {piece}"
            );
            assert!(excerpt.is_cut);
            assert!(
                excerpt.first.capacity() + excerpt.last.capacity() < 5_000,
                "{piece}"
            );
            assert_eq!(excerpt.line(400).chars().count(), 400);
        }
    }

    #[test]
    fn short_output_is_kept_whole() {
        let mut excerpt = Excerpt::default();
        assert_eq!(excerpt.line(400), "");
        excerpt.put(b"a\n");
        excerpt.put(b"b\n");
        assert_eq!(excerpt.line(400), r"a\nb");
        excerpt.put(&[b'c'; 450]);
        let shown = excerpt.line(400);
        assert!(
            shown.starts_with(r"a\nb\ncc") && shown.ends_with("cc"),
            "{shown}"
        );
        assert_eq!(shown.chars().count(), 400);
    }
}
