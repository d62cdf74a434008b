"""Tests of the page in a real browser."""

import pytest

from orchestrator.analysis.curve_frame import curves_frame
from orchestrator.report.page import write_report
from orchestrator.tables.scaling import scaling
from tests.unit.orchestrator.browser import BROWSER_MARKS, ask, chromium, wait_for
from tests.unit.orchestrator.frames import collect
from tests.unit.orchestrator.report import demo
from tests.unit.orchestrator.report.demo import FURTHER, RECOMMENDATION

DRAWN = {"trade_off", "combinations", "speedup", "accuracy", "time_to_target", "loss", "memory"}

pytestmark = BROWSER_MARKS


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Open the report of a sweep with hostile strings in Chromium."""
    records = demo.records(sweep=demo.EVIL, evil=demo.EVIL)
    folder = demo.results(tmp_path_factory.mktemp("demo"), records)
    trials, cells = collect(records, scaling="weak", reference_batch_size=32)
    curves, _ = curves_frame(folder, [record.trial_id for record in records if record.metrics])
    tables = [*FURTHER, *scaling(trials, cells).tables]
    known = {"curves": curves, "driver": demo.DRIVER, "folder": folder}
    write_report(demo.end(trials, cells, RECOMMENDATION, tables=tables, **known))
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        driver.get(folder.page.as_uri())
        yield driver


@pytest.fixture(scope="module")
def opened(browser):
    """Open all sections, and wait until all charts are drawn."""
    ask(browser, "document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    wait_for(
        browser, "[...document.querySelectorAll('figure')].every((each) => each.querySelector('svg') && each.view)"
    )
    return browser


def test_only_the_first_charts_are_drawn_before_a_section_is_opened(browser):
    wait_for(browser, "[...document.querySelectorAll('.first figure')].every((each) => each.querySelector('svg'))")
    assert ask(browser, "return document.querySelectorAll('svg').length") == 2
    assert ask(browser, "return document.documentElement.scrollHeight / 900") <= 6
    tops = ask(
        browser, "return [...document.querySelectorAll('figure')].map((each) => each.getBoundingClientRect().top)"
    )
    assert tops[0] < 900


def test_every_chart_is_drawn_under_the_policy(opened):
    shown = ask(
        opened,
        "return [...document.querySelectorAll('figure')].map((figure) => {"
        " const svg = figure.querySelector('svg'), box = svg.getBoundingClientRect();"
        " return [figure.dataset.plot, box.width, box.height, svg.querySelectorAll('path[d]').length]; })",
    )
    assert {name for name, *_ in shown} == DRAWN
    assert all(width > 250 and height > 100 and shapes > 10 for _, width, height, shapes in shown), shown


def test_a_legend_has_room_for_labels_that_the_chart_computes(opened):
    colour = "{field: 'part', scale: {domain: ['kept', 'exchanging gradients']}}"
    told = ask(
        opened,
        f"const spec = {{layer: [{{encoding: {{color: {colour}}}}}]}};"
        " fitLegends(spec, 900, [{cell: 1}]); return spec.layer[0].encoding.color.legend;",
    )
    assert told["labelLimit"] > 6 * len("exchanging gradients") and told["columns"] > 2


def test_no_hostile_string_became_markup(opened):
    assert ask(opened, "return document.scripts.length") == 2
    assert "<script>alert('x')</script>" in ask(opened, "return document.body.innerText")
    assert opened.title.startswith("<script>alert('x')</script>")


def test_a_point_under_the_pointer_shows_its_cell_as_text(opened):
    from selenium.webdriver.common.action_chains import ActionChains

    point = ask(
        opened,
        "const marks = [...document.querySelectorAll('figure[data-plot=trade_off] .mark-symbol path')];"
        "const found = marks.find((each) => each.__data__?.datum?.rule?.includes('script'));"
        "found.scrollIntoView({ block: 'center' }); return found",
    )
    ActionChains(opened).move_to_element(point).perform()
    wait_for(opened, "!document.getElementById('tip').hidden")
    text = ask(opened, "return document.getElementById('tip').innerText")
    assert "<script>alert('x')</script>" in text and "time [s]: " in text
    assert ask(opened, "return document.getElementById('tip').childElementCount") == 0


def test_marks_that_hide_one_another_are_all_listed(opened):
    count = ask(
        opened,
        "const [mark] = document.querySelectorAll('figure[data-plot=trade_off] .mark-symbol path');"
        "mark.scrollIntoView({ block: 'center' });"
        "const copy = mark.cloneNode(); copy.__data__ = { datum: { tip: 'hidden cell' } };"
        "mark.parentNode.insertBefore(copy, mark);"
        "const { x, y, width, height } = mark.getBoundingClientRect();"
        "showTip(null, { clientX: x + width / 2, clientY: y + height / 2 }, null, mark.__data__.datum.tip);"
        "copy.remove(); return document.getElementById('tip').innerText.split('\\n')",
    )
    assert "hidden cell" in count and len(count) >= 2


def test_points_are_reached_by_the_arrow_keys(opened):
    from selenium.webdriver.common.keys import Keys

    ask(opened, "document.querySelector('figure[data-plot=trade_off]').focus()")
    told = []
    for _ in range(2):
        opened.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
        told.append(ask(opened, "return document.getElementById('tip').innerText"))
    assert told[0] != told[1] and all("×" in text for text in told)
    opened.switch_to.active_element.send_keys(Keys.ESCAPE)
    assert ask(opened, "return document.getElementById('tip').hidden")


def test_paper_has_every_section_and_chart(browser, opened):
    ask(browser, "document.querySelectorAll('details').forEach((one) => { one.open = false; })")
    ask(browser, "document.querySelectorAll('details figure').forEach((one) => one.replaceChildren())")
    browser.execute_cdp_cmd("Page.printToPDF", {})
    drawn = ask(
        browser, "return [...document.querySelectorAll('figure')].map((one) => Boolean(one.querySelector('svg')))"
    )
    assert all(drawn) and ask(browser, "return document.querySelectorAll('details[open]').length") == 0
    ask(browser, "document.querySelectorAll('details').forEach((one) => { one.open = true; })")


def column(browser, heading):
    return ask(
        browser,
        "const table = document.querySelector('[data-table=cells] table');"
        "const index = [...table.tHead.rows[0].cells].findIndex((cell) => cell.innerText.startsWith(arguments[0]));"
        "return [...table.tBodies[0].rows].map((row) => row.cells[index].innerText)",
        heading,
    )


def press(browser, heading):
    from selenium.webdriver.common.keys import Keys

    ask(
        browser,
        "const cells = [...document.querySelector('[data-table=cells] table').tHead.rows[0].cells];"
        "cells.find((cell) => cell.innerText.startsWith(arguments[0])).querySelector('button').focus()",
        heading,
    )
    browser.switch_to.active_element.send_keys(Keys.ENTER)


def test_headings_sort_from_the_keyboard_with_empty_cells_last(opened):
    press(opened, "to target")
    up = column(opened, "to target")
    filled = [float(text.replace(",", "")) for text in up if text]
    assert filled == sorted(filled) and up[len(filled) :] == [""] * (36 - len(filled)) and len(filled) < 36
    press(opened, "to target")
    down = [float(text.replace(",", "")) for text in column(opened, "to target") if text]
    assert down == filled[::-1]
    press(opened, "status")
    statuses = column(opened, "status")
    assert statuses == sorted(statuses) and len(set(statuses)) > 3


def test_a_filter_applies_to_tables_and_charts(opened):
    choose = "const menu = document.querySelector('select[data-field=\"axis:gpus\"]'); menu.value = arguments[0];"
    choose += "menu.dispatchEvent(new Event('change'))"
    ask(opened, choose, "2")
    assert {label.partition("×")[0] for label in column(opened, "cell")} == {"2"}
    assert ask(opened, "return document.getElementById('count').textContent").startswith("9 of 36")
    wait_for(opened, f"{ROWS}.length === 9")
    ask(opened, choose, "")
    assert len(column(opened, "cell")) == 36


ROWS = "document.querySelector('figure[data-plot=trade_off]').view.data('source_0')"


def test_the_heading_and_the_first_column_stay_in_view(opened):
    places = ask(
        opened,
        "const holder = document.querySelector('[data-table=cells]'); holder.scrollTo(300, 300);"
        "const box = holder.getBoundingClientRect();"
        "const head = holder.querySelector('th').getBoundingClientRect();"
        "const first = holder.querySelectorAll('tbody tr')[20].cells[0].getBoundingClientRect();"
        "const found = [holder.scrollTop, head.top - box.top, first.left - box.left];"
        "holder.scrollTo(0, 0); return found",
    )
    assert places[0] > 0 and abs(places[1]) <= 2 and abs(places[2]) <= 2


def test_a_phone_does_not_scroll_sideways(opened):
    size = {"width": 400, "height": 850, "deviceScaleFactor": 1, "mobile": False}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wait_for(opened, "[...document.querySelectorAll('svg')].every((each) => each.clientWidth <= 400)")
    widths = ask(opened, "return [document.documentElement.scrollWidth, innerWidth]")
    cut = ask(
        opened,
        "return [...document.querySelectorAll('figure')].filter((each) => each.scrollWidth > each.clientWidth)"
        ".map((each) => each.dataset.plot)",
    )
    opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert widths[0] <= widths[1] == 400 and cut == []


def test_the_page_opens_within_two_seconds(browser):
    assert ask(browser, "const t = performance.timing; return t.loadEventEnd - t.navigationStart") < 2000


def test_the_console_stays_empty(opened):
    assert opened.get_log("browser") == []
