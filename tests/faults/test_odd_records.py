"""Test that records with a valid checksum and odd contents, as of a later version, raise in no mode."""

import copy
import hashlib
import json
import random
import shutil
from typing import Any

import pytest

from orchestrator.cli.modes import MODES
from orchestrator.store.results_folder import ResultsFolder
from sweeps.errors import ConfigError
from tests.faults.counted_sweep import counted_sweep

CHECKED_MODES = ("plan", "report", "verify", "compare", "run")


def nested(levels):
    value: Any = 1
    for _ in range(levels):
        value = {"a": [value]}
    return value


ODD = [
    *(None, "preempted", "", 3, -1, 1.5, 10**30, 1e308, float("nan"), True, "\x1b[31m", "\ud800", "x" * 5000),
    *([], {}, [1, 2], {"a": 1}, [None], [[]], {"": None}, {"a": {"b": []}}, nested(40), nested(400)),
]
PROBED = {
    **{"trial_id": "a-probe", "measures": "a", "speed": "x", "size": "s", "status": "ok", "note": ""},
    **dict.fromkeys(("gpus", "gpus_held", "wall_s", "samples_per_s", "reserved_memory_gb", "device_memory_gb"), 1.0),
}


@pytest.fixture(scope="module")
def by_mode(tmp_path_factory):
    """Run a small sweep, of which one seed fails, and configure each mode for its results."""
    folder = tmp_path_factory.mktemp("own")
    with counted_sweep(folder) as configure:
        places = (f"results_dir={folder}", f"compare.with={folder}/batch_scaling")
        checked = {mode: configure(*places, f"mode={mode}") for mode in CHECKED_MODES}
        assert MODES["run"](checked["run"]) == 1
        yield checked


Records = list[tuple[Any, Any]]


def read(journal):
    records = [(line["kind"], line["value"]) for line in map(json.loads, journal.read_bytes().splitlines())]
    started = next(value for kind, value in records if kind == "started")
    return [*records[:-1], ("probed", PROBED), ("cut_off", {**started, "wall_s": 1.0}), records[-1]]


def written(records):
    """Return a journal with checksums that are right, whatever the records are."""
    bodies = [json.dumps({"kind": kind, "value": value}, separators=(",", ":")).encode() for kind, value in records]
    sums = (hashlib.sha256(body).hexdigest()[:16].encode() for body in bodies)
    return b"".join(
        b'{"checksum":"%b",%b\n' % (checksum, body[1:]) for checksum, body in zip(sums, bodies, strict=True)
    )


def places(value):
    """Yield each container within a value, with each of its keys."""
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


def mutated(records, chance):
    changed = copy.deepcopy(records)
    number = chance.randrange(len(changed))
    kind, value = changed[number]
    container, key = chance.choice(list(places(value)))
    match chance.randrange(10):
        case 0:
            changed[number] = chance.choice(["of a later version", None, [], *(kind for kind, _ in records)]), value
        case 1:
            changed[number] = kind, chance.choice(ODD)
        case 2 if isinstance(container, dict):
            del container[key]
        case 3 if isinstance(container, dict):
            container[chance.choice(["", "\x1b", "a.b", "\ud800", "provenance.x"])] = container.pop(key)
        case _:
            container[key] = chance.choice(ODD)
    return changed


def try_all(by_mode, kept, journal):
    """Return the exit status of each mode for the sweep's folder with this journal; 2 for a refusal."""
    statuses = {}
    for mode, sweep in by_mode.items():
        root = sweep.request.results_dir
        shutil.rmtree(root)
        shutil.copytree(kept, root)
        ResultsFolder(root).journal.write_bytes(journal)
        try:
            statuses[mode] = MODES[mode](sweep)
        except ConfigError:
            statuses[mode] = 2
    return statuses


@pytest.fixture
def kept(by_mode, tmp_path):
    """Return a copy of the results, which are as before at the end."""
    root = by_mode["run"].request.results_dir
    shutil.copytree(root, tmp_path / "kept")
    yield tmp_path / "kept"
    shutil.rmtree(root)
    shutil.copytree(tmp_path / "kept", root)


UNUSABLE = [
    ("of a later version", {}),
    ("sweep", {}),
    ("started", {"trial_id": "../x", "attempt": 1}),
    ("ended", {"missing": None}),
    ("retried", {"trial_id": "a", "attempt": "x", "wall_s": 1.0}),
    ("probed", PROBED | {"status": "preempted"}),
    ("finished", nested(400)),
    ("finished", None),
]


def test_unusable_records_are_reported_and_left_out(by_mode, kept, capsys):
    first, *others = read(ResultsFolder(kept).journal)
    statuses = try_all(by_mode, kept, written([first, *UNUSABLE, *others]))
    assert statuses == {"plan": 0, "report": 1, "verify": 1, "compare": 0, "run": 1}  # one seed failed
    told = capsys.readouterr()
    for number in range(2, len(UNUSABLE) + 2):
        assert told.err.count(f" record {number}: ") == 1 and f" record {number}: " in told.out


def try_mutants(by_mode, kept, seeds):
    records = read(ResultsFolder(kept).journal)
    for seed in seeds:
        statuses = try_all(by_mode, kept, written(mutated(records, random.Random(seed))))
        assert set(statuses.values()) <= {0, 1, 2}, (seed, statuses)


def test_some_odd_records_raise_in_no_mode(by_mode, kept):
    try_mutants(by_mode, kept, range(1))


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("piece", range(4))
def test_odd_records_raise_in_no_mode(by_mode, kept, piece):
    try_mutants(by_mode, kept, range(100 * piece, 100 * (piece + 1)))
