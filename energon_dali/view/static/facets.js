// The fields of JSON parts, counted when they are asked for. Names and values are text, and are never parsed as HTML.
"use strict";

const facets = byId("facets");

function facetOf(facet) {
  const box = document.createElement("details");
  box.open = facet.num_values <= 20;
  const title = document.createElement("summary");
  title.dir = "auto";
  title.textContent = facet.name;
  const list = document.createElement("ul");
  const most = Math.max(...facet.values.map((one) => one.count));
  for (const { value, count, href } of facet.values) {
    const link = document.createElement("a");
    link.href = href;
    const name = document.createElement("span");
    name.dir = "auto";
    name.textContent = value === "" ? "(empty)" : value;
    const number = document.createElement("span");
    number.className = "n";
    number.textContent = count.toLocaleString("en");
    link.append(name, number);
    link.style.setProperty("--share", `${(100 * count) / most}%`);
    const item = document.createElement("li");
    item.append(link);
    list.append(item);
  }
  if (facet.num_values > facet.values.length) {
    const item = document.createElement("li");
    item.className = "faint";
    item.textContent = `and ${(facet.num_values - facet.values.length).toLocaleString("en")} other values`;
    list.append(item);
  }
  box.append(title, list);
  return box;
}

async function showFacets() {
  const state = facets.querySelector("[role=status]");
  const answer = await fetch(facets.dataset.source).catch(() => null);
  if (!answer || !answer.ok) {
    state.textContent = "They could not be counted. Give more conditions, and try again.";
    return;
  }
  const found = await answer.json();
  const isWhole = found.share >= 1;
  const percent = Math.min(99.9, found.share * 100).toFixed(1);
  const part = isWhole ? "" : ` among the ${percent} % that were scanned`;
  state.textContent = found.facets.length ? (isWhole ? "" : `Counted${part}.`) : `No fields${part}.`;
  facets.append(...found.facets.map(facetOf));
  facets.dataset.shown = "1";
}

if (facets) facets.addEventListener("toggle", () => facets.open && !facets.dataset.shown && showFacets());
