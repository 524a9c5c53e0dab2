"""The largest batch that a target topic accepts, as sent and as stored.

A broker checks a batch twice (UnifiedLog.append): as it arrived and, if the topic's `compression.type` names
another codec than the batch's, after recompression. A batch that the target stores as sent therefore counts
by its size. Any other batch counts by its uncompressed size, because no codec makes data noticeably larger.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from mirrorflow_core.wire.batch import HEADER_BYTES, Batch
from mirrorflow_core.wire.codecs import GZIP, LZ4, NONE, SNAPPY, ZSTD, decompress

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


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimit:
    """The largest batch that a target topic accepts, from its settings.

    A guess if `compression_type` is empty.
    """

    max_batch_bytes: int = NO_BYTES_MAX  # as sent; also as stored, for a codec in `kept_codecs`
    max_plain_bytes: int = NO_BYTES_MAX  # uncompressed, for any other codec
    kept_codecs: frozenset[int] = ALL_CODECS
    compression_type: str = ""
    setting: str = MAX_MESSAGE_BYTES  # the topic setting behind `max_batch_bytes`

    @property
    def is_known(self) -> bool:
        """Whether the limit comes from the topic's settings; one record alone may exceed a guess."""
        return bool(self.compression_type)

    def after_refusal(self) -> "BatchLimit":
        """Return the next guess after the target refused a batch within this limit.

        It is half of this limit, uncompressed.
        """
        now = self.max_plain_bytes if not self.is_known else self.max_batch_bytes
        return BatchLimit(max_plain_bytes=max(1, min(now // 2, DEFAULT_BYTES)), kept_codecs=frozenset())

    def remedy(self, topic: str) -> str:
        """Return what to change on the target for one record that alone exceeds this limit."""
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
    """Return the limit that a topic's *settings* imply.

    None if they lack the size or a known compression.type.
    """
    sizes = [(int(settings[name]), name) for name in (MAX_MESSAGE_BYTES, SEGMENT_BYTES) if settings.get(name)]
    kept = _KEPT.get(settings.get(COMPRESSION_TYPE, ""))
    if not sizes or kept is None:
        return None
    size_bytes, setting = min(sizes)
    spare = 0 if kept == {NONE} else (size_bytes >> _FRAMES_SHIFT) + _FRAMES_BYTES
    return BatchLimit(
        max_batch_bytes=size_bytes,
        max_plain_bytes=max(1, size_bytes - spare),
        kept_codecs=kept,
        compression_type=settings[COMPRESSION_TYPE],
        setting=setting,
    )


def plain_bytes(batch: Batch) -> int:
    """Return the uncompressed size of *batch*, including its header. Raises CorruptRecordsError."""
    if batch.codec == NONE:
        return batch.size_bytes
    return HEADER_BYTES + len(decompress(batch.codec, batch.data[HEADER_BYTES:]))
