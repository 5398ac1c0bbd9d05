//! The repository of a tenant: found, or made so that a crash never leaves half of one.

use std::fmt::Display;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use gix::objs::Kind;
use gix::{ObjectId, sec};
use memoird_core::ids::TenantId;

use super::GitConfig;
use super::error::{Doing, GitError, Problem};
use super::lock::{self, Stop};
use super::names;

/// The config of a new repository, but for `bare`.
const CONFIG: &str = "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n";

/// An open repository.
pub(super) struct Repo {
    /// Where git keeps its data.
    pub(super) git_dir: PathBuf,
    /// Where people find files, if they do.
    pub(super) work_dir: Option<PathBuf>,
    /// The branch of checkpoints.
    pub(super) branch: String,
    git: gix::Repository,
}

/// Where a tenant's repository is, and where its git data are.
fn place(config: &GitConfig, tenant: &TenantId) -> (PathBuf, PathBuf) {
    let name = names::tenant(tenant);
    if config.worktree {
        let path = config.dir.join(name);
        let git_dir = path.join(".git");
        return (path, git_dir);
    }
    let path = config.dir.join(format!("{name}.git"));
    (path.clone(), path)
}

impl Repo {
    /// Opens the repository of a tenant, and creates it when it is missing.
    pub(super) fn open_or_create(
        config: &GitConfig,
        tenant: &TenantId,
        stop: &Stop,
    ) -> Result<Self, GitError> {
        let (path, git_dir) = place(config, tenant);
        if is_vacant(&path)? {
            create(config, &path, stop)?;
        }
        Self::open_at(config, &path, &git_dir)
    }

    /// Opens the repository of a tenant.
    pub(super) fn open(config: &GitConfig, tenant: &TenantId) -> Result<Self, GitError> {
        let (path, git_dir) = place(config, tenant);
        if is_vacant(&path)? {
            return Err(GitError::Missing {
                what: path.display().to_string(),
            });
        }
        Self::open_at(config, &path, &git_dir)
    }

    fn open_at(config: &GitConfig, path: &Path, git_dir: &Path) -> Result<Self, GitError> {
        let options = gix::open::Options::isolated().open_path_as_is(true);
        let opened = options.with(sec::Trust::Full).open(git_dir);
        let problem = |error: gix::Error| GitError::NoRepository {
            path: path.to_owned(),
            problem: error.to_string(),
        };
        let git = opened.map_err(problem)?.to_thread_local();
        let unsupported = |feature| GitError::Unsupported {
            path: path.to_owned(),
            feature,
        };
        if git.object_hash() != gix::hash::Kind::Sha1 {
            return Err(unsupported("another hash than SHA-1"));
        }
        let storage = git.config_snapshot().string("extensions.refStorage");
        if storage.is_some_and(|storage| storage != "files") {
            return Err(unsupported("another storage of refs than files"));
        }
        let work_dir = config.worktree.then(|| path.to_owned());
        let git_dir = git.common_dir().to_owned();
        Ok(Self {
            git_dir,
            work_dir,
            branch: config.branch.clone(),
            git,
        })
    }

    /// The file of the branch.
    pub(super) fn branch_file(&self) -> PathBuf {
        self.git_dir.join("refs/heads").join(&self.branch)
    }

    /// Where packs are.
    pub(super) fn pack_dir(&self) -> PathBuf {
        self.git_dir.join("objects/pack")
    }

    /// The commit at the tip of the branch, or `None` when there is no such branch.
    pub(super) fn tip(&self) -> Result<Option<ObjectId>, GitError> {
        let name = format!("refs/heads/{}", self.branch);
        let found = self.git.try_find_reference(name.as_str());
        let Some(found) = found.map_err(|error| self.damaged(&name, error))? else {
            return Ok(None);
        };
        let id = found.target().try_id().map(ToOwned::to_owned);
        id.ok_or_else(|| self.damaged(&name, "is a symbolic ref"))
            .map(Some)
    }

    /// True when HEAD is the branch of checkpoints.
    pub(super) fn is_checked_out(&self) -> bool {
        let head = self.git.head_name().ok().flatten();
        head.is_some_and(|head| head.as_bstr() == format!("refs/heads/{}", self.branch).as_str())
    }

    /// The content of an object of that kind.
    pub(super) fn read(&self, id: ObjectId, kind: Kind) -> Result<Vec<u8>, GitError> {
        let mut found = self
            .git
            .find_object(id)
            .map_err(|error| self.damaged(&id, error))?;
        match found.kind == kind {
            true => Ok(std::mem::take(&mut found.data)),
            false => Err(self.damaged(&id, format!("is a {}, not a {kind}", found.kind))),
        }
    }

    /// The tree of a commit.
    pub(super) fn tree_of(&self, commit: ObjectId) -> Result<ObjectId, GitError> {
        let content = self.read(commit, Kind::Commit)?;
        let mut parts = gix::objs::CommitRefIter::from_bytes(&content, self.git.object_hash());
        parts
            .tree_id()
            .map_err(|error| self.damaged(&commit, error))
    }

    /// An error about a part of this repository.
    pub(super) fn damaged(&self, what: &dyn Display, problem: impl Into<Problem>) -> GitError {
        let Problem(problem) = problem.into();
        GitError::damaged(&self.git_dir, format!("{what}: {problem}"))
    }
}

/// True when there is nothing at `path`, or an empty folder.
fn is_vacant(path: &Path) -> Result<bool, GitError> {
    match fs::read_dir(path) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => {
            let problem = "a file has its name".to_owned();
            Err(GitError::NoRepository {
                path: path.to_owned(),
                problem,
            })
        }
        Err(error) => Err(error).doing("read", path),
    }
}

/// Builds the repository beside its place and moves it there whole.
fn create(config: &GitConfig, path: &Path, stop: &Stop) -> Result<(), GitError> {
    let mut private = fs::DirBuilder::new();
    private.recursive(true);
    // Conversations are for nobody else on the machine, unless somebody opens the folder.
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut private, 0o700);
    private.create(&config.dir).doing("create", &config.dir)?;
    let folder = File::open(&config.dir).doing("open", &config.dir)?;
    lock::hold(&folder, &config.dir, stop)?;
    // Another memoird may have been faster.
    if !is_vacant(path)? {
        return Ok(());
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // A crash leaves it behind; the same name is used, and cleared, the next time.
    let new = config.dir.join(format!(".new-{name}"));
    let built = build(config, &new).and_then(|()| {
        fs::rename(&new, path).doing("create", path)?;
        sync_dir(&config.dir)
    });
    match &built {
        Ok(()) => tracing::info!(path = %path.display(), "repository of checkpoints created"),
        Err(_) => _ = fs::remove_dir_all(&new),
    }
    built
}

fn build(config: &GitConfig, new: &Path) -> Result<(), GitError> {
    match fs::remove_dir_all(new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(error).doing("remove", new);
        }
        _ => {}
    }
    let git_dir = if config.worktree {
        new.join(".git")
    } else {
        new.to_owned()
    };
    let folders = ["objects/info", "objects/pack", "refs/heads", "refs/tags"];
    for folder in folders {
        let folder = git_dir.join(folder);
        fs::create_dir_all(&folder).doing("create", &folder)?;
    }
    let kind = match config.worktree {
        true => "\tbare = false\n\tlogallrefupdates = true\n",
        false => "\tbare = true\n",
    };
    write(
        &git_dir.join("config"),
        format!("{CONFIG}{kind}").as_bytes(),
    )?;
    write(
        &git_dir.join("HEAD"),
        format!("ref: refs/heads/{}\n", config.branch).as_bytes(),
    )?;
    for folder in folders.into_iter().chain(["objects", "refs", ""]) {
        sync_dir(&git_dir.join(folder))?;
    }
    sync_dir(new)
}

/// Writes a new file to the disk, through every cache.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<(), GitError> {
    let mut file = File::create(path).doing("create", path)?;
    file.write_all(content).doing("write", path)?;
    file.sync_all().doing("write", path)
}

/// Makes names in a folder last.
pub(super) fn sync_dir(path: &Path) -> Result<(), GitError> {
    File::open(path)
        .and_then(|folder| folder.sync_all())
        .doing("write", path)
}
