"""The figures of docs/results/published/findings.md about E1, from its journals."""

import json

import numpy as np
import pandas as pd

from benchmarks.findings.kept_trials import PUBLISHED, by_seed, interval, mean, ratio, text, thousand

E1, E1_GRID = "batch_vs_tpu_core", "batch_vs_tpu_grid"
RECIPE, RULES, WIDE = "batch_vs_tpu_recipe_merged", "batch_vs_tpu_rules", "batch_vs_tpu_wide"
CNN = {"model": "cnn10", "trainable.precision": "fp32", "strategy": "ddp"}
WRN = {"model": "wrn28_10", "gpus": 1}


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
    wrn = {bits: by_seed(E1, global_batch_size=512, **WRN, trainable__precision=bits) for bits in ("fp32", "bf16")}
    taken = {
        (gpus, batch): by_seed(RECIPE, "train_s", global_batch_size=batch, gpus=gpus)
        for gpus in (1, 2)
        for batch in (128, 256, 512, 1024, 2048)
    }
    in_full = [text(mean(taken[1, batch] / taken[2, batch])) for batch in (256, 512, 2048)]
    ends = {
        (gpus, batch): by_seed(RECIPE, "accuracy", global_batch_size=batch, gpus=gpus).mean() for gpus, batch in taken
    }
    at_most = np.ceil(1000 * max(abs(ends[1, batch] - ends[2, batch]) for _, batch in taken)) / 10
    accuracy_on_two = {batch: by_seed(RECIPE, "accuracy", global_batch_size=batch, gpus=2) for batch in (128, 2048)}
    lost_on_two = interval(100 * (accuracy_on_two[128] - accuracy_on_two[2048]))
    at_128 = [pace(128, gpus, column="sm_clock_mhz") for gpus in (1, 2)]
    hottest = max(pace(128, gpus, column="temperature_c").max() for gpus in (1, 2))
    computing = [1e3 * mean(pace(128, gpus, column="step_compute_s")) for gpus in (2, 1)]
    packed = json.loads((PUBLISHED / "packing.json").read_text())["samples_per_s"]
    alone, four, _, captured, captured_elsewhere, four_captured = packed.values()
    return [
        f"DDP {text(ratio(pace(128, 2), pace(128, 1)))} (the post 0.82×): two seeds gained"
        f" {100 * (gains.iloc[1] - 1):.0f} and {100 * (gains.iloc[2] - 1):.0f}%, one lost nothing,"
        f" {text(gains.iloc[0], 3, '')}",
        f"{mean(taken[2, 128]):.0f} s on two, {mean(taken[1, 128]):.0f} s on one (of the other host),"
        f" {text(ratio(taken[1, 128], taken[2, 128]))}",
        f"{mean(taken[2, 1024]):.0f} s on two, {mean(taken[1, 1024]):.0f} s on one:"
        f" {text(ratio(taken[1, 1024], taken[2, 1024]))}. At 256, 512 and 2048 two are {in_full[0]}, {in_full[1]} and"
        f" {in_full[2]} as fast, and at no batch do they end more than {text(at_most, 1, ' points')}",
        f"keep {min(map(min, at_128)):,.0f} MHz, at {hottest:.0f} °C at most. Half the batch computes in"
        f" {computing[0]:.1f} ms instead of {computing[1]:.1f}",
        f"{text(ratio(pace(1024, 2), pace(1024, 1)), 3)} in fp32",
        f"DataParallel, the post's way: {text(ratio(pace(1024, 2, strategy='data_parallel'), pace(1024, 1)))}, but"
        f" {text(ratio(pace(128, 2, strategy='data_parallel'), pace(128, 1)))} at 128",
        f"DDP {text(mean(pace(1024, 2, **bf16) / pace(1024, 1, **bf16)))} and DataParallel"
        f" {text(mean(pace(1024, 2, strategy='data_parallel', **bf16) / pace(1024, 1, **bf16)))} (single trials)",
        f"{text(accuracy[1024].mean(), 3, '')} against {text(accuracy[128].mean(), 3, '')}, {text(lost, 3, '')}",
        f"{text(accuracy[2048].mean(), 3, '')} against {text(accuracy[128].mean(), 3, '')}:"
        f" {text(lost_2048, 1, ' points')}",
        f"On two {text(ends[2, 2048], 3, '')} against {text(ends[2, 128], 3, '')}: {text(lost_on_two, 1, '')}",
        text(ratio(pace(256, 2, strategy="independent"), pace(128, 1)), 3) + " at batch 128, fp32",
        f"bf16 {text(ratio(wrn['bf16'], wrn['fp32']))} fp32. The CNN at 1024:"
        f" {text(mean(pace(1024, 1, **bf16) / pace(1024, 1)), 1)}",
        f"{seconds[128]:.0f} s at batch 128, {seconds[1024]:.0f} s at 1024",
        f"make {thousand(four)} images/s together, {four / alone:.1f} times what one makes there alone"
        f" ({thousand(alone)}). But *one* with captured steps makes {thousand(captured)}",
        f"make {thousand(four_captured)} images/s together, what one makes alone there"
        f" ({thousand(captured_elsewhere)})",
    ]


def rules() -> list[str]:
    """E1's recipe by other learning-rate rules."""

    def ends(batch: int, rule: str, warmup_epochs: int = 0) -> pd.Series:
        return by_seed(RULES, "accuracy", global_batch_size=batch, lr_rule=rule, warmup_epochs=warmup_epochs)

    def above(accuracy: pd.Series, other: pd.Series, sign: str = " points") -> str:
        return text(interval(100 * (accuracy - other)), 1, sign)

    ways = (("none", 0), ("linear", 5), ("sqrt", 0))
    linear = ends(1024, "linear")
    at_1024 = [ends(1024, *way) for way in ways]
    unchanged, warmed_up, root = (text(values.mean(), 3, "") for values in at_1024)
    gains = [above(values, linear, sign) for values, sign in zip(at_1024, (" points", "", " points"), strict=True)]
    at_2048 = [text(ends(2048, *way).item(), 3, "") for way in (*ways, ("linear", 0))]
    at_128 = ends(128, "none")

    def wide(column: str, digits: int, per: float = 1.0) -> list[str]:
        cells = ((1, 128), (2, 512), (2, 1024), (2, 2048))
        figures = [by_seed(WIDE, column, gpus=gpus, global_batch_size=batch).item() for gpus, batch in cells]
        return [text(value / per, digits, "") for value in figures]

    minutes, accuracy, memory = wide("train_s", 1, 60), wide("accuracy", 3), wide("peak_memory_gb", 1)
    return [
        f"an unchanged rate ends at {unchanged}, {gains[0]} above the linear rule; the linear rule with five epochs of"
        f" warm-up at {warmed_up}, {gains[1]} above it",
        f"{root} against {text(linear.mean(), 3, '')}, {gains[2]}; at 2048 {at_2048[2]} against {at_2048[3]}",
        f"{text(linear.mean(), 3, '')} against {text(at_128.mean(), 3, '')}: {above(at_128, linear)} lost",
        f"At an unchanged one, 1024 is not shown to lose against 128 ({above(at_1024[0], at_128)}",
        f"Single trials at 2048: {', '.join(at_2048[:2])}, and {at_2048[3]} without warm-up",
        f"{warmed_up} against {text(at_128.mean(), 3, '')}, {above(at_1024[1], at_128)}",
        f"It still loses against 128: {above(at_128, at_1024[2])}",
        f"{minutes[0]} minutes on one H200 in bf16, accuracy {accuracy[0]}",
        f"at {accuracy[1]}, {accuracy[2]} and {accuracy[3]}: it falls, and does not collapse. {minutes[1]},"
        f" {minutes[2]} and {minutes[3]} minutes, {memory[1]}, {memory[2]} and {memory[3]} GB on each",
    ]


def placements() -> list[str]:
    """E1's grid: single trials."""

    def cell(model: str, precision: str, batch: int, gpus: int, strategy: str, column: str = "samples_per_s") -> float:
        axes = {"model": model, "trainable.precision": precision, "resources.timing": "device"}
        return mean(by_seed(E1_GRID, column, global_batch_size=batch, gpus=gpus, strategy=strategy, **axes))

    def gain(model: str, precision: str, batch: int, strategy: str = "ddp") -> str:
        two, one = (cell(model, precision, batch, *way) for way in ((2, strategy), (1, "ddp")))
        return text(two / one)

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
        (model, batch): text(cell(model, "tf32", batch, 1, "ddp") / cell(model, "fp32", batch, 1, "ddp"), 1)
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
        f"in tf32 {' s against '.join(both['tf32'])}, in bf16 {' against '.join(both['bf16'])} (in fp32"
        f" {' against '.join(both['fp32'])})",
        f"DDP takes {on_two[0]} s in fp32, {on_two[1]} in tf32, {on_two[2]} in bf16: {gains[0]}, {gains[1]} and"
        f" {gains[2]}; at 2,048 in bf16 {gain('wrn28_10', 'bf16', 2048)}",
        f"on one GPU ({most:.1f} GB)",
        f"tf32 {faster['cnn10', 1024]} there, and {faster['wrn28_10', 256]} on WRN-28-10 at 256",
    ]
