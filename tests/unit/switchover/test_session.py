"""Renews the note of the process that works on a switchover."""

import asyncio
import logging
from typing import Any, cast

import pytest

from mirrorflow_core.errors import InvalidSettingError, MirrorFlowError, UnreachableError
from mirrorflow_replicator.switchover import session
from mirrorflow_replicator.switchover.errors import SwitchoverTakenError
from mirrorflow_replicator.switchover.session import renewing


@pytest.mark.parametrize(
    ("error", "is_logged"),
    [
        (InvalidSettingError(key="sasl.jaas.config", problem="its file is being replaced"), True),
        (UnreachableError(cluster="west", addresses="west:9092", problem="no response"), False),
        (SwitchoverTakenError(pair="east-west"), False),
    ],
    ids=["setting", "cluster", "taken"],
)
def test_the_note_of_the_working_process_is_renewed_after_any_error(
    error: MirrorFlowError,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    is_logged: bool,
):
    """Without renewals, another command takes the switchover over. What is shown at the next record is not logged."""
    monkeypatch.setattr(session, "RENEW_S", 0)
    journal = _FailingOnce(error)

    async def work() -> None:
        async with renewing(cast("Any", journal), "host/1/a"):
            await asyncio.wait_for(journal.is_renewed.wait(), 10)

    with caplog.at_level(logging.WARNING):
        asyncio.run(work())

    assert [str(error) in message for message in caplog.messages] == [True] * is_logged


class _FailingOnce:
    """A journal whose first two renewals raise *error*."""

    def __init__(self, error: MirrorFlowError) -> None:
        self.is_renewed = asyncio.Event()
        self._error = error

    async def write_renewal(self, _: str, number: int) -> None:
        if number < 2:
            raise self._error
        self.is_renewed.set()
