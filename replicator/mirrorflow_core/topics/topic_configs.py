"""Plans which topics to create on the target, which need more partitions, and which settings change. No I/O.

Follows MM2's rules (`MirrorSourceConnector`: computeAndCreateTopicPartitions, targetConfig, syncTopicConfigs), with
two improvements: only differences are written, so an unchanged topic is never altered; and dynamic defaults of the
source's brokers are not copied, because they are not properties of the topic. `connectors.topic_sync` carries out
the plans.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from enum import IntEnum

from mirrorflow_core.java.patterns import SettingPattern
from mirrorflow_core.light_dataclasses import dataclass

CLEANUP_POLICY = "cleanup.policy"


class ConfigSource(IntEnum):
    """Where a topic's setting comes from (DescribeConfigs, `ConfigSource`)."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


_INHERITED = (ConfigSource.DYNAMIC_BROKER, ConfigSource.DYNAMIC_DEFAULT_BROKER, ConfigSource.DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One setting of a topic as a cluster describes it; `value` None: the cluster does not show it."""

    name: str
    value: str | None
    source: ConfigSource = ConfigSource.TOPIC
    read_only: bool = False
    sensitive: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigException:
    """Settings that are not changed on the copies of some topics. Both match whole names; topics by source name."""

    topics: SettingPattern
    settings: SettingPattern


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigRules:
    """Which settings follow the source. `selects` is the filter by setting name."""

    selects: Callable[[str], bool]
    defaults_from_source: bool = False  # `use.defaults.from=source`
    exceptions: tuple[ConfigException, ...] = ()

    def of(self, topic: str) -> "ConfigRules":
        """Returns the rules for one topic of the source."""
        alone = [exception.settings for exception in self.exceptions if exception.topics.matches(topic)]
        if not alone:
            return self

        def selects(name: str) -> bool:
            return self.selects(name) and not any(pattern.matches(name) for pattern in alone)

        return replace(self, selects=selects, exceptions=())


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """Set `name` of a target topic to `value`, or delete its override if `value` is None."""

    name: str
    value: str | None


def creation_configs(entries: Collection[ConfigEntry], rules: ConfigRules) -> dict[str, str]:
    """Returns the settings for a new target topic."""
    return {
        entry.name: entry.value
        for entry in entries
        if entry.value is not None
        and _follows(entry, rules)
        and (entry.source not in _INHERITED or rules.defaults_from_source)
    }


def config_changes(
    source: Collection[ConfigEntry], target: Collection[ConfigEntry], rules: ConfigRules
) -> tuple[ConfigChange, ...]:
    """Returns the changes that make the target's settings follow the source's, sorted by name.

    An override of the source is set where the target's effective value differs. For a setting that the source
    inherits, the target's override is deleted, or the value is set with `use.defaults.from=source`. Static
    broker settings of the source are ignored, as in MM2. An override whose name the target does not show is a
    change, too: the target's refusal says so in its own words.
    """
    present = {entry.name: entry for entry in target}
    changes = []
    for entry in source:
        there = present.get(entry.name)
        if not _follows(entry, rules) or (there is None and entry.source is not ConfigSource.TOPIC):
            continue
        if entry.source in _INHERITED and not rules.defaults_from_source:
            if there is not None and there.source is ConfigSource.TOPIC:
                changes.append(ConfigChange(name=entry.name, value=None))
        elif entry.value is not None and (there is None or entry.value != there.value):
            changes.append(ConfigChange(name=entry.name, value=entry.value))
    return tuple(sorted(changes, key=lambda change: change.name))


def changes_by_copy(
    names: Mapping[str, str],
    source: Mapping[str, Collection[ConfigEntry]],
    target: Mapping[str, Collection[ConfigEntry]],
    rules: ConfigRules,
) -> dict[str, tuple[ConfigChange, ...]]:
    """Returns target topic -> its changes, for each copy that needs any.

    *names* is source topic -> target topic; topics that are absent in *source* or *target* are left out.
    """
    by_copy = {
        name: config_changes(source[topic], target[name], rules.of(topic))
        for topic, name in names.items()
        if topic in source and name in target
    }
    return {name: changes for name, changes in by_copy.items() if changes}


def compacted_alone(
    names: Mapping[str, str],
    source: Mapping[str, Collection[ConfigEntry]],
    target: Mapping[str, Collection[ConfigEntry]],
    changes: Mapping[str, Collection[ConfigChange]],
) -> list[str]:
    """Returns a sentence for each copy that is compacted, and stays so after *changes*, although its source is not.

    *names*, *source* and *target* are as in `changes_by_copy`.
    """
    return [
        f"Target topic {name} is compacted (cleanup.policy) and its source is not: of each key only the newest record stays, "
        "and records without a key are refused; set its cleanup.policy=delete."
        for topic, name in names.items()
        if is_compacted(target.get(name, ()))
        and topic in source
        and not is_compacted(source[topic])
        and not any(change.name == CLEANUP_POLICY for change in changes.get(name, ()))
    ]


def is_compacted(entries: Collection[ConfigEntry]) -> bool:
    """Returns whether `cleanup.policy` has compaction: such a topic accepts no record without a key."""
    return any(entry.name == CLEANUP_POLICY and "compact" in (entry.value or "") for entry in entries)


def explain(change: ConfigChange, target: Collection[ConfigEntry]) -> str:
    """Returns *change* as text: `retention.ms=1 (now 2)`."""
    now = next((entry.value for entry in target if entry.name == change.name), None)
    wanted = "the target's default" if change.value is None else change.value
    return f"{change.name}={wanted} (now {now})"


def _follows(entry: ConfigEntry, rules: ConfigRules) -> bool:
    return (
        not entry.read_only
        and not entry.sensitive
        and entry.source is not ConfigSource.STATIC_BROKER
        and rules.selects(entry.name)
    )


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
    """Topics to create and to grow. `clashes`: omitted source topics, each with the topic that has its target name."""

    create: tuple[NewTopicPlan, ...] = ()
    grow: tuple[GrowthPlan, ...] = ()
    clashes: Mapping[str, str]


def target_names(
    topics: Collection[str], remote: Callable[[str], str], before: Collection[str] = ()
) -> tuple[dict[str, str], dict[str, str]]:
    """Returns source topic -> target topic, and clashes: source topic -> the topic that has its target name.

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
    """Returns what the target lacks.

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
