"""`make demo` and `make demo-switchover` return their result as the exit status, and leave no process or file."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness.kafka.processes import wait_until

pytestmark = pytest.mark.more

ROOT = Path(__file__).parents[3]


@contextmanager
def _demo(
    folder: Path, module: str = "tests.harness.demo", *arguments: str, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-u", "-m", module, *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A shell makes background processes ignore Ctrl-C, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 no other thread runs here
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def _processes_of(folder: Path) -> list[str]:
    """Returns the command lines that contain *folder*, as those of all processes of the demo do."""
    command_lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command_line = path.read_bytes().decode(errors="replace").replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in command_line:
            command_lines.append(command_line)
    return command_lines


@pytest.mark.timeout(600)  # 45 s on an idle machine, minutes on a busy one
def test_both_sides_are_equal_even_if_the_replicator_was_killed(tmp_path: Path):
    """The exit status is 0, the replicator was killed during the demo, and neither a process nor a file remains."""
    with _demo(tmp_path) as demo:
        text, _ = demo.communicate()

    assert 0 == demo.returncode, text
    assert "was ended by signal 9" in text
    assert "Equal: each of the" in text
    assert [] == [*tmp_path.iterdir(), *_processes_of(tmp_path)]


@pytest.mark.timeout(900)  # 60 s on an idle machine, minutes on a busy one
def test_the_demo_of_a_switchover_moves_clients_to_the_other_cluster_and_back(tmp_path: Path):
    """The exit status is 0, both clients were moved twice, each record was read once, and neither a process nor a file
    remains.
    """
    with _demo(tmp_path, "tests.harness.demo.switchover") as demo:
        text, _ = demo.communicate()

    assert 0 == demo.returncode, text
    assert "west is active. Writes were refused for" in text
    assert "east is active. Writes were refused for" in text
    assert "Exact: each acknowledged record was read once." in text
    assert [] == [*tmp_path.iterdir(), *_processes_of(tmp_path)]


@pytest.mark.parametrize(
    ("signal_number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
def test_a_stopped_demo_leaves_no_process_or_file(tmp_path: Path, signal_number: int, status: int):
    """The demo is stopped while clusters, producer and replicator run."""
    with _demo(tmp_path) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "copied" in line:
                break
        demo.send_signal(signal_number)
        rest = demo.stdout.read()

    assert status == demo.returncode, rest
    wait_until("the processes of the demo are gone", lambda: not _processes_of(tmp_path))
    assert [] == list(tmp_path.iterdir())


@pytest.mark.timeout(600)  # 60 s on an idle machine, minutes on a busy one
def test_the_demo_with_the_console_keeps_both_clusters_until_ctrl_c(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
):
    """It prints an address with the flow and its internal topics. Afterwards, neither a process nor a file remains."""
    state = str(tmp_path_factory.mktemp("state"))
    with _demo(tmp_path, "tests.harness.demo", "--ui", XDG_STATE_HOME=state) as demo:
        assert demo.stdout is not None
        text = ""
        for line in demo.stdout:
            text += line
            if address := re.search(r"The console is at (http://127\.0\.0\.1:\d+)/", line):
                break
        assert address is not None, text
        assert "Equal: each of the" in text
        wait_until("the flow is shown", lambda: "east-to-west" in _page(address[1]), poll_s=1)
        assert "heartbeats" in _page(f"{address[1]}/topics?kind=heartbeats")
        os.killpg(demo.pid, signal.SIGINT)  # sent as a terminal does
        text = demo.stdout.read()

    assert 130 == demo.returncode, text
    assert "Stopped by Ctrl-C. Both clusters" in text
    wait_until("the processes of the demo are gone", lambda: not _processes_of(tmp_path))
    assert [] == list(tmp_path.iterdir())


def _page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as response:
        return str(response.read().decode())
