"""The figures of docs/results/published/findings.md about E0, from its journals."""

import pandas as pd

from benchmarks.findings.kept_trials import by_seed, mean, ratio, text, thousand, trials

E0, E0_ELSEWHERE = "unequal_pair_core", "unequal_pair_core_two_h200"
E0_GRID, E0_UNET, E0_EPOCHS, E0_SHARES = (f"unequal_pair_{part}" for part in ("grid", "unet", "200_epochs", "shares"))
FAST = {"trainable.slow_down": None}
SLOW_ALONE, OTHER_ALONE = ({"gpus": 1, "trainable.slow_down": {"rank": rank, "factor": 2.0}} for rank in (0, 1))
UNEQUAL = {"gpus": 2, "trainable.slow_down": {"rank": 1, "factor": 2.0}}


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
        f"{text(gains(E0))} of one GPU under DDP, and at {text(gains(E0, 'data_parallel'))} when driven from one"
        " process",
        f"{text(gains(E0_ELSEWHERE))} and {text(gains(E0_ELSEWHERE, 'data_parallel'))}",
        f"{text(gains(E0, batch=1024), sign='')} times what one does; on the other host"
        f" {text(gains(E0_ELSEWHERE, batch=1024), sign='')}",
        f"{text(ratio(equal, 2 * slow), sign='')} of twice the slow card's pace,"
        f" which is {100 * mean(equal / (slow + other)):.0f}% of the two speeds' sum",
        f"{text(ratio(equal_512, 2 * slow_512), sign='')} of twice the slow card's pace |",
        f"{text(ratio(shared, slow + other), 1, '%', 100)} over four seeds: {text(ratio(shared, equal), sign='')} times"
        f" what equal shares give. On another host {text(of_sum_elsewhere, 1, '%', 100)} over three",
        f"where launches count, {text(ratio(shared_512, slow_512 + other_512), 0, '%', 100)}",
        f"{text(ratio(equal_before, 2 * slow_before), sign='')} of twice the slow card's pace"
        f" ({text(ratio(equal_512_before, 2 * slow_512_before), sign='')} at 512), and proportional ones"
        f" {text(ratio(shared_before, slow_before + other_before), 0, '%', 100)} of the sum",
        f"makes {thousand(mean(pace(E0, 1)), -4)} images/s at batch 512"
        f" ({thousand(mean(pace(E0_ELSEWHERE, 1)), -3)} on the other host)",
    ]


def second_gpu() -> list[str]:
    def gain(folder: str, batch: int, strategy: str = "ddp", per_gpu: int | None = None, **cell: object) -> float:
        """At the same global batch, or at `per_gpu` samples a GPU."""
        one = by_seed(folder, gpus=1, global_batch_size=per_gpu or batch, **cell)
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
    memory = max(trial["metrics"]["peak_memory_gb"] for trial in trials(E0_UNET) if trial["status"] == "ok")
    return [
        f"200 epochs take {mean(seconds(1)):.1f} s on one and {mean(seconds(2)):.1f} on two,"
        f" {text(ratio(seconds(1), seconds(2)))} (the post 68 and 59), to a"
        f" test accuracy of {100 * accuracy:.1f}%",
        f"at {text(by_batch[128])}, {text(by_batch[512])}, {text(by_batch[1024])}, {text(by_batch[2048])} and"
        f" {text(by_batch[8192])} of one with batches of 128, 512, 1,024, 2,048 and 8,192",
        f"still reaches only {text(driven[0])} of one GPU at 2,048, and {text(driven[1])} at 4,096",
        f"with 512 each, two make {text(gain(E0_GRID, 1024, per_gpu=512, **FAST), sign='')} times what one does, with"
        f" 4,096 each {text(gain(E0_GRID, 8192, per_gpu=4096, **FAST), sign='')}",
        f"An epoch takes {text(ratio(epoch, epoch_of_one), 3, sign='')} of the time",
        f"batch 8 two GPUs are {text(gain(E0_UNET, 8))} as fast as one, at 128 {text(gain(E0_UNET, 128))};"
        " DataParallel reaches"
        f" {text(gain(E0_UNET, 8, 'data_parallel'))} and {text(gain(E0_UNET, 128, 'data_parallel'))}",
        f"every batch up to 128 fits ({memory:.0f} GB at most)",
    ]
