"""Decides whether a partition is stalled, and why, in a sentence that says what to do. No I/O.

A partition is *stalled* when it has something to copy, or cannot tell whether it has, and made no progress
for `STALLED_AFTER_S`. Progress is an acknowledged batch, or reaching the end of the source. A partition that
an error has stopped is not stalled, nor is one that a rate limit or a quota delays.

An *open transaction* of the source is one that hides what follows it from a reader of committed records.

An *obstacle* is the newest event that kept the partition from copying. It explains a stall while it may be
the cause (`_EXPLAINS_S`). A stalled partition without an obstacle waits for a missing response.
"""

from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum
from typing import Final, NamedTuple

from mirrorflow_core.errors import FEW_REPLICAS
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.reports import PartitionPhase

# An election, a broker restart or a lost connection takes less. With a much longer limit, a source with a
# short retention could delete records that were not copied before a user is warned.
STALLED_AFTER_S: Final = 30.0
# Most retry loops take less than 3 s. A broker that waits for its replicas refuses after 30 s
# (REQUEST_TIMED_OUT); then the target is queried, and the batch is sent again.
_EXPLAINS_S: Final = 45.0
# So many queries within STALLED_AFTER_S are a loop; a new connection, an election or a process pause causes
# one or two.
_ASKED_AGAIN_MIN: Final = 5
# A successful fetch without records is not recorded here, so an older refusal may be over. Leaders are looked
# up and queried again four times a second, and within 2 s after a diverging response.
_FETCH_EXPLAINS_S: Final = 5.0
_OUT_OF_SYNC: Final = "bring the replicas of {target} back in sync; " + FEW_REPLICAS
_TOO_LARGE: Final = (
    "compare compression.type and max.message.bytes of {target} with those of the source topic: a target that compresses "
    "less makes batches larger, and then they may exceed its limit"
)
# By name of the error code; {target} is the target partition. For other codes only the broker's log helps.
_ADVICE: Final = {
    "NOT_ENOUGH_REPLICAS": _OUT_OF_SYNC,
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND": _OUT_OF_SYNC,
    "REQUEST_TIMED_OUT": "find out why the followers of {target} do not fetch from its leader",
    "MESSAGE_TOO_LARGE": _TOO_LARGE,
    "RECORD_LIST_TOO_LARGE": _TOO_LARGE,
    "OUT_OF_ORDER_SEQUENCE_NUMBER": "stop any second copier of this flow; if there is none, let another broker lead "
    "{target}, and report this with the log of the broker that led it",
    "INVALID_TXN_STATE": "stop any second copier of this flow; if there is none, check the transaction coordinator of the target",
}
_ADVICE_ELSE: Final = "the log of the broker that leads {target} says more"


class StallReason(Enum):
    """Why a partition is stalled, if no error explains it better. The values of `reason` in status and metrics."""

    WRITES_REFUSED = "WritesRefused"
    NO_DECISION = "NoDecision"  # the target's responses do not determine where to continue
    COMMIT_PENDING = "CommitPending"
    SOURCE_NOT_ANSWERING = "SourceNotAnswering"
    TARGET_NOT_ANSWERING = "TargetNotAnswering"
    OPEN_TRANSACTION = "OpenTransaction"  # of the source, whose committed records are read


class ObstacleKind(Enum):
    """The kind of event that kept a partition from copying."""

    WRITE_REFUSED = "write refused"  # by the target; `name`: the Kafka error code's name
    FETCH_REFUSED = "fetch refused"  # by the source; `name` likewise
    # The source answers a fetch with DivergingEpoch: its log differs from the copied one.
    DIVERGED = "diverged"
    FAILED = "failed"  # a retriable error: `name` is its reason, `message` its text


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """The newest event that kept a partition from copying."""

    kind: ObstacleKind
    name: str = ""
    message: str = ""  # "" as of a broker that says nothing more than the code
    times: int = 1  # including those of the same kind directly before it

    def after(self, before: "Obstacle | None") -> "Obstacle":
        """Returns this obstacle with the count of *before* added if both are of one kind."""
        if before is None or before.kind is not self.kind:
            return self
        return replace(self, times=before.times + 1)


# Responses of the source without records; then the known end of its log may be outdated.
OF_FETCHES: Final = frozenset({ObstacleKind.FETCH_REFUSED, ObstacleKind.DIVERGED})


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTransaction:
    """The transaction that begins at a source partition's last stable offset, as its leader reports it."""

    producer_id: int
    producer_epoch: int
    start_offset: int
    last_timestamp_ms: int | None  # of the producer's newest record there; None: it has none


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFacts:
    """The facts about one partition at one moment. Aliases and names are used in the message."""

    partition: str  # on the source: orders-3
    target_partition: str
    source: str
    target: str
    phase: PartitionPhase  # STARTING: the target is queried where to continue
    # Counts while there was something to copy, or that was unknown. 0 for an idle partition.
    without_progress_s: float
    obstacle: Obstacle | None = None
    obstacle_age_s: float = 0.0
    times_asked: int = 0  # queries of the target where to continue, without progress since
    is_in_flight: bool = False  # batches were sent and have no response yet
    is_fetched: bool = False  # records were fetched and not yet sent
    is_crowded_out: bool = False  # nothing is fetched, because other partitions fill the buffer
    is_reading_limited: bool = False  # a rate limit or a quota recently delayed its reader
    is_writing_limited: bool = False  # a quota recently delayed the connection for its writes
    # Its reader received records often enough for each partition to have its turn, so no limit explains the
    # stall.
    had_its_turn: bool = False
    awaits_commit: bool = False  # sending waits for the flow's transaction to begin or end
    transactional_id: str | None = None
    source_has_leader: bool = True
    target_has_leader: bool = True
    # The source's last stable offset, if everything before it is copied and an open transaction hides what follows.
    held_at_offset: int | None = None
    open_transaction: OpenTransaction | None = None  # None: the leader has not reported it


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Why a partition is stalled. *reason*: a `StallReason` or an error's reason; *detail* separates stalls of one reason."""

    reason: str
    detail: str | None = None
    sentence: str

    def is_same(self, other: "Stall | None") -> bool:
        """Returns whether *other* has the same cause; counts in the sentence may differ."""
        return other is not None and (self.reason, self.detail) == (other.reason, other.detail)


class Stalled(NamedTuple):
    """The stall of a partition, and since when it has made no progress (monotonic clock)."""

    stall: Stall
    since_ms: int


def explains(obstacle: Obstacle, age_s: float) -> bool:
    """Returns whether an obstacle that is *age_s* old may still keep the partition from copying."""
    return age_s <= (_FETCH_EXPLAINS_S if obstacle.kind in OF_FETCHES else _EXPLAINS_S)


def find_stall(facts: CopyFacts) -> Stall | None:
    """Returns the stall that *facts* show; None if the partition is idle, copying, limited or stopped."""
    if facts.phase is PartitionPhase.STOPPED or facts.without_progress_s < STALLED_AFTER_S:
        return None
    obstacle = facts.obstacle
    if obstacle is not None and not explains(obstacle, facts.obstacle_age_s):
        obstacle = None
    if obstacle is not None and obstacle.kind is ObstacleKind.FAILED:
        return _failed(facts, obstacle)
    if obstacle is not None:
        return _BY_OBSTACLE[obstacle.kind](facts, obstacle)
    if facts.times_asked >= _ASKED_AGAIN_MIN:
        return _repeated_lookups(facts)
    if not facts.target_has_leader:
        return _without_leader(facts, facts.target_partition, facts.target, StallReason.TARGET_NOT_ANSWERING)
    if not facts.source_has_leader:
        return _without_leader(facts, facts.partition, facts.source, StallReason.SOURCE_NOT_ANSWERING)
    return _unanswered(facts)


def _unanswered(facts: CopyFacts) -> Stall | None:
    """Returns the stall by what is missing, where nothing was refused."""
    if facts.held_at_offset is not None:
        return _held_back(facts, facts.held_at_offset)
    if facts.is_in_flight:
        return None if facts.is_writing_limited else _target_silent(facts, "what was written")
    if facts.awaits_commit:
        return _commit_pending(facts)
    if facts.phase is PartitionPhase.STARTING:
        return _target_silent(facts, "where to continue")
    is_limited = facts.is_writing_limited or (facts.is_reading_limited and not facts.had_its_turn)
    if is_limited:
        return None
    if facts.is_fetched:
        return _target_silent(facts, "what was written")
    if facts.is_crowded_out:
        text = (
            "nothing is fetched, because records of other partitions wait for the target and fill the buffer; "
            "the reasons of those partitions say what to do"
        )
        return _stall(facts, StallReason.TARGET_NOT_ANSWERING, text, detail="buffer")
    text = (
        f"cluster {facts.source} has records and sends none; check the broker that leads the partition, its log, "
        "and the network to it"
    )
    return _stall(facts, StallReason.SOURCE_NOT_ANSWERING, text)


def _stall(facts: CopyFacts, reason: StallReason, text: str, *, detail: str | None = None) -> Stall:
    sentence = f"{facts.partition}: nothing was copied for more than {STALLED_AFTER_S:g} s: {text}."
    return Stall(reason=reason.value, detail=detail, sentence=sentence)


def _failed(facts: CopyFacts, failed: Obstacle) -> Stall:
    """Returns a stall with the error's own reason and message, which say more than a `StallReason`."""
    own = f"{facts.partition}: "
    text = failed.message.removeprefix(own)
    return Stall(
        reason=failed.name, sentence=f"{own}nothing was copied for more than {STALLED_AFTER_S:g} s: {text}"
    )


def _writes_refused(facts: CopyFacts, refused: Obstacle) -> Stall:
    advice = _ADVICE.get(refused.name, _ADVICE_ELSE).format(target=facts.target_partition)
    quoted = f" ({refused.message.rstrip('.')})" if refused.message else ""
    text = f"cluster {facts.target} refused {_times(refused.times, 'write')}, the last with {refused.name}{quoted}; {advice}"
    return _stall(facts, StallReason.WRITES_REFUSED, text, detail=refused.name)


def _fetches_refused(facts: CopyFacts, refused: Obstacle) -> Stall:
    text = (
        f"cluster {facts.source} refused {_times(refused.times, 'fetch', 'fetches')}, the last with {refused.name}; "
        "the log of the broker that leads the partition says more"
    )
    return _stall(facts, StallReason.SOURCE_NOT_ANSWERING, text, detail=refused.name)


def _diverged(facts: CopyFacts, diverged: Obstacle) -> Stall:
    text = (
        f"cluster {facts.source} answered {_times(diverged.times, 'fetch', 'fetches')} with DivergingEpoch: its log does not "
        "hold what was copied, and its other responses do not show where the two differ; check its leader epochs "
        "(`leader-epoch-checkpoint` of the broker that leads the partition); `mirrorflow dump positions` shows the stored offsets"
    )
    return _stall(facts, StallReason.NO_DECISION, text, detail="diverged")


def _repeated_lookups(facts: CopyFacts) -> Stall:
    """Returns the stall where nothing was refused, but responses were lost or had unexpected offsets."""
    text = (
        f"cluster {facts.target} was asked {facts.times_asked} times where to continue in {facts.target_partition}, and "
        "none of the batches sent since counts as delivered; check the network to the broker that leads it, and who else "
        "writes there"
    )
    return _stall(facts, StallReason.NO_DECISION, text)


_BY_OBSTACLE: Final = {
    ObstacleKind.WRITE_REFUSED: _writes_refused,
    ObstacleKind.FETCH_REFUSED: _fetches_refused,
    ObstacleKind.DIVERGED: _diverged,
}


def _commit_pending(facts: CopyFacts) -> Stall:
    text = (
        f"cluster {facts.target} has not finished a step of transaction {facts.transactional_id}, in which older records "
        "are written; check its transaction coordinator (`kafka-transactions.sh describe`)"
    )
    return _stall(facts, StallReason.COMMIT_PENDING, text)


def _held_back(facts: CopyFacts, offset: int) -> Stall:
    transaction = facts.open_transaction
    if transaction is None:
        who, detail = f"a transaction of cluster {facts.source} is open from offset {offset} on", None
    else:
        last = (
            ""
            if transaction.last_timestamp_ms is None
            else f" and wrote its last record at {_utc(transaction.last_timestamp_ms)}"
        )
        who = (
            f"producer {transaction.producer_id} (epoch {transaction.producer_epoch}) of cluster {facts.source} has a transaction open "
            f"from offset {transaction.start_offset} on{last}"
        )
        detail = str(transaction.producer_id)
    text = (
        f"{who}; committed records after it can be read when it ends: let its producer end it, or, if that producer is gone, "
        f"abort it (`kafka-transactions.sh abort --start-offset {offset}`)"
    )
    return _stall(facts, StallReason.OPEN_TRANSACTION, text, detail=detail)


def _utc(timestamp_ms: int) -> str:
    try:
        return datetime.fromtimestamp(timestamp_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, OSError, ValueError):
        return f"{timestamp_ms} ms"  # producers choose timestamps freely


def _without_leader(facts: CopyFacts, partition: str, cluster: str, reason: StallReason) -> Stall:
    text = f"{partition} of cluster {cluster} has no leader; start the brokers that hold its replicas"
    return _stall(facts, reason, text, detail="no leader")


def _target_silent(facts: CopyFacts, what: str) -> Stall:
    text = (
        f"cluster {facts.target} does not answer {what} for {facts.target_partition}; check the broker that leads it, its "
        "log, and the network to it"
    )
    return _stall(facts, StallReason.TARGET_NOT_ANSWERING, text)


def _times(count: int, singular: str, several: str | None = None) -> str:
    return f"1 {singular}" if count == 1 else f"{count} {several or singular + 's'}"
