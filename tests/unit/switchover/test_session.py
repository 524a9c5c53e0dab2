"""Detects whether the process that runs a switchover has certainly ended, and renews the note of the one that works."""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from typing import Any, cast

import pytest

from mirrorflow_core.errors import InvalidSettingError, MirrorFlowError, UnreachableError
from mirrorflow_replicator.switchover import session
from mirrorflow_replicator.switchover.errors import SwitchoverTakenError
from mirrorflow_replicator.switchover.session import has_ended, renewing

HOST = socket.gethostname()


def ended_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait(60)
    return process.pid


def test_a_running_local_process_has_not_ended():
    assert not has_ended(f"{HOST}/{os.getpid()}/a1")


def test_an_exited_local_process_has_ended():
    assert has_ended(f"{HOST}/{ended_pid()}/a1")


@pytest.mark.parametrize("runner", [f"other-{HOST}/1/a1", "", HOST, f"{HOST}/x/a1"])
def test_a_remote_or_malformed_process_id_does_not_count_as_ended(runner: str):
    assert not has_ended(runner)


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
