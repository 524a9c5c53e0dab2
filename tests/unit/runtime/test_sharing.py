"""One node's part of a source connector: what ends of itself there is not passed over in silence."""

import asyncio
from typing import TypeVar, cast

import pytest

from mirrorflow_replicator.connect.samples import Samples
from mirrorflow_replicator.connect.worker import load_standalone
from mirrorflow_replicator.flow.assignment import Assignment
from mirrorflow_replicator.flow.identity import Identity
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.runtime import hosting
from mirrorflow_replicator.runtime.claiming import Claiming
from mirrorflow_replicator.runtime.connector import SourceConnector
from mirrorflow_replicator.runtime.establishing import Established
from mirrorflow_replicator.runtime.hosting import HostedConnector
from mirrorflow_replicator.runtime.sharing import Publish, Share, SharedConnector

Part = TypeVar("Part", bound=SharedConnector)

WORKER = "bootstrap.servers=127.0.0.1:1\noffset.storage.topic=o\n"
CONNECTOR = (
    "name=x\nconnector.class=MirrorSourceConnector\nsource.cluster.alias=A\ntarget.cluster.alias=B\n"
    "source.cluster.bootstrap.servers=127.0.0.1:1\ntarget.cluster.bootstrap.servers=127.0.0.1:1\n"
)


class Mistaken(SharedConnector):
    """Its discovery has a mistake of ours."""

    async def _lead(self) -> None:
        raise ZeroDivisionError


async def nothing(assignment: Assignment, initial: bool) -> None:  # noqa: FBT001
    """Written down by nobody."""


def shared(kind: type[Part], publish: Publish, share: Share) -> Part:
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
        claiming=cast("Claiming", None),
    )
    connector.share(share)
    return connector


def test_a_discovery_that_ends_ends_the_connector() -> None:
    async def run() -> None:
        connector = shared(Mistaken, nothing, Share(leads=True))
        running = asyncio.create_task(connector.run())
        done, _ = await asyncio.wait({running}, timeout=5)
        assert done
        with pytest.raises(ZeroDivisionError):
            running.result()

    asyncio.run(run())


FIRST = ((TopicPartition("t", 0),),)


def published_as_initial(monkeypatch: pytest.MonkeyPatch, found: Established, share: Share) -> bool:
    """Whether a node that is to find the topics, and has *found* the flow so, has its partitions begin as the flow does."""
    told: list[bool] = []

    async def publish(assignment: Assignment, initial: bool) -> None:  # noqa: ARG001, FBT001
        told.append(initial)

    async def identified(*_: object, **__: object) -> Established:
        return found

    class Connected(SharedConnector):
        async def hand(self) -> None:
            await HostedConnector._establish(self, may_change=True)
            await self._hand(FIRST)

    async def run() -> None:
        await shared(Connected, publish, share).hand()

    monkeypatch.setattr(hosting, "identify", identified)
    monkeypatch.setattr(SourceConnector, "clusters", property(lambda _: ()))
    asyncio.run(run())
    return told[0]


def test_a_flow_begins_with_its_first_partitions_whoever_has_decided_its_identity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that only stands by may be the first to decide it; `auto.offset.reset=latest` holds all the same."""
    identity = cast("Identity", object())
    by_another = Established(identity, is_first=False, is_unused=True)
    assert published_as_initial(monkeypatch, by_another, Share(leads=True))
    # It has waited since the flow began: what it finds when it comes to lead appeared later.
    assert not published_as_initial(monkeypatch, by_another, Share(leads=True, known=FIRST, count=1))
    begun = Established(identity, is_first=False, is_unused=False)
    assert not published_as_initial(monkeypatch, begun, Share(leads=True))
