"""What an error code of a broker means for a partition: ask again, look where its leader is, or stop with the reason.

Codes are Kafka's (Errors.java). Nothing is retried here: the aligner asks again, the wiring looks leaders up.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from enum import Enum
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from mirrorflow_replicator.errors import (
    BrokerError,
    IdentityError,
    MirrorFlowError,
    NotAuthorizedError,
    PartitionError,
    RecordTooLargeError,
    SourceDataLostError,
    TargetDataLostError,
    UndecidedError,
)
from mirrorflow_replicator.flow.stream import Span
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.codes import name_of
from mirrorflow_replicator.kafka.witnesses import EARLIEST, LATEST
from mirrorflow_replicator.runtime.aligner import STOPPED_RETRY_S, Aligner
from mirrorflow_replicator.runtime.lane import Lane
from mirrorflow_replicator.runtime.packing import UNLIMITED_BYTES
from mirrorflow_replicator.runtime.surroundings import Loss, State
from mirrorflow_replicator.runtime.wiring import Wiring
from mirrorflow_replicator.wire.fetch import FetchedPartition

log = logging.getLogger("mirrorflow.task")

# What ends with a decision of somebody who then starts the process anew. Everything else may be mended behind our back.
_FINAL = (SourceDataLostError, TargetDataLostError, UndecidedError, IdentityError)
# What a target takes that refuses zstd (it is older, or its topic's format is).
BEFORE_ZSTD = frozenset({0, 1, 2, 3})


class Action(Enum):
    """What to do about it."""

    ASK = "ask"  # the target knows more than we do
    LOOK = "look"  # leaders have moved, or are not there yet
    LOST = "lost"  # source offsets are not there any more
    SHRINK = "shrink"  # smaller batches
    RECODE = "recode"  # another codec
    STOP = "stop"


_MOVED = {3, 5, 6, 9, 13, 72, 74, 75, 78, 100, 103}
_AGAIN = {2, 7, 19, 20, 45, 46, 47, 48, 51, 56, 59, 89}
_TOO_LARGE = {10, 18}
_CODEC = {76}
OFFSET_OUT_OF_RANGE = 1
TOPIC_AUTHORIZATION_FAILED = 29


def of_produce(code: int) -> Action:
    """What a refused produce means."""
    if code in _TOO_LARGE:
        return Action.SHRINK
    if code in _CODEC:
        return Action.RECODE
    if code in _MOVED:
        return Action.LOOK
    return Action.ASK if code in _AGAIN else Action.STOP


def of_fetch(code: int) -> Action:
    """What a refused fetch means."""
    if code == OFFSET_OUT_OF_RANGE:
        return Action.LOST
    if code in _MOVED or code in _AGAIN:
        return Action.LOOK
    return Action.STOP


class RefusedBatchError(PartitionError):
    """The target refuses a batch for what it holds."""

    reason = "BatchRefused"

    def __init__(
        self, *, topic: str, partition: int, offset: int, target_topic: str, code: str, message: str
    ) -> None:
        self.offset = offset
        self.code = code
        said = f": {message}" if message else ""
        super().__init__(
            f"target topic {target_topic} refuses the batch at source offset {offset} with {code}{said}; "
            "compare the settings of the two topics (message.timestamp.*, cleanup.policy, compression.type)",
            topic=topic,
            partition=partition,
        )


class Trouble:
    """Carries out what the codes mean."""

    def __init__(
        self,
        *,
        source: Cluster,
        target: Cluster,
        wiring: Wiring,
        aligner: Aligner,
        errors: Counter[str],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self._source = source
        self._target = target
        self._wiring = wiring
        self._aligner = aligner
        self._errors = errors
        self._spawn = spawn
        self._told: WeakKeyDictionary[Lane, str] = WeakKeyDictionary()
        self._looking: WeakSet[Lane] = WeakSet()  # for what they have lost

    def of_target(self, lane: Lane, code: int, message: str, span: Span) -> None:
        """A batch of *lane* was refused."""
        self._errors[name_of(code)] += 1
        action = of_produce(code)
        if action is Action.LOOK:
            self._wiring.stale(lane)
        elif action is Action.SHRINK:
            lane.packer.max_bytes = min(lane.packer.max_bytes, span.size_bytes - 1)
            self._spawn(self._learn_limit(lane))
        elif action is Action.RECODE:
            lane.packer.codecs_allowed = BEFORE_ZSTD
        elif action is Action.STOP and code == TOPIC_AUTHORIZATION_FAILED:
            lane.stop(
                NotAuthorizedError(
                    cluster=self._target.alias, operation="Write", resource=f"topic {lane.target_topic}"
                ),
            )
        elif action is Action.STOP:
            lane.stop(
                RefusedBatchError(
                    topic=lane.topic,
                    partition=lane.partition,
                    offset=span.base_offset,
                    target_topic=lane.target_topic,
                    code=name_of(code),
                    message=message,
                ),
            )

    def of_source(self, lane: Lane, code: int, answer: FetchedPartition) -> None:
        """A fetch of *lane* was refused, or answered with something else than records."""
        if code:
            self._errors[name_of(code)] += 1
        if not code and answer.diverging is None:
            self._wiring.read_at(lane, answer.preferred_replica)
            return
        action = Action.LOST if answer.diverging is not None else of_fetch(code)
        if action is Action.LOST:
            if lane not in self._looking:
                self._looking.add(lane)
                self._spawn(self._look_for_loss(lane, answer, lane.doubts, lane.fetch_offset))
        elif action is Action.STOP and code == TOPIC_AUTHORIZATION_FAILED:
            lane.stop(
                NotAuthorizedError(
                    cluster=self._source.alias, operation="Read", resource=f"topic {lane.topic}"
                ),
            )
        elif action is Action.STOP:
            subject, name = str(lane.source), name_of(code)
            lane.stop(
                BrokerError(
                    cluster=self._source.alias, request="Fetch", code=code, name=name, subject=subject
                )
            )
        else:
            self._wiring.stale(lane)

    def stopped(self, lane: Lane, error: MirrorFlowError) -> None:
        """*lane* has stopped: say so, once, and see to it that it is tried again if somebody may mend the cause.

        Or it has lost records, and goes on all the same.
        """
        self._errors[error.reason] += 1
        if self._told.get(lane) != str(error):
            self._told[lane] = str(error)
            log.warning("%s", error)
        if isinstance(error, RecordTooLargeError):
            self._spawn(self._wait_for_limit(lane))
        elif not isinstance(error, _FINAL):
            self._aligner.retry_stopped(lane)

    async def _wait_for_limit(self, lane: Lane) -> None:
        await asyncio.sleep(STOPPED_RETRY_S)
        if lane.state is not State.STOPPED:
            return
        await self._learn_limit(lane)
        self._aligner.retry_stopped(lane, pause_s=0.0)

    async def _learn_limit(self, lane: Lane) -> None:
        """Ask for the target topic's max.message.bytes. Where nobody may tell, the next refusal says whether it still holds."""
        lane_max_bytes = UNLIMITED_BYTES if lane.state is State.STOPPED else lane.packer.max_bytes
        try:
            described = await admin.describe_topic_configs(self._target, [lane.target_topic])
        except MirrorFlowError as error:
            log.info("The size that %s takes cannot be asked for: %s", lane.target_topic, error)
        else:
            for entry in described.get(lane.target_topic, ()):
                if entry.name == "max.message.bytes" and entry.value:
                    lane_max_bytes = int(entry.value)
        lane.packer.max_bytes = lane_max_bytes

    async def _look_for_loss(self, lane: Lane, answer: FetchedPartition, doubts: int, wanted: int) -> None:
        """Offset *wanted* was to be read and is not there: note what is lost; the aligner deals with it by policy.

        Unless *lane* has come into doubt since, and may read elsewhere: the next fetch tells then. A loss that is dealt
        with twice would be taken for a beginning, and skip what the policy wants copied.
        """
        try:
            first = (await admin.list_offsets(self._source, [lane.source], EARLIEST))[lane.source]
            end = (await admin.list_offsets(self._source, [lane.source], LATEST))[lane.source]
        finally:
            self._looking.discard(lane)
        if lane.doubts != doubts:
            return
        if first.error or end.error:
            self._wiring.stale(lane)
        elif answer.diverging is not None and answer.diverging[1] < wanted:
            lane.lose(Loss(wanted, answer.diverging[1], "the source's log was truncated and rewritten"))
        elif wanted < first.offset:
            lane.lose(Loss(wanted, first.offset, "source records were deleted before they were copied"))
        elif wanted > end.offset:
            lane.lose(Loss(wanted, end.offset, "the source's log was truncated"))
        else:
            self._wiring.stale(lane)
