// How long the page's frames take with 1,000 scopes at work: frames.mjs PACELINE CHROMIUM [MOST_MS]. Fails where the longest is above that.

import { Browser } from "./browser.mjs";
import { api, configure, end, post, start, success } from "./gateway.mjs";

const [program, chromium, most] = process.argv.slice(2);
const SCOPES = 1000;
const SECONDS = 15;

const browser = new Browser(chromium);
let longest = Infinity;
try {
  const open = await api(() => ({ ...success, after: 50 }));
  const config = configure({ many: `base_url = "${open}/v1"\nrpm = 12000` });
  const gateway = await start(program, ["serve", "--listen", "127.0.0.1:0", "--config", config]);
  const models = Array.from({ length: SCOPES }, (_, at) => `model-${at}`);
  for (let at = 0; at < SCOPES; at += 50) await Promise.all(models.slice(at, at + 50).map((model) => post(gateway.url, "many", model)));
  const load = setInterval(() => { for (let n = 0; n < 2; n += 1) post(gateway.url, "many", models[Math.floor(Math.random() * SCOPES)]); }, 20);
  const tab = await browser.tab({ width: 1280, height: 900, origin: gateway.url, offenses: [] });
  await tab.open(gateway.url + "/");
  await tab.until(`document.getElementById('scopes-count').textContent === '(${SCOPES.toLocaleString("en")})'`, 20_000);
  const rows = await tab.value("document.querySelectorAll('#rows tr').length");
  // The list is scrolled all the time, and searched now and then.
  const frames = await tab.value(`new Promise((done) => {
    const [frames, began, box, search] = [[], performance.now(), document.getElementById("window"), document.getElementById("search")];
    let last = began;
    function frame(now) {
      frames.push(now - last);
      last = now;
      box.scrollTop = (box.scrollTop + 37) % (box.scrollHeight - box.clientHeight);
      if (frames.length % 120 === 0) { search.value = search.value ? "" : "model-7"; search.dispatchEvent(new Event("input")); }
      if (now - began < ${SECONDS * 1000}) requestAnimationFrame(frame);
      else done(frames.slice(1).sort((a, b) => a - b));
    }
    requestAnimationFrame(frame);
  })`);
  clearInterval(load);
  const at = (share) => frames[Math.min(frames.length - 1, Math.floor(frames.length * share))].toFixed(1);
  longest = frames.at(-1);
  const verdict = most ? ` bar=${most} ${longest > Number(most) ? "MISSED" : "met"}` : "";
  console.log(`measure page, frames: scopes=${SCOPES} rows=${rows} frames=${frames.length} seconds=${SECONDS} median_ms=${at(0.5)} p99_ms=${at(0.99)} longest_ms=${longest.toFixed(1)}${verdict}`);
} finally {
  await browser.close();
  end();
}
process.exit(most && longest > Number(most) ? 1 : 0);
