"""An archive in the place of the source cluster: the engine asks it what it would ask brokers.

So a restore is the flow's own copying: the same anchors, numbers and positions as if the source had been read, and the live
connector goes on where the archive ends. Nothing listens: requests are answered within the process. What a log could still
do to a copier (change its leader, lose records) an archive does not do.
"""

import asyncio
import struct
import uuid
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Final

from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.connection import ANSWER_TIMEOUT_S, Answer, Connection, Part
from mirrorflow_replicator.kafka.metadata import (
    NO_TOPIC_ID,
    Broker,
    Metadata,
    PartitionMetadata,
    TopicMetadata,
)
from mirrorflow_replicator.kafka.witnesses import EARLIEST, LATEST
from mirrorflow_replicator.settings import ClientSettings
from mirrorflow_replicator.wire import fetch
from mirrorflow_replicator.wire.cursor import Cursor, uvarint
from mirrorflow_seed.archive.manifest import Manifest
from mirrorflow_seed.archive.shelf import Shelf
from mirrorflow_seed.archive.spool import Spool

NODE: Final = 0
FETCH_VERSION: Final = 12  # by topic name, flexible form
_UNKNOWN_TOPIC_OR_PARTITION: Final = 3
_UNSUPPORTED_VERSION: Final = 35
_REQUEST_HEAD = struct.Struct(">iiiibii")  # replica, wait, min bytes, max bytes, isolation, session, epoch
_REQUEST_PARTITION = struct.Struct(">iiqiqi")
_ANSWER_HEAD = struct.Struct(">ihi")
_ANSWER_PARTITION = struct.Struct(">ihqqqBi")


class ArchiveCluster(Cluster):
    """The topics of *manifest*; records only of the partition that *spool* belongs to."""

    def __init__(
        self,
        alias: str,
        manifest: Manifest,
        *,
        of: TopicPartition | None = None,
        spool: Spool | Shelf | None = None,
    ) -> None:
        super().__init__(
            ClientSettings(alias=alias, client_id="", properties={}), resolve=lambda given: given
        )
        self.manifest = manifest
        self.partitions = manifest.partitions
        self.of = of
        self.spool = spool
        # An offset that was wanted and lies in an earlier file: it has to be restored from there.
        self.wanted_earlier: int | None = None
        self.metadata = _metadata(manifest)

    async def refresh(self, topics: Iterable[str] | None = None) -> None:
        """Nothing of an archive changes."""

    async def connection(self, node_id: int, *, purpose: str = "admin", index: int = 0) -> Connection:
        """One that this object answers itself."""
        return _ArchiveConnection(self, node_id)

    async def call(self, request: Any, **_: Any) -> Any:
        """The answer to what a copier asks any broker."""
        return self.answer(request)

    async def close(self) -> None:
        """Nothing is open; the spool is its maker's."""

    def answer(self, request: Any) -> Any:
        """By the name of the request, which is one of kafka-python's."""
        name = type(request).__name__
        if name == "ListOffsetsRequest":
            return self._listed(request)
        if name == "DescribeConfigsRequest":
            return self._described(request)
        if name == "MetadataRequest":
            return SimpleNamespace(error_code=0)
        return SimpleNamespace(error_code=_UNSUPPORTED_VERSION)

    def _listed(self, request: Any) -> Any:
        def offset(topic: str, one: Any) -> Any:
            found = self.partitions.get(TopicPartition(topic, one.partition_index))
            # By time an archive has no index: nothing is known to be as young.
            at = -1 if found is None else {LATEST: found.end, EARLIEST: found.start}.get(one.timestamp, -1)
            return SimpleNamespace(
                partition_index=one.partition_index,
                offset=at,
                timestamp=-1,
                leader_epoch=-1,
                error_code=_UNKNOWN_TOPIC_OR_PARTITION if found is None else 0,
            )

        topics = [
            SimpleNamespace(name=topic.name, partitions=[offset(topic.name, one) for one in topic.partitions])
            for topic in request.topics
        ]
        return SimpleNamespace(topics=topics)

    def _described(self, request: Any) -> Any:
        configs = {topic.name: topic.configs for topic in self.manifest.topics}
        results = [
            SimpleNamespace(
                resource_name=one.resource_name,
                error_code=0 if one.resource_name in configs else _UNKNOWN_TOPIC_OR_PARTITION,
                error_message=None,
                configs=[
                    SimpleNamespace(
                        name=entry.name,
                        value=entry.value,
                        config_source=entry.source,
                        read_only=entry.read_only,
                        is_sensitive=False,
                    )
                    for entry in configs.get(one.resource_name, ())
                ],
            )
            for one in request.resources
        ]
        return SimpleNamespace(results=results)

    def fetched(self, wanted: Sequence[tuple[str, int, int, int]]) -> tuple[bytearray, bool]:
        """The body of an answer to a fetch of (topic, partition, offset, most bytes); whether there is a record in it."""
        found: list[tuple[str, int, bytearray]] = []
        for topic, number, offset, max_bytes in wanted:
            found.append((topic, number, self.data_of(TopicPartition(topic, number), offset, max_bytes)))
        return _answer(found, self.partitions), any(data for _, _, data in found)

    def data_of(self, partition: TopicPartition, offset: int, max_bytes: int) -> bytearray:
        """Whole batches of *partition* from the one on that holds *offset*; empty where there are none."""
        if self.spool is None or self.of != partition:
            return bytearray()
        if offset < self.spool.start:
            self.wanted_earlier = offset
            return bytearray()
        return self.spool.read(offset, max_bytes)


class _ArchiveConnection(Connection):
    """Answers what is sent on it."""

    def __init__(self, archive: ArchiveCluster, node_id: int) -> None:
        super().__init__(cluster=archive.alias, address="the archive", node_id=node_id, client_id="")
        self.versions = {fetch.API_KEY: (FETCH_VERSION, FETCH_VERSION)}
        self._archive = archive

    def send_for(
        self, answer: Answer, api_key: int, api_version: int, parts: Sequence[Part], *, flexible: bool
    ) -> None:
        """A fetch: nothing else is sent to a source in this way."""
        wait_ms, wanted = _wanted(memoryview(b"".join(parts)))
        body, has_records = self._archive.fetched(wanted)
        # Where nothing is there a broker holds its answer back, or it would be asked again and again.
        asyncio.get_running_loop().call_later(0 if has_records else wait_ms / 1000, _give, answer, body)

    async def call(self, request: Any, *, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        """The archive's answer."""
        return self._archive.answer(request)

    def close(self) -> None:
        """There is no socket."""


def _give(answer: Answer, body: bytearray) -> None:
    if not answer.done():
        answer.set_result(memoryview(body))


def _metadata(manifest: Manifest) -> Metadata:
    led = PartitionMetadata(leader=NODE, leader_epoch=-1, replicas=(NODE,), isr=(NODE,))
    return Metadata(
        cluster_id=manifest.source_cluster_id,
        controller_id=NODE,
        brokers={NODE: Broker(node_id=NODE, host="archive", port=0)},
        topics={
            topic.name: TopicMetadata(
                name=topic.name,
                topic_id=uuid.UUID(topic.topic_id) if topic.topic_id else NO_TOPIC_ID,
                partitions={one.number: led for one in topic.partitions},
            )
            for topic in manifest.topics
        },
    )


def _wanted(body: memoryview) -> tuple[int, list[tuple[str, int, int, int]]]:
    """How long a fetch may wait, in ms, and (topic, partition, offset, most bytes) of what it wants."""
    wait_ms = _REQUEST_HEAD.unpack_from(body)[1]
    cursor = Cursor(body, flexible=True)
    cursor.at = _REQUEST_HEAD.size
    wanted = []
    for _ in range(cursor.count()):
        topic = cursor.string()
        for _ in range(cursor.count()):
            number, _, offset, _, _, max_bytes = _REQUEST_PARTITION.unpack(
                cursor.raw(_REQUEST_PARTITION.size)
            )
            cursor.tags()
            wanted.append((topic, number, offset, max_bytes))
        cursor.tags()
    return wait_ms, wanted


def _answer(
    found: Sequence[tuple[str, int, bytearray]], partitions: Mapping[TopicPartition, Any]
) -> bytearray:
    """Without a session, so that each fetch names all that it wants."""
    out = bytearray(_ANSWER_HEAD.pack(0, 0, 0)) + uvarint(len(found) + 1)
    for topic, number, data in found:
        known = partitions[TopicPartition(topic, number)]
        name = topic.encode()
        out += uvarint(len(name) + 1) + name + uvarint(2)
        out += _ANSWER_PARTITION.pack(number, 0, known.end, known.end, known.start, 1, -1)
        out += uvarint(len(data) + 1) + data + b"\0\0"
    return out + b"\0"
