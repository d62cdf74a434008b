"""The figures of docs/results/published/findings.md about E4, from its journals."""

import pandas as pd

from benchmarks.findings.kept_trials import by_seed, mean, ratio, text

E4, E4_ELSEWHERE, E4_FOUR = "conv2d", "conv2d_core", "conv2d_four_seeds"
WHOLE = {"trainable.timed": "whole", "trainable.filter_size": 3, "trainable.channels": 1, "trainable.library": "torch"}
ON_GPU = {"resources.device": "cuda", "strategy": "data_parallel"}


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

    disturbed = 3  # the seed beside whose timing other guests of the host took 18% of the cores' time
    first, again = (calls(column, E4_FOUR).drop(disturbed) for column in ("first_epoch_s", "epoch_s"))
    return [
        f"The first call takes {mean(first):.0f} ms (on V100 it took 14,898), SciPy {mean(by_scipy(E4_FOUR)):.0f}"
        f" (the post: 222): {text(ratio(first, by_scipy(E4_FOUR)))}",
        f"On another host {mean(cold):.0f} against {mean(by_scipy(E4)):.0f}, {text(ratio(cold, by_scipy(E4)))}, one of"
        f" its three first calls taking {cold.max():.0f} ms",
        f"on a third {mean(elsewhere):.0f} against {mean(by_scipy(E4_ELSEWHERE)):.0f}",
        f"Warm the GPU takes {mean(warm):.2f} ms: {text(ratio(by_scipy(E4), warm), 0)} as fast as SciPy;"
        f" {text(ratio(by_scipy(E4_FOUR), again), 0)} on the first of these hosts",
        f"Warm calls take {mean(warm):.1f} ms on one GPU and {ms(gpus=2):.1f} on two, cold ones {mean(cold):.0f} and"
        f" {ms('first_epoch_s', gpus=2):.0f}",
        f"Copying in takes {ms(trainable__timed='copy_in'):.1f} ms and out {ms(trainable__timed='copy_out'):.1f}, the"
        f" convolution {text(compute, 2, '')}",
        f"therefore {mean(warm) / compute:.0f} times as fast",
        f"From pinned memory a call takes {ms(**pinned):.2f} ms on one GPU and {text(ms(gpus=2, **pinned), sign='')} on"
        f" two, {text(ms(**pinned) / ms(gpus=2, **pinned))}, where pageable memory gives"
        f" {text(ratio(warm, calls(gpus=2)))}, and a process for each GPU {text(mean(warm) / ms(**two_processes))}",
        f"{text(untested(10, 1), 2, '')} ms with one channel",
        f"{untested(3, 10):.2f} ms (3×3) and {untested(10, 10):.1f} (10×10), with {untested(3, 10, 'copy_in'):.0f} ms",
    ]
