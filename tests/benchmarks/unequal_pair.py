"""Two ranks, one of them twice as slow on purpose: what equal shares and shares in proportion to speed make of it.

    python -m tests.benchmarks.unequal_pair [--factor 2] [--batch 128] [--rounds 5] [--device cuda] [--out FILE]

A rank's speed is that of a training by itself at the equal share; the two train at the same time, so that sharing the
host's memory and power is no loss of the pair's. The figure is the pair's samples a second over the sum of the speeds.
"""

import argparse
from pathlib import Path
from statistics import median
from typing import Any

from tests.benchmarks.figures import machine, tell
from tests.unit.trainables.ranks import Processes, rendezvous, request, run

CONFIG: dict[str, Any] = {
    "model": {"name": "mnist_cnn"},
    "data": {"name": "synthetic", "shape": [1, 28, 28], "train_size": 4096, "test_size": 64},
    "optimizer": {"name": "adadelta"},
    "schedule": {"name": "constant"},
    "budget": {"steps": 3},
}
TIMING = {"window_s": 1.5, "window_steps": 10, "warmup_steps": 3}


class Pair:
    """Two warm processes, the second of which is the slow one, and requests to them."""

    def __init__(self, batch: int, factor: float, device: str) -> None:
        self._batch, self._factor, self._device = batch, factor, device
        self._processes = Processes(2)

    def apart(self) -> list[float]:
        """Samples a second of each, training by itself at the same time as the other."""
        asked = [self._asked(slow_rank, shares=(self._batch,)) for slow_rank in (1, 0)]
        return [metrics["samples_per_s"] for metrics in self._metrics(asked)]

    def together(self, strategy: str) -> dict[str, Any]:
        """Metrics of both as one gang."""
        place = {"strategy": strategy, "gang_id": strategy, "rendezvous": rendezvous()}
        shares = (self._batch, self._batch)
        return self._metrics([self._asked(1, rank=rank, shares=shares, **place) for rank in range(2)])[0]

    def close(self) -> None:
        """End the processes."""
        self._processes.close()

    def _asked(self, slow_rank: int, **asked: Any) -> dict[str, Any]:
        settings = TIMING | {"slow_down": {"rank": slow_rank, "factor": self._factor}}
        return request(config=CONFIG | {"trainable": settings}, device=self._device, **asked)

    def _metrics(self, asked: list[dict[str, Any]]) -> list[dict[str, Any]]:
        answers = self._processes.call(run, *((each,) for each in asked))
        assert all(answer["status"] == "ok" for answer in answers), answers
        return [answer["metrics"] for answer in answers]


def measure(pair: Pair) -> dict[str, Any]:
    """One round: samples a second of each by itself, and of both with equal and with proportional shares."""
    apart = pair.apart()
    equal, unequal = (pair.together(strategy) for strategy in ("ddp", "ddp_unequal"))
    figures = {"equal": equal["samples_per_s"], "proportional": unequal["samples_per_s"]}
    return {
        "apart_samples_per_s": apart,
        "samples_per_s": figures,
        "of_the_sum_of_speeds": {name: speed / sum(apart) for name, speed in figures.items()},
        "shares": unequal["shares"],
        "probed_samples_per_s": unequal["rank_samples_per_s"],
    }


def report(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The rounds, and their medians."""
    return {
        "of_the_sum_of_speeds": {
            name: median(each["of_the_sum_of_speeds"][name] for each in rounds) for name in ("equal", "proportional")
        },
        "rounds": rounds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--factor", type=float, default=2.0)
    parser.add_argument("--batch", type=int, default=128, help="samples a rank, where shares are equal")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: one process sees one GPU each")
    parser.add_argument("--out", type=Path, help="write the figures as JSON, too")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    pair = Pair(chosen.batch, chosen.factor, chosen.device)
    try:
        figures = report([measure(pair) for _ in range(chosen.rounds)])
    finally:
        pair.close()
    tell(figures | {"factor": chosen.factor, "batch": chosen.batch} | machine(chosen.device), chosen.out)


if __name__ == "__main__":
    main()
