//! Persists the learnt token charges of providers in a small file next to the journal.
//!
//! They are only a hint: if the file is lost or unreadable, they are learnt again.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use memoird_core::ids::TenantId;
use memoird_engine::{Engine, WorkError, Worker};
use memoird_formats::tokens::Calibration;
use tracing::warn;

use crate::data_files::replace;

const FILE: &str = "learnt_charges.json";
/// Maximum size of the file in bytes: enough for some hundred tenants with some ten models.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Interval between writes. A crash loses at most this much.
const PAUSE: Duration = Duration::from_secs(60);

/// By tenant and model profile.
type CalibrationsByTenant = BTreeMap<String, BTreeMap<Box<str>, Calibration>>;

/// Writes the charges when they have changed.
pub(crate) struct LearntCharges {
    engine: Engine,
    path: PathBuf,
    written: CalibrationsByTenant,
}

impl LearntCharges {
    /// Loads the charges of the last run into the engine.
    pub(crate) fn restore(engine: &Engine, data_dir: &Path) -> Self {
        let path = data_dir.join(FILE);
        let written = read(&path).unwrap_or_else(|problem| {
            warn!(%problem, path = %path.display(), "the learned token charges cannot be read and \
                are learned again");
            CalibrationsByTenant::new()
        });
        for (tenant, learnt) in &written {
            let tenant = TenantId::parse(tenant).ok();
            if let Some(tenant) = tenant.and_then(|id| engine.tenants.get(&id)) {
                tenant.calibrations.restore(learnt.clone());
            }
        }
        Self {
            engine: engine.clone(),
            path,
            written,
        }
    }

    fn write(&mut self) -> io::Result<()> {
        let tenants = self.engine.tenants.all();
        let learnt: CalibrationsByTenant = tenants
            .iter()
            .map(|tenant| {
                let charges = tenant.calibrations.all_shared();
                (tenant.id.to_string(), charges)
            })
            .filter(|(_, charges)| !charges.is_empty())
            .collect();
        if learnt == self.written {
            return Ok(());
        }
        replace(&self.path, &serde_json::to_vec(&learnt)?)?;
        self.written = learnt;
        Ok(())
    }
}

fn read(path: &Path) -> io::Result<CalibrationsByTenant> {
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(CalibrationsByTenant::new()),
        Err(error) => Err(error),
        Ok(file) if file.len() > FILE_BYTES_MAX => Err(io::ErrorKind::FileTooLarge.into()),
        Ok(_) => Ok(serde_json::from_slice(&fs::read(path)?)?),
    }
}

impl Worker for LearntCharges {
    fn name(&self) -> &'static str {
        "learnt charges"
    }

    async fn wait(&mut self) {
        tokio::time::sleep(PAUSE).await;
    }

    async fn step(&mut self) -> Result<(), WorkError> {
        // The journal reports a full disk. Written later.
        self.write().map_err(|error| WorkError(error.to_string()))
    }

    async fn finish(&mut self) {
        if let Err(error) = self.write() {
            warn!(%error, path = %self.path.display(), "the learned token charges could not be \
                written");
        }
    }
}
