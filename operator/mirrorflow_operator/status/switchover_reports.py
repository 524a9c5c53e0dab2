"""Parses what the Job of a Switchover reports: its progress over HTTP, or its termination message. Pure and total.

As of every pod, numbers are finite and not negative, texts match a pattern or are bounded, and unknown fields are ignored. The writer
is mirrorflow_cli's `switchover_job_progress`; a test compares the two.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mirrorflow_operator.api.pair_status import (
    LOST_TOPICS_MAX,
    NOTES_MAX,
    STATES_MAX,
    CanaryMilliseconds,
    CanarySummary,
    SealSummary,
    StateTime,
    SwitchoverLoss,
    TopicLoss,
)
from mirrorflow_operator.api.timestamps import parse_timestamp
from mirrorflow_operator.status.conditions import bounded
from mirrorflow_operator.status.pod_reports import COUNT_MAX, count, matching, number, object_at

REPORT_VERSIONS: Final = frozenset({1})
REPORT_MAX_BYTES: Final = 4_096
_STATE: Final = re.compile(r"[A-Za-z][A-Za-z0-9]{0,63}")
_ALIAS: Final = re.compile(r"[a-zA-Z0-9._-]{1,100}")
_ID: Final = re.compile(r"[-._/a-zA-Z0-9]{1,300}")
_DIGEST: Final = re.compile(r"[0-9a-f]{1,64}")
_CLIENT: Final = re.compile(r"[-a-zA-Z0-9., ]{1,100}")
_CANARY_STEPS: Final = tuple(CanaryMilliseconds.model_fields.items())
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchoverReport:
    """How far a switchover is. Fields that are not known yet have the value of `SwitchoverStatus`: "" for texts, None for others."""

    id: str
    state: str = ""
    since: str | None = None
    waits_for: str = ""
    reason: str = ""
    source: str = ""
    active: str = ""  # the member that the journal says was promoted last
    promoted_by: str = ""  # the id of the switchover that has promoted it
    epoch: int = 0  # of the newest switchover in the journal
    may_copy_back: bool = False
    fenced: str | None = None
    writes_refused_ms: int | None = None
    seal: SealSummary | None = None
    loss: SwitchoverLoss | None = None
    states: tuple[StateTime, ...] = ()
    canary: CanarySummary | None = None
    notes: tuple[str, ...] = ()


def parse_switchover_report(text: str | bytes) -> SwitchoverReport | None:
    """Parses *text* into a report; None where it is none, such as the last log lines of a crashed process."""
    if len(text) > REPORT_MAX_BYTES:
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or value.get("job") != "switchover":
        return None
    return _report(value) if number(value.get("version")) in REPORT_VERSIONS else None


def _report(value: Mapping[str, Any]) -> SwitchoverReport:
    seal, refused_ms = object_at(value, "seal"), number(value.get("writesRefusedMs"), COUNT_MAX)
    notes, states = (value.get(name) for name in ("notes", "states"))
    loss, canary = object_at(value, "loss"), object_at(value, "canary")
    return SwitchoverReport(
        id=matching(_ID, value.get("switchover")),
        state=matching(_STATE, value.get("state")),
        since=_time(value.get("since")),
        waits_for=_text(value.get("waitsFor")),
        reason=_text(value.get("reason")),
        source=matching(_ALIAS, value.get("source")),
        active=matching(_ALIAS, value.get("active")),
        promoted_by=matching(_ID, value.get("promotedBy")),
        epoch=count(value.get("epoch"), COUNT_MAX),
        may_copy_back=value.get("mayCopyBack") is True,
        fenced=_time(value.get("fenced")),
        writes_refused_ms=None if refused_ms is None else int(refused_ms),
        seal=SealSummary(
            partitions=count(seal.get("partitions"), COUNT_MAX), sha256=matching(_DIGEST, seal.get("sha256"))
        )
        if seal
        else None,
        loss=_loss(loss) if loss else None,
        states=tuple(_states(states)),
        canary=_canary(canary) if canary else None,
        notes=tuple(map(_text, notes[:NOTES_MAX])) if isinstance(notes, list) else (),
    )


def _loss(value: Mapping[str, Any]) -> SwitchoverLoss:
    topics = value.get("topics")
    rows = [row for row in topics if isinstance(row, dict)] if isinstance(topics, list) else []
    return SwitchoverLoss(
        lost_offsets_at_least=count(value.get("lostOffsetsAtLeast"), COUNT_MAX),
        partitions_with_loss=count(value.get("partitionsWithLoss"), COUNT_MAX),
        partitions_with_unknown_end=count(value.get("partitionsWithUnknownEnd"), COUNT_MAX),
        known_until=_time(value.get("knownUntil")),
        source_answered=value.get("sourceAnswered") is True,
        topics=tuple(
            TopicLoss(topic=topic, lost_offsets_at_least=count(row.get("lostOffsetsAtLeast"), COUNT_MAX))
            for row in rows[:LOST_TOPICS_MAX]
            if (topic := matching(_TOPIC, row.get("topic")))
        ),
    )


def _canary(value: Mapping[str, Any]) -> CanarySummary:
    seconds = object_at(value, "seconds")
    times = {name: _milliseconds(seconds.get(field.alias or name)) for name, field in _CANARY_STEPS}
    return CanarySummary(
        passed=value.get("passed") is True,
        message=_text(value.get("sentence")),
        client=matching(_CLIENT, value.get("client")),
        records_acknowledged=count(value.get("recordsAcknowledged"), COUNT_MAX),
        records_read=count(value.get("recordsRead"), COUNT_MAX),
        writes_refused=count(value.get("writesRefused"), COUNT_MAX),
        records_read_again=_known_count(value.get("recordsReadAgain")),
        records_skipped=_known_count(value.get("recordsSkipped")),
        milliseconds=CanaryMilliseconds(**times),
    )


def _known_count(value: Any) -> int | None:
    given = number(value, COUNT_MAX)
    return None if given is None else int(given)


def _milliseconds(value: Any) -> int | None:
    seconds = number(value, COUNT_MAX / 1_000)
    return None if seconds is None else round(seconds * 1_000)


def _states(value: Any) -> list[StateTime]:
    rows = [row for row in value[-STATES_MAX:] if isinstance(row, dict)] if isinstance(value, list) else []
    read = [(matching(_STATE, row.get("state")), _time(row.get("entered"))) for row in rows]
    return [StateTime(state=state, entered=entered) for state, entered in read if state and entered]


def _time(value: Any) -> str | None:
    return (
        value if isinstance(value, str) and len(value) <= 40 and parse_timestamp(value) is not None else None
    )


def _text(value: Any) -> str:
    return bounded(value) if isinstance(value, str) else ""
