// ananet for JavaScript: the networks are ONNX files that do all steps of a call; this file checks what goes in.
import * as ort from "onnxruntime-web/wasm";

// Written out, so that bundlers find the files.
const NETWORKS = {
  ananet: new URL("./networks/ananet.onnx", import.meta.url),
  "ananet-small": new URL("./networks/ananet-small.onnx", import.meta.url),
};
// Those of the Python package.
const THRESHOLD = 0.4, CONFLICT_ODDS = 30;
// Radians, with a margin for rounding. Larger angles are in degrees.
const MAX_ANGLE = 2 * Math.PI + 0.01;
// What networks with side input may read of every match, in the order of their files.
const SIDE = ["ratio", "mutual", "keypointSizes0", "keypointSizes1", "angles0", "angles1"];
const PAIRS = [["K0", "K1"], ["imageSize0", "imageSize1"], ["keypointSizes0", "keypointSizes1"], ["angles0", "angles1"]];
const KNOWN = [...PAIRS.flat(), "ratio", "mutual"];

/** An argument is wrong. The message names it, what was expected and what was given. */
export class InputError extends Error {
  name = "InputError";
}

const expected = (name, what, got) => new InputError(`${name}: expected ${what}, got ${got}`);

/** Names of the networks that `load` takes. */
export const listPruners = () => Object.keys(NETWORKS);

/**
 * A pruner, ready to be called.
 *
 * threads: of WebAssembly; more than one needs a browser, and a page that is cross-origin isolated.
 * wasmPaths: where onnxruntime-web finds its .wasm files, if not beside itself.
 */
export async function load(network = "ananet", { threshold = THRESHOLD, conflictOdds = CONFLICT_ODDS, threads = 1, wasmPaths } = {}) {
  if (!(threshold > 0 && threshold < 1)) throw expected("threshold", "a probability above 0 and below 1", threshold);
  if (!(conflictOdds >= 1)) throw expected("conflictOdds", "a number of at least 1", conflictOdds);
  if (threads > 1 && globalThis.process?.versions?.node) throw expected("threads", "1 in Node", threads);
  if (wasmPaths) ort.env.wasm.wasmPaths = wasmPaths;
  ort.env.wasm.numThreads = threads;
  const named = typeof network === "string" && !(network in NETWORKS) && !/[./]/.test(network);
  if (named) throw expected("network", `one of ${listPruners().join(", ")}, a URL or the bytes of an ONNX file`, `'${network}'`);
  const bytes = ArrayBuffer.isView(network) || network instanceof ArrayBuffer
    ? new Uint8Array(network.buffer ?? network, network.byteOffset ?? 0, network.byteLength)
    : await read(NETWORKS[network] ?? network);
  const session = await ort.InferenceSession.create(bytes, { executionProviders: ["wasm"], graphOptimizationLevel: "all" });
  if (!session.inputNames.includes("image_size0")) {
    throw expected("network", "one that takes pixels, as of export(..., pixels=True)", `inputs ${session.inputNames.join(", ")}`);
  }
  return new Pruner(session, threshold, conflictOdds);
}

async function read(url) {
  if (String(url).startsWith("file:")) {
    // Hidden from bundlers for browsers, which have no files.
    const { readFile } = await import(/* webpackIgnore: true */ /* @vite-ignore */ "node:fs/promises");
    return readFile(new URL(url));
  }
  const response = await fetch(url);
  if (!response.ok) throw new InputError(`network: ${url} answered ${response.status}`);
  return new Uint8Array(await response.arrayBuffer());
}

class Pruner {
  #session;
  #decision;

  constructor(session, threshold, conflictOdds) {
    this.#session = session;
    this.#decision = { threshold, conflict_odds: conflictOdds };
  }

  /** Decides which matches to keep. */
  async prune(points0, points1, given = {}) {
    const arrays = checked(points0, points1, given);
    const count = arrays.points0.length / 2;
    if (count === 0) return result(new Uint8Array(0), new Float32Array(0), new Float32Array(0));
    const numbers = (values, ...shape) => new ort.Tensor("float64", Float64Array.from(values), shape);
    const unknown = (size) => new Float64Array(size).fill(NaN);
    const feeds = { points0: numbers(arrays.points0, count, 2), points1: numbers(arrays.points1, count, 2) };
    for (const i of [0, 1]) {
      feeds[`K${i}`] = numbers(arrays[`K${i}`] ?? unknown(9), 3, 3);
      feeds[`image_size${i}`] = numbers(arrays[`imageSize${i}`] ?? unknown(2), 2);
    }
    for (const [name, value] of Object.entries(this.#decision)) feeds[name] = numbers([value]);
    if (this.#session.inputNames.includes("side")) feeds.side = side(arrays, count);
    const { mask, scores, logits } = await this.#session.run(feeds);
    return result(mask.data, scores.data, logits.data);
  }

  /** Frees the memory of the network. */
  release() {
    return this.#session.release();
  }
}

/** [N x 6] what is known of every match beside its points, NaN where it is not. */
function side(arrays, count) {
  const values = new Float32Array(count * SIDE.length).fill(NaN);
  SIDE.forEach((name, column) => {
    const known = arrays[name];
    if (known) for (let i = 0; i < count; i++) values[i * SIDE.length + column] = known[i];
  });
  return new ort.Tensor("float32", values, [count, SIDE.length]);
}

function result(mask, scores, logits) {
  const indices = Uint32Array.from([...mask.keys()].filter((i) => mask[i]).sort((a, b) => logits[b] - logits[a] || a - b));
  return { mask, scores, logits, indices };
}

// ---- checks, with the messages of the Python package

function checked(points0, points1, given) {
  const wrong = Object.keys(given).filter((name) => !KNOWN.includes(name));
  if (wrong.length) throw new InputError(`expected some of ${KNOWN.join(", ")}, got ${wrong.join(", ")}`);
  const arrays = { points0: points("points0", points0), points1: points("points1", points1) };
  const [count, other] = [arrays.points0.length / 2, arrays.points1.length / 2];
  if (count !== other) throw new InputError(`points0 and points1: expected the same number of rows, got ${count} and ${other}`);
  for (const pair of PAIRS) {
    const missing = pair.filter((name) => given[name] == null);
    if (missing.length === 1) throw new InputError(`${pair.join(" and ")}: expected both or neither, ${missing[0]} is missing`);
  }
  for (const [name, value] of Object.entries(given)) {
    if (value == null) continue;
    if (name === "K0" || name === "K1") arrays[name] = camera(name, value);
    else if (name.startsWith("imageSize")) arrays[name] = imageSize(name, value);
    else arrays[name] = perMatch(name, value, count);
  }
  if (count && !arrays.K0 && !arrays.imageSize0) {
    throw new InputError("expected camera matrices (K0, K1) or image sizes (imageSize0, imageSize1), got neither");
  }
  return arrays;
}

function flat(name, values) {
  if (!ArrayBuffer.isView(values) && !Array.isArray(values)) throw expected(name, "an array of numbers", values === null ? "null" : typeof values);
  const numbers = ArrayBuffer.isView(values) ? values : values.flat();
  for (let i = 0; i < numbers.length; i++) {
    if (typeof numbers[i] !== "number" && typeof numbers[i] !== "boolean") throw expected(name, "an array of numbers", `${typeof numbers[i]} at ${i}`);
    if (!Number.isFinite(Number(numbers[i]))) throw expected(name, "finite numbers", `${numbers[i]} at ${i}`);
  }
  return numbers;
}

function points(name, values) {
  const numbers = flat(name, values);
  const rows = !ArrayBuffer.isView(values) && values.length && values.some((row) => row?.length !== 2);
  if (rows || numbers.length % 2) throw expected(name, "[[x, y], ...] or a flat typed array of them", `${numbers.length} numbers in ${values.length} entries`);
  return numbers;
}

function perMatch(name, values, count) {
  const numbers = flat(name, values);
  if (numbers.length !== count) throw expected(name, `${count} values, one for each match`, numbers.length);
  const [what, right] = {
    ratio: ["values in [0, 1]", (x) => x >= 0 && x <= 1],
    mutual: ["true/false or 0/1", (x) => x === 0 || x === 1],
    keypointSizes: ["positive numbers of pixels", (x) => x > 0],
    angles: ["radians from -2 pi to 2 pi", (x) => Math.abs(x) <= MAX_ANGLE],
  }[name.replace(/[01]$/, "")];
  const wrong = Array.prototype.findIndex.call(numbers, (x) => !right(Number(x)));
  if (wrong >= 0) throw expected(name, what, `${numbers[wrong]} at ${wrong}`);
  return numbers;
}

function camera(name, values) {
  const K = flat(name, values);
  if (K.length !== 9) throw expected(name, "[[fx, s, cx], [0, fy, cy], [0, 0, 1]]", `${K.length} numbers`);
  if (!(K[0] > 0 && K[4] > 0)) throw expected(name, "positive focal lengths", `fx=${K[0]}, fy=${K[4]}`);
  if (K[3] !== 0 || K[6] !== 0 || K[7] !== 0 || K[8] !== 1) throw expected(name, "[[fx, s, cx], [0, fy, cy], [0, 0, 1]]", `[${[...K].join(", ")}]`);
  return K;
}

function imageSize(name, values) {
  const size = flat(name, values);
  if (size.length !== 2 || !(size[0] > 0 && size[1] > 0)) throw expected(name, "[width, height] in pixels", `[${[...size].join(", ")}]`);
  return size;
}
