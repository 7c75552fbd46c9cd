"""kornia's detectors give here what they give there."""

import os
import re

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from ananet import InputError, MissingExtraError
from ananet.features import Features, load_detector, load_matcher
from ananet.features.learned import find_weights
from tests.features.learned_detectors import WEIGHTS_OF, random_detector, random_matcher, shapes
from tests.photos import photo

pytest.importorskip("kornia")


def as_kornia(image):
    return torch.from_numpy(image[..., ::-1].copy()).permute(2, 0, 1)[None].float() / 255


def by_score(points, descriptors, scores):
    order = scores.argsort(descending=True, stable=True)
    return points[order].numpy(), descriptors[order].numpy()


@pytest.mark.parametrize("name", ["aliked", "disk", "xfeat"])
def test_as_kornia_on_an_image_of_whole_cells(name, tmp_path):
    detector = random_detector(name, tmp_path, max_keypoints=100)
    image = photo(160, 128)
    with torch.inference_mode():
        if name == "xfeat":
            theirs = detector.network.detectAndCompute(as_kornia(image), top_k=100)[0]
            points, descriptors = by_score(theirs["keypoints"], theirs["descriptors"], theirs["scores"])
        else:
            more = {"n": 100} if name == "disk" else {}
            theirs = detector.network(as_kornia(image), **more)[0]
            scores = theirs.detection_scores if name == "disk" else theirs.keypoint_scores
            points, descriptors = by_score(theirs.keypoints, theirs.descriptors, scores)
    ours = detector.detect(image)
    np.testing.assert_array_equal(ours.points, points)
    np.testing.assert_allclose(ours.descriptors, descriptors, atol=1e-6)


def test_options(tmp_path):
    image = photo(160, 128)
    for name, threshold in (("aliked", 1.0), ("disk", 1e9), ("xfeat", 0.9)):
        every = random_detector(name, tmp_path).detect(image)
        # ALIKED takes those above the mean where none is above the threshold.
        assert len(random_detector(name, tmp_path, threshold=threshold).detect(image)) < len(every)
    for wrong, message in (
        ("aliked@model=n8", "model: expected one of n16, n32, n16rot, t16, got 'n8'"),
        ("aliked@threshold=2", "threshold: expected a number from 0 to 1"),
        ("xfeat@threshold=-1", "threshold: expected a number from 0 to 1"),
        ("disk@weights=nowhere.pth", "weights: expected a file, got nowhere.pth"),
    ):
        with pytest.raises(InputError, match=message):
            load_detector(wrong)


def test_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "kornia.feature", None)
    with pytest.raises(MissingExtraError, match="extra 'features'"):
        load_detector("xfeat")


pytest.importorskip("kornia")

MATCHER_OF = {"aliked": "lightglue", "disk": "lightglue", "xfeat": "lighterglue"}


def random_features(keypoints: str, count: int, seed: int) -> Features:
    rng = np.random.default_rng(seed)
    descriptors = rng.normal(size=(count, 64 if keypoints == "xfeat" else 128)).astype(np.float32)
    descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)
    return Features(rng.uniform(0, (320, 240), (count, 2)), descriptors, (320, 240))


def matcher_of(weights, path, keypoints, **options):
    save_file(weights, path) if path.suffix == ".safetensors" else torch.save(weights, path)
    return load_matcher(
        MATCHER_OF[keypoints], detector=keypoints, device="cpu", weights=path, **{"threshold": 0.0} | options
    )


@pytest.mark.parametrize("keypoints", list(MATCHER_OF))
def test_as_kornia(keypoints, tmp_path):
    network = random_matcher(keypoints)
    matcher = matcher_of(network.state_dict(), tmp_path / "weights.safetensors", keypoints)
    features0, features1 = (random_features(keypoints, count, seed=count) for count in (90, 70))
    with torch.inference_mode():
        theirs = network(
            {
                f"image{number}": {
                    "keypoints": torch.from_numpy(features.points)[None],
                    "descriptors": torch.from_numpy(features.descriptors)[None],
                    "image_size": torch.tensor([[320, 240]]),
                }
                for number, features in enumerate((features0, features1))
            }
        )
    found = matcher(features0, features1)
    assert len(found) > 2
    np.testing.assert_array_equal(found.indices, theirs["matches"][0])
    np.testing.assert_allclose(found.scores, theirs["scores"][0], atol=1e-6)
    np.testing.assert_array_equal(found.points1, features1.points[found.indices[:, 1]])
    assert found.image_size0 == (320, 240) and found.ratio is None and found.mutual is None
    assert len(set(found.indices[:, 0].tolist())) == len(set(found.indices[:, 1].tolist())) == len(found)
    best = matcher_of(
        network.state_dict(), tmp_path / "weights.pth", keypoints, threshold=float(np.median(found.scores))
    )
    assert len(best(features0, features1)) == (found.scores > np.median(found.scores)).sum()


def test_older_names_and_shortened_weights(tmp_path):
    network = random_matcher("xfeat", layers=3)
    features = [random_features("xfeat", 80, seed) for seed in (0, 1)]
    weights = network.state_dict()
    whole = matcher_of(weights, tmp_path / "whole.safetensors", "xfeat")
    older = {
        "matcher." + re.sub(r"^transformers\.(\d+)\.(\w+_attn)", r"\2.\1", name): values
        for name, values in weights.items()
    } | {"matcher.log_assignment.0.r": torch.zeros(1)}
    again = matcher_of(older, tmp_path / "older.pth", "xfeat")
    np.testing.assert_array_equal(again(*features).indices, whole(*features).indices)

    def short(name):
        return not name.startswith(("log_assignment.0", "log_assignment.1", "token_confidence", "confidence_"))

    shortened = matcher_of({k: v for k, v in weights.items() if short(k)}, tmp_path / "short.safetensors", "xfeat")
    assert shortened.network.conf.width_confidence == -1 and shortened.network.conf.n_layers == 3
    whole.network.conf.width_confidence = -1
    np.testing.assert_array_equal(shortened(*features).indices, whole(*features).indices)
    with pytest.raises(InputError, match=r"expected weights of xfeat-lighterglue, got .*: it lacks log_assignment\.2"):
        lacking = {name: values for name, values in weights.items() if "log_assignment.2" not in name}
        matcher_of(lacking, tmp_path / "lacking.safetensors", "xfeat")


def test_keypoints_out_of_the_image_and_none_at_all(tmp_path):
    matcher = matcher_of(random_matcher("aliked").state_dict(), tmp_path / "a.safetensors", "aliked")
    features = random_features("aliked", 40, 0)
    features.points[:5] = (-20, 500)
    found = matcher(features, features)
    # Only the network sees them at the border.
    outside = found.indices[:, 0] < 5
    assert (found.points0[outside] == torch.tensor([-20.0, 500.0])).all()
    assert len(matcher(features[:0], features)) == len(matcher(features, features[:0])) == 0


def test_what_cannot_be_matched(tmp_path, monkeypatch):
    weights = random_matcher("aliked").state_dict()
    matcher = matcher_of(weights, tmp_path / "a.safetensors", "aliked")
    assert repr(matcher).startswith("<matcher lightglue@weights=")
    with pytest.raises(InputError, match=r"matcher .*expected real numbers \(N, 128\), got float32 \(9, 64\)"):
        matcher(random_features("xfeat", 9, 0), random_features("xfeat", 9, 0))
    with pytest.raises(InputError, match="features0: expected Features"):
        matcher(np.zeros((3, 2)), random_features("aliked", 9, 0))
    for name, detector, message in (
        ("lightglue", "sift", "matcher 'lightglue': expected keypoints of aliked or disk, got 'sift'"),
        ("lightglue", "stored@path=x", "expected keypoints of aliked or disk, got 'stored'"),
        ("lighterglue", "aliked", "matcher 'lighterglue': expected keypoints of xfeat, got 'aliked'"),
        ("lightglue@threshold=2", "aliked", "threshold: expected a number from 0 to 1"),
        (f"lighterglue@weights={tmp_path / 'a.safetensors'}", "xfeat", "expected weights of xfeat-lighterglue, got"),
        ("lightglue@neighbours=2", "aliked", "unknown option neighbours of matcher 'lightglue': it has threshold"),
        ("superglue", "aliked", "matcher: expected one of nearest, lightglue, lighterglue, got 'superglue'"),
    ):
        with pytest.raises(InputError, match=message):
            load_matcher(name, detector=detector, device="cpu")
    # Own features: their kind is told.
    told = load_matcher("lightglue", detector="stored", keypoints="aliked", weights=tmp_path / "a.safetensors")
    assert told.network.conf.input_dim == 128

    def no_network(*_, **__):
        raise OSError("no network")

    monkeypatch.delenv("ANANET_WEIGHTS", raising=False)
    monkeypatch.setattr("kornia.feature.lightglue.load_state_dict_from_url", no_network)
    with pytest.raises(InputError, match=r"aliked_lightglue was not found .* --matcher-weights aliked_lightglue.pth"):
        load_matcher("lightglue", detector="aliked")
    monkeypatch.setitem(__import__("sys").modules, "kornia.feature", None)
    with pytest.raises(MissingExtraError, match="extra 'features'"):
        load_matcher("lightglue", detector="aliked")


@pytest.mark.parametrize("keypoints", list(MATCHER_OF))
def test_trained_ones_match_a_shifted_picture(keypoints):
    names = (WEIGHTS_OF[keypoints], {"xfeat": "xfeat-lighterglue"}.get(keypoints, f"{keypoints}_lightglue"))
    if not os.environ.get("ANANET_WEIGHTS") or None in map(find_weights, names):
        pytest.skip(f"ANANET_WEIGHTS lacks one of {', '.join(names)}")
    picture = shapes(448, 352)
    detector = load_detector(keypoints, device="cpu", max_keypoints=400)
    matcher = load_matcher(MATCHER_OF[keypoints], detector=keypoints, device="cpu")
    found = matcher(detector.detect(picture[:320, :416]), detector.detect(picture[32:, 32:]))
    step = (found.points0 - found.points1 - 32).abs().amax(dim=1)
    assert len(found) > 60 and (step < 3).float().mean() > 0.9
