// The report of a job: shows the data of the page.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const by = (id) => document.getElementById(id);
const count = (value) => new Intl.NumberFormat("en").format(value);
// A sum of money: more digits where it is small.
const money = (value) => value.toFixed(value === 0 || value >= 0.1 ? 2 : value < 0.0001 ? 6 : 4);

// A text of a server or an input, without what would turn round or hide the text beside it.
const plain = (text) => text.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]+/g, " ");

function cell(text, numeric) {
  const made = document.createElement("td");
  made.textContent = plain(text ?? "");
  if (numeric) made.className = "number";
  return made;
}

function fill(id, rows, none) {
  // For screens that are too narrow for a table.
  const labels = Array.from(by(id).closest("table").querySelectorAll("th"), (heading) => heading.textContent);
  for (const cells of rows.length ? rows : [[cell(none)]]) {
    const row = document.createElement("tr");
    if (rows.length) cells.forEach((each, place) => { if (each.textContent) each.dataset.label = labels[place]; });
    row.append(...cells);
    by(id).append(row);
  }
  if (!rows.length) by(id).querySelector("td").colSpan = by(id).closest("table").querySelectorAll("th").length;
}

const { counts, minutes } = data;
document.title = `${data.name} - Paceline`;
by("title").textContent = plain(data.name);
const ended = counts.input - counts.pending;
by("headline").textContent = `${count(ended)} of ${count(counts.input)} items ended: ${count(counts.succeeded)} succeeded, ${count(counts.failed)} failed`;
by("headline").dataset.level = counts.failed ? 2 : 0;
const at = (text) => new Date(text).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
by("when").textContent = minutes.length ? `${at(minutes[0].minute)} to ${at(minutes[minutes.length - 1].minute)}` : "nothing was sent yet";
by("made").textContent = `Paceline ${data.version}, ${at(data.at)}. The journal: ${data.journal}`;
for (const words of data.words) {
  const line = document.createElement("li");
  line.textContent = plain(words.trimStart());
  const above = words.startsWith(" ") && by("words").lastElementChild;
  if (above && !above.querySelector("ul")) above.append(document.createElement("ul"));
  (above ? above.querySelector("ul") : by("words")).append(line);
}
fill("failures", data.failures.map((each) => [
  cell(count(each.items), true),
  cell(each.state),
  cell(each.reason ?? each.class),
  cell([each.class, each.status, each.code].filter((part) => part !== null).join(" ")),
  cell(`${each.example}${each.message ? `: ${each.message}` : ""}`),
]), "Every item that ended has an answer.");
// One scope alone is the job.
by("by-host").hidden = data.hosts.length < 2;
if (data.hosts.length < data.hosts_in_all) by("hosts-title").textContent = `By host: the first ${count(data.hosts.length)} of ${count(data.hosts_in_all)}`;
fill("hosts", data.hosts.map((each) => [
  cell(each.name || "(not sent)"),
  ...[each.done, each.failed, each.left, each.calls].map((figure) => cell(count(figure), true)),
  cell(each.why),
]), "No item was read.");
fill("models", data.models.map((each) => [
  cell(each.model || "(no model named)"),
  ...[each.calls, each.tokens_in, each.tokens_out].map((figure) => cell(count(figure), true)),
  cell(each.cost === null ? "no price" : money(each.cost), true),
]), "No answer reported tokens.");
if (data.has_prices) by("cost").textContent = `${money(data.models.reduce((sum, each) => sum + each.cost, 0))} in all`;

// Minutes in which nothing happened have no row: their edges are drawn as nothing.
const points = [];
for (const minute of minutes) {
  const time = Date.parse(minute.minute) / 1000;
  const before = points[points.length - 1];
  if (before && time - before.time > 60) points.push({ time: before.time + 60 });
  if (before && time - before.time > 120) points.push({ time: time - 60 });
  points.push({ ...minute, time });
}
const times = points.map((point) => point.time);
const column = (name) => points.map((point) => point[name] ?? 0);
// Where no item was delayed there is no delay.
const delays = (name) => points.map((point) => point[name] ?? null);
const kinds = [...new Set(minutes.map((minute) => minute.limit_of).filter(Boolean))];
let charts = [];

function draw() {
  for (const chart of charts) chart.destroy();
  charts = [];
  by("charts").replaceChildren();
  if (!points.length) return;
  const chart = (title, series, options) => charts.push(paceline_chart(by("charts"), title, times, series, { still: true, height: 190, ...options }));
  chart("Calls a minute", [
    { label: "calls", color: "quiet", values: column("sends") },
    { label: "succeeded", color: "blue", values: column("successes"), fill: true },
  ]);
  chart("Refusals a minute", [
    { label: "refused by a rate limit", color: "amber", values: column("throttled"), fill: true },
    { label: "sent again", color: "purple", values: column("resends") },
  ]);
  kinds.forEach((kind) => chart(`The limit: ${kind}`, [
    { label: "in force at the end of the minute", color: "green", values: points.map((point) => (point.limit_of === kind ? point.limit : null)), span: true },
  ]));
  chart("Delay before an item went again", [
    { label: "mean", color: "blue", values: delays("delay_mean_ms") },
    { label: "longest", color: "amber", values: delays("delay_max_ms") },
  ], { unit: "ms", least: 10 });
  chart("Tokens a minute", [
    { label: "in", color: "blue", values: column("tokens_in") },
    { label: "out", color: "green", values: column("tokens_out") },
  ]);
}

draw();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
// On paper everything is light.
matchMedia("print").addEventListener("change", (print) => {
  document.documentElement.toggleAttribute("data-print", print.matches);
  draw();
});
let resized = 0;
addEventListener("resize", () => {
  clearTimeout(resized);
  resized = setTimeout(draw, 150);
});
