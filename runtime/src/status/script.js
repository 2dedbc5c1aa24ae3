
"use strict";
// What outsiders say is put into text nodes alone.

const el = (id) => document.getElementById(id);
const say = (node, text) => { if (node.textContent !== text) node.textContent = text; };
const put = (id, text) => say(el(id), text);
const style = (node, name) => { if (node.className !== name) node.className = name; };

const NOTHING = "–";
const whole = (n) => n.toLocaleString("en-US", { maximumFractionDigits: 0 });
const scaled = (n, step, units) => {
  let unit = 0;
  while (Math.abs(n) >= step && unit < units.length - 1) { n /= step; unit += 1; }
  const digits = unit === 0 || n >= 100 ? 0 : n >= 10 ? 1 : 2;
  return n.toFixed(digits) + units[unit];
};
const short = (n) => Math.abs(n) < 100000 ? whole(n) : scaled(n, 1000, ["", " k", " M", " G", " T"]);
const rate = (n) => (n > 0 && n < 10 ? n.toFixed(1) : short(n)) + "/s";
const bytes = (n) => scaled(n, 1024, [" B", " KiB", " MiB", " GiB", " TiB"]);
const time = (s) => {
  if (s === null || s === undefined) return NOTHING;
  if (s === 0) return "0 s";
  if (s < 0.001) return (s * 1e6).toFixed(0) + " µs";
  if (s < 1) return (s * 1000).toFixed(s < 0.01 ? 1 : 0) + " ms";
  if (s < 60) return s.toFixed(s < 10 ? 1 : 0) + " s";
  const parts = [[86400, " d"], [3600, " h"], [60, " min"], [1, " s"]];
  const at = parts.findIndex(([size]) => s >= size);
  const [[big, bigUnit], [little, littleUnit]] = parts.slice(at, at + 2);
  return Math.floor(s / big) + bigUnit + " " + Math.floor((s % big) / little) + littleUnit;
};

// A figure's recent past, and its picture. `max` values, one a second.
const PAST = 300;
const svg = (name) => document.createElementNS("http://www.w3.org/2000/svg", name);
class Past {
  constructor() { this.values = []; }
  set(values) { this.values = values.slice(-PAST); }
  push(value) { this.values.push(value); if (this.values.length > PAST) this.values.shift(); }
}
const spark = (what) => {
  const picture = svg("svg");
  picture.setAttribute("class", "spark");
  picture.setAttribute("viewBox", "0 0 300 30");
  picture.setAttribute("preserveAspectRatio", "none");
  picture.setAttribute("role", "img");
  const [area, line] = [svg("path"), svg("path")];
  area.setAttribute("class", "area");
  picture.append(area, line);
  return { picture, draw: (past, show, least) => {
    const { values } = past;
    const most = Math.max(least || 0, ...values);
    const y = (value) => (29 - (most > 0 ? value / most : 0) * 28).toFixed(1);
    const from = PAST - values.length;
    const points = values.map((value, at) => (from + at) + " " + y(value));
    const path = points.length ? "M" + points.join("L") : "";
    line.setAttribute("d", path);
    area.setAttribute("d", path && path + "L299 30L" + from + " 30Z");
    picture.setAttribute("aria-label", what + " in the last five minutes, at most " + show(Math.max(0, ...values)));
  } };
};

// Rows that stay the same elements for as long as their key is there. A column is [label, class, show(cell, item)].
const table = (body, columns) => {
  const rows = new Map();
  return (items, keyOf, mark) => {
    const keys = new Set();
    items.forEach((item, at) => {
      const key = keyOf(item);
      keys.add(key);
      let row = rows.get(key);
      if (!row) {
        row = document.createElement("tr");
        for (const [label, name] of columns) {
          const cell = row.insertCell();
          cell.className = name;
          cell.dataset.label = label;
        }
        rows.set(key, row);
      }
      if (body.rows[at] !== row) body.insertBefore(row, body.rows[at] || null);
      style(row, mark ? mark(item) : "");
      columns.forEach(([, , show], at) => show(row.cells[at], item));
    });
    for (const [key, row] of rows) if (!keys.has(key)) { row.remove(); rows.delete(key); }
  };
};
// A table of names and counts.
const tally = (id, more) => {
  const show = table(el(id), [
    ["", "name", (cell, [what]) => say(cell, what)],
    ["", "", (cell, [, count]) => say(cell, typeof count === "number" ? whole(count) : count)],
    ...(more || []),
  ]);
  return (items, mark) => show(items, ([what]) => what, mark);
};

const head = (status) => {
  document.title = status.name + " · " + status.process;
  put("name", status.name);
  put("version", status.process + " " + status.version);
  put("uptime", "up " + time(Math.floor(status.uptime_seconds)));
  el("uptime").title = "as of " + new Date(1000 * status.sampled_unix_seconds).toLocaleTimeString();
  const [word, mark] = status.draining ? ["draining", "mind"] : status.ready ? ["ready", "good"] : ["not ready", "bad"];
  put("ready", word);
  style(el("ready"), "mark " + mark);
  put("why", status.reasons.map(({ part, why }) => part + ": " + why).join(" · "));
};

// Shows every sample as it comes; where no stream is to be had, one every five seconds.
const live = (show) => {
  let heard = 0;
  const link = (text, isStale) => {
    put("link", text);
    document.body.classList.toggle("stale", isStale);
  };
  const take = (status) => {
    heard = performance.now();
    if (status.process) { head(status); show(status); }
  };
  const open = () => {
    const source = new EventSource("status/events");
    source.onmessage = (event) => { link("live", false); take(JSON.parse(event.data)); };
    source.onerror = () => {
      if (source.readyState !== EventSource.CLOSED) return;
      fetch("status.json").then((answer) => answer.json()).then((status) => {
        link("every 5 s: too many viewers", false);
        take(status);
      }).catch(() => {}).finally(() => setTimeout(open, 5000));
    };
  };
  setInterval(() => {
    const silent = (performance.now() - heard) / 1000;
    if (silent > 8) link(heard ? "no answer for " + time(Math.floor(silent)) : "no answer", true);
  }, 1000);
  open();
};
