"""Bringing lanes from doubt to copying: ask the target, decide, find the place in the source (DESIGN 4.2, clauses 1, 4, 8, 9, 10).

Lanes in doubt are gathered and asked together, so five thousand of them cost a few requests. A lane that cannot be
decided now comes back after a while; one that cannot be decided at all is stopped with the reason.
"""

import asyncio
import random
import time
from collections.abc import Callable, Collection, Sequence

from mirrorflow_replicator.errors import (
    BrokerError,
    FencedError,
    MirrorFlowError,
    NotAuthorizedError,
    UndecidedError,
)
from mirrorflow_replicator.flow.alignment import Evidence, GoOn, Need, Pair, guess, ordinal_near
from mirrorflow_replicator.flow.identity import Identity
from mirrorflow_replicator.flow.ladder import known_end
from mirrorflow_replicator.flow.stream import known_pair
from mirrorflow_replicator.flow.succession import SILENCE_S, Predecessor, Watch, must_wait
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.codes import is_metadata_stale, raise_for
from mirrorflow_replicator.kafka.witnesses import Testimony, ask, settle
from mirrorflow_replicator.runtime.anchoring import Anchoring
from mirrorflow_replicator.runtime.lane import Lane
from mirrorflow_replicator.runtime.surroundings import State
from mirrorflow_replicator.runtime.walking import find_on
from mirrorflow_replicator.settings import LossPolicy

GATHER_S = 0.005  # doubts that come together are asked together
AGAIN_S = 0.1  # until a question is asked again that could not be answered now
AGAIN_MAX_S = 2.0
# Clause 5: two copiers that refuse each other in step would do so for ever.
BACK_OFF_S = (0.2, 2.0)
REFUSALS_IN_A_ROW = 2
WATCH_S = 0.5  # how often another copier's progress is looked at
READS_AT_ONCE = 16  # logs read at the same time
BLANK_S = 3.0  # a leader of the past may have said so
STOPPED_RETRY_S = 15.0  # a missing ACL or a full disk is looked at again


class Aligner:
    """See the module."""

    def __init__(
        self,
        *,
        source: Cluster,
        target: Cluster,
        identity: Identity,
        anchoring: Anchoring,
        copier: str,
        read_committed: bool,
        stale: Callable[[Lane], None],
        pump: Callable[[], None],
    ) -> None:
        self._source = source
        self._target = target
        self._identity = identity
        self._anchoring = anchoring
        self._copier = copier
        self._read_committed = read_committed
        self._stale = stale
        self._pump = pump
        self._doubtful: dict[Lane, None] = {}
        self._due: dict[Lane, float] = {}
        self._pauses: dict[Lane, float] = {}
        self._watches: dict[Lane, Watch] = {}
        self._blank: dict[Lane, float] = {}  # since when
        self._asked: dict[Lane, int] = {}  # being served, with the number of the doubt that is
        self._cleared: set[Lane] = set()  # no other copier is at work there, as far as was seen
        self._wake = asyncio.Event()
        self._reads = asyncio.Semaphore(READS_AT_ONCE)

    def doubtful(self, lane: Lane) -> None:
        """*lane* is in doubt and has nothing in flight."""
        if lane.refusals >= REFUSALS_IN_A_ROW and lane not in self._due:
            self._later(lane, random.uniform(*BACK_OFF_S))  # noqa: S311 it spreads, it does not protect
            return
        self._doubtful[lane] = None
        self._wake.set()

    @property
    def has_watches(self) -> bool:
        """Whether some lane waits for another copier."""
        return bool(self._watches)

    def forget(self, lane: Lane) -> None:
        """*lane* is another task's now."""
        for of_lanes in (self._doubtful, self._due, self._pauses, self._watches, self._blank):
            of_lanes.pop(lane, None)
        self._cleared.discard(lane)

    def predecessor_gone(self, lane: Lane) -> None:
        """Whoever wrote the position of *lane* is known to be dead."""
        self._cleared.add(lane)

    def predecessor_left(self, lane: Lane) -> None:
        """Who was copying *lane* has said good-bye."""
        self._watches.pop(lane, None)
        self._cleared.add(lane)
        lane.refusals = 0
        self._later(lane, 0.0)

    def retry_stopped(self, lane: Lane, *, pause_s: float = STOPPED_RETRY_S) -> None:
        """*lane* was stopped by what somebody may mend without telling us (an ACL, a setting)."""
        self._later(lane, pause_s)

    async def run(self) -> None:
        """Serve doubts until cancelled; those of one broker do not wait for another that is silent."""
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wait()
                for lanes in self._ready():
                    group.create_task(self._serve(lanes))

    def _ready(self) -> Collection[Sequence[Lane]]:
        """Who can be asked about now, by the brokers to be asked; they count as being served from now on."""
        now = time.monotonic()
        for lane in [lane for lane, due in self._due.items() if due <= now]:
            del self._due[lane]
            if lane.state is State.STOPPED:
                lane.state = State.ASKING
            self._doubtful[lane] = None
        by_leader: dict[int | None, list[Lane]] = {}
        for lane in [lane for lane in self._doubtful if lane not in self._asked]:
            del self._doubtful[lane]
            if lane.state not in {State.ASKING, State.WAITING} or not lane.is_drained:
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

    def _later(self, lane: Lane, pause_s: float | None = None) -> None:
        if pause_s is None:
            pause_s = min(self._pauses.get(lane, AGAIN_S / 2) * 2, AGAIN_MAX_S)
            self._pauses[lane] = pause_s
        self._due[lane] = time.monotonic() + pause_s
        self._wake.set()

    async def _serve(self, lanes: Sequence[Lane]) -> None:
        try:
            await self._ask(lanes)
        finally:
            for lane in lanes:
                del self._asked[lane]
            self._wake.set()

    async def _ask(self, lanes: Sequence[Lane]) -> None:
        for lane in lanes:
            lane.target_epoch = self._target.metadata.leader_epoch(*lane.target)
        try:
            heard = await ask(
                self._target, [lane.target for lane in lanes], producer_id=self._identity.producer_id
            )
            answered = [lane for lane in lanes if self._accept(lane, heard[lane.target])]
            if surprised := [
                lane for lane in answered if _surprises(lane, heard[lane.target].high_watermark)
            ]:
                # Perhaps it is another topic of the same name: only fresh metadata can tell.
                await self._target.refresh({lane.target_topic for lane in surprised})
            again = await self._anchoring.anchor(answered, heard)
        except MirrorFlowError as error:
            for lane in lanes:
                self._failed(lane, error)
            return
        for lane in again:
            self._later(lane, 0.0)
        ready = [lane for lane in answered if lane not in again and lane.state is not State.STOPPED]
        await asyncio.gather(*(self._decide(lane, heard[lane.target]) for lane in ready))
        self._pump()  # what was fetched before the question

    def _accept(self, lane: Lane, heard: Testimony) -> bool:
        if not heard.error:
            return True
        try:
            raise_for(
                heard.error, cluster=self._target.alias, request="DescribeProducers", subject=str(lane.target)
            )
        except MirrorFlowError as error:
            if is_metadata_stale(heard.error):
                self._stale(lane)
            self._failed(lane, error)
        return False

    def _failed(self, lane: Lane, error: MirrorFlowError) -> None:
        """Ask again later; what time does not heal stops the lane, and is tried again all the same where it may."""
        heals = error.retriable or (isinstance(error, BrokerError) and error.is_retriable)
        if heals and not isinstance(error, NotAuthorizedError):
            lane.note(error)
            self._later(lane)
            return
        lane.stop(error)
        if error.retriable:
            self._later(lane, STOPPED_RETRY_S)

    async def _decide(self, lane: Lane, heard: Testimony) -> None:
        try:
            async with self._reads:
                await self._align(lane, heard)
        except MirrorFlowError as error:
            self._failed(lane, error)

    async def _align(self, lane: Lane, heard: Testimony) -> None:
        if self._another_is_at_work(lane, heard):
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
        if isinstance(verdict, GoOn):
            await self._go_on(lane, verdict, heard)
        elif verdict is Need.FENCED:
            lane.stop(FencedError(source=self._source.alias, epoch=identity.producer_epoch))
        elif verdict is Need.UNDECIDED:
            await self._go_on_by_policy(lane, guess(evidence), heard)
        elif (
            verdict is Need.BLANK
            and time.monotonic() - self._blank.setdefault(lane, time.monotonic()) > BLANK_S
        ):
            # It would stay so for a day: a next generation begins with the first number.
            lane.stop(FencedError(source=self._source.alias, epoch=identity.producer_epoch))
        else:
            self._later(lane)

    async def _go_on_by_policy(self, lane: Lane, best: GoOn, heard: Testimony) -> None:
        """Nobody knows what the target has last (clause 8): stop, or take the best guess, or begin again."""
        evidence = (
            f"what its leader remembers and its log from {heard.log_start} to {heard.high_watermark} "
            "do not show where the flow's records ended"
        )
        then = self._anchoring.done
        error = UndecidedError(topic=lane.topic, partition=lane.partition, evidence=evidence, then=then)
        if self._anchoring.on_loss is LossPolicy.FAIL:
            lane.stop(error)
            return
        lane.go_on_after(error)
        if self._anchoring.on_loss is LossPolicy.RESTART:
            pair = await self._anchoring.begin_again(lane, best)
            await self._forget(lane, pair)
            lane.resume(self._identity, pair, alone=True, is_open=_is_open(heard))
            return
        await self._go_on(lane, best, heard)

    def _another_is_at_work(self, lane: Lane, heard: Testimony) -> bool:
        """Clause 10: wait as long as another copier advances."""
        now = time.monotonic()
        watch = self._watches.get(lane)
        if watch is None:
            stream = lane.stream
            overtaken = (
                stream is not None
                and lane.refusals > 0
                and heard.memory is not None
                and heard.memory.epoch == self._identity.producer_epoch
                and self._is_ahead(lane, heard)
            )
            newcomer = stream is None and lane not in self._cleared and self._has_fresh_predecessor(lane)
            if not overtaken and not newcomer:
                return False
            patience = SILENCE_S * random.uniform(1.0, 1.5)  # noqa: S311
            watch = Watch(target_end=heard.high_watermark, since_s=now, patience_s=patience)
        watch = watch.seen(heard.high_watermark, now)
        if watch.is_over(now):
            self._watches.pop(lane, None)
            self._cleared.add(lane)
            lane.refusals = 0
            return False
        self._watches[lane] = watch
        lane.wait()
        self._later(lane, WATCH_S)
        return True

    def _is_ahead(self, lane: Lane, heard: Testimony) -> bool:
        """Whether the target has more of ours than this process has ever sent."""
        assert lane.stream is not None
        assert heard.memory is not None
        sent = max([span.last for span in lane.unanswered], default=lane.stream.delivered.ordinal)
        return heard.memory.sequence >= 0 and ordinal_near(heard.memory.sequence, sent) > sent

    def _has_fresh_predecessor(self, lane: Lane) -> bool:
        position = lane.position
        if position is None or not position.copier:
            return False
        age_s = time.time() - position.written_ms / 1000
        found = Predecessor(copier=position.copier, left=position.left, age_s=age_s)
        return must_wait(found, own_copier=self._copier)

    async def _go_on(self, lane: Lane, at: GoOn, heard: Testimony) -> None:
        pair = known_pair(at, lane.unanswered)
        if pair is None:
            pair = await self._walk(lane, at)
        if lane.loss is not None:
            pair = await self._anchoring.after_loss(lane, pair)
            if pair is None:
                return
        await self._forget(lane, pair)
        if not self._may_resume(lane):
            return
        self._blank.pop(lane, None)
        self._cleared.add(lane)
        grown = 0 if at.alone else heard.high_watermark - pair.target_offset - 1
        is_open = _is_open(heard)
        alone = at.alone or lane.refusals >= REFUSALS_IN_A_ROW
        lane.resume(self._identity, pair, alone=alone, is_open=is_open, grown=grown)

    def _may_resume(self, lane: Lane) -> bool:
        """Whether the answer at hand still holds for *lane*; else it is asked again, if it has not stopped meanwhile."""
        if lane.state not in {State.ASKING, State.WAITING}:
            return False
        if lane.doubts != self._asked[lane]:
            # A new connection or a pause since the question: the answer may be a leader's of the past.
            self._later(lane, 0.0)
            return False
        self._pauses.pop(lane, None)
        return True

    async def _forget(self, lane: Lane, pair: Pair) -> None:
        """Where the target has lost records, their offsets are not told any more before others lie there."""
        if lane.around.syncs is not None:
            await lane.around.syncs.forget(lane, pair)

    async def _walk(self, lane: Lane, at: GoOn) -> Pair:
        return await find_on(
            self._source,
            lane.source,
            self._target,
            lane.target,
            self._identity,
            at,
            extent=await self._anchoring.offsets.extent(lane),
            read_committed=self._read_committed,
            header_edits=lane.packer.header_edits,
        )


def _is_open(heard: Testimony) -> bool:
    return heard.memory is not None and heard.memory.open_since >= 0


def _surprises(lane: Lane, target_end: int) -> bool:
    """Whether the target is not as this process left it: shorter, written by others, or another topic of that name.

    A topic made anew takes a batch that was on its way for its first; from then on its end is just where that put it.
    """
    stream = lane.stream
    if stream is None or stream.expected_target in {-1, target_end}:
        return stream is not None and stream.has_strayed
    return stream.has_strayed or not lane.pin.explains(target_end - stream.expected_target)
