// What the page asks, answered in the browser: two workers find keypoints, one matches and prunes. Nothing is sent anywhere.
"use strict";

// What `ananet match` adds, which this page cannot.
const MORE = "Pose, epipolar lines and motions: ananet match, or ananet web.";
// Of photos of different places, a network keeps some matches too (benchmarks/page.py --scenes).
const FEWEST = 50;
const PRUNERS = {
  ananet: "The best network: uses ratio, mutual flag, sizes and angles of the keypoints.",
  "ananet-small": "A fifteenth of the parameters: faster, a little less exact.",
};

let keypoints, matching;

function start() {
  // Browsers start no workers for pages that are opened as files.
  if (location.protocol === "file:") throw new Error("This page works over HTTP only. In the folder of the site: python -m http.server");
  keypoints = [connect(new Worker("keypoints.js")), connect(new Worker("keypoints.js"))];
  matching = connect(new Worker("matches.js", { type: "module" }));
  navigator.serviceWorker?.register("offline.js").catch(() => {});
}

const backend = {
  geometry: false,
  note: "Photos stay on this machine: all happens in the browser, after the first visit also offline.",
  links: { Documentation: "../anywhere.html#a-page-without-a-server" },

  async choices() {
    if (!matching) start();
    return { detectors: ["akaze", "orb"], pruners: PRUNERS };
  },
  examples: async () => (await fetch("examples/index.json")).json(),

  async match(files, { detector, pruner }, report) {
    report("Loading OpenCV and the network (28 MB, once) …");
    await Promise.all([...keypoints.map((ask) => ask("load")), matching("load", pruner)]);
    const start = performance.now();
    report("Finding keypoints …");
    const photos = await Promise.all(files.map((file, i) => keypoints[i]("find", file, detector)));
    photos.forEach(({ width, height, sizes }, i) => {
      if (!sizes.length) throw new Error(`${files[i].name}: no keypoints found in this image of ${width} x ${height} pixels`);
    });
    const found = performance.now();
    report(`Matching and pruning ${photos.map(({ sizes }) => sizes.length).join(" and ")} keypoints …`);
    const answer = await matching("match", photos, pruner);
    const kept = new Set(answer.mask.flatMap((keep, n) => (keep ? [answer.indices[n][1]] : []))).size;
    const overlaps = kept >= FEWEST;
    return {
      ...answer,
      detector,
      pruner,
      photos: photos.map(({ width, height, sizes }) => ({ width, height, keypoints: sizes.length })),
      overlap: {
        found: overlaps,
        summary: `The photos ${overlaps ? "show" : "do not seem to show"} the same scene: ${kept} matches to different points were kept`
          + `${overlaps ? "" : ` (at least ${FEWEST} are expected)`}.`,
      },
      cameras: {},
      pose_summary: overlaps ? MORE : "",
      model_summary: "",
      milliseconds: { keypoints: found - start, pruning: performance.now() - found },
    };
  },
};

// A function that asks a worker: the name of what to do, and what with.
function connect(worker) {
  const waiting = new Map();
  let last = 0;
  worker.onmessage = ({ data: { number, result, error } }) => {
    const { resolve, reject } = waiting.get(number);
    waiting.delete(number);
    if (error) reject(new Error(error)); else resolve(result);
  };
  worker.onerror = () => {
    for (const { reject } of waiting.values()) reject(new Error("A part of the page could not be loaded: reload the page."));
    waiting.clear();
  };
  return (task, ...given) => new Promise((resolve, reject) => {
    waiting.set(++last, { resolve, reject });
    worker.postMessage({ number: last, task, given });
  });
}
