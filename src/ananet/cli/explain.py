"""`ananet explain`: what a trained network sees in two photos, in pictures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ananet.cli.arguments import (
    add_cameras,
    add_detector,
    add_device,
    add_json,
    check_cameras,
    detector_name,
    print_json,
    read_cameras,
)
from ananet.errors import InputError

if TYPE_CHECKING:
    from ananet.core.correspondences import Correspondences
    from ananet.pruners import LearnedPruner, Pruned


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("image0", type=Path, help="first photo")
    parser.add_argument("image1", type=Path, help="second photo")
    parser.add_argument(
        "--pruner",
        required=True,
        metavar="A,B,...",
        help="pruners to draw; the attention shown is that of the first network",
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("explained"), help="folder (default: explained)")
    truth = add_cameras(
        parser,
        "truth",
        "With cameras and pose, green is right and red is wrong. Without, green is kept and red removed.",
    )
    truth.add_argument(
        "--pose", metavar="FILE", type=Path, help="text file with R and t (3 x 4 or 4 x 4), X1 = R X0 + t"
    )
    parser.add_argument("--block", type=int, help="block whose attention is shown, from 1 (default: the last)")
    parser.add_argument("--head", type=int, help="head whose attention is shown, from 1 (default: mean over heads)")
    parser.add_argument(
        "--top", type=int, default=100, metavar="N", help="number of most attended matches to show (default: 100)"
    )
    add_detector(parser)
    add_device(parser)
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    for name in ("top", "block", "head"):
        if (number := getattr(arguments, name)) is not None and number < 1:
            raise InputError(f"--{name}: expected at least 1, got {number}")
    check_cameras(arguments)
    if arguments.pose and arguments.k0 is None and arguments.focal is None:
        raise InputError("--pose: expected together with --k0 and --k1, or --focal, got it alone")
    if arguments.output.exists() and not arguments.output.is_dir():
        raise InputError(f"output: expected a folder, got the file {arguments.output}")
    pose = None if arguments.pose is None else _read_pose(arguments.pose)

    from ananet._util.plots import import_matplotlib
    from ananet.io.images import check_image_file, read_image, save_picture

    import_matplotlib()
    for path in (arguments.image0, arguments.image1):
        check_image_file(path)

    from ananet.features import load_detector
    from ananet.pruners import LearnedPruner, load
    from ananet.pruners.auto import Auto
    from ananet.twoview.drawing import grid
    from ananet.twoview.matcher import match_photos

    detector = load_detector(detector_name(arguments), device=arguments.device, max_keypoints=arguments.max_keypoints)
    pruners = [load(name, device=arguments.device) for name in arguments.pruner.split(",")]
    image0, image1 = read_image(arguments.image0), read_image(arguments.image1)
    found = match_photos(
        arguments.image0,
        arguments.image1,
        detector=detector,
        pruner=pruners[0],
        use_exif=False,
        **read_cameras(arguments),
    )
    matches = found.matches
    inlier = _labels(pose, matches)
    arguments.output.mkdir(parents=True, exist_ok=True)

    by_name = {pruner.name: pruner for pruner in pruners}
    answers = {name: pruner(matches) for name, pruner in by_name.items()}
    pictures = {"matches": grid([_panel(n, a, matches, image0, image1, inlier) for n, a in answers.items()], columns=2)}
    result: dict[str, Any] = {
        "matches": len(matches),
        "labels": "pose" if inlier is not None else "kept and removed",
        "pruners": {name: int(answer.mask.sum()) for name, answer in answers.items()},
    }
    networks = {
        name: pruner.chosen(matches) if isinstance(pruner, Auto) else pruner for name, pruner in by_name.items()
    }
    name, learned = next(((n, p) for n, p in networks.items() if isinstance(p, LearnedPruner)), ("", None))
    if learned is not None:
        answer = answers[name]
        pictures |= _look_inside(arguments, learned, matches, answer, image0, image1, inlier, result)
    for name, picture in pictures.items():
        save_picture(arguments.output / f"{name}.png", picture)
    result["pictures"] = [str(arguments.output / f"{name}.png") for name in pictures]
    if arguments.json:
        print_json(result)
        return 0
    if inlier is None:
        print("No cameras and pose given: kept and removed matches stand in for right and wrong ones.")
    if learned is None:
        print("No network on its own among the pruners: there is no attention to look into.")
    elif "block" in result:
        print(
            f"Block {result['block']}: of the {arguments.top} matches that each of two attends to most, "
            f"{result['shared']} are the same."
        )
    print("Pictures: " + ", ".join(result["pictures"]))
    return 0


def _panel(
    name: str,
    answer: Pruned,
    matches: Correspondences,
    image0: np.ndarray,
    image1: np.ndarray,
    inlier: np.ndarray | None,
) -> np.ndarray:
    """What one pruner keeps: green where right, or where kept if nobody knows."""
    from ananet.twoview.drawing import draw_matches

    points0, points1 = matches.numpy_points()
    kept = answer.mask
    if inlier is None:
        caption = f"{name}: kept {kept.sum()} of {len(matches)} (green)"
        return draw_matches(image0, image1, points0, points1, kept, caption)
    right = int((kept & inlier).sum())
    caption = f"{name}: kept {kept.sum()}, {right} of them right (green), of {inlier.sum()} right ones"
    return draw_matches(image0, image1, points0[kept], points1[kept], inlier[kept], caption, equally=True)


def _look_inside(
    arguments: argparse.Namespace,
    learned: LearnedPruner,
    matches: Correspondences,
    answer: Pruned,
    image0: np.ndarray,
    image1: np.ndarray,
    inlier: np.ndarray | None,
    result: dict[str, Any],
) -> dict[str, np.ndarray]:
    """Pictures of attention, context and neighbours; what they show in numbers goes into the result."""
    from ananet.evaluation.explain import NEIGHBOURS, inlier_neighbours, view_blocks
    from ananet.evaluation.plots import plot_context, plot_neighbours

    good = answer.mask if inlier is None else inlier
    words = ("kept", "removed") if inlier is None else ("inliers", "outliers")
    pictures = {}
    views = view_blocks(learned.network, matches)
    if views:
        number = _within("--block", arguments.block or len(views), len(views))
        attention = views[number - 1].attention
        head = None if arguments.head is None else _within("--head", arguments.head, len(attention))
        where = f"block {number}, " + ("mean over heads" if head is None else f"head {head}")
        shown = attention.mean(0) if head is None else attention[head - 1]
        picture, facts = _draw_attention(shown, where, words[0], arguments.top, matches, answer, good, image0, image1)
        pictures["attention"] = picture
        result |= {"block": number, "head": head, **facts}
        if views[0].context is not None:
            title = f"{learned.name}: attention-consistent context of {words[0]} and {words[1]}"
            pictures["context"] = plot_context(views, {words[0]: good, words[1]: ~good}, title)
    ratios = inlier_neighbours(learned.network, matches, good)
    if len(ratios):
        pictures["neighbours"] = plot_neighbours(ratios, NEIGHBOURS, f"{learned.name}, {words[0]} among neighbours")
        result["neighbours"] = {"k": list(NEIGHBOURS), "blocks": ratios.round(4).tolist()}
    return pictures


def _draw_attention(
    attention: Any,
    where: str,
    word: str,
    top: int,
    matches: Correspondences,
    answer: Pruned,
    good: np.ndarray,
    image0: np.ndarray,
    image1: np.ndarray,
) -> tuple[np.ndarray, dict[str, Any]]:
    """What each of two sure matches attends to most, and how much of that is the same."""
    from ananet.evaluation.explain import shared_attention, two_apart
    from ananet.twoview.drawing import BLUE, GREEN, YELLOW, draw_groups, stack

    points0, points1 = matches.numpy_points()
    pair = two_apart(points0, answer.logits, np.flatnonzero(answer.mask & good))
    found = shared_attention(attention, pair, top)
    rows = []
    for one, attended in zip(found.pair, found.attended, strict=True):
        own = np.setdiff1d(attended, found.shared)
        groups, strong = [(own, BLUE), (found.shared, YELLOW)], [(np.array([one]), GREEN)]
        caption = (
            f"{where}: what the green match attends to most: {len(found.shared)} shared by both (yellow), "
            f"{len(own)} not (blue); {good[attended].mean():.0%} {word}"
        )
        rows.append(draw_groups(image0, image1, points0, points1, groups, caption, strong=strong))
    return stack(*rows), {"shown": list(found.pair), "shared": len(found.shared)}


def _within(name: str, number: int, most: int) -> int:
    if not 1 <= number <= most:
        raise InputError(f"{name}: expected 1 to {most}, got {number}")
    return number


def _read_pose(path: Path) -> np.ndarray:
    """[3 x 4] R and t."""
    try:
        numbers = np.array(path.read_text(encoding="utf-8").replace(",", " ").split(), np.float64)
    except (ValueError, UnicodeDecodeError):
        numbers = np.zeros(0)
    except OSError as error:
        raise InputError(f"--pose: expected a text file with 12 or 16 numbers, got {path}: {error.strerror}") from None
    if numbers.size not in (12, 16):
        raise InputError(f"--pose: expected a text file with 12 or 16 numbers, got {path}")
    pose = numbers.reshape(-1, 4)[:3]
    R = pose[:, :3]
    if not np.allclose(R @ R.T, np.eye(3), atol=1e-3):
        raise InputError(f"--pose: expected a rotation in the first three columns, got {R.tolist()}")
    return pose


def _labels(pose: np.ndarray | None, matches: Correspondences) -> np.ndarray | None:
    """[N] bool by the true pose, or None where it is not given."""
    import torch

    from ananet.datasets.base import LabelledPair

    if pose is None:
        return None
    matrix = torch.from_numpy(pose)
    return LabelledPair.from_pose("", matches, matrix[:, :3], matrix[:, 3]).inlier.numpy()
