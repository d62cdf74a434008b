"""From overrides to a checked sweep: what is refused before anything starts."""

import pytest

from orchestrator.cli.app import main
from orchestrator.cli.checked_sweep import checked, composed
from orchestrator.config.search_path import initialised
from sweeps.errors import ConfigError


@pytest.mark.parametrize("key", ["rerun", "sweep.baseline"])
@pytest.mark.parametrize("counts", ["auto", "[1,2]"])
def test_cells_are_looked_up_once_gpu_counts_are_known(key: str, counts: str) -> None:
    """A cluster may have three GPUs: `auto` has a cell for them there."""
    with initialised():
        composition = composed(
            ["sweep=batch_scaling", f"sweep.axes.gpus={counts}", "cluster.address=192.0.2.1:6379", f"{key}={{gpus:3}}"]
        )
        if counts == "auto":
            assert checked(composition).request.sweep.axes["gpus"] == "auto"
        else:
            with pytest.raises(ConfigError, match=rf"{key}.*3.*1, 2"):
                checked(composition)


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        (
            ["sweep.axes.device_batch_size=[0,32]", "sweep.axes.lr_rule=[linaer]"],
            [["device_batch_size", "0", "whole number"], ["'linaer'", "'linear'", "adascale"]],
        ),
        (["resources.timing=fast", "sweep.axes.lr_rule=[nope]"], [["'nope'"], ["'fast'", "exclusive"]]),
        (["retries=-1", "resources=null"], [["resources", "timing"], ["retries", "-1"]]),
        (
            ["retries=-1", "sweep.axes.seed=[a]", "sweep.axes.gpus=[all]"],
            [["retries"], ["gpus", "'all'"], ["seed", "'a'"]],
        ),
        (["sweep.axes.seed='[1,'", "sweep.axes.gpus='[2,'"], [["sweep.axes.gpus"], ["sweep.axes.seed"]]),
        (["sweep.axes.gpus=[3]", "budget.epochs=0", "report.objective=speed"], [["'speed'"], ["budget.epochs", "0"]]),
    ],
)
def test_errors_of_several_keys_are_reported_together(overrides, parts, capsys):
    assert main(["sweep=batch_scaling", *overrides]) == 2
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and len(lines) == len(parts), err
    assert all(part in line for line, each in zip(lines, parts, strict=True) for part in each), err


@pytest.mark.parametrize("mode", ["run", "plan", "report"])
def test_wrong_value_is_refused_in_every_mode(mode, capsys):
    assert main(["sweep=batch_scaling", "report.margin=none", f"mode={mode}"]) == 2
    assert "report.margin" in capsys.readouterr().err


def test_sweep_without_a_name_lists_the_choices(capsys):
    assert main([]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "sweep=batch_scaling" in line
