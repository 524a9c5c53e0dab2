"""A reader batches a trickle over many partitions, delays no other reader, and keeps no old responses."""

import asyncio
import time
import uuid
from collections import deque
from typing import cast

import pytest

from mirrorflow_core.wire.fetch import FetchFrom
from mirrorflow_kafka.client.broker_reader import FEW_PARTITIONS, GATHER_MAX_S, GATHER_S, BrokerReader
from mirrorflow_kafka.client.cluster import Cluster
from tests.unit.core.wire.messages import FetchResponse

TOPIC, TOPIC_ID = "orders", bytes(15) + b"\x01"
PARTITIONS = 100
VERSION = 13


def answer(partitions: int, size_bytes: int, *, throttle_ms: int = 0) -> bytearray:
    """What a broker says where the first *partitions* have records of *size_bytes* each."""
    parts = FetchResponse.FetchableTopicResponse
    return bytearray(
        FetchResponse(
            version=VERSION,
            throttle_time_ms=throttle_ms,
            error_code=0,
            session_id=7,
            responses=[
                parts(
                    version=VERSION,
                    topic_id=uuid.UUID(bytes=TOPIC_ID),
                    partitions=[
                        parts.PartitionData(
                            version=VERSION,
                            partition_index=number,
                            error_code=0,
                            high_watermark=1,
                            last_stable_offset=1,
                            log_start_offset=0,
                            aborted_transactions=None,
                            preferred_read_replica=-1,
                            records=bytes(size_bytes),
                        )
                        for number in range(partitions)
                    ],
                )
            ]
            if partitions
            else [],
        ).encode(version=VERSION)
    )


class Broker:
    """Cluster and connection in one: gives the answers that it has, then none."""

    alias, address, is_retired = "east", "east:9092", False
    versions = {1: (0, VERSION)}  # noqa: RUF012 it is read only

    def __init__(self, answers):
        self.answers = deque(answers)
        self.is_silent = asyncio.Event()

    async def connection(self, node_id, *, purpose):
        return self

    async def call(self, request, *, timeout_s):
        """The round trip that is measured."""

    def throttled(self, throttle_ms):
        """No answer here is."""

    def send(self, api_key, version, parts, *, flexible):
        said = asyncio.get_running_loop().create_future()
        if self.answers:
            said.set_result(memoryview(self.answers.popleft()))
        else:
            self.is_silent.set()
        return said


class Reading:
    """A partition that wants everything and keeps nothing."""

    def next_fetch(self):
        return FetchFrom(0)

    def may_fetch_soon(self):
        return False

    def fetched(self, part, asked_offset):
        """It is copied at once."""


async def read(answers, *, after=lambda: None):
    """Have a reader read *answers* to the last."""

    async def room(response_bytes, largest_bytes):
        """There is always some."""

    broker = Broker(answers)
    reader = BrokerReader(
        cast("Cluster", broker), 1, read_committed=False, rack="", room=room, after=after, on_error=lambda error: pytest.fail(str(error))
    )  # fmt: skip
    for number in range(PARTITIONS):
        reader.add(TOPIC, number, TOPIC_ID, Reading())
    async with asyncio.timeout(300):
        await broker.is_silent.wait()
    return reader


def pauses_of(monkeypatch, answers):
    """How long the reader rests behind each of *answers*, and how often was pumped until then."""
    found, pumped, sleep = [], [0], asyncio.sleep

    async def rest(seconds):
        found.append((seconds, pumped[0]))
        await sleep(0)

    def after():
        pumped[0] += 1

    async def all_of_them():
        monkeypatch.setattr(asyncio, "sleep", rest)
        reader = await read(answers, after=after)
        await reader.close()

    asyncio.run(all_of_them())
    return found


def test_few_partitions_and_large_answers_are_not_held_up(monkeypatch):
    """Their latency is what a user sees first, their backlog second."""
    assert [] == pauses_of(monkeypatch, [answer(FEW_PARTITIONS, 100), answer(PARTITIONS, 1000)])


def test_a_trickle_gathers_the_longer_the_more_partitions_it_comes_from(monkeypatch):
    """What was fetched before is sent before the rest."""
    found = pauses_of(monkeypatch, [answer(FEW_PARTITIONS + 6, 100), answer(PARTITIONS, 100)])

    assert [(pytest.approx(6 * GATHER_S), 2), (GATHER_MAX_S, 4)] == found


def test_a_reader_counts_answers_with_records_and_knows_when_a_quota_lets_it_go_on():
    async def served():
        before_s = time.monotonic()
        reader = await read([answer(1, 100), answer(1, 0), answer(2, 100, throttle_ms=5_000)])
        await reader.close()
        return before_s, reader

    before_s, reader = asyncio.run(served())

    assert (reader.responses, len(reader)) == (2, PARTITIONS)
    assert before_s + 5 <= reader.held_until_s <= time.monotonic() + 5


def test_nothing_is_kept_of_the_last_large_answer():
    """An idle connector holds no megabytes: the buffer is unused, so it can change its size."""
    large = answer(1, 200_000)

    async def idle():
        reader = await read([large, answer(0, 0)])
        large.append(0)
        await reader.close()

    asyncio.run(idle())
