"""One node's part of a source connector: what ends of itself there is not passed over in silence."""

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import pytest

from mirrorflow_core.partition_assignment import Assignment
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_replicator.config.worker import load_standalone
from mirrorflow_replicator.connectors.source_connector import SourceConnector
from mirrorflow_replicator.http.samples import Samples
from mirrorflow_replicator.worker.group_tasks import TaskFencing
from mirrorflow_replicator.worker.shared_connectors import Publish, SharedConnector, TaskShare

Part = TypeVar("Part", bound=SharedConnector)

WORKER = "bootstrap.servers=127.0.0.1:1\noffset.storage.topic=o\n"
CONNECTOR = (
    "name=x\nconnector.class=MirrorSourceConnector\nsource.cluster.alias=A\ntarget.cluster.alias=B\n"
    "source.cluster.bootstrap.servers=127.0.0.1:1\ntarget.cluster.bootstrap.servers=127.0.0.1:1\n"
)


class Mistaken(SharedConnector):
    """Its discovery has a mistake of ours."""

    async def _discover_topics(self, *others: Coroutine[Any, Any, None]) -> None:
        raise ZeroDivisionError


async def nothing(assignment: Assignment, initial: bool) -> None:  # noqa: FBT001
    """Not stored anywhere."""


def shared(kind: type[Part], publish: Publish, share: TaskShare) -> Part:
    """This node's part of the connector, which has no task."""
    settings = load_standalone(WORKER, [CONNECTOR]).connectors[0]
    assert settings.source is not None
    connector = kind(
        settings,
        settings.source,
        samples=Samples(),
        publish=publish,
        start=lambda *_, **__: pytest.fail("no task is given"),
        grace_s=1,
        claiming=cast("TaskFencing", SimpleNamespace(group_id="group")),
    )
    connector.share(share)
    return connector


def test_a_discovery_that_ends_ends_the_connector() -> None:
    async def run() -> None:
        connector = shared(Mistaken, nothing, TaskShare(leads=True))
        running = asyncio.create_task(connector.run())
        done, _ = await asyncio.wait({running}, timeout=5)
        assert done
        with pytest.raises(ZeroDivisionError):
            running.result()

    asyncio.run(run())


def test_a_connector_that_ends_is_settled_whatever_it_is_given_then() -> None:
    """The group shares out work at any moment. A node that waited for one that is gone would never meet the others again."""

    async def run() -> None:
        connector = shared(SharedConnector, nothing, TaskShare())
        running = asyncio.create_task(connector.run())
        await connector.settled()
        await connector.stop(1)
        connector.share(TaskShare(count=2))
        await cancel_and_wait(running)
        connector.share(TaskShare(count=3))
        async with asyncio.timeout(300):
            await connector.settled()

    asyncio.run(run())


class SlowToConnect(SharedConnector):
    """Takes time to give up its connection to a cluster."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.connecting = asyncio.Event()
        self.closing = asyncio.Event()
        self.closed = asyncio.Event()

    async def _begin(self) -> None:
        try:
            self.connecting.set()
            await asyncio.Event().wait()
        finally:
            self.closing.set()
            await self.closed.wait()


def test_a_connector_that_is_stopped_while_its_share_changes_ends() -> None:
    """It is then ending a job itself; the cancellation of both at once is not taken for that of the job alone."""

    async def run() -> None:
        connector = shared(SlowToConnect, nothing, TaskShare())
        running = asyncio.create_task(connector.run())
        await connector.connecting.wait()
        connector.share(TaskShare(count=2))
        await connector.closing.wait()
        await connector.stop(1)
        running.cancel()
        await asyncio.sleep(0)
        connector.closed.set()
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
        connector = shared(SharedConnector, publish, share)
        monkeypatch.setattr(connector._owner, "own", own)
        await connector._hand(FIRST)
        await connector._hand(FIRST)

    monkeypatch.setattr(SourceConnector, "clusters", property(lambda _: ()))
    asyncio.run(run())
    return told


def test_a_flow_begins_with_its_first_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that appear later are read from their beginning, whatever `auto.offset.reset` says."""
    assert published_as_initial(monkeypatch, TaskShare(leads=True)) == [True, False]


def test_a_node_that_begins_to_lead_does_not_begin_the_flow_again(monkeypatch: pytest.MonkeyPatch) -> None:
    share = TaskShare(leads=True, known=FIRST, count=1)

    assert published_as_initial(monkeypatch, share) == [False, False]
