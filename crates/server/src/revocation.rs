//! Whether the key that let a call in still applies. A call asks again directly before its
//! command: its bytes may have been on their way for as long as its client wanted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tonic::Status;

use crate::auth::Denied;
use crate::wire::status;

/// A key, as the calls that it let in know it. It outlives the keyring that it was in, and is
/// the same one in the next keyring where that has the same key.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyValidity(Arc<AtomicBool>);

impl KeyValidity {
    /// Its calls do nothing any more.
    pub(crate) fn revoke(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// True where both are of one key.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// To be asked directly before a command.
    ///
    /// # Errors
    /// Where the key was revoked.
    pub(crate) fn check(&self) -> Result<(), Status> {
        match self.0.load(Ordering::Acquire) {
            true => Err(status::denied(Denied::WrongKey)),
            false => Ok(()),
        }
    }
}
