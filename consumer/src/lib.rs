//! The consumer: reads the streams of all producers and keeps one local store current.
//!
//! The way of a cookie, module by module:
//!
//! ```text
//! producer ──stream──▶ subscription ──bounded buffer──▶ sink: batch ──hand-over──▶ sink: writer ──▶ store
//! (one task an address; reads, checks, pushes)          (newest per pair)          (retries)       (commits)
//! ```
//!
//! - [`subscription`] keeps one stream open to every producer and pushes what it receives, unread, into a
//!   buffer that is bounded in bytes. When the buffer is full reading stops, and HTTP/2 flow control holds the
//!   stream: the producer's queue takes the strain, never this process.
//! - [`producers`] is the one table of how far each of them was received and is durable.
//! - [`batch`] keeps the newest cookie of each (user, DSP) pair, without copying a byte of it.
//! - [`dsp_slots`] knows which DSPs' cookies are taken at all.
//! - [`sink`] collects a batch while the one before is written, retries what the store refuses, and hands over
//!   the cursors with the data. [`dead_letters`] keeps what the store refuses forever, and
//!   [`retry_queue`] indexes what it does not take of one DSP alone, until it does.
//! - [`store`] makes a batch durable and only then its cursors, so that a restarted consumer resumes where its
//!   *store* stands. A batch written twice changes nothing.
//! - [`ledger`] knows what became of every cookie received; at any time it adds up.
//! - [`health`] knows what works.
//! - [`maintenance`] lets stores expire and compact inside nightly windows, by a [`clock`] that tests set; [`lookup`]
//!   answers what is stored.
//!
//! Only [`app`] knows all of them. Only [`config`] reads the environment. [`batch`], [`ttl`] and [`maintenance_window`]
//! contain no `async`.

pub mod clock;
pub mod config;
pub mod ttl;

pub mod app;

pub mod producers;
pub mod subscription;

pub mod batch;
pub mod dsp_slots;

pub mod suppression;

pub mod sink;

pub mod dead_letters;
pub mod retry_queue;

pub mod store;

pub mod maintenance;
pub mod maintenance_window;

pub mod lookup;

pub mod backoff;
pub mod health;
pub mod ledger;
pub mod metrics;

pub use config::Config;
