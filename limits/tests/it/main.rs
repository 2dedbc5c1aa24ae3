//! Tests of the public interface against models and bounds.

mod bounds;
mod change;
mod earliest;
mod models;
mod oracle;
mod remaining;
mod reported;
mod saving;
mod shares;
