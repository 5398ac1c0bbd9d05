//! Configuration of the git hook.

use std::path::PathBuf;
use std::time::Duration;

use memoird_core::config::{AsText, Span};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct GitConfig {
    /// Directory with one repository per tenant.
    pub dir: PathBuf,
    /// The branch that receives the commits.
    pub branch: String,
    /// Name of author and committer.
    pub author_name: String,
    /// Email of author and committer.
    pub author_email: String,
    /// Maximum number of sessions per commit. At least 1.
    pub batch_max: usize,
    /// How long an ended session may wait for others to share its commit.
    ///
    /// The cost of a commit grows with the number of files of its minute.
    #[serde(with = "AsText::<Span>")]
    pub batch_wait: Duration,
    pub erase: EraseMode,
}

/// How an erasure changes the history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum EraseMode {
    /// Rewrites the history without the erased files, and deletes their objects.
    ///
    /// Existing clones diverge.
    #[default]
    Rewrite,
    /// Keeps the history, and removes the files with a new commit.
    ///
    /// The result names the commits that still contain them.
    Tombstone,
}

impl Default for GitConfig {
    fn default() -> Self {
        Self {
            dir: "./memoird-data/checkpoints".into(),
            branch: "main".to_owned(),
            author_name: "memoird".to_owned(),
            author_email: "memoird@localhost".to_owned(),
            batch_max: 1_000,
            batch_wait: Duration::from_secs(1),
            erase: EraseMode::default(),
        }
    }
}

impl GitConfig {
    /// Returns the first configuration error, for the operator.
    pub fn problem(&self) -> Option<String> {
        let is_name = git2::Branch::name_is_valid(&self.branch).unwrap_or(false);
        if !is_name || self.branch.starts_with('-') || self.branch == "HEAD" {
            return Some(format!(
                "branch: {:?} is not a valid git branch name",
                self.branch
            ));
        }
        let is_bad = |text: &str| {
            let text = text.trim();
            text.is_empty() || text.contains(|c: char| c.is_control() || c == '<' || c == '>')
        };
        for (field, text) in [("name", &self.author_name), ("email", &self.author_email)] {
            if is_bad(text) {
                let what = "must not be empty or contain <, > or line ends";
                return Some(format!("author_{field}: {text:?} {what}"));
            }
        }
        if self.dir.as_os_str().is_empty() {
            return Some("dir: must not be empty".to_owned());
        }
        (self.batch_max == 0).then(|| "batch_max: must be at least 1".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_git_rejects_are_rejected() {
        assert_eq!(GitConfig::default().problem(), None);
        for branch in ["team/checkpoints", "main-2", "ä"] {
            let config = GitConfig {
                branch: branch.to_owned(),
                ..GitConfig::default()
            };
            assert_eq!(config.problem(), None, "{branch}");
        }
        let bad = [
            "", "a b", "a..b", "/a", "a/", "-a", "a.lock", "HEAD", "a//b", "../x", "a\n",
        ];
        for branch in bad {
            let config = GitConfig {
                branch: branch.to_owned(),
                ..GitConfig::default()
            };
            assert!(
                config
                    .problem()
                    .is_some_and(|it| it.starts_with("branch: ")),
                "{branch}"
            );
        }
        for name in ["", " ", "a <b>", "a\nb"] {
            let config = GitConfig {
                author_name: name.to_owned(),
                ..GitConfig::default()
            };
            assert!(config.problem().is_some(), "{name}");
        }
        assert!(
            GitConfig {
                batch_max: 0,
                ..GitConfig::default()
            }
            .problem()
            .is_some()
        );
    }
}
