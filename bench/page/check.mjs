// Looks at the page of a gateway in headless Chromium: check.mjs PACELINE CHROMIUM AXE FOLDER
//
// It says within two seconds why a scope waits, axe finds nothing serious, the console has no error, nothing is loaded from elsewhere, it
// says when the gateway is gone and comes back by itself, and how to get in where the gateway has keys. The same of the report of a job. Pictures go
// to FOLDER.

import assert from "node:assert/strict";
import { execFileSync, spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Browser } from "./browser.mjs";
import { api, configure, end, folder, post, start, success } from "./gateway.mjs";

const [program, chromium, axe, pictures] = process.argv.slice(2);
mkdirSync(pictures, { recursive: true });
const SIZES = { wide: [1280, 900], phone: [360, 740] };
const LONGEST_MS = 2000;

async function accessible(tab, what) {
  await tab.value(readFileSync(axe, "utf8"));
  const found = await tab.value("axe.run(document).then((found) => found.violations.filter((each) => ['serious', 'critical'].includes(each.impact)).map((each) => `${each.id}: ${each.nodes.map((node) => node.html).slice(0, 3).join(' | ')}`))");
  assert.deepEqual(found, [], `axe on ${what}`);
}

const noOverflow = "document.documentElement.scrollWidth <= innerWidth";

async function look(browser, gateway) {
  const offenses = [];
  for (const [size, [width, height]] of Object.entries(SIZES)) {
    for (const dark of [false, true]) {
      const what = `${size}-${dark ? "dark" : "light"}`;
      const tab = await browser.tab({ width, height, dark, origin: gateway.url, offenses });
      await tab.open(gateway.url + "/");
      await tab.until("document.querySelectorAll('#rows .name').length >= 3 && document.querySelectorAll('#charts canvas').length === 4");
      assert.ok(await tab.value(noOverflow), `${what}: no wider than the screen`);
      await tab.until("['nightly-results.jsonlchatruns', 'nightly-tasks.dbchatruns'].every((job) => document.getElementById('jobs').textContent.includes(job)) && document.querySelectorAll('#jobs progress').length === 3");
      await tab.picture(join(pictures, `${what}.png`));
      await tab.until("document.querySelector('#rows .badge').textContent === 'stopped'");
      await accessible(tab, what);
      // By keyboard: search, then the first row.
      await tab.value("document.getElementById('search').focus()");
      await tab.send("Input.insertText", { text: "hourly" });
      await tab.until("document.querySelectorAll('#rows .name').length === 1");
      await tab.value("document.querySelector('#rows .name').focus()");
      await tab.send("Input.dispatchKeyEvent", { type: "keyDown", key: "Enter", code: "Enter", text: "\r", windowsVirtualKeyCode: 13 });
      await tab.send("Input.dispatchKeyEvent", { type: "keyUp", key: "Enter", code: "Enter", windowsVirtualKeyCode: 13 });
      await tab.until("document.getElementById('chosen-title').textContent.includes('hourly') && document.activeElement.id === 'chosen-title'");
      await tab.until("document.getElementById('chosen-why').textContent.startsWith('the next call waits')");
      const said = await tab.value("document.getElementById('chosen-why').textContent");
      await tab.until(`document.getElementById('chosen-why').textContent !== ${JSON.stringify(said)}`, 3000);
      await tab.picture(join(pictures, `${what}-chosen.png`), false);
      await accessible(tab, `${what}, chosen`);
      await tab.close();
    }
  }
  assert.deepEqual(offenses, []);
}

// From the request to the reason on the screen.
async function quick(browser, gateway) {
  const offenses = [];
  const tab = await browser.tab({ width: 1280, height: 900, origin: gateway.url, offenses });
  await tab.open(gateway.url + "/");
  await tab.until("document.querySelectorAll('#rows .name').length >= 3");
  const times = [];
  for (const model of ["first", "second", "third"]) {
    post(gateway.url, "quota", model);
    post(gateway.url, "quota", model);
    const why = `[...document.querySelectorAll('#rows tr')].some((row) => row.textContent.includes('${model}') && row.textContent.includes('nothing leaves for'))`;
    times.push(await tab.until(why, LONGEST_MS));
  }
  console.log(`measure page, from a request to why its scope waits: ms=${times.join(",")} bar=${LONGEST_MS} met`);
  await tab.close();
  assert.deepEqual(offenses, []);
}

// A link to a scope, and one that was cut on its way.
async function linked(browser, gateway) {
  const offenses = [];
  const scope = encodeURIComponent("hourly\n/v1/chat/completions hourly-model");
  for (const [link, title] of [[scope, "hourly: /v1/chat/completions hourly-model"], [`${scope}%`, ""]]) {
    const tab = await browser.tab({ width: 1280, height: 900, origin: gateway.url, offenses });
    await tab.open(`${gateway.url}/#${link}`);
    await tab.until(`document.querySelectorAll('#rows .name').length >= 3 && document.getElementById('chosen-title').textContent.includes(${JSON.stringify(title)})`);
    await tab.close();
  }
  assert.deepEqual(offenses, []);
}

// Times as the program itself writes them (durations_have_two_units of the core).
async function words(browser, gateway) {
  const tab = await browser.tab({ width: 1280, height: 900, origin: gateway.url, offenses: [] });
  await tab.open(gateway.url + "/");
  await tab.until("document.getElementById('rows')");
  const times = [0, 250, 1000, 1249, 59900, 185000, 3720000, 183600000, 5370000, 7199000, 86369000, 86370000, 97199000, 99000000];
  const written = await tab.value(`import("/api/page/words.js").then((words) => ${JSON.stringify(times)}.map(words.duration))`);
  assert.deepEqual(written, ["0ms", "250ms", "1s", "1.2s", "59.9s", "3m 05s", "1h 02m", "2d 3h", "1h 30m", "2h 00m", "23h 59m", "1d 0h", "1d 3h", "1d 4h"]);
  const place = { text: "live, 4 members known", lease_until: "2026-11-29T10:00:30.000Z" };
  const said = ["2026-11-29T10:00:03.500Z", "2026-11-29T10:00:30.000Z"].map(Date.parse);
  const fleet = await tab.value(`import("/api/page/words.js").then((words) => ${JSON.stringify(said)}.map((now) => words.fleet(${JSON.stringify(place)}, now)))`);
  assert.deepEqual(fleet, ["live, 4 members known; lease for 27s", "live, 4 members known"]);
  await tab.close();
}

async function gone(browser, args) {
  const own = await start(program, args);
  const tab = await browser.tab({ width: 1280, height: 900, origin: own.url, offenses: [] });
  await tab.open(own.url + "/");
  await tab.until("!document.getElementById('content').hidden");
  own.child.kill("SIGKILL");
  await tab.until("document.getElementById('connection').textContent.startsWith('The gateway is gone since')", 5000);
  await tab.picture(join(pictures, "gone.png"), false);
  const listen = ["--listen", own.url.replace("http://", "")];
  const again = await start(program, args.map((arg, at) => (args[at - 1] === "--listen" ? listen[1] : arg)));
  await tab.until("!document.getElementById('connection').classList.contains('lost')", 8000);
  await tab.close();
  again.child.kill("SIGKILL");
}

async function locked(browser, args) {
  const keys = join(folder, "keys.json");
  const run = (...rest) => execFileSync(program, ["serve", "keys", ...rest, "--client-keys", keys], { cwd: folder, encoding: "utf8" });
  const key = run("add", "ops").trim();
  const own = await start(program, [...args, "--client-keys", keys]);
  const offenses = [];
  const tab = await browser.tab({ width: 360, height: 740, origin: own.url, offenses });
  await tab.open(own.url + "/");
  await tab.until("!document.getElementById('locked').hidden");
  await tab.picture(join(pictures, "locked.png"), false);
  await accessible(tab, "the page that wants a key");
  for (const [typed, then] of [["wrong", "document.getElementById('locked-why').textContent.startsWith('That key')"], [key, "!document.getElementById('content').hidden"]]) {
    await tab.value("document.getElementById('key').focus()");
    await tab.send("Input.insertText", { text: typed });
    await tab.value("document.querySelector('#unlock button').click()");
    await tab.until(then);
  }
  assert.ok(!(await tab.value("document.body.innerHTML")).includes(key), "the key is not on the page");
  // The refusals are on the console of every browser.
  assert.deepEqual(offenses.filter((offense) => !offense.includes("401")), []);
  await tab.close();
  own.child.kill("SIGKILL");
}

// The page of a job, one of whose items has an id that tries to break out.
async function report(browser) {
  const attack = "</script><img src=x onerror=console.error(1)>";
  let calls = 0;
  const answer = () => {
    calls += 1;
    if (calls % 7 === 0) return { status: 429, headers: { "retry-after-ms": "50" }, body: { error: { message: "Slow down", code: "rate_limit_exceeded" } } };
    return calls % 5 === 0 ? { status: 400, body: { error: { message: `no such thing: ${attack}`, code: "invalid_value" } } } : success;
  };
  const items = Array.from({ length: 60 }, (_, at) => ({ custom_id: `${attack} ${at}`, method: "POST", url: "/v1/chat/completions", body: { model: "gpt-4o-mini", messages: [] } }));
  writeFileSync(join(folder, "in.jsonl"), items.map((item) => JSON.stringify(item) + "\n").join(""));
  const run = (...args) => spawnSync(program, args, { cwd: folder, encoding: "utf8", env: { PATH: process.env.PATH, HOME: folder } });
  const url = await api(answer);
  // The server is in this process, so it must go on.
  const ran = spawn(program, ["run", "in.jsonl", "-o", "out.jsonl", "--base-url", `${url}/v1`, "--stop-after-same", "0"], { cwd: folder, stdio: "ignore", env: { PATH: process.env.PATH, HOME: folder } });
  await once(ran, "exit");
  const file = process.env.PAGE_CHECK_REPORT ?? join(folder, "report.html");
  if (!process.env.PAGE_CHECK_REPORT) {
    const written = run("report", "out.jsonl", "--html", file, "--price", "in=2.50,out=10");
    assert.equal(written.status, 0, written.stderr);
  }
  const offenses = [];
  for (const [size, [width, height]] of Object.entries(SIZES)) {
    for (const dark of [false, true]) {
      const what = `report-${size}-${dark ? "dark" : "light"}`;
      const tab = await browser.tab({ width, height, dark, origin: "file://", offenses });
      await tab.open(`file://${file}`);
      await tab.until("document.querySelectorAll('#charts canvas').length >= 4 && document.querySelectorAll('#failures tr').length > 0");
      assert.ok(await tab.value(noOverflow), `${what}: no wider than the screen`);
      assert.equal(await tab.value("document.images.length"), 0);
      await tab.picture(join(pictures, `${what}.png`));
      await accessible(tab, what);
      if (dark && size === "wide") {
        await tab.send("Emulation.setEmulatedMedia", { media: "print", features: [{ name: "prefers-color-scheme", value: "dark" }] });
        await tab.until("document.documentElement.hasAttribute('data-print') && getComputedStyle(document.body).backgroundColor === 'rgb(255, 255, 255)'");
        await tab.picture(join(pictures, "report-print.png"));
      }
      await tab.close();
    }
  }
  assert.deepEqual(offenses, []);
}

const browser = new Browser(chromium);
try {
  const mock = await start(program, ["mock", "--listen", "127.0.0.1:0", "--rpm", "600", "--burst", "20", "--latency", "40ms..400ms"]);
  let calls = 0;
  const open = await api(() => (++calls % 9 ? { ...success, after: 30 } : { status: 503, headers: { "retry-after-ms": "300" }, body: { error: { message: "The engine is overloaded" } } }));
  const refusing = await api(() => ({ status: 401, body: { error: { code: "invalid_api_key", message: "Incorrect API key provided <script>alert(1)</script>" } } }));
  const quota = await api(() => ({ status: 429, headers: { "retry-after": "1800" }, body: { error: { code: "rate_limit_exceeded", message: "Rate limit reached for requests" } } }));
  const config = configure({
    chat: `base_url = "${mock.url}/v1"\nprice = "in=2.50,out=10"`,
    flaky: `base_url = "${open}/v1"`,
    stopped: `base_url = "${refusing}/v1"`,
    quota: `base_url = "${quota}/v1"`,
    hourly: `base_url = "${open}/v1"\nlimits = ["3 per 1h"]`,
  });
  const args = ["serve", "--listen", "127.0.0.1:0", "--config", config];
  const gateway = await start(program, args);
  const load = setInterval(() => {
    const model = ["gpt-4o-mini", "gpt-4o", "a-model-with-a-name-that-is-longer-than-any-phone-is-wide-2026-11-24"][Math.floor(Math.random() * 3)];
    post(gateway.url, "chat", model, Math.random() < 0.3 ? { "x-paceline-priority": "batch", "x-paceline-client": "nightly" } : {});
    if (Math.random() < 0.3) post(gateway.url, "flaky", "m");
  }, 60);
  post(gateway.url, "stopped", "m");
  for (let n = 0; n < 6; n += 1) post(gateway.url, "hourly", "hourly-model", { "x-paceline-deadline": "2h" });
  // A job through the gateway, and a batch of the gateway's own.
  const prompt = (at) => JSON.stringify({ custom_id: `item-${at}`, method: "POST", url: "/v1/chat/completions", body: { model: "gpt-4o-mini", messages: [] } }) + "\n";
  const lines = Array.from({ length: 4000 }, (_, at) => prompt(at)).join("");
  writeFileSync(join(folder, "nightly.jsonl"), lines);
  const job = spawn(program, ["run", "nightly.jsonl", "-o", "nightly-results.jsonl", "--upstream", "chat", "--via", gateway.url, "--config", config, "--concurrency", "4"], { cwd: folder, stdio: "ignore", env: { PATH: process.env.PATH, HOME: folder } });
  // Durable items through it.
  const environment = { cwd: folder, stdio: "ignore", env: { PATH: process.env.PATH, HOME: folder } };
  const payload = { method: "POST", url: "/v1/chat/completions", body: { model: "gpt-4o-mini", messages: [] } };
  const items = Array.from({ length: 4000 }, (_, at) => JSON.stringify({ key: `key-${at}`, payload }) + "\n");
  writeFileSync(join(folder, "tasks.jsonl"), items.join(""));
  execFileSync(program, ["tasks", "add", "--store", "nightly-tasks.db", "--from", "tasks.jsonl"], environment);
  const tasks = spawn(program, ["tasks", "run", "--store", "nightly-tasks.db", "--http", "--upstream", "chat", "--via", gateway.url, "--config", config, "--concurrency", "4"], environment);
  const form = new FormData();
  form.set("purpose", "batch");
  form.set("file", new Blob([lines]), "batch.jsonl");
  const file = await (await fetch(`${gateway.url}/v1/files`, { method: "POST", body: form })).json();
  const order = JSON.stringify({ input_file_id: file.id, endpoint: "/v1/chat/completions", completion_window: "24h" });
  const batch = await (await fetch(`${gateway.url}/v1/batches?upstream=chat`, { method: "POST", body: order })).json();
  assert.equal(batch.object, "batch", JSON.stringify(batch));
  // A few steps of the history.
  await new Promise((later) => setTimeout(later, Number(process.env.PAGE_CHECK_WARM_MS ?? 12_000)));
  await look(browser, gateway);
  await quick(browser, gateway);
  await linked(browser, gateway);
  await words(browser, gateway);
  clearInterval(load);
  job.kill("SIGKILL");
  tasks.kill("SIGKILL");
  await gone(browser, [...args, "--state", join(folder, "gone")]);
  await locked(browser, [...args, "--state", join(folder, "locked")]);
  await report(browser);
  console.log(`measure page, in both themes, on a wide screen and a phone: the page and the report are as they should be; pictures in ${pictures}`);
} finally {
  await browser.close();
  end();
}
process.exit(0);
