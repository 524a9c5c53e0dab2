"""Encodes and decodes source offsets in the records of Kafka Connect's offsets topic, as Java MM2 does.

`position_keys` encodes the key. The value is `{"offset":123}`, the last replicated offset. MirrorFlow's
additional state is stored as flat fields in the same value (`position_fields`): Java ignores them, but
refuses nested ones (`OffsetUtils.validateFormat`). An offset that Java wrote has none of these fields.

Records must be partitioned as in Java (`wire.murmur2`); otherwise compaction would keep two offsets for one
key.

Pure: `stores.offsets_topic` reads and writes the topic.
"""

import json
from dataclasses import dataclass
from typing import TypeAlias

from mirrorflow_core.connect.position_fields import PREFIX, own_fields, with_own_fields
from mirrorflow_core.connect.position_keys import PositionKey, decode_key, encode_key
from mirrorflow_core.java.json_text import integer_field, is_integer, parsed_object
from mirrorflow_core.position import Position


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
    """A readable record. *warning* is set where our own fields were invalid and only Java's was used."""

    key: PositionKey
    position: Position
    warning: str = ""


PositionRecord: TypeAlias = Stored | Reset | Malformed


def encode_value(position: Position) -> bytes:
    """Return the value: Java's field, followed by our own."""
    fields: dict[str, int | str | bool] = {"offset": position.source_offset, **own_fields(position)}
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(key: bytes | None, value: bytes | None, *, connector: str, cluster: str) -> PositionRecord | None:
    """Return the decoded record of the offsets topic; None for another *connector* or *cluster*."""
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
        return Stored(key=position_key, position=with_own_fields(bare, fields))
    except ValueError as error:
        warning = f"only the offset of {subject} was taken from its position: {error}"
        return Stored(key=position_key, position=bare, warning=warning)
