// Matches of binary descriptors, as `nearest_neighbours` of the library finds them, and conflicts between matches.

// Of `ananet.core`: what stands in for the focal length, as a share of the longest side, and how far apart conflicting
// matches end, as a share of that.
const FOCAL_GUESS = 0.7, APART = 0.005;

/**
 * The nearest in the second set of each descriptor of the first, by Hamming distance, in one pass.
 *
 * Each set is [bytes, number of descriptors]. The ratio is that of Euclidean distances, 1 without a second neighbour.
 */
export function nearestNeighbours([bytes0, count0], [bytes1, count1]) {
  const a = words(bytes0, count0), b = words(bytes1, count1), width = a.length / count0;
  const index = new Int32Array(count0), nearest = new Int32Array(count0), ratio = new Float32Array(count0).fill(1);
  const ofColumn = new Int32Array(count1).fill(0x7fffffff), mutual = new Uint8Array(count0), taken = new Set();
  for (let i = 0; i < count0; i++) {
    let least = 0x7fffffff, second = 0x7fffffff, at = 0;
    for (let j = 0, q = 0; j < count1; j++) {
      let distance = 0;
      for (let p = i * width, end = p + width; p < end; p++, q++) {
        // The number of ones, two, four and eight bits at a time.
        let x = a[p] ^ b[q];
        x -= (x >>> 1) & 0x55555555;
        x = (x & 0x33333333) + ((x >>> 2) & 0x33333333);
        distance += Math.imul((x + (x >>> 4)) & 0x0f0f0f0f, 0x01010101) >>> 24;
      }
      if (distance < least) [second, least, at] = [least, distance, j];
      else if (distance < second) second = distance;
      if (distance < ofColumn[j]) ofColumn[j] = distance;
    }
    [index[i], nearest[i]] = [at, least];
    if (second > 0 && count1 > 1) ratio[i] = Math.sqrt(least / second);
  }
  // Of several that are equally near to one of the second set, the first is mutual.
  index.forEach((j, i) => {
    if (nearest[i] > ofColumn[j] || taken.has(j)) return;
    taken.add(j);
    mutual[i] = 1;
  });
  return { index, ratio, mutual };
}

/** Rows of bytes as rows of 32-bit words, filled up with zeros. */
function words(bytes, count) {
  const width = bytes.length / count, filled = new Uint8Array(count * Math.ceil(width / 4) * 4);
  for (let i = 0; i < count; i++) filled.set(bytes.subarray(i * width, (i + 1) * width), i * filled.length / count);
  return new Int32Array(filled.buffer);
}

/** Which matches share a point with a better one, and end elsewhere in the other photo. */
export function conflicting(points, photos, logits) {
  const found = new Array(logits.length).fill(false), order = [...logits.keys()].sort((n, m) => logits[m] - logits[n]);
  for (const here of [0, 1]) {
    const there = 1 - here, apart = APART * FOCAL_GUESS * Math.max(photos[there].width, photos[there].height), best = new Map();
    for (const n of order) {
      const place = points[here][n].join(), better = points[there][best.get(place) ?? n], [x, y] = points[there][n];
      if (!best.has(place)) best.set(place, n);
      else if (Math.hypot(x - better[0], y - better[1]) > apart) found[n] = true;
    }
  }
  return found;
}
