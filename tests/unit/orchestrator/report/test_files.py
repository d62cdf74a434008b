from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

from orchestrator.analysis.curves import curves_frame
from orchestrator.analysis.trials import collect
from orchestrator.config.request import Terms
from orchestrator.decision.decide import decide
from orchestrator.report.files import write_report
from orchestrator.report.markdown import ReportData
from orchestrator.tables.recommendation import recommendation_markdown
from orchestrator.tables.scaling import scaling
from tests.unit.orchestrator.report import demo

HIDDEN = ("style", "script", "svg")
INLINE = ("b", "a", "span", "code", "button", "td", "th")


class PageText(HTMLParser):
    """The text that a page shows, one line per paragraph, item or row, without its drawings."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.lines: list[str] = [""]
        self._hidden = 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self._hidden += tag in HIDDEN
        if tag not in INLINE:
            self.lines.append("")
        elif tag in ("td", "th"):
            self.lines[-1] += " | "

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in HIDDEN
        if tag not in INLINE:
            self.lines.append("")

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.lines[-1] += data

    @property
    def text(self) -> str:
        return "".join(f"{' '.join(line.split())}\n" for line in self.lines if line.strip())


def test_golden_report(tmp_path: Path, golden: Callable[[str, str], None]) -> None:
    records = [
        each
        for each in demo.records()
        if each.gpus in (1, 8) and each.device_batch_size in (32, 512) and each.lr_rule in ("none", "linear")
    ]
    layout = demo.results(tmp_path / "demo", records)
    trials, cells = collect(records, scaling="weak", reference_batch_size=32)
    curves, _ = curves_frame(layout, [record.trial_id for record in records if record.metrics])
    found = decide(trials, cells, Terms())
    tables = [*demo.FURTHER, *scaling(trials, cells)[1]]
    data = ReportData(
        trials=trials, cells=cells, recommendation=found, curves=curves, driver=demo.DRIVER, further=tables
    )
    write_report(data, layout, recommendation_markdown(found, "demo"))
    golden("report/report.md", layout.document.read_text())
    golden("report/page.txt", PageText(layout.page.read_text()).text)
