"""Memory, threads and CPU time of a process and its children."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from mirrorflow_replicator.process import importing, resource_usage

CHILD = "print('up', flush=True); input()"


class _Imported:
    """Receives Ctrl-C where Python ignores the exception of a handler, as imports do in many finalizers."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGINT)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Has this process handle SIGINT as in a terminal: a shell has its background processes ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_signal_during_imports_takes_effect_at_their_end() -> None:
    imported = list[str]()

    def import_all() -> None:
        with importing():
            _Imported()
            imported.append("the rest")

    with pytest.raises(KeyboardInterrupt):
        import_all()

    assert ["the rest"] == imported
    assert signal.default_int_handler is signal.getsignal(signal.SIGINT)


def test_resource_usage_includes_children_and_keeps_the_cpu_time_of_ended_ones():
    """Prometheus interprets a counter that decreases as a restart."""
    alone = resource_usage()
    assert alone is not None
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        both = resource_usage()
        child.communicate("\n")
    after = resource_usage()

    assert both is not None
    assert after is not None
    assert both.resident_bytes > alone.resident_bytes
    assert both.threads > alone.threads
    assert alone.cpu_s <= both.cpu_s <= after.cpu_s
