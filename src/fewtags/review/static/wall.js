// A wall of one class: all are right, except what is clicked; Enter confirms. A tour shows one class after the other.
"use strict";

const content = readJson("content");
const CYCLE = { yes: "no", no: "unsure", unsure: "yes" };
const INVERTED = { no: "yes", yes: "unsure", unsure: "no" };
const SMALLEST = 100, LARGEST = 256; // pixels of a cell whose size makes the wall fit the screen; crops have 256
const RUN = document.title.slice(document.title.lastIndexOf(" · "));
const byMouse = matchMedia("(pointer: fine)").matches;
let cells = content.questions;
let inverted = expectsFew();
let busy = false;
let work = Promise.resolve();
let loadedAhead = false;
let ahead = []; // pictures of the next wall, which load while a person looks at this one
let lastProgress = readJson("progress-data");
const usual = () => (inverted ? "no" : "yes");
const buttons = () => [...byId("wall").querySelectorAll("button")];

// Where the model expects fewer than half, the person clicks what is right.
function expectsFew() {
  return cells.length > 0 && cells.reduce((sum, item) => sum + (item.probability ?? 0.5), 0) / cells.length < 0.5;
}

function crop(item) {
  return `/crop/${item.photo}${item.box ? `?box=${item.box.map((v) => v.toFixed(3)).join(",")}` : ""}`;
}

function show() {
  byId("main").hidden = cells.length === 0;
  byId("empty").hidden = cells.length > 0;
  if (!cells.length) { byId("wall").replaceChildren(); showEmpty(); return; }
  title();
  byId("wall").replaceChildren(...cells.map((item, place) => {
    item.answer = item.said || item.mine || usual();
    item.seen = false;
    const line = element("li"), button = element("button", undefined, "cell"), picture = new Image();
    button.type = "button";
    picture.src = crop(item);
    picture.alt = item.image;
    picture.addEventListener("load", noteSeen);
    picture.addEventListener("error", () => {
      button.classList.add("unreadable");
      item.answer = "unsure";
      mark(button, item);
      noteSeen();
    });
    button.append(picture, element("span", "", "verdict"));
    button.title = `${item.image}${item.probability === null ? "" : `, the model says ${Math.round(100 * item.probability)} %`}`;
    button.addEventListener("click", () => {
      item.answer = (inverted ? INVERTED : CYCLE)[item.answer];
      mark(button, item);
    });
    button.dataset.place = place;
    line.append(button);
    mark(button, item);
    return line;
  }));
  if (byMouse) byId("wall").querySelector("button").focus({ preventScroll: true });
  scrollTo(0, 0);
  loadedAhead = false;
  fit();
  noteSeen();
  watch.start();
}

// The largest cells with which all of them fit the screen.
function fit() {
  const wall = byId("wall"), gap = 10;
  wall.style.setProperty("--bar", `${document.querySelector(".wall-bar").offsetHeight}px`);
  const across = wall.clientWidth, down = innerHeight - (wall.getBoundingClientRect().top + scrollY) - gap;
  wall.classList.remove("fitted");
  for (let columns = Math.max(3, Math.ceil((across + gap) / (LARGEST + gap))); (across + gap) / columns - gap >= SMALLEST; columns += 1) {
    const side = (across + gap) / columns;
    if (Math.ceil(cells.length / columns) * side > down) continue;
    wall.style.setProperty("--columns", columns);
    wall.classList.add("fitted");
    return;
  }
}

// A cell is seen when its picture is there, and at least half of it was on the screen. Only seen cells are confirmed.
function noteSeen() {
  const top = document.querySelector(".wall-bar").getBoundingClientRect().bottom;
  for (const button of buttons()) {
    const item = cells[Number(button.dataset.place)], box = button.getBoundingClientRect(), middle = (box.top + box.bottom) / 2;
    if (button.firstChild.complete && middle >= Math.max(top, 0) && middle <= innerHeight) item.seen = true;
  }
  tally();
  if (!loadedAhead && cells.every((item) => item.seen)) { loadedAhead = true; loadAhead(); }
}

function mark(button, item) {
  button.dataset.answer = item.answer;
  button.querySelector(".verdict").textContent = item.answer;
  button.setAttribute("aria-label", `${item.image}: ${item.answer}`);
  tally();
}

function tally() {
  const counts = { yes: 0, no: 0, unsure: 0 }, unseen = cells.filter((item) => !item.seen).length;
  for (const item of cells) counts[item.answer] += 1;
  byId("tally").textContent = [`${counts.yes} yes`, `${counts.no} no`, counts.unsure ? `${counts.unsure} unsure` : "",
    unseen ? `${unseen} not seen yet` : ""].filter(Boolean).join(", ");
  byId("confirm").querySelector("span").textContent = unseen ? "Show the rest" : "Confirm";
}

function showEmpty() {
  const waiting = !lastProgress.ready && !lastProgress.questions;
  byId("empty-title").textContent = waiting ? "The first questions come in a moment"
    : `No open question${content.name === null ? "" : ` about ${content.name}`}`;
  byId("empty-text").textContent = lastProgress.error || (waiting ? `The model ${lastProgress.doing}.`
    : "Everything is answered, skipped, or shown to somebody else right now.");
}

function query(now) {
  const own = content.tour ? "" : `class=${encodeURIComponent(content.class)}&`;
  return `/api/wall?${own}${now ? "" : `after=${encodeURIComponent(content.class)}`}`;
}

async function next() {
  busy = true;
  for (;;) {
    try {
      showWall(await get(query(true)));
      break;
    } catch { await new Promise((go) => setTimeout(go, 500)); }
  }
  busy = false;
}

function showWall(wall) {
  if (wall.class !== null) { content.class = wall.class; content.name = wall.name; }
  cells = wall.questions;
  inverted = expectsFew();
  show();
}

async function loadAhead() {
  try {
    const wall = await get(query(false));
    ahead = wall.questions.map((item) => { const picture = new Image(); picture.src = crop(item); return picture; });
  } catch { /* the pictures load when they are shown */ }
}

// One thing after the other: a key that is pressed while answers are sent is not lost.
function later(action) { work = work.then(action).catch(() => {}); }

function confirm() {
  if (busy || !cells.length) return; // the next wall is not there yet
  if (cells.some((item) => !item.seen)) { showUnseen(); return; }
  busy = true;
  const seconds = Math.round((100 * watch.seconds()) / cells.length) / 100;
  const answers = cells.map((item) => ({
    photo: item.photo, class: item.class, answer: item.answer, seconds,
    shown: {
      page: "wall", cells: cells.length, inverted, probability: item.probability, rank: item.rank, reason: item.reason,
      box: item.box, model: lastProgress.model,
    },
  }));
  later(async () => {
    try { await act("/api/answer", { answers }); } catch { busy = false; return; }
    await next();
  });
}

// What is taken back is shown as it was answered, whatever class it is about.
async function undo() {
  let reply;
  busy = true;
  try { reply = await act("/api/undo", {}); } catch { return; } finally { busy = false; }
  if (reply.step === null) { showSaved("saved", "nothing to undo"); return; }
  if (!reply.undone.length) return; // a note or a class
  cells = reply.undone;
  content.class = cells[0].class;
  content.name = cells[0].name;
  inverted = cells.filter((item) => item.said === "no").length > cells.length / 2;
  show();
}

function showUnseen() {
  const below = (button) => button.getBoundingClientRect().bottom > innerHeight;
  const unseen = buttons().filter((button) => !cells[Number(button.dataset.place)].seen);
  (unseen.find(below) || unseen[0]).scrollIntoView({ block: unseen.some(below) ? "start" : "nearest" });
  noteSeen();
}

function skip() {
  if (busy || !cells.length) return;
  busy = true;
  later(async () => {
    try { await act("/api/skip", { cells: cells.map((item) => ({ photo: item.photo, class: item.class })) }); } catch { /* shown */ }
    await next();
  });
}

function invert() {
  inverted = !inverted;
  for (const item of cells) item.mine = item.said = null;
  show();
}

function title() {
  byId("invert").setAttribute("aria-pressed", String(inverted));
  byId("wall").classList.toggle("inverted", inverted);
  document.title = content.name + RUN;
  byId("single").href = `/photo?class=${encodeURIComponent(content.class)}`;
  const name = element("strong", content.name), what = inverted ? "right" : "wrong";
  document.querySelector("h1").replaceChildren(inverted ? "Which of these show " : "Which of these do not show ", name, "?");
  byId("hint").textContent = byMouse ? `Click what is ${what}; click again if you are unsure. Enter confirms all.`
    : `Tap what is ${what}; tap again if you are unsure. Confirm answers all.`;
}

function look() {
  const button = document.activeElement?.closest(".cell") || byId("wall").querySelector("button");
  const item = button && cells[Number(button.dataset.place)];
  if (!item) return;
  byId("look-photo").src = `/picture/${item.photo}?side=1600`;
  byId("look-heat").hidden = !item.heat;
  if (item.heat) byId("look-heat").src = `/heat/${item.photo}?class=${encodeURIComponent(item.class)}`;
  byId("look-name").textContent = item.image;
  byId("look-dialog").showModal();
}

function move(key) {
  const all = buttons(), from = document.activeElement?.closest(".cell");
  if (!from) { all[0]?.focus(); return; }
  const place = all.indexOf(from);
  let columns = all.findIndex((button) => button.offsetTop > all[0].offsetTop);
  if (columns < 0) columns = all.length;
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[key];
  all[place + step]?.focus();
}

document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]") || isTyping(event) || !isPlain(event)) return;
  const inWall = document.activeElement === document.body || document.activeElement?.closest("#wall");
  if (event.key.startsWith("Arrow")) { event.preventDefault(); move(event.key); return; }
  const keys = { z: () => later(undo), Backspace: () => later(undo), f: skip, i: invert, o: look };
  const known = event.key === "Enter" ? (inWall && confirm) : keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (!known) return;
  event.preventDefault();
  if (!event.repeat) known(); // a key that is held down would confirm walls that nobody has looked at
});

document.addEventListener("progress", (event) => { lastProgress = event.detail; });

async function poll() {
  try {
    showProgress((await get("/api/status")).progress);
    if (!cells.length && !busy) await next();
  } catch { /* the next poll tries again */ }
  setTimeout(poll, cells.length ? 5000 : 1000);
}

document.addEventListener("DOMContentLoaded", () => {
  for (const [id, action] of Object.entries({ confirm, invert, undo: () => later(undo), skip, look })) byId(id).addEventListener("click", action);
  addEventListener("scroll", noteSeen, { passive: true });
  addEventListener("resize", () => { if (cells.length) { fit(); noteSeen(); } });
  show();
  setTimeout(poll, cells.length ? 5000 : 500);
});
