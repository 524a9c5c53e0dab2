"""Offset syncs tell the truth whatever happens to the copying, and a topic that cannot be written disturbs nothing."""

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
from tests.unit.core.copying.test_batch_packer import WHEN
from tests.unit.core.copying.test_partition import STEPS, disturb, new_rig

BOUND_S = 300.0


def in_loop(test):
    """The test, run by a loop of its own."""

    @wraps(test)
    def run():
        asyncio.run(test())

    return run


REFUSED = NotAuthorizedError(cluster="east", operation="Write", resource="topic syncs")


class SyncsTopic:
    """A topic that can be made to refuse; holds what was written, a list for each request."""

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
        return [(one.upstream_offset, one.downstream_offset) for request in self.requests for one in request]

    async def until(self, holds):
        async with asyncio.timeout(BOUND_S):
            while not holds():
                self.changed.clear()
                await self.changed.wait()
                await asyncio.sleep(0)


class Partition:
    """What a copier is to `OffsetSyncWriter`."""

    def __init__(self, number=0):
        self.topic, self.partition = self.source = TopicPartition("orders", number)


def span(source_offset, count, offsets=None):
    return Span(0, count, source_offset, source_offset + count, WHEN, 100, offsets)


def syncing_to(topic, lag_max=100):
    return OffsetSyncWriter(topic, lag_max=lag_max, errors=Counter(), now_ms=lambda: WHEN)


class Run:
    """Syncing at work, and stopped at the end."""

    def __init__(self, syncing):
        self.syncing = syncing

    async def __aenter__(self):
        self.job = asyncio.create_task(self.syncing.run())
        return self.syncing

    async def __aexit__(self, *_):
        self.job.cancel()
        await asyncio.gather(self.job, return_exceptions=True)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(module, "WRITE_EVERY_S", 0.001)
    monkeypatch.setattr(module, "RETRY_MIN_S", 0.001)
    monkeypatch.setattr(module, "RETRY_MAX_S", 0.01)


@in_loop
async def test_what_is_due_is_written_and_what_is_not_waits_for_the_flush():
    topic, copier = SyncsTopic(), Partition()
    async with Run(syncing_to(topic)) as syncing:
        syncing.delivered(copier, span(0, 1), 7)
        await topic.until(lambda: topic.syncs == [(0, 7)])
        syncing.delivered(copier, span(1, 5), 8)
        syncing.promote([copier])
        await topic.until(lambda: topic.syncs == [(0, 7), (5, 12)])

    assert syncing.written == 2
    assert syncing.warnings == ()


@in_loop
async def test_records_with_gaps_are_synced_by_their_own_offsets():
    topic, copier = SyncsTopic(), Partition()
    async with Run(syncing_to(topic)) as syncing:
        syncing.delivered(copier, span(3, 4, [3, 4, 9, 11]), 0)
        await topic.until(lambda: topic.syncs)

    assert topic.syncs == [(3, 0), (9, 2), (11, 3)]


@in_loop
async def test_a_topic_that_refuses_is_reported_counted_and_tried_again_and_nothing_is_lost_when_it_is_mended():
    topic, copier = SyncsTopic(), Partition()
    topic.error = REFUSED
    errors: Counter[str] = Counter()
    async with Run(OffsetSyncWriter(topic, lag_max=0, errors=errors, now_ms=lambda: WHEN)) as syncing:
        for at in range(500):
            syncing.delivered(copier, span(at, 1), at)
        await topic.until(lambda: topic.attempts > 3)
        (warning,) = syncing.warnings
        counted = errors["NotAuthorized"]
        topic.error = None
        await topic.until(lambda: topic.syncs)

    assert warning == f"Offset syncs are not written to topic syncs of east: {REFUSED}"
    assert counted >= 3
    assert topic.syncs[0] == (0, 0)
    assert topic.syncs[-1] == (499, 499)
    assert len(topic.syncs) <= PENDING_MAX
    assert syncing.warnings == ()


@in_loop
async def test_the_newest_sync_is_written_again_to_a_topic_that_has_lost_it():
    topic, copier = SyncsTopic(), Partition()
    async with Run(syncing_to(topic)) as syncing:
        syncing.delivered(copier, span(0, 50), 0)
        syncing.promote([copier])
        await topic.until(lambda: (49, 49) in topic.syncs)
        topic.requests.clear()
        topic.is_lost = True
        await syncing.write_what_is_lost()
        await topic.until(lambda: topic.syncs)

    assert topic.syncs == [(49, 49)]


@in_loop
async def test_a_request_holds_a_bounded_number_of_syncs():
    topic = SyncsTopic()
    syncing = syncing_to(topic)
    for number in range(2 * SYNCS_PER_WRITE_MAX):
        syncing.delivered(Partition(number), span(0, 1), 0)
    async with Run(syncing):
        await topic.until(lambda: len(topic.syncs) == 2 * SYNCS_PER_WRITE_MAX)

    assert [SYNCS_PER_WRITE_MAX] * 2 == [len(one) for one in topic.requests]


@in_loop
async def test_a_partition_that_leaves_is_written_to_the_end_first():
    topic, copier = SyncsTopic(), Partition()
    syncing = syncing_to(topic)
    syncing.delivered(copier, span(0, 50), 0)

    await syncing.leave([copier])

    assert topic.syncs == [(0, 0), (49, 49)]
    syncing.promote([copier])
    await syncing.leave([copier])
    assert len(topic.requests) == 1, "it is forgotten"


@in_loop
async def test_a_partition_leaves_at_once_where_nothing_can_be_written():
    topic, copier = SyncsTopic(), Partition()
    topic.error = REFUSED
    async with Run(syncing_to(topic)) as syncing:
        syncing.delivered(copier, span(0, 50), 0)
        await topic.until(lambda: topic.attempts and syncing.warnings)
        attempts = topic.attempts
        await syncing.leave([copier])

    assert attempts == topic.attempts


@in_loop
async def test_the_place_before_the_first_record_is_no_pair():
    topic, copier = SyncsTopic(), Partition()
    syncing = syncing_to(topic)

    syncing.aligned(
        copier, MAP_STREAM, OffsetPair(source_offset=99, ordinal=-1, target_offset=7), was_cut_off=True
    )
    syncing.aligned(
        copier, MAP_STREAM, OffsetPair(source_offset=100, ordinal=0, target_offset=-1), was_cut_off=True
    )
    await syncing.leave([copier])

    assert not topic.requests


@in_loop
async def test_the_last_sync_of_a_writer_that_has_not_left_is_written_again():
    """One that has left has written it, and its position may lie behind markers that follow the record."""
    for was_cut_off in (True, False):
        topic, copier = SyncsTopic(), Partition()
        syncing = syncing_to(topic)

        pair = OffsetPair(source_offset=99, ordinal=9, target_offset=49)
        syncing.aligned(copier, MAP_STREAM, pair, was_cut_off=was_cut_off)
        await syncing.leave([copier])

        assert topic.syncs == ([(99, 49)] if was_cut_off else [])


@given(st.integers(0, 2**32), st.booleans(), st.sampled_from((0, 3, 100)))
def test_whatever_happens_to_the_copying_each_sync_is_true_and_no_group_misses_a_record(
    seed, strangers, lag_max
):
    """Refusals, lost answers, kills, leaders that forget, records of others in between."""
    rig, topic = new_rig(seed), SyncsTopic()
    source, leader = rig.source, rig.leader
    rig.syncs = syncing_to(topic, lag_max)
    for step in range(STEPS):
        disturb(rig, strangers=strangers)
        if step % 20 == 19:
            asyncio.run(rig.syncs.leave([rig.copier]))
            rig.syncs = syncing_to(topic, lag_max)
            rig.kill()
    rig.settle()
    asyncio.run(rig.syncs.leave([rig.copier]))

    offsets = iter(range(100, source.end))
    lies = {next(offsets): record.offset for record in leader.ours()}
    store = OffsetSyncStore(must_read_to_end=False)
    store.mark_read_to_end()
    for upstream, downstream in topic.syncs:
        assert lies[upstream] == downstream
        store.add(TopicPartition("orders", 2), Sync(upstream, downstream))
    translations = [
        store.translate_downstream(TopicPartition("orders", 2), group) for group in range(100, source.end + 1)
    ]
    told = [-1 if one is None else one for one in translations]
    assert told == sorted(told)
    ends = [*(lies[group] for group in range(100, source.end)), lies[source.end - 1] + 1]
    assert all(at <= end for at, end in zip(told, ends, strict=True))
