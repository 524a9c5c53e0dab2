"""For every test: real Kafka is asked for by a fixture, and a test that uses one bears the marker `kafka`.

Processes that share the tests (`-n 2 --dist loadfile`) take whole files: what a file's fixtures start is started once. All
files of tests/e2e go to one process, for they share a node.
"""

import gc
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

# How long an example takes is the machine's affair: brokers of other tests may run beside it.
settings.register_profile("mirrorflow", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mirrorflow")

# Tests leave little that only the collector finds; looking for it after every 700 new objects is a tenth of the time.
GARBAGE_OBJECTS = 20_000
gc.set_threshold(GARBAGE_OBJECTS)

INTEGRATION = Path(__file__).parent / "integration" / "kafka"
ON_THE_NODE = "tests/e2e/"


class ByFile(LoadFileScheduling):  # type: ignore[misc]  # xdist has no types
    """xdist's own, but for the node. Its groups (`xdist_group`) are not seen under pytest 9.2."""

    def _split_scope(self, nodeid: str) -> str:
        return ON_THE_NODE if nodeid.startswith(ON_THE_NODE) else super()._split_scope(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile | None:
    """Where files are kept together, so is the node."""
    return ByFile(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the collector need not look at it again and again."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what lies under tests/integration/kafka."""
    for item in items:
        if item.path.is_relative_to(INTEGRATION):
            item.add_marker(pytest.mark.kafka)
