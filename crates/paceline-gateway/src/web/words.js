// Numbers, times and sentences as the program itself prints them.

const NUMBER = new Intl.NumberFormat("en");

export const count = (value) => NUMBER.format(value);

// As `format_duration` of the core.
export function duration(ms) {
  const seconds = Math.floor(ms / 1000);
  const two = (value) => String(value).padStart(2, "0");
  if (seconds < 1) return `${Math.max(0, Math.floor(ms))}ms`;
  if (seconds < 60) {
    const tenths = Math.floor(ms / 100);
    return tenths % 10 ? `${Math.floor(tenths / 10)}.${tenths % 10}s` : `${tenths / 10}s`;
  }
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m ${two(seconds % 60)}s`;
  if (seconds < 86370) {
    const minutes = Math.floor((seconds + 30) / 60);
    return `${Math.floor(minutes / 60)}h ${two(minutes % 60)}m`;
  }
  const hours = Math.floor((seconds + 1800) / 3600);
  return `${Math.floor(hours / 24)}d ${hours % 24}h`;
}

// A sum of money: more digits where it is small.
export const money = (value) => value.toFixed(value === 0 || value >= 0.1 ? 2 : value < 0.0001 ? 6 : 4);

export const clockTime = (ms) => new Date(ms).toLocaleTimeString("en-GB");

// A text of a server or a client, without what would turn round or hide the text beside it.
export const plain = (text) => text.replace(/[\u0000-\u001f\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]+/g, " ");

// A sentence whose time gets shorter. `now`: the gateway's clock.
export function sentence(scope, now) {
  const why = scope.why;
  const left = why?.until ? Date.parse(why.until) - now : null;
  if (why && (left === null || left > 0)) return `${why.before}${left === null ? "" : shortly(left)}${why.after}`;
  if (scope.waiting > 0) return "the next call leaves now";
  return scope.concurrency.in_flight > 0 ? "calls leave as they come" : "ready; no call waits";
}

// Tenths that run are read by no person.
function shortly(left) {
  if (left < 1000) return "less than 1s";
  return duration(left < 10000 ? left : Math.ceil(left / 1000) * 1000);
}

// Where this process stands in its fleet, with what is left of its lease.
export function fleet(place, now) {
  const left = place.lease_until ? Date.parse(place.lease_until) - now : 0;
  return left > 0 ? `${place.text}; lease for ${duration(Math.ceil(left / 1000) * 1000)}` : place.text;
}

const WINDOWS = { 1: "second", 60: "minute", 3600: "hour", 86400: "day" };
const window_of = (seconds) => WINDOWS[seconds] ?? duration(seconds * 1000);

export const limit = (quota) => `${count(quota.limit)} ${quota.dimension}${quota.window_s ? ` per ${window_of(quota.window_s)}` : ""}`;

export const title = (scope) => plain(scope.name ? `${scope.upstream}: ${scope.name}` : `${scope.upstream}: the whole account`);

// A client without a name is told by the print of its key, of which the beginning is enough beside others.
export const client = (name) => (/^[0-9a-f]{16}$/.test(name) ? `${name.slice(0, 8)}…` : name);

// Of the last minute.
export const refused = (scope) => scope.last_minute.throttled + scope.last_minute.overloaded;
export const answers = (scope) => scope.last_minute.succeeded + refused(scope);

// ---- Into the page: every text goes through these.

export function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = plain(text);
  if (className) made.className = className;
  return made;
}

export function setText(node, text) {
  const shown = plain(text);
  if (node.textContent !== shown) node.textContent = shown;
}

export function badge(node, scope) {
  setText(node, scope.word);
  node.dataset.level = scope.trouble;
}
