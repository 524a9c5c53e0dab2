"""Lets partitions that have nothing in flight continue, at once or after a pause (`PartitionCopier.resumed`).

No other process writes to the partitions of a fenced task, so what was acknowledged says where to continue. What it does not
say (a response is lost, a leader or a topic is a different one, the source has other records) ends the session: the next one
finds it in the logs (`mirrorflow_core.writer.takeover`).
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterable, Sequence

from mirrorflow_core.copying.effects import Effects
from mirrorflow_core.copying.partition import CopierState, PartitionCopier, ResumeFacts
from mirrorflow_core.copying.session import CopySession
from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_kafka.admin.log_reader import batches_between
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.writer.partition_availability import unavailable_partitions
from mirrorflow_replicator.process import now_ms

BACK_OFF_S = (0.2, 2.0)
# How often the partitions that a session left out are examined. A session that leaves one out once more although nothing was
# wrong with it doubles the time: each takeover delays the other partitions of the task, too.
EXAMINE_S = 2.0
EXAMINE_DOUBLED_MAX = 7  # times: then it is four minutes
STOPPED_RETRY_S = 15.0  # after that a missing ACL or a full disk is checked again

log = logging.getLogger("mirrorflow.task")


class PartitionResumer:
    """Serves the partitions of one session that do not know where to continue."""

    def __init__(
        self,
        *,
        source: Cluster,
        target: Cluster,
        session: CopySession,
        apply: Callable[[PartitionCopier, Effects], None],
        is_connected: Callable[[PartitionCopier], bool],
        end_session: Callable[[str], None],
    ) -> None:
        self._source = source
        self._target = target
        self._session = session
        self._apply = apply
        self._is_connected = is_connected
        self._end_session = end_session
        self._due: dict[PartitionCopier, float] = {}
        self._left_out: dict[PartitionCopier, float] = {}  # and when they are examined next
        self._wake = asyncio.Event()

    def resume(self, copier: PartitionCopier) -> None:
        """Has *copier*, which has nothing in flight, continue soon."""
        self._later(copier, 0.0)

    def resume_later(self, copier: PartitionCopier) -> None:
        """Has *copier*, which is refused again and again, continue after a pause."""
        self._later(copier, random.uniform(*BACK_OFF_S))  # noqa: S311 it only spreads

    def retry_stopped(self, copier: PartitionCopier, *, pause_s: float = STOPPED_RETRY_S) -> None:
        """Has *copier* continue after *pause_s*: an ACL or a setting may have changed."""
        self._later(copier, pause_s)

    def forget(self, copier: PartitionCopier) -> None:
        """Drops *copier*, which is given up."""
        self._due.pop(copier, None)
        self._left_out.pop(copier, None)

    def add(self, copiers: Iterable[PartitionCopier]) -> None:
        """Reports of those of *copiers* that this session left out why they wait."""
        for copier in copiers:
            if (error := self._session.start.waiting.get(copier.source)) is not None:
                pause_s = EXAMINE_S * 2 ** min(copier.failed_starts, EXAMINE_DOUBLED_MAX)
                self._left_out[copier] = time.monotonic() + pause_s
                self._apply(copier, copier.left_out(error))

    def leaves_out(self, copier: PartitionCopier) -> bool:
        """Returns whether this session left *copier* out."""
        return copier in self._left_out

    def _later(self, copier: PartitionCopier, pause_s: float) -> None:
        self._due[copier] = time.monotonic() + pause_s
        self._wake.set()

    async def run(self) -> None:
        """Serves until cancelled."""
        while True:
            now_s = time.monotonic()
            due = [copier for copier, due_s in self._due.items() if due_s <= now_s]
            for copier in due:
                del self._due[copier]
            await self._examine_repeats([copier for copier in due if copier.repeat is not None])
            for copier in due:
                if copier not in self._left_out:
                    self._resume(copier)
            timeout_s = max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._wake.wait()
            self._wake.clear()

    def _resume(self, copier: PartitionCopier) -> None:
        seen = ResumeFacts(
            is_connected=self._is_connected(copier),
            source_topic_id=self._source.metadata.topic_id(copier.topic),
            target_topic_id=self._target.metadata.topic_id(copier.target_topic),
            target_epoch=self._target.metadata.leader_epoch(*copier.target),
        )
        self._apply(copier, copier.resumed(seen, now_ms()))

    async def examine_left_out(self) -> None:
        """Examines the partitions that this session left out, until cancelled; ends it when one can be copied."""
        while True:
            await asyncio.sleep(EXAMINE_S)
            now_s = time.monotonic()
            due = [copier for copier, due_s in self._left_out.items() if due_s <= now_s]
            if not due:
                continue
            try:
                await asyncio.gather(
                    self._source.refresh({copier.topic for copier in due}),
                    self._target.refresh({copier.target_topic for copier in due}),
                )
                copies = {copier.source: copier.target for copier in due}
                unavailable = await unavailable_partitions(self._source, self._target, copies)
            except MirrorFlowError as error:
                log.warning("%s", error)
                continue
            for copier in due:
                if copier not in self._left_out or copier.state is CopierState.LEAVING:
                    continue  # it was given up meanwhile
                if (why := unavailable.get(copier.source)) is not None:
                    self._apply(copier, copier.left_out(why))
                else:
                    copier.count_failed_start()
                    self._end_session(f"{copier.source} can be copied again")

    async def _examine_repeats(self, copiers: Sequence[PartitionCopier]) -> None:
        """Examines responses which say that the leader already had plain batches: none was sent twice."""
        if not copiers:
            return
        try:
            examined = await asyncio.gather(*map(self._has_log_append_time, copiers))
        except MirrorFlowError as error:
            log.warning("%s", error)
            for copier in copiers:
                self._later(copier, BACK_OFF_S[1])
            return
        for copier, is_log_append_time in zip(copiers, examined, strict=True):
            if not is_log_append_time:
                log.warning(
                    "Another producer writes to %s with the producer id %d of this flow. Its records stay; ours follow them.",
                    copier.target,
                    self._session.start.producers.plain.producer_id,
                )
            copier.repeat_answered(is_log_append_time=is_log_append_time)

    async def _has_log_append_time(self, copier: PartitionCopier) -> bool:
        assert copier.repeat is not None
        offset = copier.repeat.base_offset
        # A response of False would be wrong for a batch that a new leader does not serve yet: it is examined again.
        batches = batches_between(self._target, copier.target, offset, offset + 1, unserved_max_s=0.0)
        return any([batch.is_log_append_time async for batch, _ in batches])
