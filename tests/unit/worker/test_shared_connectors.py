"""The part of a source connector that runs on one node of a group."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from mirrorflow_core.partition_assignment import Assignment
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_replicator.config.worker_properties import load_standalone
from mirrorflow_replicator.connectors.topic_discovery import TopicDiscovery
from mirrorflow_replicator.http.partition_rates import Samples
from mirrorflow_replicator.worker.shared_connectors import Publish, SharedConnector, TaskShare
from mirrorflow_replicator.worker.task_fencing import TaskFencing

WORKER = "bootstrap.servers=127.0.0.1:1\noffset.storage.topic=o\n"
CONNECTOR = (
    "name=x\nconnector.class=MirrorSourceConnector\nsource.cluster.alias=A\ntarget.cluster.alias=B\n"
    "source.cluster.bootstrap.servers=127.0.0.1:1\ntarget.cluster.bootstrap.servers=127.0.0.1:1\n"
)


async def publish_nothing(assignment: Assignment, initial: bool) -> None:  # noqa: FBT001
    """Does nothing."""


def shared_connector(publish: Publish, share: TaskShare) -> SharedConnector:
    """Returns this node's part of the connector. It has no task."""
    settings = load_standalone(WORKER, [CONNECTOR]).connectors[0]
    assert settings.source is not None
    connector = SharedConnector(
        settings,
        settings.source,
        samples=Samples(),
        publish=publish,
        start=lambda *_, **__: pytest.fail("no task is assigned"),
        grace_s=1,
        fencing=cast("TaskFencing", SimpleNamespace(group_id="group")),
    )
    connector.share(share)
    return connector


def test_the_connector_ends_if_its_topic_discovery_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(TopicDiscovery, "run", fail)

    async def run() -> None:
        connector = shared_connector(publish_nothing, TaskShare(leads=True))
        running = asyncio.create_task(connector.run())
        done, _ = await asyncio.wait({running}, timeout=5)
        assert done
        with pytest.raises(ZeroDivisionError):
            running.result()

    asyncio.run(run())


def test_a_stopped_connector_counts_as_settled_after_it_receives_a_share() -> None:
    """The group may assign tasks at any time. A node that waits for an ended connector could never rejoin."""

    async def run() -> None:
        connector = shared_connector(publish_nothing, TaskShare())
        running = asyncio.create_task(connector.run())
        await connector.settled()
        await connector.stop(1)
        connector.share(TaskShare(count=2))
        await cancel_and_wait(running)
        connector.share(TaskShare(count=3))
        async with asyncio.timeout(300):
            await connector.settled()

    asyncio.run(run())


def test_a_connector_that_is_stopped_during_a_change_of_share_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connector cancels its own job for the new share.

    This must not be mistaken for the cancellation of the connector.
    """

    async def run() -> None:
        connecting, closing, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def connect(*_: object) -> None:
            """Takes some time, like closing a connection to a cluster."""
            try:
                connecting.set()
                await asyncio.Event().wait()
            finally:
                closing.set()
                await closed.wait()

        monkeypatch.setattr(TopicDiscovery, "connect", connect)
        connector = shared_connector(publish_nothing, TaskShare())
        running = asyncio.create_task(connector.run())
        await connecting.wait()
        connector.share(TaskShare(count=2))
        await closing.wait()
        await connector.stop(1)
        running.cancel()
        await asyncio.sleep(0)
        closed.set()
        done, _ = await asyncio.wait({running}, timeout=5)
        assert done

    asyncio.run(run())


FIRST = ((TopicPartition("t", 0),),)


def published_as_initial(monkeypatch: pytest.MonkeyPatch, share: TaskShare) -> list[bool]:
    """Returns the `initial` flags of two assignments that a node publishes one after the other."""
    initial_flags: list[bool] = []

    async def publish(assignment: Assignment, initial: bool) -> None:  # noqa: ARG001, FBT001
        initial_flags.append(initial)

    async def own(*_: object) -> None:
        """Returns immediately, because the flow is owned."""

    async def run() -> None:
        connector = shared_connector(publish, share)
        monkeypatch.setattr(connector._parts.owner, "own", own)
        await connector._publish_assignment(FIRST)
        await connector._publish_assignment(FIRST)

    monkeypatch.setattr(TopicDiscovery, "clusters", property(lambda _: ()))
    asyncio.run(run())
    return initial_flags


def test_only_the_first_assignment_of_a_flow_is_initial(monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions that appear later are read from their beginning, regardless of `auto.offset.reset`."""
    assert published_as_initial(monkeypatch, TaskShare(leads=True)) == [True, False]


def test_the_assignment_of_a_new_leader_of_a_running_flow_is_not_initial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    share = TaskShare(leads=True, known=FIRST, count=1)

    assert published_as_initial(monkeypatch, share) == [False, False]
