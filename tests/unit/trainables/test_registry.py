import inspect
import pkgutil
import sys
from pathlib import Path

import pytest

from trainables.registry import MODELS, SCHEDULES, written_signature

SOURCE = """
import functools
from elsewhere import Far

raise SystemExit("imported")

def plain(input_shape, /, depth=3, *more, width, height=2, **rest): pass

def twice(): pass
def twice(a): pass

@functools.cache
def wrapped(a): pass

class Net(Far):
    def forward(self, x): pass
    def __init__(self, num_classes, width=4):
        pass

class Heir(Far):
    def forward(self, x): pass

class Made(Far):
    def __new__(cls, a): pass
    def __init__(self, a): pass

class Other(metaclass=Far):
    def __init__(self, a): pass

try:
    def within(a): pass
except ImportError:
    within = None

value = plain
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "mine_to_read"
    package.mkdir()
    (package / "__init__.py").write_text("def above(a=1): pass\n")
    (package / "parts.py").write_text(SOURCE)
    (package / "broken.py").write_text("def plain(:\n")
    (tmp_path / "single_to_read.py").write_text("def plain(a): pass\n")
    for beside in (tmp_path / "mine_to_read.py", package / "nets.py"):  # which no import would find
        beside.write_text("def above(b): pass\n")
    (package / "nets").mkdir()
    (package / "nets" / "__init__.py").write_text("def above(c): pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("mine")
@pytest.mark.parametrize(
    ("path", "signature"),
    [
        ("mine_to_read.parts:plain", "(input_shape, /, depth=Ellipsis, *more, width, height=Ellipsis, **rest)"),
        ("mine_to_read.parts:Net", "(num_classes, width=Ellipsis)"),
        ("mine_to_read:above", "(a=Ellipsis)"),
        ("mine_to_read.nets:above", "(c)"),
        ("single_to_read:plain", "(a)"),
        *((f"mine_to_read.parts:{name}", None) for name in ("twice", "wrapped", "Heir", "Made", "Other", "within")),
        *((f"mine_to_read.parts:{name}", None) for name in ("value", "Far", "absent")),
        *((path, None) for path in ("mine_to_read.broken:plain", "mine_to_read.more:a", "absent:a", "__main__:a")),
        *((path, None) for path in ("single_to_read.deeper:plain", "builtins:print", "json:dumps_of_mine")),
    ],
)
def test_signatures_are_read_without_running_code(path: str, signature: str | None) -> None:
    found = written_signature(path)
    assert (None if found is None else str(found)) == signature
    assert not {"mine_to_read", "single_to_read"} & set(sys.modules)


def test_read_signatures_equal_imported_ones() -> None:
    paths = [path for path in [*MODELS.values(), *SCHEDULES.values()] if "torchvision" not in path]
    read = {path: found for path in paths if (found := written_signature(path))}
    assert len(read) > 15
    for path, found in read.items():
        assert parameters(found) == parameters(inspect.signature(pkgutil.resolve_name(path))), path


def parameters(signature: inspect.Signature) -> list[tuple[str, object, bool]]:
    """Return the parts of a signature that the check of keys uses."""
    return [(each.name, each.kind, each.default is each.empty) for each in signature.parameters.values()]
