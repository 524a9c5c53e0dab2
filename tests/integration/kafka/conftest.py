"""Fixtures of the tests on real brokers.

kafka-python reads its schemas with a function that Python 3.11 and 3.12 deprecate, and 3.13 does not.
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
    """Ignores this one warning of kafka-python."""
    config.addinivalue_line("filterwarnings", "ignore:(read|open)_text is deprecated:DeprecationWarning")


@pytest.fixture
def flow(east: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> Flow:
    """A flow between the shared brokers that belongs to one test."""
    return Flow.new(east, west, tmp_path)


@pytest.fixture(scope="module")
def spark() -> "Iterator[SparkSession]":
    """A Spark session with two cores, shared by the tests of a file."""
    from tests.integration.kafka.seeding import session

    with session() as context:
        yield context
