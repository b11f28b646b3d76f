// A wall of one class: all are right, except what is clicked; Enter confirms.
"use strict";

const content = readJson("content");
const CYCLE = { yes: "no", no: "unsure", unsure: "yes" };
const INVERTED = { no: "yes", yes: "unsure", unsure: "no" };
let cells = content.questions;
// Where the model expects fewer than half, the person clicks what is right.
let inverted = cells.length > 0 && cells.reduce((sum, item) => sum + (item.probability ?? 0.5), 0) / cells.length < 0.5;
let busy = false;
let lastProgress = readJson("progress-data");
const usual = () => (inverted ? "no" : "yes");

function crop(item) {
  return `/crop/${item.photo}${item.box ? `?box=${item.box.map((v) => v.toFixed(3)).join(",")}` : ""}`;
}

function show() {
  byId("main").hidden = cells.length === 0;
  byId("empty").hidden = cells.length > 0;
  if (!cells.length) { showEmpty(); return; }
  byId("wall").replaceChildren(...cells.map((item, place) => {
    item.answer = item.mine || usual();
    const line = element("li"), button = element("button", undefined, "cell"), picture = new Image();
    button.type = "button";
    picture.src = crop(item);
    picture.alt = item.image;
    picture.addEventListener("error", () => {
      button.classList.add("unreadable");
      item.answer = "unsure";
      mark(button, item);
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
  if (matchMedia("(pointer: fine)").matches) byId("wall").querySelector("button").focus({ preventScroll: true });
  scrollTo(0, 0);
  watch.start();
}

function mark(button, item) {
  button.dataset.answer = item.answer;
  button.querySelector(".verdict").textContent = { yes: "yes", no: "no", unsure: "unsure" }[item.answer];
  button.setAttribute("aria-label", `${item.image}: ${item.answer}`);
  const counts = { yes: 0, no: 0, unsure: 0 };
  for (const other of cells) counts[other.answer] += 1;
  byId("tally").textContent = `${counts.yes} yes, ${counts.no} no${counts.unsure ? `, ${counts.unsure} unsure` : ""}`;
}

function showEmpty() {
  const waiting = !lastProgress.ready && !lastProgress.questions;
  byId("empty-title").textContent = waiting ? "The first questions come in a moment" : `No open question about ${content.name}`;
  byId("empty-text").textContent = lastProgress.error || (waiting ? `The model ${lastProgress.doing}.`
    : "Everything is answered, skipped, or shown to somebody else right now.");
}

async function next() {
  busy = true;
  while (busy) {
    try {
      const reply = await get(`/api/next?class=${encodeURIComponent(content.class)}&count=${content.count}`);
      cells = reply.questions;
      busy = false;
    } catch { await new Promise((go) => setTimeout(go, 500)); }
  }
  show();
}

async function confirm() {
  if (busy || !cells.length) return;
  busy = true;
  const seconds = Math.round((100 * watch.seconds()) / cells.length) / 100;
  const answers = cells.map((item) => ({
    photo: item.photo, class: item.class, answer: item.answer, seconds,
    shown: {
      page: "wall", cells: cells.length, inverted, probability: item.probability, rank: item.rank, reason: item.reason,
      box: item.box, model: lastProgress.model,
    },
  }));
  try { await act("/api/answer", { answers }); } catch { busy = false; return; }
  await next();
}

async function undo() {
  if (busy) return;
  busy = true;
  let reply;
  try { reply = await act("/api/undo", {}); } catch { busy = false; return; }
  busy = false;
  if (reply.step === null) { showSaved("saved", "nothing to undo"); return; }
  const own = reply.undone.filter((item) => item.class === content.class);
  if (own.length) { cells = own; show(); }
}

async function skip() {
  if (busy || !cells.length) return;
  busy = true;
  try { await act("/api/skip", { cells: cells.map((item) => ({ photo: item.photo, class: item.class })) }); } catch { /* shown */ }
  await next();
}

function invert() {
  inverted = !inverted;
  for (const item of cells) item.mine = null;
  title();
  show();
}

function title() {
  byId("invert").setAttribute("aria-pressed", String(inverted));
  const name = element("strong", content.name);
  document.querySelector("h1").replaceChildren(inverted ? "Which of these show " : "Which of these do not show ", name, "?");
  byId("hint").textContent = inverted ? "Click what is right; click again if you are unsure. Enter confirms all."
    : "Click what is wrong; click again if you are unsure. Enter confirms all.";
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
  const buttons = [...byId("wall").querySelectorAll("button")], from = document.activeElement?.closest(".cell");
  if (!from) { buttons[0]?.focus(); return; }
  const place = buttons.indexOf(from);
  let columns = buttons.findIndex((button) => button.offsetTop > buttons[0].offsetTop);
  if (columns < 0) columns = buttons.length;
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[key];
  buttons[place + step]?.focus();
}

document.addEventListener("keydown", (event) => {
  if (document.querySelector("dialog[open]") || isTyping(event) || !isPlain(event)) return;
  const inWall = document.activeElement === document.body || document.activeElement?.closest("#wall");
  if (event.key.startsWith("Arrow")) { event.preventDefault(); move(event.key); return; }
  const keys = { z: undo, Backspace: undo, f: skip, i: invert, o: look };
  const known = event.key === "Enter" ? (inWall && confirm) : keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
  if (known) { event.preventDefault(); known(); }
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
  for (const [id, action] of Object.entries({ confirm, invert, undo, skip, look })) byId(id).addEventListener("click", action);
  title();
  show();
  setTimeout(poll, cells.length ? 5000 : 500);
});
