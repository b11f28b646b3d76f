// One photo at a time: y, n, u, back, forward, undo, heatmap, zoom, points and boxes. cursor.js has those by keyboard.
"use strict";

const content = readJson("content");
const AHEAD = 4;
const key = (item) => `${item.photo} ${item.class}`;
const items = [...content.history, ...(content.one ? [content.one] : []), ...content.questions];
let at = content.history.length;
let asking = null;
let ended = false;
let heatOn = false;
let zoom = { scale: 1, x: 0, y: 0 };
const scope = `${content.class === null ? "" : `class=${encodeURIComponent(content.class)}&`}${content.labels ? "labels=true&" : ""}`;

const current = () => items[at];
const picture = (item, side = 1600) => `/picture/${item.photo}?side=${side}`;

function show() {
  endCursor();
  const item = current();
  byId("main").hidden = !item;
  byId("empty").hidden = Boolean(item);
  if (!item) { showEmpty(); return; }
  resetZoom();
  byId("broken").hidden = true;
  byId("question").replaceChildren("Does this photo show ", element("strong", item.name), "?");
  const sure = item.probability === null ? "" : `The model says ${Math.round(100 * item.probability)} %`;
  byId("reason").textContent = [sure, item.reason].filter(Boolean).join("; ");
  byId("known").textContent = item.known.length ? `Labels so far: ${item.known.join(", ")}` : "";
  showLabel(item);
  showSaid(item);
  const photo = byId("photo");
  if (photo.getAttribute("src") !== picture(item)) {
    loading(true); // else the photo before would stay below the next question
    photo.src = picture(item);
  }
  photo.alt = `Photo ${item.image}`;
  showHeat();
  showMarks();
  byId("note-shown").textContent = item.note ? `Note: ${item.note}` : "";
  byId("back").disabled = at === 0;
  watch.start();
  for (const next of items.slice(at + 1, at + 1 + AHEAD)) new Image().src = picture(next);
  if (items.length - at <= AHEAD) more();
}

function loading(on) {
  byId("frame").classList.toggle("loading", on);
  byId("stage").setAttribute("aria-busy", String(on));
}
const isLoading = () => byId("frame").classList.contains("loading");

// What the files say about this cell. Yes and no are about the photo, whatever the label is.
function showLabel(item) {
  const place = byId("label");
  place.hidden = item.label === null;
  if (item.label === null) return;
  place.replaceChildren("Your files say: ", element("strong", item.label === "positive" ? item.name : `no ${item.name}`),
    item.label === "positive" ? ". No overrules this label." : ". Yes overrules this label.");
}

function showSaid(item) {
  const others = Object.entries(item.others).map(([who, answer]) => `${who}: ${answer}`);
  const parts = [item.mine ? `Your answer: ${item.mine}` : "", others.length ? `Others: ${others.join(", ")}` : ""];
  byId("said").textContent = parts.filter(Boolean).join(" · ");
  for (const name of ["yes", "no", "unsure"]) byId(name).setAttribute("aria-pressed", String(item.mine === name));
  byId("forward").querySelector("span").textContent = item.mine ? "Forward" : "Skip";
}

function showEmpty() {
  const title = byId("empty-title"), text = byId("empty-text");
  if (asking) {
    title.textContent = "One moment…";
    text.textContent = "";
  } else if (lastProgress.error) {
    title.textContent = "There are no questions";
    text.textContent = lastProgress.error;
  } else if (!lastProgress.ready && !lastProgress.questions && !lastProgress.labels) {
    const count = lastProgress.total ? `: ${lastProgress.done.toLocaleString("en")} of ${lastProgress.total.toLocaleString("en")}` : "";
    title.textContent = "The first questions come in a moment";
    text.textContent = `The model ${lastProgress.doing}${count}.`;
  } else if (content.labels) {
    title.textContent = "No label to check";
    text.textContent = "Every label that contradicts the model is checked, skipped, or shown to somebody else right now.";
  } else {
    title.textContent = "No open question here";
    text.textContent = "Everything is answered, skipped, or shown to somebody else right now.";
  }
}

async function more() {
  if (asking || ended) return;
  asking = get(`/api/next?${scope}count=${2 * AHEAD + 4}`);
  const empty = !current();
  try {
    const known = new Set(items.slice(Math.max(0, at)).map(key));
    const found = (await asking).questions.filter((item) => !known.has(key(item)));
    items.push(...found);
    ended = found.length === 0;
  } catch {
    setTimeout(more, 1000);
  }
  asking = null;
  if (empty) show();
}

// --- answers

function answer(word) {
  const item = current();
  if (!item || !byId("empty").hidden || isLoading()) return; // nobody has seen it yet
  item.mine = word;
  const one = { photo: item.photo, class: item.class, answer: word, seconds: watch.seconds(), shown: shown(item) };
  act("/api/answer", { answers: [one] }).catch(() => {});
  forward();
}

function shown(item) {
  return {
    page: content.labels ? "labels" : "photo", label: item.label, probability: item.probability, rank: item.rank, reason: item.reason, box: item.box,
    heatmap: heatOn, zoom: Math.round(zoom.scale * 100) / 100, model: lastProgress.model,
  };
}

function addRegion(corners) {
  const item = current();
  item.mine = "yes";
  item.regions.push(corners);
  const one = { photo: item.photo, class: item.class, answer: "yes", seconds: watch.seconds(), shown: shown(item) };
  watch.start();
  act("/api/answer", { answers: [one], regions: [corners] }).catch(() => {});
  showSaid(item);
  showMarks();
}

function forward() {
  const item = current();
  if (!item) return;
  if (!item.mine) act("/api/skip", { cells: [{ photo: item.photo, class: item.class }] }).catch(() => {});
  at += 1;
  show();
}

function back() {
  if (at === 0) return;
  at -= 1;
  show();
}

async function undo() {
  let reply;
  try { reply = await act("/api/undo", {}); } catch { return; }
  if (reply.step === null) { showSaved("saved", "nothing to undo"); return; }
  if (reply.undone.length > 1) { // of a wall; they are asked again
    showSaved("saved", `took back ${reply.undone.length} answers about ${reply.undone[0].name}`);
    ended = false;
    if (!current()) { await more(); show(); }
    return;
  }
  const [item] = reply.undone;
  const place = items.findIndex((other) => key(other) === key(item));
  if (place >= 0) { items[place] = item; at = place; } else { items.splice(at, 0, item); }
  ended = false;
  show();
}

// --- heatmap, zoom, marks

function showHeat() {
  const item = current(), heat = byId("heat");
  heat.hidden = !heatOn || !item.heat;
  if (!heat.hidden) heat.src = `/heat/${item.photo}?class=${encodeURIComponent(item.class)}`;
  byId("heatmap").setAttribute("aria-pressed", String(heatOn));
  byId("heatmap").disabled = !item.heat;
}

function showMarks() {
  const item = current(), place = byId("marks");
  place.replaceChildren();
  const put = (box, kind) => {
    const mark = element("div", undefined, kind);
    const [x0, y0, x1, y1] = box.map((v) => 100 * v);
    Object.assign(mark.style, { left: `${x0}%`, top: `${y0}%`, width: `${x1 - x0}%`, height: `${y1 - y0}%` });
    place.append(mark);
  };
  const area = item.box ? (item.box[2] - item.box[0]) * (item.box[3] - item.box[1]) : 1;
  if (area < 0.8) put(item.box, "evidence"); // else the model sees it everywhere, and a frame says nothing
  for (const box of item.regions) put(box, box[0] === box[2] && box[1] === box[3] ? "point" : "box");
}

// The photo fills the stage: small ones are enlarged, up to eight times.
function fit() {
  const stage = byId("stage"), photo = byId("photo"), frame = byId("frame");
  if (!photo.naturalWidth) return;
  const scale = Math.min(stage.clientWidth / photo.naturalWidth, stage.clientHeight / photo.naturalHeight, 8);
  frame.style.width = `${Math.max(1, photo.naturalWidth * scale)}px`;
  frame.style.height = `${Math.max(1, photo.naturalHeight * scale)}px`;
}

function applyZoom() {
  const stage = byId("stage"), frame = byId("frame");
  const limit = (size, room) => Math.max(0, (size * zoom.scale - room) / 2 + (zoom.scale > 1 ? 40 : 0));
  const across = limit(frame.offsetWidth, stage.clientWidth), down = limit(frame.offsetHeight, stage.clientHeight);
  zoom.x = Math.min(across, Math.max(-across, zoom.x));
  zoom.y = Math.min(down, Math.max(-down, zoom.y));
  frame.style.transform = `translate(${zoom.x}px, ${zoom.y}px) scale(${zoom.scale})`;
  frame.style.setProperty("--zoom", zoom.scale);
  showCursor();
}

function resetZoom() { zoom = { scale: 1, x: 0, y: 0 }; applyZoom(); }

function zoomBy(factor, x, y) {
  const stage = byId("stage").getBoundingClientRect();
  const before = zoom.scale, after = Math.min(20, Math.max(1, before * factor));
  const px = x === undefined ? 0 : x - stage.left - stage.width / 2, py = y === undefined ? 0 : y - stage.top - stage.height / 2;
  zoom.x = px - (px - zoom.x) * (after / before);
  zoom.y = py - (py - zoom.y) * (after / before);
  zoom.scale = after;
  applyZoom();
}

function position(event) {
  const frame = byId("frame").getBoundingClientRect();
  const inside = (v) => Math.min(1, Math.max(0, v));
  return [inside((event.clientX - frame.left) / frame.width), inside((event.clientY - frame.top) / frame.height)];
}

let drag = null;
const marking = () => byId("mark").getAttribute("aria-pressed") === "true";

function beginDrag(event) {
  if (event.button !== 0 || (event.pointerType === "touch" && !marking())) return;
  event.preventDefault();
  byId("frame").setPointerCapture(event.pointerId);
  drag = { from: position(event), x: event.clientX, y: event.clientY, mark: element("div", undefined, "box drawing") };
  byId("marks").append(drag.mark);
}

function corners(event) {
  const [x, y] = position(event), [u, v] = drag.from;
  const across = Math.abs(event.clientX - drag.x), down = Math.abs(event.clientY - drag.y);
  if (Math.hypot(across, down) < 6 || Math.min(across, down) < 1) return [u, v, u, v]; // a line has no area
  return [Math.min(x, u), Math.min(y, v), Math.max(x, u), Math.max(y, v)];
}

function moveDrag(event) {
  if (!drag) return;
  const [x0, y0, x1, y1] = corners(event).map((v) => 100 * v);
  Object.assign(drag.mark.style, { left: `${x0}%`, top: `${y0}%`, width: `${x1 - x0}%`, height: `${y1 - y0}%` });
}

function endDrag(event) {
  if (!drag) return;
  const found = corners(event).map((v) => Math.round(v * 1e5) / 1e5);
  drag.mark.remove();
  drag = null;
  if (event.type === "pointerup") addRegion(found);
}

// --- another class, note, help

let classes = content.classes;

function listClasses() {
  const word = byId("class-search").value.trim(), lower = word.toLowerCase(), list = byId("class-list");
  const found = classes.filter((row) => row.name.toLowerCase().includes(lower));
  found.sort((a, b) => b.name.toLowerCase().startsWith(lower) - a.name.toLowerCase().startsWith(lower));
  list.replaceChildren(...found.slice(0, 12).map((row) => {
    const button = element("button", row.name);
    button.type = "button";
    button.addEventListener("click", () => takeClass(row));
    const line = element("li");
    line.append(button);
    return line;
  }));
  if (word && !classes.some((row) => row.name.toLowerCase() === lower)) {
    const button = element("button", `New class “${word}”`, "new");
    button.type = "button";
    button.addEventListener("click", () => makeClass(word));
    const line = element("li");
    line.append(button);
    list.append(line);
  }
}

async function makeClass(word) {
  let made;
  try { made = await act("/api/class", { text: word }); } catch { return; }
  const row = { id: made.class, name: made.name };
  if (!classes.some((other) => other.id === row.id)) classes = [...classes, row];
  takeClass(row);
}

// The photo shows another class: it becomes the question in front of the current one, answered with yes.
async function takeClass(row) {
  byId("class-dialog").close();
  const base = current();
  const item = await get(`/api/about/${base.photo}?class=${encodeURIComponent(row.id)}`);
  item.mine = "yes";
  const one = { photo: item.photo, class: item.class, answer: "yes", seconds: watch.seconds(), shown: { ...shown(item), asked: false } };
  act("/api/answer", { answers: [one] }).catch(() => {});
  items.splice(at, 0, item);
  show();
}

function open(name, focus) {
  if (!current()) return;
  byId(name).showModal();
  byId(focus)?.focus();
}

function openClasses() { byId("class-search").value = ""; listClasses(); open("class-dialog", "class-search"); }
function openNote() { byId("note-text").value = current()?.note || ""; open("note-dialog", "note-text"); }

function saveNote() {
  const item = current(), text = byId("note-text").value.trim();
  for (const other of items) if (other.photo === item.photo) other.note = text;
  byId("note-shown").textContent = text ? `Note: ${text}` : "";
  act("/api/note", { photo: item.photo, text }).catch(() => {});
}

// --- keys

const KEYS = {
  y: () => answer("yes"), n: () => answer("no"), u: () => answer("unsure"),
  ArrowRight: forward, f: forward, ArrowLeft: back, b: back,
  z: undo, Backspace: undo,
  h: () => { heatOn = !heatOn; if (current()) showHeat(); },
  "+": () => zoomBy(1.5), "=": () => zoomBy(1.5), "-": () => zoomBy(1 / 1.5), 0: resetZoom,
  m: toggleCursor, t: openClasses, c: openNote, "?": () => open("help-dialog"),
};
const REPEATED = new Set(["ArrowLeft", "b", "+", "=", "-"]); // what a key that is held down may do again

document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]") || isTyping(event)) return;
  if (event.key.toLowerCase() === "z" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    if (!event.repeat) undo();
    return;
  }
  if (!isPlain(event)) return;
  if (cursorKey(event)) { event.preventDefault(); return; }
  if (event.shiftKey && event.key.startsWith("Arrow")) {
    const step = 80, [x, y] = { ArrowLeft: [step, 0], ArrowRight: [-step, 0], ArrowUp: [0, step], ArrowDown: [0, -step] }[event.key];
    zoom.x += x; zoom.y += y; applyZoom();
    event.preventDefault();
    return;
  }
  const known = KEYS[event.key] || KEYS[event.key.toLowerCase()];
  if (!known) return;
  event.preventDefault();
  if (!event.repeat || REPEATED.has(event.key)) known();
});

let lastProgress = readJson("progress-data");
document.addEventListener("progress", (event) => { lastProgress = event.detail; });

async function poll() {
  try {
    const status = await get("/api/status");
    showProgress(status.progress);
    if (status.new_model) ended = false;
    if (!current()) { ended = false; await more(); show(); }
  } catch { /* the next poll tries again */ }
  setTimeout(poll, current() ? 5000 : 1000);
}

document.addEventListener("DOMContentLoaded", () => {
  for (const name of ["yes", "no", "unsure"]) byId(name).addEventListener("click", () => answer(name));
  const buttons = {
    back, forward, undo, heatmap: KEYS.h, add: openClasses, "note-button": openNote,
    "cursor-button": toggleCursor,
    "help-button": () => open("help-dialog"),
  };
  for (const [id, action] of Object.entries(buttons)) byId(id).addEventListener("click", action);
  byId("mark").addEventListener("click", () => {
    byId("mark").setAttribute("aria-pressed", String(!marking()));
    byId("stage").classList.toggle("marking", marking());
  });
  const frame = byId("frame");
  frame.addEventListener("pointerdown", beginDrag);
  frame.addEventListener("pointermove", moveDrag);
  frame.addEventListener("pointerup", endDrag);
  frame.addEventListener("pointercancel", endDrag);
  byId("stage").addEventListener("wheel", (event) => {
    event.preventDefault();
    zoomBy(event.deltaY < 0 ? 1.2 : 1 / 1.2, event.clientX, event.clientY);
  }, { passive: false });
  byId("photo").addEventListener("load", () => { fit(); loading(false); });
  byId("photo").addEventListener("error", () => { byId("broken").hidden = false; loading(false); });
  addEventListener("resize", () => { fit(); applyZoom(); });
  byId("class-search").addEventListener("input", listClasses);
  byId("class-search").addEventListener("keydown", (event) => {
    if (event.key === "Enter") { event.preventDefault(); byId("class-list").querySelector("button")?.click(); }
    if (event.key === "Escape") { event.preventDefault(); byId("class-dialog").close(); } // else it empties the field first
  });
  byId("note-dialog").addEventListener("close", () => { if (byId("note-dialog").returnValue === "save") saveNote(); });
  byId("note-text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("note-dialog").close("save");
  });
  show();
  setTimeout(poll, current() ? 5000 : 500);
});
