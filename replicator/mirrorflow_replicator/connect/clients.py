"""The properties of each client of a connector, by MM2's and Connect's prefix rules.

`source.cluster.K` counts only for keys that every client has (addresses, TLS, SASL); then `consumer.K`, then
`source.consumer.K` win, and likewise for admin clients of either side (`MirrorConnectorConfig`). The data producer is
the Connect worker's: the worker's own connection, `producer.K` of the worker, then `producer.override.K` of the
connector (`Worker.producerConfigs`). Beyond Java, `target.cluster.*` and `target.producer.*` reach the data producer
too, because one process has one target and nobody writes them for another purpose.
References stay as they are written.
"""

import re
from collections.abc import Mapping

from mirrorflow_replicator.errors import InvalidSettingError
from mirrorflow_replicator.settings import ClientSettings

TASK_MARK = "-?|"  # as Java writes the name of a client before its task is known
_SHARED = re.compile(r"bootstrap\.servers|security\.protocol|ssl\..*|sasl\..*")


def is_shared(key: str) -> bool:
    """Whether every kind of client takes *key* (Java: MirrorClientConfig's own keys)."""
    return _SHARED.fullmatch(key) is not None


def with_prefix(properties: Mapping[str, str], prefix: str) -> dict[str, str]:
    """The entries whose key begins with *prefix*, without it."""
    return {key.removeprefix(prefix): value for key, value in properties.items() if key.startswith(prefix)}


def shared(properties: Mapping[str, str]) -> dict[str, str]:
    """The entries that every kind of client takes."""
    return {key: value for key, value in properties.items() if is_shared(key)}


def connector_client(properties: Mapping[str, str], side: str, kind: str) -> dict[str, str]:
    """A connector's own client: *side* is source or target, *kind* consumer, producer or admin."""
    return {
        **shared(with_prefix(properties, f"{side}.cluster.")),
        **with_prefix(properties, f"{kind}."),
        **with_prefix(properties, f"{side}.{kind}."),
    }


def target_client(properties: Mapping[str, str], worker: Mapping[str, str], kind: str) -> dict[str, str]:
    """A connector's own client of the target, over the worker's connection where it has no addresses of its own."""
    own = connector_client(properties, "target", kind)
    return own if own.get("bootstrap.servers") else shared(worker) | own


def require_addresses(client: Mapping[str, str], *, key: str) -> None:
    """Raises InvalidSettingError, naming *key*, where *client* is not told where its cluster is."""
    if not client.get("bootstrap.servers", "").strip():
        raise InvalidSettingError(key=key, problem="it is missing", action="write host:port,host:port")


def data_producer(properties: Mapping[str, str], worker: Mapping[str, str]) -> dict[str, str]:
    """The producer that writes the copied records."""
    connection = shared(worker)
    if not connection.get("bootstrap.servers"):
        connection = shared(with_prefix(properties, "target.cluster."))
    return {
        **connection,
        **with_prefix(worker, "producer."),
        **with_prefix(properties, "target.producer."),
        **with_prefix(properties, "producer.override."),
    }


def offsets_client(worker: Mapping[str, str], fallback: Mapping[str, str]) -> dict[str, str]:
    """The client of the offsets topic: the worker's, with what KIP-304 lets one set apart for it."""
    own = shared(with_prefix(worker, "offset.storage.")) | shared(
        with_prefix(worker, "offset.storage.kafka.")
    )
    connection = shared(worker)
    if not connection.get("bootstrap.servers"):
        connection = dict(fallback)
    return connection | own


def client_settings(alias: str, role: str, properties: Mapping[str, str]) -> ClientSettings:
    """One client, named as MM2 names it: `role`, after the user's own `client.id` if there is one."""
    own = dict(properties)
    prefix = own.pop("client.id", "").strip()
    return ClientSettings(alias=alias, client_id=f"{prefix}|{role}" if prefix else role, properties=own)
