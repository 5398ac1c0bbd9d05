//! Names for what is made here, in the order in which it is made: also within a millisecond,
//! in which random numbers alone would bring two lives of a session in any order.

use std::sync::{Mutex, PoisonError};

use memoird_core::ids::Generation;
use memoird_core::time::Timestamp;

use crate::machine::Machine;

/// The names that were given out last.
#[derive(Debug, Default)]
pub(crate) struct Ids {
    generation: Mutex<Option<Generation>>,
}

impl Ids {
    /// A name for a life of a session.
    pub(crate) fn generation(&self, machine: &dyn Machine, at: Timestamp) -> Generation {
        let name = |last| Generation::after(last, at.as_ms(), machine.random());
        next(&self.generation, name)
    }
}

fn next<T: Copy>(last: &Mutex<Option<T>>, name: impl FnOnce(Option<T>) -> T) -> T {
    let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
    let next = name(*last);
    *last = Some(next);
    next
}
