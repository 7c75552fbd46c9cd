// Matches as files: .npz, .csv, .json, and a .zip for COLMAP. kept(n) tells whether match n is kept.
"use strict";

function csv(answer, kept) {
  const rows = answer.scores.map((score, n) => [...answer.points0[n], ...answer.points1[n], Number(kept(n)), score,
    answer.ratio[n], Number(answer.mutual[n]), ...answer.indices[n]].join(","));
  return `x0,y0,x1,y1,kept,score,ratio,mutual,index0,index1\n${rows.join("\n")}\n`;
}

// All that is known, by the names that the library gives it.
function named(answer, kept) {
  const { points0, points1, scores, ratio, mutual, indices } = answer;
  const values = { points0, points1, mask: [...scores.keys()].map(kept), scores, ratio, mutual: mutual.map(Boolean), indices };
  answer.photos.forEach((photo, i) => { values[`image_size${i}`] = [photo.width, photo.height]; });
  for (const name of ["K0", "K1"]) values[name] = answer.cameras[name];
  for (const name of ["keypoint_sizes0", "keypoint_sizes1", "angles0", "angles1"]) values[name] = answer[name];
  Object.assign(values, { R: answer.pose?.R, t: answer.pose?.t, F: answer.fundamental, H: answer.homography });
  return Object.fromEntries(Object.entries(values).filter(([, value]) => value));
}

function npz(answer, kept) {
  const kinds = { mask: ["|b1", Uint8Array], mutual: ["|b1", Uint8Array], indices: ["<i4", Int32Array] };
  // Points have a width also where there are none.
  const width = (name, rows) => (Array.isArray(rows[0]) ? [rows[0].length] : /^(points|indices)/.test(name) ? [2] : []);
  return zip(Object.entries(named(answer, kept)).map(([name, rows]) => {
    const [kind, Values] = kinds[name] ?? ["<f8", Float64Array];
    return [`${name}.npy`, npy(kind, [rows.length, ...width(name, rows)], Values.from(rows.flat(), Number))];
  }));
}

// ---- COLMAP: both photos, the keypoints of the kept matches, the matches, and how to import them

const COLMAP_README = `Import these matches into a new COLMAP database:

  colmap feature_importer --database_path database.db --image_path images --import_path features
  colmap matches_importer --database_path database.db --match_list_path matches.txt --match_type raw

Reconstruct both cameras and the points from it:

  mkdir sparse
  colmap mapper --database_path database.db --image_path images --output_path sparse

The keypoints are those of the kept matches. Their descriptors are zero: do not match them again.
`;

async function colmap(answer, kept, files) {
  const chosen = [...answer.scores.keys()].filter(kept);
  // Blanks separate names in a list of matches, and the names must differ.
  const names = files.map((file) => file.name.replace(/\s+/g, "_"));
  if (names[0] === names[1]) names[1] = `second_${names[1]}`;
  const entries = [["README.txt", COLMAP_README]];
  const numbers = [];
  for (const i of [0, 1]) {
    const turn = await orientation(files[i]);
    // Several matches may share a keypoint.
    const first = new Map();
    for (const n of chosen) if (!first.has(answer.indices[n][i])) first.set(answer.indices[n][i], n);
    const rows = [...first.values()].map((n) => {
      const [x, y] = stored(answer[`points${i}`][n], answer.photos[i], turn);
      // The centre of COLMAP's first pixel is (0.5, 0.5), and its scale is a radius.
      const scale = answer[`keypoint_sizes${i}`] ? answer[`keypoint_sizes${i}`][n] / 2 : 1;
      return `${(x + 0.5).toFixed(4)} ${(y + 0.5).toFixed(4)} ${scale.toFixed(4)} 0${" 0".repeat(128)}\n`;
    });
    entries.push([`images/${names[i]}`, new Uint8Array(await files[i].arrayBuffer())]);
    entries.push([`features/${names[i]}.txt`, `${rows.length} 128\n${rows.join("")}`]);
    numbers.push(new Map([...first.keys()].map((index, row) => [index, row])));
  }
  const pairs = chosen.map((n) => answer.indices[n].map((index, i) => numbers[i].get(index)).join(" "));
  entries.push(["matches.txt", `${names.join(" ")}\n${pairs.join("\n")}\n\n`]);
  return zip(entries);
}

// COLMAP ignores the EXIF orientation: convert a pixel of the upright photo to one of the photo as stored.
function stored([x, y], { width, height }, turn) {
  if ([2, 3, 6, 7].includes(turn)) x = width - 1 - x;
  if ([3, 4, 7, 8].includes(turn)) y = height - 1 - y;
  return turn > 4 ? [y, x] : [x, y];
}

// The EXIF orientation of a JPEG file, 1 to 8; 1 by default.
async function orientation(file) {
  const bytes = new DataView(await file.arrayBuffer());
  try {
    let at = 2;
    if (bytes.getUint16(0) !== 0xffd8) return 1;
    // Segments, up to the one with the letters "Exif".
    while (bytes.getUint16(at) !== 0xffe1 || bytes.getUint32(at + 4) !== 0x45786966) {
      if (bytes.getUint8(at) !== 0xff || bytes.getUint8(at + 1) === 0xda) return 1;
      at += 2 + bytes.getUint16(at + 2);
    }
    const tiff = at + 10, little = bytes.getUint16(tiff) === 0x4949;
    const directory = tiff + bytes.getUint32(tiff + 4, little);
    for (let entry = 0; entry < bytes.getUint16(directory, little); entry++) {
      const place = directory + 2 + 12 * entry;
      if (bytes.getUint16(place, little) === 0x0112) return bytes.getUint16(place + 8, little);
    }
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;  // truncated file
  }
  return 1;
}

// ---- formats

// NumPy's format 1.0: magic number, header padded to a multiple of 64 bytes, data.
function npy(kind, shape, data) {
  const words = `{'descr': '${kind}', 'fortran_order': False, 'shape': (${shape.join(", ")}${shape.length === 1 ? "," : ""}), }`;
  const header = `${words.padEnd(Math.ceil((words.length + 11) / 64) * 64 - 11)}\n`;
  const bytes = new Uint8Array(10 + header.length + data.byteLength);
  bytes.set([0x93, 78, 85, 77, 80, 89, 1, 0, header.length & 255, header.length >> 8]);
  bytes.set(new TextEncoder().encode(header), 10);
  bytes.set(new Uint8Array(data.buffer), 10 + header.length);
  return bytes;
}

function crc32(bytes) {
  let crc = -1;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0xedb88320 : 0);
  }
  return ~crc >>> 0;
}

// A zip archive without compression: each file after its header, then all headers again with their offsets.
function zip(entries) {
  const parts = [], directory = [];
  let offset = 0;
  const numbers = (...values) => {
    const bytes = new DataView(new ArrayBuffer(values.reduce((sum, [size]) => sum + size, 0)));
    values.reduce((at, [size, value]) => {
      if (size === 2) bytes.setUint16(at, value, true); else bytes.setUint32(at, value, true);
      return at + size;
    }, 0);
    return new Uint8Array(bytes.buffer);
  };
  for (const [name, content] of entries) {
    const written = new TextEncoder().encode(name), data = typeof content === "string" ? new TextEncoder().encode(content) : content;
    // Version 2.0, names in UTF-8, stored, 1 January 1980.
    const common = [[2, 20], [2, 0x0800], [2, 0], [2, 0], [2, 33], [4, crc32(data)], [4, data.length], [4, data.length],
      [2, written.length], [2, 0]];
    const local = numbers([4, 0x04034b50], ...common);
    directory.push(numbers([4, 0x02014b50], [2, 20], ...common, [2, 0], [2, 0], [2, 0], [4, 0], [4, offset]), written);
    parts.push(local, written, data);
    offset += local.length + written.length + data.length;
  }
  const length = directory.reduce((sum, part) => sum + part.length, 0);
  const end = numbers([4, 0x06054b50], [2, 0], [2, 0], [2, entries.length], [2, entries.length], [4, length], [4, offset], [2, 0]);
  const all = new Uint8Array(offset + length + end.length);
  let at = 0;
  for (const part of [...parts, ...directory, end]) { all.set(part, at); at += part.length; }
  return all;
}
