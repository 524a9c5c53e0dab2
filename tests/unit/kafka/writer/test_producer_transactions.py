"""A producer with a request of unknown outcome is not used again before its id is initialized again."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.errors import BrokerError, UnreachableError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.batch import split
from mirrorflow_core.wire.error_codes import (
    NONE,
    NOT_ENOUGH_REPLICAS,
    REQUEST_TIMED_OUT,
    UNKNOWN_SERVER_ERROR,
    error_for,
)
from mirrorflow_core.wire.records import Record
from mirrorflow_core.writer.broker_requests import NO_RESPONSE, Done, Producer, Refused, Transaction
from mirrorflow_core.writer.transactional_ids import TransactionalIds
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import Appended
from mirrorflow_kafka.writer import producer_transactions
from mirrorflow_kafka.writer.flow_topics import FlowTopics
from mirrorflow_kafka.writer.producer_transactions import ProducerTransactions

IDS = TransactionalIds("east")
TASK = Producer(IDS.task(0).transactional, 7, 16)
LOCK = Producer(IDS.lock, 8, 16)
TOPICS = FlowTopics(
    source_alias="east",
    connector="MirrorSourceConnector",
    offsets="mm2-offsets.east.internal",
    target_topic=lambda topic: f"east.{topic}",
)
OFFSETS_PARTITION = TopicPartition(TOPICS.offsets, 0)
RECORD = Record(0, 0, b"key", b"value")


class Broker:
    """A broker that accepts all requests except those with an entry in *begins*, *ends* or *codes*."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ends: list[Callable[[], Awaitable[None]]] = []
        self.codes: list[int] = []
        self.sequences: list[int] = []  # the base sequences of the sent batches
        self.add_count = 0
        self.begins: list[Callable[[], Awaitable[None]]] = []
        for request in ("init_producer_id", "try_add_partitions_to_txn", "end_txn", "append"):
            monkeypatch.setattr(admin, request, getattr(self, request))
        monkeypatch.setattr(producer_transactions, "PRODUCE_ATTEMPTS_MAX", 2)
        monkeypatch.setattr(producer_transactions, "backoff_s", lambda *_, **__: 0)
        self.transactions = ProducerTransactions(SimpleNamespace(alias="west"), TOPICS)  # type: ignore[arg-type]

    async def init_producer_id(self, *_: Any, **__: Any) -> tuple[int, int]:
        return TASK.producer_id, TASK.epoch + 1

    async def try_add_partitions_to_txn(self, *_: Any, **__: Any) -> dict[TopicPartition, int]:
        self.add_count += 1
        if self.begins:
            await self.begins.pop(0)()
        return {}

    async def end_txn(self, *_: Any, **__: Any) -> None:
        if self.ends:
            await self.ends.pop(0)()

    async def append(self, _: Any, batches: Any, **__: Any) -> dict[TopicPartition, Appended]:
        self.sequences += [batch.base_sequence for data in batches.values() for batch in split(data)]
        return dict.fromkeys(batches, Appended(self.codes.pop(0) if self.codes else NONE, 0))


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(monkeypatch)


async def lose_connection() -> None:
    raise UnreachableError(cluster="west", addresses="b:9092", problem="the connection was lost")


async def fail() -> None:
    raise error_for(UNKNOWN_SERVER_ERROR, cluster="west", request="EndTxn")


async def cancel() -> None:
    raise asyncio.CancelledError


def run(steps: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(steps)


@pytest.mark.parametrize("end", [lose_connection, fail, cancel])
def test_no_request_follows_an_end_txn_without_a_response_in_its_epoch(
    broker: Broker, end: Callable[[], Awaitable[None]]
) -> None:
    transactions = broker.transactions
    broker.ends.append(end)
    with pytest.raises((UnreachableError, BrokerError, asyncio.CancelledError)):
        run(transactions.end(TASK, commit=True))

    for step in (
        lambda: transactions.add_partitions(TASK, [OFFSETS_PARTITION]),
        lambda: transactions.try_add_partitions(TASK, [OFFSETS_PARTITION]),
        lambda: transactions.end(TASK, commit=True),
    ):
        with pytest.raises(UnreachableError, match="a request of its transaction was not answered"):
            run(step())
    assert run(transactions.run(Transaction(TASK))) == Refused(NO_RESPONSE)
    assert broker.add_count == 0


def test_no_request_follows_an_add_partitions_without_a_response_in_its_epoch(broker: Broker) -> None:
    """A late copy would start a new transaction, whose abort would include positions without a marker."""
    broker.begins.append(lose_connection)
    assert run(broker.transactions.run(Transaction(TASK))) == Refused(NO_RESPONSE)

    assert run(broker.transactions.run(Transaction(TASK))) == Refused(NO_RESPONSE)
    assert broker.add_count == 1


def test_a_new_epoch_can_be_used_after_a_request_without_a_response(broker: Broker) -> None:
    broker.ends.append(lose_connection)
    assert run(broker.transactions.run(Transaction(TASK))) == Refused(NO_RESPONSE)

    assert run(broker.transactions.initialize(TASK.transactional_id)) == TASK._replace(epoch=17)
    assert run(broker.transactions.run(Transaction(TASK._replace(epoch=17)))) == Done()


def test_the_lock_can_be_used_after_an_end_txn_without_a_response(broker: Broker) -> None:
    """The processes of a group share the lock. Each may end a transaction of another process."""
    broker.ends.append(lose_connection)

    assert run(broker.transactions.run(Transaction(LOCK))) == Refused(NO_RESPONSE)
    assert run(broker.transactions.run(Transaction(LOCK))) == Done()


@pytest.mark.parametrize(
    ("codes", "is_usable"),
    [
        ([UNKNOWN_SERVER_ERROR], False),
        ([NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS], True),
        ([REQUEST_TIMED_OUT, NOT_ENOUGH_REPLICAS], False),
    ],
)
def test_no_request_follows_a_batch_that_may_have_been_appended(
    broker: Broker, codes: list[int], *, is_usable: bool
) -> None:
    broker.codes += codes
    with pytest.raises(BrokerError):
        run(broker.transactions.append(LOCK, OFFSETS_PARTITION, [RECORD]))

    assert isinstance(run(broker.transactions.run(Transaction(LOCK))), Done) is is_usable


def test_a_refused_batch_uses_no_sequence_numbers(broker: Broker) -> None:
    broker.codes += [NONE, NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS]
    run(broker.transactions.append(LOCK, OFFSETS_PARTITION, [RECORD] * 3))
    with pytest.raises(BrokerError):
        run(broker.transactions.append(LOCK, OFFSETS_PARTITION, [RECORD] * 2))
    run(broker.transactions.append(LOCK, OFFSETS_PARTITION, [RECORD]))

    assert broker.sequences == [0, 3, 3, 3]
