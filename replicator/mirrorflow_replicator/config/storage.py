"""Reads the settings of the topics in which a worker stores offsets, connectors and statuses.

`offset.storage.*` are the keys of KIP-304, also in Connect's own spelling; `config.storage.*` and
`status.storage.*` are those of a distributed worker (`DistributedConfig`).
"""

from collections.abc import Mapping

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.java.properties import PropertyReader
from mirrorflow_core.replication_policy import worker_topic
from mirrorflow_core.settings import (
    ClientSettings,
    OffsetStorageSettings,
    OffsetStore,
    StorageTopicSettings,
    WorkerTopicsSettings,
)
from mirrorflow_replicator.config import clients

STATUS_PARTITIONS = 5  # Connect's
_PREFIX = "offset.storage."
_KAFKA = "kafka."
_CLIENTS = {"config": "configs", "status": "statuses"}  # as Connect names them
_OWN = frozenset({"store", "topic", "partitions", "replication.factor", "file.filename", "cleanup.policy"})


def offset_storage(
    read: PropertyReader, worker: Mapping[str, str], source_alias: str, target_admin: ClientSettings
) -> OffsetStorageSettings:
    """Returns the offset store of the *worker* that *read* reads.

    *target_admin* provides the connection where the worker has none.
    """

    def spelled(key: str) -> str:
        long = _PREFIX + _KAFKA + key
        return long if long in read else _PREFIX + key

    store = OffsetStore(read.choice(spelled("store"), ("kafka", "file")))
    file = read.text("offset.storage.file.filename") or None
    if store is OffsetStore.FILE and file is None:
        raise InvalidSettingError(
            key="offset.storage.file.filename",
            problem="it is missing",
            action="name a file, or write offset.storage.store=kafka",
        )
    # All other keys are settings of the topic itself, as in Connect.
    configs = {
        key.removeprefix(_KAFKA): read.text(_PREFIX + key)
        for key in clients.with_prefix(worker, _PREFIX)
        if key.removeprefix(_KAFKA) not in _OWN and not clients.is_shared(key.removeprefix(_KAFKA))
    }
    return OffsetStorageSettings(
        store=store,
        topic=read.text(spelled("topic")) or worker_topic("offsets", source_alias),
        partitions=read.whole(spelled("partitions"), minimum=-1, maximum=100_000),
        replication_factor=replication_factor(read, spelled("replication.factor")),
        topic_configs=configs,
        file=file,
        client=clients.client_settings(
            target_admin.alias,
            f"{_client_base(worker)}-offsets",
            clients.offsets_client(worker, clients.shared(target_admin.properties)),
        ),
    )


def worker_topics(read: PropertyReader, worker: Mapping[str, str], target_alias: str) -> WorkerTopicsSettings:
    """Returns the config and status topics of the *worker* that *read* reads; raises InvalidSettingError."""
    return WorkerTopicsSettings(
        configs=_worker_topic(read, worker, target_alias, kind="config", partitions=1),
        statuses=_worker_topic(
            read,
            worker,
            target_alias,
            kind="status",
            partitions=read.whole(
                "status.storage.partitions", STATUS_PARTITIONS, minimum=-1, maximum=100_000
            ),
        ),
    )


def _worker_topic(
    read: PropertyReader, worker: Mapping[str, str], target_alias: str, *, kind: str, partitions: int
) -> StorageTopicSettings:
    prefix = f"{kind}.storage."
    given = clients.with_prefix(worker, prefix)
    topic = read.text(prefix + "topic")
    if not topic:
        raise InvalidSettingError(
            key=prefix + "topic", problem="it is missing", action="name a compacted topic on the target"
        )
    return StorageTopicSettings(
        topic=topic,
        partitions=partitions,
        replication_factor=replication_factor(read, prefix + "replication.factor"),
        # All other keys are settings of the topic itself, as in Connect.
        topic_configs={key: read.text(prefix + key) for key in given if key not in _OWN},
        client=clients.client_settings(
            target_alias, f"{_client_base(worker)}-{_CLIENTS[kind]}", clients.shared(worker)
        ),
    )


def _client_base(worker: Mapping[str, str]) -> str:
    """Returns Java's name: group.id, or "connect" without a group, then the worker's client.id."""
    return "-".join(filter(None, (worker.get("group.id") or "connect", worker.get("client.id", "").strip())))


def replication_factor(read: PropertyReader, key: str) -> int:
    """Returns -1 (the cluster's default) or a factor of at least 1. Raises InvalidSettingError."""
    value = read.whole(key, -1, minimum=-1, maximum=2**15 - 1)
    if value == 0:
        raise InvalidSettingError(
            key=key, problem="0 is out of bounds", action="write -1 (the cluster's default) or at least 1"
        )
    return value
