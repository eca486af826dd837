// The palette: pages, companies and tasks by a few letters, and the choice of one company. What it lists is what the page
// of the search has; without this script a link leads there.

const dialog = document.getElementById("palette");
const field = dialog?.querySelector("input");
const list = dialog?.querySelector("[role=listbox]");
const state = dialog?.querySelector("[role=status]");
const PAUSE = 120;
const QUESTIONS = { "": "Page, company, or id of a task", company: "Company to look at alone" };

let only = "";
let sources = [];
let at = -1;
let asked = 0;
let soon = 0;

export const open = (wanted = "") => {
  if (!dialog || document.querySelector("dialog[open]")) return;
  only = wanted;
  field.value = "";
  field.placeholder = QUESTIONS[only];
  field.setAttribute("aria-label", QUESTIONS[only]);
  show([]);
  state.textContent = "";
  dialog.showModal();
  look();
};

const look = async () => {
  const turn = asked += 1;
  try {
    const answer = await fetch(`${dialog.dataset.at}?${new URLSearchParams({ q: field.value, for: only })}`, { redirect: "manual" });
    if (answer.type === "opaqueredirect") { location.reload(); return; }
    if (!answer.ok) throw new Error(String(answer.status));
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (turn !== asked) return;
    show([...page.querySelectorAll("[data-found] > li")]);
    state.textContent = sources.length ? `${sources.length} found` : "Nothing is called so";
  } catch {
    if (turn !== asked) return;
    show([]);
    state.textContent = "The service is not reached";
  }
};

const show = (found) => {
  sources = found;
  list.replaceChildren(...found.map((source, number) => {
    const option = document.createElement("li");
    option.id = `found-${number}`;
    option.role = "option";
    option.append(...[...source.querySelector("a, button").childNodes].map((node) => document.importNode(node, true)));
    return option;
  }));
  field.setAttribute("aria-expanded", String(found.length > 0));
  list.hidden = found.length === 0;
  point(0);
};

const point = (number) => {
  at = sources.length ? (number + sources.length) % sources.length : -1;
  [...list.children].forEach((option, each) => option.setAttribute("aria-selected", String(each === at)));
  if (at < 0) field.removeAttribute("aria-activedescendant");
  else field.setAttribute("aria-activedescendant", `found-${at}`);
  list.children[at]?.scrollIntoView({ block: "nearest" });
};

const choose = () => {
  const source = sources[at];
  if (!source) return;
  const form = source.querySelector("form");
  if (!form) { location.href = source.querySelector("a").getAttribute("href"); return; }
  const sent = document.importNode(form, true);
  sent.hidden = true;
  sent.elements.back.value = location.pathname + location.search;
  document.body.append(sent);
  sent.requestSubmit(sent.querySelector("button"));
};

field?.addEventListener("input", () => {
  clearTimeout(soon);
  soon = setTimeout(look, PAUSE);
});
field?.addEventListener("keydown", async (event) => {
  if (event.isComposing) return;
  if (event.key === "ArrowDown") point(at + 1);
  else if (event.key === "ArrowUp") point(at - 1);
  else if (event.key === "Enter") {
    clearTimeout(soon);
    event.preventDefault();
    await look();
    choose();
    return;
  } else return;
  event.preventDefault();
});
list?.addEventListener("click", (event) => {
  at = [...list.children].indexOf(event.target.closest("li"));
  choose();
});

document.addEventListener("click", (event) => {
  const opener = event.target.closest("[data-palette]");
  if (!opener || event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  open(opener.dataset.palette);
});
document.addEventListener("keydown", (event) => {
  if (event.key.toLowerCase() !== "k" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
  event.preventDefault();
  if (dialog?.open) dialog.close();
  else open();
});
if (/Mac|iP(hone|ad)/.test(navigator.platform)) {
  for (const key of document.querySelectorAll("[data-modifier]")) key.textContent = "⌘";
}
