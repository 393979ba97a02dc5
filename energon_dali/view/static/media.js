// Enlarges images and says their pixels; seeks in videos and audio where a strip of them is pressed.
"use strict";

// --- strips ---

function clock(seconds) {
  const whole = Math.floor(seconds);
  const minutes = `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
  return `${minutes}.${String(Math.floor((seconds - whole) * 100)).padStart(2, "0")}`;
}

function makeSeekable(strip) {
  const player = byId(strip.dataset.seeks);
  if (!player) return;
  const cells = Number(strip.dataset.cells || 0);
  const head = document.createElement("span");
  head.className = "playhead";
  const label = document.createElement("span");
  label.className = "seek-time";
  label.hidden = true;
  strip.append(head, label);
  strip.tabIndex = 0;
  strip.setAttribute("role", "slider");
  strip.setAttribute("aria-label", `Position, by ${cells ? "frames" : "sound"}`);

  // The first and the last frame are those of the beginning and the end: a frame is in the middle of its cell.
  const length = () => (Number.isFinite(player.duration) ? player.duration : 0);
  const clamp = (share) => Math.min(1, Math.max(0, share));
  const timeAt = (share) => clamp(cells ? (share * cells - 0.5) / (cells - 1) : share) * length();
  const shareOf = (time) => (cells ? ((time / (length() || 1)) * (cells - 1) + 0.5) / cells : time / (length() || 1));
  const shareAt = (event) => {
    const box = strip.getBoundingClientRect();
    return clamp((event.clientX - box.left) / box.width);
  };
  const seek = (time) => {
    player.currentTime = Math.min(length(), Math.max(0, time));
    show();
  };
  const show = () => {
    const time = player.currentTime;
    head.hidden = !length();
    head.style.left = `${100 * clamp(shareOf(time))}%`;
    strip.setAttribute("aria-valuemin", "0");
    strip.setAttribute("aria-valuemax", length().toFixed(2));
    strip.setAttribute("aria-valuenow", time.toFixed(2));
    strip.setAttribute("aria-valuetext", `${clock(time)} of ${clock(length())}`);
  };
  const hint = (event) => {
    const share = shareAt(event);
    label.hidden = false;
    label.style.left = `${100 * share}%`;
    label.textContent = clock(timeAt(share));
  };
  strip.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    event.preventDefault();
    strip.focus({ preventScroll: true });
    strip.setPointerCapture(event.pointerId);
    seek(timeAt(shareAt(event)));
  });
  strip.addEventListener("pointermove", (event) => {
    hint(event);
    if (event.buttons & 1) seek(timeAt(shareAt(event)));
  });
  strip.addEventListener("pointerleave", () => (label.hidden = true));
  strip.addEventListener("keydown", (event) => {
    const step = length() / 40;
    const wanted = {
      ArrowLeft: player.currentTime - step,
      ArrowRight: player.currentTime + step,
      Home: 0,
      End: length(),
    }[event.key];
    if (event.key === " ") {
      if (player.paused) player.play();
      else player.pause();
    } else if (wanted === undefined) return;
    else seek(wanted);
    event.preventDefault();
    event.stopPropagation();
  });
  for (const name of ["timeupdate", "seeked", "loadedmetadata", "durationchange"]) player.addEventListener(name, show);
  show();
}
for (const strip of document.querySelectorAll(".seek")) makeSeekable(strip);
for (const image of document.querySelectorAll("img[data-optional]")) {
  const hide = () => (image.closest(".seek").hidden = true);
  image.addEventListener("error", hide);
  if (image.complete && !image.naturalWidth) hide(); // a video without sound has no waveform
}

// --- enlarged images ---

const lightbox = {};

function buildLightbox() {
  const dialog = document.createElement("dialog");
  dialog.id = "lightbox";
  dialog.setAttribute("aria-label", "The image, enlarged");
  const bar = document.createElement("div");
  bar.className = "lightbox-bar";
  const facts = document.createElement("output");
  facts.id = "pixel";
  facts.setAttribute("aria-live", "off");
  bar.append(facts);
  const actions = [
    ["Previous image", "←", () => step(-1)],
    ["Next image", "→", () => step(1)],
    ["Smaller", "−", () => zoom(1 / 1.5)],
    ["Larger", "+", () => zoom(1.5)],
    ["A pixel per pixel", "1:1", () => zoom(1 / lightbox.scale)],
    ["All of it", "Fit", fit],
    ["Close", "×", () => dialog.close()],
  ];
  for (const [name, text, action] of actions) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = text;
    button.title = name;
    button.setAttribute("aria-label", name);
    button.addEventListener("click", action);
    bar.append(button);
  }
  const view = document.createElement("div");
  view.className = "lightbox-view";
  view.tabIndex = 0;
  const image = document.createElement("img");
  image.alt = "";
  view.append(image);
  dialog.append(bar, view);
  document.body.append(dialog);
  Object.assign(lightbox, { dialog, view, image, facts, scale: 1, x: 0, y: 0, timer: 0 });

  view.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const box = view.getBoundingClientRect();
      zoom(Math.exp(-event.deltaY / 400), event.clientX - box.left, event.clientY - box.top);
    },
    { passive: false },
  );
  view.addEventListener("pointerdown", (event) => {
    view.setPointerCapture(event.pointerId);
    view.focus({ preventScroll: true });
  });
  view.addEventListener("pointermove", (event) => {
    if (event.buttons & 1) {
      lightbox.x += event.movementX;
      lightbox.y += event.movementY;
      place();
    }
    const box = view.getBoundingClientRect();
    sayPixel(event.clientX - box.left, event.clientY - box.top);
  });
  dialog.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [60, 0], ArrowRight: [-60, 0], ArrowUp: [0, 60], ArrowDown: [0, -60] };
    const keys = { "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), 0: fit };
    if (moves[event.key]) {
      lightbox.x += moves[event.key][0];
      lightbox.y += moves[event.key][1];
      place();
      sayPixel(view.clientWidth / 2, view.clientHeight / 2);
    } else if (keys[event.key]) keys[event.key]();
    else if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
    else return;
    event.preventDefault();
  });
  dialog.addEventListener("close", () => lightbox.from?.closest("a, [tabindex]")?.focus({ preventScroll: true }));
  addEventListener("resize", () => dialog.open && fit());
}

function place() {
  const { image, scale, x, y } = lightbox;
  image.style.transform = `translate(${x}px, ${y}px) scale(${scale})`;
  image.classList.toggle("near", scale >= 2);
}

function fit() {
  const { view, image } = lightbox;
  const [width, height] = [image.naturalWidth || 1, image.naturalHeight || 1];
  lightbox.scale = Math.min(view.clientWidth / width, view.clientHeight / height, 32);
  lightbox.x = (view.clientWidth - width * lightbox.scale) / 2;
  lightbox.y = (view.clientHeight - height * lightbox.scale) / 2;
  place();
}

function zoom(factor, x = lightbox.view.clientWidth / 2, y = lightbox.view.clientHeight / 2) {
  const scale = Math.min(128, Math.max(0.02, lightbox.scale * factor));
  const change = scale / lightbox.scale;
  lightbox.x = x - (x - lightbox.x) * change;
  lightbox.y = y - (y - lightbox.y) * change;
  lightbox.scale = scale;
  place();
  sayPixel(x, y);
}

function say(place, values, colour) {
  const swatch = document.createElement("span");
  swatch.className = "swatch";
  if (colour) swatch.style.background = colour;
  lightbox.facts.replaceChildren(swatch, `${place}: ${values}`);
}

// The values are those of the file, which the server reads; of what an encoder made, those of the picture.
function sayPixel(x, y) {
  const { image, from } = lightbox;
  const column = Math.floor((x - lightbox.x) / lightbox.scale);
  const row = Math.floor((y - lightbox.y) / lightbox.scale);
  clearTimeout(lightbox.timer);
  if (column < 0 || row < 0 || column >= image.naturalWidth || row >= image.naturalHeight) {
    lightbox.facts.textContent = `${image.naturalWidth} × ${image.naturalHeight}`;
    return;
  }
  const canvas = new OffscreenCanvas(1, 1);
  const context = canvas.getContext("2d");
  context.drawImage(image, -column, -row);
  const [red, green, blue, alpha] = context.getImageData(0, 0, 1, 1).data;
  const colour = `rgb(${red} ${green} ${blue} / ${alpha / 255})`;
  if (!from.dataset.pixel) {
    say(`x ${column}, y ${row}`, `red ${red}, green ${green}, blue ${blue} of the picture`, colour);
    return;
  }
  const asked = `${from.dataset.pixel}?x=${(column + 0.5) / image.naturalWidth}&y=${(row + 0.5) / image.naturalHeight}`;
  lightbox.asked = asked;
  lightbox.timer = setTimeout(async () => {
    const answer = await fetch(asked).catch(() => null);
    const found = answer && (await answer.json().catch(() => null));
    if (!found || lightbox.asked !== asked || lightbox.from !== from) return;
    const values = found.error || `${found.mode} ${found.values.join(", ")}`;
    const more = found.color ? ` (red ${found.color[0]}, green ${found.color[1]}, blue ${found.color[2]})` : "";
    say(`x ${found.x ?? column}, y ${found.y ?? row}`, `${values}${more}`, colour);
  }, 40);
}

function openImage(from) {
  if (!lightbox.dialog) buildLightbox();
  const { dialog, image, facts } = lightbox;
  lightbox.from = from;
  facts.textContent = "Loading …";
  image.onload = () => {
    image.width = image.naturalWidth;
    image.height = image.naturalHeight;
    facts.textContent = `${image.naturalWidth} × ${image.naturalHeight}`;
    fit();
    dialog.dataset.shown = from.currentSrc;
  };
  image.removeAttribute("width");
  image.removeAttribute("height");
  image.src = from.currentSrc || from.src;
  if (!dialog.open) dialog.showModal();
  lightbox.view.focus();
}

function step(by) {
  const images = [...document.querySelectorAll("img[data-zoom]")];
  const next = images[images.indexOf(lightbox.from) + by];
  if (next) openImage(next);
}

for (const image of document.querySelectorAll("img[data-zoom]")) {
  const link = image.closest("a");
  if (!link) {
    image.tabIndex = 0;
    image.setAttribute("role", "button");
    image.addEventListener("keydown", (event) => event.key === "Enter" && openImage(image));
  }
  (link || image).addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    openImage(image);
  });
}
