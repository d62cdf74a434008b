"""What README and the list of folders tell of the findings."""

import re

from tests.unit.findings.kept_trials import DOCS, FINDINGS, PUBLISHED


def test_what_the_readme_tells_of_them_is_what_they_say() -> None:
    readme = (DOCS.parent / "README.md").read_text()
    told = readme.partition("## What it has found")[2].partition("\n## ")[0]
    figures = re.findall(r"\d*\.\d+", told)
    assert len(figures) >= 12 and [each for each in figures if each not in re.findall(r"\d*\.\d+", FINDINGS)] == []


def test_the_list_of_folders_counts_their_verdicts() -> None:
    listed = re.findall(r"(?m)^\| `(\w+)/` \|.*\| ([^|]*) \|$", (PUBLISHED / "README.md").read_text())
    assert len(listed) >= 11
    for folder, told in listed:
        judged = PUBLISHED / folder / "claims.md"
        rows = judged.read_text().splitlines() if judged.exists() else []
        verdicts = [row.split(" | ")[1].partition(":")[0].strip() for row in rows if row.startswith("| ")]
        for verdict in ("confirmed", "refuted"):
            count = verdicts.count(verdict)
            assert re.findall(rf"(\d+) {verdict}", told) == ([str(count)] if count else []), folder
