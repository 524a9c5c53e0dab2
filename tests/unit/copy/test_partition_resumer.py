"""A partition resumes only when it is known what a response about another batch means."""

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from mirrorflow_core.copying.effects import Effects, EndSession
from mirrorflow_core.copying.partition import PartitionCopier
from mirrorflow_core.errors import MirrorFlowError, UnreachableError
from mirrorflow_core.wire.error_codes import OFFSET_OUT_OF_RANGE, error_for
from mirrorflow_replicator.copy import partition_resumer
from mirrorflow_replicator.copy.partition_resumer import PartitionResumer
from tests.unit.core.copying.stubs import RESUME_FACTS, begun_copier, new_session, put_in_flight
from tests.unit.core.copying.test_batch_packer import TIMESTAMP_MS

FROZEN = UnreachableError(cluster="west", addresses="b:9092", problem="no response within 5 s")
DELETED = error_for(OFFSET_OUT_OF_RANGE, cluster="west", request="Fetch", subject="east.orders-2")


class Resumption:
    """A partition whose leader has reported another producer's batch with the next number. Reads of it fail with *errors* first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *errors: MirrorFlowError) -> None:
        self.errors = list(errors)
        self.reads = 0
        self.ended: list[bool] = []  # whether the batch was known to be another producer's
        self._has_ended = asyncio.Event()
        session = new_session()
        self.copier = begun_copier(TIMESTAMP_MS, session)
        ids = {"s": self.copier.topic, "t": self.copier.target_topic}
        metadata = SimpleNamespace(
            topic_id=lambda topic: next(id_ for id_, name in ids.items() if name == topic),
            leader_epoch=lambda *_: RESUME_FACTS.target_epoch,
        )
        cluster: Any = SimpleNamespace(metadata=metadata)
        self.resumer = PartitionResumer(
            source=cluster,
            target=cluster,
            session=session,
            apply=self.apply,
            is_connected=lambda _: True,
            end_session=lambda _: None,
        )
        monkeypatch.setattr(partition_resumer, "BACK_OFF_S", (0.0, 0.0))
        monkeypatch.setattr(self.resumer, "_has_log_append_time", self.read)

    async def read(self, _: PartitionCopier) -> bool:
        self.reads += 1
        if self.errors:
            raise self.errors.pop(0)
        return False

    def apply(self, copier: PartitionCopier, effects: Effects) -> None:
        if any(isinstance(effect, EndSession) for effect in effects):
            assert copier.repeat is not None
            self.ended.append(copier.repeat.is_foreign)
            self._has_ended.set()

    async def run(self) -> None:
        """Runs until the session ends."""
        put_in_flight(self.copier, 3)
        self.copier.acknowledged(7, TIMESTAMP_MS, TIMESTAMP_MS)
        running = asyncio.create_task(self.resumer.run())
        self.resumer.resume(self.copier)
        async with asyncio.timeout(10.0):
            await self._has_ended.wait()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


@pytest.mark.parametrize(
    ("error", "reads", "is_foreign"),
    [(FROZEN, 2, True), (DELETED, 1, False)],
    ids=["the leader does not respond for a moment", "the batch was deleted since"],
)
def test_a_duplicate_is_examined_again_if_its_leader_does_not_respond(
    monkeypatch, error, reads, *, is_foreign
):
    """Otherwise the next session takes another producer's batch for a copy, and skips records."""
    resumption = Resumption(monkeypatch, error)

    asyncio.run(resumption.run())

    assert (resumption.reads, resumption.ended) == (reads, [is_foreign])
