"""The ends of source partitions are read while their copiers do not fetch."""

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.partitions import UNKNOWN
from mirrorflow_core.wire.error_codes import NETWORK_EXCEPTION
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import ListedOffset
from mirrorflow_replicator.copy import end_offsets
from tests.unit.core.copying.stubs import begun_copier

END = 700
WAIT_S = 10.0
SOURCE: Any = SimpleNamespace(alias="east")


@pytest.mark.parametrize(
    ("held_s", "ends"), [(40.0, [END]), (0.2, [])], ids=["held for long", "held shortly"]
)
def test_the_lag_of_a_partition_grows_while_the_rate_limit_holds_it(monkeypatch, held_s, ends):
    """Otherwise a flow with a low limit would appear to have caught up."""
    copier = begun_copier(0)
    noted = []

    async def list_offsets(_source, partitions, *_, **__):
        return dict.fromkeys(partitions, ListedOffset(offset=END))

    async def follow():
        following = end_offsets.follow_ends(
            SOURCE,
            copiers=lambda: [copier],
            held_s=lambda: held_s,
            read_committed=False,
            on_change=lambda changed: noted.append(changed.cursor.end_offset),
            on_error=lambda error: pytest.fail(str(error)),
        )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(following, 0.05)

    monkeypatch.setattr(admin, "list_offsets", list_offsets)
    monkeypatch.setattr(end_offsets, "POLL_INTERVAL_S", 0.001)

    asyncio.run(follow())

    assert noted == ends


async def follow_until_noted(copier, *, held_s):
    """Follows the ends of *copier* until one is noted; returns it, and the end when copying began."""
    noted = asyncio.Event()
    following = asyncio.create_task(
        end_offsets.follow_ends(
            SOURCE,
            copiers=lambda: [copier],
            held_s=lambda: held_s,
            read_committed=False,
            on_change=lambda _: noted.set(),
            on_error=lambda error: pytest.fail(str(error)),
        )
    )
    async with asyncio.timeout(WAIT_S):
        await noted.wait()
    following.cancel()
    return copier.cursor.end_offset, copier.start_end


@pytest.mark.parametrize("reads", [True, False], ids=["from its fetch response", "from the next poll"])
def test_an_end_that_was_unknown_when_copying_began_is_learned(monkeypatch, reads):
    """Otherwise `run --until-caught-up` would wait until it is interrupted."""
    copier = begun_copier(0)
    listed = ListedOffset(error=NETWORK_EXCEPTION)

    async def list_offsets(_source, partitions, *_, **__):
        return dict.fromkeys(partitions, listed)

    async def begin_and_follow():
        nonlocal listed
        await end_offsets.note_ends(SOURCE, [copier], read_committed=False)
        assert copier.start_end == UNKNOWN
        if reads:
            copier.cursor.note_end(END)
        listed = ListedOffset(offset=END)
        return await follow_until_noted(copier, held_s=0.0 if reads else 40.0)

    monkeypatch.setattr(admin, "list_offsets", list_offsets)
    monkeypatch.setattr(end_offsets, "POLL_INTERVAL_S", 0.001)

    assert asyncio.run(begin_and_follow()) == (END, END)


def test_the_end_when_copying_began_is_learned_once(monkeypatch):
    copier = begun_copier(0)
    copier.note_end(END - 1, is_start=True)

    async def list_offsets(_source, partitions, *_, **__):
        return dict.fromkeys(partitions, ListedOffset(offset=END))

    monkeypatch.setattr(admin, "list_offsets", list_offsets)
    monkeypatch.setattr(end_offsets, "POLL_INTERVAL_S", 0.001)

    assert asyncio.run(follow_until_noted(copier, held_s=40.0)) == (END, END - 1)
