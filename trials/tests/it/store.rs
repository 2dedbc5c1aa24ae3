//! Tests of the stores of a node: contents, outages, and rejected cookies.

mod collections;
mod connections;
mod cookie_age;
mod dead_letters;
mod deletions;
mod frozen_disk;
mod full_disk;
mod newest_wins;
pub(crate) mod outages;
