const decisions = new Past();
const decisionsSpark = spark("decisions");
el("decisions-spark").append(decisionsSpark.picture);
const percent = (n) => n.toFixed(n < 10 ? 1 : 0) + " %";
const limits = table(el("limits"), [
  ["", "name", (cell, { name, rules, source }) => {
    if (!cell.firstChild) { cell.append(name); cell.appendChild(document.createElement("span")).className = "more"; }
    const from = source === "file" ? "" : " (" + source + ")";
    say(cell.lastChild, rules.join("; ") + from);
  }],
  ["granted", "", (cell, { granted_per_second, now, delayed }) => {
    say(cell, rate(granted_per_second));
    cell.title = whole(now) + " at once and " + whole(delayed) + " later, in all";
  }],
  ["refused", "", (cell, { refused, refused_per_second }) => {
    say(cell, rate(refused_per_second));
    cell.title = whole(refused) + " in all";
  }],
  ["asked", "", (cell, { asked }) => say(cell, short(asked))],
  ["told", "", (cell, { counted }) => say(cell, short(counted))],
  ["counters", "", (cell, { counters }) => say(cell, short(counters))],
  ["fullest", "", (cell, { used_percent }) => { say(cell, percent(used_percent)); style(cell, used_percent >= 80 ? "lost" : ""); }],
  ["learned", "", (cell, { learned }) => say(cell, whole(learned))],
  ["429s", "", (cell, { outbound_429 }) => { say(cell, short(outbound_429)); style(cell, outbound_429 > 0 ? "lost" : ""); }],
]);
const fullest = table(el("fullest"), [
  ["", "name", (cell, { limit, rule }) => say(cell, limit + "/" + rule)],
  ["counter", "text wrap", (cell, { counter }) => say(cell, counter || "every call")],
  ["used", "", (cell, { used }) => say(cell, short(used))],
  ["of", "", (cell, { most }) => say(cell, short(most))],
  ["share", "", (cell, { used_percent }) => say(cell, percent(used_percent))],
  ["next slot in", "", (cell, { next_seconds }) => say(cell, next_seconds > 0 ? time(next_seconds) : "now")],
]);
const taught = table(el("taught"), [
  ["", "name", (cell, { limit }) => say(cell, limit)],
  ["counter", "text wrap", (cell, { counter }) => say(cell, counter)],
  ["calls left", "", (cell, { left }) => { say(cell, short(left)); style(cell, left > 0 ? "" : "lost"); }],
  ["for", "", (cell, { seconds }) => say(cell, time(seconds))],
]);
const queue = tally("waiting-for");

live((status) => {
  const { history } = status;
  if (history) decisions.set(history.decisions_per_second);
  else decisions.push(status.decisions_per_second);
  put("decisions-rate", rate(status.decisions_per_second));
  decisionsSpark.draw(decisions, rate);
  put("waiting", whole(status.waiting));
  put("counters", short(status.counters));
  put("counters-max", "of " + short(status.counters_max));
  el("counters-full").value = status.counters / status.counters_max;
  put("learned", whole(status.learned));
  const age = status.snapshot_age_seconds;
  put("snapshot", age === null ? "none" : time(age));
  put("snapshot-note", age === null ? "nothing is kept over a restart" : "since the newest one on the disk");
  put("limits-version", "Version " + whole(status.limits_version) + " of the limits is in force.");
  put("limits-refused", status.limits_refused ? "The newest version is refused: " + status.limits_refused : "");
  put("charged", status.charged_at_start ? "The run before was killed: every counter was charged a second's worth at the start." : "");
  limits(status.limits, ({ name }) => name);
  const hidden = status.limits_total - status.limits.length;
  put("limits-hidden", hidden > 0 ? hidden + " more." : "");
  el("fullest-none").hidden = status.fullest.length > 0;
  fullest(status.fullest, ({ limit, rule, counter }) => limit + "/" + rule + "/" + counter);
  el("taught-card").hidden = status.taught.length === 0;
  taught(status.taught, ({ limit, counter, left }) => limit + "/" + counter + "/" + left);
  el("queue").hidden = status.waiting_for.length === 0;
  queue(status.waiting_for.map(({ counter, count }) => [counter, count]));
});
