"""Lists and alters the stored offsets of one connector for REST (KIP-875), altering only while it is stopped.

The offsets are written in Java's bytes. The next owner of the flow obeys them, whatever was copied before
(docs/exactly-once.md).
"""

from collections.abc import Mapping

from mirrorflow_core.wire.records import Record
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import CompactedTopic
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.config.worker import kept_offsets
from mirrorflow_replicator.http.command_decisions import simple_name
from mirrorflow_replicator.http.commands import AlterOffsets, ResetOffsets
from mirrorflow_replicator.http.connector_offsets import changed, connector_of, listed
from mirrorflow_replicator.process.clock import now_ms

CONNECT_TIMEOUT_S = 15.0


class OffsetChanges:
    """The offsets of one connector, for one request: `open`, then one of the other methods, then `close`."""

    def __init__(self, properties: Mapping[str, str], worker: Mapping[str, str]) -> None:
        """Takes the *properties* of the connector and of its *worker*. Raises SettingError."""
        self._storage, self._client = kept_offsets(properties, worker)
        self._name = properties["name"]
        self._class = simple_name(properties.get("connector.class", ""))
        self._resolver = Resolver({**worker, **properties})
        self._records: dict[bytes, bytes] = {}
        self._cluster: Cluster | None = None
        self._log: CompactedTopic | None = None

    async def open(self) -> None:
        """Reads all stored offsets of the connector. Raises ClusterError."""
        self._cluster = await Cluster.connect(
            self._client, resolve=self._resolver.resolve_client, timeout_s=CONNECT_TIMEOUT_S
        )
        self._log = CompactedTopic(self._cluster, self._storage, key="offset.storage.topic")
        await self._log.open()
        await self._log.read_new(self._take)

    async def close(self) -> None:
        """Closes the connections."""
        if self._cluster is not None:
            await self._cluster.close()

    def listed(self) -> list[dict[str, object]]:
        """Returns the entries of `GET /connectors/NAME/offsets`."""
        return listed(self._records)

    async def change(self, command: AlterOffsets | ResetOffsets) -> None:
        """Carries out *command*.

        Raises ConnectError (nothing has changed) or ClusterError (everything may have changed).
        """
        values = changed(command, self._class, self._records)
        assert self._log is not None
        await self._log.append(values.items(), now_ms=now_ms())

    def _take(self, record: Record) -> None:
        if record.key is None or connector_of(bytes(record.key)) != self._name:
            return
        if record.value is None:
            self._records.pop(bytes(record.key), None)
        else:
            self._records[bytes(record.key)] = bytes(record.value)
