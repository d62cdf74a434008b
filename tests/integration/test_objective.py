"""Test the value that Hydra's sweepers receive from every sweep."""

import pytest
from hydra.experimental.callback import Callback

from orchestrator.cli.app import main

RETURNED = []


class Keep(Callback):
    """A callback that records what a sweeper receives."""

    def on_job_end(self, config, job_return, **other):
        RETURNED.append(job_return.return_value)


@pytest.mark.slow
def test_a_multirun_returns_the_objective(folder):
    RETURNED.clear()
    sweep = ("sweep.name=s_${workers}", "sweep.axes.gpus=[1]", "sweep.axes.device_batch_size=[8,16]")
    status = main(
        [
            *(
                "-m",
                "workers=warm,fresh",
                "backend=inprocess",
                "trainable=noop",
                "sweeper.objective.column=global_batch_size",
                "report.html=false",
            ),
            *(*sweep, f"+hydra.callbacks.keep._target_={__name__}.Keep", f"trusted_modules=[{__name__}]"),
        ]
    )
    assert status == 0 and RETURNED == [16.0, 16.0]


@pytest.mark.slow
def test_a_refused_sweep_has_no_objective(tmp_path, monkeypatch):
    """The second sweep finds results of another config in its folder."""
    monkeypatch.chdir(tmp_path)
    sweep = ("trainable=noop", "backend=inprocess", "sweep.name=s", "sweep.axes.gpus=[1]", "report.html=false")
    sweep = (*sweep, "sweep.axes.device_batch_size=[8]", "sweeper.objective.column=global_batch_size")
    kept = (f"+hydra.callbacks.keep._target_={__name__}.Keep", f"trusted_modules=[{__name__}]")
    assert main([*sweep, "+trainable.mine=3", "results_dir=results/1"]) == 0
    RETURNED.clear()
    status = main(["-m", *sweep, *kept, "+trainable.mine=1,2", "results_dir=results/${hydra:job.num}"])
    assert status == 2 and RETURNED == [8.0, None]
