"""Where nothing is fenced: positions of what is acknowledged are stored, and a response that leaves it open ends the task."""

import asyncio
from typing import Any

import pytest

from mirrorflow_core.errors import UnreachableError
from mirrorflow_core.partitions import Position
from mirrorflow_core.source_epochs import EpochStart
from mirrorflow_kafka.client.error_codes import UNKNOWN_SERVER_ERROR
from mirrorflow_replicator.copy.partition_writer import PartitionWriter
from mirrorflow_replicator.copy.position_writer import FINAL_CODES, UnfencedWriter
from tests.unit.copy.leader import INVALID_PRODUCER_EPOCH, NOT_ENOUGH_REPLICAS, OUT_OF_ORDER
from tests.unit.copy.stubs import begun_writer, context_at
from tests.unit.copy.test_batch_packer import WHEN, in_epoch, small
from tests.unit.core.wire.strategies import batch_of


class Store:
    """A position store that can refuse; holds what each request has written."""

    def __init__(self) -> None:
        self.error: UnreachableError | None = None
        self.requests: list[list[Position]] = []

    async def write(self, positions: list[Position], *, now_ms: int) -> None:
        assert now_ms > 0
        if self.error is not None:
            raise self.error
        self.requests.append(positions)


class Task:
    """A writer with its store, and why it has ended its task."""

    def __init__(self) -> None:
        self.store = Store()
        self.ended: list[str] = []
        store: Any = self.store
        self.writer = UnfencedWriter(store, end_task=self.ended.append)

    def flush(self, *writings: PartitionWriter) -> None:
        asyncio.run(self.writer.store([one.copier for one in writings], left=False))

    @property
    def stored(self) -> list[list[tuple[int, int]]]:
        """Partition and source offset of the positions of each request."""
        return [[(one.partition, one.source_offset) for one in request] for request in self.store.requests]


@pytest.fixture
def task() -> Task:
    return Task()


def begun(partition: int = 0) -> PartitionWriter:
    """A partition that has three records from offset 100 on in flight."""
    writing = begun_writer(context_at(WHEN, unfenced_why="an ACL is missing"), partition)
    writing.packer.add(batch_of(small(3), base_offset=100))
    assert writing.next_batch() is not None
    return writing


def test_only_acknowledged_records_are_in_a_position(task: Task) -> None:
    writing = begun()
    task.flush(writing)
    writing.acknowledged(40, -1)
    task.flush(writing)

    assert task.stored == [[(0, 99)], [(0, 102)]]


def test_a_position_has_the_leader_epochs_of_what_was_copied(task: Task) -> None:
    """Where the source loses some of them, the next start compares the logs by these."""
    writing = begun()
    writing.packer.add(in_epoch(batch_of(small(1), base_offset=103), 7))
    writing.acknowledged(40, -1)
    assert writing.next_batch() is not None
    writing.acknowledged(43, -1)
    task.flush(writing)

    assert task.store.requests[0][0].epochs == (EpochStart(7, 103),)


def test_a_position_is_stored_once(task: Task) -> None:
    writings = [begun(0), begun(1)]
    task.flush(*writings)
    writings[1].acknowledged(40, -1)
    task.flush(*writings)
    task.flush(*writings)

    assert task.stored == [[(0, 99), (1, 99)], [(1, 102)]]
    assert len(task.writer.took_ms) == 2


def test_a_partition_that_has_not_begun_has_no_position(task: Task) -> None:
    copier = begun().copier
    copier.writing = None
    asyncio.run(task.writer.store([copier], left=False))

    assert task.stored == []


def test_a_position_that_was_refused_is_stored_at_the_next_attempt(task: Task) -> None:
    writing = begun()
    task.store.error = UnreachableError(cluster="west", addresses="b:9092", problem="refused")
    with pytest.raises(UnreachableError):
        task.flush(writing)
    task.store.error = None
    task.flush(writing)

    assert task.stored == [[(0, 99)]]


@pytest.mark.parametrize("code", sorted(FINAL_CODES | {UNKNOWN_SERVER_ERROR}))
def test_a_response_that_leaves_open_what_was_appended_ends_the_task(task: Task, code: int) -> None:
    task.writer.refused(code)

    assert len(task.ended) == 1


def test_a_producer_that_is_fenced_ends_the_task(task: Task) -> None:
    task.writer.refused(INVALID_PRODUCER_EPOCH)

    assert task.ended == ["the target answered INVALID_PRODUCER_EPOCH"]


@pytest.mark.parametrize("code", [NOT_ENOUGH_REPLICAS, OUT_OF_ORDER])
def test_a_refusal_that_appended_nothing_does_not_end_the_task(task: Task, code: int) -> None:
    task.writer.refused(code)

    assert task.ended == []


def test_no_partition_is_in_a_transaction(task: Task) -> None:
    writing = begun()
    task.writer.want(writing)

    assert not task.writer.includes(writing)
