"""Tests of the page of mode=watch in a real browser."""

from orchestrator.store.journal import Journal
from tests.unit.orchestrator.browser import BROWSER_MARKS, ask, chromium, wait_for
from tests.unit.orchestrator.cli.watched import EVIL, RUNNING, SECRET, served, write_end, write_epochs, write_sweep
from tests.unit.orchestrator.records import record_of

pytestmark = BROWSER_MARKS


def text(browser):
    return str(ask(browser, "return document.body.innerText"))


COLOURS = (
    "return Object.fromEntries([...document.querySelectorAll('path[data-trial]')]"
    ".map((path) => [path.dataset.trial, path.getAttribute('stroke')]));"
)


def test_the_page_follows_the_sweep(results_folder, tmp_path_factory):
    with (
        Journal.open(results_folder.journal) as journal,
        served(results_folder.root) as server,
        chromium(tmp_path_factory.mktemp("profile")) as browser,
    ):
        write_sweep(journal, results_folder)
        browser.get(server.url)
        wait_for(browser, "document.querySelectorAll('tbody tr').length === 5")
        assert "4 of 6 trials" in text(browser) and "1,800 samples/s" in text(browser)
        assert ask(browser, "return document.querySelectorAll('figure svg').length") == 2

        # It updates without being loaded again, and keeps the chosen trial and the colours.
        before = ask(browser, COLOURS)
        ask(browser, f"window.mark = 1; document.querySelector('button[data-trial={RUNNING}]').click()")
        wait_for(browser, "document.querySelector('#log pre')?.textContent.includes('last line')")
        write_epochs(results_folder, 7)
        write_end(journal, results_folder, record_of(8, trial_id="new-1").to_json())
        wait_for(browser, "document.querySelectorAll('tbody tr').length === 6")
        assert ask(browser, "return [window.mark, document.querySelector('tbody tr').cells[3].innerText]") == [1, "7"]
        assert ask(browser, "return document.querySelectorAll('tr.chosen').length") == 1
        after = ask(browser, COLOURS)
        assert len(set(after.values())) == len(after) == 1 + len(before) and before.items() <= after.items()

        # Texts of the folder are no markup, and secrets are not shown.
        assert EVIL in text(browser) and SECRET not in text(browser)
        assert ask(browser, "return document.scripts.length") == 1
        size = {"width": 400, "height": 850, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        assert ask(browser, "return document.documentElement.scrollWidth") <= 400
        assert browser.get_log("browser") == []
