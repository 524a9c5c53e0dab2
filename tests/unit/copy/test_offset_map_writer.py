"""Maps of offsets tell the truth whatever happens to the copying; what earlier processes knew is kept, and nothing waits for them."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.connect.mirror_records import decode_map, decode_map_key
from mirrorflow_core.errors import NotAuthorizedError
from mirrorflow_core.offsets.offset_map import MappedOffset, Run
from mirrorflow_core.partitions import OffsetPair, TopicPartition
from mirrorflow_replicator.copy import offset_map_writer as module
from mirrorflow_replicator.copy.offset_map_writer import OffsetMaps
from mirrorflow_replicator.copy.offset_sync_writer import OffsetSyncWriter
from tests.unit.copy.test_offset_sync_writer import SyncsTopic, in_loop, span
from tests.unit.core.copying.test_batch_packer import WHEN
from tests.unit.core.copying.test_partition import STEPS, disturb, new_rig

REFUSED = NotAuthorizedError(cluster="west", operation="Read", resource="topic map")
BOUND_S = 300.0
ORDERS = TopicPartition("orders", 2)


class MapTopic:
    """The topic, compacted as soon as it is written; can be made to refuse."""

    where = "topic map of west"

    def __init__(self):
        self.maps = {}
        self.lost_from = {}
        self.reads = self.writes = 0
        self.error = None
        self.changed = asyncio.Event()

    async def read(self, wanted):
        self.reads += 1
        self.changed.set()
        if self.error is not None:
            raise self.error
        return {partition: self.maps[partition] for partition in wanted if partition in self.maps}

    async def ends(self, epochs):
        return {partition: self.lost_from.get(partition, 2**60) for partition in epochs}

    async def has_lost_records(self):
        return False

    async def append(self, records):
        self.writes += 1
        self.changed.set()
        if self.error is not None:
            raise self.error
        self.maps |= {decode_map_key(record.key): decode_map(record.value) for record in records}

    async def until(self, holds):
        async with asyncio.timeout(BOUND_S):
            while not holds():
                self.changed.clear()
                await self.changed.wait()
                await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    for name, value in (("WRITE_EVERY_S", 0.001), ("RETRY_MIN_S", 0.001), ("RETRY_MAX_S", 0.01)):
        monkeypatch.setattr(module, name, value)


def syncing_to(topic, errors=None, *, syncs=None):
    errors = Counter() if errors is None else errors
    maps = OffsetMaps(topic, errors=errors, now_ms=lambda: WHEN)
    return OffsetSyncWriter(syncs or SyncsTopic(), lag_max=100, errors=errors, now_ms=lambda: WHEN, maps=maps)


def settled_copy(topic, *, errors=None):
    """A copier that has copied all of a source undisturbed, and a writer that received its pairs."""
    rig = new_rig(1)
    rig.syncs = syncing_to(topic, errors)
    rig.settle()
    return rig, rig.syncs


@in_loop
async def test_a_map_is_written_when_it_begins_when_positions_are_and_at_the_end():
    topic = MapTopic()
    rig, syncing = settled_copy(topic)
    job = asyncio.create_task(syncing.run())
    await topic.until(lambda: topic.maps)
    end, count = rig.source.end, rig.source.end - 100
    assert topic.maps[ORDERS].runs == (Run(100, 0, end, count, count),)
    assert rig.copier.stream is not None
    ordinal = rig.copier.stream.delivered.ordinal
    syncing.delivered(rig.copier, span(end, 5)._replace(first=ordinal + 1), count)
    rig.copier.stream.delivered = OffsetPair(end + 4, ordinal + 5, count + 4)
    syncing.promote([rig.copier])
    await topic.until(lambda: topic.maps[ORDERS].upstream_end == end + 5)
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)

    count += 5
    assert topic.maps[ORDERS].runs == (Run(100, 0, 100 + count, count, count),)
    writes = topic.writes
    syncing.promote([rig.copier])
    await syncing.leave([rig.copier])
    assert topic.writes == writes, "what has not changed is not written again"


@in_loop
async def test_what_an_earlier_process_knew_is_kept_and_what_it_did_not_write_is_found():
    topic = MapTopic()
    rig, syncing = settled_copy(topic)
    await syncing.leave([rig.copier])
    before = topic.maps[ORDERS]
    end, target_end = rig.source.end, rig.source.end - 100

    # A kill: forty records more were delivered, of which nothing was written. The next one begins behind them.
    assert rig.copier.stream is not None
    ordinal = rig.copier.stream.delivered.ordinal + 40
    syncing.aligned(
        rig.copier,
        rig.copier.map_stream,
        OffsetPair(end + 39, ordinal, target_end + 39),
        was_cut_off=True,
    )
    syncing.delivered(rig.copier, span(end + 40, 5)._replace(first=ordinal + 1), target_end + 40)
    rig.copier.stream.delivered = OffsetPair(end + 44, ordinal + 5, target_end + 44)
    await syncing.leave([rig.copier])

    assert before.translate(end) == MappedOffset(target_end, target_end)
    assert topic.maps[ORDERS].runs == (Run(100, 0, end + 45, target_end + 45, target_end + 45),)


@in_loop
async def test_without_an_earlier_map_it_begins_where_the_copying_continues():
    topic = MapTopic()
    rig, _ = settled_copy(topic)
    copier, end = rig.copier, rig.source.end
    assert copier.stream is not None
    syncing = syncing_to(topic)
    syncing.aligned(copier, copier.map_stream, copier.stream.delivered, was_cut_off=True)
    await syncing.leave([copier])

    assert topic.maps[ORDERS].translate(end) == MappedOffset(end - 100, end - 100)
    assert topic.maps[ORDERS].translate(end - 1) is None


@in_loop
async def test_nothing_is_written_before_what_is_there_was_read_and_the_refusal_is_reported():
    topic = MapTopic()
    topic.error = REFUSED
    errors: Counter[str] = Counter()
    rig, syncing = settled_copy(topic, errors=errors)
    job = asyncio.create_task(syncing.run())
    syncing.promote([rig.copier])
    await topic.until(lambda: topic.reads > 3)
    (warning,) = syncing.warnings
    assert not topic.writes
    topic.error = None
    syncing.promote([rig.copier])
    await topic.until(lambda: topic.maps)
    await topic.until(lambda: not syncing.warnings) if syncing.warnings else None
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)

    assert warning == (
        f"Offsets are translated by offset syncs alone, because topic map of west cannot be used: {REFUSED}"
    )
    assert errors["NotAuthorized"] >= 3


@given(st.integers(0, 2**32), st.booleans())
def test_whatever_happens_to_the_copying_no_map_lets_a_group_miss_a_record(seed, strangers):
    """Refusals, lost answers, kills, leaders that forget, records of others in between."""
    rig, topic = new_rig(seed), MapTopic()
    source, leader = rig.source, rig.leader
    rig.syncs = syncing_to(topic)
    for step in range(STEPS):
        disturb(rig, strangers=strangers)
        if step % 20 == 19:
            asyncio.run(rig.syncs.leave([rig.copier]))  # the next one begins with what it has written
            rig.syncs = syncing_to(topic)
            rig.kill()
    rig.settle()
    asyncio.run(rig.syncs.leave([rig.copier]))

    offsets = iter(range(100, source.end))
    lies = {next(offsets): record.offset for record in leader.ours()}
    known = topic.maps[ORDERS]
    told = [known.translate(group) for group in range(100, source.end + 1)]
    assert told[-1] == MappedOffset(max(lies.values()) + 1, max(lies.values()) + 1)
    for group, place in zip(range(100, source.end), told, strict=False):
        if place is not None:
            assert place.at_least <= lies[group]
            assert all(at < place.at_most for one, at in lies.items() if one < group and at >= place.at_least)


@in_loop
async def test_what_was_written_of_records_that_the_target_has_lost_since_is_not_taken_for_others():
    """Its last writer died before it could write the map anew, and readers of offset syncs are told as well."""
    topic = MapTopic()
    rig, syncing = settled_copy(topic)
    copier = rig.copier
    await syncing.leave([copier])
    before = topic.maps[ORDERS]
    assert copier.stream is not None
    newest = copier.stream.delivered
    syncs = SyncsTopic()
    syncing = syncing_to(topic, syncs=syncs)
    topic.lost_from[copier.target] = before.runs[-1].downstream + 10
    copier.target_epoch = 7
    syncing.aligned(
        copier,
        copier.map_stream,
        newest._replace(target_offset=newest.target_offset + 5),
        was_cut_off=True,
    )
    await syncing.leave([copier])

    known = topic.maps[ORDERS]
    assert known.leader_epoch == before.leader_epoch, "as long as readers of offset syncs do not know"
    assert known.translate(105) == MappedOffset(5, 5)
    assert known.translate(112) == MappedOffset(12, 12 + 5)
    assert [(109, 9), (newest.source_offset, newest.target_offset + 5)] == syncs.syncs


@in_loop
async def test_a_map_has_the_epoch_of_after_a_loss_once_readers_of_offset_syncs_know_of_it():
    topic, syncs = MapTopic(), SyncsTopic()
    rig, syncing = settled_copy(topic)
    copier = rig.copier
    await syncing.leave([copier])
    assert copier.stream is not None
    syncing = syncing_to(topic, syncs=syncs)
    topic.lost_from[copier.target] = 10
    copier.target_epoch = 7
    syncs.error = REFUSED
    writes = topic.writes
    syncing.aligned(copier, copier.map_stream, copier.stream.delivered, was_cut_off=True)
    job = asyncio.create_task(syncing.run())
    syncing.promote([copier])
    await syncs.until(lambda: syncs.attempts)
    syncing.promote([copier])
    await topic.until(lambda: topic.writes > writes)
    unknown = topic.maps[ORDERS].leader_epoch
    syncs.error = None
    await topic.until(lambda: topic.maps[ORDERS].leader_epoch == 7)
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)

    assert unknown == 0
    assert syncs.syncs[0] == (109, 9)
