//! Metrics of the consumer, by component.

#![expect(missing_docs, reason = "the help text documents the metric")]

use crate::{MetricDef, buckets};

// The ledger: outcomes of cookies.

pub const RECEIVED: MetricDef = MetricDef::counter(
    "consumer_received_total",
    "Cookies received. `received + retry_queue_recovered = written + superseded + suppressed + stale + deletions + deleted_on_arrival + failed + drain_skipped + waiting + retry_queue`. Each term is the metric `consumer_…_total`; `waiting` and `retry_queue` are `consumer_…_cookies`.",
);
pub const WRITTEN: MetricDef = MetricDef::counter(
    "consumer_written_total",
    "Cookies written durably to the store.",
);
pub const SUPERSEDED: MetricDef = MetricDef::counter(
    "consumer_superseded_total",
    "Cookies superseded by a newer cookie of the same user and DSP before they were written.",
);
pub const SUPPRESSED: MetricDef = MetricDef::counter(
    "consumer_suppressed_total",
    "Cookies not written because the same buyer uid was stored for the same user and DSP within --refresh-interval.",
);
pub const STALE: MetricDef = MetricDef::counter(
    "consumer_stale_total",
    "Cookies not written because the store contains a newer cookie of the same user and DSP.",
);
pub const DELETIONS: MetricDef = MetricDef::counter(
    "consumer_deletions_total",
    "Deletions received and made durable.",
);
pub const DELETED_ON_ARRIVAL: MetricDef = MetricDef::counter(
    "consumer_deleted_on_arrival_total",
    "Cookies not stored because a later deletion covers them.",
);
pub const DELETION_TABLE: MetricDef = MetricDef::gauge(
    "consumer_deletion_table_entries",
    "Deletions in the table against which arriving cookies are checked.",
);
pub const DELETION_TABLE_MAX: MetricDef = MetricDef::gauge(
    "consumer_deletion_table_entries_max",
    "Maximum number of deletions in the table (--deletion-bytes).",
);
pub const DELETION_JOBS: MetricDef = MetricDef::gauge(
    "consumer_deletion_jobs",
    "Unfinished jobs, each of which deletes all cookies of one DSP.",
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
    "Cookies in the retry queue, because the database of their DSP is failing or being created.",
);
pub const DRAIN_SKIPPED: MetricDef = MetricDef::counter(
    "consumer_drain_skipped_total",
    "Cookies received but not stored by the end of a drain (clean shutdown).",
);
pub const WAITING: MetricDef = MetricDef::gauge(
    "consumer_waiting_cookies",
    "Received cookies whose outcome is not yet durable.",
);

// The retry queue.

pub const RETRY_QUEUE_BYTES: MetricDef = MetricDef::gauge(
    "consumer_retry_queue_bytes",
    "Size of the retry queue, up to 256 MiB. Cookies that do not fit become dead letters.",
);
pub const DSP_FAILING: MetricDef = MetricDef::gauge(
    "consumer_dsp_failing",
    "1 for each of the first 64 DSPs for which the store is failing. `other` is 1 while there are more than 64.",
)
.by(&["dsp"]);

// Per producer.

pub const PRODUCER_CONNECTED: MetricDef = MetricDef::gauge(
    "consumer_producer_connected",
    "1 while a stream from this producer is open.",
)
.by(&["producer"]);
pub const PRODUCER_LAG: MetricDef = MetricDef::gauge(
    "consumer_producer_lag_cookies",
    "Cookies that this producer has sent, or announced at the start of the stream, and that are not yet durable on this node.",
)
.by(&["producer"]);
pub const CLOCK_SKEW: MetricDef = MetricDef::gauge(
    "consumer_clock_skew_seconds",
    "Maximum by which this host's clock can be ahead of the producer's, measured by calls to the producer.",
)
.by(&["producer"]);
pub const CURSOR: MetricDef = MetricDef::gauge(
    "consumer_cursor_sequence",
    "Sequence number up to which the cookies of this producer are durable on this node.",
)
.by(&["producer"]);

// Streams, from the connection to the buffer.

pub const LOST: MetricDef = MetricDef::counter(
    "consumer_lost_total",
    "Cookies that this consumer will not receive, by reason.",
)
.by(&["reason"]);
pub const PRODUCER_RESTARTS: MetricDef = MetricDef::counter(
    "consumer_producer_restarts_total",
    "Producer restarts, by the number of cookies that this consumer lost: zero (none), a known number (exact), at most a known number (bounded), or unknown. A producer that ended uncleanly and never returned counts as unknown.",
)
.by(&["loss"]);
pub const BUFFER_BYTES: MetricDef = MetricDef::gauge(
    "consumer_buffer_bytes",
    "Bytes received that are not yet part of a batch.",
);
pub const RECEIVED_BYTES: MetricDef = MetricDef::counter(
    "consumer_received_bytes_total",
    "Bytes of messages received.",
);
pub const BUFFER_BYTES_MAX: MetricDef = MetricDef::gauge(
    "consumer_buffer_bytes_max",
    "Largest number of bytes in the receive buffer over the last two scrape intervals.",
);
pub const BUFFER_LIMIT_BYTES: MetricDef = MetricDef::gauge(
    "consumer_buffer_limit_bytes",
    "Size of the receive buffer at which the consumer stops reading.",
);
pub const RECEIVED_SECONDS: MetricDef = MetricDef::histogram(
    "consumer_received_seconds",
    "Time per cookie from acceptance by the producer (or release from a limit, if later) to receipt.",
    buckets::DELIVERY_SECONDS,
);
pub const PRODUCERS_CONNECTED: MetricDef =
    MetricDef::gauge("consumer_producers_connected", "Open streams to producers.");
pub const ADDRESS_CONNECTED: MetricDef = MetricDef::gauge(
    "consumer_address_connected",
    "1 while the stream from the producer at this address is open.",
)
.by(&["address"]);
pub const CONFIRMATIONS_FAILING: MetricDef = MetricDef::gauge(
    "consumer_confirmations_failing",
    "Open streams on which this consumer has failed for 10 seconds to confirm what it has stored. Deletions do not complete on these producers.",
);
pub const STREAM_VIOLATIONS: MetricDef = MetricDef::counter(
    "consumer_stream_violations_total",
    "Streams closed because of a protocol violation, such as a final `Goodbye` message before all cookies arrived.",
);
pub const UNKNOWN_EVENTS: MetricDef = MetricDef::counter(
    "consumer_unknown_events_total",
    "Events skipped because they belong to a newer protocol version.",
);
pub const CONTRACT_TTL_DSPS: MetricDef = MetricDef::gauge(
    "consumer_contract_ttl_dsps",
    "DSPs whose time to live comes from producers' contracts; 0 without --ttl-floor.",
);
pub const DUPLICATE_PRODUCER_IDS: MetricDef = MetricDef::counter(
    "consumer_duplicate_producer_ids_total",
    "Times that two producers with the same id streamed concurrently.",
);
pub const UNCERTAIN_RESTARTS: MetricDef = MetricDef::counter(
    "consumer_uncertain_restarts_total",
    "Producer restarts after which the number of lost cookies is not exactly known.",
);
pub const UNCERTAIN_LOSS_COOKIES: MetricDef = MetricDef::counter(
    "consumer_uncertain_loss_cookies_total",
    "Upper bound of the cookies lost in producer restarts for which only an upper bound is known.",
);

// Batches and the store.

pub const DEAD_LETTERS: MetricDef = MetricDef::counter(
    "consumer_dead_letters_total",
    "Dead letters (cookies that cannot be stored) by outcome: written to the dead-letter file (written), or lost because of a write error (failed).",
)
.by(&["outcome"]);
pub const CLOCK_CLAMPED: MetricDef = MetricDef::counter(
    "consumer_clock_clamped_total",
    "Cookies whose acceptance time was more than 5 minutes ahead of this host's clock, and was set to 5 minutes ahead.",
);
pub const BATCHES: MetricDef =
    MetricDef::counter("consumer_batches_total", "Batches made durable.");
pub const BATCH_COOKIES: MetricDef = MetricDef::histogram(
    "consumer_batch_cookies",
    "Cookies per batch.",
    buckets::BATCH_COOKIES,
);
pub const FLUSH_SECONDS: MetricDef = MetricDef::histogram(
    "consumer_flush_seconds",
    "Time from the receipt of a batch by the writer until the batch is durable, including retries.",
    buckets::DELIVERY_SECONDS,
);
pub const STORED_SECONDS: MetricDef = MetricDef::histogram(
    "consumer_stored_seconds",
    "Time per cookie from acceptance by the producer (or release from a limit, if later) to durable storage.",
    buckets::DELIVERY_SECONDS,
);
pub const STORE_ERRORS: MetricDef =
    MetricDef::counter("consumer_store_errors_total", "Failed store operations.");
pub const STORE_UP: MetricDef =
    MetricDef::gauge("consumer_store_up", "1 while the store is available.");
pub const DSP_SLOTS: MetricDef = MetricDef::gauge(
    "consumer_dsp_slots",
    "DSPs that are not in --dsps, but whose cookies this consumer accepts.",
);
pub const DSP_SLOTS_LIMIT: MetricDef = MetricDef::gauge(
    "consumer_dsp_slots_limit",
    "Upper limit for consumer_dsp_slots (--unlisted-dsps-max).",
);
pub const PRODUCER_DRAINS: MetricDef = MetricDef::counter(
    "consumer_producer_drains_total",
    "Clean shutdowns of producers all of whose cookies this consumer has stored or counted as lost.",
);

// Maintenance.

pub const MAINTENANCE_OWNER: MetricDef = MetricDef::gauge(
    "consumer_maintenance_owner",
    "1 if this consumer runs expiry and compaction for its store, 0 if another consumer does.",
);
pub const EXPIRY_OVERDUE: MetricDef = MetricDef::gauge(
    "consumer_expiry_overdue_seconds",
    "Time since the oldest stored cookie of a DSP expired, for the 20 most overdue DSPs. Reported only with MongoDB, as an upper bound. Up to one day is normal.",
)
.by(&["dsp"]);
pub const EXPIRY_OVERDUE_MAX: MetricDef = MetricDef::gauge(
    "consumer_expiry_overdue_max_seconds",
    "Maximum of consumer_expiry_overdue_seconds over all DSPs.",
);
pub const EXPIRY_WINDOW_OPEN: MetricDef = MetricDef::gauge(
    "consumer_expiry_window_open",
    "1 while the expiry window is open.",
);
pub const EXPIRY_LAST_RUN: MetricDef =
    MetricDef::gauge("consumer_expiry_last_run_unix_seconds", LAST_RUN);
pub const COMPACTION_LAST_RUN: MetricDef =
    MetricDef::gauge("consumer_compaction_last_run_unix_seconds", LAST_RUN);
pub const COMPACTION_WINDOW_OPEN: MetricDef = MetricDef::gauge(
    "consumer_compaction_window_open",
    "1 while the compaction window is open.",
);
pub const EXPIRED: MetricDef = MetricDef::counter(
    "consumer_expired_total",
    "Expired cookies deleted. The embedded store also counts expired values that newer cookies have replaced.",
);
pub const SWEPT: MetricDef =
    MetricDef::counter("consumer_swept_total", "Cookies scanned by expiry sweeps.");
pub const SWEEP_REMAINING: MetricDef = MetricDef::gauge(
    "consumer_sweep_remaining_cookies",
    "Estimated number of cookies that the sweep of the current or last window has not scanned.",
);
pub const COMPACTION_SECONDS: MetricDef = MetricDef::histogram(
    "consumer_compaction_seconds",
    "Time to compact a collection.",
    buckets::COMPACTION_SECONDS,
);
pub const COMPACTION_FREED_BYTES: MetricDef = MetricDef::counter(
    "consumer_compaction_freed_bytes_total",
    "Bytes reclaimed by compactions.",
);
pub const COMPACTIONS: MetricDef = MetricDef::counter(
    "consumer_compactions_total",
    "Completed compaction passes, at most one per compaction window.",
);
pub const MAINTENANCE_ERRORS: MetricDef = MetricDef::counter(
    "consumer_maintenance_errors_total",
    "Failed expiry runs, failed compactions, and failed deletions of unused cursors.",
);

const LAST_RUN: &str = "Unix time at which the last successful run ended; 0 if there was none.";
