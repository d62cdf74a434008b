"""Remake README's example of a run, its picture and the kept tables from the results of that run.

    python -m orchestrator sweep=batch_scaling
    python -m benchmarks.readme results/batch_scaling [--screen screen.txt]

It makes the tables and the report of the folder again with `mode=report`, and replaces the block in README.md below the
comment on the kept run, docs/results/batch_scaling/two_cores/ and docs/pictures/report.png. The picture needs Chromium.
A test makes the block and the tables again from the journal and the learning curves there.
With `--screen`, it draws docs/pictures/live_view.svg from what `tmux capture-pane -ep` printed while the sweep ran.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "docs/results/batch_scaling/two_cores"
TABLES = ("accuracy.md", "recommendation.json", "recommendation.md", "speedup.md", "summary.csv")
SCREENSHOT = ROOT / "docs/pictures/report.png"
LIVE_VIEW = ROOT / "docs/pictures/live_view.svg"
COLUMNS = 100
_BLOCK = re.compile(r"(<!-- the run whose tables are in \S+ -->\n```text\n).*?(```\n)", re.DOTALL)
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_WEB_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


def with_block(page: str, block: str) -> str:
    """Return the page with another block below the comment on the kept run. Raises ValueError if it has no such one."""
    if not _BLOCK.search(page):
        raise ValueError("README.md has no block below the comment on the kept run")
    return _BLOCK.sub(lambda match: f"{match[1]}{block.strip()}\n{match[2]}", page)


def end_of(results: Path) -> str:
    """Return what the end of the sweep prints on a terminal with COLUMNS columns; makes its tables and report again."""
    command = [sys.executable, "-m", "orchestrator", "mode=report", f"results_dir={results}"]
    environment = os.environ | {"FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "LINES": "50"}
    process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return shown(process.stdout, results)


def shown(printed: str, results: Path) -> str:
    """Return what a terminal shows of this text, with the folder of README's command."""
    # A spinner follows, which hides the cursor.
    lines = _ESCAPE.sub("", printed.partition("\x1b[?25l")[0]).splitlines()
    return "\n".join(lines).replace(str(results), "results/batch_scaling")


def take_screenshot(page: Path) -> None:
    """Write the picture of the report's first screen."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise FileNotFoundError("the picture needs Chromium")
    with tempfile.TemporaryDirectory() as profile:
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        size = ["--window-size=1280,900", "--virtual-time-budget=15000"]
        subprocess.run(
            [browser, *flags, *size, f"--screenshot={SCREENSHOT}", page.as_uri()], check=True, stderr=subprocess.DEVNULL
        )


def draw_screen(screen: str) -> None:
    """Write the picture of a terminal's screen, with its colours and without fonts from elsewhere."""
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(Text.from_ansi(screen.rstrip()))
    LIVE_VIEW.write_text(_WEB_FONTS.sub("", console.export_svg(title="python -m orchestrator sweep=batch_scaling")))


def main() -> None:
    """Remake the example from the folder on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="the folder of the run, with its trials")
    parser.add_argument("--screen", type=Path, help="the terminal's screen during the run, with colours")
    arguments = parser.parse_args()
    results = arguments.results.resolve()
    if arguments.screen:
        draw_screen(arguments.screen.read_text())
    block = end_of(results)
    readme = ROOT / "README.md"
    readme.write_text(with_block(readme.read_text(), block))
    shutil.rmtree(KEPT)
    for file in [results / "journal.jsonl", *results.glob("trials/*/metrics.jsonl")]:
        place = KEPT / file.relative_to(results)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)
    for name in TABLES:
        shutil.copy(results / "tables" / name, KEPT / name)
    take_screenshot(results / "report.html")


if __name__ == "__main__":
    main()
