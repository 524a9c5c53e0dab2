"""Creates the flow's own topics again if they were deleted, and corrects their settings where it may.

A topic that was created by other means, with a broker's default retention, would lose decisions or offsets
after a week: the flow continues to copy, but cannot continue after its next restart.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from mirrorflow_core.connect.mirror_records import offset_map_topic
from mirrorflow_core.errors import NotAuthorizedError, UnsupportedBrokerError
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.settings import OffsetStore, OffsetSyncSettings, SourceSettings
from mirrorflow_core.topics.topic_configs import ConfigChange, ConfigEntry
from mirrorflow_core.wire.error_codes import UNKNOWN_TOPIC_OR_PARTITION
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores import own_topics
from mirrorflow_kafka.stores.compacted_topic import try_to_create
from mirrorflow_replicator.config.connector_properties import offset_syncs_topic

log = logging.getLogger(__name__)

DELETE_RETENTION: Final = "delete.retention.ms"
DELETE_RETENTION_MS: Final = "86400000"  # Kafka's default
# The cleaner removes abort markers and tombstones after this time. A reader that began before then takes aborted
# records for committed ones. None of these topics takes an hour to read.
DELETE_RETENTION_MIN_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class UncorrectedTopics:
    """Topics that were not corrected on cluster *alias*.

    *refused*: a message for each topic that loses records and may not be changed; *unread*: topics that may
    not be read.
    """

    alias: str
    refused: tuple[str, ...]
    unread: tuple[str, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """A message for each topic that loses records, or may do so."""
        return self.refused + tuple(
            f"The configs of topic {name} on {self.alias} cannot be read, so its retention is unknown: grant DescribeConfigs on "
            "it (`mirrorflow acls` prints the command)."
            for name in self.unread
        )


def internal_topics(settings: SourceSettings, *, has_owner: bool = True) -> list[admin.NewTopic]:
    """Returns the flow's topics on the target, as it would create them.

    They are the topics for claims (only where the flow has an owner), marks of ACLs, offsets, offset map and offset syncs.
    """
    offsets, alias = settings.offsets, settings.source_alias
    topics = []
    if has_owner:
        topics.append(own_topics.new_claims_topic(offsets, alias))
    if settings.sync_acls_s is not None and not settings.acls_report_only:
        topics.append(own_topics.new_identity_topic(alias, offsets.replication_factor))
    if offsets.store is OffsetStore.KAFKA:
        topics.append(own_topics.new_storage_topic(offsets))
    if settings.syncs is not None:
        topics.append(own_topics.new_offset_map(offset_map_topic(alias), offsets.replication_factor))
    if settings.syncs is not None and not settings.syncs.on_source:
        topics.append(_offset_syncs(settings, settings.syncs))
    return topics


def internal_topics_of_source(settings: SourceSettings) -> list[admin.NewTopic]:
    """Returns the flow's topics on the source.

    These are offset syncs, by MM2's default for `offset-syncs.topic.location`.
    """
    if settings.syncs is None or not settings.syncs.on_source:
        return []
    return [_offset_syncs(settings, settings.syncs)]


def _offset_syncs(settings: SourceSettings, syncs: OffsetSyncSettings) -> admin.NewTopic:
    return own_topics.new_mirror_topic(
        offset_syncs_topic(settings, on_source=syncs.on_source), syncs.replication_factor
    )


def is_internal(topic: str) -> bool:
    """Returns whether MM2 gives this name to topics of its own, with any separator.

    Source: ReplicationPolicy.isMM2InternalTopic.
    """
    return topic.endswith("internal") and (topic.startswith("mm2-") or "checkpoints" in topic)


def corrections(topic: admin.NewTopic, entries: Iterable[ConfigEntry]) -> tuple[ConfigChange, ...]:
    """Returns the changes without which *topic* would lose records; () if it keeps all. *entries*: its settings."""
    values = {entry.name: entry.value for entry in entries}
    keeping = ("cleanup.policy", "retention.ms", "retention.bytes")
    wanted = {name: topic.configs[name] for name in keeping if name in topic.configs}
    kept_ms = int(values.get(DELETE_RETENTION) or DELETE_RETENTION_MS)
    if wanted.get("cleanup.policy") == "compact" and kept_ms < DELETE_RETENTION_MIN_MS:
        wanted[DELETE_RETENTION] = DELETE_RETENTION_MS
    return tuple(
        ConfigChange(name=name, value=value)
        for name, value in wanted.items()
        if values.get(name, value) != value
    )


async def correct_topic_configs(
    cluster: Cluster, topics: Iterable[admin.NewTopic], *, validate_only: bool = False
) -> UncorrectedTopics:
    """Sets the required settings on those of *topics* that exist. *validate_only*: nothing is changed.

    A topic whose name is not one of MM2's internal ones may hold other data and is never changed. Raises ClusterError.
    """
    wanted: dict[str, tuple[ConfigChange, ...]] = {}
    unread: list[str] = []
    for topic in topics:
        try:
            configs = await admin.describe_topic_configs(cluster, [topic.name])
        except NotAuthorizedError:
            unread.append(topic.name)
            continue
        if topic.name in configs and (changes := corrections(topic, configs[topic.name])):
            wanted[topic.name] = changes
    foreign = {name: wanted.pop(name) for name in list(wanted) if not is_internal(name)}
    refused = await _alter(cluster, wanted, validate_only=validate_only) if wanted else ()
    refused += tuple(
        _warning(cluster.alias, name, of, "it may hold other data") for name, of in foreign.items()
    )
    return UncorrectedTopics(alias=cluster.alias, refused=refused, unread=tuple(unread))


async def create_again(cluster: Cluster, topics: Iterable[admin.NewTopic], seen: set[str]) -> None:
    """Creates those of *topics* that are missing and were seen before, and notes in *seen* which there are. Raises ClusterError."""
    wanted = {topic.name: topic for topic in topics}
    await cluster.refresh(wanted)
    for name, topic in wanted.items():
        known = cluster.metadata.topics.get(name)
        if known is not None and not known.error:
            seen.add(name)
        elif name in seen and (known is None or known.error == UNKNOWN_TOPIC_OR_PARTITION):
            refusal = await try_to_create(cluster, topic)
            if refusal is not None:
                cluster.raise_for(refusal.code, "CreateTopics", name, message=refusal.message)
            await admin.wait_for_leaders(cluster, name)
            log.warning(
                "Topic %s on %s was deleted while the flow runs; it is created again.", name, cluster.alias
            )


async def _alter(
    cluster: Cluster, wanted: Mapping[str, Sequence[ConfigChange]], *, validate_only: bool
) -> tuple[str, ...]:
    try:
        results = await admin.alter_topic_configs(cluster, wanted, validate_only=validate_only)
    except UnsupportedBrokerError as error:
        return tuple(_warning(cluster.alias, name, changes, str(error)) for name, changes in wanted.items())
    for name, refusal in results.items():
        if refusal is None and not validate_only:
            log.info("Set %s on topic %s of %s.", _pairs(wanted[name]), name, cluster.alias)
    return tuple(
        _warning(cluster.alias, name, wanted[name], str(refusal))
        for name, refusal in results.items()
        if refusal is not None
    )


def _warning(alias: str, topic: str, changes: Iterable[ConfigChange], why: str) -> str:
    return (
        f"Topic {topic} on {alias} loses records of this flow with time, and its settings may not be changed by it "
        f"({' '.join(why.split()).rstrip('.')}); ask an administrator to run kafka-configs.sh --alter --entity-type topics "
        f"--entity-name {topic} --add-config {_pairs(changes)}."
    )


def _pairs(changes: Iterable[ConfigChange]) -> str:
    return ",".join(f"{change.name}={change.value}" for change in changes)
