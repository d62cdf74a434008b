"""Chromium without a window, for tests of pages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")

BROWSER_MARKS = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="there is no Chromium with its driver on this machine"),
]


@contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """Yield a driver of Chromium that keeps its profile in this folder."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (
        "--headless",
        "--window-size=1280,900",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
    ):
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(executable_path=DRIVER))
    yield driver
    driver.quit()


def ask(browser: Any, script: str, *values: object) -> Any:
    return browser.execute_script(script, *values)


def wait_for(browser: Any, condition: str) -> None:
    from selenium.webdriver.support.wait import WebDriverWait

    WebDriverWait(browser, 60).until(lambda _: ask(browser, f"return {condition}"))
