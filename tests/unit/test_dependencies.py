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
    "torch": "2.11",  # CVE-2026-24747 before 2.10, PYSEC-2026-139 in 2.10.0
    "hydra-core": "1.3.8",
    "filelock": "3.20.3",  # CVE-2026-22701
    "pyyaml": "6.0.4",  # a deeply nested file crashed libyaml, and with it the process
    "pyarrow": "23.0.1",  # CVE-2026-25087
    "scikit-learn": "1.5",  # CVE-2024-5206
    "orjson": "3.11.6",  # CVE-2025-67221
    "jinja2": "3.1.6",  # CVE-2025-27516
    "scipy": "1.10",  # CVE-2023-25399
    "psutil": "5.6.7",  # CVE-2019-18874
    **dict.fromkeys(
        ["torchvision", "pandas", "rich", "nvidia-ml-py", "tabulate", "tensorboardX", "vl-convert-python"], "0"
    ),
}
"""The first version without what made it a floor; "0" if no hole is known."""

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_versions_with_known_holes_are_excluded():
    requirements = [Requirement(dependency) for dependency in PROJECT["dependencies"]]
    lowest = {
        one.name: Version(bound.version) for one in requirements for bound in one.specifier if bound.operator == ">="
    }
    assert lowest.keys() == FLOORS.keys()  # a further dependency needs a look at its advisories
    assert {name: str(bound) for name, bound in lowest.items() if bound < Version(FLOORS[name])} == {}
    assert [name for name, bound in lowest.items() if Version(version(name)) < bound] == []


@pytest.mark.parametrize(
    ("says", "status", "told"),
    [
        ("exit 1", 0, "audit skipped: pip-audit is not installed"),
        ("echo 'Name resolution failed'; exit $(($# > 3))", 0, "audit skipped: the advisory service did not answer"),
        ("echo 'Found 1 known vulnerability'; exit $(($# > 3))", 1, "known vulnerability"),
        ("echo 'No known vulnerabilities found'", 0, "No known vulnerabilities found"),
    ],
)
def test_the_audit_says_why_it_is_skipped_and_fails_for_holes_only(tmp_path, says, status, told):
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{says}\n")
    python.chmod(0o700)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    ended = subprocess.run([ROOT / ".ci/audit"], env=os.environ | path, capture_output=True, text=True, timeout=60)
    assert ended.returncode == status and told in ended.stdout
