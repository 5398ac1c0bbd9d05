//! Persists the nonce key in a small file next to the journal, so that windows survive a restart.
//!
//! If it is lost, each window misses the provider's cache once.

use std::fs;
use std::io;
use std::path::Path;

use memoird_core::nonce::NonceSecret;
use memoird_engine::{Machine, new_nonce_secret};
use tracing::warn;

use crate::data_files::replace;

const FILE: &str = "marks.key";

/// Loads the nonce key of a data directory, or creates one.
pub(crate) fn of_dir(data_dir: &Path, machine: &dyn Machine) -> NonceSecret {
    let path = data_dir.join(FILE);
    let problem = match read(&path) {
        Ok(Some(secret)) => return secret,
        Ok(None) => "it is not 32 bytes long".to_owned(),
        Err(error) => error.to_string(),
    };
    let secret = new_nonce_secret(machine);
    if path.exists() {
        warn!(%problem, path = %path.display(), "the nonce secret cannot be read and is replaced: \
            windows get new nonces");
    }
    // The journal reports a full disk.
    if let Err(error) = replace(&path, secret.bytes()) {
        warn!(%error, path = %path.display(), "the nonce secret could not be written: windows get \
            new nonces after a restart");
    }
    secret
}

fn read(path: &Path) -> io::Result<Option<NonceSecret>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
        Ok(bytes) => Ok(bytes.try_into().ok().map(NonceSecret::new)),
    }
}
#[cfg(test)]
mod tests {
    use memoird_engine::SystemMachine;

    use super::*;

    #[test]
    fn secret_is_kept_and_damaged_one_is_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        let machine = SystemMachine::resume(None);
        let first = of_dir(dir.path(), &machine);
        assert!(of_dir(dir.path(), &machine) == first);
        fs::write(dir.path().join(FILE), b"short").expect("written");
        let second = of_dir(dir.path(), &machine);
        assert!(second != first);
        assert!(of_dir(dir.path(), &machine) == second);
        let nowhere = dir.path().join("nowhere");
        assert!(of_dir(&nowhere, &machine) != second, "the daemon starts");
    }
}
