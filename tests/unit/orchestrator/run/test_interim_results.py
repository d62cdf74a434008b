import pytest

from orchestrator.config.request import Metric
from orchestrator.run.interim_results import InterimResults
from orchestrator.telemetry.timing_gate import VALID
from sweeps.status import Status
from tests.unit.orchestrator.plan.planned import TRIALS


@pytest.mark.parametrize(
    ("ok", "failed", "expected"),
    [
        ((), ((1, "a"), (2, "b")), ["no result so far: 2 of 2"]),
        (((1, "a"), (1, "b")), ((2, "a"), (2, "b")), ["gpus=2 so far: 2 of 2"]),
        (((1, "a"), (2, "a")), ((1, "b"), (2, "b"), (2, "b")), ["optimizer=b so far: 3 of 3"]),
        (((1, "a"),), ((2, "a"),), []),  # one failure is no kind
    ],
)
def test_a_kind_of_which_all_trials_failed_is_named(ok, failed, expected):
    interim = InterimResults(Metric())
    for number, (gpus, optimizer) in enumerate([*ok, *failed]):
        axes = {"gpus": gpus, "optimizer": optimizer, "seed": 0}
        status = Status.OK if number < len(ok) else Status.FAILED
        row = {**TRIALS[0].columns, "trial_id": str(number), "axes": axes, "status": status, "note": "", "metrics": {}}
        interim.take(row, VALID)
    lines = list(interim.lines())
    assert len(lines) == len(expected)
    assert all(part in line and "rerun=failed" in line for part, line in zip(expected, lines, strict=True))


@pytest.mark.parametrize(
    ("best", "leader", "margin"),
    [(0.97, 0.96, 0.02), (0.5006, 0.4006, 0.1)],  # a loss of just the margin is within it
)
def test_the_leader_is_as_accurate_as_the_best_within_the_margin(best, leader, margin):
    interim = InterimResults(Metric(), margin=margin)
    for number, (rate, accuracy) in enumerate([(100.0, best), (150.0, leader), (900.0, 0.15)]):
        metrics = {"samples_per_s": rate, "val_accuracy": accuracy}
        own = {
            "trial_id": str(number),
            "cell_id": str(number),
            "status": Status.OK,
            "disturbed": "",
            "metrics": metrics,
        }
        interim.take({**TRIALS[0].columns, **own}, VALID)
    told = "\n".join(interim.lines())
    assert "150 samples/s" in told and "900" not in told
