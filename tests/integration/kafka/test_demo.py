"""`make demo` reports its result by its exit status and leaves nothing behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.harness.kafka.processes import wait_until

pytestmark = pytest.mark.more

ROOT = Path(__file__).parents[3]


@contextmanager
def _demo(folder: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-u", "-m", "tests.harness.demo"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        # A shell that runs us in the background has us ignore Ctrl-C, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 no other thread is at work here
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def _processes_of(folder: Path) -> list[str]:
    """Command lines that name *folder*, as all that the demo starts does."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").replace("\0", " ")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if str(folder) in words:
            found.append(words)
    return found


@pytest.mark.timeout(600)  # 45 s alone, minutes beside other brokers on the same cores
def test_both_sides_are_equal_although_the_replicator_was_killed(tmp_path: Path):
    """Exit status 0, a kill on the way, and neither a process nor a file is left."""
    with _demo(tmp_path) as demo:
        text, _ = demo.communicate()

    assert 0 == demo.returncode, text
    assert "was ended by signal 9" in text
    assert "Equal: each of the" in text
    assert [] == [*tmp_path.iterdir(), *_processes_of(tmp_path)]


@pytest.mark.parametrize(
    ("signal_number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["ctrl-c", "sigterm"]
)
def test_stopped_half_way_it_leaves_nothing(tmp_path: Path, signal_number: int, status: int):
    """Stopped while clusters, producer and replicator run: all of them are gone when it has ended."""
    with _demo(tmp_path) as demo:
        assert demo.stdout is not None
        for line in demo.stdout:
            if "copied" in line:
                break
        demo.send_signal(signal_number)
        rest = demo.stdout.read()

    assert status == demo.returncode, rest
    wait_until("its processes are gone", lambda: not _processes_of(tmp_path))
    assert [] == list(tmp_path.iterdir())
