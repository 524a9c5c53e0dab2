"""A session prepares and connects the partitions that it gets, also if a cluster fails meanwhile."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.errors import UnreachableError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_replicator.copy import task_session
from mirrorflow_replicator.copy.task_session import TaskSession

FIRST, SECOND = (TopicPartition("orders", number) for number in range(2))
STEPS = ("ends", "timestamp types", "connections")


class Assigned:
    """A session without clusters, the steps that it has carried out, and the step that fails next."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[tuple[str, list[TopicPartition]]] = []
        self.fails = ""
        session: Any = object.__new__(TaskSession)
        session.copiers = {}
        session.pace = SimpleNamespace(limit=lambda _: None)
        session._session = SimpleNamespace(limit_event_logs=lambda _: None)
        session._settings = SimpleNamespace(read_committed=False)
        session._parts = SimpleNamespace(source=None, target=None, syncs=None)
        session._changed = {}
        session._unconnected = {}
        session._resumer = SimpleNamespace(add=self._step("left out"), forget=lambda _: None)
        session._routes = SimpleNamespace(
            connect=self._async_step("connections"), dispatch_of=lambda _: None, remove=lambda _: None
        )
        session._effects = SimpleNamespace(apply=lambda *_: None)
        session._committer = SimpleNamespace(finish=self._nothing)
        session._flusher = SimpleNamespace(flush=self._nothing, forget=lambda _: None)
        session._stalls = SimpleNamespace(forget=lambda _: None)
        session._add = self._add
        monkeypatch.setattr(task_session, "note_ends", self._async_step("ends", argument=1))
        monkeypatch.setattr(
            task_session, "note_log_append_time_topics", self._async_step("timestamp types", argument=1)
        )
        self.session = session

    def _add(self, source: TopicPartition) -> Any:
        copier = self.session.copiers[source] = _Copier(source)
        return copier

    def _step(self, name: str, *, argument: int = 0) -> Any:
        def run(*arguments: Any, **_: Any) -> None:
            if name == self.fails:
                self.fails = ""
                raise UnreachableError(cluster="east", addresses="a:1", problem="refused")
            self.steps.append((name, [copier.source for copier in arguments[argument]]))

        return run

    def _async_step(self, name: str, *, argument: int = 0) -> Any:
        step = self._step(name, argument=argument)

        async def run(*arguments: Any, **options: Any) -> None:
            step(*arguments, **options)

        return run

    async def _nothing(self, *_: object, **__: object) -> None:
        pass

    def of(self, step: str) -> list[list[TopicPartition]]:
        return [sources for name, sources in self.steps if name == step]


class _Copier:
    def __init__(self, source: TopicPartition) -> None:
        self.source = source

    def leave(self) -> tuple[()]:
        return ()


@pytest.mark.parametrize("failing", STEPS)
def test_partitions_are_prepared_again_after_a_cluster_has_failed(
    monkeypatch: pytest.MonkeyPatch, failing: str
):
    assigned = Assigned(monkeypatch)
    assigned.fails = failing

    async def assign() -> None:
        with pytest.raises(UnreachableError):
            await assigned.session.assign([FIRST])
        assert [copier.source for copier in assigned.session._changed] == [FIRST]
        await assigned.session.assign([FIRST, SECOND])
        await assigned.session.assign([FIRST, SECOND])

    asyncio.run(assign())

    assert assigned.of("connections") == [[FIRST, SECOND]]
    assert assigned.of("ends")[-1] == assigned.of("timestamp types")[-1] == [FIRST, SECOND]
    assert assigned.of("left out") == [[FIRST], [SECOND]]
    assert [copier.source for copier in assigned.session._changed] == [FIRST, SECOND]


def test_a_partition_that_was_taken_away_after_a_failure_is_not_connected(monkeypatch: pytest.MonkeyPatch):
    assigned = Assigned(monkeypatch)
    assigned.fails = "ends"

    async def assign() -> None:
        with pytest.raises(UnreachableError):
            await assigned.session.assign([FIRST])
        await assigned.session.assign([SECOND])

    asyncio.run(assign())

    assert assigned.of("connections") == [[SECOND]]
