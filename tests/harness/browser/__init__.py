"""Runs a real Chromium with Playwright. It is Debian's package `chromium`, because Playwright must not download one."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, Page, sync_playwright

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_AXE: Final = Path(__file__).parent / "axe.min.js"
ABSENT: Final = "Chromium is missing: install the package chromium to test the console in a browser."


def chromium() -> str | None:
    """Returns the path of the browser, or None if it is not installed."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


@contextmanager
def started_browser() -> Iterator[Browser]:
    """Yields a headless browser, which runs as root without its sandbox and opens only pages of the tests."""
    path = chromium()
    if path is None:
        raise FileNotFoundError(ABSENT)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened_page(browser: Browser, *, expected_error: str = "", **options: Any) -> Iterator[Page]:
    """Yields a page in its own context. Errors of its scripts or its content policy fail the test.

    Messages of the browser that contain *expected_error* are ignored, for example about a page with the status 403.
    """
    context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    try:
        yield page
    finally:
        context.close()
    assert [error for error in errors if not expected_error or expected_error not in error] == []


def serious_violations(page: Page) -> list[str]:
    """Returns axe's findings on *page*, except minor ones. axe runs outside the page's own scripts."""
    page.evaluate(_AXE.read_text())
    results = page.evaluate("axe.run()")
    return [
        f"{page.url} {violation['impact']} {violation['id']}: {violation['nodes'][0]['html'][:200]}"
        for violation in results["violations"]
        if violation["impact"] in {"serious", "critical", "moderate"}
    ]
