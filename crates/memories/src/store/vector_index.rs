//! The vector index of a database.

use std::collections::{HashMap, HashSet};

use super::row::has_kind;
use super::time::moment;
use crate::MemoryError;
use crate::rules::Memory;

/// Candidates per requested result that are selected by sign bits and compared exactly.
///
/// Measured with 10,000 vectors of 384 dimensions: 64 candidates contain 99 % of the best ten, and
/// 200 contain 96 % of the best fifty.
const CHOSEN_PER_WANTED: usize = 4;
/// Minimum number of candidates.
const CHOSEN_MIN: usize = 128;

/// The properties of a memory that searches filter by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FilterColumns {
    pub(super) kind: u8,
    pub(super) observed: i64,
    pub(super) expires: Option<i64>,
}

impl FilterColumns {
    pub(super) fn new(memory: &Memory) -> Self {
        Self {
            kind: memory.kind as u8,
            observed: moment(memory.observed_at),
            expires: memory.expires_at.map(moment),
        }
    }
}

/// Condition on the memories that a search may return.
#[derive(Clone, Debug)]
pub(super) struct Filter {
    pub(super) kinds: u8,
    pub(super) observed_after: Option<i64>,
    pub(super) observed_before: Option<i64>,
    /// Excludes memories that have expired by then.
    pub(super) now: i64,
    /// If set, only these memories.
    pub(super) among: Option<HashSet<i64>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Model {
    pub(super) no: u16,
    /// 0 until the first vector is stored.
    pub(super) dimension: usize,
}

/// Number of results of a search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub(super) count: usize,
    /// Number of candidates to compare exactly, if candidates are preselected by sign bits.
    pub(super) chosen_max: usize,
}

impl Wanted {
    pub(super) fn new(count: usize) -> Self {
        Self {
            count,
            chosen_max: count.saturating_mul(CHOSEN_PER_WANTED).max(CHOSEN_MIN),
        }
    }
}

impl Filter {
    pub(super) fn passes(&self, no: i64, glance: FilterColumns) -> bool {
        has_kind(self.kinds, glance.kind)
            && self
                .observed_after
                .is_none_or(|after| glance.observed >= after)
            && self
                .observed_before
                .is_none_or(|before| glance.observed < before)
            && glance.expires.is_none_or(|expires| expires > self.now)
            && self.among.as_ref().is_none_or(|among| among.contains(&no))
    }
}

/// Stores vectors and finds the nearest ones.
pub(super) trait VectorIndex {
    /// Whether vectors can be stored. If not, all operations on them do nothing.
    fn stores_vectors(&self) -> bool {
        true
    }

    /// Stores a vector, replacing the previous one.
    fn put_vector(
        &self,
        no: i64,
        model: Model,
        glance: FilterColumns,
        values: &[f32],
    ) -> Result<(), MemoryError>;

    /// Deletes a vector. Returns whether there was one.
    fn remove_vector(&self, no: i64) -> Result<bool, MemoryError>;

    /// Moves a vector to another number, or only updates its filter properties.
    fn move_vector(&self, was: i64, no: i64, glance: FilterColumns) -> Result<(), MemoryError>;

    /// Vectors of these memories, each with the number of its model.
    fn vectors_of(&self, numbers: &[i64]) -> Result<HashMap<i64, (u16, Vec<f32>)>, MemoryError>;

    /// Finds the vectors of a model in these partitions that are nearest to the query.
    ///
    /// Returns their numbers and cosines, nearest first.
    fn nearest(
        &self,
        model: Model,
        partitions: &[i64],
        filter: &Filter,
        query: &[f32],
        wanted: Wanted,
    ) -> Result<Vec<(i64, f64)>, MemoryError>;

    /// Computes the cosines of these memories' vectors to the query.
    ///
    /// The nearest come first, then the newest.
    fn measure(
        &self,
        model: Model,
        chosen: Vec<i64>,
        query: &[f32],
    ) -> Result<Vec<(i64, f64)>, MemoryError>;
}
