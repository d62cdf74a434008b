import subprocess
import sys
from typing import Any

import pytest

from tests.unit.trainables.ranks import CONFIG
from trainables.supervised_check import mistakes

GROWS = {"name": "increase_batch", "milestones": [0.5], "gamma": 0.1}


@pytest.mark.parametrize(
    ("sections", "told"),
    [
        ({}, []),
        ({"schedule": GROWS, "budget": {"epochs": 1, "steps": None}}, []),
        ({"trainable": {"compile": "fast"}}, ["trainable.compile='fast' is not one of off, default, max-autotune"]),
        ({"trainable": {"val_fraction": "much"}}, ["'<=' not supported between instances of 'int' and 'str'"]),
        ({"schedule": GROWS | {"gamma": 0.3}}, ["schedule: schedule.gamma=0.3 multiplies no batch by a whole number"]),
        ({"schedule": GROWS}, ["budget.steps says nothing of samples where schedule=increase_batch"]),
    ],
)
def test_mistakes_are_told(sections: dict[str, Any], told: list[str]) -> None:
    found = list(mistakes(CONFIG | sections))
    assert len(found) == len(told) and all(one in other for one, other in zip(told, found, strict=True))


def test_looking_imports_no_torch() -> None:
    code = "import sys, trainables.supervised_check; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
