"use strict";
// The status page of every process. It reads /metrics and /v1/status every second and shows the contents listed in PROGRAMS. Rates
// cover the last second, and quantiles the last ten seconds. Graphs show ten minutes. Untrusted text is only put
// into text nodes.

const el = (id) => document.getElementById(id);
const setText = (node, text) => { if (node.textContent !== text) node.textContent = text; };
const setClass = (node, name) => { if (node.className !== name) node.className = name; };
const make = (parent, tag, name, text) => {
  const node = parent.appendChild(document.createElement(tag));
  if (name) node.className = name;
  if (text) node.textContent = text;
  return node;
};

// Formats.

const EMPTY = "–";
const known = (show) => (n) => Number.isFinite(n) ? show(n) : EMPTY;
const scaled = (n, step, units) => {
  let unit = 0;
  while (Math.abs(n) >= step && unit < units.length - 1) { n /= step; unit += 1; }
  const digits = unit === 0 || n >= 100 ? 0 : n >= 10 ? 1 : 2;
  return n.toFixed(digits) + units[unit];
};
const integer = known((n) => n.toLocaleString("en-US", { maximumFractionDigits: 0 }));
const short = known((n) => Math.abs(n) < 100000 ? integer(n) : scaled(n, 1000, ["", " k", " M", " G", " T"]));
const rate = known((n) => (n > 0 && n < 10 ? n.toFixed(1) : short(n)) + "/s");
const bytes = known((n) => scaled(n, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]));
const percent = known((n) => (100 * n).toFixed(1) + " %");
const time = known((s) => {
  if (s === 0) return "0 s";
  if (s < 0.001) return (s * 1e6).toFixed(0) + " µs";
  if (s < 1) return (s * 1000).toFixed(s < 0.01 ? 1 : 0) + " ms";
  if (s < 60) return s.toFixed(s < 10 ? 1 : 0) + " s";
  const parts = [[86400, " d"], [3600, " h"], [60, " min"], [1, " s"]];
  const at = parts.findIndex(([size]) => s >= size);
  const [[big, bigUnit], [little, littleUnit]] = parts.slice(at, at + 2);
  return Math.floor(s / big) + bigUnit + " " + Math.floor((s % big) / little) + littleUnit;
});
const timestamp = known((s) => s === 0 ? "never" : new Date(1000 * s).toLocaleString());
const plain = (text) => text;
const yesNo = known((n) => n ? "yes" : "no");

// Marks: CSS classes of values.

const badIfAny = (n) => n > 0 ? "bad" : "";
const badIfOld = (s) => s > 5 ? "bad" : "";
const goodOrBad = (n) => "mark " + (n ? "good" : "bad");

const LOST = { title: "Lost in the last hour", headline: [(view) => view.now.status.lost_last_hour, integer, badIfAny] };

// Values: functions of `view` (the samples of now, one second ago and ten seconds ago) and the labels of a row.

const series = (sample, name, labels) => (sample.series.get(name) || [])
  .filter((it) => Object.entries(labels).every(([label, value]) => it.labels[label] === value));
// A counter without series has counted nothing.
const sum = (sample, name, labels) => {
  const found = series(sample, name, labels);
  return found.length || name.endsWith("_total") ? found.reduce((all, { value }) => all + value, 0) : null;
};
const now = (name, labels) => (view, row) => sum(view.now, name, { ...row, ...labels });
const label = (name, wanted) => (view, row) => series(view.now, name, row)[0].labels[wanted] || EMPTY;
const perSecond = (name, labels) => (view, row) => {
  const [after, before] = [view.now, view.before].map((it) => sum(it, name, { ...row, ...labels }));
  const seconds = view.now.at - view.before.at;
  return seconds > 0 ? Math.max(0, after - before) / seconds : null;
};
const minus = (all, part) => (view, row) => {
  const total = all(view, row);
  return total === null ? null : total - part(view, row);
};
const orZero = (value) => (view, row) => value(view, row) ?? 0;
const ratio = (part, all) => (view, row) => part(view, row) / all(view, row);
const buckets = (sample, name, row) => {
  const counts = new Map();
  for (const { labels, value } of series(sample, name + "_bucket", row)) {
    const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
    counts.set(bound, (counts.get(bound) || 0) + value);
  }
  return counts;
};
const quantile = (name, q) => (view, row) => {
  const before = buckets(view.past, name, row);
  const counts = [...buckets(view.now, name, row)].map(([bound, count]) => [bound, count - (before.get(bound) || 0)]);
  counts.sort(([a], [b]) => a - b);
  const all = counts.length ? counts[counts.length - 1][1] : 0;
  if (all <= 0) return null;
  let [low, below] = [0, 0];
  for (const [bound, count] of counts) {
    if (count >= q * all) return bound === Infinity ? low : low + (bound - low) * (q * all - below) / (count - below);
    [low, below] = [bound, count];
  }
  return low;
};

// Contents of each program's page.
//
// A card has a value, `headline: [value, format, mark]`, notes below it, `[text, value, format, mark]`, and the graph of a metric or a bar, `[value, limit]`.
// A table has a row per combination of the labels `by` of the metric `of`, and columns, `[heading, value, format, mark]`. A table
// with `items` has a row per item, `[text, value, format, mark]`.

const subscriberState = (view, row) => {
  if (!now("producer_subscriber_connected")(view, row)) return "disconnected";
  return now("producer_subscriber_lag_seconds")(view, row) > 1 ? "lagging" : "connected";
};
const ofNode = (key) => ({ now: { status } }, { subscriber, call }) =>
  call === "subscribe" ? (status.nodes.find(({ node }) => node === subscriber) || {})[key] : null;
// Nodes without a stream for a minute have no row in the table.
const notDurableSeconds = ({ now: { status } }) =>
  status.nodes.filter((it) => it.connected || it.absent_seconds < 60)
    .reduce((max, { not_durable_seconds: s }) => s > (max ?? -1) ? s : max, null);
const STATE_MARKS = { connected: "mark good", lagging: "mark mind", disconnected: "mark bad" };
const JOB_MARKS = { active: "mark good", suspended: "mark mind", cancelled: "mark bad" };
const connections = (process, ports) => ({
  title: "Connections",
  items: ports.flatMap((port) => [
    [port + ", open", now(`${process}_${port}_connections`), integer],
    [port + ", accepted", now(`${process}_${port}_connections_accepted_total`), short],
    [port + ", closed", now(`${process}_${port}_connections_closed_total`), short],
  ]),
});
const counterTable = (title, name, by, heading) => ({
  title, by: [by], hideZero: true, of: name, columns: [
    [heading, now(name), short], ["share", ratio(now(name), (view) => now(name)(view)), percent], ["rate", perSecond(name), rate],
  ],
});
const log = (process) => [["log lines dropped", now(`${process}_log_lines_dropped_total`), integer, badIfAny]];

const ACCEPTED = { outcome: "accepted" };
const PLANS = "producer_plan_dsps_total";
const PAIRS = "consumer_lookup_pairs_total";
const unread = (value) => value(PAIRS, { outcome: "unavailable" });
const PROGRAMS = {
  producer: {
    cards: [
      { ...LOST, notes: [["of present ones", now("producer_subscriber_lost_cookies_total"), short]] },
      { title: "Accepted", headline: [perSecond("producer_edge_requests_total", ACCEPTED), rate], graph: "producer_edge_requests_total",
        notes: [["total", now("producer_edge_requests_total", ACCEPTED), short]] },
      { title: "Not recorded", headline: [minus(perSecond("producer_edge_requests_total"), perSecond("producer_edge_requests_total", ACCEPTED)), rate],
        notes: [["total", minus(now("producer_edge_requests_total"), now("producer_edge_requests_total", ACCEPTED)), short]] },
      { title: "Request latency", headline: [quantile("producer_edge_request_seconds", 0.5), time],
        notes: [["p99", quantile("producer_edge_request_seconds", 0.99), time]] },
      { title: "Log", headline: [now("producer_log_bytes"), bytes], bar: [now("producer_log_bytes"), now("producer_log_limit_bytes")],
        notes: [["limit", now("producer_log_limit_bytes"), bytes], ["cookies", now("producer_log_cookies"), short],
          ["retained", now("producer_log_retained_seconds"), time]] },
      { title: "Delivered", headline: [perSecond("producer_subscriber_delivered_cookies_total"), rate], graph: "producer_subscriber_delivered_cookies_total",
        notes: [["subscribers", now("producer_subscriber_connected"), integer],
          ["in flight", now("producer_in_flight_bytes"), bytes], ["not durable for", notDurableSeconds, time, badIfOld]] },
    ],
    tables: [
      { title: "Subscribers", by: ["subscriber", "call"], of: "producer_subscriber_connected", none: "No subscribers yet.", columns: [
        ["state", subscriberState, plain, (state) => STATE_MARKS[state]],
        ["lag", now("producer_subscriber_lag_seconds"), time],
        ["lag (cookies)", now("producer_subscriber_lag_cookies"), short],
        ["not durable", ofNode("not_durable_cookies"), short],
        ["for", ofNode("not_durable_seconds"), time, badIfOld],
        ["durable up to", now("producer_subscriber_durable_sequence"), integer, () => "text"],
        ["delivered", now("producer_subscriber_delivered_cookies_total"), short],
        ["rate", perSecond("producer_subscriber_delivered_cookies_total"), rate],
        ["lost", now("producer_subscriber_lost_cookies_total"), short, badIfAny],
        ["in flight", now("producer_subscriber_in_flight_bytes"), bytes],
        ["disconnects", now("producer_subscriber_disconnects_total"), integer, badIfAny],
      ] },
      { title: "DSP limits", by: ["limit"], of: "producer_limits_accepted_cookies_total", columns: [
        ["accepted", perSecond("producer_limits_accepted_cookies_total"), rate],
        ["exceeded", perSecond("producer_limits_exceeded_cookies_total"), rate],
        ["exceeded (total)", now("producer_limits_exceeded_cookies_total"), short],
        ["released", perSecond("producer_limits_released_cookies_total"), rate],
        ["queued", now("producer_limits_queued_cookies"), short],
        ["oldest", now("producer_limits_oldest_seconds"), time],
        ["delay p50", quantile("producer_limits_delay_seconds", 0.5), time],
        ["delay p99", quantile("producer_limits_delay_seconds", 0.99), time],
        ["dropped", now("producer_limits_dropped_cookies_total"), short, badIfAny],
        ["overdue", now("producer_limits_overdue_cookies"), short],
        ["parked", now("producer_limits_parked_cookies"), short],
        ["share", now("producer_limit_share"), percent],
      ] },
      counterTable("Requests by outcome", "producer_edge_requests_total", "outcome", "requests"),
      counterTable("Privacy decisions", "producer_privacy_total", "outcome", "requests"),
      { title: "DSPs", by: ["dsp"], of: "producer_dsp_cookies_total", hideZero: true, columns: [
        ["accepted", now("producer_dsp_cookies_total", ACCEPTED), short],
        ["rate", perSecond("producer_dsp_cookies_total", ACCEPTED), rate],
        ["not recorded", minus(now("producer_dsp_cookies_total"), now("producer_dsp_cookies_total", ACCEPTED)), short],
        ["would be refused", now("producer_dsp_would_refuse_total"), short],
      ] },
      { title: "Sync plans", by: ["dsp"], of: PLANS, columns: [
        ["offered", now(PLANS, { outcome: "offered" }), short],
        ["returned", now("producer_plan_returns_total"), short],
        ["accepted", now("producer_plan_returns_total", ACCEPTED), short],
        ["completion", ratio(now("producer_plan_returns_total", ACCEPTED), now(PLANS, { outcome: "offered" })), percent],
      ] },
      connections("producer", ["http", "grpc", "admin"]),
      { title: "Errors", items: [
        ["rejected calls", now("producer_grpc_calls_refused_total"), short, badIfAny],
        ["rejected streams", now("producer_streams_refused_total"), short, badIfAny],
        ["calls without a valid token", now("producer_token_refusals_total"), short, badIfAny],
        ...log("producer"),
      ] },
    ],
  },
  consumer: {
    cards: [
      { ...LOST, notes: [["since the start", now("consumer_lost_total"), short], ["in crashes, at most", now("consumer_uncertain_loss_cookies_total"), short]] },
      { title: "Received", headline: [perSecond("consumer_received_total"), rate], graph: "consumer_received_total",
        notes: [["total", now("consumer_received_total"), short], ["buffered", now("consumer_buffer_bytes"), bytes]] },
      { title: "Written", headline: [perSecond("consumer_written_total"), rate], graph: "consumer_written_total",
        notes: [["batches", perSecond("consumer_batches_total"), rate], ["per batch", quantile("consumer_batch_cookies", 0.5), short]] },
      { title: "Delivery latency", headline: [quantile("consumer_received_seconds", 0.5), time],
        notes: [["p99", quantile("consumer_received_seconds", 0.99), time]] },
      { title: "Oldest waiting cookie", headline: [now("consumer_oldest_waiting_seconds"), time, badIfOld],
        notes: [["waiting", now("consumer_waiting_cookies"), short]] },
      // While a write hangs, no cookie is stored that would count.
      { title: "Store latency", headline: [(view) => {
        const [p50, oldest] = [quantile("consumer_stored_seconds", 0.5)(view, {}), now("consumer_oldest_waiting_seconds")(view, {})];
        return oldest > 1 ? Math.max(oldest, p50) : p50;
      }, time],
        notes: [["p99", quantile("consumer_stored_seconds", 0.99), time], ["batch write", quantile("consumer_flush_seconds", 0.5), time],
          ["errors", now("consumer_store_errors_total"), integer]] },
    ],
    tables: [
      { title: "Producers", by: ["producer"], of: "consumer_producer_connected", none: "No producers yet.", columns: [
        ["connected", now("consumer_producer_connected"), yesNo, goodOrBad],
        ["lag (cookies)", (view, row) => now("consumer_producer_connected")(view, row) ? now("consumer_producer_lag_cookies")(view, row) : null, short],
        ["cursor", now("consumer_cursor_sequence"), integer],
        ["clock skew", now("consumer_clock_skew_seconds"), known((s) => s < 0 ? "-" + time(-s) : time(s))],
      ] },
      { title: "Addresses", by: ["address"], of: "consumer_address_connected", columns: [
        ["connected", now("consumer_address_connected"), yesNo, goodOrBad],
      ] },
      { title: "Cookie outcomes", items: [
        ["written", now("consumer_written_total"), integer],
        ["suppressed (duplicates)", now("consumer_suppressed_total"), integer],
        ["superseded", now("consumer_superseded_total"), integer],
        ["stale", now("consumer_stale_total"), integer],
        ["deletions", now("consumer_deletions_total"), integer],
        ["deleted on arrival", now("consumer_deleted_on_arrival_total"), integer],
        ["failed", now("consumer_failed_total"), integer, badIfAny],
        ["not stored at drain", now("consumer_drain_skipped_total"), integer],
        ["pending", now("consumer_waiting_cookies"), integer],
        ["in the retry queue", now("consumer_retry_queue_cookies"), integer, badIfAny],
        ["received", now("consumer_received_total"), integer],
      ] },
      counterTable("Failed cookies by reason", "consumer_failed_total", "reason", "cookies"),
      counterTable("Lost cookies by reason", "consumer_lost_total", "reason", "cookies"),
      counterTable("Producer restarts by loss", "consumer_producer_restarts_total", "loss", "restarts"),
      { title: "Match rates", by: ["dsp"], of: PAIRS, hideZero: true, columns: [
        ["match rate", ratio(perSecond(PAIRS, { outcome: "hit" }), minus(perSecond(PAIRS), unread(perSecond))), percent],
        ["since the start", ratio(now(PAIRS, { outcome: "hit" }), minus(now(PAIRS), unread(now))), percent],
        ["pairs", perSecond(PAIRS), rate],
        ["not read", unread(now), short, badIfAny],
      ] },
      { title: "Failing DSPs", by: ["dsp"], of: "consumer_dsp_failing", hideZero: true, columns: [["failing", now("consumer_dsp_failing"), yesNo, badIfAny]] },
      { title: "Maintenance", items: [
        ["owned by this consumer", now("consumer_maintenance_owner"), yesNo],
        ["expiry window open", now("consumer_expiry_window_open"), yesNo],
        ["last expiry", now("consumer_expiry_last_run_unix_seconds"), timestamp],
        ["expired cookies", now("consumer_expired_total"), integer],
        ["cookies still to sweep", now("consumer_sweep_remaining_cookies"), short],
        ["swept", perSecond("consumer_swept_total"), rate],
        ["oldest cookie overdue by", now("consumer_expiry_overdue_max_seconds"), time],
        ["compaction window open", now("consumer_compaction_window_open"), yesNo],
        ["last compaction", now("consumer_compaction_last_run_unix_seconds"), timestamp],
        ["errors", now("consumer_maintenance_errors_total"), integer, badIfAny],
      ] },
      { title: "Errors", items: [
        ["cookies lost in producer crashes (maximum)", now("consumer_uncertain_loss_cookies_total"), integer, badIfAny],
        ["protocol violations", now("consumer_stream_violations_total"), integer, badIfAny],
        ["duplicate producer ids", now("consumer_duplicate_producer_ids_total"), integer, badIfAny],
        ["dead letters not written", now("consumer_dead_letters_total", { outcome: "failed" }), integer, badIfAny],
        ...log("consumer"),
      ] },
      connections("consumer", ["admin"]),
    ],
  },
  limiter: {
    cards: [
      { title: "Requests", headline: [perSecond("limiter_requests_total"), rate], graph: "limiter_requests_total",
        notes: [["decisions refused", perSecond("limiter_decisions_total", { outcome: "refused" }), rate]] },
      { title: "Request latency", headline: [quantile("limiter_request_seconds", 0.5), time],
        notes: [["p99", quantile("limiter_request_seconds", 0.99), time]] },
      { title: "Waiting reservations", headline: [now("limiter_waiting"), integer] },
      { title: "Counters", headline: [now("limiter_counters"), short], bar: [now("limiter_counters"), now("limiter_counters_max")],
        notes: [["limit", now("limiter_counters_max"), short]] },
      { title: "Restricted counters", headline: [now("limiter_feedback_restricted_counters"), integer], notes: [["feedback applied", now("limiter_feedback_applied_total"), short]] },
    ],
    tables: [
      { title: "Limits", by: ["limit"], of: "limiter_decisions_total", columns: [
        ["granted", minus(perSecond("limiter_decisions_total"), perSecond("limiter_decisions_total", { outcome: "refused" })), rate],
        ["refused", perSecond("limiter_decisions_total", { outcome: "refused" }), rate],
        ["delay requests", now("limiter_delays_total"), short],
        ["reported calls", now("limiter_increments_total", { outcome: "counted" }), short],
        ["counters", now("limiter_limit_counters"), short],
        ["quota used", now("limiter_quota_used_ratio"), percent, (n) => n >= 0.8 ? "bad" : ""],
        ["restricted", now("limiter_feedback_restricted_counters"), integer],
        ["partner 429s", now("limiter_outbound_429_total"), short, badIfAny],
      ] },
      counterTable("Problems", "limiter_problems_total", "problem", "answers"),
      counterTable("Requests", "limiter_requests_total", "call", "answers"),
      { title: "State", items: [
        ["limits version", now("limiter_limits_version"), integer],
        ["newest version rejected", now("limiter_limits_version_refused"), yesNo, badIfAny],
        ["system clock behind by", now("limiter_clock_behind_seconds"), time],
        ["sharing server", now("limiter_sharing_server_up"), known((n) => n ? "up" : "down")],
        ...log("limiter"),
      ] },
      connections("limiter", ["http", "admin"]),
    ],
  },
  revalidator: {
    cards: [
      { title: "Checked", headline: [perSecond("revalidator_requests_total"), rate], graph: "revalidator_requests_total",
        notes: [["total", now("revalidator_requests_total"), short]] },
      { title: "Parallel requests", headline: [orZero(now("revalidator_concurrency")), integer], graph: "revalidator_concurrency" },
      { title: "Response time of origins", headline: [quantile("revalidator_response_seconds", 0.5), time],
        notes: [["p99", quantile("revalidator_response_seconds", 0.99), time]] },
      { title: "Workers", headline: [now("revalidator_workers"), integer],
        notes: [["oldest waiting job", now("revalidator_oldest_waiting_job_seconds"), time]] },
      { title: "Removed", headline: [now("revalidator_removed_total"), short],
        notes: [["held back", now("revalidator_held_back_total"), short]] },
    ],
    tables: [
      { title: "Jobs", by: ["job", "app"], of: "revalidator_job_resume_unix_seconds", none: "No jobs yet.", columns: [
        ["state", label("revalidator_job_resume_unix_seconds", "state"), plain, (state) => JOB_MARKS[state] || ""],
        ["reason", label("revalidator_job_resume_unix_seconds", "reason"), plain, () => "text"],
        ["resumes", now("revalidator_job_resume_unix_seconds"), (n) => n ? timestamp(n) : EMPTY],
        ["checked", now("revalidator_job_checked_assets"), short],
        ["transmitted", now("revalidator_job_assets"), short],
        ["progress", ratio(now("revalidator_job_checked_assets"), now("revalidator_job_assets")), percent],
      ] },
      { title: "Workers", by: ["worker"], of: "revalidator_concurrency", none: "No workers.", columns: [
        ["state", label("revalidator_concurrency", "state"), plain],
        ["job", label("revalidator_concurrency", "job"), plain, () => "text"],
        ["application", label("revalidator_concurrency", "app"), plain, () => "text"],
        ["parallel requests", now("revalidator_concurrency"), integer],
      ] },
      { title: "Schedules", by: ["app"], of: "revalidator_schedule_next_unix_seconds", columns: [
        ["next job", now("revalidator_schedule_next_unix_seconds"), timestamp],
      ] },
      counterTable("Outcomes", "revalidator_requests_total", "outcome", "assets"),
      { title: "Jobs by state", by: ["state"], of: "revalidator_jobs", hideZero: true, columns: [["jobs", now("revalidator_jobs"), integer]] },
      { title: "Applications", by: ["app"], of: "revalidator_requests_total", columns: [
        ["checked", perSecond("revalidator_requests_total"), rate],
        ["parallel requests", orZero(now("revalidator_concurrency")), integer],
        ["response p50", quantile("revalidator_response_seconds", 0.5), time],
        ["response p99", quantile("revalidator_response_seconds", 0.99), time],
        ["removed", now("revalidator_removed_total"), short],
        ["held back", now("revalidator_held_back_total"), short, badIfAny],
      ] },
      { title: "Errors", items: [
        ["invalid messages", now("revalidator_invalid_messages_total"), short, badIfAny],
        ["notes not written", now("revalidator_notes_failed_total"), short, badIfAny],
        ["repeated batches", now("revalidator_batches_repeated_total"), short],
        ...log("revalidator"),
      ] },
      connections("revalidator", ["http", "admin"]),
    ],
  },
};
