//! The files that people see.

use gix::ObjectId;
use memoird_core::time::Timestamp;

use super::GitConfig;
use super::deliver::Checkpoint;
use super::error::GitError;
use super::lock::OwnLock;
use super::repo::Repo;

pub(super) struct Checkout;

impl Checkout {
    pub(super) fn begin(
        _repo: &Repo,
        _lock: &OwnLock,
        _line: &str,
    ) -> Result<Option<Self>, GitError> {
        Ok(None)
    }

    pub(super) fn finish(self, _batch: &[Checkpoint<'_>]) {}
}

pub(super) fn log(
    _repo: &Repo,
    _config: &GitConfig,
    _tip: Option<ObjectId>,
    _commit: ObjectId,
    _at: Timestamp,
) {
}
