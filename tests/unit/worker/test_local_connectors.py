"""What runs in a place follows what is wanted there: one at a time, the newest word, and a mistake is heard of."""

import asyncio

import pytest

from mirrorflow_replicator.connectors.connector_host import IdleConnector
from mirrorflow_replicator.http.commands import Wanted
from mirrorflow_replicator.worker.local_connectors import ConnectorSlot

BOUND_S = 300.0


class Recorded(IdleConnector):
    """A connector that notes its life in *told*, and ends only when *may_end* says so."""

    def __init__(self, name, wanted, told, may_end):
        super().__init__(name, wanted.properties, state="RUNNING")
        self._number, self._told, self._may_end = wanted.run, told, may_end

    async def run(self):
        self._told.append(("runs", self._number))
        await super().run()

    async def stop(self, grace_s):
        await self._may_end.wait()
        self._told.append(("ended", self._number))


def wanted(run):
    return Wanted(properties={}, run=run)


async def follow(use):
    told: list[tuple[str, int]] = []
    broken: list[asyncio.Task[None]] = []
    may_end = asyncio.Event()
    place: ConnectorSlot[Wanted] = ConnectorSlot(
        "a",
        make=lambda name, one: Recorded(name, one, told, may_end),
        on_unexpected_end=broken.append,
        grace_s=1.0,
    )
    async with asyncio.timeout(BOUND_S):
        await use(place, may_end)
    return told, broken


def test_only_the_newest_word_counts():
    """What was wanted while the one before ended is never begun."""

    async def use(place, may_end):
        place.want(wanted(1))
        await place.settled()
        for run in (2, 3, 4):
            place.want(wanted(run))
            await asyncio.sleep(0)
            assert not place.is_settled
        may_end.set()
        await place.settled()
        await asyncio.sleep(0)

    told, broken = asyncio.run(follow(use))

    assert ([("runs", 1), ("ended", 1), ("runs", 4)], []) == (told, broken)


def test_the_same_word_again_changes_nothing():
    """Each reading of the config topic says everything again."""

    async def use(place, may_end):
        for _ in range(3):
            place.want(wanted(1))
            await place.settled()
            await asyncio.sleep(0)
        may_end.set()
        place.want(None)
        await place.settled()
        assert place.hosted is None
        place.want(wanted(1))
        await place.settled()
        await asyncio.sleep(0)

    told, broken = asyncio.run(follow(use))

    assert ([("runs", 1), ("ended", 1), ("runs", 1)], []) == (told, broken)


def test_what_ends_by_itself_is_heard_of():
    """A bug of ours ends the process; a connector that was stopped does not."""

    class Broken(IdleConnector):
        async def run(self):
            message = "a mistake"
            raise RuntimeError(message)

    async def use():
        broken: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()
        place: ConnectorSlot[Wanted] = ConnectorSlot(
            "a",
            make=lambda name, one: Broken(name, one.properties, state="RUNNING"),
            on_unexpected_end=broken.put_nowait,
            grace_s=1.0,
        )
        place.want(wanted(1))
        async with asyncio.timeout(BOUND_S):
            return (await broken.get()).exception()

    with pytest.raises(RuntimeError, match="a mistake"):
        raise asyncio.run(use())


def test_a_stand_in_says_what_it_stands_for():
    """Also where its properties are not such that it could be started."""
    report = IdleConnector("a", {"connector.class": "x.Y"}, state="PAUSED", tasks=({}, {})).report()

    assert ("a", "x.Y", "PAUSED", ["PAUSED"] * 2) == (
        report.name,
        report.connector_class,
        report.state,
        [task.state for task in report.tasks],
    )
