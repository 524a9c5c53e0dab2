"""Offset syncs are correct after any failure, and a topic that refuses them does not stop the copying."""

import asyncio
from collections import Counter
from functools import wraps

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.connect.mirror_records import decode_offset_sync
from mirrorflow_core.errors import NotAuthorizedError
from mirrorflow_core.offsets.offset_syncs import PENDING_MAX, OffsetSyncStore, Sync
from mirrorflow_core.partitions import OffsetPair, TopicPartition
from mirrorflow_core.writer.stream import Span
from mirrorflow_replicator.copy import offset_sync_writer as module
from mirrorflow_replicator.copy.offset_sync_writer import SYNCS_PER_WRITE_MAX, OffsetSyncWriter
from tests.unit.core.copying.stubs import MAP_STREAM
from tests.unit.core.copying.test_batch_packer import TIMESTAMP_MS
from tests.unit.core.copying.test_partition import STEPS, inject_fault, new_rig

BOUND_S = 300.0


def run_in_event_loop(test):
    """Runs the test in an event loop of its own."""

    @wraps(test)
    def run():
        asyncio.run(test())

    return run


REFUSED = NotAuthorizedError(cluster="east", operation="Write", resource="topic syncs")


class SyncsTopic:
    """The offset-syncs topic. If *error* is set, it refuses requests.

    *requests* has the syncs of each request.
    """

    where = "topic syncs of east"

    def __init__(self):
        self.error = None
        self.attempts = 0
        self.is_lost = False
        self.requests = []
        self.changed = asyncio.Event()

    async def append(self, records):
        self.attempts += 1
        self.changed.set()
        if self.error is not None:
            raise self.error
        self.requests.append([decode_offset_sync(record.key, record.value) for record in records])

    async def has_lost_records(self):
        return self.is_lost

    async def close(self):
        self.changed.set()

    @property
    def syncs(self):
        return [
            (sync.upstream_offset, sync.downstream_offset) for request in self.requests for sync in request
        ]

    async def until(self, condition):
        async with asyncio.timeout(BOUND_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()
                await asyncio.sleep(0)


class Partition:
    """The attributes of a copier that `OffsetSyncWriter` uses."""

    def __init__(self, number=0):
        self.topic, self.partition = self.source = TopicPartition("orders", number)


def span(source_offset, count, offsets=None):
    return Span(0, count, source_offset, source_offset + count, TIMESTAMP_MS, 100, offsets)


def new_writer(topic, lag_max=100):
    return OffsetSyncWriter(topic, lag_max=lag_max, errors=Counter(), now_ms=lambda: TIMESTAMP_MS)


class RunningWriter:
    """Runs a writer, and stops it at the end of the block."""

    def __init__(self, writer):
        self.syncing = writer

    async def __aenter__(self):
        self.job = asyncio.create_task(self.syncing.run())
        return self.syncing

    async def __aexit__(self, *_):
        self.job.cancel()
        await asyncio.gather(self.job, return_exceptions=True)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    monkeypatch.setattr(module, "WRITE_EVERY_S", 0.001)
    monkeypatch.setattr(module, "RETRY_MIN_S", 0.001)
    monkeypatch.setattr(module, "RETRY_MAX_S", 0.01)


@run_in_event_loop
async def test_a_due_sync_is_written_at_once_and_others_wait_for_the_flush():
    topic, copier = SyncsTopic(), Partition()
    async with RunningWriter(new_writer(topic)) as writer:
        writer.delivered(copier, span(0, 1), 7)
        await topic.until(lambda: topic.syncs == [(0, 7)])
        writer.delivered(copier, span(1, 5), 8)
        writer.promote([copier])
        await topic.until(lambda: topic.syncs == [(0, 7), (5, 12)])

    assert writer.written == 2
    assert writer.warnings == ()


@run_in_event_loop
async def test_records_after_gaps_are_synced_with_their_own_offsets():
    topic, copier = SyncsTopic(), Partition()
    async with RunningWriter(new_writer(topic)) as writer:
        writer.delivered(copier, span(3, 4, [3, 4, 9, 11]), 0)
        await topic.until(lambda: topic.syncs)

    assert topic.syncs == [(3, 0), (9, 2), (11, 3)]


@run_in_event_loop
async def test_refused_writes_are_reported_and_retried_without_losing_the_newest_sync():
    topic, copier = SyncsTopic(), Partition()
    topic.error = REFUSED
    errors: Counter[str] = Counter()
    async with RunningWriter(
        OffsetSyncWriter(topic, lag_max=0, errors=errors, now_ms=lambda: TIMESTAMP_MS)
    ) as writer:
        for offset in range(500):
            writer.delivered(copier, span(offset, 1), offset)
        await topic.until(lambda: topic.attempts > 3)
        (warning,) = writer.warnings
        error_count = errors["NotAuthorized"]
        topic.error = None
        await topic.until(lambda: topic.syncs)

    assert warning == f"Offset syncs are not written to topic syncs of east: {REFUSED}"
    assert error_count >= 3
    assert topic.syncs[0] == (0, 0)
    assert topic.syncs[-1] == (499, 499)
    assert len(topic.syncs) <= PENDING_MAX
    assert writer.warnings == ()


@run_in_event_loop
async def test_the_newest_sync_is_written_again_to_a_topic_that_has_lost_it():
    topic, copier = SyncsTopic(), Partition()
    async with RunningWriter(new_writer(topic)) as writer:
        writer.delivered(copier, span(0, 50), 0)
        writer.promote([copier])
        await topic.until(lambda: (49, 49) in topic.syncs)
        topic.requests.clear()
        topic.is_lost = True
        await writer.write_what_is_lost()
        await topic.until(lambda: topic.syncs)

    assert topic.syncs == [(49, 49)]


@run_in_event_loop
async def test_a_request_has_a_bounded_number_of_syncs():
    topic = SyncsTopic()
    writer = new_writer(topic)
    for number in range(2 * SYNCS_PER_WRITE_MAX):
        writer.delivered(Partition(number), span(0, 1), 0)
    async with RunningWriter(writer):
        await topic.until(lambda: len(topic.syncs) == 2 * SYNCS_PER_WRITE_MAX)

    assert [SYNCS_PER_WRITE_MAX] * 2 == [len(request) for request in topic.requests]


@run_in_event_loop
async def test_a_leaving_partition_writes_its_last_sync():
    topic, copier = SyncsTopic(), Partition()
    writer = new_writer(topic)
    writer.delivered(copier, span(0, 50), 0)

    await writer.leave([copier])

    assert topic.syncs == [(0, 0), (49, 49)]
    writer.promote([copier])
    await writer.leave([copier])
    assert len(topic.requests) == 1, "a partition that has left is forgotten"


@run_in_event_loop
async def test_a_partition_leaves_at_once_when_writes_are_refused():
    topic, copier = SyncsTopic(), Partition()
    topic.error = REFUSED
    async with RunningWriter(new_writer(topic)) as writer:
        writer.delivered(copier, span(0, 50), 0)
        await topic.until(lambda: topic.attempts and writer.warnings)
        attempts = topic.attempts
        await writer.leave([copier])

    assert attempts == topic.attempts


@run_in_event_loop
async def test_an_offset_before_the_first_record_is_not_synced():
    topic, copier = SyncsTopic(), Partition()
    writer = new_writer(topic)

    writer.aligned(
        copier, MAP_STREAM, OffsetPair(source_offset=99, ordinal=-1, target_offset=7), was_cut_off=True
    )
    writer.aligned(
        copier, MAP_STREAM, OffsetPair(source_offset=100, ordinal=0, target_offset=-1), was_cut_off=True
    )
    await writer.leave([copier])

    assert not topic.requests


@run_in_event_loop
async def test_the_last_sync_is_written_again_only_if_the_last_writer_was_killed():
    """A writer that left gracefully has written it.

    Its stored position may lie after transaction markers that follow the record.
    """
    for was_cut_off in (True, False):
        topic, copier = SyncsTopic(), Partition()
        writer = new_writer(topic)

        pair = OffsetPair(source_offset=99, ordinal=9, target_offset=49)
        writer.aligned(copier, MAP_STREAM, pair, was_cut_off=was_cut_off)
        await writer.leave([copier])

        assert topic.syncs == ([(99, 49)] if was_cut_off else [])


@given(st.integers(0, 2**32), st.booleans(), st.sampled_from((0, 3, 100)))
def test_each_sync_is_correct_and_no_group_misses_a_record_after_any_fault(seed, other_writers, lag_max):
    """Faults: refusals, lost responses, kills, leaders without producer state, and records of other writers."""
    rig, topic = new_rig(seed), SyncsTopic()
    source, leader = rig.source, rig.leader
    rig.syncs = new_writer(topic, lag_max)
    for step in range(STEPS):
        inject_fault(rig, other_writers=other_writers)
        if step % 20 == 19:
            asyncio.run(rig.syncs.leave([rig.copier]))
            rig.syncs = new_writer(topic, lag_max)
            rig.kill()
    rig.settle()
    asyncio.run(rig.syncs.leave([rig.copier]))

    offsets = iter(range(100, source.end))
    target_offsets = {next(offsets): record.offset for record in leader.copied_records()}
    store = OffsetSyncStore(must_read_to_end=False)
    store.mark_read_to_end()
    for upstream, downstream in topic.syncs:
        assert target_offsets[upstream] == downstream
        store.add(TopicPartition("orders", 2), Sync(upstream, downstream))
    translated = [
        store.translate_downstream(TopicPartition("orders", 2), group) for group in range(100, source.end + 1)
    ]
    translations = [-1 if offset is None else offset for offset in translated]
    assert translations == sorted(translations)
    ends = [*(target_offsets[group] for group in range(100, source.end)), target_offsets[source.end - 1] + 1]
    assert all(offset <= end for offset, end in zip(translations, ends, strict=True))
