"""Declares what the console knows of switchovers, and checks the documents in which they are reported. Pure.

The document is that of `mirrorflow_cli.switchover_progress`. A resource's status may become one, too: only *at_s* must be the time at
which it was true. Unknown fields are dropped; a field of a wrong type counts as missing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol, TypeVar

NAME_MAX: Final = 512
TEXT_MAX: Final = 2_000
LISTED_MAX: Final = 100
_SECONDS_MAX: Final = 1e9
_COUNT_MAX: Final = 2**63  # an offset has 64 bits with the sign
Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnteredState:
    """A state with the time at which it was entered."""

    state: str
    entered_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchedGroup:
    """A consumer group at the end of a switchover; *again*: records that it reads again at most, None: unknown."""

    group: str
    outcome: str
    again: int | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenByCanary:
    """What the application of a rehearsal saw; None: not known."""

    has_passed: bool
    sentence: str
    client: str  # versions of its Kafka client
    acknowledged: int | None
    read: int | None  # by its group on the source
    read_again: int | None
    skipped: int | None
    refused: int | None  # writes
    not_written_s: float | None  # no write was accepted for so long


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchoverReading:
    """One switchover, as it stood at *at_s*. Times are in seconds since 1970, by the clock of the process that carries it out.

    *is_running*: a process carries it out now; None: that is not known. Without *refused_s*, writes were never refused, or
    still are since *refused_since_s*.
    """

    id: str
    pair: str
    type: str
    source: str
    to: str
    state: str
    at_s: float
    is_running: bool | None = None
    namespace: str = ""
    is_final: bool = False
    sentence: str = ""
    reason: str = ""
    waits_for: str = ""
    problem: str = ""
    created_s: float = 0.0
    states: tuple[EnteredState, ...] = ()
    attempts: int = 0
    refused_since_s: float | None = None
    refused_s: float | None = None
    limit_s: float | None = None
    user: str = ""
    runner: str = ""
    flows: Mapping[str, str] | None = None  # by the member that is active while the flow runs
    fence: str = ""
    fences: tuple[tuple[str, str], ...] = ()  # member and state
    seal_sha256: str = ""
    seal_partitions: int = 0
    ends: tuple[tuple[str, int], ...] = ()  # the first partitions of the seal
    checks: tuple[tuple[str, bool | None, str], ...] = ()  # name, passed (None: unknown), why not
    is_equal: bool | None = None  # both clusters up to the seal
    differences: tuple[str, ...] = ()
    lost_offsets: int | None = None  # at least; None: nothing is lost on purpose
    lost_topics: tuple[tuple[str, int], ...] = ()  # those with the largest loss
    lost_until_s: float | None = None  # until when the source was read
    groups: tuple[SwitchedGroup, ...] = ()
    groups_total: int = 0
    canary: SeenByCanary | None = None
    notes: tuple[str, ...] = ()
    commands: Mapping[str, str] | None = None  # stop, rollBack and continue

    @property
    def key(self) -> str:
        """Identifies it among all switchovers of this console."""
        return f"{self.namespace}~{self.id}" if self.namespace else self.id


class SwitchoverSource(Protocol):
    """Reads switchovers. Called at each rendering, from any thread, so it must not wait for another machine."""

    def read(self) -> Sequence[SwitchoverReading]:
        """Returns all switchovers that are known."""


def switchover_reading(
    document: Mapping[str, Any], *, is_running: bool | None, namespace: str = ""
) -> SwitchoverReading | None:
    """Returns the switchover that *document* describes, as it stood when it was written; None if it is none."""
    seal, verification = _object(document.get("seal")), _object(document.get("verification"))
    loss = _object(document.get("loss"))
    written_ms = _typed(document.get("writtenMs"), int, 0)
    reading = SwitchoverReading(
        id=_text(document.get("switchover"), NAME_MAX),
        pair=_text(document.get("pair"), NAME_MAX),
        type=_text(document.get("type"), NAME_MAX),
        source=_text(document.get("from"), NAME_MAX),
        to=_text(document.get("to"), NAME_MAX),
        state=_text(document.get("state"), NAME_MAX),
        at_s=written_ms / 1000 if 0 < written_ms < _SECONDS_MAX * 10_000 else 0.0,
        is_running=is_running,
        namespace=namespace,
        is_final=document.get("isFinal") is True,
        **{
            name: _text(document.get(given), TEXT_MAX)
            for name, given in {
                "sentence": "sentence", "reason": "reason", "waits_for": "waitsFor", "problem": "problem", "user": "user",
                "runner": "runner", "fence": "fence",
            }.items()
        },
        created_s=_moment(document.get("created")) or 0.0,
        states=tuple(_states(document.get("states"))),
        attempts=_count(document.get("attempts")),
        refused_since_s=_moment(document.get("writesRefusedSince")),
        refused_s=_seconds(document.get("writesRefusedSeconds")),
        limit_s=_seconds(document.get("limitSeconds")),
        flows=_texts(document.get("flows")),
        fences=tuple(_texts(document.get("fences")).items()),
        seal_sha256=_text(seal.get("sha256"), NAME_MAX),
        seal_partitions=_count(seal.get("partitions")),
        ends=tuple(_ends(seal.get("ends"))),
        checks=tuple(_checks(document.get("checks"))),
        is_equal=_typed(verification.get("equal"), bool, None),
        differences=tuple(_sentences(verification.get("differences"))),
        lost_offsets=_known_count(loss.get("lostOffsetsAtLeast")),
        lost_topics=tuple(
            (_text(row.get("topic"), NAME_MAX), _count(row.get("lostOffsetsAtLeast")))
            for row in _objects(loss.get("topics"))
        ),
        lost_until_s=_moment(loss.get("knownUntil")),
        groups=tuple(_groups(document.get("groups"))),
        groups_total=_count(document.get("groupsTotal")),
        canary=_canary(_object(document.get("canaryApplication"))),
        notes=tuple(_sentences(document.get("notes"))),
        commands=_texts(document.get("commands")),
    )  # fmt: skip
    return reading if reading.id and reading.pair and reading.state and reading.at_s else None


def _typed(value: Any, kind: type[Kind], missing: Any) -> Any:
    return value if type(value) is kind else missing


def _text(value: Any, longest: int) -> str:
    return value[:longest] if isinstance(value, str) else ""


def _count(value: Any) -> int:
    return _known_count(value) or 0


def _known_count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < _COUNT_MAX else None


def _seconds(value: Any) -> float | None:
    return float(value) if type(value) in {int, float} and 0 <= value < _SECONDS_MAX else None


def _moment(value: Any) -> float | None:
    """Returns a timestamp with a time zone as seconds since 1970."""
    try:
        when = datetime.fromisoformat(_text(value, NAME_MAX))
        return when.timestamp() if when.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _objects(value: Any) -> list[Mapping[str, Any]]:
    rows = value[:LISTED_MAX] if isinstance(value, list) else []
    return [row for row in rows if isinstance(row, dict)]


def _texts(value: Any) -> dict[str, str]:
    pairs = [*_object(value).items()][:LISTED_MAX]
    return {name[:NAME_MAX]: text[:TEXT_MAX] for name, text in pairs if isinstance(text, str)}


def _sentences(value: Any) -> list[str]:
    rows = value[:LISTED_MAX] if isinstance(value, list) else []
    return [row[:TEXT_MAX] for row in rows if isinstance(row, str)]


def _states(value: Any) -> list[EnteredState]:
    rows = [(_text(row.get("state"), NAME_MAX), _moment(row.get("entered"))) for row in _objects(value)]
    return [
        EnteredState(state=state, entered_s=entered_s) for state, entered_s in rows if entered_s is not None
    ]


def _ends(value: Any) -> list[tuple[str, int]]:
    return [
        (f"{_text(row.get('topic'), NAME_MAX)}-{_count(row.get('partition'))}", _count(row.get("end")))
        for row in _objects(value)
    ]


def _canary(value: Mapping[str, Any]) -> SeenByCanary | None:
    if not value:
        return None
    return SeenByCanary(
        has_passed=value.get("passed") is True,
        sentence=_text(value.get("sentence"), TEXT_MAX),
        client=_text(value.get("client"), NAME_MAX),
        acknowledged=_known_count(value.get("recordsAcknowledged")),
        read=_known_count(value.get("recordsRead")),
        read_again=_known_count(value.get("recordsReadAgain")),
        skipped=_known_count(value.get("recordsSkipped")),
        refused=_known_count(value.get("writesRefused")),
        not_written_s=_seconds(_object(value.get("seconds")).get("notWritten")),
    )


def _checks(value: Any) -> list[tuple[str, bool | None, str]]:
    return [
        (
            _text(row.get("check"), NAME_MAX),
            None if row.get("passed", False) is None else row.get("passed") is True,
            _text(row.get("why"), TEXT_MAX),
        )
        for row in _objects(value)
    ]


def _groups(value: Any) -> list[SwitchedGroup]:
    return [
        SwitchedGroup(
            group=_text(row.get("group"), NAME_MAX),
            outcome=_text(row.get("outcome"), NAME_MAX),
            again=_known_count(row.get("recordsReadAgain")),
            why=_text(row.get("why"), TEXT_MAX),
        )
        for row in _objects(value)
    ]
