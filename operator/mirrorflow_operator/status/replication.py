"""Decides TopicsSelected, Replicating, CheckpointsFresh and SchemasInSync, and the lag, from the pods' progress summaries. Pure.

Replicating and CheckpointsFresh rest on records and passes that advanced, never on a connector's state alone.
"""

from collections.abc import Sequence
from typing import Final

from mirrorflow_operator.api.spec import State
from mirrorflow_operator.api.status import ConditionStatus, Lag
from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.status.conditions import ConditionType, Finding, Reason, no, unknown, yes
from mirrorflow_operator.status.observation import Observation, ObservedConnector, has_outdated_pods, has_pods
from mirrorflow_operator.status.pod_failures import workload_name
from mirrorflow_operator.status.pod_reports import (
    Checkpoints,
    PollFailure,
    ReasonCount,
    Replicating,
    SchemasProgress,
    SideReachability,
    Summary,
)

_KIND: Final = ConditionType.REPLICATING
_FRESH: Final = ConditionType.CHECKPOINTS_FRESH
_SCHEMAS: Final = ConditionType.SCHEMAS_IN_SYNC
# The worst pod decides. WAITING ranks behind the working states: a standby pod does not hide pods that work.
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
# States of a pod that copies none of its records, or does not know whether it does.
_NOT_WORKING: Final = frozenset({Replicating.STUCK, Replicating.WAITING, Replicating.UNKNOWN})
_NOT_COPIED: Final = "TopicNotCopied"
_LOST: Final = "SourceDataLost"
_DETAILS: Final = "GET /progress/partitions of its pod lists them"
# What the user can do, by the replicator's reason why a partition or a connector does not advance.
_HINTS: Final = {
    "RecordTooLarge": "raise max.message.bytes of the target topic",
    "UnsupportedBatch": "its record format or compression is not supported: rewrite or delete those records",
    "BatchRefused": "compare the settings of source and target topic",
    "CorruptBatch": "the source's checksums do not match: check its disks",
    "NotAuthorized": "an ACL is missing: `mirrorflow acls` prints what the flow needs",
    "AuthenticationFailed": "the credentials are refused: check the Secrets",
    "TopicGone": "a topic was deleted",
    "InternalTopicUnavailable": "a topic of the flow's own is missing or has no leader: see the connector's warnings",
    "TargetDataLost": "the target lost records: spec.topics.onSourceLoss: Restart copies them again",
    "TargetTaken": "another topic was copied into the same target topic: rename one of them",
    "FlowTaken": "another process owns the flow, and this one waits: stop the one that you do not need",
    "WritesRefused": "the target refuses writes: GET /progress/partitions shows its error",
    "NoDecision": "the target does not confirm where to continue: check that its replicas are in sync",
    "StartPending": "a task waits for the last transactions of the flow: check the target's transaction coordinator",
    "TaskSilent": "a task's process reports nothing of its partitions: check CPU and memory of the pod, or delete it",
    "CommitPending": "the target's transaction coordinator does not answer",
    "SourceNotAnswering": "the source has records and sends none: check the brokers that lead them",
    "OpenTransaction": "a producer has a transaction open on the source: GET /progress/partitions names it",
    "TargetNotAnswering": "the target does not answer: check the brokers that lead the copies",
    _LOST: "records were deleted before they were copied: spec.topics.onSourceLoss defines what happens",
    _NOT_COPIED: "a topic has no copy on the target: see the connector's warnings",
}
_POLL_FAILURES: Final = {
    PollFailure.UNREACHABLE: "its pod does not answer the operator",
    PollFailure.REFUSED: "its pod refuses to report its progress",
    PollFailure.UNREADABLE: "the response of its pod cannot be read",
    PollFailure.UNKNOWN_VERSION: "its pod reports in a version that this operator does not support",
}
# Checkpoints and schemas are stale after this many of the connector's intervals, but not before _STALE_AFTER_S.
_INTERVALS_MISSED: Final = 3
_STALE_AFTER_S: Final = 180.0
# Characters of explained causes in one message. The rest of MESSAGE_MAX holds the names of further causes.
EXPLAINED_MAX: Final = 600
_BUCKETS: Final = (
    (1.0, Lag.UNDER_A_SECOND),
    (10.0, Lag.UNDER_TEN_SECONDS),
    (60.0, Lag.UNDER_A_MINUTE),
    (600.0, Lag.UNDER_TEN_MINUTES),
)


def replicating(observation: Observation, state: State) -> Finding:
    """Returns Replicating: True while records are copied or there is nothing to copy."""
    if state is not State.RUNNING:
        return _halted(_KIND, state, observation, observation.connector(ConnectorKind.SOURCE))
    if observation.runs.replaces_source and observation.runs.restore:
        return no(
            _KIND, Reason.RESTORING, "A restore fills the target; the connector starts when it has ended."
        )
    if observation.runs.replaces_source:
        return no(_KIND, Reason.SEEDING, "A seed fills the target; the connector starts when it has ended.")
    observed = observation.connector(ConnectorKind.SOURCE)
    summaries = observation.summaries(observed)
    if observed is None or not summaries:
        return _unreported(_KIND, observation, observed)
    finding = _finding_from(summaries, workload_name(observation.resource.name, observed))
    if finding.status is ConditionStatus.FALSE and all(summary.is_young for summary in summaries):
        return _waiting()
    return finding


def _finding_from(summaries: Sequence[Summary], workload: str) -> Finding:
    worst = min(summaries, key=lambda summary: _WORST_FIRST.index(summary.replicating))
    match worst.replicating:
        case Replicating.STUCK:
            return _stuck(summaries, workload)
        case Replicating.SOURCE_DATA_LOST:
            return _lost(summaries, worst)
        case Replicating.THROTTLED:
            return _stalled(summaries) or _throttled(summaries)
        case Replicating.ADVANCING | Replicating.IDLE:
            return _stopped(summaries, workload) or _stalled(summaries) or _working(worst.replicating)
        case Replicating.PAUSED:
            return _resuming(_KIND)
        case _:
            return _stalled(summaries) or _waiting()


def _waiting() -> Finding:
    sentence = (
        "The connector waits: it has just started, another process owns the flow, or the source does not report"
        " whether there are records to copy."
    )
    return unknown(_KIND, Reason.WAITING, sentence)


def _resuming(kind: ConditionType) -> Finding:
    sentence = "The pods are still paused: the kubelet updates their files, mostly within a minute."
    return unknown(kind, Reason.WAITING, sentence)


def checkpoints_fresh(observation: Observation, state: State) -> Finding | None:
    """Returns CheckpointsFresh: whether consumer groups are translated often enough.

    None where the flow has no checkpoint connector.
    """
    observed = observation.connector(ConnectorKind.CHECKPOINT)
    if observed is None:
        return None
    if state is not State.RUNNING:
        return _halted(_FRESH, state, observation, observed)
    summaries = observation.summaries(observed)
    if not summaries:
        return _unreported(_FRESH, observation, observed)
    # Only one of several pods runs the task; the others stand by, and may have run for longer.
    at_work = [summary for summary in summaries if summary.checkpoints is not None]
    if all(summary.state == "PAUSED" for summary in summaries):
        return _resuming(_FRESH)
    if not at_work and all(summary.stands_by for summary in summaries):
        return unknown(_FRESH, Reason.STARTING, "None of the connector's pods has started the task yet.")
    newest = max(at_work or summaries, key=lambda summary: summary.uptime_s)
    failed = newest.state == "FAILED" and not newest.is_young
    sentence = f"Consumer groups are not translated{_because([newest])}."
    stale = no(_FRESH, Reason.STALE, sentence, _causes([newest]))
    checkpoints = newest.checkpoints
    if checkpoints is None or checkpoints.age_s is None:
        starting = unknown(_FRESH, Reason.STARTING, "No consumer group has been checked yet.")
        return stale if failed or newest.uptime_s > stale_after_s(checkpoints) else starting
    if checkpoints.age_s > stale_after_s(checkpoints):
        return stale
    if checkpoints.failing:
        return no(
            _FRESH,
            Reason.GROUPS_FAILING,
            "Some consumer groups cannot be translated; the connector's warnings name them.",
        )
    return yes(_FRESH, Reason.FRESH, "Consumer groups are translated.")


def schemas_in_sync(observation: Observation, state: State) -> Finding | None:
    """Returns SchemasInSync: whether the target's registry has the schemas of the source under their ids.

    None where the flow has no schema connector.
    """
    observed = observation.connector(ConnectorKind.SCHEMAS)
    if observed is None:
        return None
    if state is not State.RUNNING:
        return _halted(_SCHEMAS, state, observation, observed)
    summaries = observation.summaries(observed)
    if not summaries:
        return _unreported(_SCHEMAS, observation, observed)
    newest = max(summaries, key=lambda summary: summary.uptime_s)
    if newest.state == "PAUSED":
        return _resuming(_SCHEMAS)
    progress = newest.schemas
    stale = no(_SCHEMAS, Reason.STALE, f"Schemas are not copied{_because([newest])}.", _causes([newest]))
    if newest.state == "FAILED" and not newest.is_young:
        return stale
    # During a first pass over a large registry nothing has been completed yet.
    if progress is None or progress.age_s is None:
        return unknown(_SCHEMAS, Reason.STARTING, "The registries have not been compared yet.")
    if progress.age_s > stale_after_s(progress):
        return stale
    if progress.conflicts:
        example = f" The first: {newest.first_warnings[0]}" if newest.first_warnings else ""
        sentence = "Some schemas cannot be copied under their ids; the connector's warnings name them."
        return no(_SCHEMAS, Reason.CONFLICTS_FOUND, f"{sentence}{example}")
    return yes(_SCHEMAS, Reason.IN_SYNC, "The target's registry has all schemas under their ids.")


def stale_after_s(progress: Checkpoints | SchemasProgress | None) -> float:
    """Returns the age, in seconds, beyond which the last complete pass is stale."""
    interval_s = 0.0 if progress is None or progress.interval_s is None else progress.interval_s
    return max(_STALE_AFTER_S, _INTERVALS_MISSED * interval_s)


def _halted(
    kind: ConditionType, state: State, observation: Observation, observed: ObservedConnector | None
) -> Finding:
    """Returns the finding for a paused, stopped or refused flow.

    Paused is reported only when the pods have reported it, and Stopped only when they have ended: until then
    they still copy.
    """
    admission = observation.admission
    if admission.has_conflict and admission.refusal is not None:
        return no(kind, admission.refusal.reason, "The flow is not accepted, so it has no pods.")
    if state is State.PAUSED:
        still = _still_copies(kind, observation, observed)
        if still:
            return no(kind, Reason.PAUSING, f"spec.state is Paused, and {still}.")
        return no(
            kind, Reason.PAUSED, "spec.state is Paused: no records are copied, and the pods keep running."
        )
    pair = observation.resource.stopped_by
    why = f"MirrorPair {pair} was switched over" if pair is not None else "spec.state is Stopped"
    if observed is not None and has_pods(observed):
        return no(kind, Reason.STOPPING, f"{why}, and a pod has not ended yet.")
    return no(kind, Reason.STOPPED, f"{why}: there are no pods.")


def _still_copies(kind: ConditionType, observation: Observation, observed: ObservedConnector | None) -> str:
    """Returns which pod of a paused connector copies, or may copy; "" if none does."""
    if observed is None:
        return ""
    if has_outdated_pods(observed):
        return "an earlier pod has not ended yet"
    summaries = observation.summaries(observed)
    if any(not summary.is_paused for summary in summaries):
        return "a pod still copies: the kubelet updates its files, mostly within a minute"
    # Pods that were paused under this spec stay paused, also while they cannot be polled.
    before = next(
        (condition for condition in observation.resource.status.conditions if condition.type == kind.value),
        None,
    )
    if before is not None and (before.reason, before.observed_generation) == (
        Reason.PAUSED.value,
        observation.resource.generation,
    ):
        return ""
    running = [pod for pod in observed.pods if pod.is_alive and pod.started_s is not None]
    return "not every pod has reported yet that it is paused" if len(summaries) < len(running) else ""


def _unreported(kind: ConditionType, observation: Observation, observed: ObservedConnector | None) -> Finding:
    """Returns Unknown for a connector without a readable pod: not started yet, or unreachable.

    Such a pod may still copy.
    """
    why = observation.poll_failure(observed)
    if why is not None:
        return unknown(
            kind,
            Reason.PROGRESS_UNKNOWN,
            f"It is unknown whether the connector works: {_POLL_FAILURES[why]}.",
        )
    if observed is None or not any(pod.ready for pod in observed.pods):
        return unknown(kind, Reason.STARTING, "The connector's pod has not started yet.")
    return unknown(
        kind,
        Reason.PROGRESS_UNKNOWN,
        "It is unknown whether the connector works: it has not been polled recently.",
    )


def _working(state: Replicating) -> Finding:
    if state is Replicating.ADVANCING:
        return yes(_KIND, Reason.ADVANCING, "Records are copied.")
    return yes(_KIND, Reason.IDLE, "There is nothing to copy.")


def _stuck(summaries: Sequence[Summary], workload: str) -> Finding:
    stopped = _stopped(summaries, workload)
    if stopped is not None:
        return stopped
    stuck = sum(summary.replicating is Replicating.STUCK for summary in summaries)
    others = [summary for summary in summaries if summary.replicating not in _NOT_WORKING]
    what = f"{stuck} of {len(summaries)} pods copy none of their records" if others else "none are copied"
    message = f"The source has records and {what}{_because(summaries)}. See kubectl logs {workload}."
    return no(_KIND, Reason.STUCK, message, _causes(summaries))


def _stopped(summaries: Sequence[Summary], workload: str) -> Finding | None:
    """Returns the finding for stopped partitions or topics that are not copied; None without any."""
    if any(summary.partitions_stopped for summary in summaries):
        message = f"Partitions have stopped{_because(summaries)}; {_DETAILS}."
        return no(_KIND, Reason.PARTITIONS_STOPPED, message, _causes(summaries))
    if any(reason.reason == _NOT_COPIED for summary in summaries for reason in summary.reasons):
        message = f"Topics that the flow selects have no copy, or a copy with too few partitions; see kubectl logs {workload}."
        return no(_KIND, Reason.TOPICS_NOT_COPIED, message)
    return None


def _stalled(summaries: Sequence[Summary]) -> Finding | None:
    """Returns the finding for stalled partitions, None without any; other partitions may still advance."""
    if not any(summary.partitions_stalled for summary in summaries):
        return None
    message = f"Partitions are stalled{_because(summaries)}; {_DETAILS}."
    return no(_KIND, Reason.PARTITIONS_STALLED, message, _causes(summaries))


def _lost(summaries: Sequence[Summary], worst: Summary) -> Finding:
    """Returns the finding for lost source data: by policy, partitions stopped or continued without it."""
    sentence = "The source deleted records before they were copied"
    others = [reason_count for reason_count in _reason_counts(summaries) if reason_count.reason != _LOST]
    causes = [other.reason for other in others]
    besides = f" Other causes: {_explained(others)}." if others else ""
    stands = worst.lag_records and not worst.records_per_s
    if stands or any(summary.partitions_stopped for summary in summaries):
        policy = "and their partitions have stopped: set spec.topics.onSourceLoss to continue"
        message = f"{sentence}, {policy}; {_DETAILS}.{besides}"
        return no(_KIND, Reason.SOURCE_DATA_LOST, message, causes)
    message = f"{sentence}; the flow continued, as spec.topics.onSourceLoss defines.{besides}"
    return yes(_KIND, Reason.SOURCE_DATA_LOST, message, causes)


def _throttled(summaries: Sequence[Summary]) -> Finding:
    if any(summary.records_per_s for summary in summaries):
        return yes(_KIND, Reason.THROTTLED, "Records are copied as fast as a broker's quota allows.")
    return no(
        _KIND,
        Reason.THROTTLED,
        "A broker's quota blocks all records; raise the quota of the flow's user or client id.",
    )


def _because(summaries: Sequence[Summary]) -> str:
    """Returns `: ` and the reasons of *summaries*; "" without any."""
    reasons = _reason_counts(summaries)
    return f": {_explained(reasons)}" if reasons else ""


def _reason_counts(summaries: Sequence[Summary]) -> list[ReasonCount]:
    """Sums the reasons of all pods, the most frequent first."""
    totals: dict[str, ReasonCount] = {}
    for reason, number, example in (
        reason_count for summary in summaries for reason_count in summary.reasons
    ):
        before = totals.get(reason, ReasonCount(reason, 0))
        totals[reason] = ReasonCount(reason, before.number + number, before.example or example)
    return sorted(totals.values(), key=lambda reason_count: (-reason_count.number, reason_count.reason))


def _causes(summaries: Sequence[Summary]) -> list[str]:
    return [reason_count.reason for reason_count in _reason_counts(summaries)]


def _explained(reasons: Sequence[ReasonCount]) -> str:
    """Formats causes: `3 WritesRefused (what to do), as orders-3: the broker's own error`.

    The text names every cause; beyond EXPLAINED_MAX characters it omits the hint and the example.
    """
    parts: list[str] = []
    for reason in reasons:
        whole = _explained_cause(reason)
        fits = len("; ".join([*parts, whole])) <= EXPLAINED_MAX
        parts.append(whole if fits else f"{reason.number} {reason.reason}")
    return "; ".join(parts)


def _explained_cause(reason: ReasonCount) -> str:
    hint = f" ({_HINTS[reason.reason]})" if reason.reason in _HINTS else ""
    example = f", as {reason.example.rstrip('.')}" if reason.example is not None else ""
    return f"{reason.number} {reason.reason}{hint}{example}"


def topics_selected(observation: Observation) -> Finding:
    """Returns TopicsSelected: whether the source has a topic for the flow to copy, other than heartbeats."""
    kind = ConditionType.TOPICS_SELECTED
    summaries = observation.summaries(observation.connector(ConnectorKind.SOURCE))
    nothing = [
        reason
        for summary in summaries
        for reason in summary.reasons
        if reason.reason == Reason.NOTHING_MATCHES.value
    ]
    if nothing:
        sentence = (
            nothing[0].example
            or "spec.topics selects no topic of the source, or the flow may not describe the topics."
        )
        return no(
            kind, Reason.NOTHING_MATCHES, f"{sentence} `mirrorflow check` lists what spec.topics selects."
        )
    if any(summary.partitions for summary in summaries):
        return yes(kind, Reason.SELECTED, "The source has topics that the flow copies.")
    return unknown(kind, Reason.NOT_ASKED, "No connector has reported yet which topics it copies.")


def lag(observation: Observation) -> Lag | None:
    """Returns the lag bucket of the pod that is furthest behind; None where no pod knows its lag."""
    lags = [
        lag_bucket(summary) for summary in observation.summaries(observation.connector(ConnectorKind.SOURCE))
    ]
    known = [number for number in lags if number is not None]
    return max(known, key=list(Lag).index) if known else None


def lag_bucket(summary: Summary) -> Lag | None:
    """Returns this pod's lag bucket; None where the pod does not know its lag."""
    # A lag of 0 counts only where it is known for every partition, and while both clusters are in use.
    if summary.lag_records == 0:
        is_known = summary.replicating not in {Replicating.WAITING, Replicating.UNKNOWN} and not any(
            side.reach is SideReachability.UNREACHABLE for side in (summary.source, summary.target)
        )
        return Lag.NONE if is_known and not summary.lags_unknown else None
    if summary.lag_s is None:
        return None
    lag_s = summary.lag_s
    return next((bucket for limit_s, bucket in _BUCKETS if lag_s < limit_s), Lag.MORE)
