"""Reads the keys that name a Java class, and builds what replaces that class.

Kafka's own defaults are built in; a user's own class can be a Python class (`python:package.module:Class`). Anything else
is refused by name: ignoring it would copy other topics, or under other names, than requested. Topic settings are selected by a
filter of names and by exceptions for single topics (`mirrorflow.config.properties.exclude.by.topic`), which MM2 lacks.
"""

import importlib
import re
from collections.abc import Callable
from functools import partial

from mirrorflow_core.errors import InvalidSettingError, RefusedSettingError
from mirrorflow_core.java.patterns import compile_pattern, compile_patterns
from mirrorflow_core.java.properties import PropertyReader
from mirrorflow_core.offsets.checkpoints import GroupSelection
from mirrorflow_core.replication_policy import ReplicationPolicy, make_policy
from mirrorflow_core.settings import (
    CheckpointSettings,
    HeartbeatSettings,
    PolicyKind,
    PolicySettings,
    SourceSettings,
)
from mirrorflow_core.topics.topic_configs import ConfigException, ConfigRules
from mirrorflow_core.topics.topic_selection import TopicSelection
from mirrorflow_core.transforms import TopicTransforms, Transforms

PYTHON = "python:"
_PYTHON_CLASS = re.compile(r"python:([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)")
MIRROR_PACKAGE = "org.apache.kafka.connect.mirror."
_BUILT_IN_FILTERS = {
    "topic.filter.class": "DefaultTopicFilter",
    "config.property.filter.class": "DefaultConfigPropertyFilter",
    "group.filter.class": "DefaultGroupFilter",
}
BY_TOPIC_KEY = "mirrorflow.config.properties.exclude.by.topic"
# Neither topics nor settings have a colon in their names; that of `(?:` is part of an expression.
_COLON = re.compile(r"(?<!\(\?):")


def policy_settings(read: PropertyReader, source_alias: str) -> PolicySettings:
    """Returns the naming of remote topics. Raises RefusedSettingError for a user's own Java class."""
    key = "replication.policy.class"
    written = read.text(key, "DefaultReplicationPolicy")
    custom = None
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
    # IdentityReplicationPolicy puts no separator into the names of copies.
    may_be_empty = kind is PolicyKind.IDENTITY
    if not separator and not may_be_empty:
        raise InvalidSettingError(
            key="replication.policy.separator",
            problem="it is empty, so names of copies could not be told from other names",
            action="write one, or replication.policy.class=IdentityReplicationPolicy to keep the names of topics",
        )
    if separator and not re.fullmatch(r"[a-zA-Z0-9._-]+", separator):
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


def filter_class(read: PropertyReader, key: str) -> str | None:
    """Returns `python:...` of the user's own filter, or None for the built-in one. Raises RefusedSettingError."""
    built_in = _BUILT_IN_FILTERS[key]
    written = read.text(key, built_in)
    if written.removeprefix(MIRROR_PACKAGE) == built_in:
        return None
    return python_class(key, written, built_in=built_in)


def make_replication_policy(
    settings: SourceSettings | CheckpointSettings | HeartbeatSettings,
) -> ReplicationPolicy:
    """Returns the policy of a connector; a user's own class is imported and called with *settings*.

    Raises InvalidSettingError if that fails.
    """
    if settings.policy.custom is None:
        return make_policy(settings.policy)
    key = "replication.policy.class"
    policy = _created(key, settings.policy.custom, settings)
    if not isinstance(policy, ReplicationPolicy):
        raise InvalidSettingError(
            key=key,
            problem=f"{settings.policy.custom} lacks methods of ReplicationPolicy",
            action="see mirrorflow_core.replication_policy",
        )
    return policy


def make_selection(settings: SourceSettings) -> TopicSelection:
    """Returns the connector's topic selection.

    A user's filter has the method `should_replicate_topic(topic) -> bool`.
    """
    admits = None
    if settings.topic_filter is not None:
        admits = _method("topic.filter.class", settings.topic_filter, settings, "should_replicate_topic")
    return TopicSelection(
        include=settings.topics,
        exclude=settings.topics_exclude,
        naming=make_naming(settings),
        target_alias=settings.target_alias,
        heartbeats=settings.heartbeats_replication,
        admits=admits,
    )


def make_naming(settings: SourceSettings | CheckpointSettings) -> TopicTransforms:
    """Returns the naming of copies, by the policy and then the transformations, which also change headers."""
    in_base64 = isinstance(settings, SourceSettings) and settings.headers_in_base64
    return TopicTransforms(
        make_replication_policy(settings),
        settings.source_alias,
        Transforms(settings.transforms, headers_in_base64=in_base64),
    )


def make_topic_filter(settings: CheckpointSettings) -> Callable[[str], bool]:
    """Returns a function that decides whether group offsets in a source topic are translated.

    MM2 applies only the topic filter.
    """
    if settings.topic_filter is not None:
        return _method("topic.filter.class", settings.topic_filter, settings, "should_replicate_topic")
    include = compile_patterns("topics", settings.topics)
    exclude = compile_patterns("topics.exclude", settings.topics_exclude)
    return lambda topic: include.matches(topic) and not exclude.matches(topic)


def make_group_selection(settings: CheckpointSettings) -> GroupSelection:
    """Returns the selection of groups. A user's filter has the method `should_replicate_group(group) -> bool`."""
    admits = None
    if settings.group_filter is not None:
        admits = _method("group.filter.class", settings.group_filter, settings, "should_replicate_group")
    return GroupSelection(include=settings.groups, exclude=settings.groups_exclude, admits=admits)


def make_config_filter(settings: SourceSettings) -> Callable[[str], bool]:
    """Returns a function that decides by its name whether a topic setting is copied.

    A user's filter has the method `should_replicate_config_property(name) -> bool`.
    """
    if settings.config_filter is not None:
        key = "config.property.filter.class"
        return _method(key, settings.config_filter, settings, "should_replicate_config_property")
    excluded = compile_patterns("config.properties.exclude", settings.config_exclude)
    return lambda name: not excluded.matches(name)


def _method(
    key: str, written: str, settings: SourceSettings | CheckpointSettings, name: str
) -> Callable[[str], bool]:
    method = getattr(_created(key, written, settings), name, None)
    if not callable(method):
        raise InvalidSettingError(key=key, problem=f"{written} has no method {name}", action="add it")

    def result(text: str) -> bool:
        try:
            return bool(method(text))
        except Exception as error:
            raise _failed(key, f"{name} of {written} fails for {text!r}", error) from error

    return result


def _created(
    key: str, written: str, settings: SourceSettings | CheckpointSettings | HeartbeatSettings
) -> object:
    """Returns an object of the user's own class *written*. Raises InvalidSettingError."""
    own = load_python_class(key, written)
    try:
        return own(settings)
    except Exception as error:
        raise _failed(key, f"{written} cannot be created", error) from error


def _failed(key: str, problem: str, error: Exception) -> InvalidSettingError:
    """Returns the error for the user's own code, which may raise any *error*: that must not end the other connectors."""
    return InvalidSettingError(
        key=key, problem=f"{problem}: {type(error).__name__}: {error}", action="correct the class"
    )


def python_class(key: str, written: str, *, built_in: str) -> str:
    """Returns *written* if it names a Python class.

    Raises RefusedSettingError for a Java class, InvalidSettingError for a malformed name.
    """
    if not written.startswith(PYTHON):
        raise RefusedSettingError(
            key=key, why=f"{written} is a Java class; use {built_in}, or python:package.module:Class"
        )
    if not _PYTHON_CLASS.fullmatch(written):
        raise InvalidSettingError(
            key=key, problem=f"{written!r} does not name a class", action="write python:package.module:Class"
        )
    return written


def load_python_class(key: str, written: str) -> type:
    """Returns the class that `python:package.module:Class` names.

    Raises InvalidSettingError if it cannot be imported.
    """
    module_name, class_name = written.removeprefix(PYTHON).split(":")
    try:
        loaded = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError) as error:
        raise InvalidSettingError(
            key=key,
            problem=f"{written} cannot be imported: {error}",
            action="install it where the connector runs",
        ) from error
    except Exception as error:
        raise _failed(key, f"{written} cannot be imported", error) from error
    if not isinstance(loaded, type):
        raise InvalidSettingError(key=key, problem=f"{written} is not a class", action="name a class")
    return loaded


def config_exceptions(read: PropertyReader) -> tuple[tuple[str, str], ...]:
    """Returns pairs of expressions, for topics of the source and for settings. Raises InvalidSettingError."""
    pairs = tuple(_pair(written) for written in read.names(BY_TOPIC_KEY, ()))
    _compiled(pairs)
    return pairs


def _pair(written: str) -> tuple[str, str]:
    parts = [part.strip() for part in _COLON.split(written)]
    if len(parts) != 2 or not all(parts):
        raise InvalidSettingError(
            key=BY_TOPIC_KEY,
            problem=f"{written!r} is not a pair",
            action="write topics:settings, for example orders.*:retention\\.ms",
        )
    return parts[0], parts[1]


def make_config_rules(settings: SourceSettings) -> ConfigRules:
    """Returns the rules of a connector."""
    return ConfigRules(
        selects=make_config_filter(settings),
        defaults_from_source=settings.use_defaults_from_source,
        exceptions=_compiled(settings.config_exceptions),
    )


def _compiled(pairs: tuple[tuple[str, str], ...]) -> tuple[ConfigException, ...]:
    compiled = partial(compile_pattern, BY_TOPIC_KEY)
    return tuple(ConfigException(topics=compiled(topics), settings=compiled(two)) for topics, two in pairs)
