"""The load balancer weights partitions by records if it may not read their sizes."""

import asyncio
from collections.abc import Callable

import pytest

from mirrorflow_core.errors import NotAuthorizedError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import ListedOffset
from mirrorflow_replicator.config.worker_properties import load_standalone
from mirrorflow_replicator.connectors import load_balancing
from mirrorflow_replicator.connectors.load_balancing import SAMPLES_MAX, LoadBalancer

WORKER = "bootstrap.servers=127.0.0.1:1\noffset.storage.topic=o\n"
CONNECTOR = (
    "name=x\nconnector.class=MirrorSourceConnector\nsource.cluster.alias=A\ntarget.cluster.alias=B\n"
    "source.cluster.bootstrap.servers=127.0.0.1:1\ntarget.cluster.bootstrap.servers=127.0.0.1:1\n"
    "tasks.max=2\n"
)
GROWTH_RECORDS = 5_000_000  # new records of each busy partition between two listings
ASSIGNMENT = tuple(
    tuple(TopicPartition("t", number) for number in range(task, 2 * SAMPLES_MAX, 2)) for task in range(2)
)
BUSY = ASSIGNMENT[0][:2]


class NoPositions:
    """A position store without positions."""

    def __init__(self) -> None:
        self.positions: dict[TopicPartition, object] = {}
        self.foreign: dict[TopicPartition, object] = {}

    async def open(self) -> None:
        """Does nothing, because the store is empty."""

    async def read_new(self) -> None:
        """Does nothing, because the store is empty."""


@pytest.fixture
def settings() -> SourceSettings:
    source = load_standalone(WORKER, [CONNECTOR]).connectors[0].source
    assert source is not None
    return source


@pytest.fixture
def count_refused_reads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Replaces the source by one with two growing partitions and no read permission, and counts refused reads."""
    listings, refused_reads = [0], [0]

    async def list_offsets(*_: object, **__: object) -> object:
        listings[0] += 1
        return {
            partition: ListedOffset(offset=listings[0] * GROWTH_RECORDS * (1 if partition in BUSY else 0))
            for task in ASSIGNMENT
            for partition in task
        }

    async def read_once(*_: object, **__: object) -> object:
        refused_reads[0] += 1
        raise NotAuthorizedError(cluster="A", operation="Read", resource="topic t")

    monkeypatch.setattr(admin, "list_offsets", list_offsets)
    monkeypatch.setattr(load_balancing, "read_once", read_once)
    monkeypatch.setattr(load_balancing, "position_store", lambda *_: NoPositions())
    return lambda: refused_reads[0]


def test_partitions_are_balanced_by_records_with_a_warning_without_read_permission(
    settings: SourceSettings, count_refused_reads: Callable[[], int]
) -> None:
    async def run() -> None:
        balancer, assignment = LoadBalancer(settings), ASSIGNMENT
        for round_number in range(1, 5):
            assignment = await balancer.balance(None, None, assignment)  # type: ignore[arg-type]
            # The first listing gives no rates. Each later one attempts one read.
            assert round_number - 1 == count_refused_reads()
        assert "by records, not by bytes" in str(balancer.warning)
        assert "Read" in str(balancer.warning)
        assert not set(BUSY) <= set(assignment[0])

    asyncio.run(run())
