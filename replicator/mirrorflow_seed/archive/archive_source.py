"""Serves an archive as a source cluster: responds to the requests that a copier sends to brokers, within the process.

So a restore copies as a connector does: it stores the same positions, and the connector continues where the archive
ends. An archive never changes its leader and never loses records.

Spark yields the rows of a file once and in order, but a copier reads again after each refused or lost response. So
each file is first written to a spool and checked meanwhile: no record of a damaged file reaches the target. A spool
takes as much disk space as the records took in Kafka, with the same compression, and the memory of one batch.
"""

import asyncio
import bisect
import contextlib
import os
import struct
import tempfile
import uuid
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import IO, Any, Final, Self

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import ClientSettings
from mirrorflow_core.wire import fetch
from mirrorflow_core.wire.primitives import Cursor, uvarint
from mirrorflow_kafka.admin.log_requests import EARLIEST, LATEST
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.connection import RESPONSE_TIMEOUT_S, Connection, Part, PendingResponse
from mirrorflow_kafka.client.metadata import NO_TOPIC_ID, Broker, Metadata, PartitionMetadata, TopicMetadata
from mirrorflow_seed.archive.log_batches import BATCH_OFFSETS, EncodedBatch, log_batches
from mirrorflow_seed.archive.manifest import ArchivedFile, Manifest
from mirrorflow_seed.errors import JobFailedError
from mirrorflow_seed.record_columns import is_increasing

NODE: Final = 0
FETCH_VERSION: Final = 12  # by topic name, flexible form
_UNKNOWN_TOPIC_OR_PARTITION: Final = 3
_UNSUPPORTED_VERSION: Final = 35
_REQUEST_HEAD = struct.Struct(">iiiibii")  # replica, wait, min bytes, max bytes, isolation, session, epoch
_REQUEST_PARTITION = struct.Struct(">iiqiqi")
_RESPONSE_HEAD = struct.Struct(">ihi")
_RESPONSE_PARTITION = struct.Struct(">ihqqqBi")
_FOLDERS_KEY: Final = "SPARK_LOCAL_DIRS"  # set in executors on Kubernetes


class ArchiveLog:
    """The records of several archived files as one log, from offset *start* up to *end*; a context manager.

    *files* are in offset order; Spark may yield them in any order.
    """

    def __init__(self, files: Sequence[ArchivedFile], *, start: int, end: int) -> None:
        self.start = start
        self.end = end
        self._starts = [file.start for file in files]
        # Not compressed: they are read once, and the disk is faster than a codec.
        self._spools = [
            Spool(start=max(start, file.start), end=min(end, file.end), codec=0) for file in files
        ]
        self._before = [file.start - 1 for file in files]
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for spool in self._spools:
            self._open.enter_context(spool)
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add(self, columns: Any) -> None:
        """Adds the next records of one file, an Arrow record batch. Raises JobFailedError if an offset is not expected there."""
        if not columns.num_rows:
            return
        offsets = columns.column("offset")
        first, last = offsets[0].as_py(), offsets[-1].as_py()
        index = bisect.bisect_right(self._starts, first) - 1
        if (
            index < 0
            or first <= self._before[index]
            or last >= self._spools[index].end
            or not is_increasing(offsets)
        ):
            raise JobFailedError(
                f"An archived file holds records from offset {first} to {last}, which its commit does not have there."
            )
        self._before[index] = last
        self._spools[index].add(columns)

    def finish(self) -> None:
        """Completes all spools; call it after the last `add`."""
        for spool in self._spools:
            spool.finish()

    def read(self, offset: int, max_bytes: int) -> bytearray:
        """Returns whole batches of one file, from the first with *offset* or later; empty at the end."""
        for spool in self._spools:
            if spool.next_offset > offset and (batches := spool.read(offset, max_bytes)):
                return batches
        return bytearray()


def local_file() -> IO[bytes]:
    """Returns a temporary file on the local disk of a task; a context manager that deletes it."""
    return tempfile.TemporaryFile(dir=os.environ.get(_FOLDERS_KEY, "").partition(",")[0] or None)


class Spool(contextlib.AbstractContextManager["Spool"]):
    """A temporary file with the batches of a log from offset *start* up to *end*; a context manager that deletes it."""

    def __init__(self, *, start: int, end: int, codec: int) -> None:
        self.start = start
        self.end = end
        self._codec = codec
        self._file = local_file()
        self._ends: list[int] = []  # the next offset after each batch
        self._places: list[tuple[int, int]] = []  # file position and size of each batch
        self._size_bytes = 0
        self._waiting: EncodedBatch | None = None  # until the offset after it is known

    def __exit__(self, *_: object) -> None:
        self._file.close()

    @property
    def next_offset(self) -> int:
        """The offset after the last batch: `end`, unless the gap after the last record is too large for a batch."""
        return self._ends[-1] if self._ends else self.start

    def add(self, columns: Any) -> None:
        """Adds the next records, an Arrow record batch; offsets must increase."""
        for batch in log_batches(columns):
            self._write_waiting(batch.base_offset)
            self._waiting = batch

    def finish(self) -> None:
        """Writes the last batch; call it after the last `add`."""
        self._write_waiting(self.end)
        self._file.flush()

    def read(self, offset: int, max_bytes: int) -> bytearray:
        """Returns whole batches from the first with *offset* or later, at least one; empty at the end."""
        batches = bytearray()
        index = bisect.bisect_right(self._ends, offset)
        while index < len(self._places):
            position, length = self._places[index]
            if batches and len(batches) + length > max_bytes:
                break
            self._file.seek(position)
            batches += self._file.read(length)
            index += 1
        return batches

    def _write_waiting(self, next_offset: int) -> None:
        batch, self._waiting = self._waiting, None
        if batch is None:
            return
        # Deltas have 32 bits: the part of a gap that does not fit is in no batch.
        reach = max(min(next_offset, batch.base_offset + BATCH_OFFSETS), batch.last_offset + 1)
        data = batch.encode(codec=self._codec, next_offset=reach)
        self._file.seek(self._size_bytes)
        self._file.write(data)
        self._ends.append(reach)
        self._places.append((self._size_bytes, len(data)))
        self._size_bytes += len(data)


class ArchiveCluster(Cluster):
    """A source cluster with the topics of *manifest*, and the records of *spool* in partition *of*."""

    def __init__(
        self,
        alias: str,
        manifest: Manifest,
        *,
        of: TopicPartition | None = None,
        spool: Spool | ArchiveLog | None = None,
    ) -> None:
        super().__init__(
            ClientSettings(alias=alias, client_id="", properties={}), resolve=lambda given: given
        )
        self.manifest = manifest
        self.partitions = manifest.partitions
        self.of = of
        self.spool = spool
        # A requested offset of an earlier file, which must be restored first.
        self.wanted_earlier: int | None = None
        self.metadata = _metadata(manifest)

    async def refresh(self, topics: Iterable[str] | None = None) -> None:
        """Does nothing: the metadata of an archive never changes."""

    async def connection(self, node_id: int, *, purpose: str = "admin", index: int = 0) -> Connection:
        """Returns a connection whose requests this object responds to."""
        return _ArchiveConnection(self, node_id)

    async def call(self, request: Any, **_: Any) -> Any:
        """Returns the response to a request that a copier sends to any broker."""
        return self.respond(request)

    async def close(self) -> None:
        """Does nothing: no connection is open, and the creator of the spool closes it."""

    def respond(self, request: Any) -> Any:
        """Returns the response to *request*, by its class name in kafka-python; UNSUPPORTED_VERSION to unknown ones."""
        name = type(request).__name__
        if name == "ListOffsetsRequest":
            return self._list_offsets(request)
        if name == "OffsetForLeaderEpochRequest":
            return _unknown_epochs(request)
        if name == "DescribeConfigsRequest":
            return self._describe_configs(request)
        if name == "DescribeAclsRequest":
            return self._describe_acls()
        if name == "MetadataRequest":
            return SimpleNamespace(error_code=0)
        return SimpleNamespace(error_code=_UNSUPPORTED_VERSION)

    def _list_offsets(self, request: Any) -> Any:
        def listed(topic: str, lookup: Any) -> Any:
            archived = self.partitions.get(TopicPartition(topic, lookup.partition_index))
            offset = -1
            if archived is not None:
                # An archive has no time index: a lookup by timestamp finds nothing.
                offset = {LATEST: archived.end, EARLIEST: archived.start}.get(lookup.timestamp, -1)
            return SimpleNamespace(
                partition_index=lookup.partition_index,
                offset=offset,
                timestamp=-1,
                leader_epoch=-1,
                error_code=_UNKNOWN_TOPIC_OR_PARTITION if archived is None else 0,
            )

        topics = [
            SimpleNamespace(
                name=topic.name, partitions=[listed(topic.name, lookup) for lookup in topic.partitions]
            )
            for topic in request.topics
        ]
        return SimpleNamespace(topics=topics)

    def _describe_configs(self, request: Any) -> Any:
        configs = {topic.name: topic.configs for topic in self.manifest.topics}
        results = [
            SimpleNamespace(
                resource_name=resource.resource_name,
                error_code=0 if resource.resource_name in configs else _UNKNOWN_TOPIC_OR_PARTITION,
                error_message=None,
                configs=[
                    SimpleNamespace(
                        name=entry.name,
                        value=entry.value,
                        config_source=entry.source,
                        read_only=entry.read_only,
                        is_sensitive=False,
                    )
                    for entry in configs.get(resource.resource_name, ())
                ],
            )
            for resource in request.resources
        ]
        return SimpleNamespace(results=results)

    def _describe_acls(self) -> Any:
        """Returns all archived ACLs, which are those of topics, whatever the filter asks for."""
        resources = [
            SimpleNamespace(
                resource_type=acl.resource_type,
                resource_name=acl.resource_name,
                pattern_type=acl.pattern_type,
                acls=[acl],
            )
            for acl in self.manifest.acls or ()
        ]
        return SimpleNamespace(error_code=0, error_message=None, resources=resources)

    def fetch(self, wanted: Sequence[tuple[str, int, int, int]]) -> tuple[bytearray, bool]:
        """Returns the body of a fetch response, and whether it has records.

        *wanted* has (topic, partition, offset, maximum bytes).
        """
        fetched: list[tuple[str, int, bytearray]] = []
        for topic, number, offset, max_bytes in wanted:
            fetched.append(
                (topic, number, self.read_batches(TopicPartition(topic, number), offset, max_bytes))
            )
        return _encode_fetch_response(fetched, self.partitions), any(data for _, _, data in fetched)

    def read_batches(self, partition: TopicPartition, offset: int, max_bytes: int) -> bytearray:
        """Returns whole batches of *partition*, from the one that holds *offset*; empty if there are none."""
        if self.spool is None or self.of != partition:
            return bytearray()
        if offset < self.spool.start:
            self.wanted_earlier = offset
            return bytearray()
        return self.spool.read(offset, max_bytes)


class _ArchiveConnection(Connection):
    """A connection whose requests the archive responds to."""

    def __init__(self, archive: ArchiveCluster, node_id: int) -> None:
        super().__init__(cluster=archive.alias, address="the archive", node_id=node_id, client_id="")
        self.versions = {fetch.API_KEY: (FETCH_VERSION, FETCH_VERSION)}
        self._archive = archive

    def send_for(
        self,
        response: PendingResponse,
        api_key: int,
        api_version: int,
        parts: Sequence[Part],
        *,
        flexible: bool,
        transit_s: float = 0.0,
    ) -> None:
        """Responds to a fetch request, the only one that a copier sends to a source this way."""
        wait_ms, wanted = _decode_fetch_request(memoryview(b"".join(parts)))
        body, has_records = self._archive.fetch(wanted)
        # An empty response is delayed as by a broker; otherwise the copier would poll in a busy loop.
        asyncio.get_running_loop().call_later(
            0 if has_records else wait_ms / 1000, _set_result, response, body
        )

    async def call(self, request: Any, *, timeout_s: float = RESPONSE_TIMEOUT_S) -> Any:
        return self._archive.respond(request)

    def close(self) -> None:
        """Does nothing: there is no socket."""


def _unknown_epochs(request: Any) -> Any:
    """Returns the response of a broker that knows no leader epoch."""
    return SimpleNamespace(
        topics=[
            SimpleNamespace(
                topic=topic.topic,
                partitions=[
                    SimpleNamespace(
                        partition=partition.partition, leader_epoch=-1, end_offset=-1, error_code=0
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _set_result(response: PendingResponse, body: bytearray) -> None:
    if not response.done():
        response.set_result(memoryview(body))


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
                partitions={partition.number: led for partition in topic.partitions},
            )
            for topic in manifest.topics
        },
    )


def _decode_fetch_request(body: memoryview) -> tuple[int, list[tuple[str, int, int, int]]]:
    """Returns the maximum wait (ms) of a fetch request, and (topic, partition, offset, maximum bytes) of each."""
    wait_ms = _REQUEST_HEAD.unpack_from(body)[1]
    cursor = Cursor(body, flexible=True, index=_REQUEST_HEAD.size)
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


def _encode_fetch_response(
    fetched: Sequence[tuple[str, int, bytearray]], partitions: Mapping[TopicPartition, Any]
) -> bytearray:
    """Returns a fetch response without a fetch session, so that each fetch request names all its partitions."""
    out = bytearray(_RESPONSE_HEAD.pack(0, 0, 0)) + uvarint(len(fetched) + 1)
    for topic, number, data in fetched:
        known = partitions[TopicPartition(topic, number)]
        name = topic.encode()
        out += uvarint(len(name) + 1) + name + uvarint(2)
        out += _RESPONSE_PARTITION.pack(number, 0, known.end, known.end, known.start, 1, -1)
        out += uvarint(len(data) + 1) + data + b"\0\0"
    return out + b"\0"
