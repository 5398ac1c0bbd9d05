//! A file that takes all room that a small file system has.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

const BLOCK_BYTES: usize = 256 << 10;
/// Of a file system that takes more, somebody else has need as well.
const FILLER_BYTES_MAX: u64 = 2 << 30;

/// The file; the room is free again when it is dropped.
pub(super) struct Filler {
    path: PathBuf,
    file: File,
    written: u64,
}

impl Filler {
    pub(super) fn in_dir(dir: &Path) -> Result<Self> {
        let path = dir.join("filler");
        let file = File::create(&path)?;
        Ok(Self {
            path,
            file,
            written: 0,
        })
    }

    /// Takes what is free.
    pub(super) fn fill(&mut self) -> Result<()> {
        let block = vec![7; BLOCK_BYTES];
        // Smaller and smaller, up to the last page.
        let mut size = block.len();
        while size >= 1 << 10 {
            match self.file.write(&block[..size]) {
                Ok(bytes) => self.written += bytes as u64,
                Err(error) if error.kind() == ErrorKind::StorageFull => size /= 2,
                Err(error) => return Err(error.into()),
            }
            if self.written > FILLER_BYTES_MAX {
                bail!("{} is in no small file system", self.path.display());
            }
        }
        Ok(())
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        // It goes with the directory at the latest.
        let _ = std::fs::remove_file(&self.path);
    }
}
