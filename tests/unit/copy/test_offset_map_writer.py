"""Offset maps translate correctly after any failure, keep what earlier processes wrote, and never delay copying."""

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
from tests.unit.copy.test_offset_sync_writer import SyncsTopic, run_in_event_loop, span
from tests.unit.core.copying.test_batch_packer import TIMESTAMP_MS
from tests.unit.core.copying.test_partition import STEPS, inject_fault, new_rig

REFUSED = NotAuthorizedError(cluster="west", operation="Read", resource="topic map")
BOUND_S = 300.0
ORDERS = TopicPartition("orders", 2)


class MapTopic:
    """The map topic, compacted on each write. If *error* is set, it refuses requests."""

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

    async def until(self, condition):
        async with asyncio.timeout(BOUND_S):
            while not condition():
                self.changed.clear()
                await self.changed.wait()
                await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch):
    for name, value in (("WRITE_EVERY_S", 0.001), ("RETRY_MIN_S", 0.001), ("RETRY_MAX_S", 0.01)):
        monkeypatch.setattr(module, name, value)


def new_writer(topic, errors=None, *, syncs=None):
    errors = Counter() if errors is None else errors
    maps = OffsetMaps(topic, errors=errors, now_ms=lambda: TIMESTAMP_MS)
    return OffsetSyncWriter(
        syncs or SyncsTopic(), lag_max=100, errors=errors, now_ms=lambda: TIMESTAMP_MS, maps=maps
    )


def finished_copy(topic, *, errors=None):
    """Returns a rig that has copied its whole source without faults, and the writer that received its offset pairs."""
    rig = new_rig(1)
    rig.syncs = new_writer(topic, errors)
    rig.settle()
    return rig, rig.syncs


@run_in_event_loop
async def test_a_map_is_written_at_its_start_with_each_position_and_at_the_end():
    topic = MapTopic()
    rig, writer = finished_copy(topic)
    job = asyncio.create_task(writer.run())
    await topic.until(lambda: topic.maps)
    end, count = rig.source.end, rig.source.end - 100
    assert topic.maps[ORDERS].runs == (Run(100, 0, end, count, count),)
    assert rig.copier.stream is not None
    ordinal = rig.copier.stream.delivered.ordinal
    writer.delivered(rig.copier, span(end, 5)._replace(first=ordinal + 1), count)
    rig.copier.stream.delivered = OffsetPair(end + 4, ordinal + 5, count + 4)
    writer.promote([rig.copier])
    await topic.until(lambda: topic.maps[ORDERS].upstream_end == end + 5)
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)

    count += 5
    assert topic.maps[ORDERS].runs == (Run(100, 0, 100 + count, count, count),)
    writes = topic.writes
    writer.promote([rig.copier])
    await writer.leave([rig.copier])
    assert topic.writes == writes, "an unchanged map is not written again"


@run_in_event_loop
async def test_a_map_that_grows_is_written_before_positions_are_stored():
    """Otherwise groups could not be translated within seconds."""
    topic = MapTopic()
    rig, writer = finished_copy(topic)
    job = asyncio.create_task(writer.run())
    await topic.until(lambda: topic.maps)
    end, count = rig.source.end, rig.source.end - 100

    assert rig.copier.stream is not None
    ordinal = rig.copier.stream.delivered.ordinal
    rig.copier.stream.delivered = OffsetPair(end + 4, ordinal + 5, count + 4)
    writer.delivered(rig.copier, span(end, 5)._replace(first=ordinal + 1), count)

    await topic.until(lambda: topic.maps[ORDERS].upstream_end == end + 5)
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)


@run_in_event_loop
async def test_a_map_continues_over_records_that_a_killed_process_did_not_map():
    topic = MapTopic()
    rig, writer = finished_copy(topic)
    await writer.leave([rig.copier])
    before = topic.maps[ORDERS]
    end, target_end = rig.source.end, rig.source.end - 100

    # The killed process had copied forty more records without writing their offsets. The next process continues after
    # them.
    assert rig.copier.stream is not None
    ordinal = rig.copier.stream.delivered.ordinal + 40
    writer.aligned(
        rig.copier,
        rig.copier.map_stream,
        OffsetPair(end + 39, ordinal, target_end + 39),
        was_cut_off=True,
    )
    writer.delivered(rig.copier, span(end + 40, 5)._replace(first=ordinal + 1), target_end + 40)
    rig.copier.stream.delivered = OffsetPair(end + 44, ordinal + 5, target_end + 44)
    await writer.leave([rig.copier])

    assert before.translate(end) == MappedOffset(target_end, target_end)
    assert topic.maps[ORDERS].runs == (Run(100, 0, end + 45, target_end + 45, target_end + 45),)


@run_in_event_loop
async def test_without_an_earlier_map_ordinals_bound_the_offsets_of_earlier_copies():
    topic = MapTopic()
    rig, _ = finished_copy(topic)
    copier, end = rig.copier, rig.source.end
    assert copier.stream is not None
    writer = new_writer(topic)
    writer.aligned(copier, copier.map_stream, copier.stream.delivered, was_cut_off=True)
    await writer.leave([copier])

    assert topic.maps[ORDERS].translate(end) == MappedOffset(end - 100, end - 100)
    assert topic.maps[ORDERS].translate(end - 1) == MappedOffset(end - 101, end - 100)


@run_in_event_loop
async def test_no_map_is_written_before_the_stored_one_is_read_and_a_refusal_is_reported():
    topic = MapTopic()
    topic.error = REFUSED
    errors: Counter[str] = Counter()
    rig, writer = finished_copy(topic, errors=errors)
    job = asyncio.create_task(writer.run())
    writer.promote([rig.copier])
    await topic.until(lambda: topic.reads > 3)
    (warning,) = writer.warnings
    assert not topic.writes
    topic.error = None
    writer.promote([rig.copier])
    await topic.until(lambda: topic.maps)
    await topic.until(lambda: not writer.warnings) if writer.warnings else None
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)

    assert warning == (
        f"Offsets are translated by offset syncs alone, because topic map of west cannot be used: {REFUSED}"
    )
    assert errors["NotAuthorized"] >= 3


@given(st.integers(0, 2**32), st.booleans())
def test_no_fault_produces_a_map_that_lets_a_group_miss_a_record(seed, other_writers):
    """Faults: refusals, lost responses, kills, leaders without producer state, and records of other writers."""
    rig, topic = new_rig(seed), MapTopic()
    source, leader = rig.source, rig.leader
    rig.syncs = new_writer(topic)
    for step in range(STEPS):
        inject_fault(rig, other_writers=other_writers)
        if step % 20 == 19:
            asyncio.run(rig.syncs.leave([rig.copier]))  # the next writer continues from the map of this one
            rig.syncs = new_writer(topic)
            rig.kill()
    rig.settle()
    asyncio.run(rig.syncs.leave([rig.copier]))

    offsets = iter(range(100, source.end))
    target_offsets = {next(offsets): record.offset for record in leader.copied_records()}
    offset_map = topic.maps[ORDERS]
    translations = [offset_map.translate(group) for group in range(100, source.end + 1)]
    assert translations[-1] == MappedOffset(
        max(target_offsets.values()) + 1, max(target_offsets.values()) + 1
    )
    for group, mapped in zip(range(100, source.end), translations, strict=False):
        if mapped is not None:
            assert mapped.at_least <= target_offsets[group]
            assert all(
                target < mapped.at_most
                for source, target in target_offsets.items()
                if source < group and target >= mapped.at_least
            )


@run_in_event_loop
async def test_a_map_excludes_records_that_the_target_has_lost():
    """The last writer was killed before it updated the map. Offset syncs are corrected too."""
    topic = MapTopic()
    rig, writer = finished_copy(topic)
    copier = rig.copier
    await writer.leave([copier])
    before = topic.maps[ORDERS]
    assert copier.stream is not None
    newest = copier.stream.delivered
    syncs = SyncsTopic()
    writer = new_writer(topic, syncs=syncs)
    topic.lost_from[copier.target] = before.runs[-1].downstream + 10
    copier.target_epoch = 7
    writer.aligned(
        copier,
        copier.map_stream,
        newest._replace(target_offset=newest.target_offset + 5),
        was_cut_off=True,
    )
    await writer.leave([copier])

    offset_map = topic.maps[ORDERS]
    assert offset_map.leader_epoch == before.leader_epoch, "offset syncs do not show the loss yet"
    assert offset_map.translate(105) == MappedOffset(5, 5)
    assert offset_map.translate(112) == MappedOffset(12, 12 + 5)
    assert [(109, 9), (newest.source_offset, newest.target_offset + 5)] == syncs.syncs


@run_in_event_loop
async def test_a_map_gets_the_epoch_after_a_loss_once_offset_syncs_show_it():
    topic, syncs = MapTopic(), SyncsTopic()
    rig, writer = finished_copy(topic)
    copier = rig.copier
    await writer.leave([copier])
    assert copier.stream is not None
    writer = new_writer(topic, syncs=syncs)
    topic.lost_from[copier.target] = 10
    copier.target_epoch = 7
    syncs.error = REFUSED
    writes = topic.writes
    writer.aligned(copier, copier.map_stream, copier.stream.delivered, was_cut_off=True)
    job = asyncio.create_task(writer.run())
    writer.promote([copier])
    await syncs.until(lambda: syncs.attempts)
    writer.promote([copier])
    await topic.until(lambda: topic.writes > writes)
    epoch_before_sync = topic.maps[ORDERS].leader_epoch
    syncs.error = None
    await topic.until(lambda: topic.maps[ORDERS].leader_epoch == 7)
    job.cancel()
    await asyncio.gather(job, return_exceptions=True)

    assert epoch_before_sync == 0
    assert syncs.syncs[0] == (109, 9)
