"""The ends of source partitions are read while their copiers do not fetch."""

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.log_requests import ListedOffset
from mirrorflow_replicator.copy import end_offsets
from tests.unit.core.copying.stubs import begun_copier

END = 700
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
