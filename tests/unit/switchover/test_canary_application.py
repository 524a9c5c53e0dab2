"""The application of a rehearsal on simulated clusters: a client that dies is reported, with any kind of error."""

import threading
from typing import Any

import pytest

from mirrorflow_core.switchover.states import SwitchoverState as S
from mirrorflow_replicator.switchover import canary_application
from mirrorflow_replicator.switchover.canary_application import CanaryApplication
from mirrorflow_replicator.switchover.errors import CanaryFailedError

DEATH = RuntimeError("the client's library has crashed")


class SimulatedCluster:
    """A cluster with one log that both sides share, so that everything is copied at once. *dies*: the method that fails later."""

    def __init__(self, alias: str, log: list[bytes], *, dies: str = "") -> None:
        self.alias = alias
        self.log = log
        self.dies = dies
        self.dies_now = threading.Event()
        self.committed_offset: int | None = None
        self.closed = 0

    def producer(self) -> "SimulatedClient":
        return SimulatedClient(self)

    def consumer(self, group: str) -> "SimulatedClient":
        return SimulatedClient(self)


class SimulatedClient:
    """A producer or a consumer."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._position = 0

    def _die(self, method: str) -> None:
        if self._cluster.dies == method and self._cluster.dies_now.is_set():
            raise DEATH

    def write(self, topic: str, value: bytes) -> str:
        self._die("write")
        self._cluster.log.append(value)
        return ""

    def join(self, topic: str) -> None:
        pass

    def read(self, timeout_s: float) -> list[bytes]:
        self._die("read")
        values = self._cluster.log[self._position :]
        self._position += len(values)
        return values

    def commit(self) -> None:
        self._cluster.committed_offset = self._position

    def committed(self, topic: str) -> int | None:
        self._die("committed")
        return self._cluster.committed_offset

    def end(self, topic: str) -> int:
        return len(self._cluster.log)

    def close(self) -> None:
        self._cluster.closed += 1


def application(
    monkeypatch: pytest.MonkeyPatch, side: str = "", method: str = ""
) -> tuple[Any, dict[str, Any]]:
    """Returns an application whose client of *side* is to die in *method*, and both clusters."""
    monkeypatch.setattr(canary_application, "client_version", lambda: "simulated")
    log: list[bytes] = []
    clusters = {
        alias: SimulatedCluster(alias, log, dies=method if alias == side else "")
        for alias in ("east", "west")
    }
    given: Any = clusters
    return CanaryApplication(given["east"], given["west"], topic="canary", group="group"), clusters


@pytest.mark.parametrize(
    ("side", "method", "thread"),
    [("east", "write", "write"), ("east", "read", "consume"), ("west", "committed", "watch")],
)
def test_a_client_that_dies_in_the_middle_fails_the_canary_with_its_error(
    side: str, method: str, thread: str, monkeypatch: pytest.MonkeyPatch
):
    canary, clusters = application(monkeypatch, side, method)
    canary.start()
    try:
        canary.wait_until_copied(60.0)
        canary.note(S.FENCING)
        clusters[side].dies_now.set()
        (died,) = (each for each in canary._threads if each.name == f"canary-_{thread}")
        died.join(60.0)
    finally:
        canary.stop()
    result = canary.finish(S.REHEARSED)

    assert result.problem == (
        f"The canary's thread {thread} has ended with an error that is not expected: RuntimeError: the client's library has crashed"
    )
    assert not any(each.is_alive() for each in canary._threads)
    assert clusters["east"].closed + clusters["west"].closed == 2


def test_a_client_that_dies_before_anything_is_copied_ends_the_wait(monkeypatch: pytest.MonkeyPatch):
    canary, clusters = application(monkeypatch, "east", "write")
    clusters["east"].dies_now.set()
    canary.start()
    try:
        with pytest.raises(CanaryFailedError, match="the client's library has crashed"):
            canary.wait_until_copied(60.0)
    finally:
        canary.stop()


def test_a_canary_that_is_stopped_ends_the_wait_for_its_topic(monkeypatch: pytest.MonkeyPatch):
    """Otherwise a process that gets SIGTERM would end minutes later."""
    canary, _ = application(monkeypatch)
    canary.stop()

    with pytest.raises(CanaryFailedError, match="it was stopped before its topic was copied"):
        canary.wait_until_copied(60.0)
