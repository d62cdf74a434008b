"""The figures of docs/results/published/findings.md about E2, from its journals."""

import pandas as pd

from benchmarks.findings.kept_trials import by_seed, interval, mean, ratio, text, thousand

E2, E2_ELSEWHERE, E2_LEAST, E2_LARGE = (f"input_pipeline{part}" for part in ("", "_earlier", "_64", "_large"))


def input_pipeline() -> list[str]:
    def pace(way: str, gpus: int, batch: int = 128, column: str = "samples_per_s", *, folder: str = E2) -> pd.Series:
        return by_seed(folder, column, gpus=gpus, device_batch_size=batch, trainable__input=way)

    def gain(gpus: int, folder: str = E2) -> str:
        return text(ratio(*(pace(way, gpus, folder=folder) for way in ("loader", "shared_loader"))))

    def busy(way: str, gpus: int, batch: int = 128, *, folder: str = E2) -> pd.Series:
        return 100 * pace(way, gpus, batch, "gpu_util", folder=folder)

    def busier(folder: str = E2) -> tuple[float, float, float]:
        return interval(busy("loader", 4, folder=folder) - busy("shared_loader", 4, folder=folder))

    same = {gpus: pace("same_batch", gpus) for gpus in (1, 4)}
    several, one = (100 * pace(way, 4, 128, "gpu_util_spread") for way in ("loader", "shared_loader"))
    less = interval(one - several)
    return [
        f"{4 * mean(same[4] / same[1]):.2f} times the examples of one, {thousand(4 * mean(same[4]))} a second",
        f"**{text(ratio(same[4], same[1]), sign='')} of the distinct ones**: {thousand(mean(same[4]))} against"
        f" {thousand(mean(same[1]))}",
        f"{text(ratio(pace('resident', 4), pace('resident', 1)))} with the data on the GPUs,"
        f" {text(ratio(pace('loader', 4), pace('loader', 1)))} with a loader each",
        f"{thousand(mean(pace('loader', 4)))} against {thousand(mean(pace('shared_loader', 4)))} samples/s:"
        f" {gain(4)}; on two {gain(2)}. On another such host one loader gave less: {gain(4, E2_ELSEWHERE)} and"
        f" {gain(2, E2_ELSEWHERE)}",
        f"busy {busy('loader', 4).mean():.1f}% of the time against {busy('shared_loader', 4).mean():.1f}% under one"
        f" loader: +{text(busier(), 1, ' points')}; on the other host +{text(busier(E2_ELSEWHERE), 1, '')}",
        f"{several.mean():.1f} points with a loader each, {one.mean():.1f} under one loader: {text(less, 1, '')} less",
        f"busy {busy('loader', 4).mean():.0f}% of the time on four, {busy('loader', 4, 512).mean():.0f}% at 512",
        f"{text(ratio(pace('resident', 1), pace('loader', 1)), sign='')}".replace(" [", " times as fast [", 1)
        + f" on one GPU, and {text(ratio(pace('resident', 4), pace('loader', 4)), sign='')} on four",
        *images_and_batches(),
    ]


def images_and_batches() -> list[str]:
    """Single trials."""

    def pace(folder: str, way: str, gpus: int, batch: int, column: str = "samples_per_s") -> float:
        return mean(by_seed(folder, column, gpus=gpus, device_batch_size=batch, trainable__input=way))

    def gain(folder: str, way: str, other: str, gpus: int, batch: int) -> str:
        return text(pace(folder, way, gpus, batch) / pace(folder, other, gpus, batch))

    batches = (64, 128, 512)
    busy = [100 * pace(E2_LARGE, "loader", gpus, batch, "gpu_util") for gpus in (1, 2) for batch in batches]
    one_for_all = [pace(E2_LARGE, "shared_loader", 2, batch) / pace(E2_LARGE, "loader", 2, batch) for batch in batches]
    twice = [pace(E2_LARGE, "loader", 2, batch) / pace(E2_LARGE, "loader", 1, batch) for batch in batches]
    return [
        f"at 64 per GPU data on the GPU are {gain(E2_LEAST, 'resident', 'loader', 1, 64)} as fast as a loader",
        f"A loader each keeps them {min(busy):.0f} to {max(busy):.0f}% busy, and two are {min(twice):.2f} to"
        f" {max(twice):.2f}× as fast as one. One loader for both makes"
        f" {', '.join(map(text, one_for_all[:2]))} and {text(one_for_all[2])} of that at 64, 128 and 512",
    ]
