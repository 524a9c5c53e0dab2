"""Classes that settings name: the built-in ones, and Python's own."""

import dataclasses
import sys
import types

import pytest

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.replication_policy import DefaultPolicy
from mirrorflow_core.settings import PolicyKind, PolicySettings, SourceSettings
from mirrorflow_replicator.config.connector_properties import parse_source
from mirrorflow_replicator.config.plugins import make_config_filter, make_replication_policy, make_selection


class Suffixed(DefaultPolicy):
    """A policy of the user's own: `topic.alias`."""

    def __init__(self, settings: SourceSettings) -> None:
        super().__init__(settings.policy.separator)

    def remote_topic(self, alias: str, topic: str) -> str:
        return topic + self.separator + alias


class Filters:
    """Topic and setting filters of the user's own."""

    def __init__(self, settings: SourceSettings) -> None:
        self.allowed = settings.name

    def should_replicate_topic(self, topic: str) -> bool:
        return topic == self.allowed

    def should_replicate_config_property(self, name: str) -> bool:
        return name == "retention.ms"


def settings(**extra: str) -> SourceSettings:
    return parse_source(
        {
            "name": "orders",
            "source.cluster.alias": "A",
            "target.cluster.alias": "B",
            "source.cluster.bootstrap.servers": "a:1",
            **{key.replace("_", "."): value for key, value in extra.items()},
        },
        {"bootstrap.servers": "b:1"},
    )


def test_built_in_classes_follow_the_lists():
    """Selection, names and the filter of topic settings of a plain flow."""
    plain = settings(topics="orders.*")
    admits = make_config_filter(plain)

    assert [make_selection(plain).selects(topic) for topic in ("orders-1", "payments")] == [True, False]
    assert make_selection(plain).target_topic("orders") == "A.orders"
    assert [
        admits(name)
        for name in (
            "min.insync.replicas",
            "message.timestamp.type",
            "retention.ms",
            "message.timestamp.after.max.ms",
        )
    ] == [False, False, True, True]


def test_python_classes_are_called_with_the_settings(monkeypatch: pytest.MonkeyPatch):
    """Policy, topic filter and config filter."""
    module = types.ModuleType("acme_plugins")
    vars(module).update(Suffixed=Suffixed, Filters=Filters)
    monkeypatch.setitem(sys.modules, "acme_plugins", module)
    own = settings(
        replication_policy_class="python:acme_plugins:Suffixed",
        topic_filter_class="python:acme_plugins:Filters",
        config_property_filter_class="python:acme_plugins:Filters",
    )

    assert make_replication_policy(own).remote_topic("A", "orders") == "orders.A"
    assert [make_selection(own).selects(topic) for topic in ("orders", "payments")] == [True, False]
    assert [make_config_filter(own)(name) for name in ("retention.ms", "cleanup.policy")] == [True, False]


@pytest.mark.parametrize("written", ["python:acme_missing:Policy", "python:json:Policy", "python:json:dumps"])
def test_class_that_cannot_be_had_is_named(written: str):
    """The module, the class, or what is no class."""
    own = dataclasses.replace(
        settings(), policy=PolicySettings(kind=PolicyKind.CUSTOM, custom=written, source_alias="A")
    )

    with pytest.raises(InvalidSettingError, match=r"^replication\.policy\.class: .*python:"):
        make_replication_policy(own)


def test_class_that_is_no_policy_is_named():
    """All methods of ReplicationPolicy are asked for before anything starts."""
    own = dataclasses.replace(
        settings(), policy=PolicySettings(kind=PolicyKind.CUSTOM, custom="python:builtins:str")
    )

    with pytest.raises(InvalidSettingError, match="lacks methods"):
        make_replication_policy(own)
