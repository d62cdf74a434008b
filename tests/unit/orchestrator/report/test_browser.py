"""Tests of the page in a real browser."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.analysis.curves import curves_frame
from orchestrator.analysis.trials import collect
from orchestrator.report import matplotlib
from orchestrator.report.files import write_report
from orchestrator.report.markdown import ReportData
from orchestrator.tables.scaling import scaling
from tests.unit.orchestrator.report import demo
from tests.unit.orchestrator.report.demo import FURTHER, RECOMMENDATION

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

DRAWN = {"speedup", "speedup_by_batch", "efficiency", "accuracy", "time_to_target", "loss", "memory"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="there is no Chromium with its driver on this machine"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """Open the report of a sweep with hostile strings in Chromium."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    records = demo.records(sweep=demo.EVIL, evil=demo.EVIL)
    layout = demo.results(tmp_path_factory.mktemp("demo"), records)
    trials, cells = collect(records, scaling="weak", reference_batch_size=32)
    curves, _ = curves_frame(layout, [record.trial_id for record in records if record.metrics])
    further = [*FURTHER, *scaling(trials, cells)[1]]
    known = {"curves": curves, "driver": demo.DRIVER, "further": further}
    data = ReportData(trials=trials, cells=cells, recommendation=RECOMMENDATION, **known)
    write_report(data, layout)
    driver = webdriver.Chrome(
        options=options(webdriver, tmp_path_factory.mktemp("profile")), service=service(webdriver)
    )
    driver.get(layout.page.as_uri())
    yield driver
    driver.quit()


def options(webdriver: object, profile: Path) -> object:
    found = webdriver.ChromeOptions()  # type: ignore[attr-defined]
    found.binary_location = CHROMIUM
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"):
        found.add_argument(flag)
    found.add_argument(f"--user-data-dir={profile}")
    found.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return found


def service(webdriver: object) -> object:
    return webdriver.ChromeService(executable_path=DRIVER)  # type: ignore[attr-defined]


def test_the_console_stays_empty(browser) -> None:
    assert browser.get_log("browser") == []


def test_no_hostile_string_became_markup(browser) -> None:
    assert browser.execute_script("return document.scripts.length") == 1
    assert "<script>alert('x')</script>" in browser.execute_script("return document.body.innerText")
    assert browser.title.startswith("<script>alert('x')</script>")


def test_every_plot_is_drawn(browser) -> None:
    sizes = browser.execute_script(
        "return [...document.querySelectorAll('section figure svg')].map(svg => {"
        " const box = svg.getBBox(), shown = svg.getBoundingClientRect();"
        " return [svg.closest('section').id, box.width, box.height, shown.width,"
        "   svg.querySelectorAll('path, use').length]; })"
    )
    assert {section for section, *_ in sizes} == DRAWN
    assert all(
        width > 100 and height > 100 and shown > 200 and shapes > 10 for _, width, height, shown, shapes in sizes
    )
    colours = browser.execute_script(
        "return [...document.querySelectorAll('section figure use')].map(use => getComputedStyle(use).stroke)"
    )
    assert {to_rgb(matplotlib.of(place)) for place in range(3)} <= set(colours)


def to_rgb(colour: str) -> str:
    """Return a colour such as `#2160c4` as browsers report it."""
    return f"rgb({', '.join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))})"


def column(browser, heading: str) -> list[str]:
    return browser.execute_script(
        "const table = document.getElementById('table-cells');"
        "const index = [...table.tHead.rows[0].cells].findIndex(cell => cell.innerText.startsWith(arguments[0]));"
        "return [...table.tBodies[0].rows].map(row => row.cells[index].dataset.key)",
        heading,
    )


def press(browser, heading: str) -> None:
    browser.execute_script(
        "const cells = [...document.getElementById('table-cells').tHead.rows[0].cells];"
        "cells.find(cell => cell.innerText.startsWith(arguments[0])).querySelector('button').focus()",
        heading,
    )
    from selenium.webdriver.common.keys import Keys

    browser.switch_to.active_element.send_keys(Keys.ENTER)


def test_headings_sort_from_the_keyboard_with_empty_cells_last(browser) -> None:
    press(browser, "to target")
    up = column(browser, "to target")
    filled = [float(key) for key in up if key]
    assert filled == sorted(filled) and up[len(filled) :] == [""] * (36 - len(filled)) and len(filled) < 36
    press(browser, "to target")
    down = column(browser, "to target")
    assert [float(key) for key in down if key] == filled[::-1] and down[len(filled) :] == [""] * (36 - len(filled))
    press(browser, "status")
    statuses = column(browser, "status")
    assert statuses == sorted(statuses) and len(set(statuses)) > 3


def test_claims_and_laws_are_tables_that_sort_too(browser) -> None:
    shown = browser.execute_script(
        "return ['claims', 'scaling'].map(name => {"
        " const table = document.getElementById('table-' + name);"
        " return [table.tBodies[0].rows.length, table.getBoundingClientRect().height > 20,"
        "   table.tHead.querySelectorAll('button').length > 2]; })"
    )
    assert all(rows >= 1 and seen and sorts for rows, seen, sorts in shown), shown


def test_the_page_opens_within_two_seconds(browser) -> None:
    assert browser.execute_script("const t = performance.timing; return t.loadEventEnd - t.navigationStart") < 2000


def test_a_phone_does_not_scroll_sideways(browser) -> None:
    browser.set_window_size(390, 844)
    widths = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    browser.set_window_size(1280, 900)
    assert widths[0] <= max(widths[1], 390)
