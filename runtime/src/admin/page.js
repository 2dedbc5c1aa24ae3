"use strict";
// The status page of every process. Once a second it reads /metrics and /readyz, and shows what PROGRAMS lists. Rates are of
// the last second, quantiles of the last ten; the graphs begin when the page opens.
// What outsiders say is put into text nodes alone.

const el = (id) => document.getElementById(id);
const say = (node, text) => { if (node.textContent !== text) node.textContent = text; };
const style = (node, name) => { if (node.className !== name) node.className = name; };
const make = (parent, tag, name, text) => {
  const node = parent.appendChild(document.createElement(tag));
  if (name) node.className = name;
  if (text) node.textContent = text;
  return node;
};

// Formats.

const NOTHING = "–";
const known = (show) => (n) => n === null || n === undefined || Number.isNaN(n) ? NOTHING : show(n);
const scaled = (n, step, units) => {
  let unit = 0;
  while (Math.abs(n) >= step && unit < units.length - 1) { n /= step; unit += 1; }
  const digits = unit === 0 || n >= 100 ? 0 : n >= 10 ? 1 : 2;
  return n.toFixed(digits) + units[unit];
};
const whole = known((n) => n.toLocaleString("en-US", { maximumFractionDigits: 0 }));
const short = known((n) => Math.abs(n) < 100000 ? whole(n) : scaled(n, 1000, ["", " k", " M", " G", " T"]));
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
const moment = known((s) => s === 0 ? "never" : new Date(1000 * s).toLocaleString());
const word = (text) => text;
const yesNo = known((n) => n ? "yes" : "no");

// Marks: the class of what a value is shown in.

const badIfAny = (n) => n > 0 ? "bad" : "";
const goodOrBad = (n) => "mark " + (n ? "good" : "bad");

// Values: functions of `view`, the samples of now, a second ago and ten seconds ago, and of the labels of a row.

const series = (sample, name, labels) => (sample.series.get(name) || [])
  .filter((it) => Object.entries(labels).every(([label, value]) => it.labels[label] === value));
const sum = (sample, name, labels) => {
  const found = series(sample, name, labels);
  return found.length ? found.reduce((all, { value }) => all + value, 0) : null;
};
const now = (name, labels) => (view, row) => sum(view.now, name, { ...row, ...labels });
const perSecond = (name, labels) => (view, row) => {
  const [after, before] = [view.now, view.before].map((it) => sum(it, name, { ...row, ...labels }));
  const seconds = view.now.at - view.before.at;
  return after === null || seconds <= 0 ? null : Math.max(0, after - before) / seconds;
};
const less = (all, part) => (view, row) => {
  const whole = all(view, row);
  return whole === null ? null : whole - part(view, row);
};
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

// What is shown of each process.
//
// A card has a figure, [value, format], notes below it, [text, value, format], and a graph or a bar, which is [value, limit].
// A table has a row for each value of the labels `by` that the series of its first column have, and columns, [heading, value,
// format, mark]; one with `items` has a row for each of these, [text, value, format, mark].

const subscriberState = (view, row) => {
  if (!now("producer_subscriber_connected")(view, row)) return "disconnected";
  return now("producer_subscriber_lag_seconds")(view, row) > 1 ? "lagging" : "connected";
};
const STATES = { connected: "mark good", lagging: "mark mind", disconnected: "mark bad" };
const connections = (process, ports) => ({
  title: "Connections",
  items: ports.flatMap((port) => [
    [port + ", open", now(`${process}_${port}_connections`), whole],
    [port + ", accepted", now(`${process}_${port}_connections_accepted_total`), short],
    [port + ", cut off", now(`${process}_${port}_connections_closed_total`), short],
  ]),
});
const counted = (title, name, by, heading) => ({
  title, by: [by], some: true, columns: [[heading, now(name), short], ["rate", perSecond(name), rate]], of: name,
});
const log = (process) => [["log lines dropped", now(`${process}_log_lines_dropped_total`), whole, badIfAny]];

const ACCEPTED = { outcome: "accepted" };
const PROGRAMS = {
  producer: {
    cards: [
      { title: "Accepted", figure: [perSecond("producer_edge_requests_total", ACCEPTED), rate], graph: true,
        notes: [["in all", now("producer_edge_requests_total", ACCEPTED), short]] },
      { title: "Rejected", figure: [less(perSecond("producer_edge_requests_total"), perSecond("producer_edge_requests_total", ACCEPTED)), rate],
        notes: [["in all", less(now("producer_edge_requests_total"), now("producer_edge_requests_total", ACCEPTED)), short]] },
      { title: "Request latency", figure: [quantile("producer_edge_request_seconds", 0.5), time],
        notes: [["p99", quantile("producer_edge_request_seconds", 0.99), time]] },
      { title: "Log", figure: [now("producer_log_bytes"), bytes], bar: [now("producer_log_bytes"), now("producer_log_limit_bytes")],
        notes: [["limit", now("producer_log_limit_bytes"), bytes], ["cookies", now("producer_log_cookies"), short]] },
      { title: "Log retention", figure: [now("producer_log_retained_seconds"), time] },
      { title: "Delivered", figure: [perSecond("producer_subscriber_delivered_cookies_total"), rate], graph: true,
        notes: [["connected", now("producer_subscriber_connected"), whole],
          ["in flight", now("producer_in_flight_bytes"), bytes]] },
    ],
    tables: [
      { title: "Subscribers", by: ["subscriber", "call"], of: "producer_subscriber_connected", none: "Nobody has subscribed yet.", columns: [
        ["state", subscriberState, word, (state) => STATES[state]],
        ["lag", now("producer_subscriber_lag_seconds"), time],
        ["lag, cookies", now("producer_subscriber_lag_cookies"), short],
        ["delivered", now("producer_subscriber_delivered_cookies_total"), short],
        ["rate", perSecond("producer_subscriber_delivered_cookies_total"), rate],
        ["lost", now("producer_subscriber_lost_cookies_total"), short, badIfAny],
        ["in flight", now("producer_subscriber_in_flight_bytes"), bytes],
        ["streams", now("producer_subscriber_streams_total"), whole],
        ["cut off", now("producer_subscriber_disconnects_total"), whole, badIfAny],
      ] },
      { title: "Limits", by: ["limit"], of: "producer_limits_accepted_cookies_total", columns: [
        ["in", perSecond("producer_limits_accepted_cookies_total"), rate],
        ["over", perSecond("producer_limits_exceeded_cookies_total"), rate],
        ["over, in all", now("producer_limits_exceeded_cookies_total"), short],
        ["out", perSecond("producer_limits_released_cookies_total"), rate],
        ["waiting", now("producer_limits_queued_cookies"), short],
        ["oldest", now("producer_limits_oldest_seconds"), time],
        ["delay, p50", quantile("producer_limits_delay_seconds", 0.5), time],
        ["p99", quantile("producer_limits_delay_seconds", 0.99), time],
        ["dropped", now("producer_limits_dropped_cookies_total"), short, badIfAny],
        ["dead", now("producer_limits_dead_cookies"), short],
        ["parked", now("producer_limits_parked_cookies"), short],
        ["share", now("producer_limit_share"), percent],
      ] },
      counted("Requests by outcome", "producer_edge_requests_total", "outcome", "requests"),
      { title: "DSPs", by: ["dsp"], of: "producer_dsp_cookies_total", some: true, columns: [
        ["accepted", now("producer_dsp_cookies_total", ACCEPTED), short],
        ["rate", perSecond("producer_dsp_cookies_total", ACCEPTED), rate],
        ["rejected", less(now("producer_dsp_cookies_total"), now("producer_dsp_cookies_total", ACCEPTED)), short],
      ] },
      connections("producer", ["http", "grpc", "admin"]),
      { title: "Errors", items: [
        ["calls refused", now("producer_grpc_calls_refused_total"), short, badIfAny],
        ["streams refused", now("producer_streams_refused_total"), short, badIfAny],
        ["calls without a valid token", now("producer_token_refusals_total"), short, badIfAny],
        ...log("producer"),
      ] },
    ],
  },
  consumer: {
    cards: [
      { title: "Received", figure: [perSecond("consumer_received_total"), rate], graph: true,
        notes: [["in all", now("consumer_received_total"), short], ["buffered", now("consumer_buffer_bytes"), bytes]] },
      { title: "Written", figure: [perSecond("consumer_written_total"), rate], graph: true,
        notes: [["batches", perSecond("consumer_batches_total"), rate], ["cookies of a batch", quantile("consumer_batch_cookies", 0.5), short]] },
      { title: "Delay to this node", figure: [quantile("consumer_received_seconds", 0.5), time],
        notes: [["p99", quantile("consumer_received_seconds", 0.99), time]] },
      { title: "Time to store", figure: [quantile("consumer_stored_seconds", 0.5), time],
        notes: [["p99", quantile("consumer_stored_seconds", 0.99), time], ["waiting", now("consumer_waiting_cookies"), short]] },
      { title: "Store", figure: [now("consumer_store_up"), known((n) => n ? "works" : "does not work")],
        notes: [["a batch takes", quantile("consumer_flush_seconds", 0.5), time], ["failed attempts", now("consumer_store_errors_total"), whole]] },
    ],
    tables: [
      { title: "Producers", by: ["producer"], of: "consumer_producer_connected", none: "No producer has been connected yet.", columns: [
        ["connected", now("consumer_producer_connected"), yesNo, goodOrBad],
        ["lag, cookies", now("consumer_producer_lag_cookies"), short],
        ["cursor", now("consumer_cursor_sequence"), whole],
        ["clock ahead of it", now("consumer_clock_skew_seconds"), known((s) => s < 0 ? "-" + time(-s) : time(s))],
      ] },
      { title: "Addresses", by: ["address"], of: "consumer_address_connected", columns: [
        ["connected", now("consumer_address_connected"), yesNo, goodOrBad],
      ] },
      { title: "What became of cookies", items: [
        ["written", now("consumer_written_total"), whole],
        ["repeats, not written", now("consumer_suppressed_total"), whole],
        ["replaced in their batch", now("consumer_superseded_total"), whole],
        ["older than stored", now("consumer_stale_total"), whole],
        ["failed", now("consumer_failed_total"), whole, badIfAny],
        ["left out by a drain", now("consumer_drain_skipped_total"), whole],
        ["waiting", now("consumer_waiting_cookies"), whole],
        ["set aside", now("consumer_retry_queue_cookies"), whole, badIfAny],
        ["received", now("consumer_received_total"), whole],
      ] },
      counted("Failed by reason", "consumer_failed_total", "reason", "cookies"),
      counted("Lost on the way, by reason", "consumer_lost_total", "reason", "cookies"),
      counted("Producer restarts by loss", "consumer_producer_restarts_total", "loss", "restarts"),
      { title: "DSPs whose cookies are set aside", by: ["dsp"], of: "consumer_dsp_failing", some: true, columns: [["failing", now("consumer_dsp_failing"), yesNo, badIfAny]] },
      { title: "Maintenance", items: [
        ["by this consumer", now("consumer_maintenance_owner"), yesNo],
        ["expiry window open", now("consumer_expiry_window_open"), yesNo],
        ["last expiry", now("consumer_expiry_last_run_unix_seconds"), moment],
        ["expired cookies", now("consumer_expired_total"), whole],
        ["left to sweep", now("consumer_sweep_remaining_cookies"), short],
        ["swept a second", perSecond("consumer_swept_total"), rate],
        ["oldest is overdue by", now("consumer_expiry_overdue_max_seconds"), time],
        ["compaction window open", now("consumer_compaction_window_open"), yesNo],
        ["last compaction", now("consumer_compaction_last_run_unix_seconds"), moment],
        ["errors", now("consumer_maintenance_errors_total"), whole, badIfAny],
      ] },
      { title: "Errors", items: [
        ["cookies lost at most, after crashes", now("consumer_uncertain_loss_cookies_total"), whole, badIfAny],
        ["streams that broke the contract", now("consumer_stream_violations_total"), whole, badIfAny],
        ["producers with the same id", now("consumer_duplicate_producer_ids_total"), whole, badIfAny],
        ["dead letters not written", now("consumer_dead_letters_total", { outcome: "failed" }), whole, badIfAny],
        ...log("consumer"),
      ] },
      connections("consumer", ["admin"]),
    ],
  },
  limiter: {
    cards: [
      { title: "Decisions", figure: [perSecond("limiter_decisions_total"), rate], graph: true,
        notes: [["refused", perSecond("limiter_decisions_total", { outcome: "refused" }), rate]] },
      { title: "Request latency", figure: [quantile("limiter_request_seconds", 0.5), time],
        notes: [["p99", quantile("limiter_request_seconds", 0.99), time]] },
      { title: "Waiting", figure: [now("limiter_waiting"), whole] },
      { title: "Counters", figure: [now("limiter_counters"), short], bar: [now("limiter_counters"), now("limiter_counters_max")],
        notes: [["limit", now("limiter_counters_max"), short]] },
      { title: "Learned", figure: [now("limiter_feedback_restricted_counters"), whole], notes: [["answers", now("limiter_feedback_applied_total"), short]] },
    ],
    tables: [
      { title: "Limits", by: ["limit"], of: "limiter_decisions_total", columns: [
        ["granted", less(perSecond("limiter_decisions_total"), perSecond("limiter_decisions_total", { outcome: "refused" })), rate],
        ["refused", perSecond("limiter_decisions_total", { outcome: "refused" }), rate],
        ["asked", now("limiter_delays_total"), short],
        ["reported", now("limiter_increments_total", { outcome: "counted" }), short],
        ["counters", now("limiter_limit_counters"), short],
        ["quota used", now("limiter_quota_used_ratio"), percent, (n) => n >= 0.8 ? "bad" : ""],
        ["learned", now("limiter_feedback_restricted_counters"), whole],
        ["429s", now("limiter_outbound_429_total"), short, badIfAny],
      ] },
      counted("Problems", "limiter_problems_total", "problem", "answers"),
      counted("Requests", "limiter_requests_total", "call", "answers"),
      { title: "State", items: [
        ["version of the limits", now("limiter_limits_version"), whole],
        ["newest version rejected", now("limiter_limits_version_refused"), yesNo, badIfAny],
        ["clock is behind by", now("limiter_clock_behind_seconds"), time],
        ["server of shared limits", now("limiter_sharing_server_up"), known((n) => n ? "there" : "away")],
        ...log("limiter"),
      ] },
      connections("limiter", ["http", "admin"]),
    ],
  },
};

// Reading.

const UNESCAPED = { "\\\\": "\\", '\\"': '"', "\\n": "\n" };
const parse = (text) => {
  const all = new Map();
  for (const line of text.split("\n")) {
    const [, name, inside, value] = /^([a-z_]\w*)(?:\{(.*)\})? (\S+)$/.exec(line) || [];
    if (!name) continue;
    const labels = {};
    for (const [, label, escaped] of (inside || "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)) {
      labels[label] = escaped.replace(/\\[\\"n]/g, (pair) => UNESCAPED[pair]);
    }
    if (!all.has(name)) all.set(name, []);
    all.get(name).push({ labels, value: Number(value) });
  }
  return all;
};

const WAIT_MAX = 8000;
const ask = (path) => fetch(path, { cache: "no-store", signal: AbortSignal.timeout(WAIT_MAX) });

// Showing: each of these makes its elements once, and returns what brings a view into them.

const PAST = 300;
const graph = (parent, what) => {
  const svg = (parent, name, tag) => {
    const node = parent.appendChild(document.createElementNS("http://www.w3.org/2000/svg", tag));
    node.setAttribute("class", name);
    return node;
  };
  const picture = svg(parent, "spark bottom", "svg");
  picture.setAttribute("viewBox", `0 0 ${PAST} 30`);
  picture.setAttribute("preserveAspectRatio", "none");
  picture.setAttribute("role", "img");
  const [area, line] = [svg(picture, "area", "path"), svg(picture, "", "path")];
  const values = [];
  return (value, show) => {
    values.push(value || 0);
    if (values.length > PAST) values.shift();
    const most = Math.max(...values);
    const from = PAST - values.length;
    const points = values.map((value, at) => `${from + at} ${(29 - (most > 0 ? value / most : 0) * 28).toFixed(1)}`);
    line.setAttribute("d", "M" + points.join("L"));
    area.setAttribute("d", `M${points.join("L")}L${PAST - 1} 30L${from} 30Z`);
    picture.setAttribute("aria-label", `${what} since the page was opened, at most ${show(most)}`);
  };
};

const card = (parent, { title, figure: [value, show], notes, graph: hasGraph, bar }) => {
  const section = make(parent, "section", "card");
  make(section, "h2", "", title);
  const figure = make(section, "div", "figure", NOTHING);
  const progress = bar && make(section, "progress");
  const lines = (notes || []).map(([text, value, show]) => [make(section, "p"), text, value, show]);
  const draw = hasGraph && graph(section, title);
  return (view) => {
    const found = value(view, {});
    say(figure, show(found));
    if (bar) progress.value = bar[0](view, {}) / bar[1](view, {}) || 0;
    for (const [line, text, value, show] of lines) say(line, `${text} ${show(value(view, {}))}`);
    if (draw) draw(found, show);
  };
};

// Rows stay the same elements for as long as their key is there.
const rowsOf = (body) => {
  const rows = new Map();
  return (items) => {
    items.forEach(({ key, name, more, cells }, at) => {
      let row = rows.get(key);
      if (!row) {
        row = document.createElement("tr");
        const first = make(row, "td", "name", name);
        if (more) make(first, "span", "more", more);
        for (const { heading } of cells) make(make(row, "td"), "span").parentNode.dataset.label = heading;
        rows.set(key, row);
      }
      if (body.rows[at] !== row) body.insertBefore(row, body.rows[at] || null);
      cells.forEach(({ text, mark }, at) => {
        const cell = row.cells[at + 1].firstChild;
        say(cell, text);
        style(cell, mark);
      });
    });
    const keys = new Set(items.map(({ key }) => key));
    for (const [key, row] of rows) if (!keys.has(key)) { row.remove(); rows.delete(key); }
  };
};
const cell = (view, row, [heading, value, show, mark]) => {
  const found = value(view, row);
  return { heading, text: show(found), mark: mark ? mark(found) : "" };
};

const ROWS_MAX = 200;
const keysOf = (view, { of, by }) => {
  const keys = new Map();
  for (const { labels } of view.now.series.get(of) || []) {
    const values = by.map((label) => labels[label]);
    keys.set(values.join("\n"), Object.fromEntries(by.map((label, at) => [label, values[at]])));
  }
  return [...keys].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }));
};
const table = (parent, { title, by, of, some, columns, items, none }) => {
  const section = make(parent, "section", "card");
  make(section, "h2", "", title);
  const wide = make(section, "div", "wide");
  const element = make(wide, "table", !columns ? "items" : columns.length > 3 ? "stack" : "");
  if (columns) {
    const head = make(make(element, "thead"), "tr");
    make(head, "th", "", by[0]);
    for (const [heading] of columns) make(head, "th", "", heading);
  }
  const fill = rowsOf(make(element, "tbody"));
  const word = make(section, "p", "none");
  return (view) => {
    if (items) {
      fill(items.map((item) => ({ key: item[0], name: item[0], cells: [cell(view, {}, ["", ...item.slice(1)])] })));
      return;
    }
    let keys = keysOf(view, { of, by });
    if (some) keys = keys.filter(([, row]) => now(of)(view, row) > 0);
    const shown = keys.slice(0, ROWS_MAX);
    fill(shown.map(([key, row]) => {
      const [name, more] = by.map((label) => row[label]);
      return { key, name, more, cells: columns.map((column) => cell(view, row, column)) };
    }));
    const hidden = keys.length - shown.length;
    say(word, keys.length ? hidden ? hidden + " more are not shown." : "" : none || "None.");
    section.hidden = keys.length === 0 && !none;
  };
};

const build = (process) => {
  const { cards, tables } = PROGRAMS[process];
  const columns = el("tables");
  table(columns, { title: "Components", items: [] });
  columns.firstChild.id = "components";
  const fillComponents = rowsOf(columns.querySelector("tbody"));
  const shows = cards.map((it) => card(el("cards"), it)).concat(tables.map((it) => table(columns, it)));
  el("lookup").hidden = process !== "consumer";
  return (view) => {
    fillComponents(view.now.ready.components.map(({ component, state, ready }) => ({
      key: component, name: component, cells: [{ heading: "", text: state, mark: ready ? "" : "bad" }],
    })));
    for (const show of shows) show(view);
  };
};

const head = (process, { series, ready, date }) => {
  const info = series.get(process + "_build_info")[0].labels;
  const { ready: isReady, reasons } = ready;
  document.title = `${process} · ${location.host}`;
  say(el("name"), process);
  say(el("version"), `${info.version} at ${location.host}`);
  const [started] = series.get("process_start_time_seconds") || [];
  say(el("uptime"), started ? "up " + time(Math.max(1, Math.floor(date / 1000 - started.value))) : "");
  el("uptime").title = "as of " + new Date(date).toLocaleTimeString();
  const isDraining = reasons.some(({ component }) => component === "drain");
  const [word, mark] = isDraining ? ["draining", "mind"] : isReady ? ["ready", "good"] : ["not ready", "bad"];
  say(el("ready"), word);
  style(el("ready"), "mark " + mark);
  say(el("why"), reasons.map(({ component, reason }) => component + ": " + reason).join(" · "));
};

const SAMPLES = 11;
const samples = [];
let show = null;
const look = async () => {
  // These do not end the intervals of peaks, which are for scrapes.
  const [metrics, readiness] = await Promise.all([ask("metrics?keep-peaks"), ask("readyz")]);
  const sample = {
    at: performance.now() / 1000, date: Date.parse(metrics.headers.get("date")) || Date.now(),
    series: parse(await metrics.text()), ready: await readiness.json(),
  };
  samples.push(sample);
  if (samples.length > SAMPLES) samples.shift();
  const process = Object.keys(PROGRAMS).find((it) => sample.series.has(it + "_build_info"));
  show = show || build(process);
  head(process, sample);
  show({ now: sample, before: samples[Math.max(0, samples.length - 2)], past: samples[0] });
};

let heard = 0;
const run = async () => {
  const began = performance.now();
  try {
    await look();
    heard = performance.now();
    say(el("link"), "live");
    document.body.classList.remove("stale");
  } catch (error) {
    say(el("link"), heard ? "no answer for " + time(Math.floor((performance.now() - heard) / 1000)) : "no answer");
    el("link").title = String(error);
    document.body.classList.add("stale");
  }
  setTimeout(run, Math.max(100, 1000 - (performance.now() - began)));
};
run();

const uids = rowsOf(el("uids"));
document.querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  let [word, found] = ["", []];
  try {
    const answer = await ask("v1/users/" + encodeURIComponent(el("user").value));
    const said = await answer.json();
    word = answer.ok ? said.user_id : said.error;
    found = answer.ok ? Object.entries(said.buyer_uids) : [];
  } catch (error) {
    word = "no answer: " + error.message;
  }
  say(el("found"), word);
  uids(found.map(([dsp, uid]) => ({ key: dsp, name: dsp, cells: [{ heading: "", text: uid, mark: "" }] })));
});
