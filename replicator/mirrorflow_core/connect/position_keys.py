"""Encodes and decodes the key of a source offset in Kafka Connect's offsets topic, byte for byte.

`["<connector>",{"cluster":"A","partition":0,"topic":"foo"}]`: Java finds an offset by the raw bytes of its
key, so field order, spaces (none) and Jackson's escapes are part of the format (`JsonConverter`,
`OffsetStorageReaderImpl`).
"""

from typing import NamedTuple

from mirrorflow_core.java.json_text import is_integer, parsed, quoted

_INT32_MAX = 2**31 - 1


class PositionKey(NamedTuple):
    """The owner of a stored offset: connector, source alias, source topic and partition."""

    connector: str
    cluster: str
    topic: str
    partition: int


def encode_key(key: PositionKey) -> bytes:
    """Return the exact bytes of Java's key."""
    where = f'{{"cluster":{quoted(key.cluster)},"partition":{key.partition},"topic":{quoted(key.topic)}}}'
    return f"[{quoted(key.connector)},{where}]".encode()


def decode_key(key: bytes | None) -> PositionKey | None:
    """Return the decoded key; None for a well-formed key of another kind of connector.

    Raises ValueError for anything that is not a key.
    """
    if key is None:
        message = "it is null"
        raise ValueError(message)
    found = parsed(key)
    if not (
        isinstance(found, list)
        and len(found) == 2
        and isinstance(found[0], str)
        and isinstance(found[1], dict)
    ):
        message = "it is not a connector's name with a source partition"
        raise ValueError(message)
    connector, where = found
    cluster, topic, partition = where.get("cluster"), where.get("topic"), where.get("partition")
    if set(where) != {"cluster", "topic", "partition"} or not (
        isinstance(cluster, str) and isinstance(topic, str)
    ):
        return None
    if not is_integer(partition) or not 0 <= partition <= _INT32_MAX:
        return None
    return PositionKey(connector, cluster, topic, partition)
