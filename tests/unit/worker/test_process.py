"""Memory, threads and CPU time of a process and its children."""

import subprocess
import sys

from mirrorflow_replicator.process import resource_usage

CHILD = "print('up', flush=True); input()"


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
