"""Which topics the target lacks, and which have too few partitions: decisions only.

MM2's rules (`MirrorSourceConnector`: computeAndCreateTopicPartitions). The settings of topics are `topic_configs`', which
task copies what is `assignment`'s. `runtime.connector` asks both clusters, `runtime.topics` carries the plans out.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from mirrorflow_replicator.flow.topic_configs import ConfigEntry, ConfigRules, creation_configs


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopicPlan:
    """A topic to be created on the target. *replication_factor* -1 is the target's default."""

    name: str
    source: str
    partitions: int
    replication_factor: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthPlan:
    """A target topic that needs *total* partitions."""

    name: str
    total: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyPlan:
    """What to create and to grow. *clashes* are source topics left out, each with the one that has its target name."""

    create: tuple[NewTopicPlan, ...] = ()
    grow: tuple[GrowthPlan, ...] = ()
    clashes: Mapping[str, str]


def target_names(
    topics: Collection[str], remote: Callable[[str], str], before: Collection[str] = ()
) -> tuple[dict[str, str], dict[str, str]]:
    """Source topic -> target topic, and the clashes: source topic -> the other one that has its target name.

    Two topics copied into one would share sequences, so one is copied and the other is left out: the one that was copied
    *before*, or else the first by name.
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
    """What the target lacks. *source* and *target* are topic -> partitions; *configs* is by source topic.

    Topics never shrink: a target with more partitions than its source is left as it is. *before* are the source topics that
    were copied until now.
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
