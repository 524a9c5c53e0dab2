"""For every test: markers of what it needs, one profile of Hypothesis, and the logs of a failed test.

Processes that share the tests (`-n 2 --dist loadfile`) take whole files: what a file's fixtures start is started once. All
files of tests/e2e go to one process, because they share a node.
"""

import gc
import re
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from tests.harness.kafka.processes import CHILDREN, keep_logs
from tests.requirements import names_reached, needs

# `make check` tries the same few examples of each property every time; `make test-faults` tries many, other ones each time.
# How long an example takes depends on the machine: brokers of other tests may run beside it.
settings.register_profile(
    "mirrorflow",
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=True,
)
settings.register_profile(
    "fuzz", settings.get_profile("mirrorflow"), max_examples=200, derandomize=False, print_blob=True
)
settings.load_profile("mirrorflow")

# Tests leave little that only the collector finds; looking for it after every 700 new objects is a tenth of the time.
GARBAGE_OBJECTS = 20_000
gc.set_threshold(GARBAGE_OBJECTS)

TESTS = Path(__file__).parent
WITH_PROCESSES = ("integration", "e2e")
FAILURES = TESTS.parent / ".cache" / "failures"
ON_THE_NODE = "tests/e2e/"


class ByFile(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """xdist's own, with an exception: the node's tests are one group.

    Its groups (`xdist_group`) are not seen under pytest 9.2.
    """

    def _split_scope(self, nodeid: str) -> str:
        return ON_THE_NODE if nodeid.startswith(ON_THE_NODE) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile | None:
    """Keeps the files of the node together where files are kept together."""
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_finish() -> None:
    """Imported and collected objects stay until the end, so the garbage collector does not need to check them."""
    gc.freeze()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks what a test with processes needs beyond one Kafka release (tests/requirements.py)."""
    folders = item.path.relative_to(TESTS).parts[:-1]
    if isinstance(item, pytest.Function) and folders[0] in WITH_PROCESSES:
        names = names_reached(item.obj) | frozenset(item.fixturenames)
        for marker in sorted(needs(folders, names)):
            item.add_marker(marker)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Remembers which processes a test has started, for `pytest_runtest_makereport`."""
    item.stash[FIRST_CHILD] = len(CHILDREN)
    return (yield)


FIRST_CHILD = pytest.StashKey[int]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Copies the logs of a failed test's processes to a folder, and names it in the report."""
    report = yield
    children = [
        child for index, child in enumerate(CHILDREN) if index >= item.stash[FIRST_CHILD] or child.running
    ]
    if report.failed and children:
        folder = FAILURES / re.sub(r"[^\w.-]+", "_", item.nodeid.removeprefix("tests/"))[:150]
        keep_logs(children, folder)
        report.sections.append(("Logs of its processes", str(folder)))
    return report
