"""Positions in the bytes of Kafka Connect's offsets topic, as Java MM2 writes and looks for them.

The key is `position_keys`'. Value: `{"offset":123}`, the last replicated offset. What else we know stands as flat fields
in the same value (`position_fields`): Java ignores them, but refuses nested ones (`OffsetUtils.validateFormat`). A position
that Java wrote, or a user altered, has none of our fields and reads as "sequence unknown".

A record's partition is Java's, too (`wire.murmur2`), or compaction would keep two positions of one key.

Pure: `kafka.offsets` reads and writes the topic.
"""

import json
from dataclasses import dataclass
from typing import TypeAlias

from mirrorflow_replicator.connect.java_json import integer_field, is_integer, parsed_object
from mirrorflow_replicator.connect.position_fields import PREFIX, own_fields, with_own_fields
from mirrorflow_replicator.connect.position_keys import PositionKey, decode_key, encode_key
from mirrorflow_replicator.flow.position import UNKNOWN, Position


@dataclass(frozen=True, slots=True, kw_only=True)
class Reset:
    """The position of *key* was taken away (a tombstone, or an offset that Java too takes for none)."""

    key: PositionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Malformed:
    """A record of the offsets topic that says nothing usable; *problem* names it without showing its value."""

    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """What a readable record says. *warning* is set where our own fields were void and only Java's was taken."""

    key: PositionKey
    position: Position
    warning: str = ""


PositionRecord: TypeAlias = Stored | Reset | Malformed


def encode_value(position: Position) -> bytes:
    """Java's value, with our own fields after its one."""
    fields: dict[str, int | str | bool] = {"offset": position.source_offset}
    if position.sequence != UNKNOWN or position.copier:
        fields |= own_fields(position)
    return json.dumps(fields, separators=(",", ":")).encode()


def decode(key: bytes | None, value: bytes | None, *, connector: str, cluster: str) -> PositionRecord | None:
    """What a record of the offsets topic says; None if it is not about *connector* and *cluster*."""
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
