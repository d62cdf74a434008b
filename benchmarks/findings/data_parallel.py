"""The figures of docs/results/published/findings.md about E3, from its journals."""

import json
from functools import cache
from itertools import combinations

import numpy as np
import pandas as pd

from benchmarks.findings.kept_trials import PUBLISHED, by_seed, interval, mean, ratio, text, thousand, trials

E3, E3_CURVES, E3_GRID, E3_FOUR = (f"data_parallel_{part}" for part in ("core", "curves", "grid", "four_seeds"))
RESNET18 = {"model": "resnet18", "strategy": "ddp", "trainable.input": "resident"}


def data_parallel() -> list[str]:
    def gain(model: str, strategy: str = "ddp") -> pd.Series:
        cell = {"model": model, "trainable.input": "resident", "device_batch_size": 128}
        return by_seed(E3, gpus=2, strategy=strategy, **cell) / by_seed(E3, gpus=1, strategy="ddp", **cell)

    one = pd.Series([1.0] * 3)
    small, large = (by_seed(E3, gpus=2, device_batch_size=batch, **RESNET18) for batch in (64, 128))
    alone = by_seed(E3, gpus=1, device_batch_size=128, **RESNET18)
    four_small, four_large = (by_seed(E3_FOUR, gpus=2, device_batch_size=batch, **RESNET18) for batch in (64, 128))
    networks = ("resnet18", "resnet50", "resnet101")
    by_one = ", ".join(text(mean(gain(model, "data_parallel"))) for model in networks)

    def pace(model: str, gpus: int, batch: int = 128, strategy: str = "ddp", way: str = "resident") -> float:
        cell = {"model": model, "strategy": strategy, "trainable.input": way, "device_batch_size": batch}
        return mean(by_seed(E3_GRID, gpus=gpus, **cell))

    def gains_of_each(batch: int, strategy: str) -> list[float]:
        return [pace(model, 2, batch, strategy) / pace(model, 1, batch) for model in networks]

    elsewhere = ", ".join(map(text, gains_of_each(128, "data_parallel")))
    ends = [
        f"{text(min(gains), sign='')} to {text(max(gains))}"
        for strategy in ("ddp", "data_parallel")
        for batch in (64, 512)
        for gains in [gains_of_each(batch, strategy)]
    ]
    costs = max(1 - pace(model, gpus, way="loader") / pace(model, gpus) for model in networks for gpus in (1, 2))
    return [
        f"{text(ratio(gain('resnet101'), one), 3)} against {text(ratio(gain('resnet18'), one), 3)}; ResNet-50"
        f" {text(mean(gain('resnet50')), 3)}",
        f"size decides: {by_one}, on another host {elsewhere} (single trials",
        f"DDP gives {ends[0]} at 64 and {ends[1]} at 512, all three networks alike; DataParallel {ends[2]} at 64,"
        f" {ends[3]} at 512. A loader instead of data on the GPU costs at most {100 * costs:.0f}% under DDP",
        f"{thousand(mean(four_large), -3)} against {thousand(mean(four_small))} images/s:"
        f" {text(ratio(four_large, four_small))}; on another host, over three, {text(ratio(large, small))}",
        f"Two GPUs at 64 each are still {mean(small / alone):.2f} times as fast as one at 128",
    ]


def loss_curves() -> list[str]:
    @cache
    def curves(gpus: int, batch: int, rule: str, norm: str = "replica") -> pd.DataFrame:
        """ln loss by epoch (rows) and seed."""
        wanted = {"gpus": gpus, "global_batch_size": batch, "lr_rule": rule, "model.batch_norm": norm}
        losses = {}
        for trial in trials(E3_CURVES):
            if trial["status"] == "ok" and wanted.items() <= trial["axes"].items():
                folder = PUBLISHED / E3_CURVES / "trials" / trial["trial_id"]
                lines = (folder / "metrics.jsonl").read_text().splitlines()
                rows = map(json.loads, lines)
                losses[trial["axes"]["seed"]] = pd.Series({row["epoch"]: np.log(row["loss"]) for row in rows})
        return pd.DataFrame(losses).sort_index(axis="columns")

    def apart(one: pd.DataFrame, other: pd.DataFrame) -> pd.Series:
        return 100 * (one - other).abs().mean().dropna()

    def of_seeds(one: pd.DataFrame) -> float:
        return float(np.mean([100 * (one[a] - one[b]).abs().mean() for a, b in combinations(one, 2)]))

    def by_chance(*cells: pd.DataFrame) -> float:
        return float(np.mean([of_seeds(cell) for cell in cells]))

    def ends(*cell: object) -> pd.Series:
        return np.exp(curves(*cell).iloc[-1])

    base, two, unscaled = curves(1, 128, "none"), curves(2, 256, "linear"), curves(1, 256, "none")
    higher = 100 * (two - base).loc[21:]
    by_epoch = higher.mean(axis="columns")
    early = 100 * 10 * apart(base.loc[:10], two.loc[:10]).sum() / (50 * apart(base, two).sum())
    alike = [(1, "replica"), (1, "ghost:128"), (2, "sync"), (2, "replica")]
    pairs = list(combinations([curves(gpus, 256, "linear", norm) for gpus, norm in alike], 2))
    distances, chances = [apart(*pair).mean() for pair in pairs], [by_chance(*pair) for pair in pairs]
    lower = ends(1, 256, "linear") - ends(1, 256, "none")
    accuracies = [trial["metrics"]["accuracy"] for trial in trials(E3_CURVES)]
    return [
        f"After epoch 20 the second is higher by {text(interval(higher.mean()), 1, '%')} ({by_epoch.min():.1f} to"
        f" {by_epoch.max():.1f}% by epoch), and they end at"
        f" {text(ends(1, 128, 'none').mean(), sign='')} and {text(ends(2, 256, 'linear').mean(), sign='')}",
        f"Over all 50 epochs it is {text(interval(apart(base, two)), 1, '%')}, {early:.0f}% of that from the"
        f" first ten. Seeds of one cell are {by_chance(base, two):.1f}% apart",
        f"{text(interval(apart(base, unscaled)), 1, '%')} apart, ending at {text(ends(1, 256, 'none').mean(), 3, '')}",
        f"{min(distances):.1f} to {max(distances):.1f}% apart, where seeds differ by {min(chances):.1f} to"
        f" {max(chances):.1f}%",
        f"the training loss is {text(ends(1, 256, 'linear').mean(), 3, '')} at rate 0.2,"
        f" {text(ends(1, 256, 'sqrt').mean(), 3, '')} at √2 × 0.1, and"
        f" {text(ends(1, 256, 'none').mean(), 3, '')} at 0.1:"
        f" {text(interval(lower), 3, '')} lower",
        f"Test accuracies ({text(min(accuracies), sign='')} to {text(max(accuracies), sign='')}, three",
    ]
