"""Decides where each partition copier of a fenced task continues: at its start, and after a refusal.

No other process writes to the partitions, so what was acknowledged says where to continue. What it does not say (an
response is lost, a leader or a topic is another one, the source has other records) ends the task: its next start finds it
in the logs (`mirrorflow_core.writer.takeover`).
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import starmap

from mirrorflow_core.errors import (
    MirrorFlowError,
    NotAuthorizedError,
    PartitionError,
    SourceDataLostError,
    TargetDataLostError,
    TargetTakenError,
)
from mirrorflow_core.offset_map import MapStream
from mirrorflow_core.partitions import OffsetPair
from mirrorflow_core.settings import LossPolicy, SourceSettings
from mirrorflow_core.stall_detection import ObstacleKind
from mirrorflow_core.writer.flow_plan import (
    PartitionProblem,
    SourceLoss,
    TaskStart,
    TopicIds,
    WritePoint,
)
from mirrorflow_core.writer.position import WriteMode
from mirrorflow_core.writer.stream import Stream
from mirrorflow_core.writer.task_restart_reason import restart_reason
from mirrorflow_kafka.admin.log_reader import batches_between
from mirrorflow_kafka.client.broker_writer import Pipe
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.writer.partition_availability import unavailable_partitions
from mirrorflow_replicator.copy.copier_context import CopierState, Repeat
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.partition_writer import PartitionWriter
from mirrorflow_replicator.copy.position_writer import TaskWriter
from mirrorflow_replicator.copy.write_mode_tracker import WriteModeTracker

REFUSALS_IN_A_ROW = 2
BACK_OFF_S = (0.2, 2.0)
PROBLEMS_OF_TARGET = {
    PartitionProblem.TARGET_LOST_RECORDS,
    PartitionProblem.TARGET_TRIMMED,
    PartitionProblem.TARGET_CREATED_AGAIN,
}
# How often the partitions that a start left out are examined. A start that leaves one out once more although nothing was wrong
# with it doubles the time: each start delays the other partitions of the task, too.
EXAMINE_S = 2.0
EXAMINE_DOUBLED_MAX = 7  # times: then it is four minutes
STOPPED_RETRY_S = 15.0  # after that a missing ACL or a full disk is checked again

log = logging.getLogger("mirrorflow.task")


class PartitionResumer:
    """Serves the partition copiers of one start of a task that do not know where to continue."""

    def __init__(
        self,
        *,
        source: Cluster,
        target: Cluster,
        start: TaskStart,
        writer: TaskWriter,
        settings: SourceSettings,
        log_append_time_topics: set[str],
        end_task: Callable[[str], None],
    ) -> None:
        self._source = source
        self._target = target
        self._start = start
        self._writer = writer
        self._on_loss = settings.on_source_loss
        self._log_append_time_topics = log_append_time_topics
        self._end_task = end_task
        self._producers = {
            WriteMode.TRANSACTION: start.producers.transactional,
            WriteMode.PLAIN: start.producers.plain,
        }
        self._due: dict[PartitionCopier, float] = {}
        self._left_out: dict[PartitionCopier, float] = {}  # and when they are examined next
        self._wake = asyncio.Event()

    def schedule_resume(self, copier: PartitionCopier) -> None:
        """Determines soon where *copier* continues, which has nothing in flight; after a pause, if it is refused again and again."""
        is_refused = copier.refusals >= REFUSALS_IN_A_ROW
        self._later(copier, random.uniform(*BACK_OFF_S) if is_refused else 0.0)  # noqa: S311 it only spreads

    def retry_stopped(self, copier: PartitionCopier, *, pause_s: float = STOPPED_RETRY_S) -> None:
        """Has *copier* continue after *pause_s*: an ACL or a setting may have changed."""
        self._later(copier, pause_s)

    def forget(self, copier: PartitionCopier) -> None:
        """Drops *copier*, which is given up."""
        self._due.pop(copier, None)
        self._left_out.pop(copier, None)

    def add(self, copiers: Iterable[PartitionCopier]) -> None:
        """Reports of those of *copiers* that this start left out why they wait."""
        for copier in copiers:
            if copier.source in self._start.waiting:
                pause_s = EXAMINE_S * 2 ** min(copier.failed_starts, EXAMINE_DOUBLED_MAX)
                self._left_out[copier] = time.monotonic() + pause_s
                _report_waiting(copier, self._start.waiting[copier.source])

    def leaves_out(self, copier: PartitionCopier) -> bool:
        """Returns whether this start left *copier* out."""
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
            writings = [copier.writing for copier in due if copier.writing is not None]
            await self._examine_repeats({one: one.repeat for one in writings if one.repeat is not None})
            for copier in due:
                if copier not in self._left_out:
                    self._serve(copier)
            timeout_s = max(0.0, min(self._due.values()) - time.monotonic()) if self._due else None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._wake.wait()
            self._wake.clear()

    async def examine_left_out(self) -> None:
        """Examines the partitions that this start left out, until cancelled; ends the task when one can be copied."""
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
                found = await unavailable_partitions(self._source, self._target, copies)
            except MirrorFlowError as error:
                log.warning("%s", error)
                continue
            for copier in due:
                if copier not in self._left_out or copier.state is CopierState.LEAVING:
                    continue  # it was given up meanwhile
                if (why := found.get(copier.source)) is not None:
                    _report_waiting(copier, why)
                else:
                    copier.count_start()
                    self._end_task(f"{copier.source} can be copied again")

    async def _examine_repeats(self, repeats: Mapping[PartitionWriter, Repeat]) -> None:
        """Ends the task after responses which say that the leader already had plain batches: none was sent twice.

        Either the topic has LogAppendTime, which was not known, or another producer has written our numbers.
        """
        if not repeats:
            return
        try:
            examined = await asyncio.gather(*starmap(self._has_log_append_time, repeats.items()))
        except MirrorFlowError as error:
            log.warning("%s", error)
            for writing in repeats:
                self._later(writing.copier, BACK_OFF_S[1])
            return
        foreign = [
            one for one, has_log_append_time in zip(repeats, examined, strict=True) if not has_log_append_time
        ]
        self._log_append_time_topics.update(one.target_topic for one in repeats if one not in foreign)
        for writing in foreign:
            writing.note_foreign(repeats[writing])
            log.warning(
                "Another producer writes to %s with the producer id %d of this flow. Its records stay; ours follow them.",
                writing.target,
                self._start.producers.plain.producer_id,
            )
        self._end_task(f"{next(iter(repeats)).target} has other batches with our numbers, or LogAppendTime")

    async def _has_log_append_time(self, writing: PartitionWriter, repeat: Repeat) -> bool:
        at = repeat.base_offset
        batches = batches_between(self._target, writing.target, at, at + 1)
        return any([batch.is_log_append_time async for batch, _ in batches])

    def _serve(self, copier: PartitionCopier) -> None:
        copier.retry()
        if copier.state is not CopierState.RESUMING or not copier.is_drained:
            return  # the last response to what is in flight brings it here again
        if (problem := self._start.problems.get(copier.source)) is not None:
            copier.stop(self._problem(copier, problem))
        elif copier.pipe is None or not copier.pipe.is_connected:
            return  # the connection brings it here again
        elif why := self._restart_reason(copier):
            self._end_task(why)
        elif copier.writing is None:
            self._begin(copier, copier.pipe, self._start.points[copier.source])
        else:
            self._continue(copier, copier.writing)

    def _restart_reason(self, copier: PartitionCopier) -> str:
        """Returns why *copier* cannot continue in this start of the task; "" if it can."""
        point = self._start.points[copier.source]
        copier.note_target_epoch(point.target_epoch)
        ids = self._start.topic_ids.get(copier.topic, TopicIds())
        if _is_another(ids.source, self._source.metadata.topic_id(copier.topic)):
            return f"topic {copier.topic} was created again"
        if _is_another(ids.target, self._target.metadata.topic_id(copier.target_topic)):
            return f"topic {copier.target_topic} was created again"
        writing = copier.writing
        has_new_leader = self._target.metadata.leader_epoch(*copier.target) > copier.target_epoch
        if writing is None:
            return restart_reason(
                copier.target, None, has_lost_responses=False, has_new_leader=has_new_leader
            )
        return restart_reason(
            copier.target,
            writing.stream,
            has_lost_responses=writing.lost_batches > 0,
            has_new_leader=has_new_leader,
            has_repeat=writing.repeat is not None,
            refused_next=writing.refused_next,
            has_diverged=copier.obstacle is not None and copier.obstacle.kind is ObstacleKind.DIVERGED,
        )

    def _begin(self, copier: PartitionCopier, pipe: Pipe, point: WritePoint) -> None:
        map_stream = MapStream(
            point.counting,
            self._source.metadata.topic_id(copier.topic),
            self._target.metadata.topic_id(copier.target_topic),
        )
        is_fenced = not self._start.unfenced_why
        mode = WriteModeTracker(point, self._producers, is_fenced=is_fenced, earlier=copier.mode)
        pair = OffsetPair(
            point.next_source_offset - 1, point.records - 1, point.records_end - 1, point.source_epoch
        )
        if (loss := self._start.losses.get(copier.source)) is not None:
            copier.go_on_after(self._lost(copier, loss))
        writing = PartitionWriter(copier, pipe, mode, Stream(pair, point.epochs), map_stream)
        copier.resume(writing, pair, was_cut_off=point.was_cut_off)
        writing.stream.pass_markers(point.target_end - point.records_end)

    def _continue(self, copier: PartitionCopier, writing: PartitionWriter) -> None:
        pair = writing.stream.delivered
        if (loss := copier.take_loss()) is not None:
            error = self._source_lost(copier, *loss)
            if self._on_loss is LossPolicy.FAIL:
                copier.stop(error)
                return
            copier.go_on_after(error, lost_records=max(0, loss.found - loss.wanted))
            pair = _jump(pair, loss.found)
        elif (skip := copier.take_skip()) is not None and pair.ordinal + 1 == skip.ordinal:
            copier.go_on_after(skip.error, lost_records=skip.next_offset - pair.source_offset - 1)
            copier.note_progress()
            pair = _jump(pair, skip.next_offset)
        writing.mode.rewind(pair.source_offset + 1)
        copier.resume(writing, pair, is_open=self._writer.includes(writing))

    # -- errors

    def _problem(self, copier: PartitionCopier, problem: PartitionProblem) -> MirrorFlowError:
        loss = self._start.losses.get(copier.source)
        if loss is not None:
            return self._lost(copier, loss)
        if problem is PartitionProblem.TARGET_TAKEN:
            return TargetTakenError(
                topic=copier.topic,
                partition=copier.partition,
                target_topic=copier.target_topic,
                owner=self._start.owners[copier.source],
            )
        return TargetDataLostError(
            topic=copier.topic,
            partition=copier.partition,
            target_topic=copier.target_topic,
            how=problem.value,
        )

    def _lost(self, copier: PartitionCopier, loss: SourceLoss) -> PartitionError:
        if loss.problem not in PROBLEMS_OF_TARGET:
            return self._source_lost(copier, loss.wanted, loss.found, loss.problem.value)
        return TargetDataLostError(
            topic=copier.topic,
            partition=copier.partition,
            target_topic=copier.target_topic,
            how=loss.problem.value,
            then=self._then,
        )

    @property
    def _then(self) -> str:
        policy = self._on_loss
        return (
            ""
            if policy is LossPolicy.FAIL
            else f"continues, as mirrorflow.source.loss.policy={policy.value} says"
        )

    def _source_lost(self, copier: PartitionCopier, wanted: int, found: int, how: str) -> SourceDataLostError:
        return SourceDataLostError(
            topic=copier.topic,
            partition=copier.partition,
            wanted=wanted,
            found=found,
            how=how,
            then=self._then,
        )


def _report_waiting(copier: PartitionCopier, error: MirrorFlowError) -> None:
    """Reports that *copier* waits because of *error*: as stopped where a permission is missing, as while it is copied."""
    if str(copier.error) == str(error):
        return
    if isinstance(error, NotAuthorizedError):
        copier.stop(error)
    else:
        copier.wait(error)


def _jump(pair: OffsetPair, source_offset: int) -> OffsetPair:
    """Returns where to continue at *source_offset*; the records before it are left out."""
    return pair._replace(source_offset=source_offset - 1, source_epoch=-1)


def _is_another(known_id: str, present_id: str) -> bool:
    return bool(known_id and present_id) and known_id != present_id
