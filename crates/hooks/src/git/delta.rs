//! Deltas of trees.
//!
//! Each commit to a day stores the complete list of the day's files, and consecutive lists differ
//! in a few entries. In a pack, only one list is stored whole. The format is "Deltified
//! representation" in `gitformat-pack(5)`: ranges to copy from the base, and bytes to insert.

use std::ops::Range;

use super::tree::Entries;

/// Maximum bytes of one copy instruction.
const COPY_MAX: usize = 0xff_ffff;

/// Maximum bytes of one insert instruction.
const INSERT_MAX: usize = 127;

/// Computes the delta from tree `base` to tree `new`.
///
/// `None` if it exceeds a quarter of the whole. Both are in git's order, so one pass finds the
/// common entries.
pub(super) fn between(base: &[u8], new: &[u8]) -> Option<Vec<u8>> {
    let mut delta = Delta::default();
    delta.put_size(base.len());
    delta.put_size(new.len());
    let mut olds = Entries::of(base).peekable();
    let mut news = Entries::of(new);
    for entry in news.by_ref() {
        while olds.next_if(|old| old.order(&entry).is_lt()).is_some() {}
        let bytes = &new[entry.range];
        match olds.next_if(|old| base[old.range.clone()] == *bytes) {
            Some(old) => delta.copy(old.range),
            None => delta.insert(bytes),
        }
        if delta.bytes.len() + delta.inserted.len() > new.len() / 4 {
            return None;
        }
    }
    delta.flush();
    news.is_at_end().then_some(delta.bytes)
}

/// A delta under construction. At most one of `copied` and `inserted` is non-empty.
#[derive(Default)]
struct Delta {
    bytes: Vec<u8>,
    copied: Range<usize>,
    inserted: Vec<u8>,
}

impl Delta {
    /// Writes 7 bits per byte, lowest first.
    fn put_size(&mut self, mut size: usize) {
        while size > 127 {
            self.bytes.push(low_byte(size) | 128);
            size >>= 7;
        }
        self.bytes.push(low_byte(size));
    }

    fn copy(&mut self, range: Range<usize>) {
        if self.inserted.is_empty() && self.copied.end == range.start {
            self.copied.end = range.end;
            return;
        }
        self.flush();
        self.copied = range;
    }

    fn insert(&mut self, bytes: &[u8]) {
        if !self.copied.is_empty() {
            self.flush();
        }
        self.inserted.extend_from_slice(bytes);
    }

    fn flush(&mut self) {
        while !self.copied.is_empty() {
            let size = self.copied.len().min(COPY_MAX);
            // A copy with all four offset bytes and all three size bytes.
            self.bytes.push(0xff);
            self.bytes.extend(&self.copied.start.to_le_bytes()[..4]);
            self.bytes.extend(&size.to_le_bytes()[..3]);
            self.copied.start += size;
        }
        for part in std::mem::take(&mut self.inserted).chunks(INSERT_MAX) {
            self.bytes.push(low_byte(part.len()));
            self.bytes.extend_from_slice(part);
        }
        self.copied = 0..0;
    }
}

fn low_byte(number: usize) -> u8 {
    number.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Applies a delta like git.
    fn apply(base: &[u8], delta: &[u8]) -> Vec<u8> {
        let mut at = 0;
        let mut next = || {
            at += 1;
            delta.get(at - 1).copied().map(usize::from)
        };
        let mut size = || {
            let mut size = 0;
            for shift in 0.. {
                let byte = next().unwrap();
                size |= (byte & 127) << (7 * shift);
                if byte < 128 {
                    break;
                }
            }
            size
        };
        assert_eq!(size(), base.len());
        let length = size();
        let mut new = Vec::new();
        while let Some(operation) = next() {
            if operation < 128 {
                new.extend((0..operation).map(|_| u8::try_from(next().unwrap()).unwrap()));
                continue;
            }
            let mut number = |bits: Range<usize>| {
                let set = bits
                    .enumerate()
                    .filter(|(_, bit)| operation & 1 << bit != 0);
                set.map(|(shift, _)| next().unwrap() << (8 * shift))
                    .sum::<usize>()
            };
            let (start, size) = (number(0..4), number(4..7));
            new.extend_from_slice(&base[start..start + size]);
        }
        assert_eq!(new.len(), length);
        new
    }

    fn tree(numbers: impl Iterator<Item = u32>) -> Vec<u8> {
        let mut tree = Vec::new();
        for number in numbers {
            tree.extend_from_slice(format!("100644 {number:06}.md\0").as_bytes());
            tree.extend((0_u32..5).flat_map(|part| (number * 77 + part).to_be_bytes()));
        }
        tree
    }

    #[test]
    fn delta_reconstructs_new_tree() {
        let whole = tree(0..3_000);
        let cases = [
            tree(0..3_000),
            tree(0..2_999),
            tree(1..3_000),
            tree((0..3_000).filter(|number| number % 500 != 3)),
            tree((0..3_100).filter(|number| number % 700 != 0)),
            [
                tree(0..5),
                b"40000 000007\0aaaaabbbbbcccccddddd".to_vec(),
                tree(9..2_000),
            ]
            .concat(),
        ];
        for new in cases {
            let delta = between(&whole, &new).unwrap();
            assert!(delta.len() < new.len() / 4);
            assert!(apply(&whole, &delta) == new);
        }
    }

    #[test]
    fn dissimilar_trees_get_no_delta() {
        assert_eq!(between(&tree(0..100), &tree(200..300)), None);
        assert_eq!(between(b"", &tree(0..9)), None);
        assert_eq!(between(b"not a tree", b"nor this"), None);
    }
}
