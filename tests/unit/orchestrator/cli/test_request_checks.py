"""What is refused before a cluster is asked what it has."""

import pytest

from orchestrator.cli.request_checks import checked, composed
from orchestrator.config.search_path import initialised
from sweeps.errors import ConfigError


@pytest.mark.parametrize("key", ["rerun", "sweep.baseline"])
@pytest.mark.parametrize("counts", ["auto", "[1,2]"])
def test_cells_are_looked_for_once_the_gpu_counts_are_known(key: str, counts: str) -> None:
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
