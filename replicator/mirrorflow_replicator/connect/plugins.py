"""Keys that name a Java class, and what stands in for it.

Kafka's own defaults are built in; a class of the user's own can be Python's (`python_classes`). Anything else is refused
by name, because leaving it out would copy other topics, or under other names, than asked.
"""

import re
from collections.abc import Callable

from mirrorflow_replicator.connect.python_classes import load_python_class, python_class
from mirrorflow_replicator.connect.values import PropertyReader
from mirrorflow_replicator.errors import InvalidSettingError
from mirrorflow_replicator.flow.groups import GroupSelection
from mirrorflow_replicator.flow.patterns import compile_patterns
from mirrorflow_replicator.flow.policy import ReplicationPolicy, make_policy
from mirrorflow_replicator.flow.selection import TopicSelection
from mirrorflow_replicator.flow.transforms import Naming, Transforms
from mirrorflow_replicator.settings import (
    CheckpointSettings,
    HeartbeatSettings,
    PolicyKind,
    PolicySettings,
    SourceSettings,
)

MIRROR_PACKAGE = "org.apache.kafka.connect.mirror."


def policy_settings(read: PropertyReader, source_alias: str) -> PolicySettings:
    """The naming of remote topics. Raises RefusedSettingError for a Java class of the user's own."""
    key = "replication.policy.class"
    written = read.text(key, "DefaultReplicationPolicy")
    custom = ""
    match written.removeprefix(MIRROR_PACKAGE):
        case "DefaultReplicationPolicy":
            kind = PolicyKind.DEFAULT
        case "IdentityReplicationPolicy":
            kind = PolicyKind.IDENTITY
        case _:
            kind = PolicyKind.CUSTOM
            custom = python_class(
                key, written, built_in="DefaultReplicationPolicy or IdentityReplicationPolicy"
            )
    separator = read.text("replication.policy.separator", ".")
    if not re.fullmatch(r"[a-zA-Z0-9._-]+", separator):
        raise InvalidSettingError(
            key="replication.policy.separator",
            problem=f"{separator!r} cannot be part of a topic's name",
            action="use letters, digits, dot, underscore or hyphen",
        )
    return PolicySettings(
        kind=kind,
        separator=separator,
        internal_separator_enabled=read.flag(
            "replication.policy.internal.topic.separator.enabled", default=True
        ),
        source_alias=source_alias,
        custom=custom,
    )


def topic_filter(read: PropertyReader) -> str:
    """`python:...` of the user's topic filter, or "" for the built-in one."""
    return _filter(read, "topic.filter.class", "DefaultTopicFilter")


def config_filter(read: PropertyReader) -> str:
    """`python:...` of the user's filter of topic settings, or "" for the built-in one."""
    return _filter(read, "config.property.filter.class", "DefaultConfigPropertyFilter")


def group_filter(read: PropertyReader) -> str:
    """`python:...` of the user's group filter, or "" for the built-in one."""
    return _filter(read, "group.filter.class", "DefaultGroupFilter")


def _filter(read: PropertyReader, key: str, built_in: str) -> str:
    written = read.text(key, built_in)
    if written.removeprefix(MIRROR_PACKAGE) == built_in:
        return ""
    return python_class(key, written, built_in=built_in)


def make_replication_policy(
    settings: SourceSettings | CheckpointSettings | HeartbeatSettings,
) -> ReplicationPolicy:
    """The policy of a connector; a class of the user's own is imported and called with *settings*."""
    if settings.policy.kind is not PolicyKind.CUSTOM:
        return make_policy(settings.policy)
    key = "replication.policy.class"
    policy = load_python_class(key, settings.policy.custom)(settings)
    if not isinstance(policy, ReplicationPolicy):
        raise InvalidSettingError(
            key=key,
            problem=f"{settings.policy.custom} lacks methods of ReplicationPolicy",
            action="see mirrorflow_replicator.flow.policy",
        )
    return policy


def make_selection(settings: SourceSettings) -> TopicSelection:
    """Which topics the connector copies. A filter of the user's own offers `should_replicate_topic(topic) -> bool`."""
    admits = None
    if settings.topic_filter:
        admits = _method("topic.filter.class", settings.topic_filter, settings, "should_replicate_topic")
    return TopicSelection(
        include=settings.topics,
        exclude=settings.topics_exclude,
        policy=make_replication_policy(settings),
        naming=make_naming(settings),
        source_alias=settings.source_alias,
        target_alias=settings.target_alias,
        heartbeats=settings.heartbeats_replication,
        admits=admits,
    )


def make_naming(settings: SourceSettings | CheckpointSettings) -> Naming:
    """What copies are called, by the policy and then by the transformations, and what becomes of their headers."""
    in_base64 = isinstance(settings, SourceSettings) and settings.headers_in_base64
    return Naming(
        make_replication_policy(settings),
        settings.source_alias,
        Transforms(settings.transforms, headers_in_base64=in_base64),
    )


def make_topic_filter(settings: CheckpointSettings) -> Callable[[str], bool]:
    """Whether offsets of groups in a topic of the source are translated: MM2 asks the topic filter alone."""
    if settings.topic_filter:
        return _method("topic.filter.class", settings.topic_filter, settings, "should_replicate_topic")
    include = compile_patterns("topics", settings.topics)
    exclude = compile_patterns("topics.exclude", settings.topics_exclude)
    return lambda topic: (
        include is not None
        and include.fullmatch(topic) is not None
        and (exclude is None or exclude.fullmatch(topic) is None)
    )


def make_group_selection(settings: CheckpointSettings) -> GroupSelection:
    """Which groups are translated. A filter of the user's own offers `should_replicate_group(group) -> bool`."""
    admits = None
    if settings.group_filter:
        admits = _method("group.filter.class", settings.group_filter, settings, "should_replicate_group")
    return GroupSelection(include=settings.groups, exclude=settings.groups_exclude, admits=admits)


def make_config_filter(settings: SourceSettings) -> Callable[[str], bool]:
    """Whether a topic setting of that name is copied.

    A filter of the user's own offers `should_replicate_config_property(name) -> bool`.
    """
    if settings.config_filter:
        key = "config.property.filter.class"
        return _method(key, settings.config_filter, settings, "should_replicate_config_property")
    excluded = compile_patterns("config.properties.exclude", settings.config_exclude)
    return lambda name: excluded is None or excluded.fullmatch(name) is None


def _method(
    key: str, written: str, settings: SourceSettings | CheckpointSettings, name: str
) -> Callable[[str], bool]:
    found = getattr(load_python_class(key, written)(settings), name, None)
    if not callable(found):
        raise InvalidSettingError(key=key, problem=f"{written} has no method {name}", action="add it")
    return lambda text: bool(found(text))
