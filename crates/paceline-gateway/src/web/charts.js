// Charts of a quarter of an hour, or of a job: uPlot with the colours of the page. A classic script, so that a report can carry it.
"use strict";

// Draws series over `times` (seconds) in a figure of its own. A series: {label, color, values, dash, unit}.
function paceline_chart(parent, title, times, series, options = {}) {
  const figure = document.createElement("figure");
  const caption = document.createElement("figcaption");
  const heading = document.createElement("b");
  heading.textContent = title;
  caption.append(heading);
  for (const each of series) {
    const key = document.createElement("span");
    const last = each.values.findLast((value) => value !== null && value !== undefined);
    key.className = "key";
    key.dataset.color = each.color;
    key.textContent = `${each.label}${last === undefined || options.still ? "" : " " + paceline_figure(last, options.unit)}`;
    caption.append(key);
  }
  const box = document.createElement("div");
  box.setAttribute("aria-hidden", "true");
  figure.append(caption, box);
  parent.append(figure);
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(`--${name}`).trim();
  const [first, last] = [times[0], times[times.length - 1]];
  const form = last - first > 86400 ? { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" } : { hour: "2-digit", minute: "2-digit" };
  const axis = { stroke: color("quiet"), grid: { stroke: color("grid"), width: 1 }, ticks: { stroke: color("grid"), width: 1 }, font: "12px system-ui, sans-serif" };
  return new uPlot({
    width: Math.max(240, box.clientWidth),
    height: options.height ?? 140,
    legend: { show: false },
    cursor: { show: false },
    padding: [8, 20, 0, 0],
    // A single step is a point in the middle of two minutes, and no two labels are alike.
    scales: { x: { range: (_, from, to) => (to - from < 120 ? [from - 60, to + 60] : [from, to]) }, y: { range: (_, least, most) => [0, Math.max(options.least ?? 1, most * 1.08)] } },
    axes: [
      { ...axis, incrs: [60, 120, 300, 900, 1800, 3600, 7200, 21600, 86400, 604800], values: (_, splits) => splits.map((at) => new Date(at * 1000).toLocaleString("en-GB", form)), space: last - first > 86400 ? 110 : 60 },
      { ...axis, values: (_, splits) => splits.map((value) => paceline_figure(value, options.unit)), size: 58 },
    ],
    series: [{}, ...series.map((each) => ({
      label: each.label,
      stroke: color(each.color),
      width: 1.6,
      dash: each.dash ? [5, 4] : undefined,
      fill: each.fill ? color(each.color) + "22" : undefined,
      // What stands alone is no line.
      points: { show: each.values.filter((value) => value !== null).length < 40, size: 4 },
      spanGaps: each.dash || each.span,
    }))],
  }, [times, ...series.map((each) => each.values)], box);
}

// A figure in three digits: 1,234 and 12.3k; with the unit ms: 12ms, 1.2s.
function paceline_figure(value, unit) {
  if (value === null || value === undefined) return "";
  if (unit === "ms") return value < 1000 ? `${Math.round(value)}ms` : value < 60000 ? `${+(value / 1000).toFixed(1)}s` : `${+(value / 60000).toFixed(1)}m`;
  if (value >= 1e6) return `${+(value / 1e6).toFixed(1)}M`;
  if (value >= 1e4) return `${+(value / 1e3).toFixed(1)}k`;
  return String(+value.toFixed(value < 10 ? 1 : 0));
}
