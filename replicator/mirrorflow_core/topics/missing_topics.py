"""Plans which topics to create on the target, and which need more partitions. No I/O.

Follows MM2's rules (`MirrorSourceConnector`: computeAndCreateTopicPartitions). `topic_configs` decides topic
settings, and `assignment` which task copies which partition. `connectors.source_connector` queries both
clusters, and `connectors.topic_sync` carries out the plans.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from mirrorflow_core.topics.topic_configs import ConfigEntry, ConfigRules, creation_configs


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopicPlan:
    """A topic to create on the target. `replication_factor` -1: the target's default."""

    name: str
    source: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthPlan:
    """A target topic that needs `total` partitions."""

    name: str
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyPlan:
    """Topics to create and to grow.

    `clashes`: omitted source topics, each with the topic that has its target name.
    """

    create: tuple[NewTopicPlan, ...] = ()
    grow: tuple[GrowthPlan, ...] = ()
    clashes: Mapping[str, str]


def target_names(
    topics: Collection[str], remote: Callable[[str], str], before: Collection[str] = ()
) -> tuple[dict[str, str], dict[str, str]]:
    """Return source topic -> target topic, and clashes: source topic -> the topic that has its target name.

    Two topics copied into one would share sequence numbers, so only one is copied: the one in *before*, which
    was copied until now, else the first by name.
    """
    names: dict[str, str] = {}
    clashes: dict[str, str] = {}
    owners: dict[str, str] = {}
    for topic in sorted(topics, key=lambda topic: (topic not in before, topic)):
        name = remote(topic)
        if name in owners:
            clashes[topic] = owners[name]
        else:
            owners[name] = topic
            names[topic] = name
    return names, clashes


def plan_topics(
    *,
    source: Mapping[str, int],
    target: Mapping[str, int],
    remote: Callable[[str], str],
    configs: Mapping[str, Collection[ConfigEntry]],
    rules: ConfigRules,
    replication_factor: int,
    before: Collection[str] = (),
) -> TopologyPlan:
    """Return what the target lacks.

    *source* and *target* are topic -> partitions; *configs* is by source topic. Topics never shrink: a target
    topic with more partitions than its source is not changed. *before* holds the source topics that were
    copied until now.
    """
    names, clashes = target_names(source, remote, before)
    create = tuple(
        NewTopicPlan(
            name=name,
            source=topic,
            partitions=source[topic],
            replication_factor=replication_factor,
            configs=creation_configs(configs.get(topic, ()), rules.of(topic)),
        )
        for topic, name in names.items()
        if name not in target
    )
    grow = tuple(
        GrowthPlan(name=name, total=source[topic])
        for topic, name in names.items()
        if name in target and source[topic] > target[name]
    )
    return TopologyPlan(create=create, grow=grow, clashes=clashes)
