import time

import pytest

from trainables.context import Context
from trainables.throughput import throughput
from trainables.timed_window import Warmup


def test_warm_up_and_window_are_phases():
    phases: list[str] = []
    told = Context.alone(observe=phases.append)
    throughput(lambda: None, told, least_s=0.01, least_steps=5, warmup=Warmup(steps=1, seconds=0.0))
    assert phases == ["warmup", "", "window", ""]


def test_throughput_is_samples_per_window_seconds():
    metrics = throughput(
        lambda: time.sleep(0.002),
        Context.alone(batch_size=10),
        least_s=0.1,
        least_steps=20,
        warmup=Warmup(steps=1, seconds=0.0),
    )
    assert metrics["window_steps"] >= 20 and metrics["window_s"] >= 0.1
    assert metrics["samples_per_s"] == pytest.approx(10 * metrics["window_steps"] / metrics["window_s"])
    assert metrics["samples_per_s"] < 10 / 0.002
