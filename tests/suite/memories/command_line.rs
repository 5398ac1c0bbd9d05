//! `memoird memory`, by the real binary.
