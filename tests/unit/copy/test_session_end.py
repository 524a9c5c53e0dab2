"""A session that ends passes its acknowledged positions to the next one.

Its readers and connections are closed last, so that responses still arrive while it ends.
"""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.copying.partition import PartitionCopier
from mirrorflow_core.copying.transaction import TaskTransaction
from mirrorflow_core.reports import AcknowledgedPosition
from mirrorflow_core.wire.batch import CONTROL_BIT
from mirrorflow_core.wire.fetch import FetchKey, PartitionFetchResponse
from mirrorflow_core.wire.records import Record
from mirrorflow_core.writer.position import decode_value
from mirrorflow_replicator.copy.partition_dispatch import PartitionDispatch
from mirrorflow_replicator.copy.task_session import TaskSession
from tests.unit.copy.test_way_of_a_batch import RECORDS, dispatch_of, plain_copier, response_at
from tests.unit.core.copying.test_batch_packer import TIMESTAMP_MS
from tests.unit.core.wire.strategies import batch_of, with_attributes

FIRST = 100  # the source offset at which the session has begun
FETCHED = FIRST + RECORDS


def ended_session(dispatch: PartitionDispatch, *, while_ending: Callable[[], None]) -> TaskSession:
    """Returns a session of one partition that has ended; *while_ending* is called before its readers are closed."""
    copier = dispatch.copier
    transaction = TaskTransaction(
        copier.session, timeout_ms=60_000, metadata_epoch=lambda _: copier.target_epoch, now_s=0.0
    )

    def apply(_: PartitionCopier, effects: Any) -> None:
        dispatch.apply(effects)

    async def close() -> None:
        while_ending()

    session: Any = object.__new__(TaskSession)
    session.copiers = {copier.source: copier}
    session._jobs = set()
    session._effects = SimpleNamespace(apply=apply)
    session._routes = SimpleNamespace(close=close)
    session._committer = SimpleNamespace(
        acknowledged_positions=lambda copiers: transaction.acknowledged_positions(copiers, TIMESTAMP_MS)
    )
    asyncio.run(session.end(leaves=False))
    ended: TaskSession = session
    return ended


def next_offset_of(positions: tuple[AcknowledgedPosition, ...], copier: PartitionCopier) -> int:
    """Returns the source offset at which the next session continues *copier*: by the newest of its *positions*."""
    *_, newest = (position for position in positions if (position.topic, position.partition) == copier.source)
    return decode_value(copier.source, newest.value.encode()).next_source_offset


def marker_at(offset: int) -> PartitionFetchResponse:
    """Returns a fetch response with one transaction marker."""
    marker = with_attributes(
        batch_of([Record(0, TIMESTAMP_MS, b"0000", b"")], base_offset=offset), CONTROL_BIT
    )
    records = memoryview(bytearray(marker.data))
    return PartitionFetchResponse(FetchKey(b"orders", 2), 0, offset + 1, offset + 1, 0, (), -1, records)


@pytest.mark.parametrize("is_acknowledged", [False, True], ids=["nothing in flight", "a batch in flight"])
def test_a_marker_that_is_fetched_while_a_session_ends_skips_no_fetched_records(*, is_acknowledged: bool):
    """The next session fetches again what was fetched and not sent."""
    copier = plain_copier()
    dispatch = dispatch_of(copier)
    dispatch._services._committer = SimpleNamespace(drained=lambda _: None)  # type: ignore[attr-defined]
    sent = RECORDS if is_acknowledged else 0
    if is_acknowledged:
        dispatch.fetched(response_at(FIRST), FIRST)
        assert dispatch.next_batch() is not None
    dispatch.fetched(response_at(FIRST + sent), FIRST + sent)
    fetched = FETCHED + sent

    def receive() -> None:
        dispatch.fetched(marker_at(fetched), fetched)
        if is_acknowledged:
            dispatch.acknowledged(40, -1)

    session = ended_session(dispatch, while_ending=receive)

    assert next_offset_of(session.acknowledged(), copier) == FIRST + sent
    assert not copier.packer
