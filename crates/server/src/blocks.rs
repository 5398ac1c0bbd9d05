//! Files in blocks with their hashes: what a backup compares, sends and checks.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use memoird_core::sha256::Sha256;

/// Bytes of a block; the last one of a file may be shorter.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;
/// Bytes of a block's hash.
pub(crate) const HASH_BYTES: usize = 16;

/// The beginning of a block's SHA-256.
pub(crate) type BlockHash = [u8; HASH_BYTES];

/// A part of a file.
pub(crate) struct Block<'a> {
    /// Where it begins.
    pub(crate) offset: u64,
    pub(crate) data: &'a [u8],
    pub(crate) hash: BlockHash,
}

/// Calls `take` with each block of a file, in order, up to the first error.
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

fn hash(data: &[u8]) -> BlockHash {
    let mut hash = BlockHash::default();
    hash.copy_from_slice(&Sha256::digest(data)[..HASH_BYTES]);
    hash
}
