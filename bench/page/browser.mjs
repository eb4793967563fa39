// A headless Chromium, driven by its own protocol over a pipe: no driver, no port.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

export class Browser {
  #child;
  #folder;
  #number = 0;
  #open = new Map();
  #listeners = [];

  constructor(program) {
    this.#folder = mkdtempSync(join(tmpdir(), "page-check-"));
    const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
      "--disable-background-networking", "--disable-component-update", `--user-data-dir=${this.#folder}`, "--remote-debugging-pipe", "about:blank"];
    this.#child = spawn(program, flags, { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
    let kept = "";
    this.#child.stdio[4].setEncoding("utf8").on("data", (data) => {
      const messages = (kept + data).split("\0");
      kept = messages.pop();
      for (const message of messages) this.#take(JSON.parse(message));
    });
    // It may end before its last words are read.
    this.#child.stdio[3].on("error", () => {});
  }

  #take({ id, error, result, method, params, sessionId }) {
    if (id === undefined) return this.#listeners.forEach((listener) => listener(method, params, sessionId));
    const { resolve, reject } = this.#open.get(id);
    this.#open.delete(id);
    if (error) reject(new Error(JSON.stringify(error)));
    else resolve(result);
  }

  send(method, params = {}, sessionId = undefined) {
    const id = ++this.#number;
    this.#child.stdio[3].write(JSON.stringify({ id, method, params, sessionId }) + "\0");
    return new Promise((resolve, reject) => this.#open.set(id, { resolve, reject }));
  }

  on(listener) {
    this.#listeners.push(listener);
  }

  // A tab of that size and theme. `offenses` gathers errors on its console, and requests that leave `origin`.
  async tab({ width, height, dark = false, origin, offenses }) {
    const { targetId } = await this.send("Target.createTarget", { url: "about:blank" });
    const { sessionId } = await this.send("Target.attachToTarget", { targetId, flatten: true });
    const tab = new Tab(this, sessionId, targetId);
    this.on((method, params, session) => {
      if (session !== sessionId) return;
      if (method === "Network.requestWillBeSent" && !params.request.url.startsWith(origin) && !params.request.url.startsWith("data:")) {
        offenses.push(`a request to ${params.request.url}`);
      }
      if (method === "Runtime.exceptionThrown") offenses.push(`an exception: ${JSON.stringify(params.exceptionDetails)}`);
      if (method === "Log.entryAdded" && params.entry.level === "error") offenses.push(`the console: ${params.entry.text} ${params.entry.url ?? ""}`);
      if (method === "Runtime.consoleAPICalled" && params.type === "error") offenses.push(`the console: ${JSON.stringify(params.args)}`);
    });
    for (const domain of ["Page", "Runtime", "Network", "Log"]) await tab.send(`${domain}.enable`);
    await tab.send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: width < 500 });
    await tab.send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: dark ? "dark" : "light" }] });
    return tab;
  }

  async close() {
    const ended = once(this.#child, "exit");
    this.#child.kill("SIGKILL");
    await ended;
    // Its other processes end a moment later, and write until then.
    for (let left = 50; ; left -= 1) {
      try {
        return rmSync(this.#folder, { recursive: true, force: true });
      } catch (error) {
        if (left === 0) throw error;
        await new Promise((again) => setTimeout(again, 100));
      }
    }
  }
}

class Tab {
  constructor(browser, sessionId, targetId) {
    Object.assign(this, { browser, sessionId, targetId });
  }

  send(method, params) {
    return this.browser.send(method, params, this.sessionId);
  }

  async open(url) {
    await this.send("Page.navigate", { url });
  }

  // The value of an expression in the page.
  async value(expression) {
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(`${expression}: ${exceptionDetails.exception?.description ?? exceptionDetails.text}`);
    return result.value;
  }

  // Returns how long it took until the expression was true, or fails.
  async until(expression, within = 10_000) {
    const began = Date.now();
    for (;;) {
      if (await this.value(`Boolean(${expression})`).catch(() => false)) return Date.now() - began;
      if (Date.now() - began > within) {
        throw new Error(`within ${within} ms this did not become true: ${expression}\n${await this.value("document.body.innerText").catch(String)}`);
      }
      await new Promise((again) => setTimeout(again, 25));
    }
  }

  async picture(file, whole = true) {
    const { data } = await this.send("Page.captureScreenshot", { format: "png", captureBeyondViewport: whole });
    writeFileSync(file, Buffer.from(data, "base64"));
  }

  async close() {
    await this.browser.send("Target.closeTarget", { targetId: this.targetId });
  }
}
