"""What tests on real brokers share; and kafka-python, which reads its schemas by a function that Python 3.11 and 3.12 call
deprecated (3.13 does not).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.integration.kafka.flows import Flow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_configure(config: pytest.Config) -> None:
    """Only this warning of only that library."""
    config.addinivalue_line("filterwarnings", "ignore:(read|open)_text is deprecated:DeprecationWarning")


@pytest.fixture
def flow(east: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> Flow:
    """A flow of the test's own between the shared brokers."""
    return Flow.new(east, west, tmp_path)


@pytest.fixture(scope="module")
def spark() -> "Iterator[SparkSession]":
    """A Spark session of two cores, which a file's tests share."""
    from tests.integration.kafka.seeding import session

    with session() as context:
        yield context
