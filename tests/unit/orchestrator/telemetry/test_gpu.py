import math
import os
import time

import pytest

from orchestrator.telemetry import gpu
from orchestrator.telemetry.gpu import Gpus, Neighbours, gpu_models
from tests.unit.orchestrator.telemetry.nvml import Nvml

ALL = {
    "gpu_util": 0.75,
    "memory_util": 0.4,
    "memory_used_gb": 3.0,
    "sm_clock_mhz": 1980.0,
    "memory_clock_mhz": 3201.0,
    "temperature_c": 61.0,
    "power_w": 400.0,
    "energy_j": 5080.0,
    "fan": 0.3,
    "throttle_reasons": 4.0,
    "pcie_tx_gb": 2**-10,
    "nvlink_tx_gb": 1.0,
    "nvlink_rx_gb": 1.0,
}


def test_all_figures_have_their_unit():
    gpus = Gpus(1, nvml=Nvml())
    assert gpus.taps["gpu0"].read() == pytest.approx(ALL)
    assert not gpus.failure


def test_unsupported_figures_are_empty_without_a_failure():
    gpus = Gpus(1, nvml=Nvml(lacks=("nvmlDeviceGetFanSpeed", "nvmlDeviceGetTotalEnergyConsumption")))
    for _ in range(2):
        assert set(ALL) - set(gpus.taps["gpu0"].read()) == {"fan", "energy_j"}
    assert not gpus.failure


@pytest.mark.parametrize("call", range(1, 40))
def test_failure_of_any_call_loses_only_figures(call):
    gpus = Gpus(2, nvml=Nvml(fails_at=call))
    rows = [tap.read() for _ in range(3) for tap in gpus.taps.values()]
    assert "GPU is lost" in gpus.failure
    assert all(row.items() <= (ALL | {"energy_j": row.get("energy_j")}).items() for row in rows)
    assert not rows or rows[-1] == {}


def test_missing_library_gives_a_reason_and_no_figures():
    gpus = Gpus(1, nvml=Nvml(fails_at=1))
    assert gpus.taps == {} and gpus.failure == "NVML: GPU is lost"
    assert math.isnan(gpus.neighbours().busy)
    assert Gpus(0).failure == ""


@pytest.mark.parametrize(
    ("visible", "devices"), [(None, [0, 1]), ("3,1", [3, 1]), ("GPU-a,GPU-b,GPU-c", ["GPU-a", "GPU-b"]), ("", [0, 1])]
)
def test_devices_follow_cuda_visible_devices(visible, devices):
    nvml = Nvml()
    assert list(Gpus(2, visible, nvml).taps) == ["gpu0", "gpu1"]
    assert nvml.devices == devices


GONE = 2**22 + 1
"""No process of this machine."""


@pytest.mark.parametrize(
    ("pids", "foreign"),
    [((os.getpid(),), 0), ((os.getpid(), os.getppid()), 1), ((os.getppid(),), 1), ((GONE,), 0), ((GONE, GONE + 1), 1)],
)
def test_foreign_processes_are_counted(pids, foreign):
    assert Gpus(1, nvml=Nvml(pids=pids)).neighbours().busy == foreign


def test_workers_on_the_gpus_are_not_foreign():
    assert Gpus(1, nvml=Nvml(pids=(os.getppid(), 1))).neighbours([os.getppid()]).busy == 1


def test_foreign_processes_are_nan_if_nvml_omits_them():
    """Or names not even this process, which computes."""
    for silent in (Nvml(lacks=("nvmlDeviceGetComputeRunningProcesses",)), Nvml(pids=())):
        assert math.isnan(Gpus(1, nvml=silent).neighbours().busy)


ME, OTHER = os.getpid(), os.getppid()


@pytest.mark.parametrize(
    ("pids", "used", "counts"),
    [
        ((ME, OTHER), {ME: 90}, (0, 1)),
        ((ME, OTHER), {ME: 90, OTHER: 0}, (0, 1)),
        ((ME, OTHER), {ME: 60, OTHER: 35}, (1, 0)),
        ((ME,), {ME: 60, OTHER: 35}, (1, 0)),  # it has ended meanwhile
        ((ME, OTHER, 1), {ME: 60, OTHER: 1}, (1, 1)),
        ((GONE, GONE + 1), {GONE + 1: 80}, (0, 1)),  # in a container
        ((GONE, GONE + 1), {GONE: 80, GONE + 1: 5}, (1, 0)),
        ((ME, OTHER), {OTHER: 35}, (1, None)),  # not even this process is seen
        ((ME, OTHER), {}, (1, None)),
        ((ME, OTHER), None, (1, None)),
    ],
)
def test_idle_processes_are_told_from_busy_ones(pids, used, counts):
    gpus = Gpus(1, nvml=Nvml(pids=pids, used=used))
    gpus.neighbours()
    neighbours = gpus.neighbours()
    assert (neighbours.busy, None if math.isnan(neighbours.idle) else neighbours.idle) == counts


def test_process_on_two_gpus_is_one_neighbour():
    gpus = Gpus(2, nvml=Nvml(pids=(ME, OTHER), used={ME: 90, OTHER: 20}))
    gpus.neighbours()
    assert gpus.neighbours() == Neighbours(busy=1, idle=0)


def test_first_look_does_not_guess_before_nvml_has_samples():
    there = Nvml(pids=(ME, OTHER), used={})
    gpus = Gpus(1, nvml=there)
    assert math.isnan(gpus.neighbours().busy)
    there.used = {ME: 90}
    assert gpus.neighbours() == Neighbours(busy=0, idle=1)
    first_us, second_us = there.asked_since
    assert first_us < second_us <= time.time_ns() // 1000


def test_gpu_models_are_empty_without_a_driver(monkeypatch):
    there = Nvml()
    monkeypatch.setattr(gpu, "load_nvml", lambda: there)
    assert gpu_models() == ("NVIDIA H100", "NVIDIA H200") and there.devices == [0, 1, "shut down"]
    monkeypatch.setattr(gpu, "load_nvml", lambda: Nvml(fails_at=1))
    assert gpu_models() == ()
