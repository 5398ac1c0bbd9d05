//! A file that fills up a small file system.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

const BLOCK_BYTES: usize = 256 << 10;
/// Maximum size of the file. A larger file system is not dedicated to the test.
const FILLER_BYTES_MAX: u64 = 2 << 30;

/// The file. Dropping it frees the space.
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

    pub(super) fn fill(&mut self) -> Result<()> {
        let block = vec![7; BLOCK_BYTES];
        // Smaller and smaller blocks, down to the last page.
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
        // It is removed with the directory at the latest.
        let _ = std::fs::remove_file(&self.path);
    }
}
