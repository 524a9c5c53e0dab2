"""Encodes and decodes source offsets in the records of Kafka Connect's offsets topic, as Java MM2 does.

The key is `["<connector>",{"cluster":"A","partition":0,"topic":"foo"}]`. Java finds an offset by the raw bytes of
its key, so field order, spaces (none) and Jackson's escapes are part of the format (`JsonConverter`,
`OffsetStorageReaderImpl`). The value is `{"offset":123}`, the last replicated offset. MirrorFlow's additional
state is stored as flat fields in the same value: Java ignores them, but refuses nested ones
(`OffsetUtils.validateFormat`). If one of these fields is invalid, only Java's field is used. An offset that Java
wrote has none of them.

Records must be partitioned as in Java (`wire.records`); otherwise compaction would keep two offsets for one
key.

Pure: `stores.position_store` reads and writes the topic.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

from mirrorflow_core.java.json_text import (
    dumped,
    integer_field,
    is_integer,
    parsed,
    parsed_object,
    text_field,
)
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.partitions import UNKNOWN, Position
from mirrorflow_core.source_epochs import decode_epochs, encode_epochs

PREFIX = "mirrorflow."
# Repeats `offset`: an edit of that alone invalidates all other fields.
SOURCE_OFFSET = PREFIX + "source.offset"
SOURCE_EPOCHS = PREFIX + "source.epochs"
EPOCH_STARTS = PREFIX + "source.epoch.starts"
SOURCE_TOPIC_ID, TARGET_TOPIC_ID = PREFIX + "source.topic.id", PREFIX + "target.topic.id"
WRITTEN_MS = PREFIX + "written.ms"
REVISION = PREFIX + "revision"
_INT32_MAX = 2**31 - 1
K = TypeVar("K")


def _with_own_fields(bare: Position, fields: dict[str, Any]) -> Position:
    """Returns *bare*, which has Java's part, with our own fields added. Raises ValueError."""
    if integer_field(fields, SOURCE_OFFSET) != bare.source_offset:
        raise ValueError("the offset was altered")
    return replace(
        bare,
        source_epoch=int(text_field(fields, SOURCE_EPOCHS)),
        epochs=decode_epochs(text_field(fields, EPOCH_STARTS)),
        source_topic_id=text_field(fields, SOURCE_TOPIC_ID),
        target_topic_id=text_field(fields, TARGET_TOPIC_ID),
        written_ms=integer_field(fields, WRITTEN_MS) if WRITTEN_MS in fields else None,
    )


class PositionKey(NamedTuple):
    """The owner of a stored offset: connector, source alias, source topic and partition."""

    connector: str
    cluster: str
    topic: str
    partition: int


def encode_key(key: PositionKey) -> bytes:
    """Returns the exact bytes of Java's key."""
    where = f'{{"cluster":{dumped(key.cluster)},"partition":{key.partition},"topic":{dumped(key.topic)}}}'
    return f"[{dumped(key.connector)},{where}]".encode()


def decode_key(key: bytes | None) -> PositionKey | None:
    """Returns the decoded key; None for a well-formed key of another kind of connector.

    Raises ValueError for anything that is not a key.
    """
    if key is None:
        raise ValueError("it is null")
    parts = parsed(key)
    if not (
        isinstance(parts, list)
        and len(parts) == 2
        and isinstance(parts[0], str)
        and isinstance(parts[1], dict)
    ):
        raise ValueError("it is not a connector's name with a source partition")
    connector, where = parts
    cluster, topic, partition = where.get("cluster"), where.get("topic"), where.get("partition")
    if set(where) != {"cluster", "topic", "partition"} or not (
        isinstance(cluster, str) and isinstance(topic, str)
    ):
        return None
    if not is_integer(partition) or not 0 <= partition <= _INT32_MAX:
        return None
    return PositionKey(connector, cluster, topic, partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """The offset of *key* was deleted: a tombstone, or an offset that Java too treats as none."""

    key: PositionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """An unusable record of the offsets topic; *problem* describes it without showing its value."""

    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A readable record. *warning* says that our own fields were invalid and only Java's was used; None: they were valid."""

    key: PositionKey
    position: Position
    warning: str | None = None


PositionRecord: TypeAlias = Stored | Reset | Malformed


class Recency(NamedTuple):
    """How new a record of the offsets topic is.

    Within one partition of the topic the order of the log decides. A key lies in several partitions after the topic has
    got more of them, because that moves keys; `newest` decides between those.
    """

    revision: (
        int | None
    )  # larger than that of all earlier positions of the key; None: Java's record, or altered
    time_ms: int  # when the record was written


def newest(records: Mapping[K, Recency]) -> K:
    """Returns which is the newest of the records that several partitions of the offsets topic have of one key.

    The largest revision wins: each writer continues to count where the one before it ended. A record without one only has
    its time, by the wall clock of its writer.
    """
    counted = {key: recency.revision for key, recency in records.items() if recency.revision is not None}
    others = [record for record in records if record not in counted]
    latest = [max(counted, key=counted.__getitem__)] if counted else []
    latest += [max(others, key=lambda key: records[key].time_ms)] if others else []
    return max(latest, key=lambda key: records[key].time_ms)


def recency(value: bytes | None, timestamp_ms: int) -> Recency:
    """Returns the recency of a record of the offsets topic."""
    try:
        fields = {} if value is None else parsed_object(value)
    except ValueError:
        fields = {}
    is_altered = fields.get("offset") != fields.get(SOURCE_OFFSET)
    revision = fields.get(REVISION)
    return Recency(revision if is_integer(revision) and not is_altered else None, timestamp_ms)


def encode_value(position: Position) -> bytes:
    """Returns the value: Java's field, followed by our own."""
    fields: dict[str, int | str] = {"offset": position.source_offset}
    if position.source_epoch != UNKNOWN:
        fields |= {
            SOURCE_OFFSET: position.source_offset,
            SOURCE_EPOCHS: str(position.source_epoch),
            WRITTEN_MS: UNKNOWN if position.written_ms is None else position.written_ms,
        }
    if position.epochs:
        fields[EPOCH_STARTS] = encode_epochs(position.epochs)
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(key: bytes | None, value: bytes | None, *, connector: str, cluster: str) -> PositionRecord | None:
    """Returns the decoded record of the offsets topic; None for another *connector* or *cluster*."""
    try:
        position_key = decode_key(key)
    except ValueError as error:
        return Malformed(problem=f"a key of the offsets topic is not Kafka Connect's: {error}")
    if position_key is None or (position_key.connector, position_key.cluster) != (connector, cluster):
        return None
    subject = f"{position_key.topic}-{position_key.partition}"
    if encode_key(position_key) != key:
        return Malformed(
            problem=f"a position of {subject} has a key that Java would not find (order, spaces or escapes)"
        )
    if value is None:
        return Reset(key=position_key)
    try:
        fields = parsed_object(value)
        offset = fields.get("offset")
        if offset is None or (is_integer(offset) and offset < 0):
            return Reset(key=position_key)
        source_offset = integer_field(fields, "offset")
    except ValueError as error:
        return Malformed(problem=f"the position of {subject} cannot be read: {error}")
    bare = Position(topic=position_key.topic, partition=position_key.partition, source_offset=source_offset)
    if not any(name.startswith(PREFIX) for name in fields):
        return Stored(key=position_key, position=bare)
    try:
        return Stored(key=position_key, position=_with_own_fields(bare, fields))
    except ValueError as error:
        warning = f"only the offset of {subject} was taken from its position: {error}"
        return Stored(key=position_key, position=bare, warning=warning)
