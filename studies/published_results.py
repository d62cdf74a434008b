"""Put results of the published experiments into the documentation: journals, tables and plots.

    python -m studies.published_results NAME --from RESULTS/data_parallel
    python -m studies.published_results NAME --from ONE_GPU TWO_GPUS     # merged
    python -m studies.published_results --remake                         # all kept folders, from themselves

NAME is the folder under docs/results/published to write; its content is replaced. Each folder of --from has a
journal.jsonl, and the trials' metrics.jsonl if loss curves are to be compared; a kept folder is such a folder. With
several, each cell (all its seeds) is taken from the last folder that could run it, and the claims are judged over all.
The last journal names the sweep and its scale. --override goes to the report: `--override sweep.baseline={gpus:2}`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from orchestrator.library import NotebookPlots
from orchestrator.store.history import History, changes_between
from orchestrator.store.journal import encode, replay
from orchestrator.store.record import Kind, Record
from orchestrator.store.results_folder import JOURNAL, METRICS, WHAT_IF, ResultsFolder
from studies import loss_distance, published_plots, published_tables
from sweeps.status import Status

KEPT = ("tables/*.md", "tables/summary.csv")
NOT_KEPT = ("scaling.md",)
"""Scaling laws need more GPU counts than these sweeps have."""
PLOTS = ("why_not_linear",)
WITH_CURVES = (*PLOTS, "loss")
"""Plots of the report that are kept as SVG, without curves and with them."""
CURVE_KEYS = ("epoch", "samples", "loss")
"""Keys of a curve's rows that the tables use."""


def merged(journals: Sequence[Sequence[Record]]) -> list[Record]:
    """Merge journals as if all were of the last request: each cell comes from the last journal that has it."""
    source = {
        _cell(record): place
        for place, journal_records in enumerate(journals)
        for record in journal_records
        if _is_end(record)
    }
    taken = [record for record in journals[-1] if record.kind == Kind.SWEEP][-1:]
    for place, records in enumerate(journals):
        trials = {record.value["trial_id"] for record in records if _is_end(record) and source[_cell(record)] == place}
        taken += [record for record in records if record.value.get("trial_id") in trials]
    return taken + [record for record in journals[-1] if record.kind == Kind.ENDED][-1:]


def _is_end(record: Record) -> bool:
    """Return whether the record ends a trial that could run: another machine may have room for the others."""
    return record.kind == Kind.FINISHED and record.value.get("status") != Status.INFEASIBLE


def _cell(record: Record) -> str:
    """Identify a cell by its axes: ids depend on the code, and the journals may be of several versions."""
    return json.dumps({axis: value for axis, value in record.value["axes"].items() if axis != "seed"}, sort_keys=True)


def gathered(folders: Sequence[Path], into: Path) -> None:
    """Copy the results of all folders into one, from which a report can be made."""
    journals = [replay(folder / JOURNAL).records for folder in folders]
    into.mkdir(parents=True)
    taken: Sequence[Record] = journals[0]
    if len(folders) == 1:
        shutil.copyfile(folders[0] / JOURNAL, into / JOURNAL)
    else:
        taken = merged(journals)
        (into / JOURNAL).write_bytes(b"".join(encode(record.kind, record.value) + b"\n" for record in taken))
        for folder, records in zip(folders[:-1], journals, strict=False):
            for line in changes_between(History(records).fingerprint or {}, History(journals[-1]).fingerprint or {}):
                print(f"{folder} had another request: {line}")
    trials = {record.value.get("trial_id") for record in taken}
    for path in (path for folder in folders for path in ResultsFolder(folder).trials.glob(f"*/{METRICS}")):
        if path.parent.name not in trials:
            continue
        copied = ResultsFolder(into).trials / path.parent.name / METRICS
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copied)


def reported(sweep: str, scale: str, results: Path, overrides: Sequence[str] = ()) -> None:
    """Make the tables and plots of the folder. Raises CalledProcessError."""
    command = [sys.executable, "-m", "orchestrator", f"sweep=published/{sweep}", f"scale={scale}", "mode=report"]
    where = [f"results_dir={results.parent}", f"sweep.name={results.name}"]
    root = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": str(root)}
    subprocess.run([*command, *where, *overrides], check=True, cwd=results.parent, env=environment, stdout=sys.stderr)
    for made in (results / WHAT_IF).glob("*"):  # with settings that no run had, these are the tables to keep
        shutil.copytree(made, results, dirs_exist_ok=True)
    loss_distance.write(results / "tables")


def kept(results: Path, into: Path) -> list[Path]:
    """Replace the content of `into` with the files worth keeping; return them."""
    files = [path for pattern in (JOURNAL, *KEPT) for path in results.glob(pattern) if path.name not in NOT_KEPT]
    has_curves = (results / "tables" / "loss_distance.md").exists()
    plots = NotebookPlots.of(ResultsFolder(results)) if ResultsFolder(results).page.is_file() else {}
    wanted = WITH_CURVES if has_curves else PLOTS
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    for curve in ResultsFolder(results).trials.glob(f"*/{METRICS}") if has_curves else ():
        copied = ResultsFolder(into).metrics(curve.parent.name)
        copied.parent.mkdir(parents=True)
        rows = [json.loads(line) for line in curve.read_text().splitlines()]
        used = [{name: row[name] for name in CURVE_KEYS if name in row} for row in rows]
        copied.write_text("".join(json.dumps(row) + "\n" for row in used))
    copied_files = [Path(shutil.copyfile(path, into / path.name)) for path in files]
    return [*copied_files, *(plots[name].save(into / f"{name}.svg") for name in wanted if name in plots)]


def put(name: str, folders: Sequence[Path], docs: Path, overrides: Sequence[str] = ()) -> None:
    """Gather results, report on them, and keep the files."""
    with tempfile.TemporaryDirectory() as aside:
        results = Path(aside) / name
        gathered([folder.absolute() for folder in folders], results)
        reported(*published_tables.experiment(results), results, overrides)
        published_tables.write(results, results / "tables" / "summary.csv")
        for path in kept(results, docs / name):
            print(path)


def main() -> None:
    """Put one folder, or all, and draw the plots of the findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", help="folder under docs/results/published")
    parser.add_argument("--from", dest="folders", nargs="+", type=Path, metavar="RESULTS")
    parser.add_argument("--remake", action="store_true", help="all kept folders, each from itself")
    parser.add_argument("--override", action="append", default=[])
    parser.add_argument(
        "--docs", type=Path, default=published_plots.PUBLISHED_IN, help="another folder to keep them in"
    )
    given = parser.parse_args()
    if given.remake == bool(given.name and given.folders):
        parser.error("give a NAME and --from, or --remake")
    if given.remake:
        for journal in sorted(given.docs.glob(f"*/{JOURNAL}")):
            put(journal.parent.name, [journal.parent], given.docs)
    else:
        put(given.name, given.folders, given.docs, given.override)
    if given.docs == published_plots.PUBLISHED_IN:
        published_plots.main()


if __name__ == "__main__":
    main()
