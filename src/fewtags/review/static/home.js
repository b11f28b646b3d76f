// All classes, training again, and the name of the person.
"use strict";

let shownModel = null;

function search() {
  const word = byId("search").value.trim().toLowerCase();
  let found = 0;
  for (const row of byId("classes").children) {
    row.hidden = !row.dataset.name.toLowerCase().includes(word);
    found += !row.hidden;
  }
  byId("nothing").hidden = found > 0;
}

function showTraining(training) {
  const place = byId("training"), log = byId("log");
  if (!place) return;
  const percent = (value) => (value === null || value === undefined ? "unknown" : `${(100 * value).toFixed(1)} %`);
  const minutes = training.seconds === undefined ? "" : `${Math.floor(training.seconds / 60)}:${String(Math.floor(training.seconds % 60)).padStart(2, "0")}`;
  const texts = {
    none: "",
    running: `${training.run} trains, ${minutes}`,
    finished: `${training.run} is ready and asks the questions now. mAP on validation: ${percent(training.score)}; before: ${percent(training.before)}.`,
    failed: `${training.run} was not trained; the last lines say why.`,
  };
  place.textContent = texts[training.state];
  byId("retrain").disabled = training.state === "running";
  log.hidden = training.state === "none" || training.state === "finished";
  log.textContent = (training.lines || []).join("\n");
}

function showForecast(forecast) {
  if (!forecast) return;
  const percent = (value) => (100 * value).toFixed(1);
  const range = (one) => `${percent(one.value)} % [${percent(one.low)}, ${percent(one.high)}]`;
  const count = (n) => `${n.toLocaleString("en")} ${n === 1 ? "answer" : "answers"}`;
  const lines = [];
  if (forecast.trained) {
    lines.push(`mAP of the model that asks, with ${count(forecast.answers)}: ${range(forecast.trained)}`);
    lines.push(`after training with all answers so far: ${range(forecast.now)}`);
    lines.push(`after ${forecast.next} more: ${range(forecast.more)}`);
  } else lines.push("The mAP is not known, because the run has no labelled validation photos.");
  if (forecast.hour !== null) lines.push(`one more hour at this pace buys about ${(100 * forecast.hour).toFixed(1)} points of mAP`);
  byId("forecast").replaceChildren(...lines.map((line) => element("li", line)));
  if (forecast.stop) {
    byId("forecast").append(element("li", `Stop here: an hour is expected to buy less than ${forecast.stop_below} points.`, "stop"));
  }
}

function showDoing(progress) {
  const count = progress.total && !progress.ready ? ` (${progress.done.toLocaleString("en")} of ${progress.total.toLocaleString("en")})` : "";
  const questions = `${progress.questions.toLocaleString("en")} ${progress.questions === 1 ? "question" : "questions"} by ${progress.model}`;
  byId("doing").textContent = progress.error || (progress.ready ? `${questions}.`
    : progress.questions ? `${questions}, which ${progress.doing}${count}; you can answer meanwhile.`
    : `The model ${progress.doing}${count}.`);
}

async function poll() {
  try {
    const status = await get("/api/status");
    showProgress(status.progress);
    showDoing(status.progress);
    showTraining(status.training);
    if (shownModel !== null && shownModel !== status.progress.model) { location.reload(); return; }
    shownModel = status.progress.model;
  } catch { /* the next poll tries again */ }
  setTimeout(poll, 1500);
}

document.addEventListener("DOMContentLoaded", () => {
  byId("search").addEventListener("input", search);
  byId("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter") [...byId("classes").children].find((row) => !row.hidden)?.querySelector("a")?.click();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && !isTyping(event)) { event.preventDefault(); byId("search").focus(); }
  });
  byId("name").addEventListener("change", () => {
    act("/api/name", { text: byId("name").value }).then((reply) => { byId("name").value = reply.who; }).catch(() => {});
  });
  byId("retrain")?.addEventListener("click", () => {
    byId("retrain").disabled = true;
    act("/api/retrain", {}).then((reply) => showTraining(reply.training)).catch((error) => {
      byId("training").textContent = error.message;
      byId("retrain").disabled = false;
    });
  });
  search();
  poll();
});
document.addEventListener("progress", (event) => showForecast(event.detail.forecast));
