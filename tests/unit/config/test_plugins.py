"""Settings may name built-in classes and Python classes of the user."""

import dataclasses
import sys
import types
from pathlib import Path

import pytest

from mirrorflow_core.errors import InvalidSettingError
from mirrorflow_core.replication_policy import DefaultPolicy
from mirrorflow_core.settings import PolicyKind, PolicySettings, SourceSettings
from mirrorflow_replicator.config.plugins import make_config_filter, make_replication_policy, make_selection
from mirrorflow_replicator.config.source_properties import parse_source


class Suffixed(DefaultPolicy):
    """A policy of the user, which names topics `topic.alias`."""

    def __init__(self, settings: SourceSettings) -> None:
        super().__init__(settings.policy.separator)

    def remote_topic(self, alias: str, topic: str) -> str:
        return topic + self.separator + alias


class Filters:
    """Filters of the user for topics and for their settings."""

    def __init__(self, settings: SourceSettings) -> None:
        self.allowed = settings.name

    def should_replicate_topic(self, topic: str) -> bool:
        return topic == self.allowed

    def should_replicate_config_property(self, name: str) -> bool:
        return name == "retention.ms"


class Failing:
    """A class of the user that fails: when it is created, or in its method."""

    def __init__(self, settings: SourceSettings) -> None:
        if settings.policy.kind is PolicyKind.CUSTOM:
            raise KeyError("REGION")

    def should_replicate_topic(self, topic: str) -> bool:
        raise ZeroDivisionError


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


def test_built_in_filters_apply_the_configured_lists():
    default_flow = settings(topics="orders.*")
    admits = make_config_filter(default_flow)

    assert [make_selection(default_flow).selects(topic) for topic in ("orders-1", "payments")] == [
        True,
        False,
    ]
    assert make_selection(default_flow).target_topic("orders") == "A.orders"
    assert [
        admits(name)
        for name in (
            "min.insync.replicas",
            "message.timestamp.type",
            "retention.ms",
            "message.timestamp.after.max.ms",
        )
    ] == [False, False, True, True]


def test_python_classes_receive_the_settings(monkeypatch: pytest.MonkeyPatch):
    module = types.ModuleType("acme_plugins")
    vars(module).update(Suffixed=Suffixed, Filters=Filters)
    monkeypatch.setitem(sys.modules, "acme_plugins", module)
    custom = settings(
        replication_policy_class="python:acme_plugins:Suffixed",
        topic_filter_class="python:acme_plugins:Filters",
        config_property_filter_class="python:acme_plugins:Filters",
    )

    assert make_replication_policy(custom).remote_topic("A", "orders") == "orders.A"
    assert [make_selection(custom).selects(topic) for topic in ("orders", "payments")] == [True, False]
    assert [make_config_filter(custom)(name) for name in ("retention.ms", "cleanup.policy")] == [True, False]


@pytest.mark.parametrize("written", ["python:acme_missing:Policy", "python:json:Policy", "python:json:dumps"])
def test_unavailable_python_class_is_refused(written: str):
    """The module or the class is missing, or the name is not a class."""
    custom = dataclasses.replace(
        settings(), policy=PolicySettings(kind=PolicyKind.CUSTOM, custom=written, source_alias="A")
    )

    with pytest.raises(InvalidSettingError, match=r"^replication\.policy\.class: .*python:"):
        make_replication_policy(custom)


def test_class_without_the_methods_of_a_policy_is_refused():
    custom = dataclasses.replace(
        settings(), policy=PolicySettings(kind=PolicyKind.CUSTOM, custom="python:builtins:str")
    )

    with pytest.raises(InvalidSettingError, match="lacks methods"):
        make_replication_policy(custom)


def test_any_error_of_a_python_class_is_an_error_of_its_setting(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Any other exception would end the process, with all other connectors of the worker."""
    module = types.ModuleType("acme_plugins")
    vars(module).update(Failing=Failing)
    monkeypatch.setitem(sys.modules, "acme_plugins", module)
    (tmp_path / "acme_broken.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    policy = settings(replication_policy_class="python:acme_plugins:Failing")
    with pytest.raises(InvalidSettingError, match=r"^replication\.policy\.class: .*KeyError: 'REGION'"):
        make_replication_policy(policy)
    with pytest.raises(InvalidSettingError, match=r"^topic\.filter\.class: .* 'orders': ZeroDivisionError"):
        make_selection(settings(topic_filter_class="python:acme_plugins:Failing")).selects("orders")
    with pytest.raises(InvalidSettingError, match=r"cannot be imported: ZeroDivisionError"):
        make_selection(settings(topic_filter_class="python:acme_broken:Filter"))
