//! Branch tips of all checkpoint repositories, to be recorded in a backup.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use git2::Repository;

use super::GitConfig;
use super::error::{Doing, GitError};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Absolute path.
    pub repository: PathBuf,
    pub branch: String,
    pub commit: String,
}

/// Returns the branch tips of all repositories of a hook, sorted by repository.
///
/// Repositories without the branch, and other directories, are skipped.
///
/// # Errors
/// If the directory of the repositories cannot be read.
pub fn heads(config: &GitConfig) -> Result<Vec<Head>, GitError> {
    let dir = std::path::absolute(&config.dir).doing("find", &config.dir)?;
    let entries = match std::fs::read_dir(&dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.doing("list", &dir)?,
    };
    let mut heads = Vec::new();
    for entry in entries {
        let path = entry.doing("list", &dir)?.path();
        heads.extend(head(&path, &config.branch));
    }
    heads.sort_by(|left, right| left.repository.cmp(&right.repository));
    Ok(heads)
}

fn head(repository: &Path, branch: &str) -> Option<Head> {
    let work_tree = repository.join(".git");
    let git_dir = if work_tree.exists() {
        &*work_tree
    } else {
        repository
    };
    let git = Repository::open_bare(git_dir).ok()?;
    let tip = git.find_reference(&format!("refs/heads/{branch}")).ok()?;
    Some(Head {
        repository: repository.to_owned(),
        branch: branch.to_owned(),
        commit: tip.target()?.to_string(),
    })
}
