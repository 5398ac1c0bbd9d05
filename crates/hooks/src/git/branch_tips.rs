//! Branch tips of all checkpoint repositories, to be recorded in a backup.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use git2::Repository;

use super::GitConfig;
use super::error::{GitError, IoContext};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchTip {
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
pub fn branch_tips(config: &GitConfig) -> Result<Vec<BranchTip>, GitError> {
    let dir = std::path::absolute(&config.dir).io_context("find", &config.dir)?;
    let entries = match std::fs::read_dir(&dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.io_context("list", &dir)?,
    };
    let mut tips = Vec::new();
    for entry in entries {
        let path = entry.io_context("list", &dir)?.path();
        tips.extend(branch_tip(&path, &config.branch));
    }
    tips.sort_by(|left, right| left.repository.cmp(&right.repository));
    Ok(tips)
}

fn branch_tip(repository: &Path, branch: &str) -> Option<BranchTip> {
    let git = Repository::open_bare(repository).ok()?;
    let tip = git.find_reference(&format!("refs/heads/{branch}")).ok()?;
    Some(BranchTip {
        repository: repository.to_owned(),
        branch: branch.to_owned(),
        commit: tip.target()?.to_string(),
    })
}
