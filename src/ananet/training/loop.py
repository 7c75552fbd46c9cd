"""The training loop. It reads top to bottom: set up, go on where a run stopped, then step by step.

A run lives in one folder: `last.safetensors` and `best.safetensors` (checkpoints), `log.jsonl`, and at the end
`weights.safetensors`, which `ananet.load` takes. Batches follow from the seed and the step, so a run that was stopped
and resumed does what it would have done otherwise.

Several processes (torchrun) each draw their own batches and share gradients.
"""

from __future__ import annotations

import copy
import json
import math
import os
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ananet import __version__
from ananet._util.checks import like, shown
from ananet._util.devices import choose_device
from ananet._util.seeds import generator
from ananet.datasets.base import Batch, LabelledPair
from ananet.datasets.sources import StoredPairs, open_stored_pairs
from ananet.errors import InputError
from ananet.estimators import load_estimator
from ananet.io.files import only_process, remove_temporaries
from ananet.networks import ANANet, Network, Supervision, load_network, make_network, save_network
from ananet.networks.input import SIDE_INPUT, side_input
from ananet.pruners.learned import LearnedPruner
from ananet.recipes import recipe_path
from ananet.training.calibration import fit_scores, labels, pose_scores, predict, score
from ananet.training.checkpoint import Progress, load_checkpoint, read_checkpoint, save_checkpoint
from ananet.training.data import BatchSource, known_side_input
from ananet.training.loss import class_loss, loss_of_solution
from ananet.training.muon import OPTIMIZERS
from ananet.training.settings import TrainSettings
from ananet.weights import bundled, weight_file

# A scale and a shift need no more pairs than this.
CALIBRATION_PAIRS = 400
LAST, BEST, WEIGHTS, LOG = "last.safetensors", "best.safetensors", "weights.safetensors", "log.jsonl"


def train(
    settings: TrainSettings | str | Path | None = None,
    run: str | Path = "runs/ananet",
    *,
    device: str | torch.device = "auto",
    start_from: str | Path | None = None,
    until: int | None = None,
    max_seconds: float = math.inf,
    **changes: Any,
) -> dict[str, Any]:
    """Train a network, fine-tune one, or continue the run in the folder, up to `settings.steps`.

    Args:
        settings: `TrainSettings`, the name of a recipe, or a TOML file.
        run: folder of the run; if it holds a checkpoint, its settings must be these.
        device: "auto", "cpu", "cuda" or the like.
        start_from: bundled weights or a weight file to fine-tune. Without settings, the network's shape is kept.
        until, max_seconds: stop early at this step or after this time, with a checkpoint to go on from.
        changes: fields of `TrainSettings` that replace those of `settings`: `pairs`, `validation`, `steps`, ...

    Returns:
        The result: step, loss (None if no step was left), seconds, and validation scores if there are any.
    """
    if start_from is not None:
        names, given = ", ".join(bundled()), str(start_from)
        if (start_from := weight_file(given)) is None:
            raise InputError(
                f"from: expected one of {names} or a .safetensors file, got {shown(given)}{like(given, bundled())}"
            )
    settings = _settings(settings, start_from, changes)
    rank, processes = _join_processes()
    own_device = _own_device(device, rank)
    run = Path(run)
    trainer = Trainer(settings, run, own_device, start_from, rank, processes)
    last_step = min(settings.steps, until or settings.steps)
    start, started_at = time.monotonic(), trainer.step
    log = run / LOG if rank == 0 else None
    # No other process may train in the folder meanwhile. What killed runs left in it is removed.
    with (
        only_process(run) if rank == 0 else nullcontext(),
        Progress(log, settings.steps, trainer.step, settings.tensorboard) as progress,
    ):
        if rank == 0:
            remove_temporaries(run)
        progress.say(trainer.describe())
        mean_loss = torch.zeros((), device=own_device)
        while trainer.step < last_step:
            loss, gradient = trainer.advance()
            step = trainer.step
            mean_loss += (loss - mean_loss) / min(step - started_at, settings.log_every)
            elapsed = time.monotonic() - start
            if step == started_at + 1 and own_device.type == "cpu":
                progress.say(f"one step took {elapsed:.1f} s: {_duration(elapsed * (last_step - started_at))} in all")
            finishing = step == last_step or elapsed > max_seconds
            if step % settings.log_every == 0 or finishing:
                _stop_if_broken(float(mean_loss), float(gradient), step, run)
                rate = (step - started_at) * settings.batches.batch_size * processes / elapsed
                learning_rate = _learning_rate(settings, step - 1)
                progress.log(step, loss=float(mean_loss), learning_rate=learning_rate, pairs_per_second=rate)
            if step % settings.validate_every == 0 or finishing:
                trainer.validate(progress)
            if step % settings.checkpoint_every == 0 or finishing:
                trainer.save(LAST, elapsed)
            if finishing:
                break
        trainer.notes["seconds"] += time.monotonic() - start
        scores = trainer.finish(progress)
    if processes > 1:
        dist.barrier()
        dist.destroy_process_group()
    loss_now = float(mean_loss) if trainer.step > started_at else None
    return {"step": trainer.step, "loss": loss_now, **trainer.notes, "validation": scores}


def _settings(
    given: TrainSettings | str | Path | None, start_from: Path | None, changes: dict[str, Any]
) -> TrainSettings:
    if given is None and start_from is not None:
        changes = {"network": load_network(start_from)[0].settings} | changes
    settings = TrainSettings() if given is None else given
    if not isinstance(settings, TrainSettings):
        settings = TrainSettings.from_toml(recipe_path(str(settings)))
    settings = settings.replace(**changes)
    if start_from is not None and not settings.pairs:
        raise InputError("from: expected pairs to fine-tune on, give --pairs")
    return settings


class Trainer:
    """A network, what trains it, and how far it has come."""

    def __init__(
        self,
        settings: TrainSettings,
        run: Path,
        device: torch.device,
        start_from: str | Path | None,
        rank: int,
        processes: int,
    ) -> None:
        self.settings, self.run, self.device, self.rank = settings, run, device, rank
        self.pairs = open_stored_pairs(settings.pairs) if settings.pairs else None
        if settings.pose_estimator is not None:
            load_estimator(settings.pose_estimator)  # better missed now than after the last step
        torch.manual_seed(settings.seed)
        network = make_network(settings.network)
        if start_from is not None:
            _copy_weights(network, start_from)
        self.network = network.to(device)
        self.average = RunningAverage(self.network, settings.averaging)
        more = {"weight_decay": settings.weight_decay, "fused": device.type == "cuda"}
        self.optimizer = OPTIMIZERS[settings.optimizer](self.network.parameters(), settings.learning_rate, **more)
        self.step = 0
        data = None if self.pairs is None else self.pairs.fingerprint()
        self.notes: dict[str, Any] = {"best": None, "seconds": 0.0, "data": data}
        run.mkdir(parents=True, exist_ok=True)
        if (run / LAST).exists():
            _same_run(run / LAST, settings, data)
            self.step, self.notes = load_checkpoint(run / LAST, self.network, self.average.network, self.optimizer)
        self.model = _trainable(self.network, settings, device, processes)
        self.source = BatchSource(settings, self.pairs, device, rank, processes)
        self.validation: list[LabelledPair] = []
        if settings.validation and rank == 0:
            self.validation = _that_share_a_view(open_stored_pairs(settings.validation))

    def describe(self) -> str:
        """What will be trained, on what and where, in one line."""
        settings, batches = self.settings, self.settings.batches
        parameters = sum(parameter.numel() for parameter in self.network.parameters())
        data = "synthetic problems alone" if self.pairs is None else f"{len(self.pairs)} pairs of {settings.pairs}"
        labels = ", labels by depth" if settings.labels == "depth" else ""
        resumed = f", from step {self.step}" if self.step else ""
        return (
            f"training {settings.network.name} ({parameters:,} parameters) on {self.device}: {settings.steps:,} steps "
            f"of {batches.batch_size} x {batches.matches} matches, {data}{labels}{resumed}"
        )

    def advance(self) -> tuple[Tensor, Tensor]:
        """One step; returns its loss and the length of the gradient, without waiting for the device."""
        for group in self.optimizer.param_groups:
            group["lr"] = _learning_rate(self.settings, self.step)
        batch, full = self.source.draw(self.step)
        if isinstance(self.network, ANANet):
            self.network.seeds = self.network.settings.seeds if self._through_seeds() else 0
        loss = self._loss(batch, full)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        gradient = nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.clip_gradient)
        self.optimizer.step()
        self.step += 1
        self.average.update(self.step)
        return loss.detach(), gradient

    def _through_seeds(self) -> bool:
        """Whether a network with seeds attends through them in this step; the same in all processes."""
        draw = torch.rand(1, generator=generator("cpu", "seeds", self.settings.seed, self.step))
        return self.step >= self.settings.seeded_from and draw.item() < self.settings.seeded_share

    def _loss(self, batch: Batch, full: bool) -> Tensor:
        settings, mask = self.settings, batch.mask
        half = settings.precision == "bf16" and self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=half):
            found = self.model(self._input(batch), None if full else mask)
        loss = torch.zeros((), device=self.device)
        target, weight = batch.target, batch.weight
        for logits in found.right:
            loss = loss + class_loss(logits, target, weight, settings.balance)
        if found.right:
            target, weight = settings.label_rule().by_line(batch.distance, batch.share)
            weight = weight * mask
        for logits in found.stages:
            loss = loss + class_loss(logits, target, weight, settings.balance)
        for logits in found.layers:
            loss = loss + class_loss(logits, target, weight, settings.balance) / len(found.layers)
        if settings.geometric_weight and self.step >= settings.geometric_from:
            for weights in found.weights:
                loss = loss + settings.geometric_weight * loss_of_solution(self.network.geometric, weights, batch)
        return loss

    def _input(self, batch: Batch) -> Tensor:
        """[B x N x channels]: coordinates and side input, some of it withheld."""
        side = self.settings.network.side
        if not side:
            return batch.matches
        values = side_input(side, batch.matches[..., 0], batch.ratio, batch.mutual, batch.sizes, batch.angles)
        draw = generator(self.device, "side", self.settings.seed, self.rank, self.step)
        known = known_side_input(len(values), len(side), self.settings.side_dropout, draw)
        channels = torch.tensor([SIDE_INPUT[name] for name in side], device=self.device)
        shown = known.repeat_interleave(channels, dim=1, output_size=values.shape[-1])[:, None] & batch.mask[..., None]
        return torch.cat([batch.matches, values * shown], dim=-1)

    def validate(self, progress: Progress) -> None:
        """Score the averaged weights, as a pruner would run them, and keep the best."""
        if not self.validation:
            return
        scores = self._scores(self.average.network)
        progress.log(self.step, **{f"validation_{name}": value for name, value in scores.items()})
        best = self.notes["best"]
        if best is None or scores["average_precision"] > best["average_precision"]:
            self.notes["best"] = {"step": self.step, **scores}
            self.save(BEST, 0.0)

    def _scores(self, network: Network, estimator: str | None = None) -> dict[str, float]:
        answers = predict(LearnedPruner(network, self.device), self.validation)
        scores = score(answers, labels(self.validation, self.settings.label_rule()))
        if len(network.labels) > 1:
            line = predict(LearnedPruner(network, self.device, label="line"), self.validation)
            scores |= {f"line_{name}": value for name, value in score(line, labels(self.validation)).items()}
        return scores if estimator is None else scores | pose_scores(answers, self.validation, estimator)

    def save(self, name: str, elapsed: float) -> None:
        """Write a checkpoint; `elapsed` seconds of this session are not in the notes yet."""
        if self.rank == 0:
            notes = {**self.notes, "seconds": self.notes["seconds"] + elapsed}
            trained = (self.network, self.average.network, self.optimizer)
            save_checkpoint(self.run / name, self.step, self.settings.to_dict(), *trained, notes)

    def finish(self, progress: Progress) -> dict[str, float]:
        """Fit the scores, write the weights with their card, and return what they come to on the validation pairs."""
        if self.rank != 0:
            return {}
        settings = self.settings
        network = copy.deepcopy(self.average.network)
        calibration = dict.fromkeys(network.labels, (1.0, 0.0))
        if self.pairs is not None:
            chosen = _that_share_a_view(self.pairs[n] for n in _calibration_pairs(settings, self.pairs))
            kind = "kept out of training" if settings.calibration_scenes else "that were trained on"
            progress.say(f"fitting the scores on {len(chosen)} pairs {kind}")
            if chosen:
                calibration = fit_scores(network, chosen, self.device, settings.label_rule())
        scores: dict[str, float] = {}
        if self.validation:
            progress.say(f"scoring the weights on {len(self.validation)} validation pairs")
            scores = self._scores(network, settings.pose_estimator)
            progress.log(self.step, **{f"final_{name}": value for name, value in scores.items()})
        # Where the pairs lay says nothing to others.
        how = {name: value for name, value in settings.to_dict().items() if name not in ("pairs", "validation")}
        card = {"ananet": __version__, "settings": how, **self.notes, "steps": self.step, "validation": scores}
        card |= {"calibration": calibration, "training_scenes": self._training_scenes()}
        save_network(self.run / WEIGHTS, network, card)
        return scores

    def _training_scenes(self) -> list[str]:
        left_out = {*self.settings.calibration_scenes, *self.settings.excluded_scenes}
        return [] if self.pairs is None else sorted(set(self.pairs.scene_of_pairs()) - left_out)


class _Supervised(nn.Module):
    """A network that returns everything that is supervised."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network

    def forward(self, matches: Tensor, mask: Tensor | None) -> Supervision:
        return self.network.supervision(matches, mask)


def _trainable(
    network: Network, settings: TrainSettings, device: torch.device, processes: int
) -> Callable[[Tensor, Tensor | None], Supervision]:
    """The network as a training step calls it."""
    supervised = _Supervised(network)
    if processes > 1:
        return DistributedDataParallel(supervised)
    if settings.compile and device.type == "cuda":
        network.prepare_to_compile()
        # One CUDA graph forward and one backward: launching a thousand small kernels takes longer than running them.
        return torch.compile(supervised, mode="reduce-overhead", dynamic=False)
    return supervised


def _calibration_pairs(settings: TrainSettings, pairs: StoredPairs) -> list[int]:
    """Numbers of the pairs to fit the scores on, evenly spread.

    Without scenes kept out for it, pairs that were trained on are better than none.
    """
    scene_of_pairs = pairs.scene_of_pairs()
    names = set(settings.calibration_scenes) or set(scene_of_pairs) - set(settings.excluded_scenes)
    chosen = [number for number, name in enumerate(scene_of_pairs) if name in names]
    return chosen[:: max(1, math.ceil(len(chosen) / CALIBRATION_PAIRS))]


def _that_share_a_view(pairs: Iterable[LabelledPair]) -> list[LabelledPair]:
    """All but the pairs that show nothing in common: without a right match, precision and recall say nothing."""
    return [pair for pair in pairs if not pair.is_empty]


def _learning_rate(settings: TrainSettings, step: int) -> float:
    """Linear warm-up, then a cosine down to the final rate."""
    if step < settings.warmup:
        return settings.learning_rate * (step + 1) / settings.warmup
    share = (step - settings.warmup) / max(settings.steps - settings.warmup, 1)
    span = settings.learning_rate - settings.final_learning_rate
    return settings.final_learning_rate + span * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))


class RunningAverage:
    """Running mean of a network's weights and statistics."""

    def __init__(self, network: Network, decay: float) -> None:
        self.network, self.decay = copy.deepcopy(network).eval(), decay
        means, values = self.network.state_dict().values(), network.state_dict().values()
        pairs = [(mean, value) for mean, value in zip(means, values, strict=True) if mean.dtype.is_floating_point]
        self.means, self.values = [mean for mean, _ in pairs], [value for _, value in pairs]

    @torch.no_grad()
    def update(self, step: int) -> None:
        # At the start the average should follow quickly, or it remembers the random beginning.
        keep = min(self.decay, step / (step + 10))
        torch._foreach_lerp_(self.means, self.values, 1 - keep)


def _stop_if_broken(loss: float, norm: float, step: int, run: Path) -> None:
    if not math.isfinite(loss) or not math.isfinite(norm):
        raise FloatingPointError(
            f"the loss is {loss} and the gradient's length {norm} at step {step}; stopped. The last good checkpoint is "
            f"{run / LAST}: resume from it with a lower learning rate"
        )


def _duration(seconds: float) -> str:
    """Return a duration in words.

    >>> _duration(50), _duration(7200), _duration(400_000)
    ('50 s', '2 hours', '5 days')
    """
    for name, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {name}"
    return f"{seconds:.0f} s"


def _same_run(path: Path, settings: TrainSettings, data: str | None) -> None:
    """Refuses to go on with other settings or other pairs; where the pairs lie does not matter."""
    header, _ = read_checkpoint(path)
    now = json.loads(json.dumps(settings.to_dict()))
    paths = ("pairs", "validation")
    different = sorted(name for name in now if name not in paths and header["settings"].get(name) != now[name])
    if header["notes"].get("data") != data:
        different.append("pairs")
    if different:
        told = f"run: {path.parent} holds a run with other settings ({', '.join(different)})"
        raise InputError(f"{told}; use these again, or another folder")


def _copy_weights(network: Network, path: str | Path) -> None:
    try:
        network.start_from(load_network(path)[0])
    except InputError as error:
        raise InputError(f"from: {path}: {error}") from None


def _join_processes() -> tuple[int, int]:
    """Return the rank of this process and the number of processes, as torchrun's environment has them."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if processes > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return (dist.get_rank(), processes) if processes > 1 else (0, 1)


def _own_device(device: str | torch.device, rank: int) -> torch.device:
    """The device of this process: of several GPUs, each process has its own."""
    chosen = choose_device(device)
    if chosen.type != "cuda" or chosen.index is not None:
        return chosen
    own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)))
    torch.cuda.set_device(own)
    return own
