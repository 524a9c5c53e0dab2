"""Decides the condition Degraded from connectors' warnings, and finds new problems to report as Events.

Pure.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from mirrorflow_operator.api.rules.table import ignored_fields
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.status import Condition, ConditionStatus
from mirrorflow_operator.plan.names import connector_word
from mirrorflow_operator.plan.plan import ConnectorKind
from mirrorflow_operator.status import pod_progress
from mirrorflow_operator.status.conditions import ConditionType, Finding, Reason, no, unknown, yes
from mirrorflow_operator.status.observation import Observation
from mirrorflow_operator.status.progress import Summary

_WORD: Final = re.compile(r"[A-Za-z0-9]+")
# Conditions for which False is a problem; the others describe progress.
_FALSE_IS_TROUBLE: Final = frozenset(
    {
        ConditionType.ACCEPTED.value,
        ConditionType.SOURCE_REACHABLE.value,
        ConditionType.TARGET_REACHABLE.value,
        ConditionType.TOPICS_SELECTED.value,
        ConditionType.REPLICATING.value,
        ConditionType.CHECKPOINTS_FRESH.value,
        ConditionType.READY.value,
    }
)
# A user requested these states, or waits for them.
_WANTED: Final = frozenset(
    one.value for one in (Reason.PAUSING, Reason.PAUSED, Reason.STOPPING, Reason.STOPPED, Reason.SEEDING)
)
_FAILED_RUNS: Final = frozenset(
    one.value
    for one in (
        Reason.SEED_FAILED,
        Reason.DIFFERENCES_FOUND,
        Reason.VERIFICATION_FAILED,
        Reason.VERIFICATION_OVERDUE,
    )
)


def degraded(observation: Observation, flow: MirrorFlow | None) -> Finding:
    """Returns Degraded: True if the spec or a connector has warnings.

    Examples are an ignored field, and ACLs, topics or settings that cannot be written.
    """
    ignored = [] if flow is None else [f"{one}" for one in ignored_fields(flow)]
    found = {seen.kind: pod_progress.summaries(observation, seen) for seen in observation.connectors}
    sentences = ignored + [_warnings(kind, summaries) for kind, summaries in found.items() if summaries]
    if any(sentences):
        return yes(ConditionType.DEGRADED, Reason.WARNINGS, " ".join(filter(None, sentences)))
    if sentences:
        return no(ConditionType.DEGRADED, Reason.NO_WARNINGS, "No connector has a warning.")
    return unknown(ConditionType.DEGRADED, Reason.NOT_ASKED, "No connector has reported its warnings yet.")


def _warnings(kind: ConnectorKind, summaries: Sequence[Summary]) -> str:
    """Returns the warnings of the pod that has the most; "" without any."""
    worst = max(summaries, key=lambda summary: summary.warnings)
    if not worst.warnings:
        return ""
    more = " ..." if worst.warnings > len(worst.first_warnings) else ""
    return f"The {connector_word(kind)} connector warns ({worst.warnings}): {' '.join(worst.first_warnings)}{more}"


def new_troubles(
    before: Sequence[Condition], now: Sequence[Condition], causes: Mapping[str, frozenset[str]]
) -> Iterator[tuple[str, str]]:
    """Yields reason and message of each problem that *now* has and *before* had not, each once.

    *causes*: those of the conditions of *now*, by type; a new cause under the same reason is a new problem.
    Ready comes last, because it usually repeats another condition.
    """
    known = {one.type: one for one in before}
    said: set[str] = set()
    for one in sorted(now, key=lambda condition: condition.type == ConditionType.READY.value):
        if not _is_trouble(one) or one.reason in said or one.message in said:
            continue
        if _is_known(one, known.get(one.type), causes.get(one.type, frozenset())):
            continue
        said |= {one.reason, one.message}
        yield one.reason, one.message


def _is_known(one: Condition, before: Condition | None, causes: frozenset[str]) -> bool:
    """Whether *before* is the same problem; its message names the causes, so they survive a restart."""
    if before is None or (before.status, before.reason) != (one.status, one.reason):
        return False
    if one.type == ConditionType.DEGRADED.value:
        return one.message == before.message
    return causes <= set(_WORD.findall(before.message))


def _is_trouble(one: Condition) -> bool:
    if one.type == ConditionType.DEGRADED.value:
        return one.status is ConditionStatus.TRUE
    if one.reason == Reason.SOURCE_DATA_LOST.value or one.reason in _FAILED_RUNS:
        return True
    return one.type in _FALSE_IS_TROUBLE and one.status is ConditionStatus.FALSE and one.reason not in _WANTED
