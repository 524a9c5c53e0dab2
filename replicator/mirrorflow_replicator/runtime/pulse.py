"""The flow's pulse: which heartbeat was the newest to arrive in the copy of each heartbeat topic.

    source: `heartbeats`, `B.heartbeats` ── copied like any topic ──> target: `A.heartbeats`, `A.B.heartbeats` <── looked at here

The end of each copy is looked at every few seconds, apart from all copying: a pulse that was taken where records are
copied would beat as long as something was sent, not as long as something arrives. What cannot be looked at keeps its
last heartbeat, which grows old, as it should.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from mirrorflow_replicator.connect.mirror_records import decode_heartbeat
from mirrorflow_replicator.errors import MirrorFlowError
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.flow.report import HeartbeatReport
from mirrorflow_replicator.kafka import admin, codes
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.witnesses import EARLIEST, LATEST, batches_between
from mirrorflow_replicator.wire.records import decode as decode_records

LOOK_S = 3.0  # heartbeats come each second by default
TOPICS_MAX = 50  # one for each cluster upstream; with more, those of the first names are shown
# The very last offset may be a transaction's marker, or gone by compaction. Heartbeats are 100 bytes, a batch comes whole.
LOOK_BACK_RECORDS = 32
LOOK_BACK_BYTES = 16 << 10

log = logging.getLogger("mirrorflow.worker")


class Copying(Protocol):
    """What is copied, and where to."""

    @property
    def names(self) -> Mapping[str, str]:
        """Source topic -> target topic."""

    @property
    def clusters(self) -> tuple[Cluster, Cluster]:
        """Source and target; connected where there are names."""


class Pulse:
    """See the module. `run` ends only by cancellation; everything else is always safe to ask."""

    def __init__(self, name: str, is_heartbeats_topic: Callable[[str], bool]) -> None:
        self.problem: MirrorFlowError | None = None  # of the last look; None while all is well
        self._name = name
        self._is_heartbeats_topic = is_heartbeats_topic
        self._newest: dict[str, int] = {}  # target topic -> timestamp in ms
        self._read_to: dict[TopicPartition, int] = {}

    def report(self, cluster: str) -> tuple[HeartbeatReport, ...]:
        """The newest heartbeat of each copy on *cluster*."""
        return tuple(
            HeartbeatReport(cluster=cluster, topic=topic, timestamp_ms=timestamp)
            for topic, timestamp in sorted(self._newest.items())
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why the heartbeats shown may not be the newest."""
        return () if self.problem is None else (f"Copied heartbeats cannot be looked at: {self.problem}",)

    async def run(self, copying: Copying) -> None:
        """Look until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            copies = sorted(
                target for source, target in copying.names.items() if self._is_heartbeats_topic(source)
            )[:TOPICS_MAX]
            for gone in self._newest.keys() - set(copies):
                del self._newest[gone]
            if not copies:
                continue
            try:
                await self.look(copying.clusters[1], copies)
            except MirrorFlowError as error:
                if self.problem is None or self.problem.reason != error.reason:
                    log.warning("%s: copied heartbeats cannot be looked at: %s", self._name, error)
                self.problem = error
            else:
                self.problem = None

    async def look(self, cluster: Cluster, topics: Sequence[str]) -> None:
        """Read the ends of *topics* where they have moved. Heartbeats are in partition 0.

        Raises ClusterError; what could be read has been read then.
        """
        wanted = [TopicPartition(topic, 0) for topic in topics]
        ends = await admin.list_offsets(cluster, wanted, LATEST)
        moved = {
            one: end.offset
            for one, end in ends.items()
            if not end.error and self._read_to.get(one) != end.offset
        }
        # Never read, or the topic was made anew since.
        unread = [one for one, end in moved.items() if self._read_to.get(one, end + 1) > end]
        starts = await admin.list_offsets(cluster, unread, EARLIEST) if unread else {}
        for one, end in moved.items():
            begin = starts[one].offset if one in starts else self._read_to[one]
            # Forgotten while it is read: if its beginning was deleted meanwhile, it is asked for again.
            self._read_to.pop(one, None)
            newest = await _newest(cluster, one, max(begin, end - LOOK_BACK_RECORDS), end)
            self._read_to[one] = end
            if newest >= 0:
                self._newest[one.topic] = newest
        for one, answer in ends.items():
            if not codes.is_retriable(answer.error):
                codes.raise_for(answer.error, cluster=cluster.alias, request="ListOffsets", subject=one.topic)


async def _newest(cluster: Cluster, partition: TopicPartition, start: int, end: int) -> int:
    """The latest timestamp of the heartbeats between two offsets; -1: there is none."""
    newest = -1
    async for batch, _ in batches_between(cluster, partition, start, end, max_bytes=LOOK_BACK_BYTES):
        if batch.is_control:
            continue
        for record in decode_records(batch):
            try:
                heartbeat = decode_heartbeat(record.key, record.value)
            except ValueError:
                continue  # whatever else someone has written there
            newest = max(newest, heartbeat.timestamp_ms)
    return newest
