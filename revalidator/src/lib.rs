//! The library of the program `revalidator`.
//!
//! A job is a list of assets. Workers check each asset at its origin by a conditional request, replace or remove stored objects, and
//! publish results; a maker transmits the assets in batches and counts the results.
//!
//! - [`messages`] are the objects on the broker; [`engine`] is the broker, and [`mirror`] a copy of its buckets.
//! - [`jobs`], [`concurrency`], [`outcome`] and [`digest`] decide, without network, disk or clock.
//! - [`maker`] and [`create`] make jobs, from a [`source`] and by a [`schedule`].
//! - [`worker`] takes a job by a [`lease`] and checks its batches ([`batch`]), in requests to an [`origin`] under a [`limiter`], with
//!   effects on [`contents`].
//! - [`apps`] is the file of applications.

pub mod apps;
pub mod batch;
pub mod concurrency;
pub mod contents;
pub mod create;
pub mod digest;
pub mod engine;
pub mod jobs;
pub mod lease;
pub mod limiter;
pub mod maker;
pub mod messages;
pub mod metrics;
pub mod mirror;
pub mod origin;
pub mod outcome;
pub mod schedule;
pub mod source;
pub mod worker;
