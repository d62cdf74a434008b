"""Dependencies with known holes cannot be installed with this package; needs no network, unlike .ci/audit."""

import os
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

FLOORS = {
    "ray": "2.59",  # up to 2.58 no gang starts on a cluster that is joined; CVE-2026-57516 alone wants 2.56
    "torch": "2.10",  # torch.load(weights_only=True) could be led astray before
    "hydra-core": "1.3.8",
    "filelock": "3.20.1",  # CVE-2025-68146
    "pyyaml": "6.0.4",  # a deeply nested file crashed libyaml, and with it the process
}
"""The first version without what made it a floor."""

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(("name", "floor"), FLOORS.items())
def test_versions_with_known_holes_are_excluded(name: str, floor: str) -> None:
    wanted = {Requirement(each).name: Requirement(each).specifier for each in PROJECT["dependencies"]}
    release = Version(floor)
    *first, last = release.release
    before = ".".join(map(str, [*first, last - 1]))
    assert before not in wanted[name] and floor in wanted[name]
    assert Version(version(name)) >= release


@pytest.mark.parametrize(
    ("says", "status", "told"),
    [
        ("exit 1", 0, "audit skipped: pip-audit is not installed"),
        ("echo 'Name resolution failed'; exit $(($# > 3))", 0, "audit skipped: the advisory service did not answer"),
        ("echo 'Found 1 known vulnerability'; exit $(($# > 3))", 1, "known vulnerability"),
        ("echo 'No known vulnerabilities found'", 0, "No known vulnerabilities found"),
    ],
)
def test_the_audit_says_why_it_is_skipped_and_fails_for_holes_only(
    tmp_path: Path, says: str, status: int, told: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{says}\n")
    python.chmod(0o700)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ended = subprocess.run([ROOT / ".ci/audit"], env=os.environ | path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == status and told in ended.stdout
