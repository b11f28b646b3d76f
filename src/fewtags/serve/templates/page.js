"use strict";
const drop = document.getElementById("drop");
const file = document.getElementById("file");
const state = document.getElementById("state");
const result = document.getElementById("result");
let latest = 0;

function figure(source, text) {
  const made = document.createElement("figure");
  const picture = document.createElement("img");
  const caption = document.createElement("figcaption");
  picture.src = source;
  picture.alt = caption.textContent = text;
  made.append(picture, caption);
  return made;
}

async function show(photo) {
  if (!photo) return;
  const mine = ++latest;
  state.textContent = "Working ...";
  result.replaceChildren();
  const form = new FormData();
  form.append("photo", photo, photo.name || "photo");
  try {
    const response = await fetch("heatmaps", { method: "POST", body: form });
    const answer = await response.json();
    if (mine !== latest) return;
    if (!response.ok) {
      state.textContent = typeof answer.detail === "string" ? answer.detail : "The photo was refused.";
      return;
    }
    state.textContent = answer.heatmaps.length ? "" : "No class reaches its threshold in this photo.";
    result.append(figure(URL.createObjectURL(photo), answer.photo));
    for (const map of answer.heatmaps) {
      const numbers = `${map.probability.toFixed(3)} (threshold ${map.threshold.toFixed(3)})`;
      result.append(figure(map.picture, `${map.name} ${numbers}; ${map.scale}`));
    }
  } catch (error) {
    if (mine === latest) state.textContent = "The service does not answer.";
  }
}

file.addEventListener("change", () => show(file.files[0]));
for (const name of ["dragover", "dragleave", "drop"]) {
  drop.addEventListener(name, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", name === "dragover");
    if (name === "drop") show(event.dataTransfer.files[0]);
  });
}
document.addEventListener("paste", (event) => show(event.clipboardData.files[0]));
