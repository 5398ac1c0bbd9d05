//! What watchers are told.
