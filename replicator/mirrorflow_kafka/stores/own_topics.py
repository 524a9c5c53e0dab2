"""The topics that a flow creates for itself on a cluster, each with its settings: those of its first creation are those of each later one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from mirrorflow_core.settings import StorageTopicSettings
from mirrorflow_core.topics.retention_hold import identity_topic
from mirrorflow_core.writer.claim import claims_topic
from mirrorflow_kafka.admin.topics import NewTopic

MIRROR_TOPIC_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "compact"
}  # Java's MirrorUtils.createSinglePartitionCompactedTopic
# Each start reads the newest segment, which the cleaner leaves alone: what readers have to read of superseded records. Some
# managed clusters accept no less than 50 MiB.
OFFSET_MAP_SEGMENT_BYTES: Final = 50 << 20
# Some managed clusters take few settings of topics; without these, a topic loses nothing.
_OPTIONAL: Final = frozenset({"segment.bytes"})
# The first record of a hold counts, so nothing may be removed: neither by time nor by size nor by key.
_IDENTITY_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
}


def new_mirror_topic(name: str, replication_factor: int) -> NewTopic:
    """Returns a topic of MM2 with one partition: offset syncs, checkpoints, heartbeats."""
    return _single(name, replication_factor, MIRROR_TOPIC_CONFIGS)


def new_offset_map(name: str, replication_factor: int) -> NewTopic:
    """Returns the topic for the offset maps of a flow."""
    configs = {**MIRROR_TOPIC_CONFIGS, "segment.bytes": str(OFFSET_MAP_SEGMENT_BYTES)}
    return _single(name, replication_factor, configs)


def new_identity_topic(source_alias: str, replication_factor: int) -> NewTopic:
    """Returns the topic for marks of ACLs and holds of retention."""
    return _single(identity_topic(source_alias), replication_factor, _IDENTITY_CONFIGS)


def new_claims_topic(storage: StorageTopicSettings, source_alias: str) -> NewTopic:
    """Returns the topic for claims, replicated as the offsets topic *storage*."""
    return _single(claims_topic(source_alias), storage.replication_factor, _compacted(storage))


def new_storage_topic(storage: StorageTopicSettings) -> NewTopic:
    """Returns a topic of Connect."""
    return NewTopic(
        name=storage.topic,
        partitions=storage.partitions,
        replication_factor=storage.replication_factor,
        configs=_compacted(storage),
    )


def without_optional_settings(topic: NewTopic) -> NewTopic:
    """Returns *topic* with the settings alone without which it would lose records."""
    required = {name: value for name, value in topic.configs.items() if name not in _OPTIONAL}
    return replace(topic, configs=required)


def _compacted(storage: StorageTopicSettings) -> Mapping[str, str]:
    return {**storage.topic_configs, "cleanup.policy": "compact"}


def _single(name: str, replication_factor: int, configs: Mapping[str, str]) -> NewTopic:
    return NewTopic(name=name, partitions=1, replication_factor=replication_factor, configs=configs)
