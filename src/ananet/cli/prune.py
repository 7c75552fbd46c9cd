"""`ananet prune`: prune matches stored in an .npz file."""

import argparse
from pathlib import Path

from ananet.cli.arguments import add_json, add_pruner, print_json

REQUIRED = ("points0", "points1")
OPTIONAL = (
    "K0", "K1", "size0", "size1", "ratio", "mutual", "scores", "sizes0", "sizes1", "angles0", "angles1", "indices",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", type=Path, help=f"an .npz with {', '.join(REQUIRED)} and optionally {', '.join(OPTIONAL)}"
    )
    parser.add_argument(
        "-o", "--output", type=Path, help="where to write mask, scores, logits (default: FILE.pruned.npz)"
    )
    add_pruner(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    import numpy as np

    from ananet.files import atomic_path, check_output
    from ananet.pruners import load

    output = arguments.output or arguments.file.with_suffix(".pruned.npz")
    check_output(output, arguments.file)
    matches = read_matches(arguments.file)
    pruner = load(arguments.pruner, device=arguments.device)
    kept = pruner(matches)
    with atomic_path(output) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, mask=kept.mask, scores=kept.scores, logits=kept.logits)
    count = int(kept.mask.sum())
    if arguments.json:
        print_json({"pruner": pruner.name, "matches": len(matches), "kept": count, "output": str(output)})
    else:
        print(f"{pruner.name}: kept {count} of {len(matches)} matches, written to {output}")
    return 0


def read_matches(path: Path):  # type: ignore[no-untyped-def]  # the type would import torch
    """`Correspondences` from an .npz file. Nothing is unpickled."""
    import zipfile

    import numpy as np

    from ananet.correspondences import Correspondences
    from ananet.errors import InputError

    if not path.is_file():
        raise InputError(
            f"{path}: expected an .npz file, got a directory" if path.is_dir() else f"{path}: no such file"
        )
    try:
        with path.open("rb") as file:
            stored = np.load(file, allow_pickle=False)
            if isinstance(stored, np.ndarray):
                raise InputError(f"{path}: expected an .npz file, got a single array")
            arrays = {name: stored[name] for name in stored.files}
    except InputError:
        raise
    except (ValueError, zipfile.BadZipFile, EOFError):
        # numpy's own words are about pickles, which are none of the user's business.
        raise InputError(f"{path}: not a readable .npz file of plain arrays") from None
    missing = [name for name in REQUIRED if name not in arrays]
    unknown = sorted(set(arrays) - {*REQUIRED, *OPTIONAL})
    if missing or unknown:
        raise InputError(
            f"{path}: expected arrays {', '.join(REQUIRED)} and optionally {', '.join(OPTIONAL)}, "
            f"got {', '.join(arrays) or 'none'}"
        )
    return Correspondences(arrays.pop("points0"), arrays.pop("points1"), **arrays)
