// Points and boxes by keyboard: a cursor on the photo. It uses the photo, zoom and answers of photo.js.
"use strict";

const STEP = 0.01, LARGE_STEP = 0.1; // of the photo's sides; less if it is enlarged
const MOVES = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const EDGE = 40; // pixels that are kept free around the cursor
let cursor = null; // across and down, in 0..1, while the cursor is shown
let corner = null; // of the box that is being drawn

function placeText([x, y]) {
  const percent = (v) => (100 * v).toFixed(zoom.scale > 2 ? 1 : 0);
  return `${percent(x)} % across, ${percent(y)} % down`;
}

// Read out by screen readers, and shown.
function sayPlace(text) {
  byId("cursor-text").textContent = text;
}

function toggleCursor() {
  if (cursor) { endCursor(); return; }
  const item = current();
  if (!item || !byId("broken").hidden) return;
  const box = item.box || [0, 0, 1, 1], stage = byId("stage");
  cursor = [(box[0] + box[2]) / 2, (box[1] + box[3]) / 2];
  stage.setAttribute("role", "application"); // so that screen readers leave the arrows to the page
  stage.classList.add("pointing");
  stage.focus({ preventScroll: true });
  byId("cursor-button").setAttribute("aria-pressed", "true");
  showCursor();
  sayPlace(`Cursor at ${placeText(cursor)}. Arrows move it, with Shift in large steps. Enter sets a point, B starts a box, Esc ends.`);
}

function endCursor() {
  if (!cursor) return;
  cursor = corner = null;
  const stage = byId("stage");
  if (document.activeElement === stage) byId("main").focus({ preventScroll: true });
  stage.removeAttribute("role");
  stage.classList.remove("pointing");
  byId("cursor-button").setAttribute("aria-pressed", "false");
  showCursor();
  sayPlace("");
}

const boxSoFar = () => [
  Math.min(corner[0], cursor[0]), Math.min(corner[1], cursor[1]), Math.max(corner[0], cursor[0]), Math.max(corner[1], cursor[1]),
];

function showCursor() {
  const mark = byId("cursor"), box = byId("cursor-box");
  mark.hidden = !cursor;
  box.hidden = !corner;
  if (!cursor) return;
  const [x, y] = onStage(cursor);
  Object.assign(mark.style, { left: `${x}px`, top: `${y}px` });
  byId("cursor-text").classList.toggle("above", y > byId("stage").clientHeight / 2); // not over the cursor
  if (!corner) return;
  const [x0, y0, x1, y1] = boxSoFar(), [left, top] = onStage([x0, y0]), [right, bottom] = onStage([x1, y1]);
  Object.assign(box.style, { left: `${left}px`, top: `${top}px`, width: `${right - left}px`, height: `${bottom - top}px` });
}

// Pixels of a place of the photo, from the stage's upper left corner. The cursor is not enlarged with the photo.
function onStage([x, y]) {
  const stage = byId("stage").getBoundingClientRect(), frame = byId("frame").getBoundingClientRect();
  return [frame.left - stage.left + x * frame.width, frame.top - stage.top + y * frame.height];
}

// An enlarged photo moves along, so that the cursor stays in sight.
function followCursor() {
  if (zoom.scale === 1) return; // all of it is in sight
  const room = byId("stage"), [x, y] = onStage(cursor);
  const shift = (v, size) => Math.max(0, EDGE - v) - Math.max(0, v - size + EDGE);
  zoom.x += shift(x, room.clientWidth);
  zoom.y += shift(y, room.clientHeight);
  applyZoom();
}

function moveCursor([x, y], large) {
  const step = (large ? LARGE_STEP : STEP) / zoom.scale, inside = (v) => Math.min(1, Math.max(0, v));
  cursor = [inside(cursor[0] + x * step), inside(cursor[1] + y * step)];
  followCursor();
  showCursor();
  sayPlace(corner ? `Box from ${placeText(corner)} to ${placeText(cursor)}` : placeText(cursor));
}

function setPlace() {
  const round = (values) => values.map((v) => Math.round(v * 1e5) / 1e5);
  if (!corner) {
    addRegion(round([...cursor, ...cursor]));
    sayPlace(`Point set at ${placeText(cursor)}. Z takes it back, Esc ends.`);
    return;
  }
  const found = round(boxSoFar());
  if (found[0] === found[2] || found[1] === found[3]) {
    sayPlace("The box has no area yet. Move the cursor across and down, then press Enter.");
    return;
  }
  sayPlace(`Box set from ${placeText(corner)} to ${placeText(cursor)}. Z takes it back, Esc ends.`);
  corner = null;
  addRegion(found);
  showCursor();
}

// Returns whether the key belongs to the cursor. Enter on a button or link is for that one.
function cursorKey(event) {
  if (!cursor) return false;
  if (event.key in MOVES) moveCursor(MOVES[event.key], event.shiftKey);
  else if (event.key === "Enter" && !document.activeElement.closest("button, a")) setPlace();
  else if (event.key.toLowerCase() === "b") {
    corner = [...cursor];
    showCursor();
    sayPlace(`Box from ${placeText(corner)}. Arrows move the opposite corner, Enter sets the box, Esc leaves it out.`);
  } else if (event.key === "Escape" && corner) {
    corner = null;
    showCursor();
    sayPlace(`No box. Cursor at ${placeText(cursor)}.`);
  } else if (event.key === "Escape") endCursor();
  else return false;
  return true;
}
