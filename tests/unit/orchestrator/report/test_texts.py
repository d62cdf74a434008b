"""Golden LaTeX and Markdown: what other people's papers and repositories take over."""

import pandas as pd
import pytest

from orchestrator.analysis.trials import collect
from orchestrator.report.files import plots_of
from orchestrator.report.html import cell_table, csv_bytes
from orchestrator.report.markdown import document, provenance, trained
from orchestrator.report.plots import speedup
from orchestrator.report.report_data import ReportData
from orchestrator.store.history import Finding
from orchestrator.tables.speedup import speedup_frame
from orchestrator.text.table import latex_table
from sweeps.status import Status
from tests.unit.orchestrator.report import demo

LATEX = r"""% needs booktabs, longtable and amssymb
\begin{longtable}{lllll}
\caption{Speed-up: 100\% \$x\_y\$} \\
\toprule
cell & global batch & samples/s & speed-up & efficiency \\
\midrule
\endfirsthead
\toprule
cell & global batch & samples/s & speed-up & efficiency \\
\midrule
\endhead
\midrule
\multicolumn{5}{r}{Continued on next page} \\
\midrule
\endfoot
\bottomrule
\endlastfoot
1$\times$32 a\&b\_\{ & 32 & 1,000 & 1$\times$ (baseline) &  \\
2$\times$32 a\&b\_\{ & 64 & 1,900 & 1.90$\times$ & 95\% \\
\end{longtable}
"""

DOCUMENT = """\
# Sweep report: demo &lt;script>

## Recommendation: demo

**Use it.**

## Damaged or missing files

This report uses nothing from them:

- trials/x: a &lt;b> \\| c

## Speed-up

Throughput as a multiple of the baseline cell's, at the same batch per GPU (weak scaling). Dashed: ideal \
speed-up, in proportion to the GPUs. Bands: 95% intervals over the seeds. Data: [speedup.csv](report/speedup.csv).

![Speed-up](report/speedup.png)
"""


def two(**changes: object) -> list:
    one, other = demo.records()[0], demo.records()[27]
    made = []
    for record, gpus, rate in ((one, 1, 1000.0), (other, 2, 1900.0)):
        fields = {
            "gpus": gpus,
            "device_batch_size": 32,
            "global_batch_size": 32 * gpus,
            "metrics": {"samples_per_s": rate},
        }
        made.append(demo.replaced(record, status=Status.OK, note="", lr_rule="a&b_{", seed=0, **fields, **changes))
    return made


def test_golden_latex() -> None:
    cells = collect(two(), scaling="weak")[1]
    assert latex_table(speedup_frame(cells), "Speed-up: 100% $x_y$") == LATEX


def test_notes_are_wrapped_in_latex() -> None:
    frame = pd.DataFrame({"gpus": ["1", "2"], "note": ["", "others took 47% of the cores' time, most of it python"]})
    assert latex_table(frame, "Speed-up").splitlines()[1] == r"\begin{longtable}{lp{0.3\linewidth}}"


def test_golden_document() -> None:
    trials, cells = collect(two(sweep="demo <script>"), scaling="weak")
    data = ReportData(
        trials=trials, cells=cells, driver=demo.DRIVER, findings=[Finding(where="trials/x", what="a <b> | c")]
    )
    text = document(data, [speedup(cells)], "# Recommendation: demo\n\n**Use it.**\n")
    assert text.startswith(DOCUMENT)
    rest = text[len(DOCUMENT) :]
    assert "\n## Speed-up: demo &lt;script>\n" in rest and "\n## Accuracy: demo &lt;script>\n" in rest
    assert "| commit | 0123456789abcdef0123456789abcdef01234567 |" in rest
    assert "| command | python -m orchestrator sweep=demo 'sweep.axes.gpus=[1,2,4,8]' |" in rest


def test_a_document_names_what_is_not_ok_and_not_measured() -> None:
    trials, cells = collect(demo.records(), scaling="weak")
    data = ReportData(trials=trials, cells=cells)
    text = document(data, plots_of(data, []), "")
    assert "## Not drawn\n\n" in text and "- Power: Not measured: no device reported its power." in text
    assert "- 8×512 linear: diverged, 2 of 3 ok; 1 of 3 seeds diverged: loss is nan" in text


def test_csv_is_data_and_no_formula_and_ends_with_a_whole_row() -> None:
    rows = [{"=a": "@SUM(1)", "b": 1.5}, {"=a": "x,y", "b": float("nan")}]
    assert csv_bytes(rows) == b"'=a,b\n'@SUM(1),1.5\n\"x,y\",\n"
    assert csv_bytes(rows, most=20) == b"'=a,b\n'@SUM(1),1.5\n"
    assert csv_bytes([]) == b"\n"


def test_a_sweep_of_which_nothing_could_run_has_its_plots_too():
    ends = [demo.replaced(record, status=Status.INFEASIBLE, metrics={}, provenance={}) for record in demo.records()]
    trials, cells = collect(ends, scaling="weak")
    assert cells["device"].dropna().empty
    plots = plots_of(ReportData(trials=trials, cells=cells, driver=demo.DRIVER), [])
    assert all(plot.absent for plot in plots if plot.name == "memory")


def test_what_ranks_and_driver_both_tell_stands_once_as_the_ranks_have_it():
    trials, _ = collect(demo.records()[:3], scaling="weak")
    facts = provenance(trials, {"host": "where the driver was", "commit": "0123", "packages": {"ray": "2.60.0"}})
    told = dict(facts)
    assert len(told) == len(facts) and (told["host"], told["commit"], told["ray"]) == ("node-1", "0123", "2.60.0")


def test_counts_stay_counts_where_some_trials_do_not_tell_them():
    trials, _ = collect(demo.records(), scaling="weak")  # of which one never ran
    assert dict(provenance(trials, {}))["cpu cores"] == "64"


def test_the_page_marks_timings_that_are_not_valid_and_compares_no_baseline_with_itself():
    table = cell_table(collect(demo.records(), scaling="weak")[1])
    rows = [{column.title: cell.text for column, cell in zip(table.columns, row, strict=True)} for row in table.rows]
    disturbed = {True: [], False: []}
    for row in rows:
        disturbed[row["timing"] == "not valid"].append(row)
    assert len(disturbed[True]) == 3  # windows of 1.1 s
    assert all(row[each].endswith(" †") for row in disturbed[True] for each in ("samples/s", "speed-up", "epoch [s]"))
    assert not any("†" in text for row in disturbed[False] for text in row.values())
    baselines = [row for row in rows if row["speed-up"] == "1× (baseline)"]
    assert len(baselines) == 9 and all(row["efficiency"] == "" for row in baselines)


@pytest.mark.parametrize(
    ("config", "axes", "what"),
    [
        ({}, [], "mlp on digits, 10 epochs"),
        ({}, ["model"], "digits, 10 epochs"),
        ({}, ["budget.epochs"], "mlp on digits"),
        ({"budget": {"epochs": None, "seconds": 1}}, [], "mlp on digits, 1 second"),
        ({"trainable": {"_target_": "mine:train"}}, [], "mine:train, 10 epochs"),
        ({"trainable": {"argv": ["python", "train.py"]}}, [], "python train.py, 10 epochs"),
    ],
)
def test_a_report_says_what_was_trained_and_for_how_long(config: dict, axes: list[str], what: str) -> None:
    shipped = {
        "trainable": {"_target_": "trainables.supervised.training:train"},
        "model": {"name": "mlp"},
        "data": {"name": "digits"},
        "budget": {"epochs": 10},
    }
    trials = pd.DataFrame(columns=[f"axes.{axis}" for axis in axes])
    assert trained(trials, {"config": shipped | config}) == what


def test_of_a_training_that_no_record_tells_a_report_says_nothing() -> None:
    assert trained(pd.DataFrame(), {}) == ""
