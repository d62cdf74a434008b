"""Options and fixtures for all tests."""

import atexit
import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

settings.register_profile("any machine", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
if "CI" not in os.environ:  # Hypothesis has such a profile for CI
    settings.load_profile("any machine")


# In the background of a script, and below `nohup`, these are ignored, and would be by every process that a test starts.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


# Commands that users are told would begin with `uv run`, and sweeps would run on a developer's cluster.
os.environ.pop("UV_RUN_RECURSION_DEPTH", None)
os.environ.pop("RAY_ADDRESS", None)

# Workers, and the hundreds of processes that tests start, would otherwise compile the same modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Threads of torch that wait for each other would otherwise spin, on cores that other workers need.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--update-golden`, which rewrites the golden files that the selected tests compare with."""
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite tests/golden/ and kept tables with what the tests produce"
    )


@pytest.fixture
def golden(request):
    """A function that compares a text with `tests/golden/<name>`: the only place where wording is pinned."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        assert text == path.read_text(), (
            f"{name} differs; if that is intended: pytest --update-golden {request.node.nodeid}"
        )

    return compare


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder, which is the working folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True, scope="session")
def empty_working_folder(tmp_path_factory):
    """Run all tests in an empty folder, so that none depends on what somebody ran in the clone before."""
    os.chdir(tmp_path_factory.mktemp("working_folder"))


@pytest.fixture(autouse=True, scope="session")
def compose_once():
    """Look up and merge the shipped configs once for all tests of a process."""
    from tests.composed_once import composed_once  # which the controller of the workers does not need

    with composed_once():
        yield


def pytest_xdist_auto_num_workers() -> int:
    """Return one more than the cores: for half of its time a worker waits for processes that a test has started."""
    return (os.cpu_count() or 1) + 1


SHARING = {
    "tests/unit/trainables/command/test_training.py": "ranks",
    "tests/unit/trainables/command/": "",
    "tests/unit/trainables/": "ranks",
    "tests/unit/studies/test_same_batch.py": "ranks",
    "tests/integration/": "drivers",
    "tests/faults/": "drivers",
}
"""{beginning of a test's id: the warm processes that it uses}"""


class ByProcesses(LoadFileScheduling):
    """Gives all tests of a file to one worker, and all tests that share warm processes, which take long to start."""

    def _split_scope(self, nodeid: str) -> str:
        processes = next((processes for start, processes in SHARING.items() if nodeid.startswith(start)), "")
        return processes or str(super()._split_scope(nodeid))


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> ByProcesses | None:
    """Return the scheduler for pyproject's `--dist=loadfile`; None for another that the command line asks for."""
    return ByProcesses(config, log) if config.option.dist == "loadfile" else None


def pytest_configure(config: pytest.Config) -> None:
    """Begin the files in their order: those with Ray, of few tests but the longest, first and not last of all."""
    config.option.loadscopereorder = False


gc.disable()


def pytest_collection_finish() -> None:
    """Collect garbage from here on: during the imports, which leave none, that takes a quarter of their time."""
    gc.freeze()
    gc.set_threshold(20_000)  # by default after each 700 new objects, of which a config and a frame have thousands
    gc.enable()


# The end of the process collects what was frozen, which libraries would report as leaks; pytest's own collections,
# three at its end, need not look through it.
atexit.register(gc.unfreeze)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the file that takes longest: at the end the other workers would wait for it."""
    items.sort(key=lambda item: item.path.name != "test_layouts.py")
