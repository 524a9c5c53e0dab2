"""One node's part of a source connector: what ends of itself there is not passed over in silence."""

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


async def nothing(assignment: Assignment, initial: bool) -> None:  # noqa: FBT001
    """Not stored anywhere."""


def shared(publish: Publish, share: TaskShare) -> SharedConnector:
    """This node's part of the connector, which has no task."""
    settings = load_standalone(WORKER, [CONNECTOR]).connectors[0]
    assert settings.source is not None
    connector = SharedConnector(
        settings,
        settings.source,
        samples=Samples(),
        publish=publish,
        start=lambda *_, **__: pytest.fail("no task is given"),
        grace_s=1,
        fencing=cast("TaskFencing", SimpleNamespace(group_id="group")),
    )
    connector.share(share)
    return connector


def test_a_discovery_that_ends_ends_the_connector(monkeypatch: pytest.MonkeyPatch) -> None:
    async def mistaken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(TopicDiscovery, "run", mistaken)

    async def run() -> None:
        connector = shared(nothing, TaskShare(leads=True))
        running = asyncio.create_task(connector.run())
        done, _ = await asyncio.wait({running}, timeout=5)
        assert done
        with pytest.raises(ZeroDivisionError):
            running.result()

    asyncio.run(run())


def test_a_connector_that_ends_is_settled_whatever_it_is_given_then() -> None:
    """The group shares out work at any moment. A node that waited for one that is gone would never meet the others again."""

    async def run() -> None:
        connector = shared(nothing, TaskShare())
        running = asyncio.create_task(connector.run())
        await connector.settled()
        await connector.stop(1)
        connector.share(TaskShare(count=2))
        await cancel_and_wait(running)
        connector.share(TaskShare(count=3))
        async with asyncio.timeout(300):
            await connector.settled()

    asyncio.run(run())


def test_a_connector_that_is_stopped_while_its_share_changes_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is then ending a job itself; the cancellation of both at once is not taken for that of the job alone."""

    async def run() -> None:
        connecting, closing, closed = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def connect(*_: object) -> None:
            """Takes time to give up its connection to a cluster."""
            try:
                connecting.set()
                await asyncio.Event().wait()
            finally:
                closing.set()
                await closed.wait()

        monkeypatch.setattr(TopicDiscovery, "connect", connect)
        connector = shared(nothing, TaskShare())
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
    """Whether a node that finds the topics twice has their partitions begin as the flow does."""
    told: list[bool] = []

    async def publish(assignment: Assignment, initial: bool) -> None:  # noqa: ARG001, FBT001
        told.append(initial)

    async def own(*_: object) -> None:
        """Take the flow."""

    async def run() -> None:
        connector = shared(publish, share)
        monkeypatch.setattr(connector._parts.owner, "own", own)
        await connector._publish_assignment(FIRST)
        await connector._publish_assignment(FIRST)

    monkeypatch.setattr(TopicDiscovery, "clusters", property(lambda _: ()))
    asyncio.run(run())
    return told


def test_a_flow_begins_with_its_first_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that appear later are read from their beginning, whatever `auto.offset.reset` says."""
    assert published_as_initial(monkeypatch, TaskShare(leads=True)) == [True, False]


def test_a_node_that_begins_to_lead_does_not_begin_the_flow_again(monkeypatch: pytest.MonkeyPatch) -> None:
    share = TaskShare(leads=True, known=FIRST, count=1)

    assert published_as_initial(monkeypatch, share) == [False, False]
