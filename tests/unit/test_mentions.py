"""Check that every file, module and name exists that docstrings, comments, strings and documents mention."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = ("orchestrator", "trainables", "sweeps", "studies", "benchmarks", "tests")
WHERE = (*ROOMS, "conf", "docs", "examples", ".ci", ".github")
KINDS = {".py", ".md", ".yaml", ".yml", ".txt", ".toml", ".ipynb", ".cff"}
GROUPS = ("sweep", "trainable", "model", "data")
BUILT = {"orchestrator/conf"}
"""Only in the wheel."""
READERS = {f"conf/{name}" for name in ("mine.yaml", "experiment", *(f"{group}/mine.yaml" for group in GROUPS))}
"""Files of a reader's project."""
ELSEWHERE = {"examples/pytorch/basics", "examples/s", "docs/pictures/findings_", "docs/results/published/FOLDER"}
"""Another project's folder; a unit; patterns."""
UNTRUE_ON_PURPOSE = {"tests/unit/test_mentions.py", "tests/unit/trainables/test_rank.py"}

PATH = re.compile(rf"(?<![\w/.-])(?:{'|'.join(ROOMS)})(?:/[\w-]+)+(?:\.\w+)*")
SHIPPED = re.compile(r"(?<![\w/.-])(?:conf|docs|examples)(?:/[\w-]+)+(?:\.\w+)*")
DOTTED = re.compile(rf"(?<![\w/.-])(?:{'|'.join(ROOMS)})(?:\.[a-z]\w*)+(?:[.:]\w+)*")


def texts():
    folders = [path for name in WHERE if (ROOT / name).is_dir() for path in (ROOT / name).rglob("*")]
    results = ROOT / "docs" / "results"  # these name the code of their day
    for path in [*ROOT.glob("*"), *folders]:
        if path.suffix in KINDS and path.is_file() and results not in path.parents:
            yield path


def exists(path):
    """Return whether a file or folder exists; a module may be named without its ending."""
    return path in BUILT | READERS | ELSEWHERE or any((ROOT / f"{path}{ending}").exists() for ending in ("", ".py"))


def resolves(dotted):
    """Return whether a dotted name is a module, or a name in one."""
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


def untrue(text):
    paths = [path for path in PATH.findall(text) if not exists(path)]
    return paths + [name for name in DOTTED.findall(text) if not resolves(name)]


def untrue_of_files(text):
    """Return missing files that configs, documents and examples name; tests make some themselves."""
    return [path for path in SHIPPED.findall(text) if not exists(path)]


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("see `orchestrator/store/files.py`, and tests/unit", []),
        ("`orchestrator.store.files`: orchestrator.backends.ray.backend.RayBackend, trainables.noop:train", []),
        ("see orchestrator/disk.py.", ["orchestrator/disk.py"]),
        ("`orchestrator.disk`", ["orchestrator.disk"]),
        ("trainables.noop:trian", ["trainables.noop:trian"]),
    ],
)
def test_missing_files_and_names_are_found(text, missing):
    assert untrue(text) == missing


def test_every_mentioned_module_exists():
    checked = {str(path.relative_to(ROOT)): path for path in texts()}
    missing_by_file = {
        name: untrue(path.read_text()) for name, path in checked.items() if name not in UNTRUE_ON_PURPOSE
    }
    assert len(missing_by_file) > 500 and {name: places for name, places in missing_by_file.items() if places} == {}


def test_every_mentioned_file_exists():
    missing_by_file = {
        path: untrue_of_files(path.read_text()) for path in texts() if ROOT / "tests" not in path.parents
    }
    assert len(missing_by_file) > 300 and {path: files for path, files in missing_by_file.items() if files} == {}
    assert untrue_of_files("see `docs/columns.yaml`, conf/model/mlp.yaml and docs/nowhere.md") == ["docs/nowhere.md"]
