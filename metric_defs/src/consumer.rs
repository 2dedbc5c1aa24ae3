//! Metrics of the consumer, by component.

metrics! {
    // The ledger: outcomes of cookies.

    RECEIVED counter "consumer_received_total"
        "Cookies received. `received + retry_queue_recovered = written + superseded + suppressed + stale + deletions + deleted_on_arrival + failed + drain_skipped + waiting + retry_queue`. Each term is the metric `consumer_…_total`; `waiting` and `retry_queue` are `consumer_…_cookies`."
    WRITTEN counter "consumer_written_total"
        "Cookies written durably to the store."
    SUPERSEDED counter "consumer_superseded_total"
        "Cookies superseded by a newer cookie of the same user and DSP before they were written."
    SUPPRESSED counter "consumer_suppressed_total"
        "Cookies not written because the same buyer uid was stored for the same user and DSP within --refresh-interval."
    STALE counter "consumer_stale_total"
        "Cookies not written because the store contains a newer cookie of the same user and DSP."
    DELETIONS counter "consumer_deletions_total"
        "Deletions received and made durable."
    DELETED_ON_ARRIVAL counter "consumer_deleted_on_arrival_total"
        "Cookies not stored because a later deletion covers them."
    DELETION_TABLE gauge "consumer_deletion_table_entries"
        "Deletions in the table against which arriving cookies are checked."
    DELETION_TABLE_MAX gauge "consumer_deletion_table_entries_max"
        "Maximum number of deletions in the table (--deletion-bytes)."
    DELETION_JOBS gauge "consumer_deletion_jobs"
        "Unfinished jobs, each of which deletes all cookies of one DSP."
    FAILED counter "consumer_failed_total" by ["reason"]
        "Cookies that cannot be stored, by reason."
    RETRY_QUEUE_RECOVERED counter "consumer_retry_queue_recovered_total"
        "Cookies found in the retry queue at startup."
    RETRY_QUEUE_COOKIES gauge "consumer_retry_queue_cookies"
        "Cookies in the retry queue, because the database of their DSP is failing or being created."
    DRAIN_SKIPPED counter "consumer_drain_skipped_total"
        "Cookies received but not stored by the end of a drain (clean shutdown)."
    WAITING gauge "consumer_waiting_cookies"
        "Received cookies whose outcome is not yet durable."

    // The retry queue.

    RETRY_QUEUE_BYTES gauge "consumer_retry_queue_bytes"
        "Size of the retry queue, up to 256 MiB. Cookies that do not fit become dead letters."
    DSP_FAILING gauge "consumer_dsp_failing" by ["dsp"]
        "1 for each of the first 64 DSPs for which the store is failing. `other` is 1 while there are more than 64."

    // Filling this node from another.

    COPIED counter "consumer_copied_total"
        "Cookies and deletions received from other nodes while this node is filled (--copy-from)."
    COPIED_RATIO gauge "consumer_copied_ratio"
        "Approximate part of another node's cookies that this node has copied; 1 if this node is not being filled."

    // Per producer.

    PRODUCER_CONNECTED gauge "consumer_producer_connected" by ["producer"]
        "1 while a stream from this producer is open."
    PRODUCER_LAG gauge "consumer_producer_lag_cookies" by ["producer"]
        "Cookies that this producer has sent, or announced at the start of the stream, and that are not yet durable on this node."
    CLOCK_SKEW gauge "consumer_clock_skew_seconds" by ["producer"]
        "Maximum by which this host's clock can be ahead of the producer's, measured by calls to the producer."
    CURSOR gauge "consumer_cursor_sequence" by ["producer"]
        "Sequence number up to which the cookies of this producer are durable on this node."

    // Streams, from the connection to the buffer.

    LOST counter "consumer_lost_total" by ["reason"]
        "Cookies that this consumer will not receive, by reason."
    PRODUCER_RESTARTS counter "consumer_producer_restarts_total" by ["loss"]
        "Producer restarts, by the number of cookies that this consumer lost: zero (none), a known number (exact), at most a known number (bounded), or unknown. A producer that ended uncleanly and never returned counts as unknown."
    BUFFER_BYTES gauge "consumer_buffer_bytes"
        "Bytes received that are not yet part of a batch."
    RECEIVED_BYTES counter "consumer_received_bytes_total"
        "Bytes of messages received."
    BUFFER_BYTES_MAX gauge "consumer_buffer_bytes_max"
        "Largest number of bytes in the receive buffer over the last two scrape intervals."
    BUFFER_LIMIT_BYTES gauge "consumer_buffer_limit_bytes"
        "Size of the receive buffer at which the consumer stops reading."
    RECEIVED_SECONDS histogram "consumer_received_seconds" in DELIVERY_SECONDS
        "Time per cookie from acceptance by the producer (or release from a limit, if later) to receipt."
    PRODUCERS_CONNECTED gauge "consumer_producers_connected"
        "Open streams to producers."
    ADDRESS_CONNECTED gauge "consumer_address_connected" by ["address"]
        "1 while the stream from the producer at this address is open."
    CONFIRMATIONS_FAILING gauge "consumer_confirmations_failing"
        "Open streams on which this consumer has failed for 10 seconds to confirm what it has stored. Deletions do not complete on these producers."
    STREAM_VIOLATIONS counter "consumer_stream_violations_total"
        "Streams closed because of a protocol violation, such as a final `Goodbye` message before all cookies arrived."
    UNKNOWN_EVENTS counter "consumer_unknown_events_total"
        "Events skipped because they belong to a newer protocol version."
    CONTRACT_TTL_DSPS gauge "consumer_contract_ttl_dsps"
        "DSPs whose time to live comes from producers' contracts; 0 without --ttl-floor."
    DUPLICATE_PRODUCER_IDS counter "consumer_duplicate_producer_ids_total"
        "Times that two producers with the same id streamed concurrently."
    UNCERTAIN_RESTARTS counter "consumer_uncertain_restarts_total"
        "Producer restarts after which the number of lost cookies is not exactly known."
    UNCERTAIN_LOSS_COOKIES counter "consumer_uncertain_loss_cookies_total"
        "Upper bound of the cookies lost in producer restarts for which only an upper bound is known."

    // Recovery from the archive.

    RECOVERY_MISSING counter "consumer_archive_missing_cookies_total"
        "Cookies that the streams of the producers did not deliver."
    RECOVERY_RECOVERED counter "consumer_archive_recovered_cookies_total"
        "Missing cookies that were read from the archive. They count as received."
    RECOVERY_LOST counter "consumer_archive_lost_cookies_total" by ["reason"]
        "Missing cookies that were not recovered, by reason: the archive does not have them (not_archived) or has removed them (archive_expired); they were accepted more than 25 hours ago (too_old); the archive could not be read for 10 minutes, or more than 1,024 holes were open (archive_unavailable)."
    RECOVERY_RECOVERING gauge "consumer_archive_recovering_cookies"
        "Missing cookies that are neither recovered nor lost yet."
    RECOVERY_HOLES gauge "consumer_archive_holes"
        "Holes in the streams of the producers that are being recovered, up to 1,024."
    RECOVERY_DUPLICATES counter "consumer_archive_duplicate_cookies_total"
        "Cookies that were read from the archive again, and skipped."
    RECOVERY_REORDERED counter "consumer_archive_reordered_chunks_total"
        "Chunks that were read from the archive after later ones."
    RECOVERY_REJECTED counter "consumer_archive_rejected_messages_total"
        "Messages of the archive that were skipped, because they are invalid, of another version, or under the subject of another epoch."
    RECOVERY_AGE_SECONDS gauge "consumer_archive_newest_message_age_seconds"
        "Age of the newest message in the archive that this consumer reads, up to 30 seconds too high. With --archive-mode follow: age of the last message that was read, exactly."
    RECOVERY_OLDEST_SECONDS gauge "consumer_archive_oldest_message_age_seconds"
        "Age of the oldest message in the archive. An older cookie cannot be recovered."
    RECOVERY_BYTES gauge "consumer_archive_bytes"
        "Bytes of the messages in the archive when it was last read."
    RECOVERY_BYTES_MAX gauge "consumer_archive_max_bytes"
        "Maximum of these bytes (`max_bytes` of the stream), above which the oldest messages are removed. Absent without a maximum."
    RECOVERY_STATE gauge "consumer_archive_state" by ["state"]
        "1 for the current state of the archive, 0 for the others: `connecting`; `current` (it can be read); `unavailable` (it does not respond); `refused` (a setting of the NATS server or of the stream is unsuitable)."

    // Batches and the store.

    DEAD_LETTERS counter "consumer_dead_letters_total" by ["outcome"]
        "Dead letters (cookies that cannot be stored) by outcome: written to the dead-letter file (written), or lost because of a write error (failed)."
    CLOCK_CLAMPED counter "consumer_clock_clamped_total"
        "Cookies whose acceptance time was more than 5 minutes ahead of this host's clock, and was set to 5 minutes ahead."
    BATCHES counter "consumer_batches_total"
        "Batches made durable."
    BATCH_COOKIES histogram "consumer_batch_cookies" in BATCH_COOKIES
        "Cookies per batch."
    FLUSH_SECONDS histogram "consumer_flush_seconds" in DELIVERY_SECONDS
        "Time from the receipt of a batch by the writer until the batch is durable, including retries."
    OLDEST_WAITING gauge "consumer_oldest_waiting_seconds"
        "Time since the receipt of the oldest cookie that is not durable yet, up to 50 ms too much; 0 if there is none. It grows while the store does not respond."
    STORED_SECONDS histogram "consumer_stored_seconds" in DELIVERY_SECONDS
        "Time per cookie from acceptance by the producer (or release from a limit, if later) to durable storage."
    STORE_ERRORS counter "consumer_store_errors_total"
        "Failed store operations."
    STORE_UP gauge "consumer_store_up"
        "1 while the store is available."
    DSP_SLOTS gauge "consumer_dsp_slots"
        "DSPs that are not in --dsps, but whose cookies this consumer accepts."
    DSP_SLOTS_LIMIT gauge "consumer_dsp_slots_limit"
        "Upper limit for consumer_dsp_slots (--unlisted-dsps-max)."
    PRODUCER_DRAINS counter "consumer_producer_drains_total"
        "Clean shutdowns of producers all of whose cookies this consumer has stored or counted as lost."

    // Lookups of bidders (--lookup).

    LOOKUPS counter "consumer_lookups_total" by ["api", "outcome"]
        "Requests on the lookup port, by outcome: answered (ok), answered without the DSPs or users that could not be read in time (partial), rejected (invalid, too_large, unauthenticated, not_found), or not answered because too many were in progress (busy) or nothing could be read (unavailable)."
    LOOKUP_PAIRS counter "consumer_lookup_pairs_total" by ["dsp", "outcome"]
        "Pairs of a user and a DSP in batch lookups: with a match (hit), without (miss), with an expired match (expired), or not read in time (unavailable). DSPs that are neither in --dsps nor among the first 64 with a stored match are `other`."
    LOOKUP_SECONDS histogram "consumer_lookup_seconds" in LOOKUP_SECONDS by ["api"]
        "Time per request on the lookup port, from its last byte to the encoded response."
    LOOKUP_HIT_AGE_SECONDS histogram "consumer_lookup_hit_age_seconds" in LOOKUP_HIT_AGE_SECONDS
        "Age of the first match in each response to a batch lookup."

    STORED_COOKIES gauge "consumer_stored_cookies" by ["dsp"]
        "Cookies in the store, by DSP: the 64 DSPs with the most, and `other`. Counted every minute, including expired cookies that are not deleted yet. With the embedded store an estimate: its approximate size, divided by DSP as in a sample of users."

    // Maintenance.

    MAINTENANCE_OWNER gauge "consumer_maintenance_owner"
        "1 if this consumer runs expiry and compaction for its store, 0 if another consumer does."
    EXPIRY_OVERDUE gauge "consumer_expiry_overdue_seconds" by ["dsp"]
        "Time since the oldest stored cookie of a DSP expired, for the 20 most overdue DSPs. Reported only with MongoDB, as an upper bound. Up to one day is normal."
    EXPIRY_OVERDUE_MAX gauge "consumer_expiry_overdue_max_seconds"
        "Maximum of consumer_expiry_overdue_seconds over all DSPs."
    EXPIRY_WINDOW_OPEN gauge "consumer_expiry_window_open"
        "1 while the expiry window is open."
    EXPIRY_LAST_RUN gauge "consumer_expiry_last_run_unix_seconds"
        "Unix time at which the last successful run ended; 0 if there was none."
    COMPACTION_LAST_RUN gauge "consumer_compaction_last_run_unix_seconds"
        "Unix time at which the last successful run ended; 0 if there was none."
    COMPACTION_WINDOW_OPEN gauge "consumer_compaction_window_open"
        "1 while the compaction window is open."
    EXPIRED counter "consumer_expired_total"
        "Expired cookies deleted. The embedded store also counts expired values that newer cookies have replaced."
    SWEPT counter "consumer_swept_total"
        "Cookies scanned by expiry sweeps."
    SWEEP_REMAINING gauge "consumer_sweep_remaining_cookies"
        "Estimated number of cookies that the sweep of the current or last window has not scanned."
    COMPACTION_SECONDS histogram "consumer_compaction_seconds" in COMPACTION_SECONDS
        "Time to compact a collection."
    COMPACTION_FREED_BYTES counter "consumer_compaction_freed_bytes_total"
        "Bytes reclaimed by compactions."
    COMPACTIONS counter "consumer_compactions_total"
        "Completed compaction passes, at most one per compaction window."
    MAINTENANCE_ERRORS counter "consumer_maintenance_errors_total"
        "Failed expiry runs, failed compactions, and failed deletions of unused cursors."
}
