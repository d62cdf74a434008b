import base64
import hashlib
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from orchestrator.analysis.curves import curves_frame
from orchestrator.analysis.trials import collect
from orchestrator.config.request import Metric, Terms
from orchestrator.decision.decide import decide
from orchestrator.decision.recommendation import TIED, Figure, MoreSeeds, Recommendation, Rival, Setting, TradeOff
from orchestrator.report.cell_plots import cell_rows, speedup, with_times
from orchestrator.report.files import page_of, plots_of, write_report
from orchestrator.report.html import MOST_CHOICES, Tile, cell_table, numeric, rendered, tiles
from orchestrator.report.markdown import ReportData
from orchestrator.report.plot import static_files
from orchestrator.store.layout import Layout
from orchestrator.store.results import Finding
from orchestrator.tables.scaling import scaling
from orchestrator.text.rows import TextTable
from sweeps.status import Status
from tests.unit.orchestrator.report import demo
from tests.unit.orchestrator.report.demo import FURTHER, RECOMMENDATION

PLOTS = ("trade_off", "speedup", "speedup_by_batch", "accuracy", "time_to_target", "loss", "memory")


class Reader(HTMLParser):
    """The tags of a page, and the text outside of style and script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.raw: dict[str, str] = {}
        self.data: dict[str, Any] = {}
        """What the script draws."""
        self._inside = ""
        self._is_data = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        self._is_data = dict(attrs).get("type") == "application/json"

    def handle_data(self, data: str) -> None:
        if self._is_data:
            self.data = json.loads(data)
        elif self._inside in ("style", "script"):
            self.raw[self._inside] = data
        else:
            self.texts.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside, self._is_data = "", False


DATA = {"type": "application/json", "id": "data"}


def html_of(data: ReportData) -> str:
    """Return the page, without telemetry."""
    data = replace(data, cells=with_times(data.cells, data.trials))
    rows = cell_rows(data.cells, data.recommendation)
    return rendered(page_of(data, plots_of(data, rows, []), rows))


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
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [DATA, {}]
    banned = {"iframe", "object", "embed", "link", "img", "base", "image"}
    assert not banned & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert not {"src", "style", "srcset", "xlink:href"} & attributes.keys(), (tag, attributes)
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        link = attributes.get("href") or "#"
        assert link.startswith(("#", "report/", "tables/")), (tag, link)


def test_the_policy_allows_only_this_style_and_script(page: Reader) -> None:
    policy = next(attributes["content"] for tag, attributes in page.tags if "http-equiv" in attributes)
    assert policy is not None and policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    for kind in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(page.raw[kind].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_hostile_strings_stay_text(page: Reader, layout: Layout) -> None:
    assert "".join(page.texts).count("<script>alert('x')</script>") > 5
    assert "<script>alert('x')</script>" in page.data["tables"]["cells"]["rows"][8][0]
    assert "<script>alert" not in layout.page.read_text()
    assert "alert" not in json.dumps(page.data["plots"])


def test_sections_are_in_order_and_none_is_empty(page: Reader) -> None:
    ids = [attributes["id"] for tag, attributes in page.tags if attributes.get("class", "").startswith("card")]  # type: ignore[union-attr]
    assert ids == [
        *("recommendation", "findings", "trade_off", "speedup", "reasons", "gpu-counts", "claims", "speedup-panels"),
        *("speedup_by_batch", "accuracy", "time_to_target", "memory", "loss"),
        *("cells", "trials", "failed", "scaling", "critical_batch", "machine"),
    ]


def test_without_an_ok_cell_failures_come_before_the_cells() -> None:
    records = [demo.replaced(record, status=Status.FAILED, note="no data", metrics={}) for record in demo.records()]
    trials, cells = collect(records, scaling="weak")
    found = decide(trials, cells, Terms())
    data = ReportData(trials=trials, cells=cells, recommendation=found)
    text = html_of(data)
    assert text.index('id="failed"') < text.index('id="cells"') and text.count('id="failed"') == 1
    assert "108" in text and "no data" in text and 'data-plot="' not in text and "UNDECIDED" in text


def test_a_tied_rival_is_named_below_the_verdict() -> None:
    rival = Rival(
        cell_id="r", name="Acme & Co", p_best=0.45, p_within_margin=0.9, eligible=True, tied=True, n_timed=3, n_ok=3
    )
    trials, cells = collect(demo.records(), scaling="weak")
    found = replace(RECOMMENDATION, verdict=TIED, rivals=(rival,))
    text = html_of(ReportData(trials=trials, cells=cells, recommendation=found))
    assert '<div class="verdict tied"><dt>verdict</dt><dd>TIED</dd>' in text
    assert "rival Acme &amp; Co: 45%" in text and "71% likely the best" in text


def test_long_lists_are_cut_to_eight() -> None:
    trials, cells = collect(demo.records(), scaling="weak")
    points = tuple(
        TradeOff(cell_id=str(n), name=f"{n}×1 none", time_s=9.0 - n / 10, metric=0.9 + n / 1000, cost=1.0)
        for n in range(20)
    )
    seeds = tuple(MoreSeeds(cell_id=str(n), name=f"more-{n}", seeds=1) for n in range(20))
    found = replace(RECOMMENDATION, front=points, more_seeds=seeds)
    text = html_of(ReportData(trials=trials, cells=cells, recommendation=found))
    assert text.partition('id="table-front"')[2].partition("</table>")[0].count("<tr>") == 1 + MOST_CHOICES
    assert text.count("<li>more-") == MOST_CHOICES


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


def test_every_plot_has_its_spec_and_data(page: Reader) -> None:
    assert set(page.data["plots"]) == set(PLOTS)
    assert {each["data"] for each in page.data["plots"].values()} == {"cells", "loss"} == set(page.data["data"])
    drawn = {attributes["data-plot"] for _, attributes in page.tags if "data-plot" in attributes}
    assert drawn == set(PLOTS)


def test_plots_are_files_too(layout: Layout) -> None:
    names = {path.name for path in layout.plots.iterdir()}
    assert names == {f"{name}.{ending}" for name in PLOTS for ending in ("svg", "png")}
    svg = ET.parse(layout.plots / "speedup.svg").getroot()
    assert any("alert('x')" in (element.text or "") for element in svg.iter())
    assert (layout.plots / "speedup.png").read_bytes().startswith(b"\x89PNG")


def test_filters_have_the_values_of_the_rows(page: Reader) -> None:
    fields = [attributes["data-field"] for _, attributes in page.tags if "data-field" in attributes]
    assert fields == ["axis:gpus", "axis:device_batch_size", "axis:lr_rule"]
    options = {attributes["value"] for tag, attributes in page.tags if tag == "option"}
    for field in fields:
        assert field is not None and set(page.data["data"]["cells"][field]["texts"]) <= options


def test_rows_of_cells_and_of_their_table_are_the_same(page: Reader) -> None:
    cells = page.data["data"]["cells"]["cell"]
    assert [cells["texts"][place] for place in cells["places"]] == [
        row[0] for row in page.data["tables"]["cells"]["rows"]
    ]


def test_the_page_is_small(layout: Layout) -> None:
    assert layout.page.stat().st_size < 1_500_000


def test_the_same_sweep_gives_the_same_bytes() -> None:
    texts = []
    for _ in range(2):
        trials, cells = collect(demo.records()[::9], scaling="weak")
        rows = cell_rows(with_times(cells, trials), None)
        plot = speedup(cells)
        assert plot.spec
        texts.append((html_of(ReportData(trials=trials, cells=cells)), static_files(plot.spec, plot.title, rows)))
    assert texts[0] == texts[1] and "8×32" in texts[0][0]


def test_files_of_earlier_plots_are_removed(tmp_path: Path) -> None:
    layout = demo.results(tmp_path, [])
    layout.plots.mkdir()
    for name in ("speedup.svg", "speedup.png", "loss.svg"):
        (layout.plots / name).write_text("of an earlier report")
    trials, cells = collect([demo.replaced(demo.records()[0], metrics={})], scaling="weak")
    write_report(ReportData(trials=trials, cells=cells), layout)
    assert list(layout.plots.iterdir()) == []
    assert "No trial reported device memory." in layout.page.read_text()


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
    assert numeric(TextTable(name="t", title="T", about=(), frame=frame)) == [False, True, False, True, False]


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


def numbers(tile: Tile) -> list[str]:
    return re.findall(r"[\d.,]*\d", " ".join(tile.lines))


def test_tiles_compare_the_choice_with_the_baseline() -> None:
    shown = tiles(FOUND)
    assert [(tile.title.partition(" ")[0], tile.value) for tile in shown] == [
        *(("use", "two"), ("time", "10.0 min"), ("training", "20.0 GPU-minutes"), ("validation", "0.946"))
    ]
    assert numbers(shown[0]) == ["2", "512", "1,024", "0.2"]
    assert numbers(shown[1]) == ["18.0", "1.80", "3", "3"]
    assert numbers(shown[2]) == ["18.0", "111"] and numbers(shown[3]) == ["0.004", "0.950", "0.01", "3"]


def test_a_chosen_baseline_has_no_comparison() -> None:
    shown = tiles(replace(FOUND, cell_id="one"))
    assert [tile.value for tile in shown] == ["one", "18.0 min", "18.0 GPU-minutes", "0.950"]
    assert not any("baseline" in line for tile in shown for line in tile.lines)


@pytest.mark.parametrize("missing", [replace(FOUND, cell_id=None), replace(FOUND, shortlist=())])
def test_without_a_recommendation_there_are_no_tiles(missing: Recommendation) -> None:
    assert tiles(missing) == []


def test_without_gpus_tiles_count_processes_without_cost() -> None:
    shown = tiles(replace(FOUND, on_cpu=True))
    assert shown[0].lines[0].startswith("2 processes") and not any("cost" in tile.title for tile in shown)


def test_invalid_timings_have_daggers_and_baselines_no_efficiency():
    trials, cells = collect(demo.records(), scaling="weak")
    table = cell_table(with_times(cells, trials), Metric())
    rows = [dict(zip((title for title, _ in table.columns), row, strict=True)) for row in table.rows]
    disturbed = {True: [], False: []}
    for row in rows:
        disturbed[row["seeds timed"].startswith("0/")].append(row)
    assert len(disturbed[True]) == 3  # windows of 1.1 s
    assert all(row[each].endswith(" †") for row in disturbed[True] for each in ("samples/s", "speed-up", "epoch [s]"))
    assert not any("†" in text for row in disturbed[False] for text in row.values())
    baselines = [row for row in rows if row["speed-up"] == "1× (baseline)"]
    assert len(baselines) == 9 and all(row["efficiency"] == "" for row in baselines)
