//! Generation ids that sort by creation time.
//!
//! Ids generated within the same millisecond are also ordered. With random numbers alone, two
//! generations of a session could sort in either order.

use std::sync::{Mutex, PoisonError};

use memoird_core::ids::Generation;
use memoird_core::time::Timestamp;

use crate::machine::Machine;

#[derive(Debug, Default)]
pub(crate) struct Ids {
    generation: Mutex<Option<Generation>>,
}

impl Ids {
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
