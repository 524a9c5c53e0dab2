"""Without fencing, positions cover only acknowledged records, and an ambiguous response ends the session."""

import asyncio
from typing import Any

import pytest

from mirrorflow_core.copying.effects import EndSession
from mirrorflow_core.copying.error_actions import SESSION_ENDING_CODES
from mirrorflow_core.copying.membership import TransactionMembership
from mirrorflow_core.copying.partition import PartitionCopier
from mirrorflow_core.errors import UnreachableError
from mirrorflow_core.partitions import Position
from mirrorflow_core.source_epochs import EpochStart
from mirrorflow_core.wire.error_codes import (
    INVALID_PRODUCER_EPOCH,
    INVALID_TXN_STATE,
    NOT_ENOUGH_REPLICAS,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    UNKNOWN_SERVER_ERROR,
)
from mirrorflow_replicator.copy.position_committer import AtLeastOnceCommitter
from tests.unit.core.copying.stubs import begun_copier, new_copier, new_session, records_of, send
from tests.unit.core.copying.test_batch_packer import TIMESTAMP_MS, small_records, with_leader_epoch
from tests.unit.core.wire.strategies import batch_of

UNFENCED = "an ACL is missing"


class Store:
    """A position store. If *error* is set, it refuses requests.

    *requests* has the positions of each request.
    """

    def __init__(self) -> None:
        self.error: UnreachableError | None = None
        self.requests: list[list[Position]] = []

    async def write(self, positions: list[Position], *, now_ms: int) -> None:
        assert now_ms > 0
        if self.error is not None:
            raise self.error
        self.requests.append(positions)


class Task:
    """A committer with its store. It records the reasons for which it has ended its session."""

    def __init__(self) -> None:
        self.store = Store()
        self.ended: list[str] = []
        store: Any = self.store
        self.committer = AtLeastOnceCommitter(store, end_session=self.ended.append)

    def flush(self, *copiers: PartitionCopier) -> None:
        asyncio.run(self.committer.store(copiers, left=False))

    @property
    def stored(self) -> list[list[tuple[int, int]]]:
        """Returns the partition and the source offset of each position, by request."""
        return [
            [(position.partition, position.source_offset) for position in request]
            for request in self.store.requests
        ]


@pytest.fixture
def task() -> Task:
    return Task()


def copier_in_flight(partition: int = 0, *, unfenced_reason: str | None = UNFENCED) -> PartitionCopier:
    """Returns a copier with three records in flight, from source offset 100 on."""
    copier = begun_copier(TIMESTAMP_MS, new_session(unfenced_reason=unfenced_reason), partition)
    copier.packer.add(batch_of(small_records(3), base_offset=100))
    assert send(copier, TIMESTAMP_MS) is not None
    return copier


def test_only_acknowledged_records_are_in_a_position(task: Task) -> None:
    copier = copier_in_flight()
    task.flush(copier)
    copier.acknowledged(40, -1, TIMESTAMP_MS)
    task.flush(copier)

    assert task.stored == [[(0, 99)], [(0, 102)]]


def test_a_position_has_the_leader_epochs_of_the_copied_records(task: Task) -> None:
    """If the source loses some of these records, the next session compares the logs by leader epoch."""
    copier = copier_in_flight()
    copier.packer.add(with_leader_epoch(batch_of(small_records(1), base_offset=103), 7))
    copier.acknowledged(40, -1, TIMESTAMP_MS)
    assert send(copier, TIMESTAMP_MS) is not None
    copier.acknowledged(43, -1, TIMESTAMP_MS)
    task.flush(copier)

    assert task.store.requests[0][0].epochs == (EpochStart(7, 103),)


def test_an_unchanged_position_is_not_stored_again(task: Task) -> None:
    copiers = [copier_in_flight(0), copier_in_flight(1)]
    task.flush(*copiers)
    copiers[1].acknowledged(40, -1, TIMESTAMP_MS)
    task.flush(*copiers)
    task.flush(*copiers)

    assert task.stored == [[(0, 99), (1, 99)], [(1, 102)]]
    assert len(task.committer.took_ms) == 2


def test_a_partition_that_has_not_started_has_no_position(task: Task) -> None:
    task.flush(new_copier(new_session(unfenced_reason=UNFENCED)))

    assert task.stored == []


def test_a_refused_position_is_stored_at_the_next_attempt(task: Task) -> None:
    copier = copier_in_flight()
    task.store.error = UnreachableError(cluster="west", addresses="b:9092", problem="refused")
    with pytest.raises(UnreachableError):
        task.flush(copier)
    task.store.error = None
    task.flush(copier)

    assert task.stored == [[(0, 99)]]


def test_positions_lost_by_the_topic_are_stored_again(task: Task) -> None:
    copier = copier_in_flight()
    task.flush(copier)
    task.committer.positions_lost()
    task.flush(copier)

    assert task.stored == [[(0, 99)], [(0, 99)]]


def session_end_reasons(copier: PartitionCopier, code: int) -> list[str]:
    """Returns the reasons for which a refusal of the copier's batch with this code ends the session."""
    return [effect.reason for effect in copier.refused(code, "") if isinstance(effect, EndSession)]


@pytest.mark.parametrize("unfenced_reason", [UNFENCED, None])
@pytest.mark.parametrize("code", sorted(SESSION_ENDING_CODES | {UNKNOWN_SERVER_ERROR}))
def test_a_response_that_does_not_show_what_was_appended_ends_the_session(
    unfenced_reason: str | None, code: int
) -> None:
    assert len(session_end_reasons(copier_in_flight(unfenced_reason=unfenced_reason), code)) == 1


def test_a_fenced_producer_ends_the_session() -> None:
    assert session_end_reasons(copier_in_flight(), INVALID_PRODUCER_EPOCH) == [
        "the target refused a batch with INVALID_PRODUCER_EPOCH"
    ]


@pytest.mark.parametrize(
    ("unfenced_reason", "reason"),
    [
        (UNFENCED, "the target refused a batch with INVALID_TXN_STATE"),
        (None, "its transaction was ended by another process"),
    ],
)
def test_a_transaction_that_a_different_process_has_ended_ends_the_session(
    unfenced_reason: str | None, reason: str
) -> None:
    """Without fencing, this error code shows that the leader treats the producer as transactional."""
    assert session_end_reasons(copier_in_flight(unfenced_reason=unfenced_reason), INVALID_TXN_STATE) == [
        reason
    ]


@pytest.mark.parametrize("code", [NOT_ENOUGH_REPLICAS, OUT_OF_ORDER_SEQUENCE_NUMBER])
def test_a_refusal_that_appended_nothing_does_not_end_the_session(code: int) -> None:
    assert session_end_reasons(copier_in_flight(), code) == []


def test_the_committer_ends_the_session_with_its_reason(task: Task) -> None:
    task.committer.end("the target refused a batch with INVALID_PRODUCER_EPOCH")

    assert task.ended == ["the target refused a batch with INVALID_PRODUCER_EPOCH"]


def test_no_partition_is_in_a_transaction(task: Task) -> None:
    """With fencing, records of this age would be sent in a transaction."""
    copier = copier_in_flight()
    copier.acknowledged(40, -1, TIMESTAMP_MS)
    old_ms = TIMESTAMP_MS - 2 * copier.session.plain_age_limit_ms
    copier.packer.add(batch_of(records_of(old_ms), base_offset=103))
    task.committer.want(copier)

    assert send(copier, TIMESTAMP_MS) is not None
    assert (copier.membership, copier.transactional_id) == (TransactionMembership.OUTSIDE, None)
