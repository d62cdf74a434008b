"""Dependencies with known holes cannot be installed with this package; needs no network, unlike .ci/audit."""

import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

FLOORS = {
    "ray": "2.56",  # CVE-2026-57516
    "torch": "2.10",  # torch.load(weights_only=True) could be led astray before
    "hydra-core": "1.3.8",
}
"""The first version without the hole that made it a floor."""

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(("name", "floor"), FLOORS.items())
def test_versions_with_known_holes_are_excluded(name: str, floor: str) -> None:
    wanted = {Requirement(each).name: Requirement(each).specifier for each in PROJECT["dependencies"]}
    release = Version(floor)
    before = f"{release.major}.{release.minor - 1}" if release.micro == 0 else f"1.3.{release.micro - 1}"
    assert before not in wanted[name] and floor in wanted[name]
    assert Version(version(name)) >= release
