"""The page as text, its data, and its safety; tests/unit/orchestrator/report/test_browser.py opens it."""

import base64
import hashlib
import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from orchestrator.analysis.curve_frame import curves_frame
from orchestrator.config.request import Terms
from orchestrator.decision.decide import decide
from orchestrator.decision.recommendation import TIED, MoreSeeds
from orchestrator.report.cell_rows import cell_rows, with_times
from orchestrator.report.page import MOST_CHOICES, MOST_COMMAND, plots_in, plots_of, provenance, rendered, write_report
from orchestrator.report.plot import png, svg
from orchestrator.report.speedup_plots import speedup
from orchestrator.store.results import Problem
from orchestrator.tables.candidates import IS_BEST
from orchestrator.tables.scaling import scaling
from sweeps.status import Status
from tests.unit.orchestrator.decision.deciding import decided_with_frames, swayed
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.report import demo
from tests.unit.orchestrator.report.demo import FURTHER, RECOMMENDATION

PLOTS = ("trade_off", "combinations", "speedup", "accuracy", "time_to_target", "loss", "memory")
HIDDEN = ("style", "script")
INLINE = ("b", "a", "span", "code", "button", "td", "th")
DATA = {"type": "application/json", "id": "data"}


class Reader(HTMLParser):
    """The tags of a page, the data of its script, and its text: a line for each paragraph, item or row."""

    def __init__(self, page):
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.lines: list[str] = [""]
        self.raw: dict[str, str] = {}
        self.data: dict[str, Any] = {}
        self._inside = ""
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = "data" if dict(attrs) == DATA else tag
        if tag not in INLINE:
            self.lines.append("")
        elif tag in ("td", "th"):
            self.lines[-1] += " | "

    def handle_data(self, data):
        if self._inside == "data":
            self.data = json.loads(data)
        elif self._inside in HIDDEN:
            self.raw[self._inside] = data
        else:
            self.lines[-1] += data

    def handle_endtag(self, tag):
        self._inside = ""
        if tag not in INLINE:
            self.lines.append("")

    @property
    def text(self):
        return "".join(f"{' '.join(line.split())}\n" for line in self.lines if line.strip())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A report on a sweep with hostile strings."""
    records = demo.records(sweep=demo.EVIL, evil=demo.EVIL)
    folder = demo.results(tmp_path_factory.mktemp("demo"), records)
    trials, cells = collect(records, scaling="weak", reference_batch_size=32)
    end = demo.end(
        trials,
        cells,
        RECOMMENDATION,
        folder=folder,
        curves=curves_frame(folder, [record.trial_id for record in records if record.metrics])[0],
        driver={**demo.DRIVER, "command": f"python {demo.EVIL}"},
        problems=[Problem(where=demo.EVIL, what=demo.EVIL)],
        tables=[*FURTHER, *scaling(trials, cells).tables],
    )
    assert write_report(end) == []
    return folder


@pytest.fixture(scope="module")
def page(folder):
    return Reader(folder.page.read_text())


def test_golden_page(tmp_path, golden):
    def is_wanted(gpus, batch, rule):
        return gpus in (1, 8) and batch in (32, 512) and rule in ("none", "linear")

    records = [record for record in demo.records() if is_wanted(record.gpus, record.device_batch_size, record.lr_rule)]
    folder = demo.results(tmp_path / "demo", records)
    trials, cells = collect(records, scaling="weak", reference_batch_size=32)
    end = demo.end(
        trials,
        cells,
        decide(trials, cells, Terms()),
        curves=curves_frame(folder, [record.trial_id for record in records if record.metrics])[0],
        driver=demo.DRIVER,
        tables=[*FURTHER, *scaling(trials, cells).tables],
    )
    golden("report/page.txt", Reader(rendered(end)).text)


def test_the_page_loads_nothing_and_runs_only_its_script(page):
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [DATA, {}]
    banned = {"iframe", "object", "embed", "link", "img", "base", "image"}
    assert not banned & {tag for tag, _ in page.tags}
    for tag, attributes in page.tags:
        assert not {"src", "style", "srcset", "xlink:href"} & attributes.keys(), (tag, attributes)
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        assert (attributes.get("href") or "#").startswith(("#", "tables/")), (tag, attributes)
    policy = next(attributes["content"] for tag, attributes in page.tags if "http-equiv" in attributes)
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy
    for kind in HIDDEN:
        digest = base64.b64encode(hashlib.sha256(page.raw[kind].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy


def test_hostile_strings_stay_text(page, folder):
    assert page.text.count("<script>alert('x')</script>") > 5
    assert "<script>alert('x')</script>" in page.data["tables"]["cells"]["rows"][8][0]
    assert "<script>alert" not in folder.page.read_text()
    assert "alert" not in json.dumps(page.data["plots"])


def test_sections_are_in_order_and_ids_unique(page):
    cards = [attributes["id"] for _, attributes in page.tags if (attributes.get("class") or "").startswith("card")]
    assert cards == [
        *("recommendation", "problems", "trade_off", "combinations", "reasons", "claims"),
        *("speedup", "accuracy", "time_to_target", "memory", "loss"),
        *("cells", "trials", "failed", "scaling", "critical_batch", "machine"),
    ]
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert "-0.2 [-0.3, -0.1]" in page.text


def test_without_an_ok_cell_failures_come_before_the_cells():
    records = [demo.replaced(record, status=Status.FAILED, note="no data", metrics={}) for record in demo.records()]
    trials, cells = collect(records, scaling="weak")
    cut = [Problem(where=f"trials/{n}/metrics.jsonl", what="is cut short") for n in range(5)]
    end = demo.end(trials, cells, decide(trials, cells, Terms()), problems=cut)
    text = rendered(end)
    assert text.count("is cut short") == 1 and "trials/2/metrics.jsonl</code> and 2 more" in text
    assert text.index('id="failed"') < text.index('id="cells"') and text.count('id="failed"') == 1
    assert "108" in text and "no data" in text and 'data-plot="' not in text and "UNDECIDED" in text
    assert "No trial reported device memory." in text


def test_tied_cells_show_their_chances_which_order_them():
    ends = swayed({1: 50, 2: 100, 4: 101}, {1: 0.9, 2: 0.905, 4: 0.902})
    text = rendered(demo.end(*decided_with_frames(ends)))
    table = text.partition('<table class="comparison" id="ties">')[2].partition("</table>")[0]
    assert IS_BEST in table and "time [" not in table


def test_candidates_are_marked_and_long_lists_are_cut():
    trials, cells = collect(demo.records(), scaling="weak", reference_batch_size=32)
    seeds = tuple(MoreSeeds(cell_id=str(n), name=f"more-{n}", seeds=1) for n in range(20))
    recommendation = replace(decide(trials, cells, Terms()), verdict=TIED, more_seeds=seeds)
    text = rendered(demo.end(trials, cells, recommendation))
    assert '<span class="verdict tied">TIED</span>' in text
    table = text.partition('<table class="comparison" id="candidates">')[2].partition("</table>")[0]
    (chosen,) = [head for head in table.split("<th")[1:] if head.startswith(' scope="col" class="called"')]
    assert recommendation.name in chosen and table.count('<svg class="bar"') == 2
    assert text.count("<li>more-") == MOST_CHOICES


def test_every_plot_has_its_spec_and_data(page):
    assert set(page.data["plots"]) == set(PLOTS)
    assert {plot["data"] for plot in page.data["plots"].values()} == {"cells", "loss"} == set(page.data["data"])
    drawn = {attributes["data-plot"] for _, attributes in page.tags if "data-plot" in attributes}
    assert drawn == set(PLOTS)


def test_plots_are_drawn_again_from_the_page(folder):
    plots = {plot.name: plot for plot in plots_in(folder.page.read_text())}
    assert tuple(plots) == (*PLOTS[:5], "memory", "loss")
    records = demo.records(sweep=demo.EVIL, evil=demo.EVIL)
    trials, cells = collect(records, scaling="weak", reference_batch_size=32)
    rows = cell_rows(with_times(cells, trials), RECOMMENDATION)
    drawing = svg(plots["speedup"])
    texts = [element.text for element in ET.fromstring(drawing).iter() if element.text]
    assert texts == [
        element.text for element in ET.fromstring(svg(speedup(cells, rows)[-1], rows)).iter() if element.text
    ]
    assert any("alert('x')" in text for text in texts)
    assert png(drawing).startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="not the page of a report"):
        plots_in("<html></html>")


def test_filters_and_tables_have_the_values_of_the_rows(page):
    fields = [attributes["data-field"] for _, attributes in page.tags if "data-field" in attributes]
    assert fields == ["axis:gpus", "axis:device_batch_size", "axis:lr_rule"]
    options = {attributes["value"] for tag, attributes in page.tags if tag == "option"}
    columns = page.data["data"]["cells"]
    for field in fields:
        assert field is not None and set(columns[field]["texts"]) <= options
    names = [columns["cell"]["texts"][place] for place in columns["cell"]["places"]]
    assert names == [row[0] for row in page.data["tables"]["cells"]["rows"]]


def test_the_page_is_small_and_the_same_for_the_same_sweep(folder):
    assert folder.page.stat().st_size < 1_500_000
    texts = []
    for _ in range(2):
        trials, cells = collect(demo.records()[::9], scaling="weak")
        rows = cell_rows(with_times(cells, trials), demo.NOT_MADE)
        drawing = svg(speedup(cells, rows)[-1], rows)
        texts.append((rendered(demo.end(trials, cells)), drawing))
    assert texts[0] == texts[1] and "8×32" in texts[0][0]


def test_facts_of_ranks_replace_those_of_the_driver():
    trials, _ = collect(demo.records()[:3], scaling="weak")
    driver = {"host": "where the driver was", "commit": "0123", "command": "x", "packages": {"ray": "2.60.0"}}
    facts = provenance(demo.end(trials, driver=driver))
    by_name = dict(facts)
    assert len(by_name) == len(facts) and "command" not in by_name
    assert (by_name["host"], by_name["commit"], by_name["ray"]) == ("node-1", "0123", "2.60.0")


def test_counts_are_integers_if_some_trials_lack_them():
    trials, _ = collect(demo.records(), scaling="weak")  # of which one never ran
    assert dict(provenance(demo.end(trials)))["cpu cores"] == "64"


def test_a_sweep_without_a_started_trial_has_plots():
    ends = [demo.replaced(record, status=Status.INFEASIBLE, metrics={}, provenance={}) for record in demo.records()]
    trials, cells = collect(ends, scaling="weak")
    assert cells["device"].dropna().empty
    rows = cell_rows(with_times(cells, trials), demo.NOT_MADE)
    plots = plots_of(demo.end(trials, cells, driver=demo.DRIVER), rows)
    assert all(plot.absent for plot in plots if plot.name == "memory")


def test_a_long_next_command_is_folded():
    records = swayed({1: 100, 2: 190}, {1: 0.9, 2: 0.893})
    for arguments in (["sweep=demo"], ["sweep=demo", f"data.path={MOST_COMMAND * 'x'}"]):
        trials, cells, recommendation = decided_with_frames(records, arguments=arguments)
        (command,) = recommendation.commands
        page = rendered(demo.end(trials, cells, recommendation))
        is_folded = ("details", {"id": "next"}) in Reader(page).tags
        is_long = len(command) > MOST_COMMAND
        assert is_folded == is_long and (f"<pre>{command}</pre></details></li>" in page) == is_long
