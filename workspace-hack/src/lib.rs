//! Empty; the package only lists dependencies in its `Cargo.toml`.
