// Parsing and requests.

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

const REQUEST_TIMEOUT_MS = 8000;
const request = (path) => fetch(path, { cache: "no-store", signal: AbortSignal.timeout(REQUEST_TIMEOUT_MS) });

// Rendering: each function creates its elements once, and returns a function that updates them for a view.

// A second each. Those before the page was opened are those of intervals that the process recorded.
const GRAPH_SECONDS = 600;
const recorded = ({ seconds, series }, name) => {
  const all = series[name] || [];
  const values = name.endsWith("_total") ? all.slice(1).map((value, at) => Math.max(0, value - all[at]) / seconds) : all;
  return values.flatMap((value) => Array(seconds).fill(value)).slice(-GRAPH_SECONDS);
};
const graph = (parent, title, history, name) => {
  const svg = (parent, name, tag) => {
    const node = parent.appendChild(document.createElementNS("http://www.w3.org/2000/svg", tag));
    node.setAttribute("class", name);
    return node;
  };
  const picture = svg(parent, "spark bottom", "svg");
  picture.setAttribute("viewBox", `0 0 ${GRAPH_SECONDS} 30`);
  picture.setAttribute("preserveAspectRatio", "none");
  picture.setAttribute("role", "img");
  const [area, line] = [svg(picture, "area", "path"), svg(picture, "", "path")];
  const values = recorded(history, name);
  return (value, show) => {
    values.push(value ?? values.at(-1) ?? 0);
    if (values.length > GRAPH_SECONDS) values.shift();
    const max = Math.max(...values);
    picture.style.visibility = max > 0 ? "" : "hidden";
    const from = GRAPH_SECONDS - values.length;
    const points = values.map((value, at) => `${from + at} ${(29 - (max > 0 ? value / max : 0) * 28).toFixed(1)}`);
    line.setAttribute("d", "M" + points.join("L"));
    area.setAttribute("d", `M${points.join("L")}L${GRAPH_SECONDS - 1} 30L${from} 30Z`);
    picture.setAttribute("aria-label", `${title} in the last ${time(values.length)}, maximum ${show(max)}`);
  };
};

const card = (parent, history, { title, headline: [value, show, mark], notes, graph: name, bar }) => {
  const section = make(parent, "section", "card");
  make(section, "h2", "", title);
  const headline = make(section, "div", "headline", EMPTY);
  const progress = bar && make(section, "progress");
  const lines = (notes || []).map((note) => [make(section, "p"), ...note]);
  const draw = name && graph(section, title, history, name);
  return (view) => {
    const found = value(view, {});
    setText(headline, show(found));
    if (mark) setClass(section, "card " + mark(found));
    if (bar) progress.value = bar[0](view, {}) / bar[1](view, {}) || 0;
    for (const [line, text, value, show, mark] of lines) {
      const found = value(view, {});
      setText(line, `${text} ${show(found)}`);
      if (mark) setClass(line, mark(found));
    }
    if (draw) draw(found, show);
  };
};

// Reuses the row element of a key while the key exists.
const tableRows = (body) => {
  const rows = new Map();
  return (items) => {
    items.forEach(({ key, name, more, cells }, at) => {
      let row = rows.get(key);
      if (!row) {
        row = document.createElement("tr");
        const first = make(row, "td", "name", name);
        if (more) make(first, "span", "more", more);
        for (const { heading } of cells) {
          const cell = make(row, "td");
          make(cell, "span");
          cell.dataset.label = heading;
        }
        rows.set(key, row);
      }
      if (body.rows[at] !== row) body.insertBefore(row, body.rows[at] || null);
      cells.forEach(({ text, mark }, at) => {
        const cell = row.cells[at + 1].firstChild;
        setText(cell, text);
        setClass(cell, mark);
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

// Rows with bad values come first, up to RANKED_MAX; ROWS_SHOWN of them until the button is pressed.
const [RANKED_MAX, ROWS_SHOWN] = [500, 10];
const badCells = ({ cells }) => cells.filter(({ mark }) => mark.endsWith("bad")).length;
const rowKeys = (view, { of, by }) => {
  const keys = new Map();
  for (const { labels } of view.now.series.get(of) || []) {
    const values = by.map((label) => labels[label]);
    keys.set(values.join("\n"), Object.fromEntries(by.map((label, at) => [label, values[at]])));
  }
  return [...keys].sort(([a], [b]) => a.localeCompare(b, "en", { numeric: true }));
};
const table = (parent, { title, by, of, hideZero, columns, items, none }) => {
  const section = make(parent, "section", "card");
  make(section, "h2", "", title);
  const wide = make(section, "div", "wide");
  const element = make(wide, "table", !columns || columns.length < 2 ? "items" : columns.length > 3 ? "stack" : "");
  if (columns) {
    const head = make(make(element, "thead"), "tr");
    make(head, "th", "", by[0]);
    for (const [heading] of columns) make(head, "th", "", heading);
  }
  const fill = tableRows(make(element, "tbody"));
  const message = make(section, "p", "none");
  const tools = make(section, "p", "tools");
  const filter = make(tools, "input");
  const all = make(tools, "button");
  filter.placeholder = "filter";
  filter.setAttribute("aria-label", "filter of " + title);
  all.type = "button";
  tools.hidden = true;
  let [isAll, last] = [false, null];
  const draw = (view) => {
    last = view;
    if (items) {
      fill(items.map((item) => ({ key: item[0], name: item[0], cells: [cell(view, {}, ["", ...item.slice(1)])] })));
      return;
    }
    let keys = rowKeys(view, { of, by });
    if (hideZero) keys = keys.filter(([, row]) => now(of)(view, row) > 0);
    section.hidden = keys.length === 0 && !none;
    tools.hidden = keys.length <= ROWS_SHOWN;
    keys = keys.filter(([key]) => tools.hidden || key.includes(filter.value));
    const rows = keys.slice(0, RANKED_MAX).map(([key, row]) => {
      const [name, more] = by.map((label) => row[label]);
      return { key, name, more, cells: columns.map((column) => cell(view, row, column)) };
    });
    rows.sort((a, b) => badCells(b) - badCells(a));
    fill(isAll ? rows : rows.slice(0, ROWS_SHOWN));
    setText(all, isAll ? "ten" : "all " + keys.length);
    setText(message, keys.length ? isAll && keys.length > RANKED_MAX ? keys.length - RANKED_MAX + " more not shown." : "" : none || "None.");
  };
  filter.addEventListener("input", () => draw(last));
  all.addEventListener("click", () => { isAll = !isAll; draw(last); });
  return draw;
};

const build = (process, history) => {
  const { cards, tables } = PROGRAMS[process];
  const columns = el("tables");
  table(columns, { title: "Components", items: [] });
  columns.firstChild.id = "components";
  const fillComponents = tableRows(columns.querySelector("tbody"));
  const shows = cards.map((it) => card(el("cards"), history, it)).concat(tables.map((it) => table(columns, it)));
  el("lookup").hidden = process !== "consumer";
  return (view) => {
    fillComponents(view.now.ready.components.map(({ component, state, ready }) => ({
      key: component, name: component, cells: [{ heading: "", text: state, mark: ready ? "" : "bad" }],
    })));
    for (const show of shows) show(view);
  };
};

const head = (process, { series, status, ready, date }) => {
  const { ready: isReady, reasons } = ready;
  const name = status.name || location.host;
  // Programs on one host may have the same name.
  document.title = `${name} · ${process} · ${location.host}`;
  setText(el("name"), name);
  setText(el("version"), `${process} ${status.version} (${status.commit.slice(0, 8)}) at ${location.host}`);
  setText(el("store"), el("store").title = status.settings.store || "");
  const [started] = series.get("process_start_time_seconds") || [];
  setText(el("uptime"), started ? "up " + time(Math.max(1, Math.floor(date / 1000 - started.value))) : "");
  el("uptime").title = "as of " + new Date(date).toLocaleTimeString();
  const isDraining = reasons.some(({ component }) => component === "drain");
  const [state, mark] = isDraining ? ["draining", "mind"] : isReady ? ["ready", "good"] : ["not ready", "bad"];
  setText(el("ready"), state);
  setClass(el("ready"), "mark " + mark);
  setText(el("reasons"), reasons.map(({ component, reason }) => component + ": " + reason).join(" · "));
};

const SAMPLES = 11;
const samples = [];
let show = null;
const poll = async () => {
  // Only scrapes end the intervals of peak metrics.
  const [metrics, state] = await Promise.all([request("metrics?keep-peaks"), request("v1/status")]);
  const status = await state.json();
  const sample = {
    at: performance.now() / 1000, date: Date.parse(metrics.headers.get("date")) || Date.now(),
    series: parse(await metrics.text()), status, ready: status.readiness,
  };
  samples.push(sample);
  if (samples.length > SAMPLES) samples.shift();
  const process = Object.keys(PROGRAMS).find((it) => sample.series.has(it + "_build_info"));
  show = show || build(process, await (await request("v1/history")).json());
  head(process, sample);
  show({ now: sample, before: samples[Math.max(0, samples.length - 2)], past: samples[0] });
};

const SILENCE_MAX_MS = 2500;
let [lastResponse, lastDate] = [performance.now(), null];
const run = async () => {
  const started = performance.now();
  try {
    await poll();
    [lastResponse, lastDate] = [performance.now(), new Date()];
    setText(el("link"), "live");
  } catch (error) {
    el("link").title = String(error);
  }
  setTimeout(run, Math.max(100, 1000 - (performance.now() - started)));
};
// A request can also hang.
setInterval(() => {
  const isSilent = performance.now() - lastResponse > SILENCE_MAX_MS;
  document.body.classList.toggle("stale", isSilent);
  if (!isSilent) return;
  setText(el("link"), "");
  setText(el("ready"), lastDate ? "no response since " + lastDate.toTimeString().slice(0, 8) : "no response");
  setClass(el("ready"), "mark bad");
}, 250);
run();

const uids = tableRows(el("uids"));
document.querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  let [message, found] = ["", []];
  try {
    const response = await request("v1/users/" + encodeURIComponent(el("user").value));
    const body = await response.json();
    message = response.ok ? body.user_id : body.error;
    found = response.ok ? Object.entries(body.buyer_uids) : [];
  } catch (error) {
    message = "no response: " + error.message;
  }
  setText(el("found"), message);
  uids(found.map(([dsp, uid]) => ({ key: dsp, name: dsp, cells: [{ heading: "", text: uid, mark: "" }] })));
});
