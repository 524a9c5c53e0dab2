"""Topics needed at the same time are created with one request, which takes no longer than one for a single topic."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import create_autospec

import pytest

from mirrorflow_core.errors import UnreachableError
from mirrorflow_core.wire.error_codes import INVALID_CONFIG, POLICY_VIOLATION, BrokerRefusal
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.compacted_topic import create_own_topic
from mirrorflow_kafka.stores.own_topics import new_offset_map

REFUSED = 38  # INVALID_REPLICATION_FACTOR


class Controller:
    """A controller that creates all topics except `refused`, and records the names of each request."""

    def __init__(self, error: Exception | None = None) -> None:
        self.requests: list[list[str]] = []
        self._error = error

    async def call(self, request: Any, **_: object) -> Any:
        names = [topic.name for topic in request.topics]
        self.requests.append(names)
        if self._error is not None:
            raise self._error
        topics = [
            SimpleNamespace(name=name, error_code=REFUSED if name == "refused" else 0, error_message="")
            for name in names
        ]
        return SimpleNamespace(topics=topics)


def create_concurrently(
    controller: Controller, *callers: list[str], factors: tuple[int, ...] = (1, 1, 1)
) -> list[Any]:
    """Returns the results or errors of concurrent callers that create topics, each with its replication factor."""
    cluster = cast("Any", controller)

    async def run() -> list[Any]:
        wanted = (
            [admin.NewTopic(name=name, partitions=1, replication_factor=factor) for name in names]
            for names, factor in zip(callers, factors, strict=False)
        )
        calls = (admin.create_topics(cluster, topics) for topics in wanted)
        return await asyncio.gather(*calls, return_exceptions=True)

    return asyncio.run(run())


def test_concurrent_callers_share_a_request_and_each_receives_its_own_topics():
    controller = Controller()

    first, second = create_concurrently(controller, ["a", "refused"], ["b"])

    assert [["a", "refused", "b"]] == controller.requests
    assert ({"a": None}, {"b": None}) == ({"a": first["a"]}, second)
    assert REFUSED == first["refused"].code


def test_topics_with_the_default_replication_factor_have_a_separate_request():
    controller = Controller()

    create_concurrently(controller, ["a"], ["b"], ["c"], factors=(1, -1, 1))

    assert [["a", "c"], ["b"]] == controller.requests


def test_a_large_request_does_not_delay_other_callers():
    controller = Controller()

    create_concurrently(controller, [f"many-{number}" for number in range(100)], ["a"])

    assert [100, 1] == [len(names) for names in controller.requests]


def test_an_error_is_raised_to_all_callers_and_the_next_call_sends_a_request():
    error = UnreachableError(cluster="west", addresses="a:1", problem="refused")
    controller = Controller(error)

    assert [error, error] == create_concurrently(controller, ["a"], ["b"])
    assert [error] == create_concurrently(controller, ["a"])
    assert [["a", "b"], ["a"]] == controller.requests


@pytest.mark.parametrize("calls", [1, 2])
def test_successive_calls_send_their_own_requests(calls: int):
    controller = Controller()

    for _ in range(calls):
        create_concurrently(controller, ["a"])

    assert [["a"]] * calls == controller.requests


@pytest.mark.parametrize("code", [INVALID_CONFIG, POLICY_VIOLATION])
def test_a_topic_is_created_without_a_segment_size_that_the_cluster_refuses(
    code: int, monkeypatch: pytest.MonkeyPatch
):
    """Some managed clusters accept few topic settings."""
    cluster = create_autospec(Cluster, instance=True, alias="west")
    cluster.leader.return_value = None
    created: list[dict[str, str]] = []

    async def create_topics(_: Cluster, topics: list[admin.NewTopic]) -> dict[str, Any]:
        (topic,) = topics
        created.append(dict(topic.configs))
        is_refused = "segment.bytes" in topic.configs
        return {topic.name: BrokerRefusal.of(code, "") if is_refused else None}

    async def wait_for_leaders(*_: object) -> None:
        pass

    monkeypatch.setattr(admin, "create_topics", create_topics)
    monkeypatch.setattr(admin, "wait_for_leaders", wait_for_leaders)

    asyncio.run(create_own_topic(cluster, new_offset_map("maps", 1), key="k"))

    compact = {"cleanup.policy": "compact"}
    assert created == [{**compact, "segment.bytes": "52428800"}, compact]
