// The page of a gateway: draws what follow.js keeps.

import { UpstreamCards } from "./cards.js";
import { answers, badge, client as clientName, count, clockTime, duration, element, fleet, limit, money, plain, refused, sentence, setText, title } from "./words.js";
import { follow, keyHeaders, Refused, State } from "./follow.js";

const $ = (id) => document.getElementById(id);
const state = new State();
// Between two drawings, and between two looks at the history.
const DRAW_MS = 250;
const HISTORY_MS = 10000;
// Between two changes of the line that screen readers say, unless it gets worse or better.
const SAID_MS = 5000;

// The chosen scope as `upstream\nscope`; none before a person chose, then the one in most trouble is shown.
let chosen = linked();
let shown = null;
let order = [];
let lostSince = null;
let said = 0;
const changedParts = new Set();

// The scope that the address of the page names; a link that was cut names none.
function linked() {
  try {
    return decodeURIComponent(location.hash.slice(1)) || null;
  } catch {
    return null;
  }
}

const key = (scope) => `${scope.upstream}\n${scope.name}`;
// A scope is mostly a path and a model: what tells it from others stands first.
function nameParts(scope) {
  const at = scope.name.lastIndexOf(" ");
  return [scope.name.slice(at + 1), `${scope.upstream} ${scope.name.slice(0, Math.max(0, at))}`];
}

// ---- Scopes: sorted and filtered; only the rows in sight exist.

const SORTS = {
  trouble: (a, b) => b.trouble - a.trouble || b.waiting - a.waiting || refused(b) - refused(a) || answers(b) - answers(a),
  name: () => 0,
  waiting: (a, b) => b.waiting - a.waiting,
  rate: (a, b) => answers(b) - answers(a),
  refused: (a, b) => refused(b) - refused(a),
};

function sorted() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = [];
  for (const scope of state.scopes.values()) {
    if (!scope.name) continue;
    const text = `${scope.upstream} ${scope.name} ${scope.word}`.toLowerCase();
    if (words.every((word) => text.includes(word))) found.push(scope);
  }
  const sort = SORTS[$("sort").value];
  return found.sort((a, b) => sort(a, b) || (key(a) < key(b) ? -1 : 1)).map(key);
}

// Rows stay where they are under a pointer or a focus.
const held = () => $("rows").matches(":hover, :focus-within");

function orderRows(anew) {
  const wanted = sorted();
  if (anew || !held() || order.length !== wanted.length) {
    order = wanted;
  }
  const all = [...state.scopes.values()].filter((scope) => scope.name).length;
  setText($("scopes-count"), order.length === all ? `(${count(all)})` : `(${count(order.length)} of ${count(all)})`);
  $("none").hidden = order.length > 0;
  setText($("none"), all ? "No scope matches the search." : "No call has come yet: a scope appears with its first.");
  $("table").setAttribute("aria-rowcount", order.length + 1);
}

const rows = new Map();
const before = spacer();
const after = spacer();
let rowHeight = 72;

function spacer() {
  const row = element("tr", undefined, "space");
  row.setAttribute("aria-hidden", "true");
  const cell = element("td");
  row.append(cell);
  return { row, cell };
}

function newRow(name) {
  const row = element("tr");
  const [first, ...cells] = Array.from({ length: 7 }, () => element("td"));
  for (const wide of [1, 2, 5]) cells[wide].className = "wide";
  const button = element("button", undefined, "name");
  button.type = "button";
  const badge = element("span", undefined, "badge");
  const label = element("span");
  const rest = element("span", undefined, "quiet");
  const why = element("div", undefined, "clamp");
  button.append(badge, label, rest);
  first.append(button, why);
  button.addEventListener("click", () => choose(name));
  row.append(first, ...cells);
  return { row, button, badge, label, rest, why, cells };
}

function fillRow(parts, scope, place) {
  const { row, button, label, why, cells } = parts;
  badge(parts.badge, scope);
  const [name, rest] = nameParts(scope);
  setText(label, name);
  setText(parts.rest, rest);
  button.title = title(scope);
  setText(why, sentence(scope, state.now()));
  const minute = scope.last_minute;
  const figures = [
    count(scope.waiting), count(scope.concurrency.in_flight), count(answers(scope)), count(minute.throttled), count(minute.overloaded),
    minute.p95_ms === null ? "" : duration(minute.p95_ms),
  ];
  figures.forEach((figure, at) => setText(cells[at], figure));
  row.setAttribute("aria-rowindex", place + 2);
  if (key(scope) === shown) row.setAttribute("aria-current", "true");
  else row.removeAttribute("aria-current");
}

function drawRows() {
  const box = $("window");
  const body = $("rows");
  const first = Math.max(0, Math.floor(box.scrollTop / rowHeight) - 4);
  const last = Math.min(order.length, first + Math.ceil(box.clientHeight / rowHeight) + 9);
  const wanted = order.slice(first, last).filter((name) => state.scopes.has(name));
  const inSight = new Set(wanted);
  for (const [name, parts] of rows) {
    if (inSight.has(name)) continue;
    if (parts.row.contains(document.activeElement)) box.focus({ preventScroll: true });
    parts.row.remove();
    rows.delete(name);
  }
  before.cell.style.height = `${first * rowHeight}px`;
  after.cell.style.height = `${Math.max(0, order.length - last) * rowHeight}px`;
  if (!before.row.isConnected) body.append(before.row, after.row);
  let next = before.row.nextSibling;
  wanted.forEach((name, at) => {
    let parts = rows.get(name);
    if (!parts) rows.set(name, (parts = newRow(name)));
    fillRow(parts, state.scopes.get(name), first + at);
    if (parts.row === next) next = next.nextSibling;
    else body.insertBefore(parts.row, next);
  });
}

function measureRows() {
  const row = rows.values().next().value?.row;
  if (row?.offsetHeight) rowHeight = row.getBoundingClientRect().height;
}

const cards = new UpstreamCards($("upstreams"), choose);

// ---- What most needs a person, in a line that screen readers say.

function drawHeadline() {
  const accounts = [...state.scopes.values()].filter((scope) => !scope.name);
  const sum = (figure) => accounts.reduce((all, account) => all + figure(account), 0);
  const [waiting, inFlight] = [sum((account) => account.waiting), sum((account) => account.concurrency.in_flight)];
  // What keeps a whole account back is said once, and not of each of its scopes.
  const kept = new Set(accounts.filter((account) => account.trouble >= 2).map((account) => account.upstream));
  const counts = { upstream: [0, 0, 0, 0, 0], scope: [0, 0, 0, 0, 0] };
  for (const scope of state.scopes.values()) {
    if (kept.has(scope.upstream) ? !scope.name : scope.name) counts[scope.name ? "scope" : "upstream"][scope.trouble] += 1;
  }
  const parts = [];
  for (const [level, words] of [[4, "down for minutes"], [3, "stopped until a person acts"], [2, "where nothing leaves for a while"], [1, "waiting"]]) {
    for (const kind of ["upstream", "scope"]) {
      const number = counts[kind][level];
      if (number) parts.push(`${count(number)} ${kind}${number === 1 ? "" : "s"} ${words}`);
    }
  }
  const level = [4, 3, 2, 1].find((level) => counts.upstream[level] + counts.scope[level]) ?? 0;
  const line = $("headline");
  // Screen readers say each change: figures that run are said now and then.
  if (String(level) !== line.dataset.level || !said || performance.now() - said > SAID_MS) {
    said = performance.now();
    setText(line, parts.join(", ") || "all is well: no call waits");
    line.dataset.level = level;
  }
  const figures = `${count(inFlight)} in flight, ${count(waiting)} waiting`;
  if (!lostSince) setText($("connection"), figures);
  document.title = `${["", "", "held: ", "stopped: ", "down: "][level]}${figures} - Paceline`;
}

// ---- The chosen scope.

function choose(name) {
  chosen = name;
  history.replaceState(null, "", `#${encodeURIComponent(name)}`);
  draw();
  drawHistory();
  // The line above stays in sight, and is as high as its words are many.
  $("chosen").style.scrollMarginTop = `${document.querySelector(".top").offsetHeight + 8}px`;
  if (matchMedia("(max-width: 1079px)").matches) $("chosen").scrollIntoView();
  $("chosen-title").focus({ preventScroll: true });
}

function subject() {
  if (chosen && state.scopes.has(chosen)) return chosen;
  const worst = [...state.scopes.values()].filter((scope) => !scope.name).sort(SORTS.trouble)[0];
  const upstream = worst && state.upstreams.find((each) => each.name === worst.upstream);
  return upstream ? `${upstream.name}\n${upstream.subject}` : null;
}

function row(cells, labels) {
  const made = element("tr");
  cells.forEach((cell, at) => {
    const holder = element("td");
    if (typeof cell === "object" && "number" in cell) {
      holder.className = "number";
      holder.append(cell.number);
    } else holder.append(cell instanceof Node ? cell : plain(cell));
    // For screens that are too narrow for a table.
    if (holder.textContent) holder.dataset.label = labels[at];
    made.append(holder);
  });
  return made;
}

// Rows of a small table, drawn anew where they have changed.
function table(id, all, none) {
  const body = $(id);
  const print = JSON.stringify(all.map((cells) => cells.map((cell) => (cell instanceof Node ? cell.outerHTML : cell))));
  if (body.dataset.print === print) return;
  body.dataset.print = print;
  const labels = Array.from(body.closest("table").querySelectorAll("th"), (heading) => heading.textContent);
  if (all.length) return body.replaceChildren(...all.map((cells) => row(cells, labels)));
  const empty = element("td", none, "quiet");
  empty.colSpan = labels.length;
  const line = element("tr");
  line.append(empty);
  body.replaceChildren(line);
}

function drawChosen() {
  const name = subject();
  const scope = state.scopes.get(name);
  if (!scope) return;
  const isOther = shown !== name;
  shown = name;
  setText($("chosen-title"), title(scope));
  setText($("chosen-why"), sentence(scope, state.now()));
  const queue = scope.waiting_by_priority;
  const clients = state.clients.filter((client) => client.upstream === scope.upstream && client.waiting > 0);
  const facts = [
    ["State", scope.word],
    ["In flight", `${count(scope.concurrency.in_flight)} of ${count(scope.concurrency.current_limit)}`],
    ["Waiting", `${count(queue.interactive)} interactive, ${count(queue.batch)} batch`],
    ["Waiting by client", clients.slice(0, 4).map((client) => `${clientName(client.client)} ${count(client.waiting)}`).join(", ") || "none"],
    ["Calls in all", count(scope.totals.sends)],
    ["429 and 503 in all", `${count(scope.totals.by_class.throttled + scope.totals.by_class.quota_exhausted)} and ${count(scope.totals.by_class.overloaded)}`],
  ];
  const list = $("facts");
  if (list.children.length !== facts.length) {
    list.replaceChildren(...facts.map(() => { const pair = element("div"); pair.append(element("dt"), element("dd")); return pair; }));
  }
  facts.forEach(([name, value], at) => {
    setText(list.children[at].firstChild, name);
    setText(list.children[at].lastChild, value);
  });
  const now = state.now();
  const quota = (origin) => (each) => {
    const ms = Date.parse(each.next_free) - now;
    return [limit(each), origin, { number: count(each.remaining) }, each.remaining === 0 && ms > 0 ? `in ${duration(ms < 10000 ? ms : Math.ceil(ms / 1000) * 1000)}` : ""];
  };
  const account = state.scopes.get(`${scope.upstream}\n`);
  table("limits", [
    ...scope.quotas.map(quota("configured")),
    ...(scope.name ? (account?.quotas ?? []) : []).map(quota("configured, account")),
    ...scope.announced.map(quota("announced by the server")),
  ], "No limit is configured or announced.");
  setText($("belief"), scope.belief ? `Learnt: ${scope.belief.text}` : "");
  setText($("fleet"), account?.fleet ? `Fleet: ${fleet(account.fleet, now)}` : "");
  if (isOther) drawHistory();
}

// ---- Charts.

let charts = [];
let columns = null;

async function drawHistory() {
  const of = state.scopes.get(shown);
  if (!of || lostSince) return;
  try {
    const query = `upstream=${encodeURIComponent(of.upstream)}&scope=${encodeURIComponent(of.name)}`;
    const answer = await fetch(`/api/history?${query}`, { headers: keyHeaders(), cache: "no-store" });
    if (key(of) !== shown) return;
    columns = answer.ok ? await answer.json() : null;
    drawCharts();
  } catch {
    // The stream of events says that the gateway is gone.
  }
}

function drawCharts() {
  for (const chart of charts) chart.destroy();
  charts = [];
  const box = $("charts");
  box.replaceChildren();
  if (!columns) {
    box.append(element("p", "No history is kept of this scope: it has not been called for 15 minutes.", "quiet"));
    return;
  }
  const { step_s: step } = columns;
  const length = columns.succeeded.length;
  const end = Date.parse(columns.until) / 1000;
  const times = Array.from({ length }, (_, at) => Math.round(end - step * (length - 1 - at)));
  const minute = (values) => values.map((value) => (value === null ? null : (value * 60) / step));
  const draw = (title, series, options) => charts.push(paceline_chart(box, title, times, series, options));
  draw("Answers a minute", [
    { label: "succeeded", color: "blue", values: minute(columns.succeeded), fill: true },
    ...(columns.rate.some((rate) => rate !== null) ? [{ label: "learnt limit", color: "green", values: columns.rate.map((rate) => (rate === null ? null : rate * 60)), dash: true }] : []),
  ]);
  draw("Refused or failed a minute", [
    { label: "429", color: "amber", values: minute(columns.throttled) },
    { label: "503", color: "purple", values: minute(columns.overloaded) },
    { label: "failed", color: "red", values: minute(columns.failed) },
  ]);
  draw("Latency to the head of an answer", [
    { label: "median", color: "blue", values: columns.p50_ms },
    { label: "p95", color: "amber", values: columns.p95_ms },
  ], { unit: "ms", least: 10 });
  draw("Calls", [
    { label: "in flight", color: "blue", values: columns.in_flight, fill: true },
    { label: "waiting", color: "amber", values: columns.waiting },
  ]);
}

// ---- Jobs, clients, decisions.

function progress(done, total) {
  if (!total) return "";
  const holder = element("span");
  const bar = element("progress");
  bar.max = total;
  bar.value = done;
  bar.setAttribute("aria-label", `${count(done)} of ${count(total)} done`);
  holder.append(bar, ` ${count(done)} of ${count(total)}`);
  return holder;
}

function timeLeft(job) {
  if (job.left_ms) return duration(job.left_ms);
  return job.state === "runs" && job.done < job.total ? "not known" : "";
}

function drawParts() {
  if (changedParts.delete("batches") | changedParts.delete("jobs")) {
    const jobs = state.jobs.map((job) => [job.name, job.upstream, job.state, progress(job.done, job.total), { number: count(job.failed) }, timeLeft(job), job.waits ?? ""]);
    const batches = state.batches.map((batch) => [batch.id, batch.upstream, batch.status.replace("_", " "), progress(batch.done, batch.total), { number: count(batch.failed) }, "", batch.waits_for ?? ""]);
    $("jobs-section").hidden = jobs.length + batches.length === 0;
    table("jobs", [...jobs, ...batches], "");
  }
  if (changedParts.delete("clients")) {
    table("clients", state.clients.map((client) => [
      client.client, client.upstream,
      { number: client.waits_for ? `${count(client.waiting)}: ${client.waits_for}${client.until ? `, until ${clockTime(Date.parse(client.until))}` : ""}` : count(client.waiting) },
      ...[client.requests, client.tokens_in, client.tokens_out].map((figure) => ({ number: count(figure) })),
      { number: client.cost === null ? "no price" : money(client.cost) + (client.cost_estimated > 0 ? ` (${money(client.cost_estimated)} estimated)` : "") },
    ]), "No client has sent a request yet.");
  }
  if (changedParts.delete("decisions")) {
    table("decisions", state.decisions.map((each) => [
      clockTime(Date.parse(each.at)), `${each.upstream} ${each.scope ?? ""}`, each.times > 1 ? `${each.text} (${count(each.times)} times)` : each.text,
    ]), "None: no call was refused, failed or sent again.");
  }
  if (changedParts.delete("version")) setText($("version"), `Paceline ${state.version}. `);
}

// ---- When.

let dirty = false;
let drawn = 0;

function draw() {
  dirty = false;
  drawn = performance.now();
  if ($("content").hidden) return;
  drawHeadline();
  drawChosen();
  cards.draw(state);
  orderRows(false);
  drawRows();
  drawParts();
}

function soon() {
  if (dirty) return;
  dirty = true;
  setTimeout(() => requestAnimationFrame(draw), Math.max(0, DRAW_MS - (performance.now() - drawn)));
}

function found(changes) {
  if (lostSince) said = 0;
  lostSince = null;
  $("connection").classList.remove("lost");
  $("content").classList.remove("stale");
  $("locked").hidden = true;
  for (const part of ["clients", "decisions", "batches", "jobs", "version"]) if (changes[part] !== undefined) changedParts.add(part);
  if ($("content").hidden) {
    $("content").hidden = false;
    draw();
    measureRows();
  }
  soon();
}

let unlocked = null;

function lost(error) {
  if (error instanceof Refused && error.status === 401) {
    $("content").hidden = true;
    $("locked").hidden = false;
    setText($("headline"), "a key is needed");
    setText($("connection"), "");
    if (sessionStorage.getItem("key")) setText($("locked-why"), `That key is not one of this gateway's: ${error.message}.`);
    sessionStorage.removeItem("key");
    return new Promise((resolve) => { unlocked = resolve; });
  }
  lostSince ??= state.heard || Date.now();
  const what = error instanceof Refused ? `The gateway refuses: ${error.message}` : `The gateway is gone since ${clockTime(lostSince)}; trying again every 2 s`;
  $("connection").classList.add("lost");
  $("content").classList.add("stale");
  setText($("connection"), what);
  setText($("headline"), error instanceof Refused ? "no state" : "the gateway does not answer: what is shown is old");
  $("headline").dataset.level = 3;
}

$("unlock").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("key", $("key").value.trim());
  $("key").value = "";
  unlocked?.();
});
$("search").addEventListener("input", () => { $("window").scrollTop = 0; orderRows(true); drawRows(); });
$("sort").addEventListener("change", () => { $("window").scrollTop = 0; orderRows(true); drawRows(); });
let scrolls = false;
$("window").addEventListener("scroll", () => {
  if (scrolls) return;
  scrolls = true;
  requestAnimationFrame(() => { scrolls = false; drawRows(); });
}, { passive: true });
let resized = 0;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(() => { measureRows(); drawRows(); drawCharts(); }, 150);
});
addEventListener("hashchange", () => { chosen = linked(); soon(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawCharts);
// Countdowns.
setInterval(() => { if (!lostSince) soon(); }, 500);
setInterval(drawHistory, HISTORY_MS);
follow(state, found, lost);
