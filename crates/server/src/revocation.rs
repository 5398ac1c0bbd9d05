//! Revocation of keys during a call.
//!
//! A call checks its key again directly before its command, because its request may have taken
//! arbitrarily long to arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tonic::Status;

use crate::auth::Denied;
use crate::wire::status;

/// Validity of a key, shared with the calls it admitted.
///
/// It outlives the keyring, and is carried over to the next keyring if that contains the same key.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyValidity(Arc<AtomicBool>);

impl KeyValidity {
    /// Invalidates the key, so that its calls have no effect any longer.
    pub(crate) fn revoke(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Whether both belong to the same key.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Checks the key. Must be called directly before a command.
    ///
    /// # Errors
    /// If the key was revoked.
    pub(crate) fn check(&self) -> Result<(), Status> {
        match self.0.load(Ordering::Acquire) {
            true => Err(status::denied(Denied::WrongKey)),
            false => Ok(()),
        }
    }
}
