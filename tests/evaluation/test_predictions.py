from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from ananet import InputError
from ananet.evaluation.predictions import (
    Origin,
    Prediction,
    Predictions,
    PredictionStore,
    check_origin,
    fingerprint,
    read_predictions,
    write_predictions,
)
from ananet.io.files import file_sha256
from tests.conftest import make_problem

ORIGIN = Origin("tiny", [{"threshold": 0.4}], "abc", "posed scenes", {"detector": "sift", "limit": None})


@pytest.fixture
def stored(tmp_path):
    matches = make_problem().matches
    answers = [
        Prediction(np.arange(500) % 3 == 0, np.linspace(-5, 5, 500, dtype=np.float32)),
        Prediction(np.zeros(0, bool), np.zeros(0, np.float32)),
    ]
    path = tmp_path / "tiny.safetensors"
    names = ["a", "b"]
    prints = [fingerprint(matches), fingerprint(matches[[]])]
    write_predictions(path, Predictions(ORIGIN, names, prints, answers, {"numpy": "2"}))
    return path, matches, answers


def test_round_trip(stored):
    path, matches, answers = stored
    found = read_predictions(path)
    assert found.origin == ORIGIN and found.names == ["a", "b"] and found.versions == {"numpy": "2"}
    for was, now in zip(answers, found.results, strict=True):
        assert (was.mask == now.mask).all() and (was.logits == now.logits).all()
    check_origin(path, found.origin, ORIGIN)
    store = PredictionStore(path.parent, {"tiny": ORIGIN}, 2)
    assert store.complete == ["tiny"] and len(store.found["tiny"]) == 2
    store.check(0, "a", fingerprint(matches))
    store.check(1, "b", fingerprint(matches[[]]))
    assert (store.given(0)["tiny"].mask == answers[0].mask).all()


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        (replace(ORIGIN, pruner="other"), "pruner was tiny, expected other"),
        (replace(ORIGIN, options=[{"threshold": 0.5}]), r"options was \[.*0.4.*\], expected \[.*0.5.*\]"),
        (replace(ORIGIN, weights_sha256="def"), "weights .sha256. was abc, expected def"),
        (replace(ORIGIN, source="MULTI"), "source was posed scenes, expected MULTI"),
        (replace(ORIGIN, settings={"detector": "orb"}), "match settings was"),
    ],
)
def test_other_origins_are_refused(stored, changed, word):
    with pytest.raises(InputError, match=f"is stale: its {word}"):
        check_origin(stored[0], ORIGIN, changed)


def test_other_matches_are_refused(stored):
    path, matches, _ = stored
    store = PredictionStore(path.parent, {"tiny": ORIGIN}, 2)
    with pytest.raises(InputError, match="tiny.safetensors is stale: pair 0 is z, the file has a"):
        store.check(0, "z", fingerprint(matches))
    for other in (matches[:400], matches[np.r_[1, 0, 2:500]], make_problem(seed=1).matches):
        with pytest.raises(InputError, match="tiny.safetensors is stale: other matches of a"):
            store.check(0, "a", fingerprint(other))


def test_files_of_more_or_fewer_pairs_are_refused(stored):
    for pairs in (1, 3):
        with pytest.raises(InputError, match=f"tiny.safetensors is stale: it has 2 pairs, expected {pairs}"):
            PredictionStore(stored[0].parent, {"tiny": ORIGIN}, pairs)
    with pytest.raises(InputError, match="is stale: its options was"):
        PredictionStore(stored[0].parent, {"tiny": replace(ORIGIN, options=[])}, 2)


NAMES = ("quick", "slow")
ORIGINS = {name: replace(ORIGIN, pruner=name) for name in NAMES}


def answer(pruner: str, number: int) -> Prediction:
    rng = np.random.default_rng([len(pruner), number])
    return Prediction(rng.random(number + 3) < 0.5, rng.normal(size=number + 3).astype(np.float32))


def row(number: int, pruners: tuple[str, ...] = NAMES) -> tuple[str, str, dict[str, Prediction]]:
    return f"pair{number}", f"print{number}", {name: answer(name, number) for name in pruners}


def same(a: Predictions, b: Predictions) -> bool:
    return (
        (a.origin, a.names, a.fingerprints) == (b.origin, b.names, b.fingerprints)
        and all((x.mask == y.mask).all() for x, y in zip(a.results, b.results, strict=True))
        and all((x.logits == y.logits).all() for x, y in zip(a.results, b.results, strict=True))
    )


def test_predictions_are_kept_in_parts_and_joined_at_the_end(tmp_path):
    store = PredictionStore(tmp_path / "new" / "folder", ORIGINS, 5)
    assert store.complete == [] and store.given(0) == {}
    store.add([row(0), row(1)])
    parts = tmp_path / "new" / "folder" / "slow.parts"
    assert [path.name for path in parts.iterdir()] == ["00000000.safetensors"]
    store.add([row(2), row(3)])
    store.add([row(4)])
    assert len(list(parts.iterdir())) == 3
    store.finish()
    assert sorted(path.name for path in parts.parent.iterdir()) == ["quick.safetensors", "slow.safetensors"]
    found = read_predictions(parts.parent / "slow.safetensors")
    assert found.names == [f"pair{n}" for n in range(5)]
    assert all((a.logits == answer("slow", n).logits).all() for n, a in enumerate(found.results))


def test_a_stopped_evaluation_goes_on_and_gives_the_same_file(tmp_path):
    whole = PredictionStore(tmp_path / "whole", ORIGINS, 6)
    for start in (0, 2, 4):
        whole.add([row(start), row(start + 1)])
    whole.finish()

    stopped = PredictionStore(tmp_path / "parts", ORIGINS, 6)
    stopped.add([row(0), row(1)])
    # The process was killed while it wrote the second part: of one pruner only.
    PredictionStore(tmp_path / "parts", {"quick": ORIGINS["quick"]}, 6).add([row(0), row(1), row(2), row(3)])

    again = PredictionStore(tmp_path / "parts", ORIGINS, 6)
    assert again.complete == [] and [sorted(again.given(n)) for n in (1, 3, 4)] == [["quick", "slow"], ["quick"], []]
    # What was there is not written again, even if other numbers came out.
    for numbers in ((0, 1, 2), (3, 4, 5)):
        again.add([row(n) for n in numbers])
    names = {name: sorted(p.stem for p in (tmp_path / "parts" / f"{name}.parts").iterdir()) for name in NAMES}
    assert names == {"quick": ["00000000", "00000002", "00000004"], "slow": ["00000000", "00000002", "00000003"]}
    again.finish()
    for name in NAMES:
        files = [read_predictions(tmp_path / folder / f"{name}.safetensors") for folder in ("whole", "parts")]
        assert same(*files)
        assert not (tmp_path / "parts" / f"{name}.parts").exists()
    assert PredictionStore(tmp_path / "parts", ORIGINS, 6).complete == list(NAMES)


def test_complete_predictions_are_not_touched(tmp_path):
    PredictionStore(tmp_path, {"quick": ORIGINS["quick"]}, 2).add([row(0), row(1)])
    first = PredictionStore(tmp_path, {"quick": ORIGINS["quick"]}, 2)
    first.finish()
    before = (tmp_path / "quick.safetensors").read_bytes()
    store = PredictionStore(tmp_path, ORIGINS, 2)
    assert store.complete == ["quick"]
    store.add([row(0), row(1)])
    store.finish()
    assert (tmp_path / "quick.safetensors").read_bytes() == before
    assert len(read_predictions(tmp_path / "slow.safetensors")) == 2


def test_stale_parts_are_refused(tmp_path):
    PredictionStore(tmp_path, ORIGINS, 5).add([row(0), row(1)])
    changed = {**ORIGINS, "slow": replace(ORIGINS["slow"], weights_sha256="def")}
    with pytest.raises(InputError, match="slow.safetensors is stale: its weights .sha256. was abc, expected def"):
        PredictionStore(tmp_path, changed, 5)
    with pytest.raises(InputError, match="is stale: it has 2 pairs, expected 1"):
        PredictionStore(tmp_path, ORIGINS, 1)
    store = PredictionStore(tmp_path, ORIGINS, 5)
    store.check(1, "pair1", "print1")
    store.check(2, "anything", "new")
    with pytest.raises(InputError, match="is stale: pair 1 is other, the file has pair1"):
        store.check(1, "other", "print1")
    with pytest.raises(InputError, match="is stale: other matches of pair1"):
        store.check(1, "pair1", "else")


def test_a_part_after_a_gap_does_not_count(tmp_path):
    store = PredictionStore(tmp_path, {"quick": ORIGINS["quick"]}, 6)
    for start in (0, 2, 4):
        store.add([row(start), row(start + 1)])
    (tmp_path / "quick.parts" / "00000002.safetensors").unlink()
    again = PredictionStore(tmp_path, {"quick": ORIGINS["quick"]}, 6)
    assert [bool(again.given(n)) for n in range(6)] == [True, True, False, False, False, False]
    again.add([row(n) for n in range(6)])
    again.finish()
    assert read_predictions(tmp_path / "quick.safetensors").names == [f"pair{n}" for n in range(6)]


def test_without_a_folder_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = PredictionStore(None, ORIGINS, 2)
    store.check(0, "any", "print")
    store.add([row(0), row(1)])
    store.finish()
    assert store.complete == [] and not list(tmp_path.iterdir())


def test_files_have_fingerprints(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert file_sha256(tmp_path / "a").startswith("ba7816bf8f01cfea")


def test_what_is_no_file_of_predictions(tmp_path, world):
    with pytest.raises(InputError, match="predictions: no file"):
        read_predictions(tmp_path / "nothing.safetensors")
    (tmp_path / "x.safetensors").write_bytes(b"nonsense")
    with pytest.raises(InputError, match="predictions: .* cannot be read"):
        read_predictions(tmp_path / "x.safetensors")
    with pytest.raises(InputError, match="predictions: expected format"):
        read_predictions(world.weights)


def test_parts_that_were_being_removed_do_not_replace_the_whole(tmp_path):
    store = PredictionStore(tmp_path, {"quick": ORIGINS["quick"]}, 4)
    for start in (0, 2):
        store.add([row(start), row(start + 1)])
    first = (tmp_path / "quick.parts" / "00000000.safetensors").read_bytes()
    store.finish()
    whole = (tmp_path / "quick.safetensors").read_bytes()
    # The process ended between the two removals.
    (tmp_path / "quick.parts").mkdir()
    (tmp_path / "quick.parts" / "00000000.safetensors").write_bytes(first)
    PredictionStore(tmp_path, {"quick": ORIGINS["quick"]}, 4).finish()
    assert (tmp_path / "quick.safetensors").read_bytes() == whole
    assert [path.name for path in tmp_path.iterdir()] == ["quick.safetensors"]


def test_other_files_among_the_parts_do_not_count(tmp_path):
    PredictionStore(tmp_path, {"quick": ORIGINS["quick"]}, 4).add([row(0)])
    (tmp_path / "quick.parts" / "0 copy.safetensors").write_bytes(b"")
    assert len(PredictionStore(tmp_path, {"quick": ORIGINS["quick"]}, 4).found["quick"]) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"start": torch.tensor([0, 500, 500], dtype=torch.uint64)},
        {"start": torch.tensor([0.0, 500, 500])},
        {"start": torch.tensor([0, -(2**63), 500])},
        {"logits": torch.zeros(500).to(torch.float8_e4m3fn)},
        {"mask": torch.zeros(500, dtype=torch.uint8)},
    ],
)
def test_tensors_of_other_kinds_are_refused(stored, changed):
    with safe_open(stored[0], framework="pt") as file:
        metadata, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors | changed, stored[0], metadata)
    with pytest.raises(InputError, match="is inconsistent|cannot be read"):
        read_predictions(stored[0])
