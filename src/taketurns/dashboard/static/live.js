// Turns as they are taken: lanes for hands, bars for attempts, drawn on a canvas as fast as the screen is, from what the
// stream tells every second.

import { token } from "./charts.js";

const stage = document.querySelector("[data-lanes]");
const canvas = stage.querySelector("canvas");
const tip = stage.querySelector(".tip");
const state = document.querySelector("[data-live-state]");
const legend = document.querySelector("[data-live-legend]");
const empty = document.querySelector("[data-live-empty]");
const holdButton = document.querySelector("[data-live-pause]");
const seconds = Number(stage.dataset.seconds);
const LANE = 15;
const GAP = 3;
const HEAD = 22;
const NAME = 4;

const attempts = new Map();
const looks = new Map();
let workers = [];
let ahead = 0;
let heldAt = null;
let over = null;
let colours = {};
const isStill = matchMedia("(prefers-reduced-motion: reduce)");

// One task may be tried several times: an attempt is known by its task and its beginning.
const take = (told) => {
  if (told.away) { state.textContent = "The database is away"; return; }
  ahead = told.at - Date.now() / 1000;
  workers = told.workers;
  const running = new Set();
  for (const one of told.attempts) {
    const id = `${one.id}@${one.from.toFixed(3)}`;
    const known = attempts.get(id);
    if (one.to === null) running.add(id);
    attempts.set(id, { ...one, lane: known?.lane, shownTo: known?.shownTo });
    looks.set(one.company, one.look);
  }
  for (const [id, one] of attempts) {
    if (one.to === null && !running.has(id)) attempts.set(id, { ...one, to: told.at, status: "retried" });
    else if (one.to !== null && one.to < told.at - seconds - 5) attempts.delete(id);
  }
  place();
  name();
  state.textContent = heldAt === null ? "Live" : "Held";
};

// Every attempt keeps the lane that it began in, the first that is free; one that found none looks again. A hand takes its next task a moment
// before the end of the last one is written down: then the last one's bar gives way.
const place = () => {
  const lanes = new Map(workers.map((worker) => [worker.id, { hands: worker.hands, last: [] }]));
  for (const one of [...attempts.values()].sort((a, b) => a.from - b.from)) {
    const { hands, last } = lanes.get(one.worker) ?? lanes.set(one.worker, { hands: 0, last: [] }).get(one.worker);
    if (!(one.lane < hands)) one.lane = freeLane(one, hands, last);
    const before = last[one.lane];
    if (before && before.to !== null && before.to > one.from) before.shownTo = one.from;
    last[one.lane] = one;
  }
  rows = [...lanes].map(([id, { hands, last }]) => {
    const known = workers.find((worker) => worker.id === id);
    return { id, name: known?.name ?? "a worker that left", count: Math.max(last.length, hands), hands: hands || last.length };
  });
};
const freeLane = (one, hands, last) => {
  for (let lane = 0; lane < Math.max(hands, last.length); lane += 1) {
    const end = last[lane] ? last[lane].to ?? Infinity : -Infinity;
    if (end <= one.from) return lane;
  }
  const ending = last.reduce((best, each, lane) => ((each.to ?? Infinity) < (last[best]?.to ?? Infinity) ? lane : best), 0);
  return last.length >= hands && last[ending] && (last[ending].to ?? Infinity) < one.from + 2 ? ending : last.length;
};
let rows = [];

const name = () => {
  const seen = new Map();
  for (const one of attempts.values()) seen.set(one.company, (seen.get(one.company) ?? 0) + 1);
  const sorted = [...seen.keys()].sort();
  if (legend.dataset.shown === sorted.join(" ")) return;
  legend.dataset.shown = sorted.join(" ");
  legend.replaceChildren(...sorted.map((slug) => {
    const item = document.createElement("li");
    const dot = document.createElement("i");
    const label = document.createElement("bdi");
    dot.className = `dot ${looks.get(slug)}`;
    label.textContent = slug || "deleted";
    item.append(dot, label);
    return item;
  }));
};

const readColours = () => {
  colours = { ink: token("--ink"), soft: token("--ink-soft"), line: token("--line"), sunken: token("--sunken"), bad: token("--bad"), surface: token("--surface") };
  for (let number = 0; number < 12; number += 1) colours[`company-${number}`] = token(`--company-${number}`);
};

const top = (row) => rows.slice(0, row).reduce((sum, one) => sum + HEAD + one.count * (LANE + GAP) + 10, 0);

const drawAll = () => {
  const width = stage.clientWidth;
  const height = Math.max(top(rows.length) + 20, 60);
  const ratio = devicePixelRatio || 1;
  empty.hidden = rows.length > 0;
  empty.textContent = "No worker is up. Start one: taketurns worker";
  stage.hidden = rows.length === 0;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  const now = heldAt ?? Date.now() / 1000 + ahead;
  const x = (at) => width - ((now - at) / seconds) * width;
  pen.font = `11px ${getComputedStyle(document.body).fontFamily}`;
  pen.textBaseline = "middle";
  pen.fillStyle = colours.soft;
  for (let back = 0; back <= seconds; back += 10) {
    const at = Math.round(x(now - back)) + 0.5;
    pen.strokeStyle = colours.line;
    pen.beginPath();
    pen.moveTo(at, 0);
    pen.lineTo(at, height - 16);
    pen.stroke();
    const told = back === 0 ? "now" : `−${back} s`;
    const wide = pen.measureText(told).width;
    pen.fillText(told, Math.min(Math.max(at - wide / 2, 0), width - wide), height - 8);
  }
  rows.forEach((row, number) => {
    const y = top(number);
    pen.fillStyle = colours.surface;
    const label = `${row.name} · ${row.hands} ${row.hands === 1 ? "hand" : "hands"}`;
    pen.fillRect(0, y, pen.measureText(label).width + 10, HEAD - 4);
    pen.fillStyle = colours.soft;
    pen.fillText(label, NAME, y + 9);
    for (let lane = 0; lane < row.count; lane += 1) {
      pen.fillStyle = colours.sunken;
      pen.fillRect(0, y + HEAD + lane * (LANE + GAP), width, LANE);
    }
  });
  over = null;
  for (const one of attempts.values()) {
    const row = rows.findIndex((each) => each.id === one.worker);
    if (row < 0) continue;
    const left = Math.max(x(one.from), 0);
    const right = Math.min(x(one.shownTo ?? one.to ?? now), width);
    if (right < 0 || left > width) continue;
    const box = { x: left, y: top(row) + HEAD + one.lane * (LANE + GAP), w: Math.max(right - left - 1, 2), h: LANE };
    pen.fillStyle = colours[one.look] ?? colours.soft;
    pen.globalAlpha = one.to === null ? 1 : 0.82;
    pen.beginPath();
    pen.roundRect(box.x, box.y, box.w, box.h, Math.min(3, box.w / 2));
    pen.fill();
    pen.globalAlpha = 1;
    if (one.status === "failed") {
      pen.fillStyle = colours.bad;
      pen.fillRect(box.x + box.w - 3, box.y, 3, box.h);
    }
    const pointed = pointer && pointer.x >= box.x && pointer.x <= box.x + Math.max(box.w, 4) && pointer.y >= box.y && pointer.y <= box.y + box.h;
    if (pointed) {
      over = one;
      pen.strokeStyle = colours.ink;
      pen.lineWidth = 1.5;
      pen.strokeRect(box.x, box.y, box.w, box.h);
      pen.lineWidth = 1;
    }
  }
  tell(width, now);
};

let pointer = null;
canvas.addEventListener("pointermove", (event) => { pointer = { x: event.offsetX, y: event.offsetY }; });
canvas.addEventListener("pointerleave", () => { pointer = null; });
canvas.addEventListener("click", () => {
  if (over?.company) location.href = `${stage.dataset.task}${over.company}/tasks/${over.id}`;
});

const tell = (width, now) => {
  canvas.style.cursor = over ? "pointer" : "default";
  tip.hidden = !over;
  if (!over) return;
  const lasted = (over.to ?? now) - over.from;
  const how = over.to === null ? "runs" : over.status === "retried" ? "to be tried again" : over.status;
  tip.textContent = `${over.company || "deleted"} · ${over.type} · ${how} · ${lasted < 10 ? lasted.toFixed(1) : Math.round(lasted)} s`;
  tip.style.top = `${pointer.y + 18}px`;
  tip.style.left = `${Math.min(Math.max(pointer.x - tip.offsetWidth / 2, 0), width - tip.offsetWidth)}px`;
};

holdButton.addEventListener("click", () => {
  heldAt = heldAt === null ? Date.now() / 1000 + ahead : null;
  holdButton.setAttribute("aria-pressed", String(heldAt !== null));
  holdButton.querySelector("span").textContent = heldAt === null ? "Hold" : "Go on";
  state.textContent = heldAt === null ? "Live" : "Held";
});

let source = null;
const connect = () => {
  source = new EventSource(stage.dataset.lanes);
  source.addEventListener("moment", (event) => take(JSON.parse(event.data)));
  source.addEventListener("bye", () => { source.close(); setTimeout(connect, 2000); state.textContent = "Connecting again …"; });
  source.addEventListener("error", () => {
    state.textContent = "Connecting again …";
    if (source.readyState === EventSource.CLOSED) setTimeout(connect, 3000);
  });
};
document.addEventListener("visibilitychange", () => {
  source?.close();
  if (!document.hidden) connect();
});
addEventListener("pagehide", () => source?.close());

readColours();
new MutationObserver(readColours).observe(document.documentElement, { attributeFilter: ["data-theme"] });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", readColours);
connect();
let drawnAt = 0;
const frame = (at) => {
  if (!document.hidden && (!isStill.matches || at - drawnAt > 1000)) {
    drawnAt = at;
    drawAll();
  }
  requestAnimationFrame(frame);
};
requestAnimationFrame(frame);
