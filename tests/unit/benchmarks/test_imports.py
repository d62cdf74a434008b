from importlib import import_module
from pathlib import Path

import pytest

BENCHMARKS = sorted(path.stem for path in (Path(__file__).parents[3] / "tests/benchmarks").glob("*.py"))


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_finds_what_it_measures(name: str) -> None:
    """They are run too seldom to be trusted to have followed every move."""
    assert import_module(f"tests.benchmarks.{name}").__doc__
