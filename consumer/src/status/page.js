const [received, written] = [new Past(), new Past()];
const [receivedSpark, writtenSpark] = [spark("received"), spark("written")];
el("received-spark").append(receivedSpark.picture);
el("written-spark").append(writtenSpark.picture);

const producers = table(el("producers"), [
  ["", "name", (cell, { address, producer, origin }) => {
    if (!cell.firstChild) {
      cell.append("");
      cell.appendChild(document.createElement("span")).className = "more";
    }
    const name = producer || address;
    if (cell.firstChild.data !== name) cell.firstChild.data = name;
    say(cell.lastChild, producer ? address + " of " + origin : "of " + origin);
  }],
  ["state", "text wrap full", (cell, { connected, why }) => {
    if (!cell.firstChild) {
      cell.appendChild(document.createElement("span"));
      cell.appendChild(document.createElement("span")).className = "more";
    }
    say(cell.firstChild, connected ? "connected" : "disconnected");
    style(cell.firstChild, connected ? "mark good" : "mark bad");
    say(cell.lastChild, why || "");
  }],
  ["came after", "", (cell, { connected, newest_age_seconds }) => say(cell, connected ? time(newest_age_seconds) : NOTHING)],
  ["received", "", (cell, { received_sequence }) => say(cell, whole(received_sequence))],
  ["cursor", "", (cell, { stored_sequence }) => say(cell, stored_sequence === null ? NOTHING : whole(stored_sequence))],
  ["not stored yet", "", (cell, { lag_cookies }) => say(cell, short(lag_cookies))],
  ["heard", "", (cell, { silent_seconds }) => say(cell, silent_seconds === null ? NOTHING : silent_seconds < 2 ? "now" : time(Math.floor(silent_seconds)) + " ago")],
]);
const ledger = tally("ledger", [["", "", (cell, [, , share]) => say(cell, share)]]);
const restarts = tally("restarts");
const lost = tally("lost");
const night = tally("night");
const uids = table(el("uids"), [
  ["", "name", (cell, [dsp]) => say(cell, dsp)],
  ["", "text", (cell, [, uid]) => say(cell, uid)],
]);

const quantiles = (id, quantiles) => {
  put(id + "-p50", quantiles ? time(quantiles.p50) : NOTHING);
  put(id + "-p90", quantiles ? "p90 " + time(quantiles.p90) : "none in ten seconds");
  put(id + "-p99", quantiles ? "p99 " + time(quantiles.p99) : "");
};
const change = ({ open, next_change_local_time }, now) => {
  const state = open ? "open" : "closed";
  if (!next_change_local_time) return state;
  const [day, hour] = next_change_local_time.split(" ");
  const when = day === now.split(" ")[0] ? hour : "tomorrow " + hour;
  return state + ", " + (open ? "closes " : "opens ") + when;
};

const swept = (sweep) => {
  if (!sweep) return [];
  const pace = short(sweep.per_hour) + " cookies an hour";
  return [["sweep", sweep.left ? short(sweep.left) + " left, " + pace + ", " + time(sweep.seconds_left) + " to go" : "done, " + pace]];
};

live((status) => {
  const { ledger: sums, store, history } = status;
  if (history) {
    received.set(history.received_per_second);
    written.set(history.written_per_second);
  } else {
    received.push(status.received_per_second);
    written.push(status.written_per_second);
  }
  put("received-rate", rate(status.received_per_second));
  put("received", short(sums.received) + " in all");
  receivedSpark.draw(received, rate);
  put("written-rate", rate(status.written_per_second));
  const { batches } = status;
  put("batches", rate(batches.per_second).replace("/s", " batches/s"));
  put("batch", batches.cookies ? "of " + short(batches.cookies.p50) + " cookies" : "");
  writtenSpark.draw(written, rate);
  quantiles("received", status.received_seconds);
  quantiles("stored", status.stored_seconds);
  put("buffer", bytes(status.buffer_bytes) + " buffered");
  el("buffer").title = "reading stops at " + bytes(status.buffer_bytes_max);
  put("waiting", whole(sums.waiting) + " waiting");
  put("store", store.kind);
  put("store-up", store.up ? "works" : "does not work");
  style(el("store-up"), store.up ? "mark good" : "mark bad");
  put("store-target", store.why || store.target);
  el("store-target").title = store.why || store.target;
  const took = store.write_seconds;
  put("store-time", took ? "a batch takes " + time(took.p50) : "no batch in ten seconds");
  if (took) el("store-time").title = "p99 " + time(took.p99);
  put("store-errors", store.errors ? whole(store.errors) + " failed attempts" : "never failed");
  producers(status.producers, ({ address }) => address, ({ connected }) => connected ? "" : "away");
  const hidden = status.producers_total - status.producers.length;
  put("producers-none", !status.producers_total ? "No address of a producer is known yet." : hidden ? hidden + " more are not shown." : "");
  const share = (count) => sums.received ? (100 * count / sums.received).toFixed(1) + " %" : "";
  const fates = [
    ["written", sums.written], ["repeats, left out", sums.suppressed], ["replaced in their batch", sums.superseded],
    ["older than stored", sums.stale], ["malformed", sums.malformed], ["dead letters", sums.dead_lettered],
    ["no slot for their DSP", sums.no_place], ["unreadable", sums.unreadable],
    ["expired before they came", sums.expired],
    ["left out by a drain", sums.left_out], ["waiting", sums.waiting], ["set aside", sums.set_aside],
  ];
  const balance = sums.unexplained === 0 ? "adds up" : "unexplained: " + whole(sums.unexplained);
  ledger([...fates.map(([what, count]) => [what, count, share(count)]), ["received", sums.received, balance]],
    ([what]) => what === "received" ? "sum" : "");
  const ends = status.lives;
  restarts([
    ["nothing lost, proved", ends.proved], ["lost, exactly counted", ends.lost],
    ["lost, at most counted", ends.bounded], ["cookies of these, at most", ends.unknown_cookies_max],
    ["unknown", ends.unknown],
  ]);
  el("lost-card").hidden = status.lost.length === 0;
  lost(status.lost.map(({ what, count }) => [what, count]));
  const now = status.night.local_time;
  night([
    ["expiry " + status.night.expiry.hours, change(status.night.expiry, now)],
    ...swept(status.night.sweep),
    ["compaction " + status.night.compaction.hours, change(status.night.compaction, now)],
  ]);
  put("night-now", "it is " + now.split(" ")[1] + ", " + status.night.time_zone);
});

el("lookup").addEventListener("submit", async (event) => {
  event.preventDefault();
  const user = el("user").value;
  let [word, found] = ["", []];
  try {
    const answer = await fetch("v1/users/" + encodeURIComponent(user));
    const said = await answer.json();
    if (answer.ok) {
      found = Object.entries(said.buyer_uids);
      word = said.user_id;
    } else {
      word = said.error;
    }
  } catch (error) {
    word = "no answer: " + error.message;
  }
  put("found-word", word);
  el("found-table").hidden = found.length === 0;
  uids(found, ([dsp]) => dsp);
});
