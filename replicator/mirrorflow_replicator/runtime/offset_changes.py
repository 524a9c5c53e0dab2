"""The positions of one connector as REST shows and alters them (KIP-875); altered only while it does not run.

A position is a hint, and the stream's own numbers decide what is copied next: so to alter one is to change the stream
(DESIGN 4.2, clause 9). That is decided first, where decisions are kept: a new generation, which fences copiers of the one
before, and where each altered partition begins in it, whatever it has copied. Then the positions are written, in Java's
bytes. Where this is cut off in between, it has been done and does not show; asked for again, it is done again.
"""

from collections.abc import Mapping

from mirrorflow_replicator.connect.clients import data_producer
from mirrorflow_replicator.connect.commands import AlterOffsets, ResetOffsets
from mirrorflow_replicator.connect.connector_offsets import changed, connector_of, listed
from mirrorflow_replicator.connect.herd import simple_name
from mirrorflow_replicator.connect.java_json import parsed_object
from mirrorflow_replicator.connect.position_keys import decode_key
from mirrorflow_replicator.connect.providers import Resolver
from mirrorflow_replicator.connect.source import transaction_timeout_ms
from mirrorflow_replicator.connect.worker import SOURCE_CONNECTOR, kept_offsets
from mirrorflow_replicator.flow.identity import Beginning, Claim
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.identity import IdentityLog, new_identity
from mirrorflow_replicator.kafka.storage_log import StorageLog
from mirrorflow_replicator.runtime.clock import now_ms
from mirrorflow_replicator.wire.records import Record

CONNECT_TIMEOUT_S = 15.0
WHY = "offsets altered"


class OffsetChanges:
    """See the module. Made for one request: `open`, then one of the others, then `close`."""

    def __init__(self, properties: Mapping[str, str], worker: Mapping[str, str]) -> None:
        """Of the connector with *properties*, in a worker with these. Raises SettingError."""
        self._storage, self._client = kept_offsets(properties, worker)
        self._name, self._source_alias = properties["name"], properties["source.cluster.alias"]
        self._class = simple_name(properties.get("connector.class", ""))
        self._resolver = Resolver({**worker, **properties})
        self._producer = data_producer(properties, worker)
        self._records: dict[bytes, bytes] = {}
        self._cluster: Cluster | None = None
        self._log: StorageLog | None = None

    async def open(self) -> None:
        """Read all positions of the connector. Raises ClusterError."""
        self._cluster = await Cluster.connect(
            self._client, resolve=self._resolver.resolve_client, timeout_s=CONNECT_TIMEOUT_S
        )
        self._log = StorageLog(self._cluster, self._storage, key="offset.storage.topic")
        await self._log.open()
        await self._log.read_new(self._take)

    async def close(self) -> None:
        """End the connections."""
        if self._cluster is not None:
            await self._cluster.close()

    def listed(self) -> list[dict[str, object]]:
        """The entries of `GET /connectors/NAME/offsets`."""
        return listed(self._records)

    async def change(self, command: AlterOffsets | ResetOffsets) -> None:
        """Carry out *command*. Raises ConnectError and changes nothing; ClusterError, and may have changed all."""
        values = changed(command, self._class, self._records)
        assert self._log is not None
        if self._class == SOURCE_CONNECTOR:
            await self._begin_anew(command, values)
        await self._log.append(values.items(), now_ms=now_ms())

    @property
    def transaction_timeout_ms(self) -> int:
        """As for its copiers: a target may allow no longer one. Raises SettingError."""
        return transaction_timeout_ms(self._producer, self._resolver)

    def _take(self, record: Record) -> None:
        if record.key is None or connector_of(bytes(record.key)) != self._name:
            return
        if record.value is None:
            self._records.pop(bytes(record.key), None)
        else:
            self._records[bytes(record.key)] = bytes(record.value)

    async def _begin_anew(
        self, command: AlterOffsets | ResetOffsets, values: Mapping[bytes, bytes | None]
    ) -> None:
        cluster, alias = self._cluster, self._source_alias
        assert cluster is not None
        log = IdentityLog(cluster, alias, replication_factor=self._storage.replication_factor)
        await log.ensure()
        decisions = await log.read()
        decided = decisions.identity
        if decided is None:
            return  # never copied by us: there is no stream yet, and the positions say all
        first = _first_offsets(values, alias)
        if isinstance(command, ResetOffsets):
            # Also what was copied and had no position yet.
            first = dict.fromkeys(decisions.partitions(), -1) | first
        generation = decided.generation + 1
        claim = Claim(
            source_cluster_id=decided.source_cluster_id,
            target_cluster_id=decided.target_cluster_id,
            policy=decided.policy,
            flow=decided.flow,
            stream=decided.stream,
        )
        proposal = await new_identity(
            cluster, alias, claim, generation=generation, why=WHY, timeout_ms=self.transaction_timeout_ms
        )
        beginnings = [
            Beginning(generation=generation, topic=topic, partition=partition, source_offset=offset, why=WHY)
            for (topic, partition), offset in first.items()
        ]
        # In one batch where they fit: a generation without its beginnings would only be one more fence.
        await log.decide([*beginnings, proposal], now_ms=now_ms())


def _first_offsets(values: Mapping[bytes, bytes | None], source_alias: str) -> dict[TopicPartition, int]:
    """Where each partition is to begin: behind its new position; -1 where it has none any more."""
    found = {}
    for key, value in values.items():
        position = decode_key(key)
        if position is not None and position.cluster == source_alias:
            offset = -1 if value is None else parsed_object(value)["offset"] + 1
            found[TopicPartition(position.topic, position.partition)] = offset
    return found
