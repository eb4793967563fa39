// What the page is looked at with: APIs that answer as wanted, the program's own mock, and a gateway before them.

import { spawn } from "node:child_process";
import { createServer } from "node:http";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";

export const folder = mkdtempSync(join(tmpdir(), "page-check-"));
const children = new Set();

// Starts the program; returns it with its address, which its first line names.
export async function start(program, args) {
  const child = spawn(program, args, { cwd: folder, stdio: ["ignore", "pipe", "ignore"], env: { PATH: process.env.PATH, HOME: folder } });
  children.add(child);
  const lines = createInterface({ input: child.stdout });
  const line = await new Promise((resolve, reject) => {
    lines.once("line", resolve);
    child.once("exit", (code) => reject(new Error(`${args.join(" ")} ended with ${code}`)));
  });
  return { child, url: line.replace("listening on ", "").trim() };
}

// An API whose answer is that of the function.
export async function api(answer) {
  const server = createServer((request, response) => {
    request.resume().on("end", () => {
      const { status = 200, headers = {}, body = {}, after = 0 } = answer();
      setTimeout(() => response.writeHead(status, { "content-type": "application/json", ...headers }).end(JSON.stringify(body)), after);
    });
  });
  await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
  server.unref();
  return `http://127.0.0.1:${server.address().port}`;
}

export const success = { body: { choices: [{ finish_reason: "stop" }], usage: { prompt_tokens: 812, completion_tokens: 240 } } };

export function configure(upstreams) {
  const text = Object.entries(upstreams).map(([name, settings]) => `[upstream.${name}]\nprovider = "openai"\napi_key_env = "PATH"\n${settings}\n`);
  const file = join(folder, "paceline.toml");
  writeFileSync(file, text.join("\n"));
  return file;
}

// A prompt through the gateway, whose end is not waited for.
export function post(gateway, upstream, model, headers = {}) {
  const body = JSON.stringify({ model, messages: [{ role: "user", content: "hi" }] });
  const answer = fetch(`${gateway}/${upstream}/v1/chat/completions`, { method: "POST", body, headers: { "x-paceline-deadline": "1h", ...headers } });
  return answer.then((got) => got.text()).catch(() => {});
}

export function end() {
  for (const child of children) child.kill("SIGKILL");
  rmSync(folder, { recursive: true, force: true });
}
