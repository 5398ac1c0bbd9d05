//! The key that encrypts the SQLite files of a data directory, and detection of encrypted files.
//!
//! SQLCipher encrypts every page (AES-256) and signs it (HMAC-SHA512), also in the log. The file
//! starts with a plaintext salt, which memoird chooses: a magic number, four bytes of a hash of the
//! key, and random bytes. So a file identifies itself without a second file, and a wrong key is
//! distinguished from damage.
//!
//! The key is used as is. Deriving it from a passphrase would cost 256,000 hash rounds per
//! connection. The salt gives each file its own signing key.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use memoird_core::hex;
use rusqlite::Connection;
use thiserror::Error;

use crate::StoreError;
use crate::sqlite_file::unusable;

const KEY_BYTES: usize = 32;
/// Bytes at the start of every SQLite file that identify its form.
const HEAD_BYTES: usize = 16;
/// Start of a plain SQLite file.
const PLAIN_HEAD: &[u8; HEAD_BYTES] = b"SQLite format 3\0";
/// Start of a file encrypted by memoird.
///
/// The key check and random bytes follow; all of it is the salt.
const ENCRYPTED_HEAD: &[u8; 6] = b"memoi\x01";
const CHECK_BYTES: usize = 4;
const RANDOM_BYTES: usize = HEAD_BYTES - ENCRYPTED_HEAD.len() - CHECK_BYTES;

/// An encryption key.
///
/// A build without the feature `encryption` cannot construct one, so code that has a key can
/// encrypt.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DataKey([u8; KEY_BYTES]);

/// Why a text is not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DataKeyError {
    /// Not 32 bytes in hexadecimal.
    #[error("must be 64 hexadecimal digits, as printed by `openssl rand -hex 32`")]
    Malformed,
    /// This build cannot encrypt.
    #[error(
        "this memoird cannot encrypt: it was built without the feature `encryption`; use a build \
         with it"
    )]
    NotBuilt,
}

/// Form of a file, by its first bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileForm {
    /// Missing or empty.
    Empty,
    Plain,
    /// Encrypted, with the check of its key.
    Encrypted([u8; CHECK_BYTES]),
    /// None of these.
    Unknown,
}

impl DataKey {
    /// Parses a key of 64 hexadecimal digits.
    ///
    /// # Errors
    /// [`DataKeyError`] if the text is malformed, or the build cannot encrypt.
    pub fn parse(digits: &str) -> Result<Self, DataKeyError> {
        if !cfg!(feature = "encryption") {
            return Err(DataKeyError::NotBuilt);
        }
        let key = hex::decode(digits).and_then(|key| key.try_into().ok());
        key.map(Self).ok_or(DataKeyError::Malformed)
    }

    /// Returns four bytes that identify the key without revealing it. Collisions are possible.
    fn check(&self) -> [u8; CHECK_BYTES] {
        #[cfg(feature = "encryption")]
        {
            use memoird_core::sha256::Sha256;
            let digest = Sha256::new()
                .chain_update(b"memoird data key\0")
                .chain_update(self.0)
                .finalize();
            std::array::from_fn(|index| digest[index])
        }
        #[cfg(not(feature = "encryption"))]
        [0; CHECK_BYTES]
    }

    /// Returns the argument of `PRAGMA key`.
    ///
    /// A new file also gets its salt here. SQLCipher reads the salt of an existing file from the
    /// file.
    ///
    /// # Errors
    /// If SQLite cannot generate random bytes.
    pub(crate) fn pragma(&self, is_new: bool) -> rusqlite::Result<String> {
        let mut text = format!("x'{}", hex::encode(&self.0));
        if is_new {
            let sql = format!("SELECT randomblob({RANDOM_BYTES})");
            let aside = Connection::open_in_memory()?;
            let random: Vec<u8> = aside.query_row(&sql, [], |row| row.get(0))?;
            let salt = [ENCRYPTED_HEAD.as_slice(), &self.check(), &random].concat();
            text.push_str(&hex::encode(&salt));
        }
        text.push('\'');
        Ok(text)
    }
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKey(hidden)")
    }
}

impl FileForm {
    /// Reads the form of a file.
    ///
    /// # Errors
    /// If the file exists and cannot be read.
    pub fn of(path: &Path) -> Result<Self, StoreError> {
        let mut head = Vec::with_capacity(HEAD_BYTES);
        let read = File::open(path).and_then(|file| {
            let mut file = file.take(HEAD_BYTES as u64);
            file.read_to_end(&mut head)
        });
        match read {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::Empty),
            Err(error) => Err(unusable(path, error)),
            Ok(_) => Ok(Self::of_head(&head)),
        }
    }

    fn of_head(head: &[u8]) -> Self {
        let behind = head.strip_prefix(ENCRYPTED_HEAD);
        match behind.and_then(|check| check.first_chunk()) {
            _ if head.is_empty() => Self::Empty,
            _ if head == PLAIN_HEAD => Self::Plain,
            Some(check) if head.len() == HEAD_BYTES => Self::Encrypted(*check),
            _ => Self::Unknown,
        }
    }
}

/// Rejects a file that cannot be opened with this key, before SQLite opens it.
///
/// A file that is not a SQLite file passes. Opening it reports that.
///
/// # Errors
/// [`StoreError::NotEncrypted`], [`StoreError::Encrypted`], [`StoreError::EncryptionNotBuilt`] or
/// [`StoreError::WrongKey`].
pub fn check_key(path: &Path, key: Option<&DataKey>) -> Result<(), StoreError> {
    let path = || path.to_owned();
    match (FileForm::of(&path())?, key) {
        (FileForm::Plain, Some(_)) => Err(StoreError::NotEncrypted { path: path() }),
        (FileForm::Encrypted(_), None) if cfg!(feature = "encryption") => {
            Err(StoreError::Encrypted { path: path() })
        }
        (FileForm::Encrypted(_), None) => Err(StoreError::EncryptionNotBuilt { path: path() }),
        (FileForm::Encrypted(check), Some(key)) if check != key.check() => {
            Err(StoreError::WrongKey { path: path() })
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_form_is_detected_from_first_bytes() {
        let forms = [
            (&b""[..], FileForm::Empty),
            (PLAIN_HEAD, FileForm::Plain),
            (b"memoi\x01abcd123456", FileForm::Encrypted(*b"abcd")),
            (b"memoi\x01abcd12345", FileForm::Unknown),
            (b"memoi\x02abcd123456", FileForm::Unknown),
            (b"SQLite format 3", FileForm::Unknown),
        ];
        for (head, form) in forms {
            assert_eq!(FileForm::of_head(head), form, "{head:?}");
        }
    }

    #[test]
    fn data_key_is_64_hex_digits_and_hidden_in_debug() {
        let good = "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF";
        if !cfg!(feature = "encryption") {
            assert_eq!(DataKey::parse(good), Err(DataKeyError::NotBuilt));
            return;
        }
        let key = DataKey::parse(good).unwrap();
        assert_eq!(format!("{key:?}"), "DataKey(hidden)");
        for bad in [
            "",
            "00",
            &good[1..],
            &good.replace('A', "g"),
            "é".repeat(32).as_str(),
        ] {
            assert_eq!(DataKey::parse(bad), Err(DataKeyError::Malformed), "{bad}");
        }
    }
}
