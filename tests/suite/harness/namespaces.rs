//! Mounts and networks that one daemon alone sees: its wrapper is `unshare`.

use std::process::Command;

use super::skip;

/// A kind of namespace, as `unshare` is asked for it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Namespace {
    Mount,
    Network,
}

impl Namespace {
    /// The argument of `unshare`.
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

    /// Whether this script runs in a namespace of its own; where not, the test is skipped.
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
