//! Reads and writes git trees.
//!
//! A day's tree may list tens of thousands of files, so new files are merged into it in one pass
//! over its bytes. libgit2's tree builder takes three times as long.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::CStr;
use std::ops::Range;

use git2::{ObjectType, Oid};

use super::error::GitError;
use super::pack::Objects;
use super::repo::Repo;

/// Length of the id at the end of an entry.
const ID_BYTES: usize = 20;

const MODE_FILE: &[u8] = b"100644";
const MODE_FOLDER: &[u8] = b"40000";

#[derive(Clone)]
pub(super) struct Entry<'a> {
    mode: &'a [u8],
    pub(super) name: &'a [u8],
    pub(super) id: &'a [u8],
    /// Byte range in the tree.
    pub(super) range: Range<usize>,
}

impl<'a> Entry<'a> {
    fn new(mode: &'a [u8], name: &'a str, id: &'a Oid) -> Self {
        Self {
            mode,
            name: name.as_bytes(),
            id: id.as_bytes(),
            range: 0..0,
        }
    }

    pub(super) fn is_folder(&self) -> bool {
        self.mode == MODE_FOLDER
    }

    fn is_file(&self) -> bool {
        self.mode.starts_with(b"100")
    }

    /// Git sorts a directory as if its name ended with a slash.
    pub(super) fn order(&self, other: &Self) -> Ordering {
        let common = self.name.len().min(other.name.len());
        let next = |entry: &Self| {
            let slash = entry.is_folder().then_some(b'/');
            entry.name.get(common).copied().or(slash)
        };
        let by_name = self.name[..common].cmp(&other.name[..common]);
        by_name.then_with(|| next(self).cmp(&next(other)))
    }

    /// Writes the entry with another id.
    pub(super) fn write_with(&self, id: Oid, folder: &mut Vec<u8>) {
        let other = Entry {
            mode: self.mode,
            name: self.name,
            id: id.as_bytes(),
            range: 0..0,
        };
        other.write(folder);
    }

    fn write(&self, folder: &mut Vec<u8>) {
        for bytes in [self.mode, b" ", self.name, b"\0", self.id] {
            folder.extend_from_slice(bytes);
        }
    }
}

/// Iterates over the entries of a tree, up to the first invalid bytes.
pub(super) struct Entries<'a> {
    folder: &'a [u8],
    offset: usize,
}

impl<'a> Entries<'a> {
    pub(super) fn of(folder: &'a [u8]) -> Self {
        Self { folder, offset: 0 }
    }

    /// Whether all bytes were valid entries.
    pub(super) fn is_at_end(&self) -> bool {
        self.offset == self.folder.len()
    }
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        let rest = self.folder.get(self.offset..)?;
        let head = CStr::from_bytes_until_nul(rest).ok()?.to_bytes();
        let space = head.iter().position(|byte| *byte == b' ')?;
        let id_start = head.len() + 1;
        let id = rest.get(id_start..id_start + ID_BYTES)?;
        let range = self.offset..self.offset + id_start + ID_BYTES;
        self.offset = range.end;
        Some(Entry {
            mode: &head[..space],
            name: &head[space + 1..],
            id,
            range,
        })
    }
}

/// Cache of the trees that a delivery reads and writes.
///
/// They are read to find files, to add files, and to compute deltas.
pub(super) struct Trees<'a> {
    repo: &'a Repo,
    known: HashMap<Oid, Vec<u8>>,
}

impl<'a> Trees<'a> {
    pub(super) fn new(repo: &'a Repo) -> Self {
        Self {
            repo,
            known: HashMap::new(),
        }
    }

    /// Reads a tree unless it is cached.
    pub(super) fn load(&mut self, id: Oid) -> Result<(), GitError> {
        if !self.known.contains_key(&id) {
            let bytes = self.repo.read(id, ObjectType::Tree)?;
            let mut entries = Entries::of(&bytes);
            entries.by_ref().for_each(drop);
            if !entries.is_at_end() {
                return Err(self.repo.damaged(&id, "is no tree"));
            }
            self.known.insert(id, bytes);
        }
        Ok(())
    }

    pub(super) fn note(&mut self, id: Oid, bytes: Vec<u8>) {
        self.known.insert(id, bytes);
    }

    pub(super) fn bytes(&self, id: Oid) -> &[u8] {
        self.known.get(&id).map_or(&[], Vec::as_slice)
    }

    /// The id of a subtree of `root`. `None` if it does not exist.
    pub(super) fn folder(
        &mut self,
        root: Oid,
        folders: &[String],
    ) -> Result<Option<Oid>, GitError> {
        let mut id = root;
        for (depth, name) in folders.iter().enumerate() {
            self.load(id)?;
            let found = Entries::of(self.bytes(id)).find(|entry| entry.name == name.as_bytes());
            id = match found {
                None => return Ok(None),
                Some(entry) if entry.is_folder() => self.repo.id(entry.id)?,
                Some(_) => return Err(self.repo.in_the_way(&folders[..=depth].join("/"))),
            };
        }
        Ok(Some(id))
    }

    /// Removes from `names` the files that are in a tree.
    pub(super) fn remove_present(
        &mut self,
        folder: Oid,
        names: &mut BTreeSet<Vec<u8>>,
    ) -> Result<(), GitError> {
        self.load(folder)?;
        for entry in Entries::of(self.bytes(folder)) {
            if names.remove(entry.name) && !entry.is_file() {
                return Err(self.repo.in_the_way(&String::from_utf8_lossy(entry.name)));
            }
        }
        Ok(())
    }

    /// Writes the tree with the entries of `base` and these files in a subtree. Returns its id.
    pub(super) fn add(
        &mut self,
        base: Option<Oid>,
        folders: &[String],
        files: &BTreeMap<String, Oid>,
        objects: &mut Objects,
    ) -> Result<Oid, GitError> {
        let Some((name, rest)) = folders.split_first() else {
            // The map is in git's order: git sorts files by the bytes of their names.
            let new = files
                .iter()
                .map(|(name, id)| Entry::new(MODE_FILE, name, id));
            return self.write(base, &new.collect::<Vec<_>>(), objects);
        };
        let known = match base {
            None => None,
            Some(base) => self.folder(base, std::slice::from_ref(name))?,
        };
        let inner = self.add(known, rest, files, objects)?;
        self.write(base, &[Entry::new(MODE_FOLDER, name, &inner)], objects)
    }

    /// Writes the tree with the entries of `base` and the new ones, which are in git's order.
    fn write(
        &mut self,
        base: Option<Oid>,
        new: &[Entry<'_>],
        objects: &mut Objects,
    ) -> Result<Oid, GitError> {
        if let Some(base) = base {
            self.load(base)?;
        }
        let merged = merge(base.map_or(&[][..], |base| self.bytes(base)), new);
        let added = objects.add(ObjectType::Tree, &merged);
        let id = added.map_err(|error| self.repo.damaged(&"a new tree", error))?;
        self.known.insert(id, merged);
        Ok(id)
    }
}

/// Merges two lists in git's order. New entries replace old ones with the same name.
fn merge(old: &[u8], new: &[Entry<'_>]) -> Vec<u8> {
    let mut merged = Vec::with_capacity(old.len() + new.len() * 160);
    let mut new = new.iter().peekable();
    // Runs of old entries without a new one in between are copied at once.
    let mut kept = 0..0;
    for entry in Entries::of(old) {
        let is_due = new.peek().is_some_and(|new| new.order(&entry).is_le());
        if is_due {
            merged.extend_from_slice(&old[kept.clone()]);
            kept = entry.range.start..entry.range.start;
            while let Some(before) = new.next_if(|new| new.order(&entry).is_lt()) {
                before.write(&mut merged);
            }
            if let Some(same) = new.next_if(|new| new.order(&entry).is_eq()) {
                same.write(&mut merged);
                kept.start = entry.range.end;
            }
        }
        kept.end = entry.range.end;
    }
    merged.extend_from_slice(&old[kept]);
    new.for_each(|new| new.write(&mut merged));
    merged
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(entries: &[(&[u8], &str, u8)]) -> Vec<u8> {
        let mut folder = Vec::new();
        for (mode, name, id) in entries {
            let id = Oid::from_bytes(&[*id; ID_BYTES]).unwrap();
            Entry::new(mode, name, &id).write(&mut folder);
        }
        folder
    }

    #[test]
    fn new_entries_are_sorted_like_git() {
        let old = [
            (MODE_FILE, "a.md", 1),
            (MODE_FOLDER, "a", 2),
            (MODE_FILE, "b", 3),
            (MODE_FILE, "d", 4),
        ];
        let id = Oid::from_bytes(&[9; ID_BYTES]).unwrap();
        let new = [
            Entry::new(MODE_FILE, "A", &id),
            Entry::new(MODE_FOLDER, "a", &id),
            Entry::new(MODE_FILE, "a0", &id),
            Entry::new(MODE_FILE, "c", &id),
            Entry::new(MODE_FILE, "e", &id),
        ];
        let expected = [
            (MODE_FILE, "A", 9),
            (MODE_FILE, "a.md", 1),
            (MODE_FOLDER, "a", 9),
            (MODE_FILE, "a0", 9),
            (MODE_FILE, "b", 3),
            (MODE_FILE, "c", 9),
            (MODE_FILE, "d", 4),
            (MODE_FILE, "e", 9),
        ];
        assert_eq!(merge(&folder(&old), &new), folder(&expected));
        assert_eq!(merge(&[], &new[..1]), folder(&expected[..1]));
        assert_eq!(merge(&folder(&old), &[]), folder(&old));
    }

    #[test]
    fn malformed_entry_ends_iteration() {
        let mut bytes = folder(&[(MODE_FILE, "a", 1), (MODE_FILE, "b", 2)]);
        bytes.pop();
        let mut entries = Entries::of(&bytes);
        assert_eq!(entries.by_ref().count(), 1);
        assert!(!entries.is_at_end());
    }
}
