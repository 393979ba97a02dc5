// Keyboard, theme, copying, and what the background scan found meanwhile. Every page works without it.
"use strict";

const byId = (id) => document.getElementById(id);

function switchTheme() {
  const root = document.documentElement;
  const now = root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
}

async function copyText(button) {
  const source = byId(button.dataset.copies);
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(source);
    button.textContent = "Selected: press Ctrl+C";
  }
  setTimeout(() => (button.textContent = "Copy"), 2000);
}

// --- the focus, which a page hands on to the next one ---

let isByKeyboard = false;
addEventListener("keydown", () => (isByKeyboard = true), true);
addEventListener("pointerdown", () => (isByKeyboard = false), true);

// What has the focus, so that the same thing on another page is found; null if nothing has.
function focused() {
  const element = document.activeElement;
  if (!element || element === document.body) return null;
  if (element.dataset.sample) return { selector: `[data-sample="${CSS.escape(element.dataset.sample)}"]` };
  if (element.rel) return { selector: `a[rel="${CSS.escape(element.rel)}"]` };
  if (element.id) return { selector: `#${CSS.escape(element.id)}` };
  if (element.name) return { selector: `${element.localName}[name="${CSS.escape(element.name)}"]` };
  return { selector: element.localName, text: element.textContent.trim() };
}

function handFocusOn(wanted) {
  sessionStorage.setItem("focus", JSON.stringify(wanted));
}

function takeFocus() {
  const here = `focus ${location.href}`;
  const isAgain = performance.getEntriesByType("navigation")[0]?.type !== "navigate"; // a reload, or back and forward
  const stored = sessionStorage.getItem("focus") || (isAgain ? sessionStorage.getItem(here) : null);
  sessionStorage.removeItem("focus");
  sessionStorage.removeItem(here);
  const wanted = stored && JSON.parse(stored);
  if (!wanted || document.activeElement !== document.body) return;
  const found = [...document.querySelectorAll(wanted.selector)];
  const same = wanted.text === undefined ? found : found.filter((one) => one.textContent.trim() === wanted.text);
  const cards = document.querySelectorAll("a[data-sample]");
  const target = same[0] || (wanted.selector.includes("data-sample") && cards[wanted.isLast ? cards.length - 1 : 0]);
  // At the first and the last page, one of the two ways is not a link.
  const isWay = wanted.selector.startsWith("a[rel");
  const other = isWay ? document.querySelector('a[rel="prev"], a[rel="next"]') : null;
  (target || other)?.focus();
}

addEventListener("pagehide", () => {
  if (isByKeyboard) sessionStorage.setItem(`focus ${location.href}`, JSON.stringify(focused()));
});

// --- while the next page is on its way ---

let waitingTimer = 0;
function startWaiting() {
  clearTimeout(waitingTimer);
  waitingTimer = setTimeout(() => {
    if (byId("waiting")) return;
    const bar = document.createElement("div");
    bar.id = "waiting";
    bar.setAttribute("role", "status");
    bar.setAttribute("aria-label", "The next page is on its way");
    document.body.append(bar);
  }, 200);
}
addEventListener("pageshow", () => {
  clearTimeout(waitingTimer);
  byId("waiting")?.remove();
});

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href]");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  if (link.target || link.hasAttribute("download") || link.getAttribute("href").startsWith("#")) return;
  startWaiting();
  if (!isByKeyboard) return;
  const sample = document.querySelector(".sample[data-index]");
  // Back in the grid, the sample that was looked at has the focus.
  handFocusOn(link.rel === "up" && sample ? { selector: `[data-sample="${sample.dataset.index}"]` } : focused());
});
document.addEventListener("submit", (event) => {
  if (event.defaultPrevented || event.target.method === "dialog") return;
  startWaiting();
  if (isByKeyboard) handFocusOn(focused());
});

for (const image of document.images) {
  if (image.complete) continue;
  image.parentElement.classList.add("loading");
  for (const end of ["load", "error"]) {
    image.addEventListener(end, () => image.parentElement.classList.remove("loading"), { once: true });
  }
}

function follow(relation) {
  const link = document.querySelector(`a[rel="${relation}"]`);
  if (link) link.click();
  return Boolean(link);
}

function moveInGrid(columns, rows) {
  const cards = [...document.querySelectorAll("a[data-sample]")];
  if (!cards.length) return false;
  const at = cards.indexOf(document.activeElement);
  const top = (card) => card.getBoundingClientRect().top;
  const perRow = cards.filter((card) => Math.abs(top(card) - top(cards[0])) < 2).length;
  const wanted = at < 0 ? 0 : at + columns + rows * perRow;
  const isBefore = wanted < 0;
  if (isBefore || wanted >= cards.length) {
    if (!follow(isBefore ? "prev" : "next")) return false;
    handFocusOn({ selector: "[data-sample=none]", isLast: isBefore });
    return true;
  }
  cards[wanted].focus();
  return true;
}

function focusOn(id) {
  const field = byId(id) || document.querySelector(`#filters [name="${id}"]`);
  if (!field) return false;
  if (field.closest("details")) field.closest("details").open = true;
  field.focus();
  field.select();
  return true;
}

const isGrid = ["grid", "blend"].includes(document.body.dataset.page);
const KEYS = {
  ArrowLeft: () => (isGrid ? moveInGrid(-1, 0) : follow("prev")),
  ArrowRight: () => (isGrid ? moveInGrid(1, 0) : follow("next")),
  ArrowUp: () => isGrid && moveInGrid(0, -1),
  ArrowDown: () => isGrid && moveInGrid(0, 1),
  j: () => (isGrid ? moveInGrid(1, 0) : follow("next")),
  k: () => (isGrid ? moveInGrid(-1, 0) : follow("prev")),
  n: () => follow("next"),
  p: () => follow("prev"),
  u: () => follow("up"),
  "/": () => focusOn("text"),
  g: () => focusOn("goto"),
  c: () => byId("copy") && (copyText(byId("copy")), true),
  t: () => (switchTheme(), true),
  "?": () => (byId("shortcuts").showModal(), true),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Escape" && event.target.blur) event.target.blur();
  if (event.target.closest("input, select, textarea, video, audio")) return;
  const action = KEYS[event.key];
  if (action && action()) event.preventDefault();
});

byId("theme").addEventListener("click", switchTheme);
byId("keys").addEventListener("click", () => byId("shortcuts").showModal());
if (byId("copy")) byId("copy").addEventListener("click", () => copyText(byId("copy")));
// After the back button, a list shows what its page was asked for, and not what was chosen to leave it.
function showOwnChoice(select) {
  select.disabled = false;
  const own = [...select.options].findIndex((option) => option.defaultSelected);
  select.selectedIndex = Math.max(0, own);
}

for (const select of document.querySelectorAll("select[data-navigate]")) {
  addEventListener("pageshow", () => showOwnChoice(select));
  select.addEventListener("change", () => {
    startWaiting();
    if (isByKeyboard) handFocusOn(focused());
    location.assign(select.value);
  });
}

// An address holds only what was given.
const filters = byId("filters");
if (filters) {
  filters.addEventListener("submit", () => {
    for (const field of filters.elements) if (field.name && !field.value) field.disabled = true;
  });
  addEventListener("pageshow", () => {
    for (const field of filters.elements) field.disabled = false;
  });
}

// On a narrow page, the samples come first and the conditions are folded under their title.
const box = document.querySelector(".filter-box");
if (box) {
  const isWide = matchMedia("(min-width: 60rem)");
  box.open = isWide.matches;
  isWide.addEventListener("change", () => (box.open = isWide.matches));
}

// Long text comes in pieces. They are text, and are never parsed as HTML.
async function showMore(button) {
  button.disabled = true;
  button.textContent = "Loading …";
  const answer = await fetch(button.dataset.more).catch(() => null);
  if (!answer || !answer.ok) {
    button.disabled = false;
    button.textContent = "It could not be read. Try again";
    return;
  }
  const { text, rest } = await answer.json();
  const shown = button.parentElement.querySelector("pre");
  shown.append(text);
  button.parentElement.querySelector(".note")?.remove();
  if (rest === null) {
    button.remove();
    shown.focus();
    return;
  }
  button.dataset.more = button.dataset.more.replace(/start=\d+/, `start=${rest}`);
  button.disabled = false;
  button.textContent = "Show more";
  button.focus();
}
for (const button of document.querySelectorAll("[data-more]")) button.addEventListener("click", () => showMore(button));

// The buttons of the scan lead back to this page.
const scan = byId("scan");
for (const button of [byId("scan-start"), byId("scan-cancel")]) {
  const back = encodeURIComponent(location.pathname + location.search);
  button.setAttribute("formaction", `${button.getAttribute("formaction")}?back=${back}`);
}

async function followScan() {
  const answer = await fetch("/scan");
  if (!answer.ok) return;
  const state = await answer.json();
  byId("scan-bar").value = state.share;
  const percent = state.complete ? "" : ` ${Math.min(99.9, state.share * 100).toFixed(1)} %`;
  byId("scan-text").textContent = `scanned${percent}`;
  byId("scan-start").hidden = state.running || state.complete;
  byId("scan-cancel").hidden = !state.running;
  if (state.running) setTimeout(followScan, 1000);
}
if (scan.dataset.running === "true") followScan();

const refreshing = document.querySelector("[data-refresh]");
if (refreshing && (scan.dataset.running === "true" || !document.querySelector(".note"))) {
  setTimeout(() => {
    if (!document.activeElement.closest("input, select")) location.reload();
  }, Number(refreshing.dataset.refresh));
}

// What decoding shows comes after the page, because it may take seconds. It is text, and is never parsed as HTML.
const decoded = document.querySelector("[data-facts]");
async function showFacts() {
  const state = byId("examining");
  state.textContent = "Decoding the sample …";
  const answer = await fetch(decoded.dataset.facts).catch(() => null);
  state.textContent = answer && answer.ok ? "" : "Whether it decodes could not be found out.";
  if (!answer || !answer.ok) return;
  const facts = await answer.json();
  if (facts.reason) {
    byId("failure").textContent = `A loader skips this sample (${facts.stage}): ${facts.reason}`;
    byId("failure").hidden = false;
  }
  for (const part of facts.parts) {
    const place = [...document.querySelectorAll(".part")].find((one) => one.dataset.part === part.name);
    if (!place) continue;
    const words = [];
    const shown = place.querySelector("small").textContent;
    if (part.width && !shown.includes("×")) words.push(`${part.width} × ${part.height}`);
    if (part.format && !shown.includes(part.format) && part.kind !== "text" && part.kind !== "json") words.push(part.format);
    if (part.mode) words.push(part.mode);
    if (part.duration) words.push(`${part.duration.toFixed(2)} s`);
    if (part.text_length !== null) words.push(`${part.text_length.toLocaleString("en")} characters`);
    place.querySelector(".more").textContent = words.length ? `, ${words.join(", ")}` : "";
  }
  document.body.dataset.facts = "shown";
}
if (decoded) showFacts();
takeFocus();
