//! The figures of a consumer, by the part that counts them.

#![expect(missing_docs, reason = "the help of a figure is what it means")]

use crate::{MetricDef, buckets};

// What became of cookies: the ledger.

pub const RECEIVED: MetricDef = MetricDef::counter(
    "consumer_received_total",
    "Cookies received. received + recovered = written + superseded + suppressed + stale + failed + skipped at drain + waiting + in the retry queue.",
);
pub const WRITTEN: MetricDef = MetricDef::counter(
    "consumer_written_total",
    "Cookies written to the store and durable.",
);
pub const SUPERSEDED: MetricDef = MetricDef::counter(
    "consumer_superseded_total",
    "Cookies replaced by a newer one of the same user and DSP before they were written.",
);
pub const SUPPRESSED: MetricDef = MetricDef::counter(
    "consumer_suppressed_total",
    "Cookies not written because they repeat the buyer uid stored within the refresh interval.",
);
pub const STALE: MetricDef = MetricDef::counter(
    "consumer_stale_total",
    "Cookies not written because the store has a newer one.",
);
pub const FAILED: MetricDef = MetricDef::counter(
    "consumer_failed_total",
    "Cookies that cannot be stored, by reason.",
)
.by(&["reason"]);
pub const RETRY_QUEUE_RECOVERED: MetricDef = MetricDef::counter(
    "consumer_retry_queue_recovered_total",
    "Cookies found in the retry queue at startup.",
);
pub const RETRY_QUEUE_COOKIES: MetricDef = MetricDef::gauge(
    "consumer_retry_queue_cookies",
    "Cookies in the retry queue because the store is failing for their DSP.",
);
pub const DRAIN_SKIPPED: MetricDef = MetricDef::counter(
    "consumer_drain_skipped_total",
    "Cookies received but not stored before the drain deadline. They are redelivered after a restart if producers still retain them.",
);
pub const WAITING: MetricDef = MetricDef::gauge(
    "consumer_waiting_cookies",
    "Cookies received whose fate is not durable yet.",
);

// What is set aside.

pub const RETRY_QUEUE_BYTES: MetricDef = MetricDef::gauge(
    "consumer_retry_queue_bytes",
    "Bytes in the retry queue, up to 256 MiB. One DSP can use half; overflow becomes dead letters.",
);
pub const DSP_FAILING: MetricDef = MetricDef::gauge(
    "consumer_dsp_failing",
    "1 for each DSP whose cookies the store does not take, the first 64; more are one, `other`.",
)
.by(&["dsp"]);

// Each producer.

pub const PRODUCER_CONNECTED: MetricDef = MetricDef::gauge(
    "consumer_producer_connected",
    "1 while a stream of this producer is open.",
)
.by(&["producer"]);
pub const PRODUCER_LAG: MetricDef = MetricDef::gauge(
    "consumer_producer_lag_cookies",
    "Cookies that this producer is known to have, by its hello or because they were received, and that are not durable here.",
)
.by(&["producer"]);
pub const CLOCK_SKEW: MetricDef = MetricDef::gauge(
    "consumer_clock_skew_seconds",
    "Upper bound of how far this host's clock is ahead of the producer's: the minimum delay from acceptance to receipt over the last one to two minutes.",
)
.by(&["producer"]);
pub const CURSOR: MetricDef = MetricDef::gauge(
    "consumer_cursor_sequence",
    "The newest durable sequence, by producer id.",
)
.by(&["producer"]);

// Streams, from the connection to the buffer.

pub const LOST: MetricDef = MetricDef::counter(
    "consumer_lost_total",
    "Cookies a producer had and this consumer will not get, by reason.",
)
.by(&["reason"]);
pub const PRODUCER_RESTARTS: MetricDef = MetricDef::counter(
    "consumer_producer_restarts_total",
    "Producer restarts by what this consumer lost: none, exact (number known), bounded (maximum known), unknown. Includes restarts it did not observe.",
)
.by(&["loss"]);
pub const BUFFER_BYTES: MetricDef = MetricDef::gauge(
    "consumer_buffer_bytes",
    "Bytes received but not yet part of a batch.",
);
pub const RECEIVED_BYTES: MetricDef = MetricDef::counter(
    "consumer_received_bytes_total",
    "Bytes of messages received.",
);
pub const BUFFER_BYTES_MAX: MetricDef = MetricDef::gauge(
    "consumer_buffer_bytes_max",
    "The greatest number of bytes received but not yet part of a batch since the scrape before the last.",
);
pub const BUFFER_LIMIT_BYTES: MetricDef = MetricDef::gauge(
    "consumer_buffer_limit_bytes",
    "Bytes received but not yet part of a batch at which reading stops.",
);
pub const RECEIVED_SECONDS: MetricDef = MetricDef::histogram(
    "consumer_received_seconds",
    "Time from accepted at the edge, or released if that was later, to received here, cookie by cookie.",
    buckets::DELIVERY_SECONDS,
);
pub const PRODUCERS_CONNECTED: MetricDef =
    MetricDef::gauge("consumer_producers_connected", "Streams open now.");
pub const ADDRESS_CONNECTED: MetricDef = MetricDef::gauge(
    "consumer_address_connected",
    "1 while the stream from this address is open.",
)
.by(&["address"]);
pub const STREAM_VIOLATIONS: MetricDef = MetricDef::counter(
    "consumer_stream_violations_total",
    "Streams ended because they broke the rules of the contract, goodbyes with cookies missing included.",
);
pub const UNKNOWN_EVENTS: MetricDef = MetricDef::counter(
    "consumer_unknown_events_total",
    "Events of a later version of the contract, skipped.",
);
pub const DUPLICATE_PRODUCER_IDS: MetricDef = MetricDef::counter(
    "consumer_duplicate_producer_ids_total",
    "Times that two producers with the same id were found to be streaming at once.",
);
pub const UNCERTAIN_RESTARTS: MetricDef = MetricDef::counter(
    "consumer_uncertain_restarts_total",
    "Restarts of producers after which it is unknown how much was lost.",
);
pub const UNCERTAIN_LOSS_COOKIES: MetricDef = MetricDef::counter(
    "consumer_uncertain_loss_cookies_total",
    "Most cookies that may have been lost at the ends of those epochs that have a bound.",
);

// Batches and the store.

pub const DEAD_LETTERS: MetricDef = MetricDef::counter(
    "consumer_dead_letters_total",
    "Dead letters by outcome: written to the file, or failed to be.",
)
.by(&["outcome"]);
pub const CLOCK_CLAMPED: MetricDef = MetricDef::counter(
    "consumer_clock_clamped_total",
    "Cookies accepted more than 5 minutes ahead of this machine's clock; their time was cut down.",
);
pub const BATCHES: MetricDef =
    MetricDef::counter("consumer_batches_total", "Batches made durable.");
pub const BATCH_COOKIES: MetricDef = MetricDef::histogram(
    "consumer_batch_cookies",
    "Cookies of a batch.",
    buckets::BATCH_COOKIES,
);
pub const FLUSH_SECONDS: MetricDef = MetricDef::histogram(
    "consumer_flush_seconds",
    "Time until the store had made a batch durable, retries included.",
    buckets::DELIVERY_SECONDS,
);
pub const STORED_SECONDS: MetricDef = MetricDef::histogram(
    "consumer_stored_seconds",
    "Time from accepted at the edge, or released if that was later, to durable in the store, cookie by cookie.",
    buckets::DELIVERY_SECONDS,
);
pub const STORE_ERRORS: MetricDef = MetricDef::counter(
    "consumer_store_errors_total",
    "Failed attempts to use the store.",
);
pub const STORE_UP: MetricDef = MetricDef::gauge("consumer_store_up", "1 while the store works.");
pub const DSP_SLOTS: MetricDef = MetricDef::gauge(
    "consumer_dsp_slots",
    "DSPs that are not listed in --dsps and have a slot in the store.",
);
pub const DSP_SLOTS_LIMIT: MetricDef = MetricDef::gauge(
    "consumer_dsp_slots_limit",
    "Maximum number of DSPs that get a slot without being listed: --unlisted-dsps-max. Cookies of others are refused.",
);
pub const PRODUCER_DRAINS: MetricDef = MetricDef::counter(
    "consumer_producer_drains_total",
    "Producers that drained and of which everything before that is stored, or was declared lost.",
);

// Maintenance.

pub const MAINTENANCE_OWNER: MetricDef = MetricDef::gauge(
    "consumer_maintenance_owner",
    "1 if this consumer runs expiry and compaction of its store, 0 if another does that shares it.",
);
pub const EXPIRY_OVERDUE: MetricDef = MetricDef::gauge(
    "consumer_expiry_overdue_seconds",
    "How long ago the oldest cookie of a DSP expired, for the 20 most overdue DSPs. MongoDB only; an upper bound with --expiry sweep. Up to one day is normal, because deletion waits for the expiry window.",
)
.by(&["dsp"]);
pub const EXPIRY_OVERDUE_MAX: MetricDef = MetricDef::gauge(
    "consumer_expiry_overdue_max_seconds",
    "The greatest of them.",
);
pub const EXPIRY_WINDOW_OPEN: MetricDef =
    MetricDef::gauge("consumer_expiry_window_open", "1 while expiry may run.");
pub const EXPIRY_LAST_RUN: MetricDef =
    MetricDef::gauge("consumer_expiry_last_run_unix_seconds", LAST_RUN);
pub const COMPACTION_LAST_RUN: MetricDef =
    MetricDef::gauge("consumer_compaction_last_run_unix_seconds", LAST_RUN);
pub const COMPACTION_WINDOW_OPEN: MetricDef = MetricDef::gauge(
    "consumer_compaction_window_open",
    "1 while compaction may run.",
);
pub const EXPIRED: MetricDef = MetricDef::counter(
    "consumer_expired_total",
    "Expired cookies found to be deleted, older values included.",
);
pub const SWEPT: MetricDef = MetricDef::counter(
    "consumer_swept_total",
    "Cookies that sweeps looked at, with --expiry sweep.",
);
pub const SWEEP_REMAINING: MetricDef = MetricDef::gauge(
    "consumer_sweep_left_cookies",
    "Cookies that the sweep of this window has yet to look at, or had when it closed; by estimate.",
);
pub const COMPACTION_SECONDS: MetricDef = MetricDef::histogram(
    "consumer_compaction_seconds",
    "Time the compaction of each collection took.",
    buckets::COMPACTION_SECONDS,
);
pub const COMPACTION_FREED_BYTES: MetricDef = MetricDef::counter(
    "consumer_compaction_freed_bytes_total",
    "Bytes that compactions gave back to the file system.",
);
pub const COMPACTIONS: MetricDef = MetricDef::counter(
    "consumer_compactions_total",
    "Times that everything worth it was compacted, one a night.",
);
pub const MAINTENANCE_ERRORS: MetricDef = MetricDef::counter(
    "consumer_maintenance_errors_total",
    "Expiries, compactions and deletions of cursors that failed.",
);

const LAST_RUN: &str =
    "When it last ran in its window without an error, in seconds since the Unix epoch; 0 before.";
