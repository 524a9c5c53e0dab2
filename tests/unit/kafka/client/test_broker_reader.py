"""A reader gathers slow traffic of many partitions, does not delay other readers, and keeps no old responses."""

import asyncio
import time
import uuid
from collections import deque
from typing import Any, cast

import pytest

from mirrorflow_core.wire import fetch
from mirrorflow_core.wire.fetch import FetchFrom
from mirrorflow_kafka.client.broker_reader import (
    FEW_PARTITIONS,
    GATHER_MAX_S,
    GATHER_S,
    RESPONSE_BYTES_MIN,
    BrokerReader,
)
from mirrorflow_kafka.client.cluster import Cluster
from tests.unit.core.wire.messages import FetchResponse

TOPIC, TOPIC_ID = "orders", bytes(15) + b"\x01"
PARTITIONS = 100
VERSION = 13


def response_with(partitions: int, size_bytes: int, *, throttle_ms: int = 0) -> bytearray:
    """A fetch response with *size_bytes* of records for each of the first *partitions* partitions."""
    return response_of(dict.fromkeys(range(partitions), size_bytes), throttle_ms=throttle_ms)


def response_of(size_bytes: dict[int, int], *, session_id: int = 7, throttle_ms: int = 0) -> bytearray:
    """A fetch response with *size_bytes* of records by partition number, in this order."""
    parts = FetchResponse.FetchableTopicResponse
    return bytearray(
        FetchResponse(
            version=VERSION,
            throttle_time_ms=throttle_ms,
            error_code=0,
            session_id=session_id,
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
                            records=bytes(size),
                        )
                        for number, size in size_bytes.items()
                    ],
                )
            ]
            if size_bytes
            else [],
        ).encode(version=VERSION)
    )


class Broker:
    """A cluster and connection that returns the given responses, and then none."""

    alias, address, is_retired = "east", "east:9092", False
    versions = {1: (0, VERSION)}  # noqa: RUF012 it is read only

    def __init__(self, responses):
        self.responses = deque(responses)
        self.is_exhausted = asyncio.Event()

    async def connection(self, node_id, *, purpose):
        return self

    async def call(self, request, *, timeout_s):
        """Sends the request whose round trip is measured."""

    def throttled(self, throttle_ms):
        """Does nothing, because no response is throttled."""

    def send(self, api_key, version, parts, *, flexible):
        response = asyncio.get_running_loop().create_future()
        if self.responses:
            response.set_result(memoryview(self.responses.popleft()))
        else:
            self.is_exhausted.set()
        return response


class ReadingPartition:
    """A partition that always fetches and copies its records at once."""

    def next_fetch(self):
        return FetchFrom(0)

    def may_fetch_soon(self):
        return False

    def fetched(self, part, asked_offset):
        """Drops the records."""


class SessionlessBroker(Broker):
    """A broker without fetch sessions: it responds to as many fetches, each with records of the first partitions of the request."""

    def __init__(self, fetches, served, monkeypatch):
        super().__init__(range(fetches))
        self.served = served
        monkeypatch.setattr(fetch, "fetch_request", self.fetch_request)

    def fetch_request(self, version, request, **_):
        self.requested = [key.partition for key, _ in request.partitions]
        return b""

    def send(self, api_key, version, parts, *, flexible):
        if self.responses:
            sizes = {number: 100 * (place < self.served) for place, number in enumerate(self.requested)}
            self.responses[0] = response_of(sizes, session_id=0)
        return super().send(api_key, version, parts, flexible=flexible)


async def room(response_bytes, largest_bytes):
    """Returns room for any response."""


async def read(responses, *, after=lambda: None, response_bytes_max=lambda: None):
    """Has a reader receive all of *responses*."""

    broker = Broker(responses)
    reader = BrokerReader(
        cast("Cluster", broker), 1, read_committed=False, rack="", room=room, response_bytes_max=response_bytes_max, after=after,
        on_error=lambda error: pytest.fail(str(error)),
    )  # fmt: skip
    for number in range(PARTITIONS):
        reader.add(TOPIC, number, TOPIC_ID, ReadingPartition())
    async with asyncio.timeout(300):
        await broker.is_exhausted.wait()
    return reader


def pauses_of(monkeypatch, responses):
    """Returns the pauses of the reader after each response, with the number of pumps before each pause."""
    pauses, pumped, sleep = [], [0], asyncio.sleep

    async def pause(seconds):
        pauses.append((seconds, pumped[0]))
        await sleep(0)

    def after():
        pumped[0] += 1

    async def read_all():
        monkeypatch.setattr(asyncio, "sleep", pause)
        reader = await read(responses, after=after)
        await reader.close()

    asyncio.run(read_all())
    return pauses


def test_few_partitions_and_large_responses_are_not_delayed(monkeypatch):
    """For few partitions latency matters; for large responses throughput matters."""
    assert [] == pauses_of(monkeypatch, [response_with(FEW_PARTITIONS, 100), response_with(PARTITIONS, 1000)])


def test_the_pause_after_small_responses_grows_with_the_number_of_partitions(monkeypatch):
    """Fetched records are sent before the pause."""
    pauses = pauses_of(monkeypatch, [response_with(FEW_PARTITIONS + 6, 100), response_with(PARTITIONS, 100)])

    assert [(pytest.approx(6 * GATHER_S), 2), (GATHER_MAX_S, 4)] == pauses


def test_a_reader_counts_responses_with_records_and_stores_the_end_of_a_throttle_time():
    async def read_all():
        before_s = time.monotonic()
        reader = await read(
            [response_with(1, 100), response_with(1, 0), response_with(2, 100, throttle_ms=5_000)]
        )
        await reader.close()
        return before_s, reader

    before_s, reader = asyncio.run(read_all())

    assert (reader.responses, len(reader)) == (2, PARTITIONS)
    assert before_s + 5 <= reader.held_until_s <= time.monotonic() + 5


@pytest.mark.parametrize(
    ("most", "requested"),
    [(None, RESPONSE_BYTES_MIN), (40 << 10, 40 << 10), (1 << 40, RESPONSE_BYTES_MIN)],
)
def test_a_fetch_requests_no_more_bytes_than_the_rate_limit_allows(monkeypatch, most, requested):
    sizes, built = [], fetch.fetch_request

    def fetch_request(*arguments, **given):
        sizes.append(given["max_bytes"])
        return built(*arguments, **given)

    async def read_one():
        monkeypatch.setattr(fetch, "fetch_request", fetch_request)
        reader = await read([response_with(1, 100)], response_bytes_max=lambda: most)
        await reader.close()

    asyncio.run(read_one())

    assert {requested} == set(sizes)


def test_the_last_large_response_is_released():
    """An idle connector must not keep megabytes. Only an unreferenced buffer can be resized."""
    large = response_with(1, 200_000)

    async def idle():
        reader = await read([large, response_with(0, 0)])
        large.append(0)
        await reader.close()

    asyncio.run(idle())


@pytest.mark.parametrize("wakes", [False, True])
def test_without_fetch_sessions_no_partition_starves(monkeypatch, *, wakes):
    """The broker fills a response in the order of the request. A partition with records may be changed meanwhile."""
    fetches, partitions, served = 25, 20, 4
    counts = dict.fromkeys(range(partitions), 0)

    class CountingPartition(ReadingPartition):
        def __init__(self, reader, number):
            self.reader, self.number = reader, number

        def fetched(self, part, asked_offset):
            if len(part.records):
                counts[self.number] += 1
                if wakes:
                    self.reader.changed(TOPIC, self.number)

    async def read_all():
        broker = SessionlessBroker(fetches, served, monkeypatch)
        reader = BrokerReader(
            cast("Cluster", broker), 1, read_committed=False, rack="", room=room, response_bytes_max=lambda: None,
            after=lambda: None, on_error=lambda error: pytest.fail(str(error)),
        )  # fmt: skip
        for number in range(partitions):
            reader.add(TOPIC, number, TOPIC_ID, CountingPartition(reader, number))
        async with asyncio.timeout(300):
            await broker.is_exhausted.wait()
        await reader.close()

    asyncio.run(read_all())

    assert counts == dict.fromkeys(range(partitions), fetches * served // partitions)


def test_an_unexpected_error_of_a_reader_is_reported():
    """The handler of a task process ends it.."""

    def after():
        raise AssertionError("a bug")

    async def read_one():
        contexts: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        asyncio.get_running_loop().set_exception_handler(lambda _, context: contexts.put_nowait(context))
        reader = BrokerReader(
            cast("Cluster", Broker([])), 1, read_committed=False, rack="", room=room, response_bytes_max=lambda: None, after=after,
            on_error=lambda error: pytest.fail(str(error)),
        )  # fmt: skip
        reader.add(TOPIC, 0, TOPIC_ID, ReadingPartition())
        async with asyncio.timeout(300):
            return await contexts.get()

    context = asyncio.run(read_one())

    assert str(context["exception"]) == "a bug"
    assert context["message"] == "the task read-east-1 failed"
