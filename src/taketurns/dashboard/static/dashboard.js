// What pages do beyond links and forms: they stay up to date, answer to keys, ask before they act, and draw their charts.

import { draw } from "./charts.js";
import "./palette.js";

const root = document.body.dataset.root;
const said = document.getElementById("said");
const EVERY = 3000;

const say = (text) => { said.textContent = text; };
const remembered = (name, fallback) => { try { return localStorage.getItem(name) ?? fallback; } catch { return fallback; } };
const remember = (name, value) => { try { localStorage.setItem(name, value); } catch { /* it holds for this page */ } };

// The look. The form does it without this script as well.

const themes = document.querySelector("[data-themes]");
const choose = (theme) => {
  document.documentElement.dataset.theme = theme;
  document.cookie = `taketurns_theme=${theme}; path=${root || "/"}; max-age=31536000; samesite=lax`;
  for (const button of themes.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button.value === theme));
  drawAll();
};
themes?.addEventListener("submit", (event) => {
  event.preventDefault();
  choose(event.submitter.value);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawAll());

// Charts.

const drawAll = () => { for (const figure of document.querySelectorAll("[data-chart]")) draw(figure); };
let width = 0;
new ResizeObserver(([content]) => {
  if (content.contentRect.width === width) return;
  width = content.contentRect.width;
  requestAnimationFrame(drawAll);
}).observe(document.getElementById("content"));

// Live: the part of the page that changes is asked for again and morphed in, but never under a pointer that is on a row,
// a selection, an open menu or a field that somebody is in, and not while nobody looks.

const live = () => document.querySelector("[data-live]");
const isOn = () => remembered("taketurns.live", "on") === "on";
const part = () => document.querySelector("[data-refresh]");

const holder = () => {
  const changing = part();
  if (document.hidden) return "the window is hidden";
  if (document.querySelector("dialog[open]")) return "something is asked";
  if (changing?.querySelector("input:checked[name=task]")) return "tasks are selected";
  if (document.querySelector(".opens[open]") || changing?.querySelector("details[open]")) return "something is open";
  if (changing?.querySelector(".rows tbody tr:hover, .tip")) return "the pointer is on it";
  if (changing?.contains(document.activeElement) && document.activeElement.matches("input:not([type=checkbox]), select, textarea")) return "a field is in use";
  if (String(getSelection() ?? "") !== "") return "text is selected";
  return "";
};

const show = (held, isLost = false) => {
  const button = live();
  if (!button) return;
  button.setAttribute("aria-pressed", String(isOn()));
  button.classList.toggle("held", isOn() && (held !== "" || isLost));
  button.querySelector("span").textContent = !isOn() ? "Live off" : isLost ? "Not reached" : "Live";
  button.title = !isOn() ? "The page stays as it is" : held ? `Waits: ${held}` : "The page stays up to date";
};

let underWay = false;
const refresh = async () => {
  if (!part() || !live()) return;
  const held = isOn() ? holder() : "";
  show(held);
  if (!isOn() || held || underWay) return;
  underWay = true;
  try {
    const answer = await fetch(location.href, { headers: { accept: "text/html" }, redirect: "manual" });
    if (answer.type === "opaqueredirect") { location.reload(); return; }
    if (!answer.ok) throw new Error(String(answer.status));
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.querySelector("[data-refresh]");
    if (fresh && !holder()) {
      htmx.swap({ target: part(), text: fresh.outerHTML, swap: "outerMorph" });
      show("");
      drawAll();
      mark();
    }
  } catch {
    show("", true);
  } finally {
    underWay = false;
  }
};
setInterval(refresh, EVERY);
document.addEventListener("visibilitychange", () => { if (!document.hidden) refresh(); });

const toggleLive = () => {
  remember("taketurns.live", isOn() ? "off" : "on");
  show("");
  say(isOn() ? "Live updates are on" : "Live updates are off");
  refresh();
};

// Things to press.

document.addEventListener("click", (event) => {
  const pressed = event.target.closest("[data-live], [data-help], [data-copy], [data-tick-all]");
  if (!pressed) return;
  if (pressed.matches("[data-live]")) toggleLive();
  else if (pressed.matches("[data-help]")) document.getElementById("help").showModal();
  else if (pressed.matches("[data-copy]")) copy(pressed);
  else {
    for (const box of document.querySelectorAll("input[name=task]")) box.checked = pressed.checked;
    count();
  }
});

// Also where the page came by http, and browsers keep the clipboard from it.
const copy = async (button) => {
  const text = button.dataset.copy;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "unseen";
    button.after(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  say("Copied");
  const before = button.textContent;
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = before; }, 1200);
};

document.addEventListener("submit", (event) => {
  const form = event.target;
  const { question, sure } = form.elements;
  if (question && sure.value !== "yes") {
    event.preventDefault();
    ask(form, event.submitter);
  }
});

const ask = (form, button) => {
  const dialog = document.createElement("dialog");
  const question = document.createElement("p");
  const row = document.createElement("p");
  const yes = document.createElement("button");
  const no = document.createElement("button");
  question.textContent = form.elements.question.value;
  row.className = "row";
  yes.className = button?.classList.contains("danger") ? "danger" : "main";
  yes.textContent = button?.textContent.trim() ?? "Yes";
  no.textContent = "Leave it";
  yes.addEventListener("click", () => {
    form.elements.sure.value = "yes";
    form.requestSubmit(button);
    dialog.close();
  });
  no.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => { dialog.remove(); button?.focus(); });
  dialog.setAttribute("aria-label", "Are you sure?");
  row.append(yes, no);
  dialog.append(question, row);
  document.body.append(dialog);
  dialog.showModal();
  no.focus();
};

// A form that was sent is not sent again by a second press, until its answer did not come for a while.

const sent = new Set();
document.addEventListener("submit", (event) => {
  const form = event.target;
  if (event.defaultPrevented || form.method !== "post") return;
  if (sent.has(form)) { event.preventDefault(); return; }
  sent.add(form);
  setTimeout(() => sent.delete(form), EVERY);
});
addEventListener("pageshow", () => sent.clear());

// Forms that open below a button: the first field is ready to be filled in, and Escape or a press elsewhere closes them.

document.addEventListener("toggle", (event) => {
  if (event.target.matches?.(".opens[open]")) event.target.querySelector("input:not([type=hidden]), select")?.focus();
}, true);
const shut = (opened) => {
  const isIn = opened.contains(document.activeElement);
  opened.open = false;
  if (isIn) opened.querySelector("summary").focus();
};
document.addEventListener("pointerdown", (event) => {
  for (const opened of document.querySelectorAll(".opens[open]")) if (!opened.contains(event.target)) shut(opened);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") for (const opened of document.querySelectorAll(".opens[open]")) shut(opened);
});

// Empty filters are left out of the address.

document.addEventListener("submit", (event) => {
  if (!event.target.matches("[data-filters]")) return;
  for (const field of event.target.elements) if (field.name && field.value === "") field.disabled = true;
});
addEventListener("pageshow", () => {
  for (const field of document.querySelectorAll("[data-filters] :disabled")) field.disabled = false;
});

// Selection.

const count = () => {
  const ticked = document.querySelectorAll("input:checked[name=task]").length;
  const told = document.querySelector("[data-bulk-count]");
  if (!told) return;
  told.hidden = ticked === 0;
  told.textContent = ticked === 1 ? "1 selected:" : `${ticked} selected:`;
  document.querySelector("[data-bulk-all]").hidden = ticked > 0;
  for (const button of document.querySelectorAll("[data-needs-ticks]")) button.disabled = ticked === 0;
};
document.addEventListener("change", (event) => {
  if (event.target.matches("input[name=task]")) count();
  if (event.target.matches("[data-shortcuts]")) remember("taketurns.keys", event.target.checked ? "on" : "off");
});

// Rows and keys.

let at = null;
const rows = () => [...document.querySelectorAll("[data-rows] tbody tr")];
const mark = () => { for (const row of rows()) row.classList.toggle("at", row.id !== "" && row.id === at); };
const move = (by) => {
  const all = rows();
  if (!all.length) return;
  const now = all.findIndex((row) => row.id === at);
  const next = all[Math.min(Math.max(now + by, 0), all.length - 1)];
  at = next.id;
  mark();
  next.querySelector("[data-open]")?.focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
};

let isGoing = false;
const keys = {
  "/": () => document.querySelector("[data-search]")?.select(),
  "?": () => document.getElementById("help")?.showModal(),
  j: () => move(1),
  k: () => move(-1),
  x: () => document.querySelector("tr.at input[name=task]")?.click(),
  r: () => { if (live()) toggleLive(); },
  t: () => {
    const all = ["system", "light", "dark"];
    const next = all[(all.indexOf(document.documentElement.dataset.theme) + 1) % all.length];
    choose(next);
    say(`Look: ${next}`);
  },
  g: () => { isGoing = true; setTimeout(() => { isGoing = false; }, 1000); },
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || remembered("taketurns.keys", "on") === "off") return;
  if (event.target.closest("input:not([type=checkbox]), select, textarea, dialog")) return;
  const page = isGoing && document.querySelector(`.side nav a[data-key="${CSS.escape(event.key)}"]`);
  if (page) {
    isGoing = false;
    page.click();
  } else if (Object.hasOwn(keys, event.key)) {
    event.preventDefault();
    keys[event.key]();
  }
});

const shortcuts = document.querySelector("[data-shortcuts]");
if (shortcuts) shortcuts.checked = remembered("taketurns.keys", "on") === "on";
document.querySelector(".side nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
count();
show("");
drawAll();
