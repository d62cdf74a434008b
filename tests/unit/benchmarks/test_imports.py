"""Benchmarks are run too seldom to be trusted to have followed every move: what they import of ours is there."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))
ROOMS = ("orchestrator", "sweeps", "trainables", "studies", "benchmarks", "tests")


def module(dotted: str) -> Path | None:
    """Its file; None if there is none."""
    place = ROOT / dotted.replace(".", "/")
    return next((file for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()), None)


def defined(file: Path) -> Iterator[str]:
    """Every name that the module may have."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.alias):
            yield node.asname or node.name


@pytest.mark.parametrize("file", BENCHMARKS, ids=lambda file: file.stem)
def test_a_benchmark_finds_what_it_measures(file: Path) -> None:
    tree = ast.parse(file.read_text())
    assert ast.get_docstring(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in ROOMS:
            origin = module(node.module)
            there = set(defined(origin)) if origin else set()
            for each in node.names:
                assert each.name in there or module(f"{node.module}.{each.name}"), f"{node.module} has no {each.name}"
