"""Parses what the Job of a Switchover reports: its progress over HTTP, or its termination message. Pure and total.

As of every pod, numbers are finite and not negative, texts match a pattern or are bounded, and unknown fields are ignored. The writer
is mirrorflow_cli's `switchover_job`; a test compares the two.
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
    return _report(value) if value.get("version") in REPORT_VERSIONS else None


def _report(value: Mapping[str, Any]) -> SwitchoverReport:
    seal, refused_ms = object_at(value, "seal"), number(value.get("writesRefusedMs"), COUNT_MAX)
    notes, states = (value.get(name) for name in ("notes", "states"))
    loss = object_at(value, "loss")
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
