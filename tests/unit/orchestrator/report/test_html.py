import base64
import csv
import hashlib
import io
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest

from orchestrator.analysis.curves import curves_frame
from orchestrator.analysis.trials import collect
from orchestrator.config.metric import Metric
from orchestrator.config.request import Terms
from orchestrator.decision.decide import decide
from orchestrator.decision.recommendation import Figure, Recommendation, Setting, remark
from orchestrator.report.cell_plots import speedup
from orchestrator.report.files import page_of, plots_of, write_report
from orchestrator.report.html import cell_table, csv_bytes, rendered, text_table, tiles
from orchestrator.report.markdown import ReportData
from orchestrator.report.matplotlib import plot_files
from orchestrator.report.plot import Axis, Bar, Plot
from orchestrator.store.layout import Layout
from orchestrator.store.results import Finding
from orchestrator.tables.recommendation import sentence
from orchestrator.tables.scaling import scaling
from orchestrator.text.table import TextTable
from sweeps.status import Status
from tests.unit.orchestrator.report import demo
from tests.unit.orchestrator.report.demo import FURTHER, RECOMMENDATION

PLOTS = ("speedup", "speedup_by_batch", "efficiency", "accuracy", "time_to_target", "loss", "memory")


class Reader(HTMLParser):
    """The tags of a page, and the text outside of style and script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.raw: dict[str, str] = {}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag

    def handle_data(self, data: str) -> None:
        if self._inside in ("style", "script"):
            self.raw[self._inside] = data
        else:
            self.texts.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""


@pytest.fixture(scope="module")
def layout(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """A report on a sweep with hostile strings."""
    records = demo.records(sweep=demo.EVIL, evil=demo.EVIL)
    layout = demo.results(tmp_path_factory.mktemp("demo"), records)
    trials, cells = collect(records, scaling="weak", reference_batch_size=32)
    curves, _ = curves_frame(layout, [record.trial_id for record in records if record.metrics])
    data = ReportData(
        trials=trials,
        cells=cells,
        recommendation=RECOMMENDATION,
        curves=curves,
        driver={**demo.DRIVER, "command": f"python {demo.EVIL}"},
        findings=[Finding(where=demo.EVIL, what=demo.EVIL)],
        further=[*FURTHER, *scaling(trials, cells)[1]],
    )
    unsound, written = write_report(data, layout, f"# Recommendation\n\n{demo.EVIL}\n")
    assert unsound == [] and all(path.exists() for path in written)
    return layout


@pytest.fixture(scope="module")
def page(layout: Layout) -> Reader:
    return Reader(layout.page.read_text())


def test_the_page_loads_nothing_and_runs_only_its_script(page: Reader) -> None:
    assert [tag for tag, _ in page.tags].count("script") == 1
    banned = {"iframe", "object", "embed", "link", "img", "base", "form", "image"}
    assert not banned & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert not {"src", "style", "srcset", "xlink:href"} & attributes.keys(), (tag, attributes)
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        link = attributes.get("href") or "#"
        assert link.startswith(("#", "data:text/csv;base64,", "report/", "tables/")), (tag, link)


def test_the_policy_allows_only_this_style_and_script(page: Reader) -> None:
    policy = next(attributes["content"] for tag, attributes in page.tags if "http-equiv" in attributes)
    assert policy is not None and policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    for kind in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(page.raw[kind].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_hostile_strings_stay_text(page: Reader) -> None:
    text = "".join(page.texts)
    assert text.count("<script>alert('x')</script>") > 50
    assert "<script>" not in page.raw["style"] + page.raw["script"]


def test_sections_are_in_order(page: Reader) -> None:
    ids = [attributes["id"] for tag, attributes in page.tags if tag == "section"]
    assert ids == [
        *("recommendation", "claims", "findings", "speedup", "speedup_by_batch", "efficiency", "accuracy"),
        *("time_to_target", "loss"),
        *("memory", "not-drawn", "tables", "failed"),
        *("scaling", "critical_batch", "machine"),
    ]


def test_without_an_ok_cell_failures_come_before_plots() -> None:
    records = [demo.replaced(record, status=Status.FAILED, note="no data", metrics={}) for record in demo.records()]
    trials, cells = collect(records, scaling="weak")
    found = decide(trials, cells, Terms())
    data = ReportData(trials=trials, cells=cells, recommendation=found)
    text = rendered(page_of(data, plots_of(data, [])))
    places = [text.index(f'<section id="{name}"') for name in ("failed", "not-drawn", "tables")]
    assert places == sorted(places) and text.count('<section id="failed"') == 1
    assert "108 of 108" in text and "no data" in text and "provisional</span>" not in text


def test_a_probability_in_a_doubt_has_no_badge() -> None:
    trials, cells = collect(demo.records(), scaling="weak")
    headline, doubt = demo.use("8×128 sqrt, model=Acme & Co"), remark("may_miss_margin", p_within=0.71)
    found = replace(RECOMMENDATION, headline=headline, details=(remark("is_baseline"),), caveats=(doubt,))
    text = rendered(page_of(ReportData(trials=trials, cells=cells, recommendation=found), []))
    lead, caveat = sentence(headline).replace("&", "&amp;"), sentence(doubt)
    assert f'<p class="sentence">{lead}</p>' in text
    assert f"Provisional: {caveat}.</p>" in text
    assert ": 71%</span>" not in text and "within the margin: over 99%</span>" in text


def test_page_and_document_have_claims_and_laws(page: Reader, layout: Layout) -> None:
    text = "".join(page.texts)
    document = layout.document.read_text()
    for told in ("-0.2 [-0.3, -0.1]", "Amdahl", "USL"):
        assert told in text and told in document
    assert document.index("## Claims") < document.index("## Speed-up") < document.index("## Scaling laws")


def test_ids_are_unique(page: Reader) -> None:
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = {(attributes.get("href") or "")[1:] for tag, attributes in page.tags if tag == "use"}
    assert links <= set(ids)


def test_every_plot_has_its_data_embedded_and_in_a_file(page: Reader, layout: Layout) -> None:
    embedded = {
        attributes["download"]: (attributes.get("href") or "").partition("base64,")[2]
        for tag, attributes in page.tags
        if "download" in attributes
    }
    assert set(embedded) == {f"{name}.csv" for name in PLOTS}
    for name, data in embedded.items():
        assert name is not None
        text = base64.b64decode(data).decode()
        assert text == (layout.plots / name).read_text()
        rows = list(csv.DictReader(io.StringIO(text)))
        assert rows and len(rows[0]) >= 3


def test_plots_are_files_too(layout: Layout) -> None:
    names = {path.name for path in layout.plots.iterdir()}
    assert names == {f"{name}.{ending}" for name in PLOTS for ending in ("svg", "png", "csv")}
    svg = ET.parse(layout.plots / "speedup.svg").getroot()
    assert any("alert('x')" in (element.text or "") for element in svg.iter())
    assert (layout.plots / "speedup.png").read_bytes().startswith(b"\x89PNG")


def test_points_have_tooltips(page: Reader, layout: Layout) -> None:
    assert "2×32 none; 1.7" in "".join(page.texts)
    drawn = re.findall(r"<title>[^<]*samples/s[^<]*</title>", layout.page.read_text())
    assert len(drawn) >= 2 * 34


def test_bars_are_drawn_for_screens_and_phones() -> None:
    trials, cells = collect(demo.records()[:3], scaling="weak")
    bars = Plot(
        name="memory",
        title="Memory",
        about="",
        legend=("peak memory [GB]",),
        bars=[Bar(label="gpus=1", parts=(1.25,))],
        x=Axis(label="peak memory [GB]"),
    )
    text = rendered(page_of(ReportData(trials=trials, cells=cells), [bars]))
    wide, narrow = text.index('<div class="wide">'), text.index('<div class="narrow">')
    assert wide < narrow and text.count("<title>gpus=1, peak memory [GB]: 1.25</title>") == 2


def test_the_page_is_small(layout: Layout) -> None:
    assert layout.page.stat().st_size < 1_500_000


def test_the_same_sweep_gives_the_same_bytes() -> None:
    texts = []
    for _ in range(2):
        trials, cells = collect(demo.records()[::9], scaling="weak")
        plot = speedup(cells)
        page = rendered(page_of(ReportData(trials=trials, cells=cells), [plot]))
        texts.append((page, plot_files(plot)))
    assert texts[0] == texts[1] and "8×32" in texts[0][0]


def test_files_of_earlier_plots_are_removed(tmp_path: Path) -> None:
    layout = demo.results(tmp_path, [])
    layout.plots.mkdir()
    for name in ("speedup.svg", "speedup.png", "speedup.csv", "loss.svg"):
        (layout.plots / name).write_text("of an earlier report")
    trials, cells = collect([demo.replaced(demo.records()[0], metrics={})], scaling="weak")
    write_report(ReportData(trials=trials, cells=cells), layout)
    assert list(layout.plots.iterdir()) == []
    assert "Not measured" in layout.page.read_text()


def test_text_columns_of_numbers_sort_as_numbers() -> None:
    frame = pd.DataFrame(
        {
            "cell": ["2×128 linear", "1×32 none", "4×32 sqrt"],
            "speed": ["12,345 [11,000, 13,000]", "1.94× [1.9, 2.0]", ""],
            "seeds": ["3; 5 would settle it", "3", "4"],
            "sides": ["18,278 against 15,974", "1", "2"],
            "name": ["1 GPU with a batch of 32", "2 GPUs with a batch of 32 each (64 in all)", ""],
        }
    )
    found = text_table(TextTable(name="t", title="T", about=(), frame=frame))
    assert [column.numeric for column in found.columns] == [False, True, False, True, False]
    speeds = [row[1].key for row in found.rows]
    assert speeds[:2] == [12345.0, 1.94] and isinstance(speeds[2], float) and math.isnan(speeds[2])


NAN = float("nan")


def setting(cell_id: str, gpus: int, time_s: float, cost: float, accuracy: float, **axes: object) -> Setting:
    def figure(value: float, unit: str = "1") -> Figure:
        return Figure(value=value, unit=unit)

    return Setting(
        cell_id=cell_id,
        name=cell_id,
        baseline_cell_id=None,
        axes={"gpus": gpus, "lr_rule": "linear", **axes},
        values={
            "gpus": gpus,
            "device_batch_size": 512,
            "global_batch_size": 512 * gpus,
            "lr_rule": "linear",
            "lr": 0.1 * gpus,
        },
        overrides=(),
        command="",
        figures={
            "time": figure(time_s, "s"),
            "energy": figure(NAN, "J"),
            "cost": figure(cost, "GPU-hours"),
            "val_accuracy": figure(accuracy),
            "val_accuracy_difference": figure(accuracy - 0.95),
        },
        timing_valid=True,
        n_timed=3,
        n_ok=3,
        note="",
        on_front=True,
        p_best=NAN,
        p_within_margin=NAN,
        why_not=None,
    )


FOUND = Recommendation(
    objective="time",
    measure="time for the fixed budget",
    metric=Metric(),
    margin=0.01,
    cell_id="two",
    baseline_cell_id="one",
    headline=demo.use("two"),
    provisional=False,
    shortlist=(
        setting("two", 2, 600.0, 1 / 3, 0.9455, **{"optimizer.momentum": 0.9}),
        setting("one", 1, 1080.0, 0.3, 0.95),
    ),
)


def test_tiles_compare_the_choice_with_the_baseline() -> None:
    found = {tile.title: (tile.value, re.findall(r"[\d.,]+", tile.comparison)) for tile in tiles(FOUND)}
    assert list(found.values()) == [
        ("2", []),
        ("1,024", ["512"]),
        ("linear", ["0.2"]),
        ("0.9", []),
        ("10.0 min", ["18.0", "1.80"]),
        ("20.0 GPU-minutes", ["18.0", "111"]),
        ("0.946", ["0.950", "0.01"]),
    ]
    assert [title.partition(" ")[0] for title in found] == [
        *("GPUs", "global", "learning-rate", "optimizer.momentum", "time", "cost", "validation")
    ]


def test_a_chosen_baseline_has_no_comparison() -> None:
    shown = tiles(replace(FOUND, cell_id="one"))
    assert [tile.value for tile in shown] == ["1", "512", "linear", "18.0 min", "18.0 GPU-minutes", "0.950"]
    assert [tile.comparison for tile in shown if tile.comparison] == ["rate 0.1"]


@pytest.mark.parametrize("missing", [replace(FOUND, cell_id=None), replace(FOUND, shortlist=())])
def test_without_a_recommendation_there_are_no_tiles(missing: Recommendation) -> None:
    assert tiles(missing) == []


def test_without_gpus_tiles_count_processes_without_cost() -> None:
    titles = [tile.title for tile in tiles(FOUND, on_cpu=True)]
    assert titles[0] == "worker processes" and not any(title.startswith("cost") for title in titles)


def test_csv_has_no_formulas_and_ends_with_a_whole_row() -> None:
    rows = [{"=a": "@SUM(1)", "b": 1.5}, {"=a": "x,y", "b": float("nan")}]
    assert csv_bytes(rows) == b"'=a,b\n'@SUM(1),1.5\n\"x,y\",\n"
    assert csv_bytes(rows, most=20) == b"'=a,b\n'@SUM(1),1.5\n"
    assert csv_bytes([]) == b"\n"


def test_invalid_timings_have_daggers_and_baselines_no_efficiency():
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
