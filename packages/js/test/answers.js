// What Python stored (tools/export_packages.py), and how near answers must be; for Node and browsers.
const NAMES = {
  image_size0: "imageSize0", image_size1: "imageSize1", keypoint_sizes0: "keypointSizes0", keypoint_sizes1: "keypointSizes1",
};
// Scores may differ so much, or so many times as much as Python's differ from double precision.
const TOLERANCE = 1e-4, TIMES = 5;
// Where a match is as near to one group as to another, rounding decides, and all scores change a little.
const GROUPED_MEAN = 0.02, GROUPED_SHARE = 0.01;

/** Tensors of single precision by name. */
export function readTensors(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const tensors = {};
  for (const [name, { dtype, data_offsets: [first, last] }] of Object.entries(header)) {
    if (dtype === "F32") tensors[name] = new Float32Array(buffer.slice(8 + length + first, 8 + length + last));
  }
  return tensors;
}

/** Yields what is wrong with each case, in words; `read` gives the bytes of a file of answers. */
export async function* differences(read, load, networks) {
  const json = async (name) => JSON.parse(new TextDecoder().decode(await read(name)));
  const answers = readTensors(await read("answers.safetensors"));
  for (const given of await json("index.json")) {
    if (!networks.includes(given.weights) || given.seeds !== null || given.label) continue;
    const what = `${given.weights}, ${given.count} matches, case ${given.answer}`;
    const arrays = readTensors(await read(`matches-${given.count}.safetensors`));
    const { points0, points1, ...more } = Object.fromEntries(given.given.map((name) => [NAMES[name] ?? name, arrays[name]]));
    const pruner = await load(given.weights, { threshold: given.threshold, conflictOdds: given.conflict_odds });
    const { mask, scores } = await pruner.prune(points0, points1, more);
    await pruner.release();
    const tolerance = Math.max(TOLERANCE, TIMES * given.rounding);
    let worst = 0, sum = 0, wrong = 0;
    const logits = answers[given.answer];
    logits.forEach((logit, i) => {
      const score = 1 / (1 + Math.exp(-logit)), difference = Math.abs(score - scores[i]);
      worst = Math.max(worst, difference);
      sum += difference;
      if (score > given.threshold !== Boolean(mask[i]) && Math.abs(score - given.threshold) > tolerance) wrong++;
    });
    const right = given.undetermined ? worst <= 1
      : given.grouped ? sum <= GROUPED_MEAN * logits.length && wrong <= GROUPED_SHARE * logits.length
      : worst <= tolerance && wrong === 0;
    const fits = mask.length === logits.length && scores.length === logits.length;
    yield { what, worst, error: right && fits ? "" : `${what}: scores differ by up to ${worst}, ${wrong} decisions differ` };
  }
}
