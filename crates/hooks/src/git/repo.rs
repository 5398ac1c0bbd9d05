//! Opens a tenant's git repository, or creates it atomically.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Once;

use git2::{Commit, Config, ErrorCode, ObjectType, Oid, Repository, Tree};
use memoird_core::ids::TenantId;

use super::GitConfig;
use super::error::{GitError, IoContext};
use super::lock::{self, CancelSignal};
use super::names;

const CONFIG: &[u8] = b"[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n";

pub(super) struct Repo {
    pub(super) git_dir: PathBuf,
    pub(super) branch: String,
    pub(super) git: Repository,
}

/// Returns the path of a tenant's bare repository.
fn git_dir(config: &GitConfig, tenant: &TenantId) -> PathBuf {
    config.dir.join(format!("{}.git", names::tenant(tenant)))
}

impl Repo {
    /// Opens the repository of a tenant, and creates it if it does not exist.
    pub(super) fn open_or_create(
        config: &GitConfig,
        tenant: &TenantId,
        stop: &CancelSignal,
    ) -> Result<Self, GitError> {
        let git_dir = git_dir(config, tenant);
        if is_vacant(&git_dir)? {
            create(config, &git_dir, stop)?;
        }
        Self::open_at(config, &git_dir)
    }

    pub(super) fn open(config: &GitConfig, tenant: &TenantId) -> Result<Self, GitError> {
        let git_dir = git_dir(config, tenant);
        if is_vacant(&git_dir)? {
            let what = git_dir.display().to_string();
            return Err(GitError::Missing { what });
        }
        Self::open_at(config, &git_dir)
    }

    fn open_at(config: &GitConfig, git_dir: &Path) -> Result<Self, GitError> {
        static SET_UP: Once = Once::new();
        SET_UP.call_once(|| {
            // Zlib detects damaged objects on read. Hashing them costs as much again, and git does
            // not do it either.
            git2::opts::strict_hash_verification(false);
            // Trees are written without a lookup of every object that they list.
            git2::opts::strict_object_creation(false);
        });
        let problem = |error: git2::Error| no_repository(git_dir, &error);
        let git = Repository::open_bare(git_dir).map_err(problem)?;
        let settings = Config::open(&git_dir.join("config")).map_err(problem)?;
        for (key, usual, other) in [
            ("extensions.objectformat", "sha1", "a hash other than SHA-1"),
            (
                "extensions.refstorage",
                "files",
                "a ref storage other than files",
            ),
        ] {
            if settings.get_string(key).is_ok_and(|value| value != usual) {
                let path = git_dir.display();
                let problem = format!("uses {other}, which checkpoints do not support; convert it");
                return Err(GitError::unusable(format!("{path} {problem}")));
            }
        }
        Ok(Self {
            git_dir: git.commondir().to_owned(),
            branch: config.branch.clone(),
            git,
        })
    }

    /// Full name of the branch's ref.
    pub(super) fn ref_name(&self) -> String {
        format!("refs/heads/{}", self.branch)
    }

    pub(super) fn branch_file(&self) -> PathBuf {
        self.git_dir.join("refs/heads").join(&self.branch)
    }

    pub(super) fn pack_dir(&self) -> PathBuf {
        self.git_dir.join("objects/pack")
    }

    /// Directory of packs that are being created or removed.
    pub(super) fn unfinished_dir(&self) -> PathBuf {
        self.git_dir.join("memoird.new")
    }

    /// Opens the repository again, with its own settings and its current packs.
    pub(super) fn reopened(&self) -> Result<Self, GitError> {
        let opened = Repository::open_bare(&self.git_dir);
        Ok(Self {
            git_dir: self.git_dir.clone(),
            branch: self.branch.clone(),
            git: opened.map_err(|error| no_repository(&self.git_dir, &error))?,
        })
    }

    /// The commit at the tip of the branch. `None` if the branch does not exist.
    pub(super) fn tip(&self) -> Result<Option<Oid>, GitError> {
        let name = self.ref_name();
        match self.git.find_reference(&name) {
            Ok(found) => match found.target() {
                Some(id) => Ok(Some(id)),
                None => Err(self.damaged(&name, "is a symbolic ref")),
            },
            Err(error) if error.code() == ErrorCode::NotFound => Ok(None),
            Err(error) => Err(self.damaged(&name, error)),
        }
    }

    pub(super) fn commit(&self, id: Oid) -> Result<Commit<'_>, GitError> {
        let found = self.git.find_commit(id);
        found.map_err(|error| self.damaged(&id, error))
    }

    /// Reads an object, which must be of this kind.
    pub(super) fn read(&self, id: Oid, kind: ObjectType) -> Result<Vec<u8>, GitError> {
        let damaged = |error: git2::Error| self.damaged(&id, error);
        let odb = self.git.odb().map_err(damaged)?;
        let found = odb.read(id).map_err(damaged)?;
        if found.kind() != kind {
            let problem = format!("is a {}, not a {kind}", found.kind());
            return Err(self.damaged(&id, problem));
        }
        Ok(found.data().to_vec())
    }

    /// The tree of a commit.
    pub(super) fn tree_of(&self, commit: Oid) -> Result<Oid, GitError> {
        Ok(self.commit(commit)?.tree_id())
    }

    pub(super) fn tree(&self, id: Oid) -> Result<Tree<'_>, GitError> {
        let found = self.git.find_tree(id);
        found.map_err(|error| self.damaged(&id, error))
    }

    /// The id of a subtree of `root`. `None` if it does not exist.
    pub(super) fn folder(&self, root: Oid, folders: &[String]) -> Result<Option<Oid>, GitError> {
        let mut id = root;
        for (depth, name) in folders.iter().enumerate() {
            id = match self.tree(id)?.get_name(name) {
                None => return Ok(None),
                Some(entry) if entry.kind() == Some(ObjectType::Tree) => entry.id(),
                Some(_) => return Err(self.in_the_way(&folders[..=depth].join("/"))),
            };
        }
        Ok(Some(id))
    }

    pub(super) fn damaged(&self, what: &dyn Display, problem: impl Display) -> GitError {
        GitError::damaged(&self.git_dir, format!("{what}: {problem}"))
    }

    /// Error for a path that is not a directory or not a file, although it should be.
    pub(super) fn in_the_way(&self, name: &str) -> GitError {
        let branch = &self.branch;
        let problem = format!("on branch {branch} blocks a path of checkpoints; rename it");
        GitError::unusable(format!("{name} {problem}"))
    }
}

fn no_repository(path: &Path, problem: &dyn Display) -> GitError {
    let path = path.display();
    GitError::unusable(format!(
        "{path} is not a git repository ({problem}); move it away, or repair it"
    ))
}

/// Whether `path` does not exist or is an empty directory.
fn is_vacant(path: &Path) -> Result<bool, GitError> {
    match fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            Err(no_repository(path, &"a file has its name"))
        }
        Err(error) => Err(error).io_context("read", path),
    }
}

/// Builds a bare repository in a temporary directory and renames it to `path`.
fn create(config: &GitConfig, path: &Path, stop: &CancelSignal) -> Result<(), GitError> {
    create_private(&config.dir)?;
    let folder = File::open(&config.dir).io_context("open", &config.dir)?;
    lock::lock_file(&folder, &config.dir, stop)?;
    // Another process may have created it while this one waited for the lock.
    if !is_vacant(path)? {
        return Ok(());
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Left over after a crash. The next attempt uses the same name and clears it first.
    let new = config.dir.join(format!(".new-{name}"));
    let built = build(config, &new).and_then(|()| {
        fs::rename(&new, path).io_context("create", path)?;
        sync_dir(&config.dir)
    });
    match &built {
        Ok(()) => tracing::info!(path = %path.display(), "created a checkpoint repository"),
        Err(_) => _ = fs::remove_dir_all(&new),
    }
    built
}

/// Creates a directory with mode 0700, so that other users cannot read conversations.
fn create_private(path: &Path) -> Result<(), GitError> {
    let mut private = fs::DirBuilder::new();
    private.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut private, 0o700);
    private.create(path).io_context("create", path)
}

fn build(config: &GitConfig, new: &Path) -> Result<(), GitError> {
    match fs::remove_dir_all(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).io_context("remove", new);
        }
        _ => {}
    }
    create_private(new)?;
    let folders = ["objects/info", "objects/pack", "refs/heads", "refs/tags"];
    for folder in folders.map(|folder| new.join(folder)) {
        fs::create_dir_all(&folder).io_context("create", &folder)?;
    }
    write(&new.join("config"), CONFIG)?;
    let head = format!("ref: refs/heads/{}\n", config.branch);
    write(&new.join("HEAD"), head.as_bytes())?;
    for folder in folders.into_iter().chain(["objects", "refs", ""]) {
        sync_dir(&new.join(folder))?;
    }
    Ok(())
}

/// Creates a file and syncs it to disk.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<(), GitError> {
    let mut file = File::create(path).io_context("create", path)?;
    file.write_all(content).io_context("write", path)?;
    file.sync_all().io_context("write", path)
}

/// Syncs a directory, which makes created and renamed entries durable.
pub(super) fn sync_dir(path: &Path) -> Result<(), GitError> {
    File::open(path)
        .and_then(|folder| folder.sync_all())
        .io_context("write", path)
}
