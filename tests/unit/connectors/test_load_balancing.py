"""What partitions cost, where their records may not be read."""

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
EACH_LOOK = 5_000_000  # records
ASSIGNMENT = tuple(
    tuple(TopicPartition("t", number) for number in range(task, 2 * SAMPLES_MAX, 2)) for task in range(2)
)
HOT = ASSIGNMENT[0][:2]


class NoPositions:
    """Nothing was copied yet."""

    def __init__(self) -> None:
        self.positions: dict[TopicPartition, object] = {}
        self.foreign: dict[TopicPartition, object] = {}

    async def open(self) -> None:
        """There is nothing to read."""

    async def read_new(self) -> None:
        """There is nothing to read."""


@pytest.fixture
def settings() -> SourceSettings:
    found = load_standalone(WORKER, [CONNECTOR]).connectors[0].source
    assert found is not None
    return found


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """A source whose two busy partitions grow with each look, and whose records may not be read; how often that was tried."""
    looks, tried = [0], [0]

    async def list_offsets(*_: object, **__: object) -> object:
        looks[0] += 1
        return {
            one: ListedOffset(offset=looks[0] * EACH_LOOK * (1 if one in HOT else 0))
            for task in ASSIGNMENT
            for one in task
        }

    async def read_once(*_: object, **__: object) -> object:
        tried[0] += 1
        raise NotAuthorizedError(cluster="A", operation="Read", resource="topic t")

    monkeypatch.setattr(admin, "list_offsets", list_offsets)
    monkeypatch.setattr(load_balancing, "read_once", read_once)
    monkeypatch.setattr(load_balancing, "position_store", lambda *_: NoPositions())
    return lambda: tried[0]


def test_records_that_may_not_be_read_count_alike_and_a_warning_says_so(
    settings: SourceSettings, refused: Callable[[], int]
) -> None:
    async def run() -> None:
        measured, assignment = LoadBalancer(settings), ASSIGNMENT
        for looks in range(1, 5):
            assignment = await measured.balance(None, None, assignment)  # type: ignore[arg-type]
            assert looks - 1 == refused()  # the first look has no rates; each later one asks once
        assert "by records, not by bytes" in measured.warning
        assert "Read" in measured.warning
        assert not set(HOT) <= set(assignment[0])

    asyncio.run(run())
