//! The stores beside a node, and what they hold.

mod ages;
mod collections;
mod connections;
mod frozen_disk;
mod full_disk;
mod newest_wins;
pub(crate) mod outages;
mod refusals;
