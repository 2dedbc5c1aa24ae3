//! The stores beside a node, and what they hold.

mod collections;
mod connections;
mod cookie_age;
mod dead_letters;
mod frozen_disk;
mod full_disk;
mod newest_wins;
pub(crate) mod outages;
