"""Whatever is said of a place in the code is true: paths and modules that comments, docstrings and documents name."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("orchestrator", "trainables", "sweeps", "tests")
WHERE = (*ROOMS, "conf", "docs", "examples", ".ci", ".github")
KINDS = {".py", ".md", ".yaml", ".yml", ".txt", ".toml", ".ipynb", ".cff"}
GROUPS = ("sweep", "trainable", "model", "data")
BUILT = {"orchestrator/conf"}
"""Only in the wheel."""
READERS = {f"conf/{name}" for name in ("mine.yaml", "experiment", *(f"{group}/mine.yaml" for group in GROUPS))}
"""Of a reader's own project."""
ELSEWHERE = {"examples/pytorch/basics", "examples/s"}
"""Another project's folder; a unit."""
UNTRUE_ON_PURPOSE = {"tests/unit/test_mentions.py", "tests/unit/trainables/test_rank.py"}

PATH = re.compile(rf"(?<![\w/.-])(?:{'|'.join(ROOMS)})(?:/[\w-]+)+(?:\.\w+)*")
SHIPPED = re.compile(r"(?<![\w/.-])(?:conf|docs|examples)(?:/[\w-]+)+(?:\.\w+)*")
DOTTED = re.compile(rf"(?<![\w/.-])(?:{'|'.join(ROOMS)})(?:\.[a-z]\w*)+(?:[.:]\w+)*")


def texts() -> Iterator[Path]:
    folders = [path for name in WHERE if (ROOT / name).is_dir() for path in (ROOT / name).rglob("*")]
    results = ROOT / "docs" / "results"  # of code as it was then
    for path in [*ROOT.glob("*"), *folders]:
        if path.suffix in KINDS and path.is_file() and results not in path.parents:
            yield path


def exists(path: str) -> bool:
    """A file or a folder; a module may be named without its ending."""
    return path in BUILT | READERS | ELSEWHERE or any((ROOT / f"{path}{ending}").exists() for ending in ("", ".py"))


def resolves(dotted: str) -> bool:
    """A module, or a word in one: a function, a class, what a class has."""
    parts, place, words = re.split("[.:]", dotted), ROOT, []
    for number, part in enumerate(parts):
        if (place / part).is_dir():
            place = place / part
        elif (place / f"{part}.py").is_file():
            place, words = place / f"{part}.py", parts[number + 1 :]
            break
        else:
            place, words = place / "__init__.py", parts[number:]
            break
    if place.is_dir():
        return True
    code = place.read_text() if place.is_file() else ""
    return bool(code) and all(re.search(rf"\b{word}\b", code) for word in words)


def untrue(text: str) -> list[str]:
    paths = [found for found in PATH.findall(text) if not exists(found)]
    return paths + [found for found in DOTTED.findall(text) if not resolves(found)]


def untrue_of_files(text: str) -> list[str]:
    """Of configs, documents and examples; tests make some of their own."""
    return [found for found in SHIPPED.findall(text) if not exists(found)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("see `orchestrator/store/files.py`, and tests/unit", []),
        ("`orchestrator.store.files`: orchestrator.backends.ray.backend.RayBackend, trainables.noop:train", []),
        ("see orchestrator/disk.py.", ["orchestrator/disk.py"]),
        ("`orchestrator.disk`", ["orchestrator.disk"]),
        ("trainables.noop:trian", ["trainables.noop:trian"]),
    ],
)
def test_what_is_untrue_is_found(text: str, found: list[str]) -> None:
    assert untrue(text) == found


def test_every_place_that_is_named_is_there() -> None:
    checked = {str(path.relative_to(ROOT)): path for path in texts()}
    found = {name: untrue(path.read_text()) for name, path in checked.items() if name not in UNTRUE_ON_PURPOSE}
    assert len(found) > 500 and {name: places for name, places in found.items() if places} == {}


def test_every_config_document_and_example_that_is_named_is_there() -> None:
    found = {path: untrue_of_files(path.read_text()) for path in texts() if ROOT / "tests" not in path.parents}
    assert len(found) > 300 and {path: files for path, files in found.items() if files} == {}
    assert untrue_of_files("see `docs/columns.yaml`, conf/model/mlp.yaml and docs/nowhere.md") == ["docs/nowhere.md"]
