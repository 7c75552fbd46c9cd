"""Prune the matches of an .npz file with only ONNX Runtime and numpy.

ananet export ananet -o ananet.onnx
python prune_onnx.py ananet.onnx matches.npz pruned.npz

The .npz holds points0 and points1 [N x 2] in pixels, and K0, K1 [3 x 3] or image_size0, image_size1 (width, height);
for a network with side input also ratio, mutual, keypoint_sizes0, keypoint_sizes1, angles0, angles1 [N], as far as
they are known.
"""

import json
import sys

import numpy as np
import onnxruntime


def normalize(arrays, number):
    """[N x 2] normalised points of one image, and the focal length that scales keypoint sizes."""
    points = arrays[f"points{number}"].astype(np.float64)
    if f"K{number}" in arrays:
        K = arrays[f"K{number}"].astype(np.float64)
        rays = np.c_[points, np.ones(len(points))] @ np.linalg.inv(K).T
        return rays[:, :2] / rays[:, 2:], (K[0, 0] + K[1, 1]) / 2
    size = arrays[f"image_size{number}"].astype(np.float64)
    return (points - size / 2) / (0.7 * size.max()), 0.7 * size.max()


def main(model_path, matches_path, output_path):
    session = onnxruntime.InferenceSession(model_path, providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    arrays = dict(np.load(matches_path))
    (first, focal0), (second, focal1) = normalize(arrays, 0), normalize(arrays, 1)
    inputs = {"matches": np.concatenate([first, second], axis=1)[None].astype(np.float32)}
    if channels := json.loads(metadata["side"]):
        known = {name: arrays[name] for name in ("ratio", "mutual") if name in arrays}
        known |= {f"angle{i}": arrays[f"angles{i}"] for i in (0, 1) if f"angles{i}" in arrays}
        for number, focal in ((0, focal0), (1, focal1)):
            if f"keypoint_sizes{number}" in arrays:
                known[f"keypoint_size{number}"] = arrays[f"keypoint_sizes{number}"] / focal
        unknown = np.full(len(first), np.nan)
        side = [known.get(name, unknown) for name in channels]
        inputs["side"] = np.stack(side, axis=-1)[None].astype(np.float32)
    logits, scores, mask = (output[0] for output in session.run(["logits", "scores", "mask"], inputs))
    np.savez_compressed(output_path, mask=mask, scores=scores, logits=logits)
    print(f"{metadata['pruner']}: kept {mask.sum()} of {len(mask)} matches, written to {output_path}")


if __name__ == "__main__":
    main(*sys.argv[1:])
