/** Pixels: [[x, y], ...], or x0, y0, x1, y1, ... in a typed array. */
export type Points = readonly (readonly [number, number] | readonly number[])[] | Float32Array | Float64Array;
/** One number for each match. */
export type Values = readonly number[] | readonly boolean[] | Float32Array | Float64Array | Uint8Array;
/** [[fx, s, cx], [0, fy, cy], [0, 0, 1]], or the same nine numbers row by row. */
export type Camera = readonly (readonly number[])[] | readonly number[] | Float32Array | Float64Array;
/** [width, height] in pixels. */
export type ImageSize = readonly [number, number] | readonly number[];

/** What is known of the matches beside their points; cameras or image sizes must be. */
export interface Given {
  K0?: Camera | null;
  K1?: Camera | null;
  imageSize0?: ImageSize | null;
  imageSize1?: ImageSize | null;
  /** Descriptor distance to the nearest over that to the second nearest neighbour, in [0, 1]. */
  ratio?: Values | null;
  /** Whether the match is nearest in both directions. */
  mutual?: Values | null;
  /** Diameters of the keypoints in pixels. */
  keypointSizes0?: Values | null;
  keypointSizes1?: Values | null;
  /** Radians from the x axis towards the y axis. */
  angles0?: Values | null;
  angles1?: Values | null;
}

export interface Pruned {
  /** 1 for matches to keep, else 0. */
  mask: Uint8Array;
  /** How likely each match is right, in [0, 1). */
  scores: Float32Array;
  /** The same before the sigmoid. */
  logits: Float32Array;
  /** Of the kept matches, best first. */
  indices: Uint32Array;
}

export interface Pruner {
  prune(points0: Points, points1: Points, given?: Given): Promise<Pruned>;
  release(): Promise<void>;
}

export interface Options {
  /** The probability above which a match is kept; 0.4 by default. */
  threshold?: number;
  /** Of matches that share a point, the odds of all but the best are divided by this; 30 by default. */
  conflictOdds?: number;
  /** Of WebAssembly, 1 by default; more than one needs a browser, and a page that is cross-origin isolated. */
  threads?: number;
  /** Where onnxruntime-web finds its .wasm files, if not beside itself. */
  wasmPaths?: string | { wasm?: string | URL; mjs?: string | URL };
}

/** "ananet", "ananet-small", a URL, or the bytes of an ONNX file that `export(..., pixels=True)` wrote. */
export function load(network?: "ananet" | "ananet-small" | (string & {}) | URL | ArrayBuffer | Uint8Array, options?: Options): Promise<Pruner>;
export function listPruners(): string[];
export class InputError extends Error {}
