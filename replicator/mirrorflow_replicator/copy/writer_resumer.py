"""Decides where each partition copier of a fenced task continues: at its start, and after a refusal.

No other process writes to the partitions, so what was acknowledged says where to continue. What it does not say (an
answer is lost, a leader or a topic is another one, the source has other records) ends the task: its next start finds it
in the logs (`mirrorflow_core.writer.takeover`).
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Final

from mirrorflow_core.errors import MirrorFlowError, SourceDataLostError, TargetDataLostError
from mirrorflow_core.exactly_once.alignment import OffsetPair
from mirrorflow_core.exactly_once.identity import Anchor, Identity
from mirrorflow_core.reports import KnownEnd
from mirrorflow_core.settings import LossPolicy, SourceSettings, Writer
from mirrorflow_core.stall_detection import ObstacleKind
from mirrorflow_core.writer.broker_requests import Producer
from mirrorflow_core.writer.flow_plan import PartitionProblem, TaskStart, TopicIds
from mirrorflow_core.writer.position import Form
from mirrorflow_core.writer.write_window import WritePoint
from mirrorflow_kafka.admin.log_reader import batches_between
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.copy.copier_context import CopierState
from mirrorflow_replicator.copy.form_tracker import FormTracker
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.task_parts import EndStart
from mirrorflow_replicator.copy.task_transaction import TaskTransaction

REFUSALS_IN_A_ROW = 2
BACK_OFF_S = (0.2, 2.0)
STOPPED_RETRY_S = 15.0  # after that a missing ACL or a full disk is checked again
NO_LOGS: Final[Collection[PartitionCopier]] = frozenset()

log = logging.getLogger("mirrorflow.task")


class WriterResumer:
    """Serves the partition copiers of one start of a task that do not know where to continue."""

    reading_logs: Collection[PartitionCopier] = NO_LOGS  # by the owner of the flow, before the start

    def __init__(
        self,
        *,
        source: Cluster,
        target: Cluster,
        start: TaskStart,
        transaction: TaskTransaction,
        settings: SourceSettings,
        stamped: set[str],
        end_task: EndStart,
    ) -> None:
        self._source = source
        self._target = target
        self._start = start
        self._transaction = transaction
        self._on_loss = settings.on_source_loss
        self._has_plain = settings.writer is Writer.FENCED
        self._stamped = stamped
        self._end_task = end_task
        producers = start.producers
        self._identities = {
            Form.TRANSACTION: self._identity(producers.transactional),
            Form.PLAIN: self._identity(producers.plain),
        }
        self._due: dict[PartitionCopier, float] = {}
        self._wake = asyncio.Event()

    def _identity(self, producer: Producer) -> Identity:
        transactional = self._start.producers.transactional
        return Identity(
            # Sequence numbers begin again in each start.
            generation=(transactional.producer_id << 16) + transactional.epoch,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            transactional_id=producer.transactional_id,
            source_cluster_id=self._source.cluster_id,
            target_cluster_id=self._target.cluster_id,
            policy="",
            flow="",
            stream="",
            why="",
        )

    def doubtful(self, lane: PartitionCopier) -> None:
        """Serve *lane*, which has nothing in flight; later, if it is refused again and again."""
        is_refused = lane.refusals >= REFUSALS_IN_A_ROW
        self._later(lane, random.uniform(*BACK_OFF_S) if is_refused else 0.0)  # noqa: S311 it only spreads

    def retry_stopped(self, lane: PartitionCopier, *, pause_s: float = STOPPED_RETRY_S) -> None:
        """Try *lane* again after *pause_s*: an ACL or a setting may have changed."""
        self._later(lane, pause_s)

    def forget(self, lane: PartitionCopier) -> None:
        """Drop *lane*, which is given up."""
        self._due.pop(lane, None)

    def _later(self, lane: PartitionCopier, pause_s: float) -> None:
        self._due[lane] = time.monotonic() + pause_s
        self._wake.set()

    async def run(self) -> None:
        """Serve until cancelled."""
        while True:
            now_s = time.monotonic()
            due = [lane for lane, due_s in self._due.items() if due_s <= now_s]
            for lane in due:
                del self._due[lane]
            await self._examine_repeats([lane for lane in due if lane.repeat is not None])
            for lane in due:
                self._serve(lane)
            timeout_s = max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._wake.wait()
            self._wake.clear()

    async def _examine_repeats(self, lanes: Sequence[PartitionCopier]) -> None:
        """End the task after answers that the leader had plain batches already: none was sent twice.

        Either the topic has LogAppendTime, which was not known, or another producer has written our numbers.
        """
        if not lanes:
            return
        try:
            examined = await asyncio.gather(*(self._was_stamped(lane) for lane in lanes))
        except MirrorFlowError as error:
            log.warning("%s", error)
            for lane in lanes:
                self._later(lane, BACK_OFF_S[1])
            return
        foreign = [lane for lane, was_stamped in zip(lanes, examined, strict=True) if not was_stamped]
        self._stamped.update(lane.target_topic for lane in lanes if lane not in foreign)
        for lane in foreign:
            log.warning(
                "Another producer writes to %s with the producer id %d of this flow. Its records stay; ours follow them.",
                lane.target,
                self._start.producers.plain.producer_id,
            )
        known_ends = [_known_end(lane) for lane in foreign]
        self._end_task(f"{lanes[0].target} has other batches with our numbers, or LogAppendTime", known_ends)

    async def _was_stamped(self, lane: PartitionCopier) -> bool:
        assert lane.repeat is not None
        at = lane.repeat.base_offset
        batches = batches_between(self._target, lane.target, at, at + 1)
        return any([batch.is_log_append_time async for batch, _ in batches])

    def _serve(self, lane: PartitionCopier) -> None:
        if lane.state is CopierState.STOPPED:
            lane.state = CopierState.ASKING
        if lane.state is not CopierState.ASKING or not lane.is_drained:
            return  # the last answer to what is in flight brings it here again
        if (problem := self._start.problems.get(lane.source)) is not None:
            lane.stop(self._problem(lane, problem))
        elif lane.pipe is None or not lane.pipe.is_connected:
            return  # the connection brings it here again
        elif why := self._reason_to_end(lane):
            self._end_task(why)
        elif lane.stream is None:
            self._begin(lane, self._start.points[lane.source])
        else:
            self._continue(lane, lane.stream.delivered)

    def _reason_to_end(self, lane: PartitionCopier) -> str:
        """Return why *lane* cannot continue in this start of the task; "" if it can."""
        point = self._start.points.get(lane.source)
        if point is None:
            return f"{lane.target} has a leader again"
        lane.target_epoch = max(lane.target_epoch, point.target_epoch)
        ids = self._start.topic_ids.get(lane.topic, TopicIds())
        if lane.repeat is not None:
            return f"{lane.target} has other batches with our numbers"
        if lane.stream is not None and lane.refused_next == lane.stream.delivered.ordinal + 1:
            return f"the leader of {lane.target} expects other sequence numbers"
        if lane.lost_batches:
            return f"what was written to {lane.target} was not answered"
        if self._target.metadata.leader_epoch(*lane.target) > lane.target_epoch:
            return f"{lane.target} has another leader"
        if lane.stream is not None and lane.stream.has_fallen_back:
            return f"{lane.target} has lost records"
        if lane.obstacle is not None and lane.obstacle.kind is ObstacleKind.DIVERGED:
            return f"the source has other records of {lane.source} than before"
        if _is_another(ids.source, self._source.metadata.topic_id(lane.topic)):
            return f"topic {lane.topic} was created again"
        if _is_another(ids.target, self._target.metadata.topic_id(lane.target_topic)):
            return f"topic {lane.target_topic} was created again"
        return ""

    def _begin(self, lane: PartitionCopier, point: WritePoint) -> None:
        lane.anchor = Anchor(
            generation=self._identities[Form.TRANSACTION].generation,
            topic=lane.topic,
            partition=lane.partition,
            step=0,
            ordinal=0,
            source_offset=point.next_source_offset,
            target_offset=point.target_end,
            source_topic_id=self._source.metadata.topic_id(lane.topic),
            target_topic_id=self._target.metadata.topic_id(lane.target_topic),
            why="position",
        )
        lane.form = FormTracker(point, self._identities, has_plain=self._has_plain, earlier=lane.form)
        source_epoch = point.source_epoch
        if (loss := self._start.losses.get(lane.source)) is not None:
            lane.go_on_after(self._source_lost(lane, *loss))
            # The log that came back may not know it: each fetch that names it would diverge again.
            source_epoch = -1
        pair = OffsetPair(point.next_source_offset - 1, -1, point.target_end - 1, source_epoch)
        self._continue(lane, pair)

    def _continue(self, lane: PartitionCopier, pair: OffsetPair) -> None:
        if lane.loss is not None:
            error = self._source_lost(lane, *lane.loss)
            if self._on_loss is LossPolicy.FAIL:
                lane.loss = None
                lane.stop(error)
                return
            lane.go_on_after(error)
            lane.lost_records += max(0, lane.loss.found - lane.loss.wanted)
            pair = self._jump(lane, pair, lane.loss.found)
            lane.loss = None
        elif lane.skip is not None:
            skip, lane.skip = lane.skip, None
            if pair.ordinal + 1 == skip.ordinal:
                lane.go_on_after(skip.error)
                lane.refusals = 0  # this is progress: no backoff
                lane.lost_records += skip.next_offset - pair.source_offset - 1
                pair = self._jump(lane, pair, skip.next_offset)
        assert lane.form is not None
        lane.resume(lane.form.identity, pair, alone=True, is_open=self._transaction.includes(lane))

    def _jump(self, lane: PartitionCopier, pair: OffsetPair, source_offset: int) -> OffsetPair:
        """Return where to continue at *source_offset*; the records before it are left out."""
        assert lane.anchor is not None
        lane.anchor = replace(
            lane.anchor,
            step=lane.anchor.step + 1,
            ordinal=pair.ordinal + 1,
            source_offset=source_offset,
            target_offset=pair.target_offset + 1,
        )
        return pair._replace(source_offset=source_offset - 1, source_epoch=-1)

    # -- errors

    def _problem(self, lane: PartitionCopier, problem: PartitionProblem) -> MirrorFlowError:
        loss = self._start.losses.get(lane.source)
        if loss is not None:
            return self._source_lost(lane, *loss)
        return TargetDataLostError(
            topic=lane.topic, partition=lane.partition, target_topic=lane.target_topic, how=problem.value
        )

    def _source_lost(self, lane: PartitionCopier, wanted: int, found: int, how: str) -> SourceDataLostError:
        policy = self._on_loss
        then = (
            ""
            if policy is LossPolicy.FAIL
            else f"continues, as mirrorflow.source.loss.policy={policy.value} says"
        )
        return SourceDataLostError(
            topic=lane.topic, partition=lane.partition, wanted=wanted, found=found, how=how, then=then
        )


def _known_end(lane: PartitionCopier) -> KnownEnd:
    assert lane.stream is not None
    at = lane.stream.delivered
    return KnownEnd(
        *lane.source, at.source_offset + 1, at.source_epoch, at.target_offset + 1, lane.target_epoch
    )


def _is_another(known_id: str, present_id: str) -> bool:
    return bool(known_id and present_id) and known_id != present_id
