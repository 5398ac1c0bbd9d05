//! Windows as bots ask for them and as operators look at them.

mod asking;
mod operating;
