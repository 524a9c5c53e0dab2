"""Derives the properties of each client of a connector, by MM2's and Connect's prefix rules.

`source.cluster.K` counts only for keys that every client has (addresses, TLS, SASL). `consumer.K` overrides
it, and `source.consumer.K` overrides both; likewise for admin clients of either side
(`MirrorConnectorConfig`). The data producer is the Connect worker's: the worker's own connection,
`producer.K` of the worker, then `producer.override.K` of the connector (`Worker.producerConfigs`). Beyond
Java, `target.cluster.*` and `target.producer.*` reach the data producer too, because one process has one
target and they have no other purpose. References stay as they are written.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.settings import ClientSettings

_TASK_PRODUCER = "connector-producer-{connector}-{task}"  # Worker.producerConfigs
_SHARED = re.compile(r"bootstrap\.servers|security\.protocol|ssl\..*|sasl\..*")


def is_shared(key: str) -> bool:
    """Whether every kind of client accepts *key* (Java: MirrorClientConfig's own keys)."""
    return _SHARED.fullmatch(key) is not None


def with_prefix(properties: Mapping[str, str], prefix: str) -> dict[str, str]:
    """Returns the entries whose key begins with *prefix*, without it."""
    return {key.removeprefix(prefix): value for key, value in properties.items() if key.startswith(prefix)}


def shared(properties: Mapping[str, str]) -> dict[str, str]:
    """Returns the entries that every kind of client accepts."""
    return {key: value for key, value in properties.items() if is_shared(key)}


def connector_client(properties: Mapping[str, str], side: str, kind: str) -> dict[str, str]:
    """Returns a connector's own client: *side* is source or target, *kind* consumer, producer or admin."""
    return {
        **shared(with_prefix(properties, f"{side}.cluster.")),
        **with_prefix(properties, f"{kind}."),
        **with_prefix(properties, f"{side}.{kind}."),
    }


def target_client(properties: Mapping[str, str], worker: Mapping[str, str], kind: str) -> dict[str, str]:
    """Returns a connector's client of the target, over the worker's connection if it has no addresses."""
    own = connector_client(properties, "target", kind)
    return own if own.get("bootstrap.servers") else shared(worker) | own


def require_addresses(client: Mapping[str, str], *, key: str) -> None:
    """Raises InvalidSettingError, naming *key*, if *client* has no bootstrap servers."""
    if not client.get("bootstrap.servers", "").strip():
        raise InvalidSettingError(key=key, problem="it is missing", action="write host:port,host:port")


def data_producer(properties: Mapping[str, str], worker: Mapping[str, str]) -> dict[str, str]:
    """Returns the producer that writes the copied records."""
    connection = shared(worker)
    if not connection.get("bootstrap.servers"):
        connection = shared(with_prefix(properties, "target.cluster."))
    own = with_prefix(properties, "target.producer.")
    own.pop("client.id", None)  # in Java it names only the producer of offset syncs
    return {
        **connection,
        **with_prefix(worker, "producer."),
        **own,
        **with_prefix(properties, "producer.override."),
    }


def offsets_client(worker: Mapping[str, str], fallback: Mapping[str, str]) -> dict[str, str]:
    """Returns the client of the offsets topic: the worker's, with KIP-304's separate settings for it."""
    own = shared(with_prefix(worker, "offset.storage.")) | shared(
        with_prefix(worker, "offset.storage.kafka.")
    )
    connection = shared(worker)
    if not connection.get("bootstrap.servers"):
        connection = dict(fallback)
    return connection | own


def label(source_alias: str, target_alias: str, connector: str) -> str:
    """Returns the beginning of the names of a connector's own clients (MirrorConnectorConfig.entityLabel)."""
    return f"{source_alias}->{target_alias}|{connector}"


def task_client(alias: str, label: str, role: str, properties: Mapping[str, str]) -> ClientSettings:
    """Returns a client that each task of the connector with *label* has.

    It is named for task 0 until `numbered` renames it.
    """
    return client_settings(alias, f"{label}-0|{role}", properties)


def task_producer(alias: str, connector: str, properties: Mapping[str, str]) -> ClientSettings:
    """Returns the worker's producer for a task; a user's `client.id` replaces Connect's name, as in Java."""
    own = dict(properties)
    client_id = own.pop("client.id", "").strip() or _TASK_PRODUCER.format(connector=connector, task=0)
    return ClientSettings(alias=alias, client_id=client_id, properties=own)


def numbered(client: ClientSettings, *, label: str, connector: str, task: int) -> ClientSettings:
    """Returns the result of `task_client` or `task_producer` with the name for task number *task*."""
    client_id = client.client_id
    if client_id == _TASK_PRODUCER.format(connector=connector, task=0):
        client_id = _TASK_PRODUCER.format(connector=connector, task=task)
    else:
        before, mark, role = client_id.rpartition(f"{label}-0|")
        client_id = f"{before}{label}-{task}|{role}" if mark else client_id
    return replace(client, client_id=client_id)


def client_settings(alias: str, role: str, properties: Mapping[str, str]) -> ClientSettings:
    """Returns one client, named as in MM2: the user's own `client.id`, if any, and `role`."""
    own = dict(properties)
    prefix = own.pop("client.id", "").strip()
    return ClientSettings(alias=alias, client_id=f"{prefix}|{role}" if prefix else role, properties=own)
