//! Folders as git keeps them, and files put into them. A day may hold tens of thousands
//! of files, so a tree is merged with what is new in one pass over its bytes.

use std::collections::{BTreeMap, HashMap, HashSet};

use gix::ObjectId;
use gix::objs::tree::{EntryKind, EntryRef, name_order};
use gix::objs::{Kind, TreeRefIter};

use super::error::GitError;
use super::pack::Objects;
use super::repo::Repo;

const HASH: gix::hash::Kind = gix::hash::Kind::Sha1;

/// Reads trees and keeps those of one delivery: they are read to look, and again to add.
pub(super) struct Trees<'a> {
    repo: &'a Repo,
    read: HashMap<ObjectId, Vec<u8>>,
}

/// What is put into a folder.
#[derive(Debug, Default)]
pub(super) struct Folder {
    /// Names of files with their content.
    pub(super) files: BTreeMap<String, ObjectId>,
    /// Folders in it.
    pub(super) folders: BTreeMap<String, Folder>,
}

impl Folder {
    /// Puts a file into a folder below this one.
    pub(super) fn put(&mut self, folders: &[String], name: String, id: ObjectId) {
        let mut folder = self;
        for name in folders {
            folder = folder.folders.entry(name.clone()).or_default();
        }
        folder.files.insert(name, id);
    }
}

impl<'a> Trees<'a> {
    /// Nothing read yet.
    pub(super) fn new(repo: &'a Repo) -> Self {
        Self {
            repo,
            read: HashMap::new(),
        }
    }

    /// The bytes of a tree.
    pub(super) fn bytes(&mut self, id: ObjectId) -> Result<&[u8], GitError> {
        if !self.read.contains_key(&id) {
            let bytes = self.repo.read(id, Kind::Tree)?;
            self.read.insert(id, bytes);
        }
        Ok(self.read.get(&id).map_or(&[], Vec::as_slice))
    }

    /// The tree of a folder, or `None` where there is no such folder.
    pub(super) fn folder(
        &mut self,
        root: ObjectId,
        folders: &[String],
    ) -> Result<Option<ObjectId>, GitError> {
        let mut id = root;
        for (depth, name) in folders.iter().enumerate() {
            let in_the_way = self.in_the_way(&folders[..=depth].join("/"));
            let damaged = self.damaged(id);
            let found = entries(self.bytes(id)?).find(|entry| {
                entry
                    .as_ref()
                    .map_or(true, |entry| entry.filename == name.as_str())
            });
            match found.transpose().map_err(damaged)? {
                None => return Ok(None),
                Some(entry) if entry.mode.is_tree() => id = entry.oid.to_owned(),
                Some(_) => return Err(in_the_way),
            }
        }
        Ok(Some(id))
    }

    /// Which of these files are in a folder.
    pub(super) fn present<'n>(
        &mut self,
        id: ObjectId,
        names: &HashSet<&'n str>,
    ) -> Result<HashSet<&'n str>, GitError> {
        let damaged = self.damaged(id);
        let mut present = HashSet::new();
        let mut strange = None;
        for entry in entries(self.bytes(id)?) {
            let entry = entry.map_err(&damaged)?;
            let known = str::from_utf8(entry.filename)
                .ok()
                .and_then(|name| names.get(name));
            let Some(name) = known else { continue };
            match entry.mode.is_blob() {
                true => _ = present.insert(*name),
                false => strange = Some(*name),
            }
        }
        match strange {
            None => Ok(present),
            Some(name) => Err(self.in_the_way(name)),
        }
    }

    /// The tree that has what the tree `base` has and what is put into the folder.
    pub(super) fn with(
        &mut self,
        base: Option<ObjectId>,
        folder: &Folder,
        objects: &mut Objects,
    ) -> Result<ObjectId, GitError> {
        let mut news = Vec::with_capacity(folder.files.len() + folder.folders.len());
        for (name, inner) in &folder.folders {
            let old = match base {
                None => None,
                Some(base) => self.folder(base, std::slice::from_ref(name))?,
            };
            news.push(New {
                name,
                kind: EntryKind::Tree,
                id: self.with(old, inner, objects)?,
            });
        }
        let files = folder.files.iter();
        news.extend(files.map(|(name, id)| New {
            name,
            kind: EntryKind::Blob,
            id: *id,
        }));
        news.sort_unstable_by(|a, b| {
            name_order(
                a.name.as_bytes(),
                a.is_tree(),
                b.name.as_bytes(),
                b.is_tree(),
            )
        });
        let damaged = self.damaged(base.unwrap_or_else(|| ObjectId::empty_tree(HASH)));
        let old = match base {
            None => &[],
            Some(base) => self.bytes(base)?,
        };
        let merged = merge(old, &news).map_err(&damaged)?;
        objects
            .add(Kind::Tree, &merged)
            .map_err(|error| self.repo.damaged(&"a tree", error))
    }

    fn damaged(&self, id: ObjectId) -> impl Fn(gix::Error) -> GitError + use<> {
        let git_dir = self.repo.git_dir.clone();
        move |error| GitError::damaged(&git_dir, format!("{id}: {error}"))
    }

    fn in_the_way(&self, name: &str) -> GitError {
        GitError::InTheWay {
            name: name.to_owned(),
            branch: self.repo.branch.clone(),
        }
    }
}

/// The entries of a tree, in git's order.
pub(super) fn entries(tree: &[u8]) -> TreeRefIter<'_> {
    TreeRefIter::from_bytes(tree, HASH)
}

struct New<'a> {
    name: &'a str,
    kind: EntryKind,
    id: ObjectId,
}

impl New<'_> {
    fn is_tree(&self) -> bool {
        self.kind == EntryKind::Tree
    }

    fn write(&self, tree: &mut Vec<u8>) {
        put(
            tree,
            self.kind.as_octal_str(),
            self.name.as_bytes(),
            self.id.as_slice(),
        );
    }
}

/// Both in git's order; where both have a name, the new one stands.
fn merge(old: &[u8], news: &[New<'_>]) -> Result<Vec<u8>, gix::Error> {
    let mut tree = Vec::with_capacity(old.len() + news.len() * 160);
    let mut news = news.iter().peekable();
    let mut mode = [0; 6];
    for entry in entries(old) {
        let EntryRef {
            mode: entry_mode,
            filename,
            oid,
        } = entry?;
        let order = |new: &New<'_>| {
            name_order(
                new.name.as_bytes(),
                new.is_tree(),
                filename,
                entry_mode.is_tree(),
            )
        };
        while let Some(new) = news.next_if(|new| order(new).is_lt()) {
            new.write(&mut tree);
        }
        if let Some(new) = news.next_if(|new| order(new).is_eq()) {
            new.write(&mut tree);
        } else {
            put(
                &mut tree,
                entry_mode.as_bytes(&mut mode),
                filename,
                oid.as_bytes(),
            );
        }
    }
    news.for_each(|new| new.write(&mut tree));
    Ok(tree)
}

fn put(tree: &mut Vec<u8>, mode: &[u8], name: &[u8], id: &[u8]) {
    for bytes in [mode, b" ", name, b"\0", id] {
        tree.extend_from_slice(bytes);
    }
}
