"""`ananet explain`: what a trained network sees in two photos, in pictures."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ananet.cli.arguments import add_json, camera_matrix, centred_camera, print_json
from ananet.errors import InputError

if TYPE_CHECKING:
    from ananet.correspondences import Correspondences
    from ananet.evaluation.evaluate import PrunerChoice
    from ananet.pruners import Pruned


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("image0", type=Path, help="first photo")
    parser.add_argument("image1", type=Path, help="second photo")
    parser.add_argument(
        "--pruner",
        required=True,
        metavar="A,B,...",
        help="weight files and names; all are drawn, the first weight file is looked into",
    )
    parser.add_argument("-o", "--output", type=Path, default=Path("explained"), help="folder (default: explained)")
    truth = parser.add_argument_group(
        "truth", "With cameras and pose, green is right and red is wrong. Without, green is kept and red removed."
    )
    truth.add_argument("--k0", metavar="K", help="camera matrix of the first photo: fx,fy,cx,cy or a text file")
    truth.add_argument("--k1", metavar="K", help="camera matrix of the second photo (default: that of the first)")
    truth.add_argument("--focal", type=float, help="focal length of both in pixels, instead of --k0 and --k1")
    truth.add_argument(
        "--pose", metavar="FILE", type=Path, help="text file with R and t (3 x 4 or 4 x 4), X1 = R X0 + t"
    )
    parser.add_argument("--block", type=int, help="whose attention is shown, from 1 (default: the last)")
    parser.add_argument("--head", type=int, help="whose attention is shown, from 1 (default: mean over heads)")
    parser.add_argument("--top", type=int, default=100, metavar="N", help="most attended matches shown (default: 100)")
    parser.add_argument("--features", choices=("sift", "orb"), default="sift", help="(default: sift)")
    parser.add_argument("--max-keypoints", type=int, default=2000, metavar="N", help="in each photo (default: 2000)")
    parser.add_argument("--device", default="auto", help="auto (a GPU if there is one), cpu, cuda (default: auto)")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    from ananet.drawing import draw_matches, grid, import_matplotlib, save_picture
    from ananet.evaluation.evaluate import choose_pruners
    from ananet.features import detect, match, read_image
    from ananet.pruners import load

    if arguments.top < 1:
        raise InputError(f"--top: expected at least 1, got {arguments.top}")
    import_matplotlib()
    choices = choose_pruners(arguments.pruner.split(","))
    pruners = [load(choice.given, device=arguments.device) for choice in choices]
    image0, image1 = read_image(arguments.image0), read_image(arguments.image1)
    features0, features1 = (detect(image, arguments.features, arguments.max_keypoints) for image in (image0, image1))
    K0, K1 = _cameras(arguments, features0.size, features1.size)
    matches = match(features0, features1, K0=K0, K1=K1)
    inlier = _labels(arguments.pose, matches)
    learned = next((choice for choice in choices if choice.file is not None), None)
    arguments.output.mkdir(parents=True, exist_ok=True)
    points0, points1 = matches.numpy_points()

    answers = {pruner.name: pruner(matches) for pruner in pruners}
    panels = []
    for name, answer in answers.items():
        kept = answer.mask
        if inlier is None:
            caption = f"{name}: kept {kept.sum()} of {len(matches)} (green)"
            panels.append(draw_matches(image0, image1, points0, points1, kept, caption))
        else:
            right = int((kept & inlier).sum())
            caption = f"{name}: kept {kept.sum()}, {right} of them right (green), of {inlier.sum()} right ones"
            panels.append(draw_matches(image0, image1, points0[kept], points1[kept], inlier[kept], caption))
    pictures = {"matches": grid(panels, columns=2)}
    result: dict[str, Any] = {
        "matches": len(matches),
        "labels": "pose" if inlier is not None else "kept and removed",
        "pruners": {name: int(answer.mask.sum()) for name, answer in answers.items()},
    }
    if learned is not None:
        answer = answers[learned.name]
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
    else:
        print(
            f"Block {result['block']}: of the {arguments.top} matches that each of two attends to most, "
            f"{result['shared']} are the same."
        )
    print("Pictures: " + ", ".join(result["pictures"]))
    return 0


def _look_inside(
    arguments: argparse.Namespace,
    learned: PrunerChoice,
    matches: Correspondences,
    answer: Pruned,
    image0: np.ndarray,
    image1: np.ndarray,
    inlier: np.ndarray | None,
    result: dict[str, Any],
) -> dict[str, np.ndarray]:
    """Pictures of attention, context and neighbours; what they show in numbers goes into the result."""
    from ananet.drawing import BLUE, GREEN, YELLOW, draw_groups, stack
    from ananet.evaluation.explain import NEIGHBOURS, inlier_neighbours, shared_attention, two_apart, view_blocks
    from ananet.evaluation.plots import plot_context, plot_neighbours
    from ananet.networks import load_network

    assert learned.file is not None
    network, name = load_network(learned.file)[0], learned.name
    good = answer.mask if inlier is None else inlier
    words = ("kept", "removed") if inlier is None else ("inliers", "outliers")
    candidates = np.flatnonzero(answer.mask & good)
    points0, points1 = matches.numpy_points()
    pair = two_apart(points0, answer.logits, candidates)
    views = view_blocks(network, matches)
    number = _within("--block", arguments.block or len(views), len(views))
    attention = views[number - 1].attention
    head = None if arguments.head is None else _within("--head", arguments.head, len(attention))
    found = shared_attention(attention.mean(0) if head is None else attention[head - 1], pair, arguments.top)
    where = f"block {number}, " + ("mean over heads" if head is None else f"head {head}")
    rows = []
    for one, attended in zip(found.pair, found.attended, strict=True):
        own = np.setdiff1d(attended, found.shared)
        groups = [(own, BLUE), (found.shared, YELLOW), (np.array([one]), GREEN)]
        right = good[attended].mean()
        caption = (
            f"{where}: what the green match attends to most: {len(found.shared)} shared by both (yellow), "
            f"{len(own)} not (blue); {right:.0%} {words[0]}"
        )
        rows.append(draw_groups(image0, image1, points0, points1, groups, caption))
    result |= {"block": number, "head": head, "shown": list(found.pair), "shared": len(found.shared)}
    pictures = {"attention": stack(*rows)}
    if views[0].context is not None:
        title = f"{name}: attention-consistent context of {words[0]} and {words[1]}"
        pictures["context"] = plot_context(views, {words[0]: good, words[1]: ~good}, title)
    ratios = inlier_neighbours(network, matches, good)
    pictures["neighbours"] = plot_neighbours(ratios, NEIGHBOURS, f"{name}, {words[0]} among neighbours")
    result["neighbours"] = {"k": list(NEIGHBOURS), "blocks": ratios.round(4).tolist()}
    return pictures


def _within(name: str, number: int, most: int) -> int:
    if not 1 <= number <= most:
        raise InputError(f"{name}: expected 1 to {most}, got {number}")
    return number


def _cameras(
    arguments: argparse.Namespace, size0: tuple[int, int], size1: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray] | tuple[None, None]:
    if arguments.focal is not None and (arguments.k0 or arguments.k1):
        raise InputError("--focal: expected either --focal or --k0 and --k1, got both")
    if arguments.focal is not None:
        return centred_camera(arguments.focal, size0), centred_camera(arguments.focal, size1)
    if not arguments.k0:
        if arguments.k1 or arguments.pose:
            raise InputError("--k0: expected together with --k1 and --pose, got nothing")
        return None, None
    K0 = camera_matrix("--k0", arguments.k0)
    return K0, camera_matrix("--k1", arguments.k1) if arguments.k1 else K0


def _labels(pose: Path | None, matches: Correspondences) -> np.ndarray | None:
    """[N] bool by the true pose, or None where it is not given."""
    import torch

    from ananet.datasets.base import LabelledPair

    if pose is None:
        return None
    try:
        numbers = np.array(pose.read_text().replace(",", " ").split(), np.float64)
    except (ValueError, UnicodeDecodeError):
        numbers = np.zeros(0)
    if numbers.size not in (12, 16):
        raise InputError(f"--pose: expected a text file with 12 or 16 numbers, got {pose}")
    matrix = torch.from_numpy(numbers.reshape(-1, 4)[:3])
    if not torch.allclose(matrix[:, :3] @ matrix[:, :3].mT, torch.eye(3).double(), atol=1e-3):
        raise InputError(f"--pose: expected a rotation in the first three columns, got {matrix[:, :3].tolist()}")
    return LabelledPair.from_pose("", matches, matrix[:, :3], matrix[:, 3]).inlier.numpy()
