"""A topic gets all settings that the target accepts. A refused setting is reported with the broker's message."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest

from mirrorflow_core.topics.topic_configs import ConfigChange
from mirrorflow_core.wire.error_codes import (
    INVALID_CONFIG,
    POLICY_VIOLATION,
    TOPIC_AUTHORIZATION_FAILED,
    BrokerRefusal,
)
from mirrorflow_kafka.admin import configs
from mirrorflow_kafka.admin.configs import Outcome, alter_to_accepted_settings, create_with_accepted_settings
from mirrorflow_kafka.admin.topics import NewTopic
from mirrorflow_kafka.client.cluster import Cluster

TOO_SMALL = "Invalid value 102400 for configuration segment.bytes:\n Value must be at least 1048576."
MESSAGE = "Invalid value 102400 for configuration segment.bytes: Value must be at least 1048576."


class Target:
    """A target that refuses segments below 1 MiB, and a local retention above the retention."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[str, str]] = {}
        self.requests = 0
        self.forbidden: set[str] = set()
        self.required: set[str] = set()  # required by create.topic.policy

    def refusal(self, topic: str, configs: Mapping[str, str]) -> BrokerRefusal | None:
        if topic in self.forbidden:
            return BrokerRefusal.of(TOPIC_AUTHORIZATION_FAILED)
        if int(configs.get("segment.bytes", 1 << 30)) < 1 << 20:
            return BrokerRefusal.of(INVALID_CONFIG, TOO_SMALL)
        if int(configs.get("local.retention.ms", -2)) > int(configs.get("retention.ms", 7)):
            return BrokerRefusal.of(INVALID_CONFIG, "local.retention.ms is too large")
        if not self.required <= configs.keys():
            return BrokerRefusal.of(POLICY_VIOLATION, "a setting is missing")
        return None

    async def create(
        self, _: object, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, BrokerRefusal | None]:
        self.requests += 1
        responses = {topic.name: self.refusal(topic.name, topic.configs) for topic in topics}
        if not validate_only:
            self.topics |= {topic.name: dict(topic.configs) for topic in topics if not responses[topic.name]}
        return responses

    async def alter(
        self, _: object, changes: Mapping[str, Sequence[ConfigChange]], *, validate_only: bool = False
    ) -> dict[str, BrokerRefusal | None]:
        self.requests += 1
        responses = {}
        for topic, of_topic in changes.items():
            configs = self.topics[topic] | {change.name: change.value or "" for change in of_topic}
            responses[topic] = self.refusal(topic, configs)
            if not validate_only and responses[topic] is None:
                self.topics[topic] = configs
        return responses


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Target:
    stub = Target()
    monkeypatch.setattr(configs, "create_topics", stub.create)
    monkeypatch.setattr(configs, "alter_topic_configs", stub.alter)
    return stub


def create(*topics: NewTopic, **flags: Any) -> Outcome:
    return asyncio.run(create_with_accepted_settings(cast("Cluster", None), topics, **flags))


def alter(changes: Mapping[str, Mapping[str, str]], **flags: Any) -> tuple[Mapping[str, object], Outcome]:
    wanted = {
        topic: tuple(ConfigChange(name=name, value=value) for name, value in of_topic.items())
        for topic, of_topic in changes.items()
    }
    return asyncio.run(alter_to_accepted_settings(cast("Cluster", None), wanted, **flags))


def test_a_topic_is_created_with_every_setting_that_the_target_accepts(target: Target) -> None:
    configs = {"cleanup.policy": "compact", "retention.ms": "-1", "segment.bytes": "102400"}

    outcome = create(NewTopic(name="A.t", partitions=1, configs=configs), NewTopic(name="A.u", partitions=1))

    assert target.topics == {"A.t": {"cleanup.policy": "compact", "retention.ms": "-1"}, "A.u": {}}
    assert outcome.refused == {}
    assert outcome.settings == (f"Target topic A.t does not get segment.bytes=102400: {MESSAGE}",)


def test_validating_a_new_topic_does_not_create_it(target: Target) -> None:
    outcome = create(
        NewTopic(name="A.t", partitions=1, configs={"segment.bytes": "102400"}), validate_only=True
    )

    assert target.topics == {}
    assert outcome == Outcome(
        refused={}, settings=(f"Target topic A.t does not get segment.bytes=102400: {MESSAGE}",)
    )


def test_a_topic_that_must_not_be_created_is_refused_as_a_whole(target: Target) -> None:
    """Settings are not tried one by one, because the refusal concerns the topic."""
    target.forbidden = {"A.t"}

    outcome = create(NewTopic(name="A.t", partitions=1, configs={"segment.bytes": "102400"}))

    assert list(outcome.refused) == ["A.t"]
    assert (outcome.settings, target.requests) == ((), 1)


def test_a_required_setting_is_kept_if_a_different_one_is_refused(target: Target) -> None:
    target.required = {"retention.ms"}

    outcome = create(
        NewTopic(name="A.t", partitions=1, configs={"retention.ms": "9", "segment.bytes": "102400"})
    )

    assert target.topics == {"A.t": {"retention.ms": "9"}}
    assert outcome.settings == (f"Target topic A.t does not get segment.bytes=102400: {MESSAGE}",)


def test_a_topic_that_a_policy_refuses_with_any_setting_is_not_created(target: Target) -> None:
    target.required = {"min.insync.replicas"}

    outcome = create(NewTopic(name="A.t", partitions=1, configs={"retention.ms": "9"}))

    assert {name: str(refusal) for name, refusal in outcome.refused.items()} == {
        "A.t": "a setting is missing"
    }
    assert outcome.settings == ()


def test_accepted_changes_are_applied_if_a_different_one_is_refused(target: Target) -> None:
    """This includes changes of other topics. Settings that depend on each other are applied together."""
    target.topics = {"A.t": {}, "A.u": {}}

    applied, outcome = alter(
        {
            "A.t": {"segment.bytes": "102400", "local.retention.ms": "20", "retention.ms": "30"},
            "A.u": {"max.message.bytes": "5"},
        }
    )

    assert target.topics == {
        "A.t": {"local.retention.ms": "20", "retention.ms": "30"},
        "A.u": {"max.message.bytes": "5"},
    }
    assert set(applied) == {"A.t", "A.u"}
    assert outcome.settings == (f"Target topic A.t does not get segment.bytes=102400: {MESSAGE}",)


def test_nothing_is_applied_if_every_change_is_refused(target: Target) -> None:
    target.topics = {"A.t": {}}

    applied, outcome = alter({"A.t": {"segment.bytes": "102400"}})

    assert (applied, target.topics) == ({}, {"A.t": {}})
    assert len(outcome.settings) == 1


def test_validating_changes_does_not_apply_them(target: Target) -> None:
    target.topics = {"A.t": {}}

    applied, outcome = alter({"A.t": {"segment.bytes": "102400", "retention.ms": "30"}}, validate_only=True)

    assert target.topics == {"A.t": {}}
    assert applied == {"A.t": (ConfigChange(name="retention.ms", value="30"),)}
    assert len(outcome.settings) == 1


def test_changes_without_permission_are_refused_as_a_whole(target: Target) -> None:
    target.topics, target.forbidden = {"A.t": {}}, {"A.t"}

    applied, outcome = alter({"A.t": {"segment.bytes": "102400"}})

    assert (applied, list(outcome.refused), outcome.settings) == ({}, ["A.t"], ())
