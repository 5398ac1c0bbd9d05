//! Files in hashed blocks, the unit that a backup compares, transfers and verifies.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use memoird_core::sha256::Sha256;

/// Size of a block in bytes. The last block of a file may be shorter.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;
pub(crate) const HASH_BYTES: usize = 16;

/// Prefix of the block's SHA-256.
pub(crate) type BlockHash = [u8; HASH_BYTES];

pub(crate) struct Block<'a> {
    /// Offset in the file, in bytes.
    pub(crate) offset: u64,
    pub(crate) data: &'a [u8],
    pub(crate) hash: BlockHash,
}

/// Calls `take` with each block of a file, in order, until the first error.
pub(crate) fn each<E: From<io::Error>>(
    path: &Path,
    mut take: impl FnMut(Block<'_>) -> Result<(), E>,
) -> Result<(), E> {
    let mut file = File::open(path)?;
    let mut data = Vec::with_capacity(BLOCK_BYTES);
    let mut offset = 0;
    loop {
        data.clear();
        file.by_ref()
            .take(BLOCK_BYTES as u64)
            .read_to_end(&mut data)?;
        if data.is_empty() {
            return Ok(());
        }
        let hash = hash(&data);
        take(Block {
            offset,
            data: &data,
            hash,
        })?;
        offset += data.len() as u64;
    }
}

pub(crate) fn hash(data: &[u8]) -> BlockHash {
    let mut hash = BlockHash::default();
    hash.copy_from_slice(&Sha256::digest(data)[..HASH_BYTES]);
    hash
}
