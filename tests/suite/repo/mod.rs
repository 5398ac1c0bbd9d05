//! Checks of the repository itself.

pub(crate) mod deploy;
mod layering;
mod tidiness;
