//! Nothing but its `Cargo.toml`, which says what it is for.
