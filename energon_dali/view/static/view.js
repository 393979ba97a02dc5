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

function follow(relation) {
  const link = document.querySelector(`a[rel="${relation}"]`);
  if (link) link.click();
  return Boolean(link);
}

function moveInGrid(columns, rows) {
  const cards = [...document.querySelectorAll(".card")];
  if (!cards.length) return false;
  const at = cards.indexOf(document.activeElement);
  const perRow = cards.filter((card) => card.offsetTop === cards[0].offsetTop).length;
  const wanted = at < 0 ? 0 : at + columns + rows * perRow;
  if (wanted < 0) return follow("prev");
  if (wanted >= cards.length) return at === cards.length - 1 || rows ? follow("next") : false;
  cards[wanted].focus();
  return true;
}

function focusOn(id) {
  const field = byId(id) || document.querySelector(`#filters [name="${id}"]`);
  if (!field) return false;
  field.focus();
  field.select();
  return true;
}

const isGrid = document.body.dataset.page === "grid";
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
  if (event.ctrlKey || event.metaKey || event.altKey || byId("shortcuts").open) return;
  if (event.key === "Escape" && event.target.blur) event.target.blur();
  if (event.target.closest("input, select, textarea, video, audio")) return;
  const action = KEYS[event.key];
  if (action && action()) event.preventDefault();
});

byId("theme").addEventListener("click", switchTheme);
byId("keys").addEventListener("click", () => byId("shortcuts").showModal());
if (byId("copy")) byId("copy").addEventListener("click", () => copyText(byId("copy")));
for (const select of document.querySelectorAll("select[data-navigate]")) {
  select.addEventListener("change", () => location.assign(select.value));
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
  const answer = await fetch(decoded.dataset.facts);
  if (!answer.ok) return;
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
