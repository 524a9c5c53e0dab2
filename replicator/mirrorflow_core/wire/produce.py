"""Writes produce requests and reads produce responses without copying records; knows which batches a topic accepts.

Uses version 8 (Kafka 2.4) instead of the newest: its non-flexible form is cheap to write by hand, it works
inside and outside of transactions, and every broker up to 4.x accepts it. The broker takes exactly one batch
per partition and request (ProduceRequest.validateRecords). Source: ProduceRequest.json, ProduceResponse.json.

A broker checks the size of a batch twice (UnifiedLog.append): as it arrived and, if the topic's `compression.type` names another
codec than the batch's, after recompression. A batch that the target stores as sent therefore counts by its size. Any other batch
counts by its uncompressed size, because no codec makes data noticeably larger.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from mirrorflow_core.wire.batch import HEADER_BYTES, Batch
from mirrorflow_core.wire.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD, decompress
from mirrorflow_core.wire.primitives import Cursor

MAX_MESSAGE_BYTES: Final = "max.message.bytes"
SEGMENT_BYTES: Final = "segment.bytes"
COMPRESSION_TYPE: Final = "compression.type"
_BROKER_SETTINGS: Final = {MAX_MESSAGE_BYTES: "message.max.bytes", SEGMENT_BYTES: "log.segment.bytes"}
# Kafka's default of max.message.bytes: the first guess where settings cannot be read, and the size of merged
# batches.
DEFAULT_BYTES: Final = 1_048_588
NO_BYTES_MAX: Final = 1 << 31  # no batch is larger
ALL_CODECS: Final = frozenset({NONE, GZIP, SNAPPY, LZ4, ZSTD})
# compression.type (BrokerCompressionType) -> codecs that a topic stores without recompression.
_KEPT: Final = {
    "producer": ALL_CODECS,
    "uncompressed": frozenset({NONE}),
    "gzip": frozenset({GZIP}),
    "snappy": frozenset({SNAPPY}),
    "lz4": frozenset({LZ4}),
    "zstd": frozenset({ZSTD}),
}
# What a codec may add to incompressible data: Kafka's frames cost at most 5 bytes in 16 KiB and about 20
# bytes.
_FRAMES_SHIFT: Final = 10
_FRAMES_BYTES: Final = 64
API_KEY = 0
VERSION = 8
ACKS_ALL = -1
_COUNT = struct.Struct(">i")
_PARTITION = struct.Struct(">ii")
_SHORT = struct.Struct(">h")
# partition, error, base offset, append time, log start offset, number of record errors, length of the error
# message if there are no record errors
_PARTITION_RESPONSE = struct.Struct(">ihqqqih")
Buffer = bytes | bytearray | memoryview
_new = tuple.__new__  # takes half the time of calling the class, several times per request


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimit:
    """The largest batch that a target topic accepts, from its settings. A guess if `compression_type` is empty."""

    max_batch_bytes: int = NO_BYTES_MAX  # as sent; also as stored, for a codec in `kept_codecs`
    max_uncompressed_bytes: int = NO_BYTES_MAX  # for any other codec
    kept_codecs: frozenset[int] = ALL_CODECS
    compression_type: str = ""
    setting: str = MAX_MESSAGE_BYTES  # the topic setting behind `max_batch_bytes`

    @property
    def is_known(self) -> bool:
        """Whether the limit comes from the topic's settings; one record alone may exceed a guess."""
        return bool(self.compression_type)

    def after_refusal(self) -> "BatchLimit":
        """Returns the next guess after the target refused a batch within this limit. It is half of this limit, uncompressed."""
        now = self.max_uncompressed_bytes if not self.is_known else self.max_batch_bytes
        return BatchLimit(
            max_uncompressed_bytes=max(1, min(now // 2, DEFAULT_BYTES)), kept_codecs=frozenset()
        )

    def remedy(self, topic: str) -> str:
        """Returns what to change on the target for one record that alone exceeds this limit."""
        raised = f"raise {self.setting} of {topic}"
        by_broker = f"{raised} (or {_BROKER_SETTINGS[self.setting]} of its brokers)"
        if not self.is_known:
            return (
                f"{by_broker}; the size counts after recompression unless its compression.type is producer, "
                "and its settings cannot be read (DescribeConfigs)"
            )
        if self.kept_codecs == ALL_CODECS:
            return by_broker
        return (
            f"that is its size after recompression (compression.type={self.compression_type} of {topic}); "
            f"{raised}, or set its compression.type=producer"
        )


UNLIMITED: Final = BatchLimit()  # used until the target refuses a batch for its size


def limit_of(settings: Mapping[str, str]) -> BatchLimit | None:
    """Returns the limit that a topic's *settings* imply. None if they lack the size or a known compression.type."""
    sizes = [(int(settings[name]), name) for name in (MAX_MESSAGE_BYTES, SEGMENT_BYTES) if settings.get(name)]
    kept = _KEPT.get(settings.get(COMPRESSION_TYPE, ""))
    if not sizes or kept is None:
        return None
    size_bytes, setting = min(sizes)
    spare = 0 if kept == {NONE} else (size_bytes >> _FRAMES_SHIFT) + _FRAMES_BYTES
    return BatchLimit(
        max_batch_bytes=size_bytes,
        max_uncompressed_bytes=max(1, size_bytes - spare),
        kept_codecs=kept,
        compression_type=settings[COMPRESSION_TYPE],
        setting=setting,
    )


def uncompressed_bytes(batch: Batch, *, max_bytes: int | None = None) -> int:
    """Returns the uncompressed size of *batch*, including its header.

    Raises CorruptRecordsError, and DecompressedSizeError if its compressed records alone exceed *max_bytes*.
    """
    if batch.codec == NONE:
        return batch.size_bytes
    return HEADER_BYTES + len(decompress(batch.codec, batch.data[HEADER_BYTES:], max_bytes=max_bytes))


class PartitionProduceResponse(NamedTuple):
    """The response for one partition: `base_offset` is the target offset of the first record.

    `base_offset` is -1 with an error. `append_time_ms` is the broker's time where the topic has
    LogAppendTime. Elsewhere it is -1 for a batch that was appended. For a duplicate it is the newest
    timestamp of the batch that the leader remembers with these sequence numbers (UnifiedLog.append,
    ProducerStateEntry.findDuplicateBatch).
    """

    error: int
    base_offset: int
    append_time_ms: int
    message: str
    refused_records: Sequence[int] = ()  # indexes in the batch, where the broker names them (KIP-467)


def produce_request(
    batches: Mapping[str, Sequence[tuple[int, Buffer]]],
    *,
    timeout_ms: int,
    transactional_id: str | None = None,
) -> list[Buffer]:
    """Returns the consecutive parts of a request body.

    *batches* maps a topic to its (partition, batch) pairs and is not empty.
    """
    if transactional_id is None:
        head = struct.pack(">hhii", -1, ACKS_ALL, timeout_ms, len(batches))
    else:
        encoded = transactional_id.encode()
        head = (
            struct.pack(">h", len(encoded))
            + encoded
            + struct.pack(">hii", ACKS_ALL, timeout_ms, len(batches))
        )
    parts: list[Buffer] = []
    for topic, of_topic in batches.items():
        name = topic.encode()
        head += struct.pack(">h", len(name)) + name + _COUNT.pack(len(of_topic))
        for partition, batch in of_topic:
            parts += (head + _PARTITION.pack(partition, len(batch)), batch)
            head = b""
    return parts


def parse_produce_response(body: memoryview) -> tuple[dict[tuple[str, int], PartitionProduceResponse], int]:
    """Returns the responses by topic and partition, and the broker's throttle time in milliseconds.

    Raises struct.error, IndexError or ValueError where *body* is cut short.
    """
    responses: dict[tuple[str, int], PartitionProduceResponse] = {}
    topics, index = _COUNT.unpack_from(body)[0], 4
    for _ in range(topics):
        start = index + 2
        index = start + _SHORT.unpack_from(body, index)[0]
        topic = str(body[start:index], "utf-8")
        partitions = _COUNT.unpack_from(body, index)[0]
        index += 4
        for _ in range(partitions):
            partition, error, base_offset, append_time_ms, _, problems, message_bytes = (
                _PARTITION_RESPONSE.unpack_from(body, index)
            )
            if problems == 0 and message_bytes <= 0:
                responses[topic, partition] = _new(
                    PartitionProduceResponse, (error, base_offset, append_time_ms, "", ())
                )
                index += _PARTITION_RESPONSE.size
                continue
            # Rare case: record errors or an error message.
            cursor = Cursor(body, flexible=False, index=index + _PARTITION_RESPONSE.size - 2)
            messages, refused = [], []
            for _ in range(problems):
                refused.append(cursor.int32())
                messages.append(cursor.string())
            message = cursor.string() or next(filter(None, messages), "")
            index = cursor.index
            responses[topic, partition] = PartitionProduceResponse(
                error, base_offset, append_time_ms, message, tuple(refused)
            )
    return responses, _COUNT.unpack_from(body, index)[0]
