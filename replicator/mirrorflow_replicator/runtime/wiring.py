"""Which reader and which pipe serve a lane: by the leaders that both clusters' metadata name.

Wires lanes when they come, again whenever a broker says that it is not the leader (or no longer knows the topic) or cannot
be reached, and from time to time without being asked. A topic that stays unknown is gone, and its lanes say so.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence

from mirrorflow_replicator.errors import MirrorFlowError, TopicGoneError
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.metadata import NO_TOPIC_ID, TopicMetadata
from mirrorflow_replicator.kafka.source import SourceReader
from mirrorflow_replicator.kafka.target import TargetWriter
from mirrorflow_replicator.runtime.lane import NOT_ASKED, Lane
from mirrorflow_replicator.runtime.surroundings import State

METADATA_S = 60.0  # leaders are looked up anew even if nobody complained (Java: 5 minutes)
AGAIN_S = 0.25  # while some lane has no leader
GONE_S = 20.0  # a topic that is unknown for so long is gone: brokers forget for a moment after an election


class Wiring:
    """See the module."""

    def __init__(
        self,
        *,
        source: Cluster,
        target: Cluster,
        reader: Callable[[int], SourceReader],
        writer: Callable[[int], TargetWriter],
        on_error: Callable[[MirrorFlowError], None],
    ) -> None:
        self.readers: dict[int, SourceReader] = {}
        self.writers: dict[int, TargetWriter] = {}
        self._source = source
        self._target = target
        self._new_reader = reader
        self._new_writer = writer
        self._on_error = on_error
        self._lanes: dict[Lane, None] = {}
        self._stale: dict[Lane, float] = {}  # since when
        self._look = asyncio.Event()

    async def add(self, lanes: Sequence[Lane]) -> None:
        """Learn the leaders of *lanes* and wire them."""
        self._lanes.update(dict.fromkeys(lanes))
        await self._refresh(lanes)

    def remove(self, lane: Lane) -> None:
        """*lane* is not ours any more."""
        self._lanes.pop(lane, None)
        self._stale.pop(lane, None)
        if lane.reader is not None:
            lane.reader.remove(lane.topic, lane.partition)
        if lane.pipe is not None:
            lane.pipe.remove(lane)

    def stale(self, lane: Lane) -> None:
        """A broker does not lead *lane* any more."""
        self._stale.setdefault(lane, time.monotonic())
        self._look.set()

    def reader_lost(self, node_id: int) -> None:
        """The connection to a source broker is gone: look whether another one leads its partitions now."""
        reader = self.readers.get(node_id)
        for lane in self._lanes:
            if lane.reader is reader and lane.state is not State.STOPPED:
                self.stale(lane)

    def writer_lost(self, node_id: int) -> None:
        """A target broker cannot be reached: look whether another one leads its partitions, until it can or one does.

        While a dead broker is still believed alive its partitions are its own; nobody else tells when that ends.
        """
        writer = self.writers[node_id]
        for lane in self._lanes:
            if lane.pipe in writer.pipes and lane.state is not State.STOPPED:
                self.stale(lane)

    def pump(self) -> None:
        """Let every pipe send what is ready."""
        for writer in self.writers.values():
            for pipe in writer.pipes:
                pipe.pump()

    @property
    def throttle_ms(self) -> int:
        """What brokers made us wait so far."""
        readers = sum(reader.throttle_ms for reader in self.readers.values())
        return readers + sum(writer.throttle_ms for writer in self.writers.values())

    async def run(self) -> None:
        """Look leaders up until cancelled."""
        looked_at = time.monotonic()
        while True:
            pause_s = AGAIN_S if self._stale else METADATA_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._look.wait()
            self._look.clear()
            now = time.monotonic()
            wanted = list(self._lanes) if now - looked_at > METADATA_S else list(self._stale)
            looked_at = now if len(wanted) == len(self._lanes) else looked_at
            try:
                await self._refresh(wanted)
            except MirrorFlowError as error:
                self._on_error(error)

    async def close(self) -> None:
        """Stop all readers and writers."""
        await asyncio.gather(*(reader.close() for reader in self.readers.values()))
        await asyncio.gather(*(writer.close() for writer in self.writers.values()))

    async def _refresh(self, lanes: Sequence[Lane]) -> None:
        if not lanes:
            return
        await asyncio.gather(
            self._source.refresh({lane.topic for lane in lanes}),
            self._target.refresh({lane.target_topic for lane in lanes}),
        )
        for lane in lanes:
            if lane in self._lanes:
                self._wire(lane)

    def _wire(self, lane: Lane) -> None:
        reading, writing = self._source.leader(*lane.source), self._target.leader(*lane.target)
        if reading is None or writing is None:
            self._unknown(lane)
        else:
            self._stale.pop(lane, None)
        if reading is not None:
            found = self._source.metadata.topics[lane.topic]
            if _is_another(found, lane):
                # Another topic of the same name: not one record of it may be taken for the old one's.
                lane.doubt()
            epoch = found.partitions[lane.partition].leader_epoch
            is_same = lane.reader is self.readers.get(reading) and lane.leader_epoch == epoch
            lane.leader_epoch = epoch
            if not is_same or lane.reader is None or _is_another(found, lane):
                self.read_at(lane, reading)
        if writing is not None:
            self._write_at(lane, writing)

    def _unknown(self, lane: Lane) -> None:
        now = time.monotonic()
        since = self._stale.setdefault(lane, now)
        if lane.state is State.STOPPED:
            # Whoever tries it again will ask for its leaders.
            del self._stale[lane]
            return
        if now - since < GONE_S:
            return
        for cluster, topic in ((self._source, lane.topic), (self._target, lane.target_topic)):
            found = cluster.metadata.topics.get(topic)
            if found is None or found.error:
                lane.stop(TopicGoneError(topic=lane.topic, partition=lane.partition, cluster=cluster.alias))

    def read_at(self, lane: Lane, node_id: int) -> None:
        """Read *lane* from that broker."""
        reader = self.readers.get(node_id)
        if reader is None:
            reader = self.readers[node_id] = self._new_reader(node_id)
        topic_id = self._source.metadata.topics[lane.topic].topic_id.bytes
        if lane.reader is not None and lane.reader is not reader:
            lane.reader.remove(lane.topic, lane.partition)
        lane.reader = reader
        reader.add(lane.topic, lane.partition, topic_id, lane)

    def _write_at(self, lane: Lane, node_id: int) -> None:
        writer = self.writers.get(node_id)
        if writer is None:
            writer = self.writers[node_id] = self._new_writer(node_id)
        pipe = writer.pipe_for(lane.target_topic, lane.partition)
        if pipe is lane.pipe:
            epoch = self._target.metadata.leader_epoch(*lane.target)
            if lane.target_epoch not in {NOT_ASKED, epoch}:
                lane.doubt()  # the same leader was elected again: it may have come back with less
            return
        if lane.pipe is not None:
            lane.pipe.remove(lane)
        lane.pipe = pipe
        lane.doubt()
        pipe.add(lane)


def _is_another(found: TopicMetadata, lane: Lane) -> bool:
    known = "" if lane.anchor is None else lane.anchor.source_topic_id
    return bool(known) and found.topic_id != NO_TOPIC_ID and str(found.topic_id) != known
