const accepted = new Past();
const acceptedSpark = spark("accepted");
el("accepted-spark").append(acceptedSpark.picture);

const keyOf = ({ call, name }) => call + " " + name;
const lags = new Map();
const lagOf = (item) => {
  const key = keyOf(item);
  if (!lags.has(key)) lags.set(key, new Past());
  return lags.get(key);
};

const STATES = { connected: "good", lagging: "mind", disconnected: "bad" };
const child = (cell, tag, name) => {
  if (!cell.firstElementChild) { const node = cell.appendChild(document.createElement(tag)); node.className = name; }
  return cell.firstElementChild;
};
const subscribers = table(el("subscribers"), [
  ["", "name", (cell, { name, call }) => {
    if (cell.firstChild) return;
    cell.append(name);
    const more = cell.appendChild(document.createElement("span"));
    more.className = "more";
    say(more, call);
  }],
  ["state", "text", (cell, { state }) => {
    const mark = child(cell, "span", "mark");
    say(mark, state);
    style(mark, "mark " + STATES[state]);
  }],
  ["behind", "", (cell, { lag_seconds }) => say(cell, time(lag_seconds))],
  ["cookies behind", "", (cell, { lag_cookies }) => say(cell, short(lag_cookies))],
  ["behind, five minutes", "full", (cell, item) => {
    if (!cell.spark) { cell.spark = spark("seconds behind"); cell.append(cell.spark.picture); }
    cell.spark.draw(lagOf(item), time, 1);
  }],
  ["delivered", "", (cell, { delivered }) => say(cell, short(delivered))],
  ["rate", "", (cell, { delivered_per_second }) => say(cell, rate(delivered_per_second))],
  ["lost", "", (cell, { lost }) => {
    const all = lost.queue_bound + lost.log_moved_on;
    say(cell, short(all));
    style(cell, all > 0 ? "lost" : "");
    cell.title = "behind its bound: " + whole(lost.queue_bound) + ", the log had moved on: " + whole(lost.log_moved_on);
  }],
  ["in flight", "", (cell, { pinned_bytes }) => say(cell, bytes(pinned_bytes))],
  ["came back", "", (cell, { resumes, cut }) => say(cell, whole(resumes) + (cut ? ", cut off " + whole(cut) : ""))],
]);
const reasons = (counts) => counts.map(({ what, count }) => what + " " + short(count)).join(", ");
const sum = (counts) => counts.reduce((all, { count }) => all + count, 0);
// The first bucket holds all that did not wait.
const delay = (s) => s > 0 && s <= 0.001 ? "< 1 ms" : time(s);
const limits = table(el("limits-rows"), [
  ["", "name", (cell, { name, mode }) => {
    if (!cell.firstChild) { cell.append(name); cell.appendChild(document.createElement("span")).className = "more"; }
    say(cell.lastChild, mode || "not in the file any more");
  }],
  ["in", "", (cell, { accepted, accepted_per_second }) => {
    say(cell, rate(accepted_per_second));
    cell.title = whole(accepted) + " accepted in all";
  }],
  ["limited", "", (cell, { limited_by, limited_per_second, mode }) => {
    say(cell, rate(limited_per_second));
    cell.title = (mode === "observe" ? "police would have dropped, in all: " : "over the limit when they came, in all: ") + (reasons(limited_by) || "none");
  }],
  ["out", "", (cell, { released, released_per_second, coalesced }) => {
    say(cell, rate(released_per_second));
    cell.title = whole(released) + " released in all, and " + whole(coalesced) + " superseded while they waited";
  }],
  ["waiting", "", (cell, { waiting }) => say(cell, short(waiting))],
  ["oldest", "", (cell, { oldest_seconds }) => say(cell, time(oldest_seconds))],
  ["delay, p50", "", (cell, { delay_seconds }) => say(cell, delay_seconds ? delay(delay_seconds.p50) : NOTHING)],
  ["delay, p99", "", (cell, { delay_seconds }) => say(cell, delay_seconds ? delay(delay_seconds.p99) : NOTHING)],
  ["jitter", "", (cell, { jitter_seconds }) => say(cell, time(jitter_seconds))],
  ["dropped", "", (cell, { dropped }) => {
    const all = sum(dropped);
    say(cell, short(all));
    style(cell, all > 0 ? "lost" : "");
    cell.title = reasons(dropped);
  }],
  ["dead", "", (cell, { dead }) => say(cell, short(dead))],
  ["parked", "", (cell, { parked }) => say(cell, short(parked))],
]);
const outcomes = tally("outcomes");
const connections = table(el("connections"), [
  ["", "name", (cell, { port }) => say(cell, port)],
  ["", "", (cell, { open }) => say(cell, whole(open))],
  ["", "", (cell, { accepted }) => say(cell, short(accepted))],
  ["", "text wrap", (cell, { cut }) => say(cell, reasons(cut) || NOTHING)],
]);
const dsps = table(el("dsps"), [
  ["", "name", (cell, { dsp }) => say(cell, dsp)],
  ["", "", (cell, { accepted }) => say(cell, short(accepted))],
  ["", "", (cell, { refused }) => say(cell, short(refused))],
]);

live((status) => {
  const { edge, log, history } = status;
  if (history) {
    accepted.set(history.accepted_per_second);
    lags.clear();
    for (const past of history.subscribers) lagOf(past).set(past.lag_seconds);
  } else {
    accepted.push(edge.accepted_per_second);
    for (const item of status.subscribers) lagOf(item).push(item.lag_seconds);
  }
  const present = new Set(status.subscribers.map(keyOf));
  for (const key of lags.keys()) if (!present.has(key)) lags.delete(key);
  put("accepted-rate", rate(edge.accepted_per_second));
  put("accepted", short(edge.accepted) + " in all");
  acceptedSpark.draw(accepted, rate);
  put("refused-rate", rate(edge.refused_per_second));
  put("refused", short(edge.refused) + " in all");
  const latency = edge.latency_seconds;
  put("latency", latency ? time(latency.p50) : NOTHING);
  put("latency-p99", latency ? "p99 " + time(latency.p99) : "no request in ten seconds");
  put("log-bytes", bytes(log.bytes));
  put("log-max", "of " + bytes(log.bytes_max));
  el("log-full").value = log.bytes / log.bytes_max;
  put("log-cookies", short(log.cookies) + " cookies");
  put("retention", time(log.reach_seconds));
  put("connected", whole(status.subscribers_connected) + " of " + whole(status.subscribers_total));
  const lagging = status.subscribers.filter(({ state }) => state === "lagging").length;
  const away = status.subscribers_total - status.subscribers_connected;
  put("behind", [lagging && lagging + " lagging", away && away + " away"].filter(Boolean).join(", ") || "none lags");
  put("in-flight", bytes(status.pinned_bytes) + " in flight");
  el("in-flight").title = "of " + bytes(status.pinned_bytes_max);
  subscribers(status.subscribers, keyOf, ({ state }) => state === "disconnected" ? "away" : "");
  const hidden = status.subscribers_total - status.subscribers.length;
  put("subscribers-none", !status.subscribers_total ? "Nobody has subscribed yet." : hidden ? hidden + " more are less far behind." : "");
  el("limits").hidden = !status.limits;
  if (status.limits) {
    const { version, refused, sharing, total, rows } = status.limits;
    put("limits-version", "Version " + whole(version) + " of the file is in force.");
    put("limits-refused", refused ? "The newest version is refused: " + refused : "");
    el("limits-alone").hidden = !!sharing;
    const share = ({ name, share }) => share === null ? [] : [name + " " + (100 * share).toFixed(1) + " %"];
    const shares = rows.flatMap(share);
    const own = shares.length ? " Of each this one has: " + shares.join(", ") + "." : "";
    put("limits-sharing", sharing ? "Several producers share these limits: " + sharing + "." + own : "");
    limits(rows, ({ name }) => name);
    put("limits-hidden", total > rows.length ? total - rows.length + " more have fewer cookies." : "");
  }
  outcomes(edge.outcomes.map(({ what, count }) => [what, count]));
  el("outcomes-none").hidden = edge.outcomes.length > 0;
  connections(status.connections, ({ port }) => port);
  el("dsps-none").hidden = status.dsps.length > 0;
  dsps(status.dsps, ({ dsp }) => dsp);
});
