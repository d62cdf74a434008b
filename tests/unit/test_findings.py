"""Every figure of docs/findings.md that trials were run for, from the journals, by other code than the project's."""

import json
import re
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

DOCS = Path(__file__).parents[2] / "docs"
PUBLISHED = DOCS / "results" / "published"
FINDINGS = " ".join((DOCS / "findings.md").read_text().split())
E0, E0_ELSEWHERE, E1, RECIPE = (
    "unequal_pair_core",
    "unequal_pair_core_two_h200",
    "batch_vs_tpu_core",
    "batch_vs_tpu_recipe",
)
E0_GRID, E0_UNET, E0_EPOCHS, E0_SHARES = (f"unequal_pair_{part}" for part in ("grid", "unet", "200_epochs", "shares"))
RECIPE_BOTH, E1_GRID = "batch_vs_tpu_recipe_merged", "batch_vs_tpu_grid"
E2, E2_ELSEWHERE, E2_LEAST, E2_LARGE = (f"input_pipeline{part}" for part in ("", "_earlier", "_64", "_large"))
E3, E3_CURVES, E3_GRID = (f"data_parallel_{part}" for part in ("core", "curves", "grid"))
E4, E4_ELSEWHERE = "conv2d", "conv2d_core"

FAST = {"trainable.slow_down": None}
SLOW_ALONE, OTHER_ALONE = ({"gpus": 1, "trainable.slow_down": {"rank": rank, "factor": 2.0}} for rank in (0, 1))
UNEQUAL = {"gpus": 2, "trainable.slow_down": {"rank": 1, "factor": 2.0}}
CNN = {"model": "cnn10", "trainable.precision": "fp32", "strategy": "ddp"}
WRN = {"model": "wrn28_10", "gpus": 1}
RESNET18 = {"model": "resnet18", "strategy": "ddp", "trainable.input": "resident"}
WHOLE = {"trainable.timed": "whole", "trainable.filter_size": 3, "trainable.channels": 1, "trainable.library": "torch"}
ON_GPU = {"resources.device": "cuda", "strategy": "data_parallel"}


@cache
def trials(folder: str) -> list[dict]:
    """The last end of each trial."""
    lines = map(json.loads, (PUBLISHED / folder / "journal.jsonl").read_text().splitlines())
    return list({line["value"]["trial_id"]: line["value"] for line in lines if line["kind"] == "finished"}.values())


def by_seed(folder: str, column: str = "samples_per_s", **wanted: object) -> pd.Series:
    """Of the one cell with these axes."""
    axes = {name.replace("__", "."): value for name, value in wanted.items()}
    found = [
        each
        for each in trials(folder)
        if each["status"] == "ok"
        and all(each["axes"].get(name, each.get(name)) == value for name, value in axes.items())
    ]
    assert found and len({each["cell_id"] for each in found}) == 1, (folder, axes, len(found))
    return pd.Series({each["seed"]: each["metrics"][column] for each in found})


def mean(values: pd.Series) -> float:
    """Geometric."""
    return float(np.exp(np.log(values).mean()))


def interval(values: pd.Series) -> tuple[float, float, float]:
    values = values.dropna()
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / len(values) ** 0.5
    return values.mean(), values.mean() - half, values.mean() + half


def ratio(one: pd.Series, other: pd.Series) -> tuple[float, float, float]:
    """Paired by seed."""
    point, lo, hi = np.exp(interval(np.log(one / other)))
    return point, lo, hi


def told(values: tuple[float, ...] | float, digits: int = 2, sign: str = "×", factor: float = 1.0) -> str:
    """`1.14× [.85, 1.54]`, or the point alone."""
    each = [f"{factor * value:.{digits}f}" for value in (values if isinstance(values, tuple) else (values,))]
    each = [re.sub(r"^(-?)0\.", r"\1.", value).replace("-", "−") for value in each]
    point = each[0] + sign
    return point if len(each) == 1 else f"{point} [{each[1]}, {each[2]}]"


def thousand(value: float, places: int = -2) -> str:
    return f"{round(value, places):,.0f}"


def unequal_pair() -> list[str]:
    def pace(folder: str, gpus: int, strategy: str = "ddp", batch: int = 512) -> pd.Series:
        return by_seed(folder, gpus=gpus, global_batch_size=batch, strategy=strategy, **FAST)

    def gains(folder: str, strategy: str = "ddp", batch: int = 512) -> tuple[float, float, float]:
        return ratio(pace(folder, 2, strategy, batch), pace(folder, 1))

    slow, other = (by_seed(E0_SHARES, global_batch_size=4096, **alone) for alone in (SLOW_ALONE, OTHER_ALONE))
    slow_512, other_512 = (by_seed(E0_ELSEWHERE, global_batch_size=512, **alone) for alone in (SLOW_ALONE, OTHER_ALONE))
    sum_elsewhere = sum(by_seed(E0_ELSEWHERE, global_batch_size=4096, **alone) for alone in (SLOW_ALONE, OTHER_ALONE))
    of_sum_elsewhere = ratio(
        by_seed(E0_ELSEWHERE, global_batch_size=8192, strategy="ddp_unequal", **UNEQUAL), sum_elsewhere
    )
    equal, shared, equal_512, shared_512 = (
        by_seed(folder, global_batch_size=batch, strategy=strategy, **UNEQUAL)
        for folder, batch in ((E0_SHARES, 8192), (E0_ELSEWHERE, 1024))
        for strategy in ("ddp", "ddp_unequal")
    )
    slow_before, other_before = (by_seed(E0, global_batch_size=4096, **alone) for alone in (SLOW_ALONE, OTHER_ALONE))
    equal_before, shared_before = (
        by_seed(E0, global_batch_size=8192, strategy=strategy, **UNEQUAL) for strategy in ("ddp", "ddp_unequal")
    )
    equal_512_before = by_seed(E0, global_batch_size=1024, strategy="ddp", **UNEQUAL)
    slow_512_before = by_seed(E0, global_batch_size=512, **SLOW_ALONE)
    return [
        f"{told(gains(E0))} of one GPU under DDP, {told(gains(E0, 'data_parallel'))} when driven from one process",
        f"{told(gains(E0_ELSEWHERE))} and {told(gains(E0_ELSEWHERE, 'data_parallel'))}",
        f"{told(gains(E0, batch=1024), sign='')} times what one does; on the other host"
        f" {told(gains(E0_ELSEWHERE, batch=1024), sign='')}",
        f"{told(ratio(equal, 2 * slow), sign='')} of twice the slow card's pace,"
        f" {100 * mean(equal / (slow + other)):.0f}% of the two speeds' sum",
        f"{told(ratio(equal_512, 2 * slow_512), sign='')} of twice the slow card's |",
        f"{told(ratio(shared, slow + other), 1, '%', 100)} over four seeds: {told(ratio(shared, equal), sign='')} times"
        f" what equal shares give; on another host {told(of_sum_elsewhere, 1, '%', 100)} over three",
        f"where launches count, {told(ratio(shared_512, slow_512 + other_512), 0, '%', 100)}",
        f"{told(ratio(equal_before, 2 * slow_before), sign='')} of twice the slow card's pace"
        f" ({told(ratio(equal_512_before, 2 * slow_512_before), sign='')} at 512), and proportional ones"
        f" {told(ratio(shared_before, slow_before + other_before), 0, '%', 100)} of the sum",
        f"makes {thousand(mean(pace(E0, 1)), -4)} images/s at batch 512"
        f" ({thousand(mean(pace(E0_ELSEWHERE, 1)), -3)} on the other host)",
    ]


def second_gpu() -> list[str]:
    def gain(folder: str, batch: int, strategy: str = "ddp", each: int | None = None, **cell: object) -> float:
        """At the same global batch, or at `each` a GPU."""
        one = by_seed(folder, gpus=1, global_batch_size=each or batch, **cell)
        return mean(by_seed(folder, gpus=2, global_batch_size=batch, strategy=strategy, **cell) / one)

    def seconds(gpus: int) -> pd.Series:
        return by_seed(E0_EPOCHS, "train_s", gpus=gpus)

    by_batch = {batch: gain(E0_GRID, batch, **FAST) for batch in (128, 256, 512, 1024, 2048, 8192)}
    driven = [gain(E0_GRID, batch, "data_parallel", **FAST) for batch in (2048, 4096)]
    epoch, epoch_of_one = (
        by_seed(E0_UNET, "epoch_s", gpus=gpus, global_batch_size=batch, strategy="ddp")
        for gpus, batch in ((2, 32), (1, 8))
    )
    accuracy = by_seed(E0_EPOCHS, "accuracy", gpus=2).mean()
    memory = max(each["metrics"]["peak_memory_gb"] for each in trials(E0_UNET) if each["status"] == "ok")
    return [
        f"200 epochs take {mean(seconds(1)):.1f} s on one and {mean(seconds(2)):.1f} on two,"
        f" {told(ratio(seconds(1), seconds(2)))} (the post 68 and 59), to a"
        f" test accuracy of {100 * accuracy:.1f}%",
        f"at {told(by_batch[128])}, {told(by_batch[512])}, {told(by_batch[1024])}, {told(by_batch[2048])} and"
        f" {told(by_batch[8192])} of one with batches of 128, 512, 1,024, 2,048 and 8,192",
        f"still {told(driven[0])} at 2,048, and {told(driven[1])} at 4,096",
        f"with 512 each two make {told(gain(E0_GRID, 1024, each=512, **FAST), sign='')} times what one does, with 4,096"
        f" each {told(gain(E0_GRID, 8192, each=4096, **FAST), sign='')}",
        f"an epoch takes {told(ratio(epoch, epoch_of_one), 3, sign='')} of the time",
        f"batch 8 two GPUs are {told(gain(E0_UNET, 8))} as fast as one, at 128 {told(gain(E0_UNET, 128))};"
        f" DataParallel {told(gain(E0_UNET, 8, 'data_parallel'))} and {told(gain(E0_UNET, 128, 'data_parallel'))}",
        f"every batch up to 128 fits ({memory:.0f} GB at most)",
    ]


def batch_vs_tpu() -> list[str]:
    def pace(batch: int, gpus: int, column: str = "samples_per_s", **other: object) -> pd.Series:
        return by_seed(E1, column, global_batch_size=batch, gpus=gpus, **(CNN | other))

    gains = (pace(128, 2) / pace(128, 1)).sort_values()
    bf16 = {"trainable.precision": "bf16"}
    accuracy = {
        batch: by_seed(RECIPE, "accuracy", global_batch_size=batch, gpus=1) for batch in (128, 256, 512, 1024, 2048)
    }
    lost, lost_2048 = interval(accuracy[1024] - accuracy[128]), interval(100 * (accuracy[128] - accuracy[2048]))
    seconds = {batch: mean(by_seed(RECIPE, "train_s", global_batch_size=batch, gpus=1)) for batch in (128, 1024)}
    wrn = {each: by_seed(E1, global_batch_size=512, **WRN, trainable__precision=each) for each in ("fp32", "bf16")}
    taken = {
        (gpus, batch): by_seed(RECIPE_BOTH, "train_s", global_batch_size=batch, gpus=gpus)
        for gpus in (1, 2)
        for batch in (128, 256, 512, 1024, 2048)
    }
    in_full = [told(mean(taken[1, batch] / taken[2, batch])) for batch in (256, 512, 2048)]
    ends = {
        (gpus, batch): by_seed(RECIPE_BOTH, "accuracy", global_batch_size=batch, gpus=gpus).mean()
        for gpus, batch in taken
    }
    at_most = np.ceil(1000 * max(abs(ends[1, batch] - ends[2, batch]) for _, batch in taken)) / 10
    accuracy_on_two = {
        batch: by_seed(RECIPE_BOTH, "accuracy", global_batch_size=batch, gpus=2) for batch in (128, 2048)
    }
    lost_on_two = interval(100 * (accuracy_on_two[128] - accuracy_on_two[2048]))
    at_128 = [pace(128, gpus, column="sm_clock_mhz") for gpus in (1, 2)]
    hottest = max(pace(128, gpus, column="temperature_c").max() for gpus in (1, 2))
    computing = [1e3 * mean(pace(128, gpus, column="step_compute_s")) for gpus in (2, 1)]
    packed = json.loads((PUBLISHED / "packing.json").read_text())["samples_per_s"]
    alone, four, _, captured, captured_elsewhere, four_captured = packed.values()
    return [
        f"DDP {told(ratio(pace(128, 2), pace(128, 1)))} (the post .82×): two seeds gained"
        f" {100 * (gains.iloc[1] - 1):.0f} and {100 * (gains.iloc[2] - 1):.0f}%, one lost nothing,"
        f" {told(gains.iloc[0], 3, '')}",
        f"{mean(taken[2, 128]):.0f} s on two, {mean(taken[1, 128]):.0f} s on one (of the other host),"
        f" {told(ratio(taken[1, 128], taken[2, 128]))}",
        f"{mean(taken[2, 1024]):.0f} s on two, {mean(taken[1, 1024]):.0f} s on one:"
        f" {told(ratio(taken[1, 1024], taken[2, 1024]))}. At 256, 512 and 2048 two are {in_full[0]}, {in_full[1]} and"
        f" {in_full[2]} as fast, and at no batch do they end more than {told(at_most, 1, ' points')}",
        f"keep {min(map(min, at_128)):,.0f} MHz, at {hottest:.0f} °C at most. Half the batch computes in"
        f" {computing[0]:.1f} ms instead of {computing[1]:.1f}",
        f"{told(ratio(pace(1024, 2), pace(1024, 1)), 3)} in fp32",
        f"DataParallel, the post's way: {told(ratio(pace(1024, 2, strategy='data_parallel'), pace(1024, 1)))}, but"
        f" {told(ratio(pace(128, 2, strategy='data_parallel'), pace(128, 1)))} at 128",
        f"DDP {told(mean(pace(1024, 2, **bf16) / pace(1024, 1, **bf16)))} and DataParallel"
        f" {told(mean(pace(1024, 2, strategy='data_parallel', **bf16) / pace(1024, 1, **bf16)))} (single trials)",
        f"{told(accuracy[1024].mean(), 3, '')} against {told(accuracy[128].mean(), 3, '')}, {told(lost, 3, '')}",
        f"{told(accuracy[2048].mean(), 3, '')} against {told(accuracy[128].mean(), 3, '')}:"
        f" {told(lost_2048, 1, ' points')}",
        f"On two {told(ends[2, 2048], 3, '')} against {told(ends[2, 128], 3, '')}: {told(lost_on_two, 1, '')}",
        told(ratio(pace(256, 2, strategy="independent"), pace(128, 1)), 3) + " at batch 128, fp32",
        f"bf16 {told(ratio(wrn['bf16'], wrn['fp32']))} fp32. The CNN at 1024:"
        f" {told(mean(pace(1024, 1, **bf16) / pace(1024, 1)), 1)}",
        f"{seconds[128]:.0f} s at batch 128, {seconds[1024]:.0f} s at 1024",
        f"make {thousand(four)} images/s together, {four / alone:.1f} times what one makes there alone"
        f" ({thousand(alone)}); but *one* with captured steps makes {thousand(captured)}",
        f"make {thousand(four_captured)} images/s together, what one makes alone there"
        f" ({thousand(captured_elsewhere)})",
    ]


def placements() -> list[str]:
    """E1's grid: single trials."""

    def cell(model: str, precision: str, batch: int, gpus: int, strategy: str, column: str = "samples_per_s") -> float:
        axes = {"model": model, "trainable.precision": precision, "resources.timing": "device"}
        return mean(by_seed(E1_GRID, column, global_batch_size=batch, gpus=gpus, strategy=strategy, **axes))

    def gain(model: str, precision: str, batch: int, strategy: str = "ddp") -> str:
        two, one = (cell(model, precision, batch, *each) for each in ((2, strategy), (1, "ddp")))
        return told(two / one)

    def steps_ms(gpus: int, strategy: str, batches: tuple[int, ...] = (128, 256, 512, 1024, 2048)) -> list[float]:
        return [1e3 * batch / cell("cnn10", "bf16", batch, gpus, strategy) for batch in batches]

    def wrn_epoch(precision: str, gpus: int, strategy: str) -> str:
        return f"{cell('wrn28_10', precision, 128, gpus, strategy, 'epoch_s'):.1f}"

    driven, alone = steps_ms(2, "data_parallel"), steps_ms(1, "ddp")
    both = {p: (wrn_epoch(p, 2, "data_parallel"), wrn_epoch(p, 1, "ddp")) for p in ("fp32", "tf32", "bf16")}
    on_two = [wrn_epoch(precision, 2, "ddp") for precision in both]
    gains = [gain("wrn28_10", precision, 128) for precision in both]
    most = cell("wrn28_10", "bf16", 2048, 1, "ddp", "peak_memory_gb")
    faster = {
        (model, batch): told(
            cell(model, "tf32", batch, 1, "ddp") / cell(model, "fp32", batch, 1, "ddp"),
            1,
        )
        for model, batch in (("cnn10", 1024), ("wrn28_10", 256))
    }
    packed = by_seed(
        E1_GRID, "step_s", model="cnn10", trainable__precision="bf16", gpus=0.25, global_batch_size=128
    ).item()
    slow = cell("cnn10", "bf16", 128, 1, "ddp", "step_s")
    return [
        f"was {100 * (slow / packed - 1):.0f}% once: the same step of E1's CNN (128 images, bf16) took"
        f" {1e3 * slow:.1f} ms in one process, and {1e3 * packed:.1f} in another that even shared its GPU",
        f"a step in bf16 takes {min(driven):.0f} to {max(driven):.0f} ms up to 2,048 images, where one GPU takes"
        f" {min(alone):.0f} to {max(alone):.0f}.",
        f"{gain('cnn10', 'bf16', 128, 'data_parallel')} at 128, {gain('cnn10', 'bf16', 2048, 'data_parallel')} at"
        f" 2,048, {gain('cnn10', 'bf16', 4096, 'data_parallel')} at 4,096,"
        f" {gain('cnn10', 'bf16', 8192, 'data_parallel')} at 8,192, where DDP gives {gain('cnn10', 'bf16', 8192)}",
        f"in tf32 {' against '.join(both['tf32'])}, in bf16 {' against '.join(both['bf16'])} (in fp32"
        f" {' against '.join(both['fp32'])})",
        f"DDP takes {on_two[0]} s in fp32, {on_two[1]} in tf32, {on_two[2]} in bf16: {gains[0]}, {gains[1]} and"
        f" {gains[2]}; at 2,048 in bf16 {gain('wrn28_10', 'bf16', 2048)}",
        f"on one GPU ({most:.1f} GB)",
        f"tf32 {faster['cnn10', 1024]} there, and {faster['wrn28_10', 256]} on WRN-28-10 at 256",
    ]


def input_pipeline() -> list[str]:
    def pace(way: str, gpus: int, batch: int = 128, column: str = "samples_per_s", *, folder: str = E2) -> pd.Series:
        return by_seed(folder, column, gpus=gpus, device_batch_size=batch, trainable__input=way)

    def gain(gpus: int, folder: str = E2) -> str:
        return told(ratio(*(pace(way, gpus, folder=folder) for way in ("loader", "shared_loader"))))

    def busy(way: str, gpus: int, batch: int = 128, *, folder: str = E2) -> pd.Series:
        return 100 * pace(way, gpus, batch, "gpu_util", folder=folder)

    def busier(folder: str = E2) -> tuple[float, float, float]:
        return interval(busy("loader", 4, folder=folder) - busy("shared_loader", 4, folder=folder))

    same = {gpus: pace("same_batch", gpus) for gpus in (1, 4)}
    each, one = (100 * pace(way, 4, 128, "gpu_util_spread") for way in ("loader", "shared_loader"))
    less = interval(one - each)
    return [
        f"{4 * mean(same[4] / same[1]):.2f} times the examples of one, {thousand(4 * mean(same[4]))} a second",
        f"**{told(ratio(same[4], same[1]), sign='')} of the distinct ones**: {thousand(mean(same[4]))} against"
        f" {thousand(mean(same[1]))}",
        f"{told(ratio(pace('resident', 4), pace('resident', 1)))} with the data on the GPUs,"
        f" {told(ratio(pace('loader', 4), pace('loader', 1)))} with a loader each",
        f"{thousand(mean(pace('loader', 4)))} against {thousand(mean(pace('shared_loader', 4)))} samples/s:"
        f" {gain(4)}; on two {gain(2)}. On another such host one loader gave less: {gain(4, E2_ELSEWHERE)} and"
        f" {gain(2, E2_ELSEWHERE)}",
        f"busy {busy('loader', 4).mean():.1f}% of the time against {busy('shared_loader', 4).mean():.1f}% under one"
        f" loader: +{told(busier(), 1, ' points')}; on the other host +{told(busier(E2_ELSEWHERE), 1, '')}",
        f"{each.mean():.1f} points with a loader each, {one.mean():.1f} under one loader: {told(less, 1, '')} less",
        f"busy {busy('loader', 4).mean():.0f}% of the time on four, {busy('loader', 4, 512).mean():.0f}% at 512",
        f"{told(ratio(pace('resident', 1), pace('loader', 1)), sign='')}".replace(" [", " times as fast [", 1)
        + f" on one GPU, and {told(ratio(pace('resident', 4), pace('loader', 4)), sign='')} on four",
        *images_and_batches(),
    ]


def images_and_batches() -> list[str]:
    """Single trials."""

    def pace(folder: str, way: str, gpus: int, batch: int, column: str = "samples_per_s") -> float:
        return mean(by_seed(folder, column, gpus=gpus, device_batch_size=batch, trainable__input=way))

    def gain(folder: str, way: str, other: str, gpus: int, batch: int) -> str:
        return told(pace(folder, way, gpus, batch) / pace(folder, other, gpus, batch))

    batches = (64, 128, 512)
    busy = [100 * pace(E2_LARGE, "loader", gpus, batch, "gpu_util") for gpus in (1, 2) for batch in batches]
    one_for_all = [pace(E2_LARGE, "shared_loader", 2, batch) / pace(E2_LARGE, "loader", 2, batch) for batch in batches]
    twice = [pace(E2_LARGE, "loader", 2, batch) / pace(E2_LARGE, "loader", 1, batch) for batch in batches]
    return [
        f"at 64 a GPU data that lie on it are {gain(E2_LEAST, 'resident', 'loader', 1, 64)} as fast as a loader",
        f"a loader each keeps them {min(busy):.0f} to {max(busy):.0f}% busy, and two are {min(twice):.2f} to"
        f" {max(twice):.2f}× as fast as one; one loader for both makes"
        f" {', '.join(map(told, one_for_all[:2]))} and {told(one_for_all[2])} of that at 64, 128 and 512",
    ]


def data_parallel() -> list[str]:
    def gain(model: str, strategy: str = "ddp") -> pd.Series:
        cell = {"model": model, "trainable.input": "resident", "device_batch_size": 128}
        return by_seed(E3, gpus=2, strategy=strategy, **cell) / by_seed(E3, gpus=1, strategy="ddp", **cell)

    one = pd.Series([1.0] * 3)
    small, large = (by_seed(E3, gpus=2, device_batch_size=batch, **RESNET18) for batch in (64, 128))
    alone = by_seed(E3, gpus=1, device_batch_size=128, **RESNET18)
    networks = ("resnet18", "resnet50", "resnet101")
    by_one = ", ".join(told(mean(gain(model, "data_parallel"))) for model in networks)

    def pace(model: str, gpus: int, batch: int = 128, strategy: str = "ddp", way: str = "resident") -> float:
        cell = {"model": model, "strategy": strategy, "trainable.input": way, "device_batch_size": batch}
        return mean(by_seed(E3_GRID, gpus=gpus, **cell))

    def gains_of_each(batch: int, strategy: str) -> list[float]:
        return [pace(model, 2, batch, strategy) / pace(model, 1, batch) for model in networks]

    elsewhere = ", ".join(map(told, gains_of_each(128, "data_parallel")))
    ends = [
        f"{told(min(gains), sign='')} to {told(max(gains))}"
        for strategy in ("ddp", "data_parallel")
        for batch in (64, 512)
        for gains in [gains_of_each(batch, strategy)]
    ]
    costs = max(1 - pace(model, gpus, way="loader") / pace(model, gpus) for model in networks for gpus in (1, 2))
    return [
        f"{told(ratio(gain('resnet101'), one), 3)} against {told(ratio(gain('resnet18'), one), 3)}; ResNet-50"
        f" {told(mean(gain('resnet50')), 3)}",
        f"size decides: {by_one}, on another host {elsewhere} (single trials",
        f"DDP gives {ends[0]} at 64 and {ends[1]} at 512, all three networks alike; DataParallel {ends[2]} at 64,"
        f" {ends[3]} at 512. A loader instead of data on the GPU costs at most {100 * costs:.0f}% under DDP",
        f"{thousand(mean(large), -3)} against {thousand(mean(small))} images/s: {told(ratio(large, small))}, one of"
        f" three seeds at 64 being {100 * (1 - small.min() / small.median()):.0f}% slower",
        f"Two GPUs at 64 each are still {mean(small / alone):.2f} times as fast as one at 128",
    ]


def loss_curves() -> list[str]:
    @cache
    def curves(gpus: int, batch: int, rule: str, norm: str = "replica") -> pd.DataFrame:
        """ln loss by epoch (rows) and seed."""
        wanted = {"gpus": gpus, "global_batch_size": batch, "lr_rule": rule, "model.batch_norm": norm}
        found = {}
        for each in trials(E3_CURVES):
            if each["status"] == "ok" and wanted.items() <= each["axes"].items():
                lines = (PUBLISHED / E3_CURVES / "trials" / each["trial_id"] / "metrics.jsonl").read_text().splitlines()
                rows = map(json.loads, lines)
                found[each["axes"]["seed"]] = pd.Series({row["epoch"]: np.log(row["loss"]) for row in rows})
        return pd.DataFrame(found).sort_index(axis="columns")

    def apart(one: pd.DataFrame, other: pd.DataFrame) -> pd.Series:
        return 100 * (one - other).abs().mean().dropna()

    def of_seeds(one: pd.DataFrame) -> float:
        return float(np.mean([100 * (one[a] - one[b]).abs().mean() for a, b in combinations(one, 2)]))

    def by_chance(*cells: pd.DataFrame) -> float:
        return float(np.mean([of_seeds(cell) for cell in cells]))

    def ends(*cell: object) -> pd.Series:
        return np.exp(curves(*cell).iloc[-1])

    base, two, unscaled = curves(1, 128, "none"), curves(2, 256, "linear"), curves(1, 256, "none")
    late = apart(base.loc[21:], two.loc[21:])
    early = 100 * 10 * apart(base.loc[:10], two.loc[:10]).sum() / (50 * apart(base, two).sum())
    alike = [(1, "replica"), (1, "ghost:128"), (2, "sync"), (2, "replica")]
    pairs = list(combinations([curves(gpus, 256, "linear", norm) for gpus, norm in alike], 2))
    distances, chances = [apart(*pair).mean() for pair in pairs], [by_chance(*pair) for pair in pairs]
    lower = ends(1, 256, "linear") - ends(1, 256, "none")
    accuracies = [each["metrics"]["accuracy"] for each in trials(E3_CURVES)]
    return [
        f"after epoch 20 they are {late.min():.0f} to {late.max():.0f}% apart, and end at"
        f" {told(ends(1, 128, 'none').mean(), sign='')} and {told(ends(2, 256, 'linear').mean(), sign='')}",
        f"over all 50 epochs {told(interval(apart(base, two)), 1, '%')}, {early:.0f}% of that from the"
        f" first ten. Seeds of one cell are {by_chance(base, two):.1f}% apart",
        f"{told(interval(apart(base, unscaled)), 1, '%')} apart, ending at {told(ends(1, 256, 'none').mean(), 3, '')}",
        f"{min(distances):.1f} to {max(distances):.1f}% apart, where seeds differ by {min(chances):.1f} to"
        f" {max(chances):.1f}%",
        f"the training loss is {told(ends(1, 256, 'linear').mean(), 3, '')} at rate .2,"
        f" {told(ends(1, 256, 'sqrt').mean(), 3, '')} at √2 × .1, and {told(ends(1, 256, 'none').mean(), 3, '')} at .1:"
        f" {told(interval(lower), 3, '')} lower",
        f"test accuracies ({told(min(accuracies), sign='')} to {told(max(accuracies), sign='')}, three",
    ]


def conv2d() -> list[str]:
    def calls(column: str = "epoch_s", folder: str = E4, **wanted: object) -> pd.Series:
        pageable = {"trainable.pin_memory": False} if folder == E4 else {}
        return 1e3 * by_seed(folder, column, **(WHOLE | ON_GPU | pageable | {"gpus": 1} | wanted))

    def ms(column: str = "epoch_s", **wanted: object) -> float:
        return mean(calls(column, **wanted))

    def by_scipy(folder: str) -> pd.Series:
        cell = WHOLE | {"resources.device": "cpu", "trainable.library": "scipy"}
        return 1e3 * by_seed(folder, "epoch_s", **cell)

    pinned, two_processes = {"trainable.pin_memory": True}, {"gpus": 2, "strategy": "ddp"}
    cold, warm, compute = calls("first_epoch_s"), calls(), ms(trainable__timed="compute")
    elsewhere = calls("first_epoch_s", E4_ELSEWHERE)

    def untested(size: int, channels: int, timed: str = "compute") -> float:
        return ms(**{"trainable.filter_size": size, "trainable.channels": channels, "trainable.timed": timed})

    return [
        f"SciPy {mean(by_scipy(E4)):.0f} ms (the post: 222), the first call {mean(cold):.0f} ms:"
        f" {told(ratio(cold, by_scipy(E4)))}",
        f"the three first calls one took {cold.max():.0f} ms, the others {cold.min():.0f} and {cold.median():.0f}",
        f"on another host {mean(elsewhere):.0f} ms against {mean(by_scipy(E4_ELSEWHERE)):.0f}",
        f"warm the GPU takes {mean(warm):.2f} ms: {told(ratio(by_scipy(E4), warm), 0)} as fast as SciPy",
        f"warm calls take {mean(warm):.1f} ms on one GPU and {ms(gpus=2):.1f} on two, cold ones {mean(cold):.0f} and"
        f" {ms('first_epoch_s', gpus=2):.0f}",
        f"Copying in takes {ms(trainable__timed='copy_in'):.1f} ms and out {ms(trainable__timed='copy_out'):.1f}, the"
        f" convolution {told(compute, 2, '')}",
        f"therefore {mean(warm) / compute:.0f} times as fast",
        f"From pinned memory a call takes {ms(**pinned):.2f} ms on one GPU and {told(ms(gpus=2, **pinned), sign='')} on"
        f" two, {told(ms(**pinned) / ms(gpus=2, **pinned))}, where pageable memory gives"
        f" {told(ratio(warm, calls(gpus=2)))}, and a process for each GPU {told(mean(warm) / ms(**two_processes))}",
        f"{told(untested(10, 1), 2, '')} ms with one channel",
        f"{untested(3, 10):.2f} ms (3×3) and {untested(10, 10):.1f} (10×10), with {untested(3, 10, 'copy_in'):.0f} ms",
    ]


@pytest.mark.parametrize(
    "figures",
    [unequal_pair, second_gpu, batch_vs_tpu, placements, input_pipeline, data_parallel, loss_curves, conv2d],
)
def test_findings_say_what_the_journals_do(figures):
    missing = [each for each in figures() if each not in FINDINGS]
    assert not missing


def test_what_the_readme_tells_of_them_is_what_they_say() -> None:
    readme = (DOCS.parent / "README.md").read_text()
    told = readme.partition("## What it has found")[2].partition("\n## ")[0]
    figures = re.findall(r"\d*\.\d+", told)
    assert len(figures) >= 12 and [each for each in figures if each not in re.findall(r"\d*\.\d+", FINDINGS)] == []


def test_the_list_of_folders_counts_their_verdicts() -> None:
    listed = re.findall(r"(?m)^\| `(\w+)/` \|.*\| ([^|]*) \|$", (PUBLISHED / "README.md").read_text())
    assert len(listed) >= 11
    for folder, told in listed:
        judged = PUBLISHED / folder / "claims.md"
        rows = judged.read_text().splitlines() if judged.exists() else []
        verdicts = [row.split(" | ")[1].partition(":")[0].strip() for row in rows if row.startswith("| ")]
        for verdict in ("confirmed", "refuted"):
            count = verdicts.count(verdict)
            assert re.findall(rf"(\d+) {verdict}", told) == ([str(count)] if count else []), folder
