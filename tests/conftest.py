"""For every test: real Kafka is asked for by a fixture, and a test that uses one bears the marker `kafka`.

Processes that share the tests (`-n 2 --dist loadgroup`) take whole files: what a file's fixtures start is started once.
"""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes is the machine's affair: brokers of other tests may run beside it.
settings.register_profile("mirrorflow", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("mirrorflow")

TESTS = Path(__file__).parent
INTEGRATION = TESTS / "integration" / "kafka"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what lies under tests/integration/kafka, and what must stay in one process."""
    for item in items:
        if item.path.is_relative_to(INTEGRATION):
            item.add_marker(pytest.mark.kafka)
        if not any(item.iter_markers("xdist_group")):
            item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(TESTS))))
