"""What a reader of the target sees, compared with the source: nothing lost, nothing twice, in order, or a documented reason.

A deviation is allowed only by a sentence of docs/exactly-once.md, which the allowance quotes; tests/model/test_judge.py
sees to it that the page has it. A partition that stands still without a reason is a failure whatever else holds.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import PartitionPhase
from mirrorflow_core.settings import LossPolicy
from mirrorflow_core.wire.records import Record
from mirrorflow_replicator.copy.copier_context import CopierState
from tests.model.source import ABORTED, DELETED, PRESENT, TRUNCATED, Content, SourceRecord

if TYPE_CHECKING:
    from tests.model.copier import Copier
    from tests.model.world import World

SHOWN = 8  # labels in a sentence
IN_FLIGHT_RECORDS = 25  # of one partition at a time: five batches of five
MOMENT_RECORDS = 20  # what a copier may write between a commit of another and the new epoch: two fetches
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"


# The columns of the table "What holds when", and what its cells say of a deviation.
LOST, REPEATED, ORDER = "nothing lost", "nothing repeated", "order"
HOLDS, BY_POLICY, FOR_COMMITTED = "yes", "by loss policy", "for readers of committed records"
NOT_PROTECTED = "**not protected**"


class Allowance(NamedTuple):
    """A deviation, and the sentence of docs/exactly-once.md that allows it.

    *column* is that of the table in which a row with this deviation says *cell*; none where a partition stops without a loss,
    or repeats what it was asked to.
    """

    name: str
    sentence: str
    column: str = ""
    cell: str = ""


STOPPED_BY_FAIL = Allowance("stopped", "`fail` (default): the partition stops.", LOST, BY_POLICY)
LOST_AND_REPORTED = Allowance(
    "loss reported",
    "With `alert` and `restart` the loss is the partition's `reason` for an hour,",
    LOST,
    BY_POLICY,
)
RESTARTED = Allowance(
    "restart", "`restart`: copy the partition again from its beginning, so its records are there twice."
)
TARGET_MADE_ANEW = Allowance(
    "TargetDataLost",
    "- A deleted target topic: what had been copied is gone from it. The partition stops (`TargetDataLost`).",
    LOST,
    BY_POLICY,
)
IDENTITY_TAKEN = Allowance(
    "IdentityTaken",
    "If another producer wrote with the flow's identity, the partition stops as `IdentityTaken`.",
    LOST,
    BY_POLICY,
)
COPIED_BEHIND_A_STRANGER = Allowance(
    "repeats of what was in flight behind a stranger's batch",
    "With `alert` what was in flight behind a batch of such a producer is there twice.",
    REPEATED,
    "except [what was in flight]",
)
COPIED_BEFORE_TAKEN = Allowance(
    "records in flight before the one whose number a stranger took",
    "The records whose numbers it took come after these.",
    ORDER,
    "except [what was in flight]",
)
UNDECIDED = Allowance("Undecided", "If neither decides, the partition stops as `Undecided`.")
FENCED = Allowance(
    "Fenced", "its epoch is higher, an empty transaction makes every leader refuse the old one,"
)
ABORTED_BY_COORDINATOR = Allowance(
    "repeats of what was aborted",
    "- Other readers see it once too, except where the transaction is aborted.",
    REPEATED,
    FOR_COMMITTED,
)
_UNPROTECTED = "- Two replicators at once on records older than 12 h, where the flow has no ACL for its transactional id."
LOST_UNPROTECTED, REPEATED_UNPROTECTED, MISPLACED_UNPROTECTED = (
    Allowance(f"{word} by two writers of old records without the ACL", _UNPROTECTED, column, NOT_PROTECTED)
    for word, column in (("lost", LOST), ("repeated", REPEATED), ("misplaced", ORDER))
)
MADE_ANEW_IN_FLIGHT = Allowance(
    "what was in flight when the target topic was made anew",
    "begins with at most what was in flight, and `restart` copies those again behind it.",
    REPEATED,
    NOT_PROTECTED,
)
ALLOWANCES = (
    STOPPED_BY_FAIL,
    LOST_AND_REPORTED,
    RESTARTED,
    TARGET_MADE_ANEW,
    IDENTITY_TAKEN,
    COPIED_BEHIND_A_STRANGER,
    COPIED_BEFORE_TAKEN,
    UNDECIDED,
    FENCED,
    ABORTED_BY_COORDINATOR,
    LOST_UNPROTECTED,
    REPEATED_UNPROTECTED,
    MISPLACED_UNPROTECTED,
    MADE_ANEW_IN_FLIGHT,
)


@dataclass(slots=True)
class Judgement:
    """*problems* is empty where all that is promised holds; *allowed* says by what it deviates all the same."""

    problems: list[str] = field(default_factory=list)
    allowed: list[Allowance] = field(default_factory=list)


def judge(world: "World") -> Judgement:
    """Judge a world that has come to its end."""
    judgement = Judgement(problems=[f"product code failed: {one}" for one in world.mistakes])
    for at in world.partitions:
        _judge_partition(world, at, judgement)
    return judgement


def _judge_partition(world: "World", at: TopicPartition, judgement: Judgement) -> None:
    history = world.producer.history[at]
    levels = {copier.setup.settings.read_committed for copier in world.copiers} or {
        world.options.read_committed
    }
    is_truncated = any(one.fate == TRUNCATED for one in history)
    if levels == {True} and not is_truncated:
        history = [one for one in history if not one.is_aborted]
    elif True in levels:
        # Aborted records are copied, or not, by whichever settings were the flow's when their turn came; or they were committed
        # then, by a marker that the source has lost.
        history = [replace(one, fate=ABORTED) if one.is_aborted else one for one in history]
    reason, is_complete = standing(world, at)
    if not is_complete:
        allowance = _allowed_stop(world, reason)
        if allowance is None:
            said = f"stops with {reason}" if reason else "stands still and says nothing"
            judgement.problems.append(f"{at} {said}: {_whereabouts(world, at)}")
        else:
            judgement.allowed.append(allowance)
    seen = world.seen.get(at)
    if seen is not None and seen.lost_records:
        judgement.allowed.append(LOST_AND_REPORTED)
    for level, found in readings(world, at).items():
        _compare(world, at, level, history, found, judgement, is_complete=is_complete)


def readings(world: "World", at: TopicPartition) -> dict[str, list[Record]]:
    """What readers of either level see of ours on the target."""
    found = world.target.partition(TopicPartition(world.options.target_topic, at.partition))
    if found is None:
        return {COMMITTED: [], UNCOMMITTED: []}
    log, known = found.leader.log, {one.content for one in world.producer.history[at]}
    committed = log.records(end=found.leader.last_stable_offset, committed=True)
    uncommitted = log.records(end=log.high_watermark, committed=False)
    return {
        level: [record for record in records if content(record) in known]
        for level, records in ((COMMITTED, committed), (UNCOMMITTED, uncommitted))
    }


def _compare(
    world: "World",
    at: TopicPartition,
    level: str,
    history: Sequence[SourceRecord],
    found: Sequence[Record],
    judgement: Judgement,
    *,
    is_complete: bool,
) -> None:
    begins = world.begins.get(at, 0)
    history = [one for one in history if one.offset >= begins or one.fate != PRESENT]
    contents = [content(record) for record in found]
    counts = Counter(contents)
    copied = Counter(one.content for one in history)
    repeated = [one for one, count in counts.items() if count > copied[one]]
    ends = world.producer.end_of(at)  # a transaction whose marker the source has lost stays open
    present = Counter(one.content for one in history if one.fate == PRESENT and begins <= one.offset < ends)
    missing = [one for one, count in present.items() if counts[one] < count]
    missing = [one for one in missing if one not in world.gone_from_target[at]]
    if not is_complete:
        # What comes behind the last copied one is not copied yet.
        last = max((i for i, one in enumerate(history) if one.content in counts), default=-1)
        behind = {one.content for one in history[last + 1 :]}
        missing = [one for one in missing if one not in behind]
    if IDENTITY_TAKEN in judgement.allowed and len(missing) <= IN_FLIGHT_RECORDS:
        missing = []  # ours may lie behind the stranger's; the partition has stopped and names the reason
    if repeated:
        allowance = _allowed_repeats(world, at, level, repeated)
        if allowance is None:
            judgement.problems.append(
                f"{at}: {level} readers see {len(repeated)} records twice: {_shown(repeated)}"
            )
        else:
            judgement.allowed.append(allowance)
    if missing:
        if world.is_unprotected:
            judgement.allowed.append(LOST_UNPROTECTED)
        else:
            judgement.problems.append(f"{at}: {level} readers miss {len(missing)} records: {_shown(missing)}")
    firsts = list(counts) if repeated else contents  # a repeat is behind the first one
    is_judged = not repeated or not world.target_was_made_anew  # what was in flight is the new topic's first
    if is_judged and not _is_subsequence(firsts, [one.content for one in history]):
        if world.is_unprotected:
            judgement.allowed.append(MISPLACED_UNPROTECTED)
        elif world.had_stranger and {COPIED_BEHIND_A_STRANGER, RESTARTED} & set(judgement.allowed):
            judgement.allowed.append(COPIED_BEFORE_TAKEN)
        else:
            judgement.problems.append(
                f"{at}: {level} readers see another order: {_shown(_misplaced(firsts, history))}"
            )
    if not repeated and not missing and is_complete:
        readable = [one for one in history if one.offset < ends or one.fate != PRESENT]
        _compare_final_values(at, level, readable, found, judgement, gone=world.gone_from_target[at])


def _compare_final_values(
    at: TopicPartition,
    level: str,
    history: Sequence[SourceRecord],
    found: Iterable[Record],
    judgement: Judgement,
    *,
    gone: set[Content],
) -> None:
    """A compacted topic is read for the last value of each key, but for copies of what the source has truncated since."""
    wanted = {one.key: one.value for one in history if one.key is not None and one.fate == PRESENT}
    # Where settings changed, aborted records may have been copied: the source has none of them for its readers.
    aborted = {one.content for one in history if one.fate == ABORTED}
    last = {
        record.key: record.value
        for record in found
        if record.key is not None and content(record) not in aborted
    }
    excused = gone | {one.content for one in history if one.fate == TRUNCATED}
    wrong = [
        key
        for key, value in wanted.items()
        if last.get(key) != value and excused.isdisjoint({(key, value), (key, last.get(key))})
    ]
    if wrong:
        judgement.problems.append(f"{at}: {level} readers see another last value of {len(wrong)} keys")


def content(record: Record) -> Content:
    """What a reader can tell records apart by."""
    return record.key, record.value


def _is_subsequence(contents: Sequence[Content], history: Sequence[Content]) -> bool:
    ahead = iter(history)
    return all(one in ahead for one in contents)


def _misplaced(contents: Sequence[Content], history: Sequence[SourceRecord]) -> list[Content]:
    place = {one.content: number for number, one in enumerate(history)}
    return [b for a, b in pairwise(contents) if place.get(b, 0) < place.get(a, 0)]


def _shown(contents: Iterable[Content]) -> str:
    labels = sorted(bytes(value or b"").decode(errors="replace").rstrip(".")[:20] for _, value in contents)
    return ", ".join(labels[:SHOWN]) + (" ..." if len(labels) > SHOWN else "")


# -- how a partition stands


def standing(world: "World", at: TopicPartition) -> tuple[str, bool]:
    """The reason that its copiers give for standing still, and whether it is copied to its end."""
    end, reason, is_complete = world.producer.end_of(at), "", False
    for copier in world.alive:
        if copier.refused is not None:
            reason = reason or copier.refused.reason
        elif copier.problem is not None:
            reason = reason or copier.problem.reason
        report = copier.reports().get(at)
        if report is None:
            continue
        # One that stopped may stand at the end of a log that is not the one that it has copied.
        is_complete |= report.phase is not PartitionPhase.STOPPED and 0 <= end <= report.source_offset
        reason = reason or report.reason
    return reason, is_complete and not _is_open(world, at)


def is_settled(world: "World", at: TopicPartition) -> bool:
    """Whether every copier of it is at the end, or has stopped for good."""
    end, copiers = world.producer.end_of(at), [one for one in world.alive if at in one.setup.partitions]
    return bool(copiers) and not _is_open(world, at) and all(_is_at_rest(one, at, end) for one in copiers)


def _is_at_rest(copier: "Copier", at: TopicPartition, end: int) -> bool:
    if copier.refused is not None:
        return True
    lane = copier.task.lanes.get(at) if copier.task is not None else None
    if lane is None or lane.stream is None or lane.state is not CopierState.COPYING:
        return False
    return not lane.stream.in_flight and lane.stream.delivered.source_offset + 1 >= end


def _is_open(world: "World", at: TopicPartition) -> bool:
    found = world.target.partition(TopicPartition(world.options.target_topic, at.partition))
    return found is not None and found.leader.last_stable_offset < found.leader.log.high_watermark


def _whereabouts(world: "World", at: TopicPartition) -> str:
    parts = []
    for copier in world.alive:
        lane = copier.task.lanes.get(at) if copier.task is not None else None
        if lane is None:
            parts.append(
                f"{copier.name} has not begun it ({copier.problem or copier.refused or 'no problem'})"
            )
            continue
        delivered = None if lane.stream is None else lane.stream.delivered
        said = "" if lane.error is None else f", says {lane.error}"
        parts.append(
            f"{copier.name} is {lane.state.value} at {delivered}, {lane.refused_writes} refusals{said}"
        )
    return f"the source ends at {world.producer.end_of(at)}; " + "; ".join(parts)


# -- what is allowed


def _allowed_stop(world: "World", reason: str) -> Allowance | None:
    lost = {TRUNCATED, DELETED}  # compaction loses nothing
    is_lost = any(one.fate in lost for history in world.producer.history.values() for one in history)
    if reason == "SourceDataLost" and is_lost and world.options.on_loss is LossPolicy.FAIL:
        return STOPPED_BY_FAIL
    if reason == "TargetDataLost" and world.target_was_made_anew and world.options.on_loss is LossPolicy.FAIL:
        return TARGET_MADE_ANEW
    stops = LossPolicy.FAIL in {copier.setup.settings.on_source_loss for copier in world.alive}
    # Late bytes of a killed copier of the flow's own look like a stranger's where leaders have forgotten it.
    if reason == "IdentityTaken" and (world.had_stranger or world.is_unprotected) and stops:
        return IDENTITY_TAKEN
    if reason == "Undecided" and "Undecided" in world.allowed_reasons:
        return UNDECIDED
    if reason in {"Fenced", "StreamChanged"} and reason in world.allowed_reasons:
        return FENCED
    return None


def _allowed_repeats(
    world: "World", at: TopicPartition, level: str, repeated: Sequence[Content]
) -> Allowance | None:
    if world.is_unprotected:
        return REPEATED_UNPROTECTED
    seen = world.seen.get(at)
    policies = {world.options.on_loss, *(copier.setup.settings.on_source_loss for copier in world.copiers)}
    had_losses = seen is not None and seen.losses > 0
    if LossPolicy.RESTART in policies and had_losses:
        return RESTARTED
    if (
        LossPolicy.ALERT in policies
        and had_losses
        and world.had_stranger
        and len(repeated) <= IN_FLIGHT_RECORDS
    ):
        return COPIED_BEHIND_A_STRANGER
    if world.target_was_made_anew and len(repeated) <= IN_FLIGHT_RECORDS:
        return MADE_ANEW_IN_FLIGHT
    if level == UNCOMMITTED and _may_have_aborted(world, repeated):
        # Only what was in an aborted transaction; what was committed is there once.
        found = world.target.partition(TopicPartition(world.options.target_topic, at.partition))
        assert found is not None
        log = found.leader.log
        aborted = {
            content(record) for batch in log.batches if log.is_aborted(batch) for record in batch.records
        }
        if aborted.issuperset(repeated):
            return ABORTED_BY_COORDINATOR
    return None


def _may_have_aborted(world: "World", repeated: Sequence[Content]) -> bool:
    """No commit for a minute; or a request for an epoch, after a hold-up or for other settings."""
    coordinator, happened = world.target.coordinator, world.disturbances.happened
    was_held_up = any(
        word in one and "never" not in one for one in happened for word in ("frozen", "held", "arrive")
    )
    changes = len({copier.setup.settings.read_committed for copier in world.copiers}) > 1
    is_moment = changes and len(repeated) <= MOMENT_RECORDS
    return coordinator.timed_out > 0 or (coordinator.fenced_ongoing > 0 and (was_held_up or is_moment))
