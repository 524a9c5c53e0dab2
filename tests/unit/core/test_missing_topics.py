"""Topic plans follow MM2's rules and write only differences. Task assignments move as few partitions as possible."""

from hypothesis import given
from hypothesis import strategies as st

from mirrorflow_core.java.patterns import compile_pattern
from mirrorflow_core.partition_assignment import assign
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.topics.topic_configs import (
    ConfigChange,
    ConfigEntry,
    ConfigException,
    ConfigRules,
    ConfigSource,
    GrowthPlan,
    NewTopicPlan,
    compacted_alone,
    config_changes,
    creation_configs,
    explain,
    plan_topics,
)

RULES = ConfigRules(selects=lambda name: name != "min.insync.replicas")
DEFAULTS_TOO = ConfigRules(selects=RULES.selects, defaults_from_source=True)

sources = st.sampled_from(
    [
        ConfigSource.TOPIC,
        ConfigSource.DEFAULT,
        ConfigSource.DYNAMIC_BROKER,
        ConfigSource.DYNAMIC_DEFAULT_BROKER,
    ]
)
entry_sets = st.dictionaries(
    st.sampled_from("abcdef"), st.tuples(st.sampled_from("123"), sources), max_size=6
).map(lambda entries: [entry(name, value, source) for name, (value, source) in entries.items()])
partition_sets = st.sets(st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 9)), max_size=30)


def entry(
    name: str, value: str | None, source: ConfigSource = ConfigSource.TOPIC, **flags: bool
) -> ConfigEntry:
    return ConfigEntry(name=name, value=value, source=source, **flags)


def remote(topic: str) -> str:
    return f"A.{topic}"


def test_a_missing_topic_is_created_with_its_overrides():
    """It has the source's partition count, the configured replication factor and the admitted overrides."""
    configs = [
        entry("cleanup.policy", "compact"),
        entry("retention.ms", "1", ConfigSource.DEFAULT),
        entry("segment.bytes", "2", ConfigSource.STATIC_BROKER),
        entry("max.message.bytes", "3", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        entry("min.insync.replicas", "2"),
        entry("secret", None, sensitive=True),
        entry("fixed", "4", read_only=True),
    ]

    plan = plan_topics(
        source={"foo": 3},
        target={},
        remote=remote,
        configs={"foo": configs},
        rules=RULES,
        replication_factor=-1,
    )

    expected = NewTopicPlan(
        name="A.foo", source="foo", partitions=3, replication_factor=-1, configs={"cleanup.policy": "compact"}
    )
    assert (expected,) == plan.create


def test_defaults_of_the_source_are_pinned_if_configured():
    """With `use.defaults.from=source` a new topic has its source's inherited settings, except static ones."""
    entries = [
        entry("retention.ms", "1", ConfigSource.DEFAULT),
        entry("max.message.bytes", "3", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        entry("segment.bytes", "2", ConfigSource.STATIC_BROKER),
    ]

    assert {"retention.ms": "1", "max.message.bytes": "3"} == creation_configs(entries, DEFAULTS_TOO)


def test_topics_grow_and_never_shrink():
    """A target with fewer partitions grows to the source's count. A target with more stays unchanged."""
    plan = plan_topics(
        source={"more": 5, "same": 2, "less": 1},
        target={"A.more": 2, "A.same": 2, "A.less": 4},
        remote=remote,
        configs={},
        rules=RULES,
        replication_factor=2,
    )

    assert ((), (GrowthPlan(name="A.more", total=5),)) == (plan.create, plan.grow)


def test_two_topics_never_share_a_target():
    """If a naming policy maps two topics to one name, the second is left out and reported."""
    plan = plan_topics(
        source={"x": 1, "y": 1},
        target={},
        remote=lambda _: "target",
        configs={},
        rules=RULES,
        replication_factor=1,
    )

    assert (("x",), {"y": "x"}) == (tuple(topic.source for topic in plan.create), plan.clashes)


def test_an_override_is_set_if_it_differs():
    """Equal settings are not written, even if the target inherits them."""
    source = [entry("retention.ms", "5"), entry("segment.ms", "6"), entry("min.insync.replicas", "2")]
    target = [
        entry("retention.ms", "7", ConfigSource.DEFAULT),
        entry("segment.ms", "6", ConfigSource.DEFAULT),
        entry("min.insync.replicas", "1"),
    ]

    assert (ConfigChange(name="retention.ms", value="5"),) == config_changes(source, target, RULES)


def test_a_removed_override_reverts_the_target():
    """The target's override is deleted when the source inherits the setting again."""
    source = [
        entry("retention.ms", "1", ConfigSource.DEFAULT),
        entry("segment.ms", "1", ConfigSource.DYNAMIC_BROKER),
    ]
    target = [entry("retention.ms", "9"), entry("segment.ms", "9", ConfigSource.STATIC_BROKER)]

    assert (ConfigChange(name="retention.ms", value=None),) == config_changes(source, target, RULES)


def test_defaults_of_the_source_take_precedence_if_configured():
    """`use.defaults.from=source` sets the source's default where the target's effective value differs."""
    source = [entry("retention.ms", "1", ConfigSource.DEFAULT)]

    assert (ConfigChange(name="retention.ms", value="1"),) == config_changes(
        source, [entry("retention.ms", "9")], DEFAULTS_TOO
    )
    assert () == config_changes(source, [entry("retention.ms", "1", ConfigSource.DEFAULT)], DEFAULTS_TOO)


def test_static_broker_settings_change_nothing():
    """A static setting of the source's broker is neither set nor deleted."""
    source = [entry("retention.ms", "1", ConfigSource.STATIC_BROKER)]

    assert () == config_changes(source, [entry("retention.ms", "9")], RULES)


def test_an_override_that_the_target_does_not_support_is_a_change():
    """An older target refuses it with its own message. This does not apply to defaults."""
    source = [entry("new.setting", "1"), entry("other.new", "1", ConfigSource.DEFAULT)]

    assert (ConfigChange(name="new.setting", value="1"),) == config_changes(source, [], RULES)


def test_a_compacted_copy_of_a_source_without_compaction_is_reported():
    """It is not reported if the next config sync corrects it."""
    policy = {name: [entry("cleanup.policy", name)] for name in ("compact", "delete")}
    names = {"t": "A.t", "u": "A.u", "v": "A.v"}
    source = {"t": policy["delete"], "u": policy["delete"], "v": policy["compact"]}
    target = {"A.t": policy["compact"], "A.u": policy["compact"], "A.v": policy["compact"]}

    [message] = compacted_alone(
        names, source, target, {"A.u": (ConfigChange(name="cleanup.policy", value="delete"),)}
    )

    assert message.startswith("Target topic A.t is compacted (cleanup.policy) and its source is not: ")


@given(source=entry_sets, target=entry_sets, from_source=st.booleans())
def test_a_second_pass_writes_nothing(
    *, source: list[ConfigEntry], target: list[ConfigEntry], from_source: bool
):
    rules = ConfigRules(selects=lambda _: True, defaults_from_source=from_source)
    changes = {change.name: change.value for change in config_changes(source, target, rules)}

    after = {current.name: current for current in target} | {
        name: entry(name, "default", ConfigSource.DEFAULT) if value is None else entry(name, value)
        for name, value in changes.items()
    }

    assert () == config_changes(source, after.values(), rules)


def test_first_assignment_is_a_round_robin():
    partitions = [TopicPartition("foo", number) for number in range(5)]

    assert (
        (partitions[0], partitions[2], partitions[4]),
        (partitions[1], partitions[3]),
    ) == assign(reversed(partitions), 2)


def test_a_new_topic_moves_nothing():
    """All existing partitions stay with their tasks."""
    before = assign([TopicPartition("m", number) for number in range(4)], 2)
    after = assign([TopicPartition(topic, number) for topic in "am" for number in range(4)], 2, before)

    assert [True, True] == [set(old) <= set(new) for old, new in zip(before, after, strict=True)]


@given(before=partition_sets, now=partition_sets, tasks=st.integers(1, 6), earlier_tasks=st.integers(1, 6))
def test_each_partition_has_one_task_and_tasks_are_balanced(
    before: set[TopicPartition], now: set[TopicPartition], tasks: int, earlier_tasks: int
):
    """No task is empty, and none has more than an equal share, rounded up."""
    assignment = assign(now, tasks, assign(before, earlier_tasks))
    flat = [partition for task in assignment for partition in task]

    assert sorted(now) == sorted(flat)
    assert min(tasks, len(now)) == len(assignment)
    assert all(1 <= len(task) <= -(-len(now) // len(assignment)) for task in assignment)


@given(partitions=partition_sets, tasks=st.integers(1, 6))
def test_an_unchanged_set_keeps_its_assignment(partitions: set[TopicPartition], tasks: int):
    before = assign(partitions, tasks)

    assert before == assign(partitions, tasks, before)


def test_excepted_settings_of_a_topic_are_neither_created_nor_changed_on_its_copy():
    """The exception names the source topic and does not apply to others."""
    rules = ConfigRules(
        selects=RULES.selects,
        exceptions=(
            ConfigException(
                topics=compile_pattern("by.topic", "foo"), settings=compile_pattern("by.topic", "retention.*")
            ),
        ),
    )
    configs = [entry("retention.ms", "1"), entry("cleanup.policy", "compact")]

    plan = plan_topics(
        source={"foo": 1, "bar": 1},
        target={},
        remote=remote,
        configs={"foo": configs, "bar": configs},
        rules=rules,
        replication_factor=-1,
    )

    created = {new.name: dict(new.configs) for new in plan.create}
    assert created == {
        "A.foo": {"cleanup.policy": "compact"},
        "A.bar": {"cleanup.policy": "compact", "retention.ms": "1"},
    }
    target = [entry("retention.ms", "2"), entry("cleanup.policy", "compact")]
    assert config_changes(configs, target, rules.of("foo")) == ()
    assert config_changes(configs, target, rules.of("bar")) == (ConfigChange(name="retention.ms", value="1"),)


def test_an_explained_change_has_the_current_value():
    """Reports show it without writing."""
    target = [entry("retention.ms", "2")]

    assert explain(ConfigChange(name="retention.ms", value="1"), target) == "retention.ms=1 (now 2)"
    assert explain(ConfigChange(name="retention.ms", value=None), target) == (
        "retention.ms=the target's default (now 2)"
    )
