"""Shows the steps of a switchover as they happen, and what it was in the end: as text and as a JSON report.

`switchover_page` makes a page of the report, and `switchover_progress` shows it to the console while the switchover runs.
"""

import contextlib
import getpass
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from mirrorflow_cli.loss_report import degraded_sentence
from mirrorflow_core.switchover.canary import CanaryResult, CanaryStep
from mirrorflow_core.switchover.observation import ReadinessCheck, SealVerification
from mirrorflow_core.switchover.record import SwitchoverRecord
from mirrorflow_core.switchover.seal import Seal
from mirrorflow_core.switchover.state_machine import SwitchoverStep
from mirrorflow_core.switchover.states import PROMOTED, SwitchoverState, SwitchoverType
from mirrorflow_replicator.switchover.acl_fence import CanaryTimes
from mirrorflow_replicator.switchover.final_groups import FinalGroup
from mirrorflow_replicator.switchover.read_again import ReadAgain
from mirrorflow_replicator.switchover.session import SwitchoverSession

INTERVAL_S = 1.0
_ACCEPTED_AGAIN = frozenset({SwitchoverState.REVERSING, SwitchoverState.LIFTED, SwitchoverState.REHEARSED})


class StepDisplay:
    """Prints a line on stderr when the state changes, and at most once a second when what is waited for does."""

    def __init__(self) -> None:
        self.record: SwitchoverRecord | None = None  # of the last step
        self._last_printed: tuple[SwitchoverState | None, str] = None, ""
        self._printed_s = 0.0

    def show(self, step: SwitchoverStep, problem: str) -> None:
        """Shows *step*, and the error that the next step repeats; "" without one."""
        self.record = step.record
        printed, now_s = (step.record.state, problem or step.waits_for), time.monotonic()
        is_next_state = printed[0] is not self._last_printed[0]
        if is_next_state or (printed != self._last_printed and now_s - self._printed_s >= INTERVAL_S):
            self._last_printed, self._printed_s = printed, now_s
            print_if_read(_line(step, problem))


def print_if_read(text: str) -> None:
    """Prints *text* on stderr. No error of that may end a process while writes are refused: Ctrl-C in a pipe ends the reader, too."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def _line(step: SwitchoverStep, problem: str) -> str:
    clock = datetime.now(tz=UTC).strftime("%H:%M:%SZ")
    text = problem or step.waits_for or step.record.reason
    return f"{clock}  {step.record.state.value:<13} {text}".rstrip()


def refused_ms(record: SwitchoverRecord) -> int | None:
    """Returns for how long writes were refused; None while they are, or if they never were."""
    if not record.fenced_ms:
        return None
    ends = [entry.entered_ms for entry in record.history if entry.state in _ACCEPTED_AGAIN]
    return ends[0] - record.fenced_ms if ends else None


def report_of(
    record: SwitchoverRecord,
    *,
    notes: Sequence[str] = (),
    canary: CanaryTimes | None = None,
    groups: Iterable[FinalGroup] = (),
) -> dict[str, Any]:
    """Returns the report of a switchover, for JSON. Times are those of the process that carried it out.

    *notes*, *canary* and *groups* are known to the process that has carried it out; the journal does not have them.
    """
    entered = [*record.history, None]
    states = [
        {
            "state": entry.state.value,
            "entered": _timestamp(entry.entered_ms),
            "seconds": None if following is None else (following.entered_ms - entry.entered_ms) / 1000,
        }
        for entry, following in zip(record.history, entered[1:], strict=True)
        if entry is not None
    ]
    waited_ms = refused_ms(record)
    report: dict[str, Any] = {
        "switchover": record.id,
        "pair": record.pair,
        "type": record.type.value,
        "from": record.source,
        "to": record.to,
        "state": record.state.value,
        "reason": record.reason,
        "sentence": sentence_of(record),
        "created": _timestamp(record.created_ms),
        "runner": record.runner.rpartition("/")[0],
        "attempts": record.attempt,
        "limitSeconds": record.limits.refused_ms / 1000,
        "writesRefusedSince": _timestamp(record.fenced_ms) if record.fenced_ms else None,
        "writesRefusedSeconds": None if waited_ms is None else waited_ms / 1000,
        "states": states,
    }
    if record.seal is not None:
        report["seal"] = seal_summary(record.seal)
    if canary is not None:
        report["canary"] = {
            "refusedAfterSeconds": round(canary.refused_after_s, 3),
            "acceptedAfterSeconds": round(canary.accepted_after_s, 3),
        }
    moved = [*groups]
    listed = [
        {
            "group": group.group,
            "outcome": group.outcome.value,
            "recordsReadAgain": group.repeats_max,
            **({"why": group.why} if group.why else {}),
        }
        for group in moved
    ]
    if listed:
        report["recordsReadAgain"] = records_read_again(moved)
    return report | ({"groups": listed} if listed else {}) | ({"notes": [*notes]} if notes else {})


def records_read_again(groups: Iterable[FinalGroup]) -> int | None:
    """Returns how many records *groups* read again on the other cluster, at most; None if that is not known of one of them."""
    counts = [group.repeats_max for group in groups]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


def predicted_report(predicted: ReadAgain | str) -> dict[str, Any]:
    """Returns the part of a status about what groups would read again if applications were moved now; a text says why it is unknown."""
    if isinstance(predicted, str):
        return {"recordsReadAgain": None, "why": predicted}
    return {
        "groups": predicted.groups,
        "recordsReadAgain": predicted.planned_records,
        "ifSourceIsLost": {
            "recordsReadAgain": predicted.lost_records,
            "secondsReadAgain": None if predicted.lost_s is None else round(predicted.lost_s, 3),
        },
    }


def predicted_sentence(predicted: ReadAgain | str) -> str:
    """Returns `predicted_report` as a sentence."""
    if isinstance(predicted, str):
        return predicted
    planned, lost = (
        "an unknown number of" if records is None else f"{records:,}"
        for records in (predicted.planned_records, predicted.lost_records)
    )
    time_text = "an unknown time" if predicted.lost_s is None else f"{predicted.lost_s:.1f} s"
    return (
        f"If applications were moved now, {predicted.groups} consumer groups would read {planned} records again at most; without the active "
        f"member, {lost} records, which they have read in the last {time_text}."
    )


def canary_report(result: CanaryResult | None) -> dict[str, Any]:
    """Returns the part of a report about the application of a rehearsal; {} without one."""
    if result is None:
        return {}
    steps = {
        step.value: None if seconds is None else round(seconds, 3)
        for step, seconds in result.timeline.seconds.items()
    }
    return {
        "canaryApplication": {
            "passed": not result.problem,
            "sentence": canary_sentence(result),
            "topic": result.topic,
            "group": result.group,
            "client": result.client,
            "recordsAcknowledged": result.acknowledged_records,
            "recordsRead": result.read_records,
            "writesRefused": result.refused_writes,
            "refusedWith": result.refused_with,
            "sourceOffset": result.source_offset,
            "targetOffset": result.target_offset,
            "recordsReadAgain": result.read_again,
            "recordsSkipped": result.skipped,
            "seconds": steps,
        }
    }


def canary_sentence(result: CanaryResult) -> str:
    """Returns what the application of a rehearsal saw, as a sentence for its user."""
    if result.problem:
        return result.problem
    paused_s = result.timeline.seconds[CanaryStep.NOT_WRITTEN]
    paused = "" if paused_s is None else f" Its producer could not write for {paused_s:.1f} s."
    return (
        f"Canary group {result.group} has read 0 records again on the other cluster, and skipped 0.{paused}"
    )


def evidence_of(
    checks: Mapping[ReadinessCheck, str],
    verification: SealVerification | None,
    *,
    not_checked: Mapping[ReadinessCheck, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Returns the part of a report about the results of *checks*, and about the comparison of both clusters.

    `passed` is null for those of *not_checked*, which has the reasons.
    """
    evidence: dict[str, Any] = {}
    if checks:
        evidence["checks"] = [
            _check_result(check, problem, not_checked.get(check, "")) for check, problem in checks.items()
        ]
    if verification is not None:
        evidence["verification"] = {
            "equal": not verification.differences,
            "sealSha256": verification.seal_sha256,
            "partitionsWithSealedDigest": verification.digests_equal,
            "differences": [*verification.differences],
        }
    return evidence


def _check_result(check: ReadinessCheck, problem: str, not_checked: str) -> dict[str, Any]:
    passed = None if not_checked and not problem else not problem
    why = problem or not_checked
    return {"check": check.value, "passed": passed, **({"why": why} if why else {})}


def session_report(record: SwitchoverRecord, session: SwitchoverSession) -> dict[str, Any]:
    """Returns the report of the switchover that *session* carries out."""
    report = report_of(
        record,
        notes=session.checks.notes,
        canary=session.checks.canary,
        groups=session.flows.final_groups(),
    )
    checks = session.checks
    evidence = evidence_of(checks.known, session.flows.verification, not_checked=checks.not_checked)
    return {**report, **evidence, "user": user_name()}


def user_name() -> str:
    """Returns the name of the user of this process; "" where it has none, as in most containers."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def seal_summary(seal: Seal) -> dict[str, Any]:
    """Returns the seal as it stands in a report: where each partition ended, and with which records."""
    ends = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "end": partition.end,
            "records": partition.records,
            "digest": partition.digest,
        }
        for partition in seal.partitions
    ]
    return {
        "partitions": len(seal.partitions),
        "sha256": seal.sha256,
        "digestKey": seal.digest_key,
        "ends": ends,
    }


def _timestamp(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")


def continues_alone(promoted: SwitchoverRecord) -> str:
    """Returns why the switchover *promoted* does not wait for its source, as a sentence."""
    return f"Switchover {promoted.id} has promoted {promoted.to}, so it continues without {promoted.source}."


def sentence_of(record: SwitchoverRecord) -> str:
    """Returns how a switchover stands, as a sentence or two for its user."""
    waited_ms = refused_ms(record)
    waited = "" if waited_ms is None else f" Writes were refused for {waited_ms / 1000:.1f} s."
    reason = f" {record.reason}" if record.reason else ""
    match record.state:
        case SwitchoverState.DONE:
            return f"{record.to} is the active member of {record.pair}.{waited}{reason}"
        case SwitchoverState.REHEARSED:
            return f"The rehearsal has succeeded, and {record.source} is still the active member of {record.pair}.{waited}"
        case SwitchoverState.LIFTED:
            return f"The switchover was rolled back; {record.source} is still the active member of {record.pair}.{waited}{reason}"
        case SwitchoverState.REFUSED:
            return f"The switchover was refused, and nothing was changed.{reason}"
    return f"Switchover {record.id} of {record.pair} from {record.source} to {record.to} is in state {record.state.value}.{reason}"


def outcome_of(record: SwitchoverRecord) -> str:
    """Returns how a switchover of any kind stands."""
    return degraded_sentence(record) if record.state is SwitchoverState.DEGRADED else sentence_of(record)


def completion_of(record: SwitchoverRecord, file: str) -> list[str]:
    """Returns what to do about a planned switchover of the pair in *file* that has promoted and is not completed."""
    if record.is_unplanned or record.is_final or record.state not in PROMOTED:
        return []
    option = " --restore" if record.type is SwitchoverType.RESTORE else ""
    command = f"`mirrorflow switchover -f {file} --to {record.to}{option}`"
    if record.state is SwitchoverState.PROMOTING:
        leads = f"it leads applications to {record.to}, also while {record.source} does not respond"
        return [f"If no process carries it out, run {command}: {leads}. No record is lost."]
    moved = f"Applications run on {record.to}, which has every record that {record.source} had acknowledged."
    return [f"{moved} Run {command} when {record.source} responds again: it starts the flow back."]
