// Worker: keypoints of two photos to matches, and which of them to keep.
import "./answering.js";
import { load } from "./ananet/index.js";
import { conflicting, nearestNeighbours } from "./matching.js";

const THRESHOLD = 0.4;
const pruners = {};
const pruner = (name) => (pruners[name] ??= load(name, { threshold: THRESHOLD }));

answering({ load: async (name) => { await pruner(name); }, match });

async function match(photos, name) {
  const { index, ratio, mutual } = nearestNeighbours(...photos.map(({ descriptors, sizes }) => [descriptors, sizes.length]));
  const chosen = [[...index.keys()], [...index]];
  const given = { ratio, mutual };
  const points = photos.map((photo, i) => {
    given[`imageSize${i}`] = [photo.width, photo.height];
    given[`keypointSizes${i}`] = Float32Array.from(chosen[i], (k) => photo.sizes[k]);
    given[`angles${i}`] = Float32Array.from(chosen[i], (k) => photo.angles[k]);
    return chosen[i].map((k) => [photo.points[2 * k], photo.points[2 * k + 1]]);
  });
  const { mask, scores, logits } = await (await pruner(name)).prune(...points, given);
  return {
    points0: points[0],
    points1: points[1],
    indices: chosen[0].map((k) => [k, index[k]]),
    mask: Array.from(mask, Boolean),
    scores: [...scores],
    ratio: [...ratio],
    mutual: Array.from(mutual, Boolean),
    keypoint_sizes0: [...given.keypointSizes0],
    keypoint_sizes1: [...given.keypointSizes1],
    angles0: [...given.angles0],
    angles1: [...given.angles1],
    conflicting: conflicting(points, photos, logits),
    threshold: THRESHOLD,
  };
}
