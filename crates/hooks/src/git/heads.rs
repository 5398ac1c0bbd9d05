//! Where the branches of all checkpoint repositories are, for a backup to note.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use git2::Repository;

use super::GitConfig;
use super::error::{Doing, GitError};

/// The tip of the branch of one repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The directory of the repository, as an absolute path.
    pub repository: PathBuf,
    /// The branch.
    pub branch: String,
    /// The id of the commit.
    pub commit: String,
}

/// The heads of all repositories that a hook writes, ordered by repository. Repositories
/// without the branch, and directories that are no repositories, are left out.
///
/// # Errors
/// When the folder of the repositories cannot be read.
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
    let git_dir = match work_tree.exists() {
        true => &*work_tree,
        false => repository,
    };
    let git = Repository::open_bare(git_dir).ok()?;
    let tip = git.find_reference(&format!("refs/heads/{branch}")).ok()?;
    Some(Head {
        repository: repository.to_owned(),
        branch: branch.to_owned(),
        commit: tip.target()?.to_string(),
    })
}
