"""Measure on drawn grids what `sweep.phases` spends, and whether it answers as the full grid does.

    python -m benchmarks.phases_drawn drawn.json

A grid has the accuracies of three seeds drawn from thirty (`digits.py`), and the times of a full grid of gpus=[1,2],
shuffled within each shape. Its probes are those of the phased sweep, each off by about 10%. The truth is the mean over
all thirty seeds and all times. `behind` is how far the objective of an answer is above the best cell truly within the
margin; `short` is how far its true accuracy is below the baseline's.
"""

from __future__ import annotations

import argparse
import dataclasses
import random
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.digits import KEPT, Accuracies, accuracies_of_thirty_seeds
from benchmarks.figures import machine, tell
from benchmarks.phases_replayed import ends_of, hours, key, played, question_of, recommended
from orchestrator.config.request import Request
from orchestrator.store.journal import replay
from orchestrator.store.record import Kind, TrialRecord
from sweeps.trial import TrialSpec

WORDS = ["sweep=batch_scaling", "sweep.axes.gpus=[1,2]"]
SEEDS, REFERENCE, PROBE_ERROR = 3, 32, 0.1

Ends = Mapping[str, TrialRecord]
Case = tuple[Request, Sequence[TrialSpec]]


def training(axes: Mapping[str, Any]) -> tuple[int, str]:
    """Return the global batch and the rule; at the reference batch all rules are equal."""
    batch = axes["gpus"] * axes["device_batch_size"]
    return batch, "none" if batch == REFERENCE else axes["lr_rule"]


def drawn(timed: Ends, accuracies: Accuracies, seeds: Sequence[int], chance: random.Random) -> dict[str, TrialRecord]:
    shapes: dict[tuple[int, int], list[TrialRecord]] = {}
    for end in timed.values():
        shapes.setdefault((end.axes["gpus"], end.axes["device_batch_size"]), []).append(end)
    grid: dict[str, TrialRecord] = {}
    for alike in shapes.values():
        for end, donor in zip(alike, chance.sample(alike, len(alike)), strict=True):
            accuracy = accuracies[training(end.axes)][seeds[end.axes["seed"]]]
            metrics = {**donor.metrics, "val_accuracy": accuracy}
            grid[key(end.axes)] = dataclasses.replace(end, metrics=metrics, wall_s=donor.wall_s)
    return grid


def probes(values: Sequence[Mapping[str, Any]], chance: random.Random) -> dict[str, Mapping[str, Any]]:
    """Return probes from their speeds, each multiplied by a random factor."""
    off = [(value, chance.lognormvariate(0, PROBE_ERROR)) for value in values]
    return {
        value["speed"]: {**value, "samples_per_s": value["samples_per_s"] * by, "epoch_s": value["epoch_s"] / by}
        for value, by in off
    }


def truth(grids: Sequence[Ends], accuracies: Accuracies) -> dict[str, tuple[float, float]]:
    """Return by cell the seconds per sample, and how far its accuracy is below the baseline's."""
    rates: dict[tuple[int, int], list[float]] = {}
    for end in (end for grid in grids for end in grid.values()):
        rates.setdefault((end.axes["gpus"], end.axes["device_batch_size"]), []).append(end.metrics["samples_per_s"])

    best = statistics.mean(accuracies[REFERENCE, "none"])
    return {
        end.cell_id: (
            1 / statistics.geometric_mean(rates[end.axes["gpus"], end.axes["device_batch_size"]]),
            best - statistics.mean(accuracies[training(end.axes)]),
        )
        for end in grids[0].values()
    }


def about(values: Sequence[float]) -> dict[str, float]:
    tenths = statistics.quantiles(values, n=10, method="inclusive")
    return {
        "median": statistics.median(values),
        "tenth": tenths[0],
        "ninetieth": tenths[8],
        "mean": statistics.mean(values),
    }


def compared(
    case: Case, whole: Ends, probed: Mapping[str, Mapping[str, Any]], true: Mapping[str, tuple[float, float]]
) -> dict[str, Any]:
    """Return the answers of one grid and of the phases replayed on it, in this order."""
    request, planned = case
    part = played(request, planned, whole, probed)
    answers = [recommended(request, ends) for ends in (list(whole.values()), part)]
    cells = {end.cell_id: (end.gpus, training(end.axes)) for end in whole.values()}
    spent = hours(part) + sum(value["gpus"] * value["wall_s"] for value in probed.values()) / 3600
    least = min(seconds for seconds, short in true.values() if short <= request.settings.report.margin)
    return {
        "same": len({cells[answer.cell_id] for answer in answers}) == 1,
        "full_p_best": answers[0].p_best,
        "share": spent / hours(list(whole.values())),
        "behind": [max(0.0, true[answer.cell_id][0] / least - 1) for answer in answers],
        "short": [true[answer.cell_id][1] for answer in answers],
    }


def summed_up(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    likely = [row["same"] for row in rows if row["full_p_best"] > 0.5]
    positions = enumerate(("full", "phases"))
    return {
        "grids": len(rows),
        "same": sum(row["same"] for row in rows),
        "same_where_full_is_likelier_than_half": [sum(likely), len(likely)],
        "share": about([row["share"] for row in rows]),
        **{
            name: {what: about([row[what][at] for row in rows]) for what in ("behind", "short")}
            for at, name in positions
        },
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("json", type=Path, help="where the figures go")
    arguments.add_argument("--full", type=Path, action="append", help="results of a full grid")
    arguments.add_argument(
        "--phased", type=Path, default=KEPT / "phased", help="results with sweep.phases=[probe,train]"
    )
    arguments.add_argument("--grids", type=int, default=60)
    arguments.add_argument("words", nargs="*", help="further words of the question, such as report.margin=0.01")
    given = arguments.parse_args()
    case, accuracies = question_of([*WORDS, *given.words]), accuracies_of_thirty_seeds()
    grids = [ends_of(folder, case[1]) for folder in given.full or [KEPT / "full"]]
    probed = [record.value for record in replay(given.phased / "journal.jsonl").records if record.kind == Kind.PROBED]
    true, seeds = truth(grids, accuracies), range(len(accuracies[REFERENCE, "none"]))
    rows = []
    for number in range(given.grids):
        chance = random.Random(number)
        whole = drawn(chance.choice(grids), accuracies, chance.sample(seeds, SEEDS), chance)
        rows.append(compared(case, whole, probes(probed, chance), true))
    tell({**machine(), **summed_up(rows), "rows": rows}, given.json, long="rows")


if __name__ == "__main__":
    main()
