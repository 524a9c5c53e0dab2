"""A partition is copied to its end when the source serves all offsets before it, and none of them is a record to copy."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.wire.fetch import FetchKey, PartitionFetchResponse
from mirrorflow_core.wire.records import Record, encode_as_logged
from mirrorflow_kafka.admin import log_reader
from mirrorflow_replicator.switchover import drain

ORDERS = TopicPartition("orders", 0)
SOURCE = cast("Any", SimpleNamespace(alias="east"))


def may_have_records(
    monkeypatch: pytest.MonkeyPatch,
    *,
    read_committed: bool = False,
    high_watermark: int = 100,
    last_stable: int = 100,
    record: int | None = None,
) -> bool:
    """Asks about the offsets from 95 to 100 of a source that has at most the *record* there."""

    async def read_once(*_: object, **__: object) -> PartitionFetchResponse:
        data = bytearray()
        if record is not None:
            data = encode_as_logged([Record(record, 1, b"k", b"v")], codec=0, next_offset=record + 1)
        key = FetchKey(b"orders", 0)
        return PartitionFetchResponse(key, 0, high_watermark, last_stable, 0, (), -1, memoryview(data))

    monkeypatch.setattr(log_reader, "read_once", read_once)
    settings = cast("SourceSettings", SimpleNamespace(read_committed=read_committed))
    return asyncio.run(drain._may_have_records(settings, SOURCE, ORDERS, 95, 100))


def test_offsets_that_a_new_leader_does_not_serve_yet_may_hold_records(monkeypatch: pytest.MonkeyPatch):
    """A switchover would lose them."""
    assert may_have_records(monkeypatch, high_watermark=95)


def test_offsets_of_an_open_transaction_may_hold_records(monkeypatch: pytest.MonkeyPatch):
    assert may_have_records(monkeypatch, read_committed=True, last_stable=95)


def test_served_offsets_without_a_batch_hold_none(monkeypatch: pytest.MonkeyPatch):
    assert not may_have_records(monkeypatch)


def test_a_served_record_is_one_to_copy(monkeypatch: pytest.MonkeyPatch):
    assert may_have_records(monkeypatch, record=97)
