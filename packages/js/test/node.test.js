import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";

import { InputError, listPruners, load } from "../index.js";
import { differences } from "./answers.js";

const read = async (name) => {
  const bytes = await readFile(new URL(`../../../build/packages/answers/${name}`, import.meta.url));
  return bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength);
};
const points = [[10, 20], [30, 40], [50, 10]], size = [64, 48], sizes = { imageSize0: size, imageSize1: size };

test("answers are those of Python", async () => {
  let cases = 0;
  for await (const { error } of differences(read, load, listPruners())) {
    assert.equal(error, "");
    cases++;
  }
  assert.ok(cases > 10);
});

test("points may be nested or flat, and there may be none", async () => {
  const pruner = await load("ananet-small");
  const nested = await pruner.prune(points, points, sizes);
  const flat = await pruner.prune(Float32Array.from(points.flat()), Float64Array.from(points.flat()), sizes);
  assert.deepEqual(nested, flat);
  assert.deepEqual([...nested.indices].every((i) => nested.mask[i]), true);
  const nothing = await pruner.prune([], []);
  assert.equal(nothing.mask.length, 0);
});

test("a network may be given as bytes", async () => {
  const bytes = await readFile(new URL("../networks/ananet-small.onnx", import.meta.url));
  const [ours, theirs] = [await load(bytes), await load("ananet-small")];
  assert.deepEqual(await ours.prune(points, points, sizes), await theirs.prune(points, points, sizes));
});

test("wrong input is named", async () => {
  const pruner = await load("ananet-small");
  const wrong = [
    [[points, points.slice(1), sizes], "points0 and points1: expected the same number of rows, got 3 and 2"],
    [[points, undefined, sizes], "points1: expected an array of numbers, got undefined"],
    [[points, [[1, 2, 3]], sizes], "points1: expected [[x, y], ...] or a flat typed array of them, got 3 numbers in 1 entries"],
    [[points, [[1, 2], [3, NaN], [5, 6]], sizes], "points1: expected finite numbers, got NaN at 3"],
    [[points, [["a", 2]], sizes], "points1: expected an array of numbers, got string at 0"],
    [[points, points, {}], "expected camera matrices (K0, K1) or image sizes (imageSize0, imageSize1), got neither"],
    [[points, points, { imageSize0: size }], "imageSize0 and imageSize1: expected both or neither, imageSize1 is missing"],
    [[points, points, { imageSize0: [0, 1], imageSize1: size }], "imageSize0: expected [width, height] in pixels, got [0, 1]"],
    [[points, points, { K0: [1, 2], K1: [1, 2] }], "K0: expected [[fx, s, cx], [0, fy, cy], [0, 0, 1]], got 2 numbers"],
    [[points, points, { K0: [-1, 0, 0, 0, 1, 0, 0, 0, 1], K1: [1, 0, 0, 0, 1, 0, 0, 0, 1] }], "K0: expected positive focal lengths, got fx=-1, fy=1"],
    [[points, points, { ...sizes, ratio: [0, 1] }], "ratio: expected 3 values, one for each match, got 2"],
    [[points, points, { ...sizes, ratio: [0, 1, 2] }], "ratio: expected values in [0, 1], got 2 at 2"],
    [[points, points, { ...sizes, mutual: [0, 1, 2] }], "mutual: expected true/false or 0/1, got 2 at 2"],
    [[points, points, { ...sizes, angles0: [0, 0, 90], angles1: [0, 0, 0] }], "angles0: expected radians from -2 pi to 2 pi, got 90 at 2"],
    [[points, points, { ...sizes, keypointSizes0: [1, 1, 0], keypointSizes1: [1, 1, 1] }], "keypointSizes0: expected positive numbers of pixels, got 0 at 2"],
    [[points, points, { ...sizes, size0: 1 }], "got size0"],
  ];
  for (const [given, message] of wrong) {
    await assert.rejects(pruner.prune(...given), (error) => error instanceof InputError && error.message.includes(message));
  }
  await assert.rejects(load("ananot"), /network: expected one of ananet, ananet-small, .* got 'ananot'/);
  await assert.rejects(load("ananet", { threads: 2 }), /threads: expected 1 in Node, got 2/);
  await assert.rejects(load("ananet", { threshold: 1 }), /threshold: expected a probability above 0 and below 1, got 1/);
  await assert.rejects(load("ananet", { conflictOdds: 0 }), /conflictOdds: expected a number of at least 1, got 0/);
});

test("what the documentation and the README show runs", async () => {
  for (const page of ["../../../docs/anywhere.md", "../README.md"]) {
    const text = await readFile(new URL(page, import.meta.url), "utf8");
    const [, block] = text.match(/```js\n(.*?)```/s);
    const code = block.replace(/import .* from "ananet";/, "");
    const run = new Function("load", "points0", "points1", `return (async () => { ${code}; return { mask, scores, indices }; })()`);
    const { mask, scores } = await run(load, points, points);
    assert.equal(mask.length, 3);
    assert.ok(scores.every((score) => score >= 0 && score < 1));
  }
});
