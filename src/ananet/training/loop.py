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
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ananet import __version__
from ananet.datasets.base import Batch
from ananet.datasets.batches import PairBatches
from ananet.datasets.shards import PairSet, read_pairs
from ananet.datasets.synthetic import SyntheticSettings, synthesize
from ananet.devices import choose_device
from ananet.errors import InputError
from ananet.networks import ANANet, load_network, save_network
from ananet.networks.input import side_input
from ananet.training.checkpoint import load_checkpoint, read_checkpoint, save_checkpoint
from ananet.training.loss import class_loss, geometric_loss
from ananet.training.muon import OPTIMIZERS
from ananet.training.progress import Progress
from ananet.training.settings import TrainSettings
from ananet.training.validation import fit_probabilities, fold_into_head, pose_scores, predict, score

PROBLEMS_AT_ONCE = 512
# A scale and a shift need no more pairs than this.
CALIBRATION_PAIRS = 400
LAST, BEST, WEIGHTS, LOG = "last.safetensors", "best.safetensors", "weights.safetensors", "log.jsonl"


def train(
    settings: TrainSettings,
    run: str | Path,
    *,
    device: str | torch.device = "auto",
    start_from: str | Path | None = None,
    until: int | None = None,
    max_seconds: float = math.inf,
) -> dict[str, Any]:
    """Train until `settings.steps`, or go on with the run that the folder holds.

    Args:
        run: folder of the run; if it holds a checkpoint, its settings must be these.
        device: "auto", "cpu", "cuda" or the like.
        start_from: a weight file to fine-tune.
        until, max_seconds: stop early at this step or after this time, with a checkpoint to go on from.

    Returns:
        What the run came to: step, loss (None if no step was left), seconds, and validation scores if there are any.
    """
    rank, processes = _join_processes()
    device = _own_device(device, rank)
    run = Path(run)
    run.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(settings.seed)
    network = ANANet(settings.network)
    if start_from is not None:
        _copy_weights(network, start_from)
    network = network.to(device)
    average = RunningAverage(network, settings.averaging)
    optimizer = OPTIMIZERS[settings.optimizer](
        network.parameters(), settings.learning_rate, weight_decay=settings.weight_decay, fused=device.type == "cuda"
    )
    step = 0
    notes: dict[str, Any] = {"best": None, "seconds": 0.0}
    if (run / LAST).exists():
        _same_settings(run / LAST, settings)
        step, notes = load_checkpoint(run / LAST, network, average.network, optimizer)

    model: Callable[..., Tensor] = DistributedDataParallel(network) if processes > 1 else network
    if settings.compile and device.type == "cuda" and processes == 1:
        # One CUDA graph forward and one backward: launching a thousand small kernels takes longer than running them.
        model = torch.compile(network, mode="reduce-overhead", dynamic=False)
    pairs = read_pairs(settings.pairs) if settings.pairs else None
    source = BatchSource(settings, pairs, device, rank, processes)
    validation = list(read_pairs(settings.validation)) if settings.validation and rank == 0 else []
    last_step = min(settings.steps, until or settings.steps)
    start, started_at = time.monotonic(), step
    mean_loss = torch.zeros((), device=device)
    with Progress(run / LOG if rank == 0 else None, settings.steps, step) as progress:
        while step < last_step:
            learning_rate = _learning_rate(settings, step)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate
            batch, full = source.draw(step)
            loss = _loss(model, batch, full, settings, step, device)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(network.parameters(), settings.clip_gradient)
            optimizer.step()
            step += 1
            average.update(step)

            mean_loss += (loss.detach() - mean_loss) / min(step - started_at, settings.log_every)
            out_of_time = time.monotonic() - start > max_seconds
            finishing = step == last_step or out_of_time
            if step % settings.log_every == 0 or finishing:
                _stop_if_broken(float(mean_loss), float(norm), step, run)
                rate = (step - started_at) * settings.batches.batch_size * processes / (time.monotonic() - start)
                progress.log(step, loss=float(mean_loss), learning_rate=learning_rate, pairs_per_second=rate)
            if rank == 0 and (step % settings.validate_every == 0 or finishing) and validation:
                scores = score(predict(average.network, validation, device, settings.inlier_distance))
                progress.log(step, **{f"validation_{name}": value for name, value in scores.items()})
                if notes["best"] is None or scores["average_precision"] > notes["best"]["average_precision"]:
                    notes["best"] = {"step": step, **scores}
                    _save(run / BEST, step, settings, network, average.network, optimizer, notes)
            if rank == 0 and (step % settings.checkpoint_every == 0 or finishing):
                spent = notes["seconds"] + time.monotonic() - start
                _save(run / LAST, step, settings, network, average.network, optimizer, {**notes, "seconds": spent})
            if out_of_time:
                break

        notes["seconds"] += time.monotonic() - start
        scores = {}
        if rank == 0:
            facts = {**notes, "steps": step}
            scores = calibrate_and_save(run, settings, average.network, pairs, validation, device, facts, progress.say)
            if scores:
                progress.log(step, **{f"final_{name}": value for name, value in scores.items()})
    if processes > 1:
        dist.barrier()
        dist.destroy_process_group()
    loss_now = float(mean_loss) if step > started_at else None
    return {"step": step, "loss": loss_now, **notes, "validation": scores}


class BatchSource:
    """Batches of real pairs mixed with synthetic problems in a set share; each process has its own.

    On a GPU many problems are drawn in the time of few, so batches for several steps are made at once.
    """

    def __init__(
        self, settings: TrainSettings, pairs: PairSet | None, device: torch.device, rank: int, processes: int
    ) -> None:
        total = settings.batches.batch_size
        share = settings.synthetic_share if pairs is not None else 1.0
        self.steps_at_once = max(1, PROBLEMS_AT_ONCE // total) if device.type == "cuda" else 1
        self.seed, self.device, self.rank, self.processes = settings.seed, device, rank, processes
        self.synthetic = round(share * total)
        self.real: PairBatches | None = None
        matches = settings.batches.matches
        if pairs is not None and self.synthetic < total:
            own = replace(settings.batches, batch_size=(total - self.synthetic) * self.steps_at_once)
            left_out = (*settings.calibration_scenes, *settings.excluded_scenes)
            self.real = PairBatches(pairs, own, settings.seed, device, without=left_out)
            matches = self.real.matches
        self.problems = SyntheticSettings(matches=matches)
        self.made = -1
        self.batches: list[Batch] = []
        self.full: list[bool] = []

    def draw(self, step: int) -> tuple[Batch, bool]:
        """The batch of a step, and whether it is full: without padding the network takes a shorter road."""
        turn, place = divmod(step, self.steps_at_once)
        if self.made != turn:
            self.batches, self.made = self._make(turn * self.processes + self.rank), turn
            # Asking the GPU makes the CPU wait, so ask once for all.
            self.full = torch.stack([batch.mask.all() for batch in self.batches]).tolist()
        return self.batches[place], self.full[place]

    def _make(self, number: int) -> list[Batch]:
        kinds: list[list[Batch]] = []
        if self.real is not None:
            kinds.append(_split(self.real[number], self.steps_at_once))
        if self.synthetic:
            generator = torch.Generator(self.device).manual_seed((self.seed * 0x9E3779B1 + number) % 2**63)
            problems = synthesize(self.synthetic * self.steps_at_once, generator, self.problems)
            kinds.append(_split(problems, self.steps_at_once))
        return [_concatenate(parts) for parts in zip(*kinds, strict=True)]


def _split(batch: Batch, parts: int) -> list[Batch]:
    pieces = {f.name: getattr(batch, f.name).chunk(parts) for f in fields(Batch)}
    return [Batch(**{name: values[n] for name, values in pieces.items()}) for n in range(parts)]


def _concatenate(parts: Sequence[Batch]) -> Batch:
    return Batch(**{f.name: torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Batch)})


def _loss(
    model: Callable[..., Tensor], batch: Batch, full: bool, settings: TrainSettings, step: int, device: torch.device
) -> Tensor:
    matches = batch.matches
    if settings.network.side_channels:
        side = side_input(matches[..., 0], batch.ratio, batch.mutual)
        known = _known_side_input(len(matches), settings.side_dropout, step, device)
        matches = torch.cat([matches, side * (known[:, None] & batch.mask[..., None])], dim=-1)
    half = settings.precision == "bf16" and device.type == "cuda"
    with torch.autocast(device.type, torch.bfloat16, enabled=half):
        logits = model(matches, None if full else batch.mask)
    inlier = (batch.distance < settings.inlier_distance) & batch.mask
    loss = class_loss(logits, inlier, batch.mask, settings.balance)
    if settings.geometric_weight and step >= settings.geometric_from:
        loss = loss + settings.geometric_weight * geometric_loss(logits, batch.matches, inlier, batch.mask)
    return loss


def _known_side_input(pairs: int, dropout: float, step: int, device: torch.device) -> Tensor:
    """[B x 2] bool, following from the step: which pairs show their ratios, and which their mutual flags.

    Where something is withheld it is one, the other or both, equally often: users have either, too.
    """
    generator = torch.Generator(device).manual_seed(step)
    withheld = torch.rand(pairs, 1, generator=generator, device=device) < dropout
    kind = torch.randint(3, (pairs, 1), generator=generator, device=device)
    return ~(withheld & (kind != torch.arange(2, device=device)))


def _learning_rate(settings: TrainSettings, step: int) -> float:
    """Linear warm-up, then a cosine down to the final rate."""
    if step < settings.warmup:
        return settings.learning_rate * (step + 1) / settings.warmup
    share = (step - settings.warmup) / max(settings.steps - settings.warmup, 1)
    span = settings.learning_rate - settings.final_learning_rate
    return settings.final_learning_rate + span * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))


class RunningAverage:
    """A network whose weights and statistics are the running mean of another's."""

    def __init__(self, network: ANANet, decay: float) -> None:
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


def _save(
    path: Path,
    step: int,
    settings: TrainSettings,
    network: nn.Module,
    average: nn.Module,
    optimizer: torch.optim.Optimizer,
    notes: dict[str, Any],
) -> None:
    save_checkpoint(path, step, settings.to_dict(), network, average, optimizer, notes)


def calibrate_and_save(
    run: Path,
    settings: TrainSettings,
    network: ANANet,
    pairs: PairSet | None,
    validation: list[Any],
    device: torch.device,
    notes: dict[str, Any],
    say: Callable[[str], None],
) -> dict[str, float]:
    """Fit the scores, on scenes kept out of training if there are any, and write the weights with their card.

    Returns what the weights come to on the validation pairs: matches, and poses where OpenCV is installed.
    """
    network = copy.deepcopy(network)
    if pairs is not None:
        # Without scenes kept out for it, pairs that were trained on are better than none.
        names = settings.calibration_scenes or set(pairs.scenes) - set(settings.excluded_scenes)
        scenes = torch.tensor([pairs.scenes.index(name) for name in names])
        chosen = torch.isin(pairs.pair_scene, scenes).nonzero()[:, 0].tolist()
        chosen = chosen[:: max(1, math.ceil(len(chosen) / CALIBRATION_PAIRS))]
        if chosen:
            kind = "kept out of training" if settings.calibration_scenes else "that were trained on"
            say(f"fitting the scores on {len(chosen)} pairs {kind}")
            answers = predict(network, (pairs[n] for n in chosen), device, settings.inlier_distance)
            fold_into_head(network, *fit_probabilities(answers))
    # Where the pairs lay says nothing to others.
    how = {name: value for name, value in settings.to_dict().items() if name not in ("pairs", "validation")}
    scores: dict[str, float] = {}
    if validation:
        say(f"scoring the weights on {len(validation)} validation pairs")
        answers = predict(network, validation, device, settings.inlier_distance)
        scores = score(answers)
        if find_spec("cv2") is not None:
            scores |= pose_scores(answers, validation)
    card = {"ananet": __version__, "settings": how, **notes, "validation": scores}
    save_network(run / WEIGHTS, network, card)
    return scores


def _same_settings(path: Path, settings: TrainSettings) -> None:
    before = read_checkpoint(path)[0]["settings"]
    now = json.loads(json.dumps(settings.to_dict()))
    different = sorted(name for name in now if before.get(name) != now[name])
    if different:
        raise InputError(
            f"run: {path.parent} holds a run with other settings ({', '.join(different)}); "
            "use these again, or another folder"
        )


def _copy_weights(network: ANANet, path: str | Path) -> None:
    loaded, _ = load_network(path)
    have, want = loaded.settings, network.settings
    # All forms have the same weights, and side input that was not there counts nothing at first.
    if replace(have, form=want.form, side_channels=have.side_channels or want.side_channels) != want:
        different = [f.name for f in fields(want) if getattr(have, f.name) != getattr(want, f.name)]
        shapes = (", ".join(f"{name} = {getattr(of, name)}" for name in different) for of in (have, want))
        raise InputError("from: {} has {}, the run wants {}".format(path, *shapes))
    network.load_state_dict({**network.state_dict(), **loaded.state_dict()})


def _join_processes() -> tuple[int, int]:
    """This process's number and how many there are; torchrun tells through the environment."""
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
