//! Deltas of folders. Each commit to a day holds the whole list of the day's files, and
//! two lists differ in a few lines: where packs are merged, only one list stays whole.
//!
//! The format is that of `gitformat-pack(5)`, "Deltified representation": ranges to copy
//! from the base, and bytes to insert.

use std::cmp::Ordering;
use std::ops::Range;

use gix::objs::tree::name_order;

/// Bytes that one copy tells at most.
const COPY_MAX: usize = 0xff_ffff;

/// Bytes that one insert holds at most.
const INSERT_MAX: usize = 127;

/// Bytes of the name of an object at the end of an entry.
const ID_BYTES: usize = 20;

/// What makes the tree `new` of the tree `base`; `None` where that is more than a quarter
/// of the whole. Both are in git's order, so one pass over both finds what they share.
pub(super) fn between(base: &[u8], new: &[u8]) -> Option<Vec<u8>> {
    let mut delta = Delta {
        bytes: Vec::new(),
        copied: 0..0,
        inserted: Vec::new(),
    };
    delta.size(base.len());
    delta.size(new.len());
    let mut olds = Entries { tree: base, at: 0 }.peekable();
    for at in (Entries { tree: new, at: 0 }) {
        let entry = &new[at];
        while olds
            .next_if(|old| order(&base[old.clone()], entry).is_lt())
            .is_some()
        {}
        match olds.next_if(|old| base[old.clone()] == *entry) {
            Some(old) => delta.copy(old),
            None => delta.insert(entry),
        }
        if delta.bytes.len() + delta.inserted.len() > new.len() / 4 {
            return None;
        }
    }
    delta.flush();
    Some(delta.bytes)
}

/// Where the entries of a tree are. One that is broken lasts to the end.
struct Entries<'a> {
    tree: &'a [u8],
    at: usize,
}

impl Iterator for Entries<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let rest = self.tree.get(self.at..).filter(|rest| !rest.is_empty())?;
        let name_end = rest
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(rest.len());
        let end = (name_end + 1 + ID_BYTES).min(rest.len());
        let range = self.at..self.at + end;
        self.at = range.end;
        Some(range)
    }
}

fn order(a: &[u8], b: &[u8]) -> Ordering {
    let name = |entry: &[u8]| -> (usize, usize) {
        let start = entry
            .iter()
            .position(|byte| *byte == b' ')
            .map_or(0, |space| space + 1);
        let end = entry
            .iter()
            .position(|byte| *byte == 0)
            .unwrap_or(entry.len());
        (start.min(end), end)
    };
    let ((a_start, a_end), (b_start, b_end)) = (name(a), name(b));
    // The mode of a folder is 40000.
    let [a_is_tree, b_is_tree] = [a, b].map(|entry| entry.first() == Some(&b'4'));
    name_order(&a[a_start..a_end], a_is_tree, &b[b_start..b_end], b_is_tree)
}

struct Delta {
    bytes: Vec<u8>,
    copied: Range<usize>,
    inserted: Vec<u8>,
}

impl Delta {
    /// 7 bits a byte, the lowest first.
    fn size(&mut self, mut size: usize) {
        while size > 127 {
            self.bytes.push(low(size) | 128);
            size >>= 7;
        }
        self.bytes.push(low(size));
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
            let mut operation = vec![128];
            for (place, number) in [(0..4, self.copied.start), (4..7, size)] {
                for (shift, bit) in place.enumerate() {
                    let byte = low_byte(number >> (8 * shift));
                    if byte != 0 {
                        operation[0] |= 1 << bit;
                        operation.push(byte);
                    }
                }
            }
            self.bytes.extend_from_slice(&operation);
            self.copied.start += size;
        }
        for part in std::mem::take(&mut self.inserted).chunks(INSERT_MAX) {
            self.bytes.push(low(part.len()));
            self.bytes.extend_from_slice(part);
        }
        self.copied = 0..0;
    }
}

fn low(number: usize) -> u8 {
    low_byte(number) & 127
}

fn low_byte(number: usize) -> u8 {
    number.to_le_bytes()[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As git applies it.
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
    fn a_delta_makes_the_one_of_the_other() {
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
    fn what_has_little_in_common_stays_whole() {
        assert_eq!(between(&tree(0..100), &tree(200..300)), None);
        assert_eq!(between(b"", &tree(0..9)), None);
        assert_eq!(between(b"not a tree", b"nor this"), None);
    }
}
