"""Results of the published experiments into the documents: one command from folders of results to tables and pictures.

    python -m studies.published_results NAME --from RESULTS/data_parallel
    python -m studies.published_results NAME --from ONE_GPU TWO_GPUS     # merged
    python -m studies.published_results --remake                         # all that are kept, from themselves

NAME is the folder under docs/results/published that is written; what lay there before is replaced. Each of --from holds
a journal.jsonl, and the trials' metrics.jsonl where loss curves are to be compared; a folder written so is such a one.
Of several, a cell (all its seeds) is taken from the last that could run it, and the claims are judged over all: the
folders may be of several machines, which the tables say of GPUs, and people of hosts. Which sweep it is and at which
scale, the last journal tells. --override goes to the report, as in `--override sweep.baseline={gpus:2}`.
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

from orchestrator.store.history import difference, latest
from orchestrator.store.journal import Kind, Record, encode, replay
from orchestrator.store.layout import JOURNAL, METRICS, Layout
from studies import published_plots, published_tables
from sweeps.status import Status

KEPT = ("tables/*.md", "tables/summary.csv", "report/why_not_linear.svg")
LEFT = ("scaling.md",)
"""Of the tables: laws need more GPU counts than these sweeps have."""
WITH_CURVES = "report/loss.svg"
OF_CURVES = ("epoch", "samples", "loss")
"""What of a curve's rows the tables rest on."""


def merged(journals: Sequence[Sequence[Record]]) -> list[Record]:
    """One journal of several, as if all had been asked what the last was: of each cell the last that has it."""
    source = {_cell(record): place for place, each in enumerate(journals) for record in each if _is_end(record)}
    taken = [record for record in journals[-1] if record.kind == Kind.SWEEP][-1:]
    for place, each in enumerate(journals):
        trials = {record.value["trial_id"] for record in each if _is_end(record) and source[_cell(record)] == place}
        taken += [record for record in each if record.value.get("trial_id") in trials]
    return taken + [record for record in journals[-1] if record.kind == Kind.ENDED][-1:]


def _is_end(record: Record) -> bool:
    """Of a trial that could run: what one machine has no room for, another may have measured."""
    return record.kind == Kind.FINISHED and record.value.get("status") != Status.INFEASIBLE


def _cell(record: Record) -> str:
    """What tells a cell in journals of several versions, whose identities hold their code."""
    return json.dumps({axis: value for axis, value in record.value["axes"].items() if axis != "seed"}, sort_keys=True)


def gathered(folders: Sequence[Path], into: Path) -> None:
    """The results of all of them as one folder that a report can be made of."""
    journals = [replay(folder / JOURNAL).records for folder in folders]
    into.mkdir(parents=True)
    taken: Sequence[Record] = journals[0]
    if len(folders) == 1:
        shutil.copyfile(folders[0] / JOURNAL, into / JOURNAL)
    else:
        taken = merged(journals)
        (into / JOURNAL).write_bytes(b"".join(encode(each.kind, each.value) + b"\n" for each in taken))
        for folder, each in zip(folders[:-1], journals, strict=False):
            for line in difference(latest(each) or {}, latest(journals[-1]) or {}):
                print(f"{folder} was asked otherwise: {line}")
    trials = {record.value.get("trial_id") for record in taken}
    for path in (path for folder in folders for path in Layout(folder).trials.glob(f"*/{METRICS}")):
        if path.parent.name not in trials:
            continue
        copied = Layout(into).trials / path.parent.name / METRICS
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copied)


def reported(sweep: str, scale: str, results: Path, overrides: Sequence[str] = ()) -> None:
    """Make the tables and pictures of the folder. CalledProcessError where that fails."""
    command = [sys.executable, "-m", "orchestrator", f"sweep=published/{sweep}", f"scale={scale}", "mode=report"]
    where = [f"results_dir={results.parent}", f"sweep.name={results.name}"]
    root = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": str(root)}
    subprocess.run([*command, *where, *overrides], check=True, cwd=results.parent, env=environment, stdout=sys.stderr)


def kept(results: Path, into: Path) -> list[Path]:
    """Take what is worth keeping in place of what lay there; the files."""
    found = [path for pattern in (JOURNAL, *KEPT) for path in results.glob(pattern) if path.name not in LEFT]
    has_curves = (results / "tables" / "loss_distance.md").exists()
    found += results.glob(WITH_CURVES) if has_curves else []
    shutil.rmtree(into, ignore_errors=True)
    into.mkdir(parents=True)
    for curve in Layout(results).trials.glob(f"*/{METRICS}") if has_curves else ():
        copied = Layout(into).metrics(curve.parent.name)
        copied.parent.mkdir(parents=True)
        copied.write_text("".join(json.dumps(row) + "\n" for row in _rows(curve)))
    return [Path(shutil.copyfile(path, into / path.name)) for path in found]


def _rows(curve: Path) -> list[dict[str, float]]:
    rows = [json.loads(line) for line in curve.read_text().splitlines()]
    return [{name: row[name] for name in OF_CURVES if name in row} for row in rows]


def put(name: str, folders: Sequence[Path], docs: Path, overrides: Sequence[str] = ()) -> None:
    """Gather, report, keep."""
    with tempfile.TemporaryDirectory() as aside:
        results = Path(aside) / name
        gathered([folder.absolute() for folder in folders], results)
        reported(*published_tables.experiment(results), results, overrides)
        published_tables.write(results, results / "tables" / "summary.csv")
        for path in kept(results, docs / name):
            print(path)


def main() -> None:
    """Put one folder, or all again, and draw the pictures of the findings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", nargs="?", help="of the folder under docs/results/published")
    parser.add_argument("--from", dest="folders", nargs="+", type=Path, metavar="RESULTS")
    parser.add_argument("--remake", action="store_true", help="all folders there, each from itself")
    parser.add_argument("--override", action="append", default=[])
    parser.add_argument("--docs", type=Path, default=published_plots.PUBLISHED_IN, help="where else to keep them")
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
