// Shared by all pages: sending actions so that none is lost, progress, and small helpers.
"use strict";

const byId = (id) => document.getElementById(id);
const readJson = (id) => JSON.parse(byId(id).textContent);
const PENDING = "fewtags-pending";

function newRequest() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (b) => b.toString(16).padStart(2, "0")).join("");
}

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

// Actions wait in sessionStorage until the server has confirmed them, so a reload of the page or a restart of the server
// loses none. Each has a request id: the server ignores one that it has already saved.
const pending = {
  list() {
    try { return JSON.parse(sessionStorage.getItem(PENDING) || "[]"); } catch { return []; }
  },
  store(list) {
    try { sessionStorage.setItem(PENDING, JSON.stringify(list)); } catch { /* private mode: memory only */ }
  },
};
let memory = pending.list();
let sending = null;
const waiting = new Map();

function showSaved(state, text) {
  const place = byId("saved");
  place.dataset.state = state;
  place.textContent = text;
}

// Returns a promise with the reply of the server; an action that cannot be delivered is tried again until it is.
function act(path, body) {
  const action = { path, body: { ...body, request: newRequest() } };
  memory.push(action);
  pending.store(memory);
  const reply = new Promise((resolve, reject) => waiting.set(action.body.request, { resolve, reject }));
  flush();
  return reply;
}

function flush() {
  if (!sending) sending = deliver().finally(() => { sending = null; });
  return sending;
}

async function deliver() {
  let delay = 250;
  while (memory.length) {
    const action = memory[0];
    if (byId("saved").dataset.state !== "lost") showSaved("saving", "saving…");
    let reply, content;
    try {
      reply = await fetch(action.path, {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(action.body),
      });
      content = await reply.json().catch(() => ({}));
      if (reply.status >= 500) throw new Error("server error");
    } catch {
      showSaved("lost", `not saved yet: no reply, ${memory.length} waiting`);
      await new Promise((go) => setTimeout(go, delay));
      delay = Math.min(2 * delay, 4000);
      continue;
    }
    delay = 250;
    memory.shift();
    pending.store(memory);
    const promise = waiting.get(action.body.request);
    waiting.delete(action.body.request);
    if (reply.ok) {
      if (content.progress) showProgress(content.progress);
      promise?.resolve(content);
    } else {
      const why = content.error || content.detail || `error ${reply.status}`;
      const text = typeof why === "string" ? why : "the server did not understand the page; reload it";
      showSaved("lost", `not saved: ${text}`);
      promise?.reject(new Error(text));
      if (memory.length === 0) return;
    }
  }
  showSaved("saved", "saved");
}

function showProgress(progress) {
  const own = progress.mine === progress.all ? "" : ` of ${progress.all.toLocaleString("en")}`;
  byId("count").textContent = `${progress.mine.toLocaleString("en")}${own} ${progress.all === 1 ? "answer" : "answers"}`;
  byId("pace").textContent = progress.mine ? `${progress.seconds.toFixed(1)} s each` : "";
  byId("stop").hidden = !progress.forecast?.stop;
  document.dispatchEvent(new CustomEvent("progress", { detail: progress }));
}

async function get(path) {
  const reply = await fetch(path);
  if (!reply.ok) throw new Error(`error ${reply.status}`);
  return reply.json();
}

// Seconds for which the page was visible since `start`.
const watch = {
  begun: performance.now(), hidden: 0, since: null,
  start() { this.begun = performance.now(); this.hidden = 0; this.since = document.hidden ? this.begun : null; },
  seconds() {
    const now = performance.now();
    const away = this.hidden + (this.since === null ? 0 : now - this.since);
    return Math.max(0, Math.round((now - this.begun - away) / 10) / 100);
  },
};
document.addEventListener("visibilitychange", () => {
  const now = performance.now();
  if (document.hidden) watch.since = now;
  else if (watch.since !== null) { watch.hidden += now - watch.since; watch.since = null; }
});

const isTyping = (event) => /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
const isPlain = (event) => !event.ctrlKey && !event.metaKey && !event.altKey;

addEventListener("beforeunload", (event) => {
  if (memory.length) event.preventDefault();
});

document.addEventListener("DOMContentLoaded", () => {
  showProgress(readJson("progress-data"));
  if (memory.length) flush();
});
