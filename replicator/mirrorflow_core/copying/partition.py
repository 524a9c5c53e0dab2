"""One copied partition, from the start of a session to its end: a state machine without I/O and without a clock.

        ┌── resync: another connection or leader, a lost response, a refused batch, a loss, a frozen process ──┐
        v                                                                                                       │
    RESUMING ── `resumed`: it is known where to continue ──────────────────────────────────────────────────> COPYING
      │   ^                                                                                                     │
      │   └── `resumed`, when it is tried again; `left_out` ──┐                                                 │
      └── error ──────────────────────────────────────────> STOPPED <───────────────────────────────── error ───┘

It begins as RESUMING, or as STOPPED by a batch that ended the last session. `leave` makes each of them LEAVING, which is final.
`resumed` leads through RESUMING to COPYING in one call; it changes nothing while something is in flight or there is no connection,
and asks for the end of the session where only the logs show where to continue. A resync of a partition that is not COPYING leaves
its state, but drops what was fetched and moves it in the transaction of its task. `copying.membership` draws where it stands there:
a partition that is COPYING sends nothing while its membership is silent.

Events come in as method calls, and most return the effects that its shell carries out (`copying.effects`). The way of a batch:
`next_fetch` says where to fetch, `fetched` queues what was fetched, `next_batch` packs and numbers the next batch when a
connection has room for one, and `acknowledged`, `refused` or `response_lost` says what became of the oldest one in flight.
`copying.transaction` calls the events of the transaction: `joined`, `held`, `committed`, `released`, `change_mode`.

Guarantees: batches are sent in the order of the source, under consecutive numbers, and only while the partition is COPYING.
A partition that is RESUMING sends nothing, and continues only when there is a response to everything that it had in flight, or it is lost.
A loss that was resolved, and a place in the transaction, count only if there was no resync since they were asked for (`resyncs`); a
fetch response counts if it begins where the partition reads now.
"""

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, Final, NamedTuple

from mirrorflow_core.copying import error_actions
from mirrorflow_core.copying.batch_packer import ANY_AGE_MS, NO_AGE_MS, Packer
from mirrorflow_core.copying.effects import (
    FETCH,
    JOIN,
    NOTHING,
    READY,
    READY_AND_FETCH,
    REPORT,
    REPORT_AND_READY,
    Alert,
    Align,
    Count,
    Effects,
    EndSession,
    ReadBatchLimit,
    ReadFrom,
    ResolveLoss,
    Signal,
    StopPartition,
)
from mirrorflow_core.copying.error_actions import (
    BEFORE_ZSTD,
    ErrorAction,
    RefusedBatchError,
    action_for_fetch_error,
    action_for_produce_error,
)
from mirrorflow_core.copying.event_log import VERSION, EventLog, to_json, unusual, usual
from mirrorflow_core.copying.loss_errors import (
    DetectedLoss,
    detected_loss,
    loss_error,
    problem_error,
    source_lost,
)
from mirrorflow_core.copying.membership import TransactionMembership, moved
from mirrorflow_core.copying.partition_counts import PartitionCounts
from mirrorflow_core.copying.partition_health import PartitionHealth
from mirrorflow_core.copying.read_cursor import ReadCursor
from mirrorflow_core.copying.refused_records import RefusedRecords, refused_part
from mirrorflow_core.copying.session import CopySession
from mirrorflow_core.copying.uncertain_writes import Repeat, UncertainWrites
from mirrorflow_core.copying.write_mode_tracker import WriteModeTracker
from mirrorflow_core.errors import CorruptBatchError, MirrorFlowError, NotAuthorizedError, PartitionError
from mirrorflow_core.offsets.offset_map import MapStream
from mirrorflow_core.partitions import UNKNOWN, OffsetPair, TopicPartition
from mirrorflow_core.settings import LossPolicy
from mirrorflow_core.stall_detection import Obstacle, ObstacleKind
from mirrorflow_core.wire.error_codes import (
    CORRUPT_MESSAGE,
    INVALID_TXN_STATE,
    OUT_OF_ORDER_SEQUENCE_NUMBER,
    TOPIC_AUTHORIZATION_FAILED,
    name_of,
)
from mirrorflow_core.wire.fetch import FetchFrom, PartitionFetchResponse
from mirrorflow_core.wire.produce import BatchLimit, Buffer
from mirrorflow_core.writer.flow_plan import TopicIds, WritePoint, was_recreated
from mirrorflow_core.writer.position import WriteMode
from mirrorflow_core.writer.stream import Span, Stream
from mirrorflow_core.writer.write_mode import ChangeMode

REFUSALS_IN_A_ROW: Final = 2  # from then on it continues after a pause
_NO_BATCH: Final[tuple[None, Effects]] = (None, NOTHING)


class CopierState(Enum):
    """The states of a copied partition; the module has the diagram."""

    RESUMING = "resuming"
    COPYING = "copying"
    STOPPED = "stopped"
    LEAVING = "leaving"


LEGAL_STATES: Final[dict[CopierState, frozenset[CopierState]]] = {
    CopierState.RESUMING: frozenset({CopierState.COPYING, CopierState.STOPPED, CopierState.LEAVING}),
    CopierState.COPYING: frozenset({CopierState.RESUMING, CopierState.STOPPED, CopierState.LEAVING}),
    CopierState.STOPPED: frozenset({CopierState.RESUMING, CopierState.LEAVING}),
    CopierState.LEAVING: frozenset(),
}


class ResumeFacts(NamedTuple):
    """What the shell knows of both clusters when a partition is to continue."""

    is_connected: bool  # to the leader of the target partition
    source_topic_id: str  # "" if unknown
    target_topic_id: str
    target_epoch: int  # leader epoch of the target partition, by metadata


class PartitionCopier:
    """The state of one partition in one session of its task."""

    __slots__ = (
        "__weakref__", "_committed_next", "_confirmed_ms", "_is_fenced", "_is_resolving_loss", "_sent_ms",
        "counts", "cursor", "failed_starts", "has_diverged", "health",
        "log", "map_stream", "membership", "mode", "omission", "packer", "partition",
        "refusals", "resyncs", "session", "single_in_flight", "source", "start_end",
        "state", "stream", "target", "target_epoch", "target_topic", "topic", "uncertain",
    )  # fmt: skip

    def __init__(
        self, source: TopicPartition, target_topic: str, session: CopySession, packer: Packer
    ) -> None:
        self.source = source
        self.topic, self.partition = source
        self.target_topic = target_topic
        self.target = TopicPartition(target_topic, source.partition)
        self.session = session
        self._is_fenced = session.is_fenced
        self.packer = packer
        self.log = EventLog(session.entries_max)
        self.cursor = ReadCursor(source, read_committed=session.read_committed)
        self.state = CopierState.RESUMING
        self.resyncs = 0  # so far; what was asked before the last one is discarded when it is answered
        self._is_resolving_loss = False
        # -- written in this session; None until it has begun
        self.stream: Stream | None = None
        self.mode: WriteModeTracker | None = None  # also of an earlier session
        self.map_stream: MapStream | None = None  # names what this session copies in offset maps
        self.target_epoch = UNKNOWN  # leader epoch of the target partition when the session began
        self.single_in_flight = True  # the leader may not remember the producer
        self.uncertain = UncertainWrites()
        self.has_diverged = False  # the source has other records before the next one than were copied
        # Source offset after the last record that is committed in a transaction, or where this session begins.
        self._committed_next = UNKNOWN
        self._confirmed_ms = 0  # wall clock of the leader's last confirmation, or earlier
        self._sent_ms = 0  # when the oldest batch in flight was sent, or before
        # -- the transaction of its task
        self.membership = TransactionMembership.OUTSIDE
        # -- what it does next
        # Lost or refused records, which are passed over when it is known where to continue.
        self.omission: DetectedLoss | RefusedRecords | None = None
        self.refusals = 0  # in a row; the next attempt is delayed by them
        self.failed_starts = 0  # sessions that left it out, although nothing was wrong with it before them
        # -- what is reported
        self.health = PartitionHealth()
        self.counts = PartitionCounts()
        self.start_end = UNKNOWN  # the source's end when the task began

    def started(self, earlier: "PartitionCopier | None") -> Effects:
        """Continues the counts that *earlier* had of this partition in the last session, and what it has learned."""
        if earlier is None:
            return NOTHING
        self.counts = replace(earlier.counts)
        self.failed_starts = earlier.failed_starts
        self.packer.inherit(earlier.packer)
        self.mode = earlier.mode
        # A batch that ended the last session (UNKNOWN_SERVER_ERROR) would end each one, and delay the other partitions.
        if earlier.health.is_halted and isinstance(earlier.health.error, RefusedBatchError):
            return self._stop(earlier.health.error)
        return NOTHING

    # -- reading

    def next_fetch(self, response_bytes: int) -> FetchFrom | None:
        """Returns where to fetch next, in a response of about *response_bytes*; None while it is not COPYING, or full."""
        request = self.cursor.request(response_bytes, self.packer, self.log)
        return request if self.state is CopierState.COPYING else None

    def may_fetch_soon(self) -> bool:
        """Returns whether it may want to fetch more at any moment."""
        if self.state is CopierState.RESUMING:
            return self.source not in self.session.start.waiting
        return self.state is CopierState.COPYING and not self.cursor.is_waiting

    def fetched(self, response: PartitionFetchResponse, asked_offset: int) -> Effects:
        """Queues the records of a fetch response, or reacts to its error."""
        stream = self.stream
        if stream is None or self.state is not CopierState.COPYING or asked_offset != self.cursor.offset:
            return NOTHING
        log = self.log
        is_usual = not (response.error or response.diverging is not None or response.preferred_replica >= 0)
        if log.is_full:
            log.end(self.state_values)
        events = log.events if is_usual else log.begin(self.state_values)
        if events is not None:
            events.append(("fetched", response[1:7], len(response.records), response[8:], asked_offset))
        if not is_usual:
            return self._fetch_refused(response)
        assert self.packer or self.cursor.offset <= stream.next_offset, "what was read is queued or sent"
        try:
            self.counts.note_skipped(self.cursor.take(response, self.packer, stream, log))
        except CorruptBatchError as error:
            self.packer.end_with(error)
        if len(response.records):
            return REPORT_AND_READY
        return REPORT if self.health.recovered() or self.cursor.is_held_back else NOTHING

    def _fetch_refused(self, response: PartitionFetchResponse) -> Effects:
        """Reacts to an error, another replica to read from, or a diverging epoch."""
        code = response.error
        if not code and response.diverging is None:
            return (ReadFrom(response.preferred_replica),)
        if response.diverging is not None:
            self.cursor.note_ends(response)
            self.health.note_obstacle(Obstacle(kind=ObstacleKind.DIVERGED))
            if self.cursor.write_first(self.packer):
                return REPORT
            # The next session compares the source with the target and finds what was lost.
            self.refusals += 1
            self.has_diverged = True
            return *REPORT, *self._resync()
        name = name_of(code)
        self.health.note_obstacle(Obstacle(kind=ObstacleKind.FETCH_REFUSED, name=name))
        reported: Effects = (Count(name), Signal.REPORT)
        action = action_for_fetch_error(code)
        if action is ErrorAction.RESOLVE_LOSS:
            if self.cursor.write_first(self.packer):
                return reported
            self.cursor.wait_for_leader()
            if self._is_resolving_loss:
                return reported
            self._is_resolving_loss = True
            return *reported, ResolveLoss(self.cursor.offset, self.resyncs)
        if action is not ErrorAction.STOP:
            self.cursor.wait_for_leader()
            return *reported, Signal.REFRESH_LEADER
        alias = self.session.source_alias
        return *reported, *self._stop(error_actions.fetch_error(code, self.source, alias))

    @unusual
    def loss_resolved(self, asked: ResolveLoss, log_start: int | None, log_end: int | None) -> Effects:
        """Compares *asked* with the source's log; None: it could not be read. The loss policy applies when it resumes.

        Decides nothing if the partition was resynced since and may read elsewhere: the next fetch shows whether there is a
        loss. A loss handled twice would be taken for a beginning, and skip what the policy wants copied.
        """
        self._is_resolving_loss = False
        if asked.resyncs != self.resyncs:
            return (Signal.REFRESH_LEADER,)
        loss = detected_loss(asked.offset, log_start, log_end)
        if loss is None:
            return (Signal.REFRESH_LEADER,)
        self.omission = loss
        return self._resync()

    # -- writing

    def next_batch(self, now_ms: int, request_bytes: int) -> tuple[Buffer | None, Effects]:
        """Returns the next batch to send, which then counts as in flight; None if there is none now.

        *request_bytes* is how much its connection takes in one request.
        """
        stream, mode = self.stream, self.mode
        if (
            self.membership.is_silent
            or self.state is not CopierState.COPYING
            or stream is None
            or mode is None
        ):
            return _NO_BATCH
        packer, is_plain, age_limit_ms = self.packer, mode.is_plain, self.session.plain_age_limit_ms
        events = self.log.events
        if events is not None:
            events.append(("next_batch", now_ms, request_bytes, age_limit_ms))
        if is_plain and now_ms - self._confirmed_ms > age_limit_ms:
            # The last confirmation is so old that the leader may have forgotten the producer.
            self.single_in_flight = True
        in_flight = stream.in_flight
        if in_flight and self.single_in_flight:
            return _NO_BATCH
        if is_plain and not self._is_fenced:
            old_before_ms = NO_AGE_MS
        else:
            old_before_ms = now_ms - age_limit_ms if is_plain and age_limit_ms else ANY_AGE_MS
        packer.prepare(old_before_ms, request_bytes)
        front = packer.front
        if front is not None:
            change = mode.check(front, stream.next_offset, now_ms=now_ms, age_limit_ms=age_limit_ms)
            if change is not None:
                return None, self._want_change(change, mode)
        try:
            packed = packer.next(stream)
        except PartitionError as error:
            if events is not None:
                events.append(("packed", *packer.outcome(error)))
            return None, NOTHING if in_flight else self._stop(error)
        if events is not None:
            events.append(("packed", *packer.outcome(None if packed is None else packed[1])))
        if packed is None:
            return None, self._without_batch(stream, mode)
        data, span = packed
        if not in_flight:
            self._sent_ms = now_ms
        stream.take(span)
        # Not `next_offset`: offsets that are skipped after the records must show as a gap.
        mode.taken(span.base_offset + span.count, span.source_epoch)
        self.counts.note_sent(span, now_ms)
        cursor = self.cursor
        if cursor.is_full and cursor.has_room(packer):
            cursor.read_on()
            return data, READY_AND_FETCH if packer else FETCH
        return data, READY if packer else NOTHING

    def _without_batch(self, stream: Stream, mode: WriteModeTracker) -> Effects:
        """Asks for what the packer lacks: another mode, the transaction of the task, or more records."""
        if self.packer.needs_transaction and mode.is_plain:
            return self._want_change(mode.refuse_plain(stream.next_offset), mode)
        if self.packer.needs_transaction:
            self._enter(TransactionMembership.WANTED)
            return JOIN
        if not self.cursor.is_full:
            return NOTHING
        self.cursor.read_on()
        return FETCH

    def _want_change(self, change: ChangeMode, mode: WriteModeTracker) -> Effects:
        """Asks for another mode, once everything in flight is acknowledged."""
        if self.stream is None or self.stream.in_flight:
            return NOTHING
        mode.want(change)
        self._enter(self.membership.when_changing())
        return JOIN

    def acknowledged(self, base_offset: int, append_time_ms: int, now_ms: int) -> Effects:
        """Counts the oldest batch in flight as delivered, unless the leader took another batch for it.

        *append_time_ms* is -1 for a new batch of a topic with CreateTime. Otherwise the topic has LogAppendTime, or the leader
        had the batch already.
        """
        stream, mode, session = self.stream, self.mode, self.session
        assert stream is not None
        assert mode is not None
        is_known = append_time_ms == -1 or self.target_topic in session.log_append_time_topics
        is_usual = (
            stream.expected_target in (base_offset, None)
            and not stream.has_refusals
            and (is_known or not mode.is_plain)
        )
        events = self.log.events if is_usual else self.log.begin(self.state_values)
        if events is not None:
            events.append(
                ("acknowledged", base_offset, append_time_ms, now_ms, session.plain_age_limit_ms, is_known)
            )
        if append_time_ms == -1:
            session.log_append_time_topics.discard(self.target_topic)
        elif mode.is_plain and not is_known:
            # The timestamp itself does not matter: another producer may have written in the same millisecond.
            self.uncertain.note_repeat(stream.suspect(), base_offset)
            return self._resync()
        span, continues, is_delivered = stream.acknowledge(base_offset)
        if not is_delivered:
            # It follows a refused batch, at the place of that one: nothing counts as delivered before a resync.
            self.uncertain.note_lost()
            return self._resync()
        # Whether the leader may soon not remember the producer of plain batches.
        self.single_in_flight = mode.is_plain and now_ms - span.max_timestamp >= session.plain_age_limit_ms
        # The response may have been in transit for long: what it confirms is only certain for the time the
        # batch was sent.
        self._confirmed_ms = self._sent_ms
        self.counts.note_acknowledged(span, now_ms)
        self.refusals = 0
        if self.health.error is not None and self.state is not CopierState.STOPPED:
            self.health.recovered()
        if not continues:
            return *REPORT, *self._resync()  # another producer has written to this partition
        if self.state is not CopierState.COPYING or self.membership.is_silent:
            return *REPORT, *self._when_drained()
        return REPORT_AND_READY if self.packer else REPORT

    @unusual
    def refused(self, code: int, message: str, records: Sequence[int] = ()) -> Effects:
        """Handles the refusal of the oldest batch in flight; *records* are the indexes of its refused records."""
        stream, name = self.stream, name_of(code)
        assert stream is not None
        self.health.note_obstacle(Obstacle(kind=ObstacleKind.WRITE_REFUSED, name=name, message=message))
        is_first = not stream.has_refusals
        span = stream.refuse(is_absent=code == INVALID_TXN_STATE)
        if is_first and code == OUT_OF_ORDER_SEQUENCE_NUMBER:
            self.uncertain.note_out_of_order(span.first)
        if code == INVALID_TXN_STATE and self.session.is_fenced:
            # Only another producer can have ended it.
            return EndSession("its transaction was ended by another process"), *self._resync()
        self.counts.note_refused()
        if code == CORRUPT_MESSAGE:
            self.packer.verify()
        ends: Effects = ()
        if code in error_actions.SESSION_ENDING_CODES:
            ends = (EndSession(f"the target refused a batch with {name}"),)
        action = action_for_produce_error(code)
        reaction = self._react(action, code, message, span, records)
        if self.state is CopierState.COPYING:
            self.refusals += 1
        return Count(name), *ends, *reaction, *self._resync()

    def _react(
        self, action: ErrorAction, code: int, message: str, span: Span, records: Sequence[int]
    ) -> Effects:
        is_copying = self.state is CopierState.COPYING  # otherwise it was in flight after a refused batch
        match action:
            case ErrorAction.REFRESH_METADATA:
                return (Signal.REFRESH_LEADER,)
            case ErrorAction.SHRINK_BATCHES if is_copying:
                if span.count > 1:
                    self.packer.limit_to(self.packer.limit.after_refusal())
                return (ReadBatchLimit(span),)
            case ErrorAction.CHANGE_CODEC:
                self.packer.allow_codecs(BEFORE_ZSTD)
            case ErrorAction.SPLIT_BATCH if is_copying:
                return self._refused_records(code, message, span, records)
            case ErrorAction.STOP if code == TOPIC_AUTHORIZATION_FAILED:
                alias, resource = self.session.target_alias, f"topic {self.target_topic}"
                return self._stop(NotAuthorizedError(cluster=alias, operation="Write", resource=resource))
            case ErrorAction.STOP:
                return self._stop(self._refused_batch(code, message, span))
        return NOTHING

    def _refused_records(self, code: int, message: str, span: Span, records: Sequence[int]) -> Effects:
        """Has the records before the first refused one of *span* sent; then stops at it, or skips it."""
        part = refused_part(span, records)
        if part.cut_at is not None:
            self.packer.cut_before(part.cut_at)
        elif self.session.skips_refused:
            error = self._refused_batch(code, message, span, skips=part.records)
            self.omission = RefusedRecords(span.first, part.next_offset, part.source_epoch, error)
        else:
            return self._stop(self._refused_batch(code, message, span))
        return NOTHING

    def _refused_batch(self, code: int, message: str, span: Span, *, skips: int = 0) -> RefusedBatchError:
        return RefusedBatchError(
            topic=self.topic,
            partition=self.partition,
            offset=span.base_offset,
            target_topic=self.target_topic,
            code=code,
            message=message,
            skips=skips,
        )

    @unusual
    def response_lost(self) -> Effects:
        """Handles a lost response to the oldest batch in flight."""
        assert self.stream is not None
        self.uncertain.note_lost()
        self.stream.refuse()
        return self._resync()

    @unusual
    def limited(self, limit: BatchLimit) -> Effects:
        """Makes batches of at most *limit* from now on: the settings of the target topic have changed."""
        self.packer.limit_to(limit)
        # What is packed already was packed by another limit.
        return self._resync() if self.state is CopierState.COPYING else NOTHING

    @unusual
    def found_too_large(self, span: Span) -> Effects:
        """Stops at the one record of *span*, which is larger than the settings of the target topic allow."""
        return self._stop(self.packer.too_large(span.base_offset, span.size_bytes))

    @property
    def is_drained(self) -> bool:
        """Returns whether everything sent has a response or is lost: only then can it be determined where to continue."""
        return self.stream is None or not self.stream.in_flight

    @property
    def repeat(self) -> Repeat | None:
        """Another batch that the leader has reported for one of this session; None: there was none."""
        return self.uncertain.repeat

    @property
    def has_uncertain_writes(self) -> bool:
        """Returns whether what counts as acknowledged may not be in the target, or is not all that is there."""
        return self.uncertain.remain(self.stream)

    @property
    def has_position_without_records(self) -> bool:
        """Whether its position may be stored without records: of plain batches, or of offsets skipped since the last commit."""
        stream, mode = self.stream, self.mode
        if stream is None or mode is None:
            return False
        is_between_commits = not self.membership.is_member and not stream.in_flight
        has_skipped = stream.delivered.source_offset + 1 > self._committed_next
        return mode.is_plain or (is_between_commits and has_skipped)

    @property
    def settled_next_offset(self) -> int:
        """The source offset after the last record that no abort can remove; UNKNOWN: it has not begun."""
        if self.stream is None or self.mode is None:
            return UNKNOWN
        return self.stream.delivered.source_offset + 1 if self.mode.is_plain else self._committed_next

    # -- the leaders

    @unusual
    def connected(self) -> Effects:
        """There is a new connection to the target's leader."""
        return self._resync()

    @unusual
    def leader_changed(self) -> Effects:
        """Another leader of the target was found, the same one in another epoch, or another topic of the same name."""
        return self._resync()

    def fetch_failed(self, error: MirrorFlowError) -> Effects:
        """The source broker from which it reads cannot be reached."""
        return NOTHING if self.state is CopierState.STOPPED else self._source_lost(error)

    def write_failed(self, error: MirrorFlowError) -> Effects:
        """The target broker to which it writes cannot be reached."""
        return NOTHING if self.state is CopierState.STOPPED else self._target_lost(error)

    # Not events of a stopped partition: its log keeps what it stopped at, and its leaders are looked up when it is tried again.

    @unusual
    def _source_lost(self, error: MirrorFlowError) -> Effects:
        is_reported = self.state is CopierState.COPYING and self.health.delayed(error)
        return (Signal.REFRESH_LEADER, *REPORT) if is_reported else (Signal.REFRESH_LEADER,)

    @unusual
    def _target_lost(self, error: MirrorFlowError) -> Effects:
        if self.state is not CopierState.COPYING:
            return (Signal.REFRESH_LEADER,)
        # What was fetched would use up the memory of the task, which other partitions need, for as long as the broker is away.
        reported = REPORT if self.health.delayed(error) else NOTHING
        return Signal.REFRESH_LEADER, *reported, *self._resync()

    @unusual
    def paused(self) -> Effects:
        """The process did not run for a while."""
        return self._resync()

    def reads_topic(self, topic_id: str) -> bool:
        """Returns whether the source topic with *topic_id* may be the one that it reads, not another of the same name."""
        return self.map_stream is None or not was_recreated(self.map_stream.source_topic_id, topic_id)

    def source_leader_seen(self, epoch: int) -> Effects:
        """The metadata has a leader of the source partition, with leader *epoch*."""
        cursor = self.cursor
        was_waiting = cursor.is_waiting
        if was_waiting or epoch != cursor.leader_epoch:
            self._add("source_leader_seen", epoch)
            cursor.note_leader_epoch(epoch)
        return FETCH if was_waiting else NOTHING

    # -- where to continue

    @unusual
    def resync(self) -> Effects:
        """Drops what was fetched, and writes nothing more until it is determined where to continue."""
        return self._resync()

    def _resync(self) -> Effects:
        self.packer.clear()
        self.resyncs += 1
        self._enter(self.membership.when_resynced())
        if self.state is CopierState.COPYING:
            self._become(CopierState.RESUMING)
            return *FETCH, *self._when_drained()
        return self._when_drained()

    def _when_drained(self) -> Effects:
        if not self.is_drained:
            return NOTHING
        match self.state:
            case CopierState.RESUMING:
                is_refused = self.refusals >= REFUSALS_IN_A_ROW
                resume = Signal.RESUME_LATER if is_refused else Signal.RESUME
                return (Signal.DRAINED, resume) if self.is_held else (resume,)
            case CopierState.LEAVING:
                return (Signal.DRAINED,)
        return (Signal.DRAINED,) if self.is_held else NOTHING

    @unusual
    def resumed(self, seen: ResumeFacts, now_ms: int) -> Effects:
        """Determines where to continue, or why the session must end. A stopped partition is tried again."""
        start = self.session.start
        if self.state is CopierState.STOPPED:
            self._become(CopierState.RESUMING)
        if self.state is not CopierState.RESUMING or not self.is_drained:
            return NOTHING  # the last response to what is in flight asks again
        if (problem := start.problems.get(self.source)) is not None:
            return self._stop(problem_error(self.source, self.target_topic, problem, self.session))
        if not seen.is_connected:
            return NOTHING  # the connection asks again
        point = start.points[self.source]
        self.target_epoch = point.target_epoch
        if reason := self._end_reason(seen):
            return (EndSession(reason),)
        if self.stream is None:
            return self._begin(seen, point, now_ms)
        return self._continue(self.stream, now_ms)

    def _end_reason(self, seen: ResumeFacts) -> str | None:
        """Returns why it cannot continue in this session; None if it can."""
        ids = self.session.start.topic_ids.get(self.topic, TopicIds())
        if was_recreated(ids.source, seen.source_topic_id):
            return f"topic {self.topic} was created again"
        if was_recreated(ids.target, seen.target_topic_id):
            return f"topic {self.target_topic} was created again"
        has_new_leader = seen.target_epoch > self.target_epoch
        return self.uncertain.end_reason(
            self.target, self.stream, has_new_leader=has_new_leader, has_diverged=self.has_diverged
        )

    def uncommittable_reason(self, target_epoch: int) -> str | None:
        """Returns why a transaction with its records must not be committed; None if it may. *target_epoch* is by metadata."""
        has_new_leader = target_epoch > self.target_epoch
        return self.uncertain.uncommittable_reason(self.target, self.stream, has_new_leader=has_new_leader)

    def _begin(self, seen: ResumeFacts, point: WritePoint, now_ms: int) -> Effects:
        """Begins at *point*, which the takeover has found."""
        start = self.session.start
        producers = {
            WriteMode.TRANSACTION: start.producers.transactional,
            WriteMode.PLAIN: start.producers.plain,
        }
        self.map_stream = MapStream(point.generation, seen.source_topic_id, seen.target_topic_id)
        self.mode = WriteModeTracker(point, producers, is_fenced=self.session.is_fenced, earlier=self.mode)
        pair = point.last_record
        self.stream = Stream(pair, point.epochs)
        self._committed_next = point.next_source_offset
        alerts: Effects = ()
        if (loss := start.losses.get(self.source)) is not None:
            error = loss_error(self.source, self.target_topic, loss, self.session)
            alerts = self._alert_loss(error, now_ms)
        effects = self._align(self.stream, self.mode, pair, now_ms, was_cut_off=point.was_cut_off)
        self.stream.pass_markers(point.target_end - point.records_end)
        return *alerts, *effects

    def _continue(self, stream: Stream, now_ms: int) -> Effects:
        """Continues after the last acknowledged record, or after what is lost or skipped."""
        mode = self.mode
        assert mode is not None
        pair = delivered = stream.delivered
        alerts: Effects = ()
        omission, self.omission = self.omission, None
        if isinstance(omission, DetectedLoss):
            error = source_lost(self.source, omission, self.session)
            if self.session.loss_policy is LossPolicy.FAIL:
                return self._stop(error)
            # Records before the loss that were in flight and are not delivered are lost, too, or still in the source.
            lost_records = max(0, omission.found - pair.source_offset - 1) if omission.is_trimmed else 0
            alerts = self._alert_loss(error, now_ms, lost_records=lost_records)
            if omission.is_trimmed or omission.found <= pair.source_offset:
                pair = pair._replace(source_offset=omission.found - 1, source_epoch=UNKNOWN)
        elif omission is not None and pair.ordinal + 1 == omission.ordinal:
            lost_records = omission.next_offset - pair.source_offset - 1
            alerts = self._alert_loss(omission.error, now_ms, lost_records=lost_records)
            self.refusals = 0
            stream.align(pair)
            stream.pass_over(omission.next_offset, omission.source_epoch)
            pair = stream.delivered
        mode.rewind(pair.source_offset + 1, is_after_gap=pair is not delivered)
        return *alerts, *self._align(stream, mode, pair, now_ms, was_cut_off=False)

    def _align(
        self, stream: Stream, mode: WriteModeTracker, pair: OffsetPair, now_ms: int, *, was_cut_off: bool
    ) -> Effects:
        """Copies after *pair*; a member of the open transaction sends nothing until it has joined it again."""
        self.failed_starts = 0
        stream.align(pair)
        self.uncertain.aligned()
        self.has_diverged = False
        self._number(mode)
        self.single_in_flight = True
        self._confirmed_ms = now_ms
        self.cursor.seek(stream.next_offset, pair.source_epoch)
        self._become(CopierState.COPYING)
        self.health.resumed()
        self._enter(self.membership.when_resynced())
        joins = JOIN if self.membership.is_member else NOTHING
        return *joins, Signal.REPORT, Align(pair, was_cut_off), Signal.FETCH

    def _number(self, mode: WriteModeTracker) -> None:
        is_counted = mode.is_plain and self.session.is_fenced  # the end lookup counts its offsets
        self.packer.number_by(mode.producer, mode.first_ordinal, merges_across_gaps=not is_counted)

    @unusual
    def repeat_answered(self, *, is_log_append_time: bool) -> None:
        """Says why the leader reported that it already had a plain batch: none was sent twice. The session ends when it resumes.

        Either the topic has LogAppendTime, which was not known, or another producer has written our numbers.
        """
        if is_log_append_time:
            self.session.log_append_time_topics.add(self.target_topic)
        else:
            self.uncertain.note_foreign_repeat()

    # -- the transaction of its task

    @property
    def is_held(self) -> bool:
        """Whether it sends nothing until its transaction is committed, or it has joined it again."""
        return self.membership.is_silent

    @property
    def transactional_id(self) -> str | None:
        """The transactional id of its batches; None outside of the transaction."""
        return self.session.start.producers.transactional[0] if self.membership.is_inside else None

    def _enter(self, membership: TransactionMembership) -> None:
        if membership is not self.membership:
            self.membership = moved(self.membership, membership)
            self.packer.set_transactional(transactional=membership.is_inside)

    @usual
    def joined(self, resyncs: int, *, is_full: bool) -> Effects:
        """The coordinator has added it to the open transaction. *is_full*: a commit follows.

        *resyncs* is its count when it asked: if it differs now, it was resynced meanwhile, and asks again.
        """
        is_resynced = self.state is not CopierState.COPYING or self.resyncs != resyncs
        self._enter(self.membership.when_joined(is_resynced=is_resynced, is_full=is_full))
        return READY

    @usual
    def held(self) -> None:
        """Sends nothing until `released`: a commit follows."""
        if self.membership is TransactionMembership.INSIDE:
            self._enter(TransactionMembership.HELD)

    @usual
    def committed(self, next_source_offset: int) -> None:
        """Notes that the position *next_source_offset* is committed, with all records before it."""
        self._committed_next = next_source_offset

    @usual
    def released(self, *, is_marked: bool) -> Effects:
        """The transaction is committed, and it leaves it.

        *is_marked*: it was not resynced meanwhile, so the commit marker took the next target offset.
        """
        self._enter(TransactionMembership.OUTSIDE)
        if not is_marked or self.stream is None:
            return READY
        self.stream.pass_markers(1)
        return REPORT_AND_READY

    @property
    def wanted_change(self) -> ChangeMode | None:
        """The change of mode for which it is held; None: it may send in its present mode."""
        return self.mode.change if self.mode is not None and self.membership.is_changing else None

    @usual
    def change_mode(self, change: ChangeMode, now_ms: int) -> Effects:
        """Continues as *change* says, whose position is committed."""
        stream, mode = self.stream, self.mode
        assert stream is not None
        assert mode is not None
        stream.pass_over(change.next_source_offset, change.source_epoch)
        mode.apply(change, stream.next_ordinal, now_ms)
        self.single_in_flight = True  # the leader may never have seen the producer of this mode
        self._number(mode)
        if not self.packer.has_encoded:
            return NOTHING
        # With the numbers of the former producer.
        self.packer.clear()
        self.cursor.seek(stream.next_offset, stream.delivered.source_epoch)
        return FETCH

    # -- stopping and leaving

    @unusual
    def stop(self, error: MirrorFlowError) -> Effects:
        """Stops copying until *error* is resolved."""
        return self._stop(error)

    def _stop(self, error: MirrorFlowError) -> Effects:
        if self.state is CopierState.LEAVING:
            return NOTHING  # its next owner meets it
        self._become(CopierState.STOPPED)
        self.health.stopped(error)
        self.packer.clear()
        return StopPartition(error, error_actions.retry_of(error)), Signal.FETCH, Signal.REPORT

    @unusual
    def left_out(self, error: MirrorFlowError) -> Effects:
        """Waits while *error* lasts, for which this session leaves it out: as if stopped, where a permission is missing."""
        if str(self.health.error) == str(error):
            return NOTHING
        if isinstance(error, NotAuthorizedError):
            return self._stop(error)
        self._become(CopierState.RESUMING)
        self.health.left_out(error)
        return REPORT

    @unusual
    def leave(self) -> Effects:
        """Takes and sends nothing more; responses to what is in flight are still handled."""
        self._become(CopierState.LEAVING)
        self.packer.clear()
        return self._when_drained()

    def _become(self, state: CopierState) -> None:
        assert state is self.state or state in LEGAL_STATES[self.state], (
            f"{self.source}: {self.state.value} became {state.value}"
        )
        self.state = state

    def _alert_loss(self, error: PartitionError, now_ms: int, *, lost_records: int = 0) -> Effects:
        self.counts.note_loss(error, now_ms, lost_records=lost_records)
        return Alert(error), Signal.REPORT

    # -- what is reported

    def state_values(self) -> dict[str, Any]:
        """Returns everything that decides what it does next, for its event log; not the payloads."""
        unlogged = {"log", "session", "packer", "health", "__weakref__"}
        return {
            **{name: getattr(self, name) for name in PartitionCopier.__slots__ if name not in unlogged},
            "packer": self.packer.state_values(),
            "health": self.health.without_stall(),
            "plain_age_limit_ms": self.session.plain_age_limit_ms,
            "is_log_append_time": self.target_topic in self.session.log_append_time_topics,
        }

    def replay_document(self) -> dict[str, Any]:
        """Returns what it did lately, as JSON values: enough to do it again without payloads (`copying.event_log`)."""
        return {
            "version": VERSION,
            "source": to_json(self.source),
            "target_topic": self.target_topic,
            "session": to_json(self.session.only(self.source)),
            "segments": self.log.segments(self.state_values),
        }

    def _add(self, name: str, *values: int) -> None:
        """Adds a usual event to the present segment of the log."""
        if self.log.events is not None:
            self.log.events.append((name, values, {}))

    @unusual
    def delayed(self, error: MirrorFlowError) -> Effects:
        """Notes an error that delays copying. An error that stopped the partition stays until it copies again."""
        return REPORT if self.health.delayed(error) else NOTHING

    @usual
    def note_end(self, end_offset: int, *, is_start: bool = False) -> None:
        """Notes where the source ends; *is_start*: when the task began."""
        if is_start:
            self.start_end = end_offset
        self.cursor.note_end(end_offset)

    @unusual
    def count_failed_start(self) -> None:
        """Counts a session which may leave it out once more, until it begins."""
        self.failed_starts += 1
