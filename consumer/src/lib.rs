//! The consumer: reads the streams of all producers and writes their cookies (matches of a user id and a DSP's id for that
//! user) to one local store.
//!
//! ```text
//! producer ──stream──▶ subscription ──bounded buffer──▶ sink: collector ──batch──▶ sink: writer ──▶ store
//!                      (one task per address)           (newest per pair)          (write, commit)
//! ```
//!
//! - [`subscription`] keeps a stream open to every producer and pushes undecoded chunks into a buffer bounded in bytes. When
//!   the buffer is full, reading stops, HTTP/2 flow control stops the stream, and the backlog stays in the producer's log.
//! - [`producers`] is the table of received and durable positions.
//! - [`batch`] keeps the newest cookie of each (user, DSP) pair without copying it.
//! - [`dsp_slots`] decides which DSPs may have cookies in the store; [`suppression`] decides which cookies need not be written.
//! - [`sink`] collects one batch while it writes another, and retries a write until the store has the batch. [`dead_letters`]
//!   is the file of permanently rejected cookies; [`retry_queue`] holds the cookies of DSPs whose database fails.
//! - [`store`] makes a batch durable, and then its cursors. A restarted consumer resumes from the cursors in the *store*.
//!   Writing a batch twice changes nothing.
//! - [`ledger`] counts the outcome of every received cookie; its equation holds at any time.
//! - [`recovery`] reads what the streams did not deliver from an archive. [`node_reports`] tells producers to which this node has no
//!   stream what it has stored.
//! - [`health`] is the state behind `/readyz` and `/healthz`.
//! - [`maintenance`] runs expiry and compaction in their windows, with a [`clock`] that tests can set.
//! - [`copy`] fills a new node from the store of another.
//! - [`lookup`] serves `GET /v1/users`, and [`cookie_pages`] serves `GET /v1/cookies`.
//!
//! Only [`app`] uses all of them. Only [`config`] reads the environment.

pub mod clock;
pub mod clock_offset;
pub mod config;
pub mod ttl;

pub mod app;

pub mod producers;
pub mod subscription;

pub mod batch;
pub mod deletions;
pub mod dsp_slots;

pub mod suppression;

pub mod node_reports;
pub mod recovery;

pub mod sink;

pub mod dead_letters;
pub mod retry_queue;

pub mod store;

pub mod maintenance;
pub mod maintenance_window;

pub mod cookie_pages;
pub mod copy;
pub mod lookup;

pub mod backoff;
pub mod health;
pub mod ledger;
pub mod metrics;

pub use config::Config;
