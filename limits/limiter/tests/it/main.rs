//! Tests of the limiter: its engine without network and disk, the programs, and the published files.

/// Bounds of the algorithms.
#[path = "../../../tests/it/bounds.rs"]
mod bounds;
mod engine;
mod program;
mod published_examples;
mod replays;
mod serve;
