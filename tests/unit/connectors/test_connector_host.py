"""Who begins when: what copies goes first, and does not keep the others waiting for ever."""

import asyncio

import pytest

from mirrorflow_core.reports import ConnectorReport
from mirrorflow_replicator.connectors import connector_host
from mirrorflow_replicator.connectors.source_host import SourceHost


class Copying(SourceHost):
    """A source connector that knows its partitions once the test sets a flag."""

    def __init__(self) -> None:
        self.heard = False

    @property
    def heard_of_all(self) -> bool:
        return self.heard

    async def run(self) -> None:
        await asyncio.Event().wait()


class Beside:
    """Another one, which notes that it has begun."""

    heard_of_all = True
    target_cluster_id = ""

    def __init__(self) -> None:
        self.begun = asyncio.Event()

    async def run(self) -> None:
        self.begun.set()

    async def stop(self, grace_s: float) -> None:
        """Nothing runs."""

    def report(self) -> ConnectorReport:
        raise NotImplementedError


def test_others_begin_when_what_copies_was_heard_of() -> None:
    """And not before: their first requests would compete with the first record."""

    async def main() -> None:
        copying, beside = Copying(), Beside()
        running = connector_host.start([copying], [beside])
        await asyncio.sleep(0)
        assert not beside.begun.is_set()

        copying.heard = True
        async with asyncio.timeout(300):
            await beside.begun.wait()
        for task in running:
            task.cancel()

    asyncio.run(main())


def test_others_begin_all_the_same_where_nothing_can_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that cannot be reached does not silence the heartbeats to the target; without one they begin at once."""
    monkeypatch.setattr(connector_host, "BESIDE_AFTER_S", 0.2)

    async def main() -> None:
        beside, alone = Beside(), Beside()
        running = [*connector_host.start([Copying()], [beside]), *connector_host.start([], [alone])]
        async with asyncio.timeout(300):
            await asyncio.gather(beside.begun.wait(), alone.begun.wait())
        for task in running:
            task.cancel()

    asyncio.run(main())
