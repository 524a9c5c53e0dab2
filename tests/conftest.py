"""Configures every test: markers of what it needs, a profile of Hypothesis, and the logs of a failed test.

Processes that share the tests (`-n 2 --dist loadfile`) take whole files, so that the fixtures of a file start their
processes once. All files of tests/e2e are in one process, because they share a node.
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

# `make check` tries the same few examples of each property every time. `make test-faults` tries many, and different
# ones each time. The duration of an example depends on the machine, because brokers of other tests may run on it.
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

# Tests create few objects that only the garbage collector finds. Searching after every 700 new objects would take a
# tenth of the time.
GARBAGE_OBJECTS = 20_000
gc.set_threshold(GARBAGE_OBJECTS)

TESTS = Path(__file__).parent
WITH_PROCESSES = ("integration", "e2e")
FAILURES = TESTS.parent / ".cache" / "failures"
ON_THE_NODE = "tests/e2e/"


class ByFile(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """xdist's scheduler by file, with one exception: the tests of the node are one group.

    pytest 9.2 does not support its groups (`xdist_group`).
    """

    def _split_scope(self, nodeid: str) -> str:
        return ON_THE_NODE if nodeid.startswith(ON_THE_NODE) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile | None:
    """Keeps the files of the node together if files are kept together."""
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_finish() -> None:
    """Excludes imported and collected objects from garbage collection, because they exist until the end."""
    gc.freeze()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks a test with what it needs beyond one Kafka release (tests/requirements.py)."""
    folders = item.path.relative_to(TESTS).parts[:-1]
    if isinstance(item, pytest.Function) and folders[0] in WITH_PROCESSES:
        names = names_reached(item.obj) | frozenset(item.fixturenames)
        for marker in sorted(needs(folders, names)):
            item.add_marker(marker)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Records which processes a test has started, for `pytest_runtest_makereport`."""
    item.stash[FIRST_CHILD] = len(CHILDREN)
    return (yield)


FIRST_CHILD = pytest.StashKey[int]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Copies the logs of a failed test's processes to a folder, and adds the folder to the report."""
    report = yield
    children = [
        child for index, child in enumerate(CHILDREN) if index >= item.stash[FIRST_CHILD] or child.running
    ]
    if report.failed and children:
        folder = FAILURES / re.sub(r"[^\w.-]+", "_", item.nodeid.removeprefix("tests/"))[:150]
        keep_logs(children, folder)
        report.sections.append(("Logs of its processes", str(folder)))
    return report
