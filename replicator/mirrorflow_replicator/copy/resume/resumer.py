"""Finds where each partition copier in doubt continues, and resumes it.

It asks the target, decides, and finds the offset in the source (docs/exactly-once.md, clauses 1, 4, 8, 9,
10). Copiers in doubt are asked about together, so five thousand of them cost a few requests. One that cannot
be decided now is retried later; one that cannot be decided at all is stopped with the reason.
"""

import asyncio
import random
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from mirrorflow_core.errors import (
    FencedError,
    MirrorFlowError,
    NotAuthorizedError,
    UndecidedError,
)
from mirrorflow_core.exactly_once.alignment import Evidence, LeaderMemory, Need, OffsetPair, ResumeAt, guess
from mirrorflow_core.exactly_once.identity import Identity
from mirrorflow_core.exactly_once.resume_candidates import describe_evidence
from mirrorflow_core.exactly_once.resume_points import known_end
from mirrorflow_core.exactly_once.resumption import Divergence, Truncation
from mirrorflow_core.exactly_once.stream import known_pair
from mirrorflow_core.settings import LossPolicy
from mirrorflow_core.stall_detection import Obstacle, ObstacleKind
from mirrorflow_kafka.admin.target_probe import ProbeResult, ask, settle
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.error_codes import NONE, error_for, is_metadata_stale
from mirrorflow_replicator.copy.copier_context import CopierState, DetectedLoss
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.resume.copier_watch import CopierWatch, surprises
from mirrorflow_replicator.copy.resume.repeat_check import (
    DIFFERS,
    identity_taken,
    is_as_sent,
    loss_at,
    taken_by_stranger,
)
from mirrorflow_replicator.copy.resume.source_scan import SourceScan
from mirrorflow_replicator.copy.resume.source_truncation import (
    REWRITTEN,
    ladders_of,
    lasting_refusal,
    lose_truncated,
    truncations,
)
from mirrorflow_replicator.copy.resume.stream_start import StreamStarts

GATHER_S = 0.005  # doubts within this time are asked about together
AGAIN_S = 0.1  # first pause before a question that could not be answered is repeated
AGAIN_MAX_S = 2.0
# Clause 5: without a random pause, two copiers that refuse each other in step would do so forever.
BACK_OFF_S = (0.2, 2.0)
REFUSALS_IN_A_ROW = 2
WATCH_S = 0.5  # how often another copier's progress is checked
READS_AT_ONCE = 16  # logs read concurrently
BLANK_S = 3.0  # until a blank answer is believed: it may be a former leader's
STOPPED_RETRY_S = 15.0  # after that a missing ACL or a full disk is checked again


class Resumer:
    """Serves all partition copiers of a task that are in doubt."""

    def __init__(
        self,
        *,
        source: Cluster,
        target: Cluster,
        identity: Identity,
        anchoring: StreamStarts,
        copier: str,
        read_committed: bool,
        stale: Callable[[PartitionCopier], None],
        pump: Callable[[], None],
    ) -> None:
        self._source = source
        self._target = target
        self._identity = identity
        self._anchoring = anchoring
        self._read_committed = read_committed
        self._stale = stale
        self._pump = pump
        self._doubtful: dict[PartitionCopier, None] = {}
        self._due: dict[PartitionCopier, float] = {}
        self._pauses: dict[PartitionCopier, float] = {}
        self._blank: dict[PartitionCopier, float] = {}  # since when
        self._asked: dict[PartitionCopier, int] = {}  # being served, with `doubts` as of then
        self._watch = CopierWatch(identity, anchoring, copier=copier)
        # The target has answered; where to continue is in the logs.
        self.reading_logs: set[PartitionCopier] = set()
        self._wake = asyncio.Event()
        self._reads = asyncio.Semaphore(READS_AT_ONCE)

    def doubtful(self, lane: PartitionCopier) -> None:
        """Registers *lane*, which is in doubt and has nothing in flight."""
        if lane.refusals >= REFUSALS_IN_A_ROW and lane not in self._due:
            self._later(lane, random.uniform(*BACK_OFF_S))  # noqa: S311 it spreads, it does not protect
            return
        self._doubtful[lane] = None
        self._wake.set()

    @property
    def has_watches(self) -> bool:
        """Returns whether any partition copier waits for another copier."""
        return self._watch.is_watching

    def forget(self, lane: PartitionCopier) -> None:
        """Drops *lane*, which belongs to another task now."""
        for of_lanes in (self._doubtful, self._due, self._pauses, self._blank):
            of_lanes.pop(lane, None)
        self._watch.forget(lane)

    def predecessor_gone(self, lane: PartitionCopier) -> None:
        """Notes that the copier that stored the offset of *lane* is known to be dead."""
        self._watch.clear(lane)

    def predecessor_left(self, lane: PartitionCopier) -> None:
        """Asks again at once: the copier that had *lane* has stored that it left."""
        self._watch.clear(lane)
        lane.refusals = 0
        self._later(lane, 0.0)

    def retry_stopped(self, lane: PartitionCopier, *, pause_s: float = STOPPED_RETRY_S) -> None:
        """Tries *lane* again after *pause_s*.

        The cause may be fixed without any event here (an ACL, a setting).
        """
        self._later(lane, pause_s)

    async def run(self) -> None:
        """Serves doubts until cancelled.

        A broker that does not answer does not delay those of other brokers.
        """
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wait()
                for lanes in self._ready():
                    group.create_task(self._serve(lanes))

    def _ready(self) -> Collection[Sequence[PartitionCopier]]:
        """Returns the copiers that can be asked about now, grouped by the target's leader.

        Marks them as being served.
        """
        now = time.monotonic()
        for lane in [lane for lane, due in self._due.items() if due <= now]:
            del self._due[lane]
            if lane.state is CopierState.STOPPED:
                lane.state = CopierState.ASKING
            self._doubtful[lane] = None
        by_leader: dict[int | None, list[PartitionCopier]] = {}
        for lane in [lane for lane in self._doubtful if lane not in self._asked]:
            del self._doubtful[lane]
            if lane.state not in {CopierState.ASKING, CopierState.WAITING} or not lane.is_drained:
                continue  # the last answer to what is in flight brings it here again
            if lane.pipe is None or not lane.pipe.is_connected:
                self._later(lane)
                continue
            self._asked[lane] = lane.doubts
            by_leader.setdefault(self._target.leader(*lane.target), []).append(lane)
        return by_leader.values()

    async def _wait(self) -> None:
        timeout_s = None
        if self._due:
            timeout_s = max(0.0, min(self._due.values()) - time.monotonic())
        try:
            async with asyncio.timeout(timeout_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        else:
            await asyncio.sleep(GATHER_S)
        self._wake.clear()

    def _later(self, lane: PartitionCopier, pause_s: float | None = None) -> None:
        if pause_s is None:
            pause_s = min(self._pauses.get(lane, AGAIN_S / 2) * 2, AGAIN_MAX_S)
            self._pauses[lane] = pause_s
        self._due[lane] = time.monotonic() + pause_s
        self._wake.set()

    async def _serve(self, lanes: Sequence[PartitionCopier]) -> None:
        try:
            await self._ask(lanes)
        finally:
            for lane in lanes:
                del self._asked[lane]
            self._wake.set()

    async def _ask(self, lanes: Sequence[PartitionCopier]) -> None:
        for lane in lanes:
            lane.target_epoch = self._target.metadata.leader_epoch(*lane.target)
        try:
            heard = await ask(
                self._target, [lane.target for lane in lanes], producer_id=self._identity.producer_id
            )
            answered = [lane for lane in lanes if self._accept(lane, heard[lane.target])]
            answered = [
                lane
                for lane in answered
                if not self._waits(lane, self._watch.is_unfenced_copier_at_work(lane, heard[lane.target]))
            ]
            if surprised := [lane for lane in answered if surprises(lane, heard[lane.target].high_watermark)]:
                # It may be another topic of the same name: only fresh metadata shows that.
                await self._target.refresh({lane.target_topic for lane in surprised})
            again = await self._anchoring.anchor(answered, heard)
            ladders = ladders_of(lane for lane in answered if lane not in again)
            truncated, refused = await truncations(self._source, ladders)
        except MirrorFlowError as error:
            for lane in lanes:
                self._failed(lane, error)
            return
        for lane in again:
            self._later(lane, 0.0)
        ready = [lane for lane in answered if lane not in again and lane.state is not CopierState.STOPPED]
        ready = [lane for lane in ready if self._is_source_known(lane, refused.get(lane.source, NONE))]
        await asyncio.gather(
            *(self._decide(lane, heard[lane.target], truncated.get(lane.source)) for lane in ready)
        )
        self._pump()  # send what was fetched before the question

    def _accept(self, lane: PartitionCopier, heard: ProbeResult) -> bool:
        if not heard.error:
            return True
        if is_metadata_stale(heard.error):
            self._stale(lane)
        cluster, subject = self._target.alias, str(lane.target)
        self._failed(
            lane, error_for(heard.error, cluster=cluster, request="DescribeProducers", subject=subject)
        )
        return False

    def _is_source_known(self, lane: PartitionCopier, code: int) -> bool:
        if code and (error := lasting_refusal(lane, code, source=self._source.alias)) is not None:
            self._failed(lane, error)
        elif code:
            self._later(lane)
        return not code

    def _failed(self, lane: PartitionCopier, error: MirrorFlowError) -> None:
        """Retries a transient error later, and stops the copier for any other.

        A retriable one is tried again even then.
        """
        if error.retriable and not isinstance(error, NotAuthorizedError):
            lane.note(error)
            self._later(lane)
            return
        lane.stop(error)
        if error.retriable:
            self._later(lane, STOPPED_RETRY_S)

    async def _decide(self, lane: PartitionCopier, heard: ProbeResult, truncation: Truncation | None) -> None:
        self.reading_logs.add(lane)
        try:
            async with self._reads:
                if truncation is not None:
                    await lose_truncated(lane, truncation, lane.ladder()[0], await self._scan(lane))
                if not await self._is_taken(lane):
                    await self._align(lane, heard)
        except MirrorFlowError as error:
            self._failed(lane, error)
        finally:
            self.reading_logs.discard(lane)

    async def _is_taken(self, lane: PartitionCopier) -> bool:
        """Returns whether another producer wrote in place of *lane* and the loss policy stops it."""
        repeat, lane.repeat = lane.repeat, None
        if repeat is None or lane.loss is not None:
            return False
        found = await taken_by_stranger(self._target, lane, repeat, await self._scan(lane))
        return found is not None and self._stops_taken(lane, found)

    def _stops_taken(self, lane: PartitionCopier, found: Divergence) -> bool:
        if self._anchoring.steps.on_loss is LossPolicy.FAIL:
            lane.stop(identity_taken(lane, found.target_offset, self._identity.producer_id))
            return True
        lane.loss = loss_at(found.offset)
        return False

    async def _align(self, lane: PartitionCopier, heard: ProbeResult) -> None:
        if self._waits(lane, self._watch.is_another_at_work(lane, heard)):
            return
        identity = self._identity
        assert lane.anchor is not None
        evidence = Evidence(
            epoch=identity.producer_epoch,
            ladder=lane.ladder(),
            memory=heard.memory,
            log_start=heard.log_start,
            high_watermark=heard.high_watermark,
            known_end=known_end(lane.anchor, lane.position, lane.stream),
        )
        verdict, evidence = await settle(
            self._target, lane.target, evidence, producer_id=identity.producer_id
        )
        if isinstance(verdict, ResumeAt):
            await self._go_on(lane, verdict, heard)
        elif verdict is Need.FENCED:
            lane.stop(FencedError(source=self._source.alias, epoch=identity.producer_epoch))
        elif verdict is Need.UNDECIDED:
            await self._go_on_undecided(lane, guess(evidence), heard, describe_evidence(evidence))
        elif (
            verdict is Need.BLANK
            and time.monotonic() - self._blank.setdefault(lane, time.monotonic()) > BLANK_S
        ):
            # It would stay so for a day: the next generation begins with sequence number 0.
            lane.stop(FencedError(source=self._source.alias, epoch=identity.producer_epoch))
        else:
            lane.obstacle = Obstacle(kind=ObstacleKind.UNSETTLED, message=verdict.value).after(lane.obstacle)
            self._later(lane)

    async def _go_on_undecided(
        self, lane: PartitionCopier, best: ResumeAt, heard: ProbeResult, evidence: str
    ) -> None:
        """Applies the loss policy where nothing shows what the target has last (clause 8).

        The copier stops, continues at the best guess, or restarts.
        """
        then = self._anchoring.steps.done
        error = UndecidedError(topic=lane.topic, partition=lane.partition, evidence=evidence, then=then)
        if self._anchoring.steps.on_loss is LossPolicy.FAIL:
            lane.stop(error)
            return
        lane.go_on_after(error)
        if self._anchoring.steps.on_loss is LossPolicy.RESTART:
            pair = await self._anchoring.steps.begin_again(lane, best)
        else:
            # The lowest source offset that the last record can have had: everything above is read again, so
            # no record is left out.
            pair = OffsetPair(best.known.source_offset + best.walk_records, best.ordinal, best.target_offset)
        await self._resume(lane, pair, replace(best, alone=True), heard)

    def _waits(self, lane: PartitionCopier, is_another_at_work: bool) -> bool:  # noqa: FBT001
        """Lets *lane* wait while another copier is active.

        Checks again after WATCH_S; returns whether it waits.
        """
        if is_another_at_work:
            lane.wait()
            self._later(lane, WATCH_S)
        return is_another_at_work

    async def _go_on(self, lane: PartitionCopier, at: ResumeAt, heard: ProbeResult) -> None:
        try:
            pair = await self._source_pair(lane, at, heard.memory)
        except UndecidedError as error:
            await self._go_on_undecided(lane, at, heard, error.evidence)
        else:
            if pair is not None:
                await self._resume(lane, pair, at, heard)

    async def _source_pair(
        self, lane: PartitionCopier, at: ResumeAt, memory: LeaderMemory | None
    ) -> OffsetPair | None:
        """Returns the offset pair of *at*; None if the partition stops.

        Where records are lost (`lane.loss`), its source offset has no meaning.
        """
        last = OffsetPair(at.known.source_offset + at.walk_records, at.ordinal, at.target_offset)
        if lane.loss is not None:
            return last
        if at.walk_records == 0 or is_as_sent(lane, at, memory):
            known = known_pair(at, lane.unanswered)
            assert known is not None
            return known
        scan = await self._scan(lane)
        found = await scan.find(at)
        if isinstance(found, OffsetPair):
            return found
        if found.is_source_intact:
            return None if self._stops_taken(lane, found) else last
        how = DIFFERS if found.is_source_intact is None else REWRITTEN
        lane.loss = DetectedLoss(last.source_offset + 1, found.offset, how)
        return last

    async def _resume(
        self, lane: PartitionCopier, pair: OffsetPair, at: ResumeAt, heard: ProbeResult
    ) -> None:
        if lane.loss is not None:
            after = await self._anchoring.steps.after_loss(lane, pair)
            if after is None:
                return
            pair = after
        elif lane.skip is not None:
            pair = await self._anchoring.steps.after_refusal(lane, pair)
        await self._forget(lane, pair)
        if not self._may_resume(lane):
            return
        if lane.pin.is_blocked_at(pair.ordinal + 1):
            lane.stop(FencedError(source=self._source.alias, epoch=self._identity.producer_epoch))
            return
        self._blank.pop(lane, None)
        self._watch.clear(lane)
        grown = 0 if at.alone else heard.high_watermark - pair.target_offset - 1
        is_open = heard.memory is not None and heard.memory.open_since >= 0
        alone = at.alone or lane.refusals >= REFUSALS_IN_A_ROW
        lane.resume(self._identity, pair, alone=alone, is_open=is_open, grown=grown)

    def _may_resume(self, lane: PartitionCopier) -> bool:
        """Returns whether the answer still holds for *lane*.

        If not, it is asked again, unless it stopped meanwhile.
        """
        if lane.state not in {CopierState.ASKING, CopierState.WAITING}:
            return False
        if lane.doubts != self._asked[lane]:
            # A new connection or a pause since the question: the answer may be a former leader's.
            self._later(lane, 0.0)
            return False
        self._pauses.pop(lane, None)
        return True

    async def _forget(self, lane: PartitionCopier, pair: OffsetPair) -> None:
        """Withdraws the offset syncs and the map of records that the target lost.

        This comes before other records take their offsets.
        """
        if lane.around.syncs is not None:
            await lane.around.syncs.forget(lane, pair)

    async def _scan(self, lane: PartitionCopier) -> SourceScan:
        return SourceScan(
            source=self._source,
            partition=lane.source,
            target=self._target,
            target_partition=lane.target,
            identity=self._identity,
            extent=await self._anchoring.offsets.extent(lane),
            is_compacted=lane.is_compacted,
            read_committed=self._read_committed,
            header_edits=lane.packer.header_edits,
        )
