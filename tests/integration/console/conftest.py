"""Fixtures for tests of the console: a browser, and a console on its own port for the flows that a test runs."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.harness.browser import ABSENT, chromium, started_browser
from tests.harness.kafka.processes import wait_until


def pytest_configure(config: pytest.Config) -> None:
    """Ignores a warning of kafka-python, which reads its schemas by a function that Python 3.11 deprecates."""
    config.addinivalue_line("filterwarnings", "ignore:(read|open)_text is deprecated:DeprecationWarning")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip(ABSENT)
    with started_browser() as browser_:
        yield browser_


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the folder in which flows of this test register, separate from other tests and from the user's flows and clusters."""
    monkeypatch.setenv("KUBECONFIG", os.devnull)
    folder = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder


@pytest.fixture
def console(state: Path, tmp_path: Path) -> Iterator[str]:
    """Yields the address of `mirrorflow ui`, which shows the flows that register in `state`."""
    assert state.parent == tmp_path
    with served_console(tmp_path) as url:
        yield url


@contextmanager
def served_console(folder: Path, *arguments: str) -> Iterator[str]:
    """Runs `mirrorflow ui`, yields its address, and ends it with Ctrl-C."""
    log = folder / "console.out"
    command = [str(Path(sys.executable).parent / "mirrorflow"), "ui", "--port", "0", *arguments]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        address = wait_until("the console serves", lambda: re.search(r"http://[\d.:]+", log.read_text()))
        assert address is not None
        yield address[0]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) in {0, 130}
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait()
