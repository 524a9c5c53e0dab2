"""One node's part of a source connector: what ends of itself there is not passed over in silence."""

import asyncio
from typing import cast

import pytest

from mirrorflow_replicator.connect.samples import Samples
from mirrorflow_replicator.connect.worker import load_standalone
from mirrorflow_replicator.flow.assignment import Assignment
from mirrorflow_replicator.runtime.claiming import Claiming
from mirrorflow_replicator.runtime.sharing import Share, SharedConnector

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


def test_a_discovery_that_ends_ends_the_connector() -> None:
    async def run() -> None:
        settings = load_standalone(WORKER, [CONNECTOR]).connectors[0]
        assert settings.source is not None
        connector = Mistaken(
            settings,
            settings.source,
            samples=Samples(),
            publish=nothing,
            start=lambda *_, **__: pytest.fail("no task is given"),
            grace_s=1,
            claiming=cast("Claiming", None),
        )
        connector.share(Share(leads=True))
        running = asyncio.create_task(connector.run())
        done, _ = await asyncio.wait({running}, timeout=5)
        assert done
        with pytest.raises(ZeroDivisionError):
            running.result()

    asyncio.run(run())
