"""Do records advance, and are checkpoints fresh? From what was seen to move, never from what a process calls itself. Pure."""

from collections.abc import Sequence
from typing import Final

from mirrorflow_operator.api.spec import State
from mirrorflow_operator.api.status import ConditionStatus
from mirrorflow_operator.assess import told
from mirrorflow_operator.assess.ending import has_pods, has_pods_of_before
from mirrorflow_operator.assess.findings import Finding, no, unknown, yes
from mirrorflow_operator.assess.observation import ConnectorSeen, Observation
from mirrorflow_operator.assess.progress import Checkpoints, Replicating, Summary, Unread
from mirrorflow_operator.assess.reasons import Kind, Reason
from mirrorflow_operator.assess.workloads import workload_name
from mirrorflow_operator.plan.plan import ConnectorKind

_KIND: Final = Kind.REPLICATING
_FRESH: Final = Kind.CHECKPOINTS_FRESH
# The worst is told of several pods; one that waits for its turn says nothing about those that work.
_WORST_FIRST: Final = (
    Replicating.SOURCE_DATA_LOST,
    Replicating.STUCK,
    Replicating.THROTTLED,
    Replicating.ADVANCING,
    Replicating.IDLE,
    Replicating.WAITING,
    Replicating.PAUSED,
    Replicating.UNKNOWN,
)
# What says nothing of whether any records are copied.
_NO_WORD_OF_OTHERS: Final = frozenset({Replicating.STUCK, Replicating.WAITING, Replicating.UNKNOWN})
_NOT_COPIED: Final = "TopicNotCopied"
_LOST: Final = "SourceDataLost"
_DETAILS: Final = "GET /progress/partitions of its pod names them"
# What to do, by the replicator's word for what holds a partition or a connector up.
_HINTS: Final = {
    "RecordTooLarge": "raise max.message.bytes of the target topic",
    "BatchRefused": "compare the settings of source and target topic",
    "CorruptBatch": "the source's own checksums do not hold: check its disks",
    "NotAuthorized": "an ACL is missing: `mirrorflow acls` prints what the flow needs",
    "AuthenticationFailed": "the credentials are refused: check the Secrets",
    "TopicGone": "a topic was deleted",
    "TargetDataLost": "the target lost what it had: spec.topics.onSourceLoss: Restart fills it again",
    "TargetTaken": "another topic was copied into the same target topic: give one another name",
    "Undecided": "it cannot be seen where to go on: choose spec.topics.onSourceLoss",
    _LOST: "records were gone before they were copied: spec.topics.onSourceLoss says what to do then",
    _NOT_COPIED: "a topic has no copy on the target: see the connector's warnings",
}
_UNREAD: Final = {
    Unread.UNREACHABLE: "its pod does not answer the operator",
    Unread.REFUSED: "its pod refuses to tell its progress",
    Unread.UNREADABLE: "what its pod answers cannot be read",
    Unread.UNKNOWN_VERSION: "its pod is of a version that this operator does not understand",
}
# Of a checkpoint connector's interval: so many may be missed. And never sooner than this, however short it is.
_INTERVALS_MISSED: Final = 3
_STALE_AFTER_S: Final = 180.0


def replicating(observation: Observation, state: State) -> Finding:
    """Whether records advance, or have nowhere to go."""
    if state is not State.RUNNING:
        return _halted(_KIND, state, observation, told.connector(observation, ConnectorKind.SOURCE))
    if observation.runs.holds_connector:
        return no(_KIND, Reason.SEEDING, "A seed fills the target; the connector goes on when it has ended.")
    seen = told.connector(observation, ConnectorKind.SOURCE)
    found = told.summaries(observation, seen)
    if seen is None or not found:
        return _untold(_KIND, observation, seen)
    finding = _seen(found, workload_name(observation.resource.name, seen))
    if finding.status is ConditionStatus.FALSE and all(told.is_young(summary) for summary in found):
        return _waiting()
    return finding


def _seen(found: Sequence[Summary], where: str) -> Finding:
    worst = min(found, key=lambda summary: _WORST_FIRST.index(summary.replicating))
    match worst.replicating:
        case Replicating.STUCK:
            return _stuck(found, where)
        case Replicating.SOURCE_DATA_LOST:
            return _lost(worst)
        case Replicating.THROTTLED:
            return _throttled(found)
        case Replicating.ADVANCING | Replicating.IDLE:
            return _stopped(found, where) or _well(worst.replicating)
        case _:
            return _waiting()


def _waiting() -> Finding:
    sentence = "The connector waits: it has just started, or another copier of the flow is at work."
    return unknown(_KIND, Reason.WAITING, sentence)


def checkpoints_fresh(observation: Observation, state: State) -> Finding | None:
    """Whether consumer groups are translated as often as they should be; None where the flow has no such connector."""
    seen = told.connector(observation, ConnectorKind.CHECKPOINT)
    if seen is None:
        return None
    if state is not State.RUNNING:
        return _halted(_FRESH, state, observation, seen)
    found = told.summaries(observation, seen)
    if not found:
        return _untold(_FRESH, observation, seen)
    # Of several pods one has the work; the others wait for theirs, and may have run for longer.
    at_work = [summary for summary in found if summary.checkpoints is not None]
    if not at_work and all(_stands_by(summary) for summary in found):
        return unknown(_FRESH, Reason.STARTING, "None of the connector's pods has taken up the work yet.")
    newest = max(at_work or found, key=lambda summary: summary.uptime_s)
    failed = newest.state == "FAILED" and not told.is_young(newest)
    stale = no(_FRESH, Reason.STALE, f"Consumer groups are not translated{_because(newest)}.")
    done = newest.checkpoints
    if done is None or done.age_s is None:
        starting = unknown(_FRESH, Reason.STARTING, "No consumer group was looked at yet.")
        return stale if failed or newest.uptime_s > stale_after_s(done) else starting
    if done.age_s > stale_after_s(done):
        return stale
    if done.failing:
        return no(
            _FRESH,
            Reason.GROUPS_FAILING,
            "Some consumer groups cannot be translated; the connector's warnings name them.",
        )
    return yes(_FRESH, Reason.FRESH, "Consumer groups are translated.")


def _stands_by(summary: Summary) -> bool:
    """Whether the pod is one of several and has no part of the work."""
    return summary.state == "UNASSIGNED" and summary.replicating is Replicating.WAITING


def stale_after_s(done: Checkpoints | None) -> float:
    """How old the last whole pass may be."""
    interval_s = 0.0 if done is None or done.interval_s is None else done.interval_s
    return max(_STALE_AFTER_S, _INTERVALS_MISSED * interval_s)


def _halted(kind: Kind, state: State, observation: Observation, seen: ConnectorSeen | None) -> Finding:
    """What somebody has asked for is said to be so when the pods of before have gone: until then they copy."""
    refusal = observation.admission.refusal
    if refusal is not None:
        return no(kind, refusal.reason, "The flow is not accepted: it has no pods.")
    if state is State.PAUSED:
        if seen is not None and has_pods_of_before(seen):
            return no(kind, Reason.PAUSING, "spec.state is Paused, and a pod of before has not ended yet.")
        return no(kind, Reason.PAUSED, "spec.state is Paused: nothing is copied, the pods stay.")
    if seen is not None and has_pods(seen):
        return no(kind, Reason.STOPPING, "spec.state is Stopped, and a pod has not ended yet.")
    return no(kind, Reason.STOPPED, "spec.state is Stopped: there are no pods.")


def _untold(kind: Kind, observation: Observation, seen: ConnectorSeen | None) -> Finding:
    """Nothing is known: not there yet, or not to be reached. Neither means that nothing is done."""
    why = told.unread(observation, seen)
    if why is not None:
        return unknown(
            kind, Reason.PROGRESS_UNKNOWN, f"It is not known whether the connector works: {_UNREAD[why]}."
        )
    if seen is None or not any(pod.ready for pod in seen.pods):
        return unknown(kind, Reason.STARTING, "The connector's pod has not started yet.")
    return unknown(
        kind, Reason.PROGRESS_UNKNOWN, "It is not known whether the connector works: it was not asked lately."
    )


def _well(word: Replicating) -> Finding:
    if word is Replicating.ADVANCING:
        return yes(_KIND, Reason.ADVANCING, "Records are copied.")
    return yes(_KIND, Reason.IDLE, "There is nothing to copy.")


def _stuck(found: Sequence[Summary], where: str) -> Finding:
    stopped = _stopped(found, where)
    if stopped is not None:
        return stopped
    words = _words(found)
    because = f": {_explained(words)}" if words else ""
    stuck = sum(summary.replicating is Replicating.STUCK for summary in found)
    others = [summary for summary in found if summary.replicating not in _NO_WORD_OF_OTHERS]
    what = f"{stuck} of {len(found)} pods copy none of theirs" if others else "none is copied"
    return no(_KIND, Reason.STUCK, f"The source has records and {what}{because}. See kubectl logs {where}.")


def _stopped(found: Sequence[Summary], where: str) -> Finding | None:
    """Something is copied, and something is not."""
    words = _words(found)
    if any(summary.partitions_stopped for summary in found):
        said = f": {_explained(words)}" if words else ""
        return no(_KIND, Reason.PARTITIONS_STOPPED, f"Partitions have stopped{said}; {_DETAILS}.")
    if _NOT_COPIED in words:
        message = f"Topics that the flow selects have no copy, or not all of their partitions; see kubectl logs {where}."
        return no(_KIND, Reason.TOPICS_NOT_COPIED, message)
    return None


def _lost(summary: Summary) -> Finding:
    """By policy the partition has stopped, or has gone on without them."""
    sentence = "Records of the source were gone before they were copied"
    if summary.partitions_stopped or (summary.lag_records and not summary.records_per_s):
        message = f"{sentence}, and their partitions have stopped: spec.topics.onSourceLoss says how to go on; {_DETAILS}."
        return no(_KIND, Reason.SOURCE_DATA_LOST, message)
    return yes(
        _KIND, Reason.SOURCE_DATA_LOST, f"{sentence}; the flow went on, as spec.topics.onSourceLoss says."
    )


def _throttled(found: Sequence[Summary]) -> Finding:
    if any(summary.records_per_s for summary in found):
        return yes(_KIND, Reason.THROTTLED, "Records are copied as fast as a broker's quota lets them.")
    return no(
        _KIND,
        Reason.THROTTLED,
        "A broker's quota lets no record through; raise the quota of the flow's user or client id.",
    )


def _because(summary: Summary) -> str:
    words = _words([summary])
    return f": {_explained(words)}" if words else ""


def _words(found: Sequence[Summary]) -> tuple[str, ...]:
    return tuple(sorted({word for summary in found for word, _ in summary.reasons}))


def _explained(words: Sequence[str]) -> str:
    return ", ".join(f"{word} ({_HINTS[word]})" if word in _HINTS else word for word in words)
