"""The position of a partition: how far its writer has copied, and under which producer.

Stored in MM2's offsets topic: Java's `offset`, followed by our own flat fields, because Java refuses nested
ones. A writer stores positions only inside its own transactions, so a fenced writer cannot store one.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from mirrorflow_core.connect.position_records import (
    EPOCH_STARTS,
    PREFIX,
    REVISION,
    SOURCE_EPOCHS,
    SOURCE_OFFSET,
    SOURCE_TOPIC_ID,
    TARGET_TOPIC_ID,
    WRITTEN_MS,
    PositionRecord,
    Recency,
    Reset,
    Stored,
    newest,
)
from mirrorflow_core.connect.position_records import decode as decode_offset
from mirrorflow_core.java.json_text import integer_field, parsed_object, text_field
from mirrorflow_core.partitions import UNKNOWN, Position, TopicPartition
from mirrorflow_core.source_epochs import SourceEpochs, decode_epochs, encode_epochs
from mirrorflow_core.writer.transactional_ids import WriterIds

_MODE: Final = PREFIX + "writer.form"
_NUMBERS: Final = {
    "next_source_offset": PREFIX + "writer.source.next",
    "target_end": PREFIX + "writer.target.end",
    "target_epoch": PREFIX + "writer.target.epoch",
    "producer_id": PREFIX + "writer.producer.id",
    "producer_epoch": PREFIX + "writer.producer.epoch",
    "sequence": PREFIX + "writer.sequence",
    "plain_start": PREFIX + "writer.plain.start",
    "records": PREFIX + "writer.records",
    "generation": PREFIX + "writer.counting",
    "time_ms": WRITTEN_MS,
}
_TEXTS: Final = {
    "target_topic": PREFIX + "target.topic",
    "source_topic_id": SOURCE_TOPIC_ID,
    "target_topic_id": TARGET_TOPIC_ID,
}
_TRANSACTIONAL, _PLAIN = PREFIX + "writer.transactional.id", PREFIX + "writer.plain.id"


class WriteMode(Enum):
    """How a partition is written: plain idempotent batches, or inside the transactions of its task."""

    PLAIN = "plain"
    TRANSACTION = "transaction"


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterPosition:
    """How far one partition is copied. Offsets named `next` and `end` are exclusive; -1 and "" are unknown.

    A position without `writer` is Java's, or was altered by a user; it is obeyed as it is.
    """

    topic: str  # on the source
    partition: int
    next_source_offset: int
    java_offset: int = UNKNOWN  # the last offset that Java may skip to; in transactions one commit behind
    source_epoch: int = UNKNOWN  # leader epoch of the last copied record
    epochs: SourceEpochs = ()  # of all that is copied
    target_end: int = UNKNOWN  # not beyond the offset after the last copied record
    target_epoch: int = UNKNOWN  # leader epoch of the target's record before `target_end`
    target_topic: str = ""
    source_topic_id: str = ""
    target_topic_id: str = ""
    writer: WriterIds | None = None
    mode: WriteMode = WriteMode.PLAIN
    producer_id: int = UNKNOWN  # of the plain producer, for this partition
    producer_epoch: int = UNKNOWN
    sequence: int = UNKNOWN  # the last one that the plain producer wrote in that epoch; -1: none yet
    plain_start: int = UNKNOWN  # of the target: no plain batch of that epoch lies before it; markers do
    records: int = UNKNOWN  # copied in this count
    generation: int = UNKNOWN  # which count, for offset maps
    left: bool = False  # the writer has stopped: nothing was written after this position
    time_ms: int = UNKNOWN  # wall clock of the writer
    revision: int | None = None  # as in `Recency`

    @property
    def topic_partition(self) -> TopicPartition:
        """The partition on the source."""
        return TopicPartition(self.topic, self.partition)

    @property
    def open_writer(self) -> WriterIds | None:
        """The writer that may have written after this position; None if copying continues exactly here."""
        return None if self.left else self.writer

    @property
    def is_of_empty_copy(self) -> bool:
        """Whether the target had no records when it was stored, and its writer, which has left, has copied none."""
        return self.writer is not None and self.left and self.records <= 0 and self.target_end <= 0


def encode_position(position: WriterPosition) -> bytes:
    """Returns the value: Java's field, followed by our own."""
    fields: dict[str, int | str | bool] = {"offset": position.java_offset}
    if position.writer is None and position.source_epoch != UNKNOWN:
        fields |= {SOURCE_OFFSET: position.java_offset, SOURCE_EPOCHS: str(position.source_epoch)}
    if position.epochs:
        fields[EPOCH_STARTS] = encode_epochs(position.epochs)
    if position.writer is not None:
        fields |= {
            SOURCE_OFFSET: position.java_offset,
            SOURCE_EPOCHS: str(position.source_epoch),
            _MODE: position.mode.value,
            _TRANSACTIONAL: position.writer.transactional,
            _PLAIN: position.writer.plain,
            PREFIX + "left": position.left,
        }
        fields |= {name: getattr(position, field) for field, name in (_NUMBERS | _TEXTS).items()}
        fields |= {} if position.revision is None else {REVISION: position.revision}
    return json.dumps(fields, separators=(",", ":")).encode()


def decode_position(
    key: bytes | None, value: bytes | None, *, connector: str, cluster: str
) -> WriterPosition | PositionRecord | None:
    """Returns the decoded record of the offsets topic; None for another *connector* or *cluster*.

    A record that is not of this format is returned as `position_records.decode` does.
    """
    decoded = decode_offset(key, value, connector=connector, cluster=cluster)
    if value is None or not isinstance(decoded, Stored | Reset):
        return decoded
    fields = parsed_object(value)
    if _MODE not in fields or fields.get("offset") != fields.get(SOURCE_OFFSET):
        return decoded
    try:
        return decode_value(TopicPartition(decoded.key.topic, decoded.key.partition), value)
    except ValueError as error:
        if not isinstance(decoded, Stored):
            return decoded
        subject = f"{decoded.key.topic}-{decoded.key.partition}"
        warning = f"only the offset of {subject} was taken from its position: {error}"
        return replace(decoded, warning=warning)


def reset_position(reset: Reset) -> WriterPosition:
    """Returns what stands for a deleted position: the partition starts as if it was never copied."""
    return WriterPosition(topic=reset.key.topic, partition=reset.key.partition, next_source_offset=UNKNOWN)


def obeyed_position(position: Position) -> WriterPosition:
    """Returns *position*, which Java wrote, or a user altered, or a task whose writers are not fenced."""
    return WriterPosition(
        topic=position.topic,
        partition=position.partition,
        next_source_offset=position.source_offset + 1,
        java_offset=position.source_offset,
        source_epoch=position.source_epoch,
        epochs=position.epochs,
    )


def newest_positions(
    logs: Iterable[Iterable[WriterPosition]],
) -> dict[TopicPartition, WriterPosition]:
    """Returns the newest position of each partition, with the largest revision that any of its positions has.

    *logs* has the positions in each partition of the offsets topic, in order.
    """
    by_log: dict[TopicPartition, dict[int, WriterPosition]] = {}
    for number, log in enumerate(logs):
        for position in log:
            by_log.setdefault(position.topic_partition, {})[number] = position
    by_partition: dict[TopicPartition, WriterPosition] = {}
    for partition, places in by_log.items():
        number = newest({log: Recency(place.revision, place.time_ms) for log, place in places.items()})
        revisions = [place.revision for place in places.values() if place.revision is not None]
        by_partition[partition] = replace(places[number], revision=max(revisions, default=None))
    return by_partition


def decode_value(partition: TopicPartition, value: bytes) -> WriterPosition:
    """Returns the position of *partition* that `encode_position` made *value* of. Raises ValueError."""
    fields = parsed_object(value)
    left = fields.get(PREFIX + "left", False)
    if not isinstance(left, bool):
        message = f"{PREFIX}left is not a boolean"
        raise ValueError(message)  # noqa: TRY004 - one class of error for whatever is wrong with the bytes
    return WriterPosition(
        topic=partition.topic,
        partition=partition.partition,
        java_offset=integer_field(fields, "offset"),
        source_epoch=int(text_field(fields, SOURCE_EPOCHS)),
        epochs=decode_epochs(text_field(fields, EPOCH_STARTS)),
        writer=WriterIds(text_field(fields, _TRANSACTIONAL), text_field(fields, _PLAIN)),
        mode=WriteMode(fields[_MODE]),
        left=left,
        revision=integer_field(fields, REVISION) if REVISION in fields else None,
        **_values(fields),
    )


def _values(fields: dict[str, Any]) -> dict[str, Any]:
    numbers = {field: integer_field(fields, name) for field, name in _NUMBERS.items()}
    return numbers | {field: text_field(fields, name) for field, name in _TEXTS.items()}
