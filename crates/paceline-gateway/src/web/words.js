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

// A sentence whose time gets shorter. `now`: the gateway's clock.
export function sentence(scope, now) {
  const why = scope.why;
  if (why) {
    const left = why.until ? Math.max(0, Date.parse(why.until) - now) : 0;
    // Tenths that run are read by no person.
    return `${why.before}${why.until ? duration(left < 10000 ? left : Math.ceil(left / 1000) * 1000) : ""}${why.after}`;
  }
  return scope.concurrency.in_flight > 0 ? "calls leave as they come" : "ready; no call waits";
}

// What a badge says.
export function state(scope) {
  if (scope.trouble === 3) return "stopped";
  if (scope.trouble === 2) return scope.state === "held" ? "held" : "closed";
  return scope.trouble === 1 ? "waits" : scope.state;
}

export const limit = (quota) => `${count(quota.limit)} ${quota.dimension}${quota.window_s ? ` per ${duration(quota.window_s * 1000)}` : ""}`;
