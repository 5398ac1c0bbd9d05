//! The probe: after a compaction, what of the span's identifiers can still be found.

use super::spoken::Spoken;

/// What was found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Probe {
    /// Different identifiers of the span.
    pub identifiers: u32,
    /// Of these, how many stand in what is left.
    pub found: u32,
}

impl Probe {
    /// Looks for the identifiers of a span in the texts that are left: summary, notes, tail.
    pub fn of(_span: &[Spoken], _left: &[&str]) -> Self {
        Self::default()
    }

    /// The share that was found, 0 to 1; 1 where there was nothing to find.
    pub fn score(&self) -> f64 {
        match self.identifiers {
            0 => 1.0,
            all => f64::from(self.found) / f64::from(all),
        }
    }
}
