"""Lists and alters the stored offsets of one connector for REST (KIP-875), altering only while it is stopped.

A stored offset is a hint, and sequence numbers decide what is copied next. So altering an offset changes the
stream (docs/exactly-once.md, clause 9). First the change is decided in the identity topic: a new generation,
which fences the copiers of the previous one, and where each altered partition begins in it, whatever it has
copied. Then the offsets are written, in Java's bytes. A call that is interrupted in between has taken effect
but does not show; repeating it does it again.
"""

from collections.abc import Mapping

from mirrorflow_core.connect.position_keys import decode_key
from mirrorflow_core.exactly_once.identity import Beginning, Claim
from mirrorflow_core.java.json_text import parsed_object
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.records import Record
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import CompactedTopic
from mirrorflow_kafka.stores.decision_log import DecisionLog, new_identity
from mirrorflow_replicator.config.clients import data_producer
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.config.source import transaction_timeout_ms
from mirrorflow_replicator.config.worker import SOURCE_CONNECTOR, kept_offsets
from mirrorflow_replicator.http.command_decisions import simple_name
from mirrorflow_replicator.http.commands import AlterOffsets, ResetOffsets
from mirrorflow_replicator.http.connector_offsets import changed, connector_of, listed
from mirrorflow_replicator.process.clock import now_ms

CONNECT_TIMEOUT_S = 15.0
WHY = "offsets altered"


class OffsetChanges:
    """The offsets of one connector, for one request: `open`, then one of the other methods, then `close`."""

    def __init__(self, properties: Mapping[str, str], worker: Mapping[str, str]) -> None:
        """Takes the *properties* of the connector and of its *worker*. Raises SettingError."""
        self._storage, self._client = kept_offsets(properties, worker)
        self._name, self._source_alias = properties["name"], properties["source.cluster.alias"]
        self._class = simple_name(properties.get("connector.class", ""))
        self._resolver = Resolver({**worker, **properties})
        self._producer = data_producer(properties, worker)
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
        if self._class == SOURCE_CONNECTOR:
            await self._begin_anew(command, values)
        await self._log.append(values.items(), now_ms=now_ms())

    @property
    def transaction_timeout_ms(self) -> int:
        """The transaction timeout of its copiers; a target may not allow a longer one.

        Raises SettingError.
        """
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
        log = DecisionLog(cluster, alias, replication_factor=self._storage.replication_factor)
        await log.ensure()
        decisions = await log.read()
        decided = decisions.identity
        if decided is None:
            return  # we have never copied it: there is no stream yet, and the stored offsets decide
        first = _first_offsets(values, alias)
        if isinstance(command, ResetOffsets):
            # Also partitions that were copied and had no stored offset yet.
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
            log,
            cluster,
            alias,
            claim,
            earlier=decided,
            generation=generation,
            why=WHY,
            timeout_ms=self.transaction_timeout_ms,
        )
        if proposal is None:
            await self._begin_anew(command, values)
            return
        beginnings = [
            Beginning(generation=generation, topic=topic, partition=partition, source_offset=offset, why=WHY)
            for (topic, partition), offset in first.items()
        ]
        # In one batch if it fits: a generation without its beginnings would only be one more fence.
        await log.decide([*beginnings, proposal], now_ms=now_ms())


def _first_offsets(values: Mapping[bytes, bytes | None], source_alias: str) -> dict[TopicPartition, int]:
    """Returns where each partition is to begin: after its new offset; -1 where it has none any more."""
    found = {}
    for key, value in values.items():
        position = decode_key(key)
        if position is not None and position.cluster == source_alias:
            offset = -1 if value is None else parsed_object(value)["offset"] + 1
            found[TopicPartition(position.topic, position.partition)] = offset
    return found
