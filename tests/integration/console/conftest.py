"""A browser, and a console on a port of its own for the flows that a test runs."""

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
    """As for all tests on brokers: kafka-python reads its schemas by a function that Python 3.11 calls deprecated."""
    config.addinivalue_line("filterwarnings", "ignore:(read|open)_text is deprecated:DeprecationWarning")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip(ABSENT)
    with started_browser() as found:
        yield found


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which flows of this test register: neither other tests nor the user's own flows are in it."""
    folder = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(folder))
    return folder


@pytest.fixture
def console(state: Path, tmp_path: Path) -> Iterator[str]:
    """The address of `mirrorflow ui`; it sees the flows that register in `state`."""
    assert state.parent == tmp_path
    with served_console(tmp_path) as url:
        yield url


@contextmanager
def served_console(folder: Path, *arguments: str) -> Iterator[str]:
    """Runs `mirrorflow ui`, and ends it by Ctrl-C."""
    out = folder / "console.out"
    command = [str(Path(sys.executable).parent / "mirrorflow"), "ui", "--port", "0", *arguments]
    with out.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        found = wait_until("the console serves", lambda: re.search(r"http://[\d.:]+", out.read_text()))
        assert found is not None
        yield found[0]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) in {0, 130}
        assert "Traceback" not in out.read_text()
    finally:
        process.kill()
        process.wait()
