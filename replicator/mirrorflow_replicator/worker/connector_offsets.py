"""Lists and alters the stored offsets of one connector for REST (KIP-875), altering only while it is stopped.

The offsets are written in Java's bytes. The next owner of the flow obeys them, whatever was copied before
(docs/exactly-once.md).

Stored keys keep their bytes; a new key gets the order of fields in which Java looks it up. MM2 defines what
may be altered (`alterOffsets` of its three connectors, `MirrorUtils`); messages and status codes are Java's.
Deleting an offset is always allowed, so that invalid entries can be removed.
"""

import json
from collections.abc import Mapping
from typing import Any

from mirrorflow_core.connect.session_keys import ConnectError
from mirrorflow_core.java.json_text import dumped, is_integer, parsed, parsed_object
from mirrorflow_core.wire.records import Record
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import CompactedTopic
from mirrorflow_replicator.config.connector_classes import simple_name
from mirrorflow_replicator.config.connector_properties import connector_offset_storage
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.http.commands import AlterOffsets, ResetOffsets
from mirrorflow_replicator.process import now_ms

CONNECT_TIMEOUT_S = 15.0
Part = Mapping[str, Any]
# By class: the text fields of a source partition. Then the fields in the order of Java's hash map.
_SOURCE = "MirrorSourceConnector"
_TEXTS = {
    _SOURCE: ("cluster", "topic"),
    "MirrorCheckpointConnector": ("group", "topic"),
    "MirrorHeartbeatConnector": ("sourceClusterAlias", "targetClusterAlias"),
}
_ORDERS = (
    ("cluster", "partition", "topic"),
    ("partition", "topic", "group"),
    ("sourceClusterAlias", "targetClusterAlias"),
)
_NUMBERED = (_SOURCE, "MirrorCheckpointConnector")
_OFFSET = "offset"
_INT32_MAX = 2**31 - 1


class OffsetChanges:
    """The offsets of one connector, for one request: `open`, then one of the other methods, then `close`."""

    def __init__(self, properties: Mapping[str, str], worker: Mapping[str, str]) -> None:
        """Takes the *properties* of the connector and of its *worker*. Raises SettingError."""
        self._storage, self._client = connector_offset_storage(properties, worker)
        self._name = properties["name"]
        self._class = simple_name(properties.get("connector.class", ""))
        self._resolver = Resolver({**worker, **properties})
        self._records: dict[bytes, bytes] = {}
        self._cluster: Cluster | None = None
        self._log: CompactedTopic | None = None

    async def open(self) -> CompactedTopic:
        """Reads all stored offsets of the connector. Raises ClusterError."""
        self._cluster = await Cluster.connect(
            self._client, resolve=self._resolver.resolve_client, timeout_s=CONNECT_TIMEOUT_S
        )
        log = CompactedTopic(self._cluster, self._storage, key="offset.storage.topic")
        await log.open()
        await log.read_new(self._take)
        self._log = log
        return log

    async def close(self) -> None:
        if self._cluster is not None:
            await self._cluster.close()

    def listed(self) -> list[dict[str, object]]:
        return listed(self._records)

    async def change(self, command: AlterOffsets | ResetOffsets) -> None:
        """Carries out *command*.

        Raises ConnectError (nothing has changed) or ClusterError (everything may have changed).
        """
        log = self._log or await self.open()
        values = changed(command, self._class, self._records)
        await log.append(values.items(), now_ms=now_ms())

    def _take(self, record: Record) -> None:
        if record.key is None or connector_of(bytes(record.key)) != self._name:
            return
        if record.value is None:
            self._records.pop(bytes(record.key), None)
        else:
            self._records[bytes(record.key)] = bytes(record.value)


def connector_of(key: bytes | None) -> str | None:
    """Returns the connector of a record's key in the offsets topic; None if it is not Connect's."""
    try:
        parts = parsed(key) if key is not None else None
    except ValueError:
        return None
    if (
        isinstance(parts, list)
        and len(parts) == 2
        and isinstance(parts[0], str)
        and isinstance(parts[1], dict)
    ):
        return parts[0]
    return None


def listed(records: Mapping[bytes, bytes]) -> list[dict[str, object]]:
    """Returns the entries of `GET /connectors/NAME/offsets`; of our offsets, only Java's field."""
    entries: list[dict[str, object]] = []
    for key, value in sorted(records.items()):
        try:
            fields = parsed_object(value)
        except ValueError:
            continue  # not shown, as it could not be altered to anything sensible; a reset deletes it
        offset: Any = fields.get(_OFFSET)
        if is_integer(offset) and offset < 0:
            continue  # Java ignores a negative offset too
        shown = {_OFFSET: offset} if _OFFSET in fields else fields
        entries.append({"partition": parsed(key)[1], "offset": shown})
    return entries


def changed(
    command: AlterOffsets | ResetOffsets, connector_class: str, records: Mapping[bytes, bytes]
) -> dict[bytes, bytes | None]:
    """Returns what to write for *command*, by key; None deletes an offset.

    Raises ConnectError before anything is written.
    """
    if isinstance(command, ResetOffsets):
        return dict.fromkeys(records)
    values: dict[bytes, bytes | None] = {}
    for partition, offset in command.offsets:
        if offset is not None:
            _check(connector_class, partition, offset)
        if partition is not None:  # nothing is stored for a null partition, so there is nothing to delete
            value = None if offset is None else _compact({_OFFSET: offset[_OFFSET]})
            values[_key(command.name, partition, records)] = value
    return values


def _key(name: str, partition: Part, records: Mapping[bytes, bytes]) -> bytes:
    for key in records:
        if parsed(key)[1] == partition:
            return key
    for order in _ORDERS:
        if partition.keys() == set(order):
            return _compact([name, {field: partition[field] for field in order}])
    return _compact([name, dict(partition)])


def _check(connector_class: str, partition: Part | None, offset: Part) -> None:
    texts = _TEXTS.get(connector_class)
    if texts is None:
        raise ConnectError(
            400,
            f"Failed to modify offsets because {connector_class} doesn't support external modification of offsets",
        )
    if partition is None:
        raise ConnectError(500, "Source partitions may not be null")
    where = f"Source partition {_shown(partition)}"
    for field in texts:
        _present(field, partition, where)
        if not isinstance(partition[field], str):
            raise ConnectError(500, _invalid(where, partition, field, ", which must be a string"))
    if connector_class in _NUMBERED:
        _present("partition", partition, where)
        number = _integer(partition["partition"])
        if number is None or number > _INT32_MAX:
            raise ConnectError(500, _invalid(where, partition, "partition", ", which must be an integer"))
        if number < 0:
            raise ConnectError(500, _invalid(where, partition, "partition", ", which cannot be negative"))
    _check_offset(partition, offset, only_zero=connector_class != _SOURCE)


def _check_offset(partition: Part, offset: Part, *, only_zero: bool) -> None:
    what = f"Source offset {_shown(offset)} for source partition {_shown(partition)}"
    _present(_OFFSET, offset, what)
    number = _integer(offset[_OFFSET])
    if number is None:
        raise ConnectError(500, _invalid(what, offset, _OFFSET, ", which must be an integer"))
    if only_zero and number != 0:
        raise ConnectError(500, _invalid(what, offset, _OFFSET, "; the only accepted value is 0"))
    if number < 0:
        raise ConnectError(500, _invalid(what, offset, _OFFSET, ", which cannot be negative"))


def _present(field: str, fields: Part, what: str) -> None:
    if field not in fields:
        raise ConnectError(500, f"{what} is missing the '{field}' key, which is required")


def _invalid(what: str, fields: Part, field: str, rule: str) -> str:
    return f"{what} has an invalid value {_java(fields[field])} for the '{field}' key{rule}"


def _integer(value: Any) -> int | None:
    """Returns a JSON integer as Java's long; None for anything else, also for text that looks like one."""
    return value if is_integer(value) and abs(value) < 2**63 else None


def _shown(fields: Part) -> str:
    """Formats a map as Java prints it."""
    return "{" + ", ".join(f"{name}={_java(value)}" for name, value in fields.items()) + "}"


def _java(value: object) -> str:
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return _shown(value) if isinstance(value, dict) else str(value)


def _compact(value: object) -> bytes:
    return dumped(value).encode()
