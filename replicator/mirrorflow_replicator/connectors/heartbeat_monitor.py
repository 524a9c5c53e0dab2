"""Monitors which heartbeat arrived last in the copy of each heartbeats topic.

    source: `heartbeats`, `B.heartbeats` ── copied like any topic ──> target: `A.heartbeats`, `A.B.heartbeats`

The end of each copy is read every few seconds, independently of the copying: a check where records are copied
would show that something is sent, not that it arrives. What cannot be read keeps its last heartbeat, which
grows old, as it should.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from mirrorflow_core.connect.mirror_records import decode_heartbeat
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import HeartbeatReport
from mirrorflow_core.wire.records import decode as decode_records
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_reader import batches_between
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client import error_codes
from mirrorflow_kafka.client.cluster import Cluster

LOOK_S = 3.0  # heartbeats come each second by default
TOPICS_MAX = 50  # one for each upstream cluster; of more, the first by name are shown
# The last offset may be a transaction marker, or removed by compaction. Heartbeats are 100 bytes, and a batch
# is returned whole.
LOOK_BACK_RECORDS = 32
LOOK_BACK_BYTES = 16 << 10

log = logging.getLogger("mirrorflow.worker")


class Copying(Protocol):
    """The topics that are copied, and their clusters."""

    @property
    def names(self) -> Mapping[str, str]:
        """Source topic -> target topic."""

    @property
    def clusters(self) -> tuple[Cluster, Cluster]:
        """Source and target; connected if there are names."""


class HeartbeatMonitor:
    """Reads the copied heartbeats of one flow.

    `run` ends only by cancellation; everything else is safe at any time.
    """

    def __init__(self, name: str, is_heartbeats_topic: Callable[[str], bool]) -> None:
        self.problem: MirrorFlowError | None = None  # of the last check; None while all is well
        self._name = name
        self._is_heartbeats_topic = is_heartbeats_topic
        self._newest: dict[str, int] = {}  # target topic -> timestamp in ms
        self._read_to: dict[TopicPartition, int] = {}

    def report(self, cluster: str) -> tuple[HeartbeatReport, ...]:
        """Returns the newest heartbeat of each copy on *cluster*."""
        return tuple(
            HeartbeatReport(cluster=cluster, topic=topic, timestamp_ms=timestamp)
            for topic, timestamp in sorted(self._newest.items())
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why the reported heartbeats may not be the newest."""
        return () if self.problem is None else (f"Copied heartbeats cannot be looked at: {self.problem}",)

    async def run(self, copying: Copying) -> None:
        """Polls until cancelled."""
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
        """Reads the ends of *topics* where they have moved. Heartbeats are in partition 0.

        Raises ClusterError; whatever could be read was read by then.
        """
        wanted = [TopicPartition(topic, 0) for topic in topics]
        ends = await admin.list_offsets(cluster, wanted, LATEST)
        moved = {
            one: end.offset
            for one, end in ends.items()
            if not end.error and self._read_to.get(one) != end.offset
        }
        # Never read, or the topic was re-created since.
        unread = [one for one, end in moved.items() if self._read_to.get(one, end + 1) > end]
        starts = await admin.list_offsets(cluster, unread, EARLIEST) if unread else {}
        for one, end in moved.items():
            begin = starts[one].offset if one in starts else self._read_to[one]
            # Forgotten while it is read: if its beginning was deleted meanwhile, the first offset is
            # requested again.
            self._read_to.pop(one, None)
            newest = await _newest(cluster, one, max(begin, end - LOOK_BACK_RECORDS), end)
            self._read_to[one] = end
            if newest >= 0:
                self._newest[one.topic] = newest
        for one, answer in ends.items():
            if not error_codes.is_retriable(answer.error):
                error_codes.raise_for(
                    answer.error, cluster=cluster.alias, request="ListOffsets", subject=one.topic
                )


async def _newest(cluster: Cluster, partition: TopicPartition, start: int, end: int) -> int:
    """Returns the latest timestamp of the heartbeats between two offsets; -1 if there are none."""
    newest = -1
    async for batch, _ in batches_between(cluster, partition, start, end, max_bytes=LOOK_BACK_BYTES):
        if batch.is_control:
            continue
        for record in decode_records(batch):
            try:
                heartbeat = decode_heartbeat(record.key, record.value)
            except ValueError:
                continue  # records of other applications
            newest = max(newest, heartbeat.timestamp_ms)
    return newest
