"""Connects each partition copier to the brokers that lead its partition.

The leaders are those in both clusters' metadata. Routes are set when a partition copier is added, again when
a broker does not lead the partition, no longer knows the topic or cannot be reached, and from time to time
anyway. If a topic stays unknown, it is gone, and its partition copiers stop with that error.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Sequence

from mirrorflow_core.copying.partition import CopierState, PartitionCopier
from mirrorflow_core.errors import MirrorFlowError, TopicGoneError
from mirrorflow_core.partitions import UNKNOWN
from mirrorflow_kafka.client.broker_reader import BrokerReader
from mirrorflow_kafka.client.broker_writer import BrokerWriter
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.copy.partition_dispatch import PartitionDispatch

METADATA_S = 60.0  # leaders are looked up again even without an error (Java: metadata.max.age.ms, 5 minutes)
AGAIN_S = 0.25  # while any partition has no leader
# A topic unknown for so long is gone: brokers do not know a topic for a moment after an election.
GONE_S = 20.0


class BrokerRoutes:
    """The readers and writers of one task, and which of them serves each partition copier."""

    def __init__(
        self,
        *,
        source: Cluster,
        target: Cluster,
        reader: Callable[[int], BrokerReader],
        writer: Callable[[int], BrokerWriter],
        on_error: Callable[[MirrorFlowError], None],
    ) -> None:
        self.readers: dict[int, BrokerReader] = {}
        self.writers: dict[int, BrokerWriter] = {}
        self._source = source
        self._target = target
        self._new_reader = reader
        self._new_writer = writer
        self._on_error = on_error
        self._dispatches: dict[PartitionCopier, PartitionDispatch] = {}
        self._stale: dict[PartitionCopier, float] = {}  # since when
        self._look = asyncio.Event()

    def add(self, dispatch: PartitionDispatch) -> None:
        """Adds a partition of this task; `connect` connects it."""
        self._dispatches[dispatch.copier] = dispatch

    async def connect(self, copiers: Sequence[PartitionCopier]) -> None:
        """Looks up the leaders of *copiers* and connects them. Raises ClusterError."""
        await self._refresh(copiers)

    def remove(self, copier: PartitionCopier) -> None:
        """Disconnects *copier*, which no longer belongs to this task."""
        self._stale.pop(copier, None)
        if (dispatch := self._dispatches.pop(copier, None)) is not None:
            dispatch.disconnect()

    def dispatch_of(self, copier: PartitionCopier) -> PartitionDispatch | None:
        """Returns the reader and the connection of *copier*; None if it has none."""
        return self._dispatches.get(copier)

    def stale(self, copier: PartitionCopier) -> None:
        """Looks up the leaders of *copier* again, because a broker does not lead it any more."""
        self._stale.setdefault(copier, time.monotonic())
        self._look.set()

    def reader_lost(self, node_id: int, error: MirrorFlowError) -> None:
        """Looks up the leaders of the partitions read from a source broker that cannot be reached."""
        reader = self.readers.get(node_id)
        for copier, dispatch in self._dispatches.items():
            if dispatch.reader is reader:
                dispatch.apply(copier.fetch_failed(error))

    def writer_lost(self, node_id: int, error: MirrorFlowError) -> None:
        """Looks up the leaders of the partitions written to a target broker that cannot be reached.

        It repeats until the broker can be reached or another one leads: while the cluster still believes a
        dead broker alive, the broker still leads its partitions, and nothing else reports when that ends.
        """
        writer = self.writers[node_id]
        for copier, dispatch in self._dispatches.items():
            if dispatch.connection in writer.connections:
                dispatch.apply(copier.write_failed(error))

    def pump(self) -> None:
        """Lets every connection send what is ready."""
        for writer in self.writers.values():
            for connection in writer.connections:
                connection.pump()

    @property
    def without_leader(self) -> Collection[PartitionCopier]:
        """The partition copiers whose leader, on either side, is being looked up."""
        return self._stale

    @property
    def throttle_ms(self) -> int:
        """How long brokers have throttled this task so far, in ms: copying, and reading ranges of logs."""
        readers = sum(reader.throttle_ms for reader in self.readers.values())
        writers = sum(writer.throttle_ms for writer in self.writers.values())
        return readers + writers + self._source.throttle_ms + self._target.throttle_ms

    async def run(self) -> None:
        """Looks up leaders until cancelled."""
        looked_at = time.monotonic()
        while True:
            pause_s = AGAIN_S if self._stale else METADATA_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._look.wait()
            self._look.clear()
            now = time.monotonic()
            stale = list(self._dispatches) if now - looked_at > METADATA_S else list(self._stale)
            looked_at = now if len(stale) == len(self._dispatches) else looked_at
            try:
                await self._refresh(stale)
            except MirrorFlowError as error:
                self._on_error(error)

    async def close(self) -> None:
        """Closes all readers and writers."""
        await asyncio.gather(*(reader.close() for reader in self.readers.values()))
        await asyncio.gather(*(writer.close() for writer in self.writers.values()))

    async def _refresh(self, copiers: Sequence[PartitionCopier]) -> None:
        if not copiers:
            return
        await asyncio.gather(
            self._source.refresh({copier.topic for copier in copiers}),
            self._target.refresh({copier.target_topic for copier in copiers}),
        )
        for copier in copiers:
            if (dispatch := self._dispatches.get(copier)) is not None:
                self._connect(copier, dispatch)

    def _connect(self, copier: PartitionCopier, dispatch: PartitionDispatch) -> None:
        source_leader, target_leader = (
            self._source.leader(*copier.source),
            self._target.leader(*copier.target),
        )
        if source_leader is None or target_leader is None:
            self._note_without_leader(copier, dispatch)
        else:
            self._stale.pop(copier, None)
        if source_leader is not None:
            metadata = self._source.metadata.topics[copier.topic]
            was_recreated = not copier.reads_topic(self._source.metadata.topic_id(copier.topic))
            if was_recreated:
                # A different topic of the same name: none of its records may be taken for one of the old topic.
                dispatch.apply(copier.leader_changed())
            epoch = metadata.partitions[copier.partition].leader_epoch
            is_same = (
                dispatch.reader is self.readers.get(source_leader) and copier.cursor.leader_epoch == epoch
            )
            dispatch.apply(copier.source_leader_seen(epoch))
            if not is_same or dispatch.reader is None or was_recreated:
                self._read_from(dispatch, source_leader)
        if target_leader is not None:
            self._write_to(copier, dispatch, target_leader)

    def _note_without_leader(self, copier: PartitionCopier, dispatch: PartitionDispatch) -> None:
        now = time.monotonic()
        since = self._stale.setdefault(copier, now)
        if copier.state is CopierState.STOPPED:
            # When it is retried, its leaders are looked up again.
            del self._stale[copier]
            return
        if now - since < GONE_S:
            return
        for cluster, topic in ((self._source, copier.topic), (self._target, copier.target_topic)):
            metadata = cluster.metadata.topics.get(topic)
            if metadata is None or metadata.error:
                error = TopicGoneError(topic=copier.topic, partition=copier.partition, cluster=cluster.alias)
                dispatch.apply(copier.stop(error))

    def read_from(self, dispatch: PartitionDispatch, node_id: int) -> None:
        """Reads the partition of *dispatch* from broker *node_id*, which its leader prefers."""
        copier = dispatch.copier
        if copier.reads_topic(self._source.metadata.topic_id(copier.topic)):
            self._read_from(dispatch, node_id)
        else:
            self.stale(copier)  # the leader of another topic, which has its name now

    def _read_from(self, dispatch: PartitionDispatch, node_id: int) -> None:
        reader = self.readers.get(node_id)
        if reader is None:
            reader = self.readers[node_id] = self._new_reader(node_id)
        topic_id = self._source.metadata.topics[dispatch.copier.topic].topic_id.bytes
        dispatch.read_from(reader, topic_id)

    def _write_to(self, copier: PartitionCopier, dispatch: PartitionDispatch, node_id: int) -> None:
        writer = self.writers.get(node_id)
        if writer is None:
            writer = self.writers[node_id] = self._new_writer(node_id)
        connection = writer.connection_for(copier.target_topic, copier.partition)
        if connection is not dispatch.connection:
            dispatch.write_to(connection)
            return
        epoch = self._target.metadata.leader_epoch(*copier.target)
        if copier.target_epoch not in {UNKNOWN, epoch}:
            # The same leader was elected again: it may have lost records.
            dispatch.apply(copier.leader_changed())
