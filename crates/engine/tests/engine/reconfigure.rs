//! Another configuration for an engine that runs.
