// Worker: the keypoints of a photo, by OpenCV.
"use strict";

importScripts("answering.js", "opencv/opencv.js");

// Larger photos are scaled down to this many pixels; the strongest keypoints are kept, as the library does.
const PIXELS = 1e6, MAX_KEYPOINTS = 4000, MIN_SIDE = 32;
// Thresholds below OpenCV's, so that there are enough keypoints in flat parts too.
const DETECTORS = {
  akaze(cv) { const detector = new cv.AKAZE(); detector.setThreshold(1e-4); return detector; },
  orb(cv) { const detector = new cv.ORB(MAX_KEYPOINTS); detector.setFastThreshold(0); return detector; },
};
// In an object, since the module itself looks like a promise that never ends.
const loading = new Promise((resolve) => self.cv.then((cv) => resolve({ cv })));

answering({ load: async () => { await loading; }, find });

async function find(file, detector) {
  const { cv } = await loading;
  const photo = await createImageBitmap(file).catch(() => {
    throw new Error(`${file.name}: expected a photo, got a file that this browser cannot show as one`);
  });
  const { width, height } = photo, scale = Math.min(1, Math.sqrt(PIXELS / (width * height)));
  const [wide, high] = [width, height].map((side) => Math.max(1, Math.round(side * scale)));
  const context = new OffscreenCanvas(wide, high).getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(photo, 0, 0, wide, high);
  photo.close();
  const most = Math.round(MAX_KEYPOINTS * Math.min(1, Math.sqrt(wide * high / PIXELS)));
  const found = Math.min(wide, high) < MIN_SIDE ? [] : detect(cv, context.getImageData(0, 0, wide, high), DETECTORS[detector], most);
  // Pixels of the photo; scaling keeps its corner, half a pixel before the centre of the first one.
  const [x, y] = [width / wide, height / high];
  return {
    width,
    height,
    points: Float32Array.from(found.flatMap(({ pt }) => [(pt.x + 0.5) * x - 0.5, (pt.y + 0.5) * y - 0.5])),
    sizes: Float32Array.from(found, ({ size }) => size * (x + y) / 2),
    angles: Float32Array.from(found, ({ angle }) => angle * Math.PI / 180),
    descriptors: Uint8Array.from(found.flatMap(({ descriptor }) => [...descriptor])),
  };
}

function detect(cv, pixels, create, most) {
  const image = cv.matFromImageData(pixels), none = new cv.Mat(), descriptors = new cv.Mat();
  const keypoints = new cv.KeyPointVector(), detector = create(cv);
  try {
    cv.cvtColor(image, image, cv.COLOR_RGBA2GRAY);
    detector.detectAndCompute(image, none, keypoints, descriptors);
    const found = Array.from({ length: keypoints.size() }, (_, n) => ({ ...keypoints.get(n), n }));
    const strongest = found.sort((a, b) => b.response - a.response).slice(0, most);
    return strongest.map((each) => ({ ...each, descriptor: descriptors.ucharPtr(each.n).slice() }));
  } finally {
    for (const each of [image, none, descriptors, keypoints, detector]) each.delete();
  }
}
