"""The findings agree with the journals, and README and the list of folders with the findings."""

import json
import re

import numpy as np
import pytest

from benchmarks.findings.kept_trials import DOCS, FINDINGS, PUBLISHED, missing, text
from benchmarks.findings.report import FIGURES


@pytest.mark.parametrize(("page", "fewest"), [("README.md", 8), ("docs/findings.md", 80)])
def test_figures_of_the_summaries_are_in_the_findings(page, fewest):
    content = (DOCS.parent / page).read_text()
    section = content.partition("## What it has found")[2].partition("\n## ")[0] or content
    figures = re.findall(r"\d*\.\d+(?![\w.])", section)
    assert len(figures) >= fewest
    assert [figure for figure in figures if figure not in re.findall(r"\d*\.\d+", FINDINGS)] == []


def test_figures_about_processes_follow_from_the_measurement():
    measurement = json.loads((DOCS / "results" / "launch_pace.json").read_text())
    held = tuple(measurement["held_over_free"])
    apart = f"{measurement['fastest_over_slowest']:.2f}"
    assert not missing([f"{apart} {text(held, sign='')}"])
    within = f"{np.log(measurement['steps_per_s']).std(axis=1, ddof=1).mean():.0%}"
    numbers, results = ((DOCS / page).read_text() for page in ("numbers.md", "results/README.md"))
    assert f"varies by {within}" in numbers and text(held) in numbers
    assert f"at most {apart}×" in results and f"by {within}" in results and text(held) in results


def test_the_list_of_folders_counts_verdicts():
    listed = re.findall(r"(?m)^\| `(\w+)/` \|.*\| ([^|]*) \|$", (PUBLISHED / "README.md").read_text())
    assert len(listed) >= 11
    for folder, row in listed:
        judged = PUBLISHED / folder / "claims.md"
        rows = judged.read_text().splitlines() if judged.exists() else []
        verdicts = [row.split(" | ")[1].partition(":")[0].strip() for row in rows if row.startswith("| ")]
        for verdict in ("confirmed", "refuted"):
            count = verdicts.count(verdict)
            assert re.findall(rf"(\d+) {verdict}", row) == ([str(count)] if count else []), folder


@pytest.mark.parametrize("figures", FIGURES, ids=lambda figures: figures.__name__)
def test_findings_say_what_the_journals_do(figures):
    assert not missing(figures())
