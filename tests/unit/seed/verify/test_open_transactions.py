"""Tests that a transaction that stays open is described by its producer and the time of its last record."""

import asyncio
from typing import Any

import pytest

from mirrorflow_core.errors import ClusterError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.admin import admin
from mirrorflow_seed.verify.open_transactions import describe_open_transactions

PARTITION = TopicPartition("t", 0)
NO_CLUSTER: Any = None


def producer(producer_id: int, *, start: int, timestamp: int = 1_700_000_000_000) -> admin.ActiveProducer:
    return admin.ActiveProducer(
        producer_id=producer_id,
        epoch=2,
        last_sequence=0,
        last_timestamp=timestamp,
        coordinator_epoch=0,
        current_txn_start_offset=start,
    )


def describe(monkeypatch: pytest.MonkeyPatch, *producers: admin.ActiveProducer) -> str:
    async def respond(*_: object) -> dict[TopicPartition, admin.ProducersResponse]:
        return {PARTITION: admin.ProducersResponse(producers=producers)}

    monkeypatch.setattr(admin, "describe_producers", respond)
    return asyncio.run(describe_open_transactions(NO_CLUSTER, {PARTITION: 120}))[PARTITION]


def test_the_description_names_the_producer_whose_transaction_begins_at_the_last_stable_offset(
    monkeypatch: pytest.MonkeyPatch,
):
    text = describe(monkeypatch, producer(7, start=-1), producer(8, start=120), producer(9, start=130))
    assert text == (
        "an open transaction from offset 120 on, of producer 8 (epoch 2), whose last record is of 2023-11-14T22:13:20Z"
    )


def test_an_out_of_range_timestamp_is_shown_as_a_number(monkeypatch: pytest.MonkeyPatch):
    assert describe(monkeypatch, producer(8, start=120, timestamp=1 << 62)).endswith(f"timestamp {1 << 62}")


def test_the_description_has_only_the_offset_without_permission(monkeypatch: pytest.MonkeyPatch):
    async def refuse(*_: object) -> None:
        raise ClusterError("No permission.", cluster="west")

    monkeypatch.setattr(admin, "describe_producers", refuse)
    described = asyncio.run(describe_open_transactions(NO_CLUSTER, {PARTITION: 120}))
    assert described == {PARTITION: "an open transaction from offset 120 on"}


def test_no_broker_is_queried_without_open_transactions(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(admin, "describe_producers", None)
    assert asyncio.run(describe_open_transactions(NO_CLUSTER, {})) == {}
