"""`ananet explain`: pictures of what a network does with two photos."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ananet._util.checks import check_whole_number
from ananet._util.defaults import PRUNER
from ananet.cli import arguments as shared
from ananet.errors import InputError

if TYPE_CHECKING:
    from ananet.pruners import LearnedPruner, Pruned
    from ananet.twoview import PhotoMatches

MEANINGS = {
    "matches": "matches that each pruner keeps",
    "attention": "the matches that two confident matches (green) attend to most: yellow by both, blue by one",
    "context": "how well each match agrees with the others, by block and head of the network: the further green and "
    "red are apart, the better that head tells {good} matches from others",
    "neighbours": "how many neighbours of a {good} match in feature space are {good} too, before and after each block",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("image0", type=Path, help="first photo")
    add("image1", type=Path, help="second photo")
    shown = f"pruners to draw; the attention shown is that of the first network (default: {PRUNER})"
    add("--pruner", default=PRUNER, metavar="A,B,...", help=shown)
    add("-o", "--output", type=Path, default=Path("explained"), help="folder (default: explained)")
    words = "With cameras and pose, matches are compared by right and wrong. Without, by kept and removed."
    truth = shared.add_cameras(parser, "truth", words)
    pose = "text file with R and t (3 x 4 or 4 x 4), X1 = R X0 + t"
    truth.add_argument("--pose", metavar="FILE", type=Path, help=pose)
    add("--block", type=int, help="block of the attention shown, from 1 (default: the last)")
    add("--head", type=int, help="head of the attention shown, from 1 (default: mean over heads)")
    add("--top", type=int, default=100, metavar="N", help="number of most attended matches to show (default: 100)")
    shared.add_detector(parser)
    shared.add_device(parser)
    shared.add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    for name in ("top", "block", "head"):
        if (number := getattr(arguments, name)) is not None:
            check_whole_number(f"--{name}", number, 1)
    shared.check_cameras(arguments)
    if arguments.pose and arguments.k0 is None and arguments.focal is None:
        raise InputError("--pose: expected together with --k0 and --k1, or --focal, got it alone")
    if arguments.output.exists() and not arguments.output.is_dir():
        raise InputError(f"output: expected a folder, got the file {arguments.output}")
    pose = None if arguments.pose is None else _read_pose(arguments.pose)

    from ananet._util.plots import import_matplotlib
    from ananet.io.images import check_image_file, save_picture

    import_matplotlib()
    for path in (arguments.image0, arguments.image1):
        check_image_file(path)

    import torch

    from ananet.datasets.base import LabelledPair
    from ananet.features import load_detector
    from ananet.pruners import LearnedPruner, load
    from ananet.twoview import match_photos
    from ananet.twoview.drawing import grid

    options = {"device": arguments.device, "max_keypoints": arguments.max_keypoints}
    detector = load_detector(shared.detector_name(arguments), **options)
    pruners = [load(name, device=arguments.device) for name in arguments.pruner.split(",")]
    cameras = shared.read_cameras(arguments)
    found = match_photos(arguments.image0, arguments.image1, detector=detector, pruner=pruners[0], **cameras)
    inlier = None
    if pose is not None:
        R, t = torch.from_numpy(pose).split((3, 1), dim=1)
        inlier = LabelledPair.from_pose("", found.matches, R, t[:, 0]).inlier.numpy()
    results = {pruner.name: pruner(found.matches) for pruner in pruners}
    pictures = {"matches": grid([_panel(name, kept, found, inlier) for name, kept in results.items()], columns=2)}
    summary: dict[str, Any] = {
        "matches": len(found.matches),
        "labels": "kept and removed" if inlier is None else "pose",
        "pruners": {name: int(kept.mask.sum()) for name, kept in results.items()},
    }
    name, network = next(((p.name, p) for p in pruners if isinstance(p, LearnedPruner)), ("", None))
    if network is not None:
        more, facts = _look_inside(arguments, network, found, results[name], inlier)
        pictures, summary = pictures | more, summary | facts
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name, picture in pictures.items():
        save_picture(arguments.output / f"{name}.png", picture)
    summary["pictures"] = [str(arguments.output / f"{name}.png") for name in pictures]
    if arguments.json:
        shared.print_json(summary)
    else:
        _print(summary, arguments.top, "kept" if inlier is None else "right", network is not None)
    return 0


def _print(summary: dict[str, Any], top: int, good: str, has_network: bool) -> None:
    for path in summary["pictures"]:
        print(f"{path}: {MEANINGS[Path(path).stem].format(good=good)}")
    if good == "kept" and "context" in summary:
        print("Without --pose, green means kept and red removed in context.png, not right and wrong.")
    if not has_network:
        print("None of the pruners is a single network, so there is no attention to show.")
    if "shared" in summary:
        block, both = summary["block"], summary["shared"]
        print(f"In block {block}, {both} of the {top} matches that the two attend to most are the same.")
    if "context" in summary:
        best = summary["context"]
        print(
            f"Head {best['head']} of block {best['block']} separates best: a {good} match has a higher agreement than "
            f"another match in {best['separation']:.0%} of cases (50%: no difference)."
        )


def _panel(name: str, kept: Pruned, found: PhotoMatches, inlier: np.ndarray | None) -> np.ndarray:
    """The matches that one pruner keeps: green if right, red if wrong, in any colour if the truth is unknown."""
    from ananet.twoview.drawing import draw_matches, draw_right_wrong

    panel0, panel1 = found.panels
    assert panel0 is not None and panel1 is not None
    points0, points1 = found.matches.numpy_points()
    mask = np.asarray(kept.mask)
    if inlier is None:
        return draw_matches(panel0, panel1, points0, points1, mask, f"{name}: kept {mask.sum()} of {len(mask)}")
    caption = f"{name}: kept {mask.sum()}, {(mask & inlier).sum()} of them right (green), of {inlier.sum()} right ones"
    return draw_right_wrong(panel0, panel1, points0[mask], points1[mask], inlier[mask], caption)


def _look_inside(
    arguments: argparse.Namespace, pruner: LearnedPruner, found: PhotoMatches, kept: Pruned, inlier: np.ndarray | None
) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Pictures of attention, context and neighbours, and their numbers."""
    from ananet.evaluation.explain import (
        NEIGHBOURS,
        best_head,
        inlier_neighbours,
        most_attended,
        two_apart,
        view_blocks,
    )
    from ananet.evaluation.plots import plot_context, plot_neighbours

    mask, logits = np.asarray(kept.mask), np.asarray(kept.logits)
    good = mask if inlier is None else inlier
    words = ("kept", "removed") if inlier is None else ("right", "wrong")
    pictures, summary = {}, dict[str, Any]()
    if views := view_blocks(pruner.network, found.matches):
        block = check_whole_number("--block", arguments.block or len(views), 1, len(views))
        attention = views[block - 1].attention
        head = None if arguments.head is None else check_whole_number("--head", arguments.head, 1, len(attention))
        pair = two_apart(found.matches.numpy_points()[0], logits, np.flatnonzero(mask & good))
        attended = most_attended(attention.mean(0) if head is None else attention[head - 1], pair, arguments.top)
        where = f"block {block}, " + ("mean over heads" if head is None else f"head {head}")
        pictures["attention"] = _draw_attention(pair, attended, where, words[0], found, good)
        summary = {"block": block, "head": head, "shown": list(pair), "shared": len(np.intersect1d(*attended))}
        if views[0].context is not None:
            pictures["context"] = plot_context(views, good, words, pruner.name)
            summary["context"] = dict(zip(("block", "head", "separation"), best_head(views, good), strict=True))
    ratios = inlier_neighbours(pruner.network, found.matches, good)
    if len(ratios):
        title = f"{pruner.name}: {words[0]} matches among the neighbours of a {words[0]} match"
        pictures["neighbours"] = plot_neighbours(ratios, NEIGHBOURS, title)
        summary["neighbours"] = {"k": list(NEIGHBOURS), "blocks": ratios.round(4).tolist()}
    return pictures, summary


def _draw_attention(
    pair: tuple[int, int], both: np.ndarray, where: str, word: str, found: PhotoMatches, good: np.ndarray
) -> np.ndarray:
    """The matches that each of two confident matches attends to most."""
    from ananet.twoview.drawing import BLUE, GREEN, YELLOW, draw_groups, stack

    panel0, panel1 = found.panels
    assert panel0 is not None and panel1 is not None
    rows, common = [], np.intersect1d(*both)
    for one, attended in zip(pair, both, strict=True):
        own = np.setdiff1d(attended, common)
        caption = (
            f"{where}: the {len(attended)} matches that the green one attends to most: {len(common)} shared "
            f"with the other (yellow), {len(own)} its own (blue); {good[attended].mean():.0%} {word}"
        )
        groups, strong = [(own, BLUE), (common, YELLOW)], [(np.array([one]), GREEN)]
        rows.append(draw_groups(panel0, panel1, *found.matches.numpy_points(), groups, caption, strong=strong))
    return stack(*rows)


def _read_pose(path: Path) -> np.ndarray:
    """[3 x 4] R and t."""
    expected = "--pose: expected a text file with 12 or 16 numbers"
    try:
        numbers = np.array(path.read_text(encoding="utf-8").replace(",", " ").split(), np.float64)
    except (ValueError, UnicodeDecodeError):
        numbers = np.zeros(0)
    except OSError as error:
        raise InputError(f"{expected}, got {path}: {error.strerror}") from None
    if numbers.size not in (12, 16):
        raise InputError(f"{expected}, got {path}")
    pose = numbers.reshape(-1, 4)[:3]
    R = pose[:, :3]
    if not np.allclose(R @ R.T, np.eye(3), atol=1e-3):
        raise InputError(f"--pose: expected a rotation in the first three columns, got {R.tolist()}")
    return pose
