// The state of the gateway, kept up to date by its events.

const RETRY_MS = 2000;
// The gateway sends a comment every 15 s where nothing changes.
const SILENT_MS = 40000;

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function keyHeaders() {
  const key = sessionStorage.getItem("key");
  return key ? { "x-paceline-key": key } : {};
}

export class State {
  scopes = new Map();
  upstreams = [];
  clients = [];
  decisions = [];
  batches = [];
  jobs = [];
  version = "";
  // How far the clock of the gateway is ahead of this one's.
  ahead = 0;
  heard = 0;

  now() {
    return Date.now() + this.ahead;
  }

  take(changes) {
    this.heard = Date.now();
    this.ahead = Date.parse(changes.at) - this.heard;
    if (changes.first) this.scopes.clear();
    for (const [upstream, scope] of changes.gone) this.scopes.delete(`${upstream}\n${scope}`);
    for (const scope of changes.scopes) this.scopes.set(`${scope.upstream}\n${scope.name}`, scope);
    for (const part of ["upstreams", "clients", "decisions", "batches", "jobs", "version"]) {
      if (changes[part] !== undefined) this[part] = changes[part];
    }
  }
}

// Follows the gateway for ever. `changed(parts)` after each event, `lost(error)` when it is gone or refuses.
export async function follow(state, changed, lost) {
  for (;;) {
    try {
      await once(state, changed);
      lost(new Error("the gateway ended the connection"));
    } catch (error) {
      if (error instanceof Refused && error.status === 401) {
        await lost(error);
        continue;
      }
      lost(error);
    }
    await new Promise((again) => setTimeout(again, RETRY_MS));
  }
}

async function once(state, changed) {
  const silence = new AbortController();
  let timer = setTimeout(() => silence.abort(), SILENT_MS);
  try {
    const answer = await fetch("/api/events?changes", { headers: keyHeaders(), signal: silence.signal, cache: "no-store" });
    if (!answer.ok) {
      const body = await answer.json().catch(() => ({}));
      throw new Refused(answer.status, body.error?.message ?? `status ${answer.status}`);
    }
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let kept = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENT_MS);
      const events = (kept + value).split("\n\n");
      kept = events.pop();
      for (const event of events) {
        const at = event.indexOf("data: ");
        if (at < 0) continue;
        const changes = JSON.parse(event.slice(at + 6));
        state.take(changes);
        changed(changes);
      }
    }
  } finally {
    clearTimeout(timer);
  }
}
