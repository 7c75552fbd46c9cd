"""The paper's ablations on data of one's own: what second-order context, its learned normalisation and its form give.

    python benchmarks/ablation.py PAIRS VALIDATION -o runs/ablation --steps 4000

Trains five networks on the same batches for the same number of steps, then prints Table 6 (no second order, with it,
with learnable normalisation) and Table 5 (cubic, quadratic, linear). A stopped run goes on where it was. For tables
with poses: `ananet evaluate SCENES --table 6 --pruner none.safetensors,...` on the weights left in the folder.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from ananet.datasets.batches import BatchSettings
from ananet.networks import ANANetSettings, load_network
from ananet.tables import format_table
from ananet.training.loop import WEIGHTS, train
from ananet.training.settings import TrainSettings

NETWORKS = {
    "none": ANANetSettings(second_order=False),
    "sigmoid": ANANetSettings(learnable_normalization=False),
    "linear": ANANetSettings(),
    "quadratic": ANANetSettings(form="quadratic"),
    "cubic": ANANetSettings(form="cubic"),
}
TABLE_6 = {"none": "no second order", "sigmoid": "+ second order", "linear": "+ learnable normalisation"}
TABLE_5 = {"cubic": "cubic", "quadratic": "quadratic", "linear": "linear"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", help="training pairs, from 'ananet data build'")
    parser.add_argument("validation", help="validation pairs")
    parser.add_argument("-o", "--folder", type=Path, default=Path("runs/ablation"))
    parser.add_argument("--networks", default=",".join(NETWORKS), help="some of the five (default: all)")
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--matches", type=int, default=512, help="of a problem; the cubic form takes its cube in time")
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--calibration-scenes", default="", metavar="A,B", help="kept out of training for the scores")
    parser.add_argument("--excluded-scenes", default="", metavar="A,B")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    found: dict[str, dict[str, Any]] = {}
    for name in arguments.networks.split(","):
        settings = TrainSettings(
            pairs=arguments.pairs,
            validation=arguments.validation,
            calibration_scenes=scenes(arguments.calibration_scenes),
            excluded_scenes=scenes(arguments.excluded_scenes),
            steps=arguments.steps,
            optimizer="muon",
            learning_rate=arguments.learning_rate,
            weight_decay=0.02,
            warmup=min(500, arguments.steps // 8),
            averaging=0.998,
            # Compiling would take longer than the short run.
            compile=False,
            seed=arguments.seed,
            validate_every=arguments.steps,
            checkpoint_every=1000,
            log_every=500,
            network=NETWORKS[name],
            batches=BatchSettings(batch_size=arguments.batch_size, matches=arguments.matches),
        )
        run = arguments.folder / name
        train(settings, run, device=arguments.device)
        shutil.copyfile(run / WEIGHTS, arguments.folder / f"{name}.safetensors")
        found[name] = load_network(run / WEIGHTS)[1]["validation"]
    if arguments.json:
        print(json.dumps(found))
        return
    for title, names in (("Table 6", TABLE_6), ("Table 5", TABLE_5)):
        rows = [{"network": text, **found[name]} for name, text in names.items() if name in found]
        if rows:
            print(f"{title}: {arguments.steps} steps of {arguments.batch_size} x {arguments.matches}\n")
            print(format_table(rows, "text", decimals=3), end="\n\n")


def scenes(text: str) -> tuple[str, ...]:
    return tuple(name for name in text.split(",") if name)


if __name__ == "__main__":
    main()
