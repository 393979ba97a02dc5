// Choosing samples without loading the page again: click, Shift and click for a range, x on the keyboard. Every button
// also works as a form.
"use strict";

(() => {
  document.documentElement.classList.add("scripted");
  const bar = document.getElementById("choose-bar");
  const buttons = () => [...document.querySelectorAll(".choose")];
  const isChosen = (button) => button.getAttribute("aria-pressed") === "true";

  function show(count) {
    const shown = document.getElementById("num-chosen");
    if (shown) shown.textContent = count.toLocaleString("en");
    for (const one of document.querySelectorAll("[data-needs]")) one.hidden = count < Number(one.dataset.needs);
  }

  function fail(text) {
    const place = document.getElementById("choose-error");
    if (place) {
      place.textContent = text;
      place.hidden = false;
    }
  }

  async function post(address, body) {
    const answer = await fetch(address, { method: "POST", headers: { accept: "application/json" }, body });
    if (answer.ok) return answer.json();
    const isJson = (answer.headers.get("content-type") || "").includes("json");
    throw new Error(isJson ? (await answer.json()).error : `The page answered ${answer.status}.`);
  }

  const positionOf = (button) => Number(button.dataset.position);
  const stem = (button) => button.getAttribute("formaction").split("?")[0];
  // Where the last click was, and in which list: a range may begin on another page.
  const anchorOf = () => {
    const stored = JSON.parse(sessionStorage.getItem("choose") || "null");
    return bar && stored && stored.list === bar.dataset.base + bar.dataset.list ? stored : null;
  };

  async function choose(button, isRange) {
    const wanted = !isChosen(button);
    const position = positionOf(button);
    const anchor = isRange ? anchorOf() : null;
    const action = anchor || wanted ? "add" : "remove";
    const begin = anchor && buttons().find((one) => one.dataset.index === anchor.index);
    let changed = [button];
    if (anchor) {
      const ends = [begin ? positionOf(begin) : anchor.position, position];
      const [first, last] = [Math.min(...ends), Math.max(...ends)];
      changed = buttons().filter((one) => positionOf(one) >= first && positionOf(one) <= last);
    }
    let address = `${stem(button)}?action=${action}&samples=${changed.map((one) => one.dataset.index)}`;
    if (anchor && !begin) {
      // Positions, which the server takes only if both pages showed the list as it is now.
      const list = bar.dataset.list ? `${bar.dataset.list}&` : "?";
      const seen = `${anchor.version},${bar.dataset.version}`;
      address = `${stem(button)}${list}action=add&from=${anchor.position}&to=${position}&seen=${seen}`;
    }
    try {
      const answer = await post(address);
      for (const one of changed) one.setAttribute("aria-pressed", String(action === "add"));
      if (bar) {
        const { base, list, version } = bar.dataset;
        const click = { list: base + list, version, index: button.dataset.index, position };
        sessionStorage.setItem("choose", JSON.stringify(click));
      }
      show(answer.chosen);
    } catch (error) {
      fail(error.message);
    }
  }

  document.addEventListener("click", (event) => {
    const button = event.target.closest(".choose");
    if (!button) return;
    event.preventDefault();
    choose(button, event.shiftKey);
  });

  document.addEventListener("keydown", (event) => {
    if (event.key.toLowerCase() !== "x" || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, select, textarea, dialog")) return;
    const item = document.activeElement.closest(".grid > li");
    const button = item ? item.querySelector(".choose") : document.querySelector(".choose.wide");
    if (button) choose(button, event.shiftKey);
  });

  const file = document.getElementById("open-file");
  if (file) {
    file.addEventListener("change", async () => {
      if (!file.files.length) return;
      const [given] = file.files;
      try {
        await post(`${bar.dataset.base}/chosen/open?name=${encodeURIComponent(given.name)}`, given);
        location.assign(`${bar.dataset.base}?chosen=1`);
      } catch (error) {
        fail(error.message);
        file.value = "";
      }
    });
  }

  for (const select of document.querySelectorAll("#sort, [data-submits]")) {
    select.addEventListener("change", () => {
      if (!select.value) select.disabled = true; // an address holds only what was given
      select.form.requestSubmit();
    });
    addEventListener("pageshow", () => showOwnChoice(select));
  }
})();
