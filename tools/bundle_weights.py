"""Put trained weights into the package: half precision, golden answers beside them, their checksum in the index.

    python tools/bundle_weights.py runs/ananet/weights.safetensors NAME "What it is, in a sentence." [CARD.json]

CARD.json adds to the model card what a run cannot know: data, licences, limits, measurements.
"""

import sys

import torch

from ananet.datasets.synthetic import SyntheticSettings, synthesize
from ananet.io.files import file_sha256, read_json, save_tensors, write_json
from ananet.networks import load_network, save_network
from ananet.networks.input import side_input
from ananet.weights import bundled
from ananet.weights.index import FOLDER, INDEX

GOLDEN_MATCHES = 200
# Moves matches of the same keypoints apart: half a pixel, in focal lengths.
APART = 5e-4


def main(source: str, name: str, summary: str, card_file: str | None = None) -> None:
    network, card = load_network(source)
    if card_file is not None:
        card |= read_json(card_file)
    path = FOLDER / f"{name}.safetensors"
    save_network(path, network.half(), {"name": name, "summary": summary, **card})

    # What the shipped file answers for problems that anyone may pass on. In double precision and without equal matches,
    # so that no rounding decides between neighbours.
    network, _ = load_network(path)
    draw = torch.Generator().manual_seed(0)
    batch = synthesize(2, draw, SyntheticSettings(matches=GOLDEN_MATCHES))
    matches = batch.matches + APART * torch.randn(batch.matches.shape, generator=draw)
    if side := network.settings.side:
        known = side_input(side, matches[..., 0], batch.ratio, batch.mutual, batch.sizes, batch.angles)
        matches = torch.cat([matches, known], dim=-1)
    with torch.no_grad():
        logits = network.double()(matches.double()).float()
    save_tensors(FOLDER / f"{name}.golden.safetensors", {"matches": matches, "logits": logits}, {})
    write_json(INDEX, {**bundled(), name: {"summary": summary, "sha256": file_sha256(path)}}, indent=1)
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main(*sys.argv[1:])
