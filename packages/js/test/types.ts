// Compiled only: that the types are as the documentation uses them.
import { InputError, load, type Pruned } from "../index.js";

const pruner = await load("ananet-small", { threshold: 0.5 });
const kept: Pruned = await pruner.prune([[1, 2], [3, 4]], new Float32Array(4), { imageSize0: [640, 480], imageSize1: [640, 480], mutual: [true, false] });
const scores: Float32Array = kept.scores;
// @ts-expect-error: no such argument
await pruner.prune([], [], { size0: 3 });
throw new InputError(String(scores.length + kept.mask[0] + kept.indices.length));
