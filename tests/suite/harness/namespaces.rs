//! Mounts and networks visible to one daemon only, with `unshare` as its wrapper.

use std::process::Command;

use super::skip;

/// A kind of namespace that `unshare` can create.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Namespace {
    Mount,
    Network,
}

impl Namespace {
    pub(crate) fn flag(self) -> &'static str {
        match self {
            Self::Mount => "-m",
            Self::Network => "-n",
        }
    }

    fn capability(self) -> &'static str {
        match self {
            Self::Mount => "mount-namespace",
            Self::Network => "network-namespace",
        }
    }

    /// Whether this script runs in a new namespace. If not, the test is skipped.
    #[track_caller]
    pub(crate) fn allows(self, script: &str, test: &str) -> bool {
        let tried = Command::new("unshare")
            .args([self.flag(), "sh", "-c", script])
            .output();
        let is_allowed = tried.is_ok_and(|output| output.status.success());
        if !is_allowed {
            skip(test, self.capability());
        }
        is_allowed
    }
}
