"""What a directory is held to where its journal answers this command's question, and where it answers another one."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.journal.journal import Journal
from orchestrator.journal.line import Kind
from orchestrator.storage.layout import Layout
from orchestrator.verify import verify as verified
from tests.unit.orchestrator.report import demo

REQUEST: Any = SimpleNamespace()
RECORD = demo.records()[0]


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    found = demo.results(tmp_path / "demo", [RECORD])
    found.quarantine.write_bytes(b"")
    with found.journal.open("ab") as file:
        file.write(b'{"checksum":"half')
    return found


def test_what_a_crash_leaves_is_no_violation(layout: Layout) -> None:
    found = verified.verify(REQUEST, layout, [RECORD.trial_id, "other"], {})
    assert found.violations == []
    assert [remark.removeprefix(f"{layout.journal}: ") for remark in found.remarks] == [
        "line 4: torn: the line has no end (17 bytes)",
        "records: 3, trials: 1, with an end: 1, planned without one: 1 of 2",
        f"{layout.quarantine} holds what was damaged before, and was left out",
    ]


def test_a_damaged_record_is_a_violation(layout: Layout) -> None:
    first, _, rest = layout.journal.read_bytes().partition(b"\n")
    layout.journal.write_bytes(first[:-1] + b"?\n" + rest)
    (told,) = verified.verify(REQUEST, layout, [], {}).violations
    assert told.startswith(f"{layout.journal}: line 1: corrupt")


@pytest.mark.parametrize(("asked", "violations"), [({}, 1), ({"epochs": 2}, 0)])
def test_a_plan_is_only_held_against_what_asked_for_it(
    layout: Layout, asked: dict[str, Any], violations: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verified.verify_files, "of_the_tables", lambda *given, ended: [])  # which are not made here
    with Journal.open(layout.journal) as journal:
        journal.append(Kind.ENDED, {"missing": 0})
    found = verified.verify(REQUEST, layout, [RECORD.trial_id, "other"], asked)
    assert len(found.violations) == violations
    assert any("another configuration" in remark for remark in found.remarks) is not bool(violations)
    assert any("planned without one" in remark for remark in found.remarks) is bool(violations)
