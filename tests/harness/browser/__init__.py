"""A real Chromium, driven by Playwright: Debian's package `chromium`; Playwright downloads none."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from playwright.sync_api import Browser, Page, sync_playwright

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome")
_AXE: Final = Path(__file__).parent / "axe.min.js"
ABSENT: Final = "There is no Chromium: install the package chromium to test the console in a browser."


def chromium() -> str | None:
    """The path of the browser; None if there is none."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


@contextmanager
def started_browser() -> Iterator[Browser]:
    """A headless browser. As root it cannot have its own sandbox; it opens only pages of the tests."""
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
def opened_page(browser: Browser, **options: Any) -> Iterator[Page]:
    """A page in a context of its own; errors of its scripts, and of its content policy, fail the test."""
    context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    try:
        yield page
    finally:
        context.close()
    assert errors == []


def serious_violations(page: Page) -> list[str]:
    """What axe finds on *page*, but for minor matters. It is evaluated outside the page's own scripts."""
    page.evaluate(_AXE.read_text())
    found = page.evaluate("axe.run()")
    return [
        f"{page.url} {one['impact']} {one['id']}: {one['nodes'][0]['html'][:200]}"
        for one in found["violations"]
        if one["impact"] in {"serious", "critical", "moderate"}
    ]
