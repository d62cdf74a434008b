import pytest

from sweeps.status import Status
from tests.unit.orchestrator.records import record_of


@pytest.fixture
def records():
    """Two seeds on 1, 2 and 4 GPUs, the last with shared devices; with the other rule one OOM and one infeasible."""

    def measured(samples_per_s: float, accuracy: float) -> dict[str, float]:
        return {"samples_per_s": samples_per_s, "accuracy": accuracy}

    none = [
        record_of(1, 0, metrics=measured(1000, 0.94)),
        record_of(1, 1, metrics=measured(1000, 0.96)),
        record_of(2, 0, metrics=measured(1800, 0.91)),
        record_of(2, 1, metrics=measured(2000, 0.93)),
        record_of(4, 0, timing="shared", metrics=measured(3000, 0.95)),
        record_of(4, 1, timing="shared", metrics=measured(3000, 0.95)),
    ]
    rule = {"lr_rule": "sqrt"}
    sqrt = [
        record_of(2, 0, metrics=measured(1850, 0.94), **rule),
        record_of(2, 1, Status.OOM, note="CUDA out of memory:\n2 | 3 <GiB>", **rule),
        *(record_of(8, s, Status.INFEASIBLE, note="needs 8 ranks; there is room for 4", **rule) for s in (0, 1)),
    ]
    return none + sqrt
