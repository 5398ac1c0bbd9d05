//! Revocation of keys during a call.
//!
//! A call checks its key directly before its command, because its request may take arbitrarily long
//! to arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tonic::Status;

use crate::auth::AuthError;
use crate::wire::status;

/// Validity of a key, shared with the calls it admitted.
///
/// The next keyring takes it over if it contains the same key.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyValidity(Arc<AtomicBool>);

impl KeyValidity {
    /// Invalidates the key: its calls have no further effect.
    pub(crate) fn revoke(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Checks the key. Must be called directly before a command.
    ///
    /// # Errors
    /// If the key was revoked.
    pub(crate) fn check(&self) -> Result<(), Status> {
        if self.0.load(Ordering::Acquire) {
            Err(status::denied(AuthError::WrongKey))
        } else {
            Ok(())
        }
    }
}
