// The page: photos, slider, drawing, downloads. backend.js, which matches the photos, sends all scores once; the rest happens here.
"use strict";

const $ = (id) => document.getElementById(id);
const canvas = $("canvas"), context = canvas.getContext("2d");
const COLOURS = { kept: "#40c860", removed: "#e03838", conflicting: "#e69f00", chosen: "#ffffff", epipolar: "#ffe020" };
// The palette of Okabe and Ito, which is safe for colour-blind people.
const MOTIONS = ["#f0e442", "#56b4e9", "#cc79a7", "#d55e00", "#009e73", "#0072b2", "#e69f00"];
const GAP = 8, NEAR = 14, CLICK = 5;

const files = [null, null];       // the chosen photos
let cameras = null;               // of an example
let answer = null;                // the result of the service
let sources = [null, null];       // files of the result
let pictures = [null, null];      // bitmaps of these
let moved = false;                // whether the slider was moved: until then, the mask of the pruner is shown
let view = { scale: 1, x: 0, y: 0 };
let chosen = -1;                  // the match under the pointer, or selected by keys
let line = null;                  // { photo, x, y }: the point with epipolar lines
let asked = 0;                    // number of the last request: results of earlier ones are dropped

// ---- matches

function tell(error) {
  $("error").textContent = error ? error.message : "";
  $("error").hidden = !error;
}

async function match() {
  if (!files[0] || !files[1]) return tell(new Error("Choose two photos first."));
  const number = ++asked;
  tell(null);
  busy(true);
  const sent = [...files];
  const report = (stage) => { if (number === asked) $("busy").textContent = stage; };
  try {
    if (!$("pruner").length) await choices();
    const chosen = Object.fromEntries(["detector", "pruner", "focal"].map((name) => [name, $(name).value.trim()]));
    const found = await backend.match(sent, { cameras, ...chosen }, report);
    const bitmaps = await Promise.all(sent.map((file) => createImageBitmap(file)));
    if (number !== asked) return;
    [answer, sources, pictures] = [found, sent, bitmaps];
    show();
  } catch (error) {
    if (number !== asked) return;
    answer = null;
    $("result").hidden = true;
    tell(error);
  } finally {
    if (number === asked) busy(false);
  }
}

// The previous result is dimmed and inert until the next one is there.
function busy(on) {
  $("busy").hidden = !on;
  $("match").disabled = on;
  $("result").inert = on;
}

async function choices() {
  const known = await backend.choices();
  $("detector").replaceChildren(...known.detectors.map((name) => new Option(name)));
  $("pruner").replaceChildren(...Object.entries(known.pruners).map(([name, summary]) => {
    const option = new Option(name);
    option.title = summary;
    return option;
  }));
  about();
}

const about = () => { $("about").textContent = $("pruner").selectedOptions[0].title; };

async function examples() {
  for (const example of await backend.examples()) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = example.title;
    button.onclick = async () => {
      const blobs = await Promise.all([0, 1].map(async (i) => (await fetch(`examples/${example.name}/${i}.jpg`)).blob()));
      blobs.forEach((blob, i) => choose(i, new File([blob], `${example.name}${i}.jpg`, { type: "image/jpeg" })));
      $("focal").value = "";
      cameras = example.cameras;
      match();
    };
    $("examples").append(button);
    $("examples").hidden = false;
  }
}

// ---- photos

function choose(i, file) {
  files[i] = file;
  cameras = null;
  const image = $(`drop${i}`).querySelector("img");
  if (image.src) URL.revokeObjectURL(image.src);
  image.onload = () => { image.hidden = false; };
  image.onerror = () => { image.hidden = true; };
  image.src = URL.createObjectURL(file);
  $(`drop${i}`).querySelector("span").textContent = file.name;
  $(`drop${i}`).classList.add("chosen");
}

function take(i, list) {
  const given = [...list].slice(0, 2);
  if (!given.length) return;
  // Two photos at once fill both fields.
  if (given.length === 2) given.forEach((file, k) => choose(k, file));
  else choose(i, given[0]);
  if (files[0] && files[1]) match();
}

for (const i of [0, 1]) {
  $(`photo${i}`).onchange = (event) => { take(i, event.target.files); event.target.value = ""; };
  const drop = $(`drop${i}`);
  drop.ondragover = (event) => { event.preventDefault(); drop.classList.add("over"); };
  drop.ondragleave = () => drop.classList.remove("over");
  drop.ondrop = (event) => { event.preventDefault(); drop.classList.remove("over"); take(i, event.dataTransfer.files); };
}
// Otherwise, the browser opens a photo that is dropped beside the fields.
for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault());

// ---- kept matches

const kept = (n) => (moved ? answer.scores[n] > Number($("threshold").value) : answer.mask[n]);
const label = (n) => (answer.motion_labels ? answer.motion_labels[n] : -1);

function colour(n) {
  if (!$(kept(n) ? "show-kept" : "show-removed").checked) return null;
  if ($("show-conflicting").checked && answer.conflicting[n]) return COLOURS.conflicting;
  if (!kept(n)) return COLOURS.removed;
  return $("show-motions").checked ? MOTIONS[label(n) % MOTIONS.length] || "#b0b0b0" : COLOURS.kept;
}

// Indices of the shown matches, removed ones first, so that kept ones are drawn above them.
function shown() {
  return [...answer.scores.keys()].filter(colour).sort((a, b) => kept(a) - kept(b) || answer.scores[a] - answer.scores[b]);
}

function count() {
  const number = answer.scores.reduce((sum, _, n) => sum + (kept(n) ? 1 : 0), 0);
  $("threshold-value").textContent = Number($("threshold").value).toFixed(2);
  $("count").textContent = `${number} of ${answer.scores.length} kept`;
}

function show() {
  moved = false;
  line = null;
  point(-1);
  $("result").hidden = false;
  $("overlap").textContent = answer.overlap.summary;
  $("pose").textContent = answer.cameras.doubt
    ? `${answer.pose_summary} The camera is doubtful: ${answer.cameras.doubt}.` : answer.pose_summary;
  $("model").textContent = answer.model_summary;
  $("numbers").textContent = matrices(answer);
  $("matrices").hidden = !$("numbers").textContent;
  $("copy").textContent = "Copy";
  document.querySelector(".verdict").classList.toggle("apart", !answer.overlap.found);
  $("threshold").value = answer.threshold;
  const motions = answer.motions ? answer.motions.count : 0;
  $("show-motions").disabled = !motions;
  if (!motions) $("show-motions").checked = false;
  $("show-motions").parentElement.title = motions ? `${motions} found` : "none found";
  const total = Object.values(answer.milliseconds).reduce((a, b) => a + b, 0);
  $("facts").textContent = `${answer.photos.map((p) => p.keypoints).join(" and ")} keypoints by ${answer.detector}, pruned by `
    + `${answer.pruner}, ${(total / 1000).toFixed(2)} s`;
  count();
  fit();
}

// Valid in Python and JavaScript.
function matrices({ pose, model, fundamental, homography }) {
  const row = (values) => `[${values.map((value) => value.toFixed(6).padStart(9)).join(", ")}]`;
  // Entries of F and H differ by orders of magnitude.
  const wide = (values) => `[${values.map((value) => value.toExponential(8).padStart(15)).join(", ")}]`;
  const matrix = (name, rows, line) => `${name} = [${rows.map(line).join(",\n     ")}]`;
  const found = pose ? [matrix("R", pose.R, row), `t = ${row(pose.t)}`] : [];
  if (fundamental) found.push(matrix("F", fundamental, wide));
  if (homography && model === "homography") found.push(matrix("H", homography, wide));
  return found.join("\n");
}

$("copy").onclick = async () => {
  try {
    await navigator.clipboard.writeText($("numbers").textContent);
    $("copy").textContent = "Copied";
  } catch {
    // Browsers offer the clipboard on secure pages only.
    getSelection().selectAllChildren($("numbers"));
  }
};

// ---- layout: photos side by side, or one above the other on a narrow screen

const narrow = () => canvas.clientWidth < 560;

function places() {
  const [a, b] = answer.photos;
  // Both get the same height, or width.
  if (narrow()) {
    const s = a.width / b.width;
    return { width: a.width, height: a.height + GAP + b.height * s, of: [[0, 0, 1], [0, a.height + GAP, s]] };
  }
  const s = a.height / b.height;
  return { width: a.width + GAP + b.width * s, height: a.height, of: [[0, 0, 1], [a.width + GAP, 0, s]] };
}

// Pixels of a photo (the centre of the first is (0, 0)) to pixels of the canvas, and back.
function toCanvas(i, [x, y]) {
  const [left, top, s] = places().of[i];
  return [view.x + view.scale * (left + s * (x + 0.5)), view.y + view.scale * (top + s * (y + 0.5))];
}

function toPhoto(x, y) {
  const { of } = places();
  for (const i of [0, 1]) {
    const [left, top, s] = of[i], { width, height } = answer.photos[i];
    const px = ((x - view.x) / view.scale - left) / s, py = ((y - view.y) / view.scale - top) / s;
    if (px >= 0 && py >= 0 && px <= width && py <= height) return { photo: i, x: px - 0.5, y: py - 0.5 };
  }
  return null;
}

function fit() {
  const { width, height } = places();
  const wide = canvas.clientWidth;
  const high = Math.min(wide * height / width, Math.max(320, window.innerHeight * (narrow() ? 1.4 : 0.8)));
  canvas.style.height = `${Math.round(high)}px`;
  const scale = Math.min(wide / width, high / height);
  view = { scale, x: (wide - width * scale) / 2, y: (high - height * scale) / 2 };
  // While everything is visible, vertical swipes scroll the page.
  canvas.style.touchAction = "pan-y";
  draw();
}

function zoom(factor, x = canvas.clientWidth / 2, y = canvas.clientHeight / 2) {
  const scale = Math.min(200, Math.max(0.02, view.scale * factor));
  const f = scale / view.scale;
  view = { scale, x: x - f * (x - view.x), y: y - f * (y - view.y) };
  canvas.style.touchAction = "none";
  draw();
}

function pan(x, y) {
  view = { ...view, x: view.x + x, y: view.y + y };
  draw();
}

// ---- drawing

let waiting = false;
function draw() {
  if (waiting || !answer) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; if (answer) paint(); });
}

function paint() {
  const ratio = window.devicePixelRatio || 1, wide = canvas.clientWidth, high = canvas.clientHeight;
  if (canvas.width !== Math.round(wide * ratio) || canvas.height !== Math.round(high * ratio)) {
    canvas.width = Math.round(wide * ratio);
    canvas.height = Math.round(high * ratio);
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, wide, high);
  const { of } = places();
  pictures.forEach((picture, i) => {
    const [left, top, s] = of[i], { width, height } = answer.photos[i];
    context.imageSmoothingEnabled = view.scale * s < 4;
    context.drawImage(picture, view.x + view.scale * left, view.y + view.scale * top, view.scale * s * width, view.scale * s * height);
  });
  const visible = shown();
  // The more lines, the fainter, so that the photos stay visible.
  const faint = Math.min(0.9, Math.max(0.25, 120 / visible.length));
  for (const n of visible) stroke(n, colour(n), kept(n) ? faint : faint / 2, 1);
  if ($("show-conflicting").checked) for (const n of visible) if (kept(n) && answer.conflicting[n]) stroke(n, COLOURS.conflicting, 0.9, 2);
  for (const n of visible) dots(n, colour(n), 1.6);
  if (line) epipolar();
  if (chosen >= 0) {
    stroke(chosen, "#000000", 0.7, 5);
    stroke(chosen, COLOURS.chosen, 1, 2.5);
    dots(chosen, COLOURS.chosen, 4);
  }
}

function stroke(n, style, opacity, width) {
  const a = toCanvas(0, answer.points0[n]), b = toCanvas(1, answer.points1[n]);
  context.globalAlpha = opacity;
  context.strokeStyle = style;
  context.lineWidth = width;
  context.beginPath();
  context.moveTo(...a);
  context.lineTo(...b);
  context.stroke();
  context.globalAlpha = 1;
}

function dots(n, style, radius) {
  context.fillStyle = style;
  for (const [x, y] of [toCanvas(0, answer.points0[n]), toCanvas(1, answer.points1[n])]) {
    context.beginPath();
    context.arc(x, y, radius, 0, 2 * Math.PI);
    context.fill();
  }
}

// p1^T F p0 = 0: the line of p0 in the second photo is F p0, that of p1 in the first is F^T p1.
function epipolarLine(photo, x, y) {
  const F = answer.fundamental, p = [x, y, 1];
  return [0, 1, 2].map((r) => p.reduce((sum, v, c) => sum + v * (photo === 0 ? F[r][c] : F[c][r]), 0));
}

function epipolar() {
  for (const point of [line, line.partner].filter(Boolean)) {
    cross(point);
    if (answer.fundamental) along(1 - point.photo, epipolarLine(point.photo, point.x, point.y));
  }
}

function cross(point) {
  const [x, y] = toCanvas(point.photo, [point.x, point.y]);
  for (const [style, width] of [["#000000", 4], [COLOURS.epipolar, 2]]) {
    context.strokeStyle = style;
    context.lineWidth = width;
    context.beginPath();
    context.arc(x, y, 7, 0, 2 * Math.PI);
    context.stroke();
  }
}

function along(i, [a, b, c]) {
  const { width, height } = answer.photos[i], [left, top, s] = places().of[i];
  context.save();
  context.beginPath();
  context.rect(view.x + view.scale * left, view.y + view.scale * top, view.scale * s * width, view.scale * s * height);
  context.clip();
  const ends = Math.abs(b) > Math.abs(a)
    ? [-1, width].map((x) => [x, -(a * x + c) / b])
    : [-1, height].map((y) => [-(b * y + c) / a, y]);
  for (const [style, thick] of [["#000000", 4], [COLOURS.epipolar, 2]]) {
    context.strokeStyle = style;
    context.lineWidth = thick;
    context.beginPath();
    context.moveTo(...toCanvas(i, ends[0]));
    context.lineTo(...toCanvas(i, ends[1]));
    context.stroke();
  }
  context.restore();
}

// ---- the selected match

function nearest(x, y) {
  let best = -1, least = NEAR * NEAR;
  for (const n of shown()) {
    for (const [px, py] of [toCanvas(0, answer.points0[n]), toCanvas(1, answer.points1[n])]) {
      const distance = (px - x) ** 2 + (py - y) ** 2;
      if (distance <= least) [best, least] = [n, distance];
    }
  }
  return best;
}

const place = ([x, y]) => `(${x.toFixed(1)}, ${y.toFixed(1)})`;

function described(n) {
  const sizes = answer.keypoint_sizes0 ? `\nsizes ${answer.keypoint_sizes0[n].toFixed(1)} and ${answer.keypoint_sizes1[n].toFixed(1)} px` : "";
  const motion = label(n) >= 0 ? `\nmotion ${label(n) + 1}` : "";
  const conflict = answer.conflicting[n] ? "\na better match shares one of its points" : "";
  return `${kept(n) ? "kept" : "removed"}, score ${answer.scores[n].toFixed(3)}, ratio ${answer.ratio[n].toFixed(2)}\n`
    + `${place(answer.points0[n])} to ${place(answer.points1[n])}${sizes}${motion}${conflict}`;
}

function point(n, x, y) {
  chosen = n;
  $("hint").hidden = n < 0;
  if (n >= 0) {
    $("hint").textContent = described(n);
    const wide = $("hint").offsetWidth, high = $("hint").offsetHeight;
    $("hint").style.left = `${Math.max(0, Math.min(x + 14, canvas.clientWidth - wide))}px`;
    $("hint").style.top = `${y + 14 + high > canvas.clientHeight ? Math.max(0, y - high - 14) : y + 14}px`;
  }
  draw();
}

function linesOf(n, photo = 0) {
  const ends = [answer.points0[n], answer.points1[n]].map(([x, y], i) => ({ photo: i, x, y }));
  line = { ...ends[photo], partner: ends[1 - photo] };
  draw();
}

function walk(step) {
  const order = shown().reverse();    // best first
  if (!order.length) return;
  const at = order.indexOf(chosen);
  const n = order[(at < 0 ? (step > 0 ? 0 : order.length - 1) : at + step + order.length) % order.length];
  point(n, ...toCanvas(0, answer.points0[n]));
  $("spoken").textContent = described(n);
}

// ---- pointers and keys

const pointers = new Map();
let dragged = 0;

canvas.onpointerdown = (event) => {
  canvas.setPointerCapture(event.pointerId);
  pointers.set(event.pointerId, [event.offsetX, event.offsetY]);
  if (pointers.size === 1) dragged = 0;
};

canvas.onpointermove = (event) => {
  if (!answer) return;
  const now = [event.offsetX, event.offsetY], before = pointers.get(event.pointerId);
  if (!before) return point(nearest(...now), ...now);
  dragged += Math.hypot(now[0] - before[0], now[1] - before[1]);
  const other = [...pointers].find(([id]) => id !== event.pointerId);
  if (other) {
    const [, [x, y]] = other;
    const apart = (p) => Math.hypot(p[0] - x, p[1] - y) || 1;
    zoom(apart(now) / apart(before), (now[0] + x) / 2, (now[1] + y) / 2);
  } else if (dragged > CLICK) {
    point(-1);
    pan(now[0] - before[0], now[1] - before[1]);
  }
  pointers.set(event.pointerId, now);
};

canvas.onpointerup = (event) => {
  const alone = pointers.size === 1;
  pointers.delete(event.pointerId);
  if (!answer || !alone || dragged > CLICK) return;
  const x = event.offsetX, y = event.offsetY, n = nearest(x, y), at = toPhoto(x, y);
  point(n, x, y);
  if (n >= 0 && at) linesOf(n, at.photo);
  else { line = at; draw(); }
};
canvas.onpointercancel = (event) => pointers.delete(event.pointerId);
canvas.onpointerleave = (event) => { if (!pointers.has(event.pointerId)) point(-1); };

canvas.addEventListener("wheel", (event) => {
  if (!answer) return;
  event.preventDefault();
  zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), event.offsetX, event.offsetY);
}, { passive: false });

const KEYS = {
  "+": () => zoom(1.3), "=": () => zoom(1.3), "-": () => zoom(1 / 1.3), 0: () => fit(),
  ArrowLeft: () => pan(40, 0), ArrowRight: () => pan(-40, 0), ArrowUp: () => pan(0, 40), ArrowDown: () => pan(0, -40),
  n: () => walk(1), p: () => walk(-1), Enter: () => { if (chosen >= 0) linesOf(chosen); },
  Escape: () => { line = null; point(-1); },
};
canvas.onkeydown = (event) => {
  if (!answer || event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
  event.preventDefault();
  KEYS[event.key]();
};

$("zoom-in").onclick = () => zoom(1.3);
$("zoom-out").onclick = () => zoom(1 / 1.3);
$("fit").onclick = () => fit();
$("threshold").oninput = () => { moved = true; count(); draw(); };
for (const name of ["kept", "removed", "conflicting", "motions"]) $(`show-${name}`).onchange = () => draw();
$("form").onsubmit = (event) => { event.preventDefault(); match(); };
for (const name of ["detector", "pruner"]) $(name).onchange = () => { about(); if (answer) match(); };
$("token").onchange = () => choices().then(() => tell(null), tell);
$("note").textContent = backend.note ?? "";
for (const each of document.querySelectorAll(".geometry")) each.hidden = !backend.geometry;
$("links").append(...Object.entries(backend.links).map(([name, target]) => Object.assign(document.createElement("a"), { textContent: name, href: target })));
window.addEventListener("resize", () => { if (answer) fit(); });

// ---- downloads: all matches, with the mask at the current threshold

const saves = {
  npz: () => ["matches.npz", npz(answer, kept)],
  csv: () => ["matches.csv", csv(answer, kept)],
  json: () => ["matches.json", JSON.stringify(named(answer, kept))],
  colmap: async () => ["colmap.zip", await colmap(answer, kept, sources)],
  picture: async () => { paint(); return ["matches.png", await new Promise((resolve) => canvas.toBlob(resolve))]; },
};
for (const [name, make] of Object.entries(saves)) {
  const save = async () => {
    const [title, content] = await make();
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([content]));
    link.download = title;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  };
  // Fails if a photo was deleted meanwhile.
  $(`save-${name}`).onclick = () => save().catch(tell);
}

choices().catch(tell);
examples().catch(() => {});
