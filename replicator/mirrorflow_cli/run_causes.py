"""Finds why a flow copies nothing, or less than it should: one sentence for each cause, with its time and count.

A cluster that cannot be used explains what its partitions report, so it is one cause, whatever their number. Partitions that
wait for it and have nothing to copy are not mentioned. Nothing here keeps state but `CauseAges`.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from mirrorflow_cli.run_progress import Companion, Progress
from mirrorflow_core.errors import (
    AuthenticationFailedError,
    ConnectionLostError,
    StartPendingError,
    UnreachableError,
    UnsupportedBrokerError,
)
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.stall_detection import StallReason
from mirrorflow_replicator.http.progress_text import UNREACHABLE, counted, duration
from mirrorflow_replicator.http.replicating_state import NOT_COPIED, NOTHING_MATCHES

SENTENCES_MAX: Final = 5  # about topics, and of each connector; they tend to be alike
# Reasons that report no more than that a cluster cannot be used.
_OF_CLUSTER: Final = frozenset(
    error.reason
    for error in (AuthenticationFailedError, ConnectionLostError, UnreachableError, UnsupportedBrokerError)
)
# Reasons of partitions that wait for one side: consequences, where that side cannot be used.
_WAITS_FOR: Final[Mapping[str, frozenset[str]]] = {
    "source": _OF_CLUSTER | {StallReason.SOURCE_NOT_ANSWERING.value},
    "target": _OF_CLUSTER
    | {
        StallReason.TARGET_NOT_ANSWERING.value,
        StallReason.COMMIT_PENDING.value,
        StallReason.NO_DECISION.value,
        StartPendingError.reason,
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why something is not copied. *key* stays while the sentence changes, for example with a count.

    *about* names the object: `source`, `target`, a connector, or a partition such as `orders-3`; None if it is the flow.
    """

    key: str
    text: str
    about: str | None = None
    reason: str | None = None  # PascalCase; None if there is none
    has_stopped: bool = False  # nothing continues without a person
    partitions: int = 0  # that have something to copy, and wait for it
    for_s: float | None = None  # None: unknown

    @property
    def line(self) -> str:
        """The sentence with its count and time."""
        facts = [
            *([counted(self.partitions, "partition")] if self.partitions > 1 else []),
            *([f"for {duration(self.for_s)}"] if self.for_s is not None and self.for_s >= 1 else []),
        ]
        return f"{self.text.rstrip('.')} ({', '.join(facts)})." if facts else self.text


def causes(progress: Progress) -> tuple[Cause, ...]:
    """Returns why the source connector does not copy all it should, what concerns most first."""
    away = _unreachable(progress)
    known = [*away.values()]
    problems = [(progress.reason, progress.problem), *progress.task_problems]
    known += [
        Cause(key=text, text=text, about=progress.connector, reason=reason or None, has_stopped=True)
        for reason, text in dict.fromkeys(problems)
        if text and not (away and reason in _OF_CLUSTER)
    ]
    if progress.nothing_selected is not None:
        text = progress.nothing_selected
        known.append(Cause(key=text, text=text, reason=NOTHING_MATCHES))
    known += [Cause(key=text, text=text, reason=NOT_COPIED) for text in progress.uncopied[:SENTENCES_MAX]]
    further = progress.uncopied_total - len(progress.uncopied[:SENTENCES_MAX])
    if further > 0:
        known.append(Cause(key="uncopied", text=f"Not copied either: {further} more."))
    return (*known, *_of_partitions(progress.partitions, frozenset(away)))


def _unreachable(progress: Progress) -> dict[str, Cause]:
    by_name = {}
    for name, side in progress.sides.items():
        if side.get("reach") == UNREACHABLE:
            waiting = sum(
                row.get("reason") in _WAITS_FOR[name] and _has_something(row) for row in progress.partitions
            )
            text = " ".join(str(side.get("message") or f"The {name} cannot be used.").split())
            by_name[name] = Cause(
                key=f"{name} {side.get('reason')}",
                text=text,
                about=name,
                reason=str(side.get("reason") or UNREACHABLE),
                partitions=waiting,
                for_s=side.get("sinceSeconds"),
            )
    return by_name


def _has_something(row: Mapping[str, Any]) -> bool:
    return row.get("lagRecords") != 0


def _of_partitions(rows: Sequence[Mapping[str, Any]], away: frozenset[str]) -> Iterator[Cause]:
    """Yields one cause for each reason, with the message of the partition that has most to copy."""
    groups: dict[tuple[str, bool], list[Mapping[str, Any]]] = {}
    for row in rows:
        reason, has_stopped = str(row.get("reason", "")), row.get("phase") == "stopped"
        if not row.get("message") or (not has_stopped and _is_consequence(row, reason, away)):
            continue
        groups.setdefault((reason, has_stopped), []).append(row)
    for (reason, has_stopped), group in groups.items():
        ages = [row["stalledSeconds"] for row in group if row.get("stalledSeconds") is not None]
        yield Cause(
            key=f"{reason} {'stopped' if has_stopped else ''}",
            text=str(group[0]["message"]),
            about=f"{group[0].get('topic')}-{group[0].get('partition')}",
            reason=reason or None,
            has_stopped=has_stopped,
            partitions=len(group),
            for_s=max(ages, default=None),
        )


def _is_consequence(row: Mapping[str, Any], reason: str, away: frozenset[str]) -> bool:
    return any(reason in _WAITS_FOR[side] for side in away) or is_moot(row)


def is_moot(row: Mapping[str, Any]) -> bool:
    """Returns whether a partition waits for the target and has nothing to copy: no one misses anything."""
    waits = row.get("reason") in _WAITS_FOR["target"] and row.get("phase") != "stopped"
    return waits and not _has_something(row)


def notes(progress: Progress) -> list[str]:
    """Returns the warnings of all connectors, the first few of each; further ones are only counted."""
    shown = {progress.nothing_selected, *progress.uncopied}
    own = [text for text in progress.warnings if text not in shown]
    sentences, is_away = _first(own, len(own)), bool(_unreachable(progress))
    for companion in progress.companions:
        sentences += [
            f"{companion.connector}: {text}" for text in _companion_problems(companion, is_away=is_away)
        ]
    return sentences


def _companion_problems(companion: Companion, *, is_away: bool) -> list[str]:
    """Returns the error and the warnings that another connector reports, the first few.

    *is_away*: a cluster cannot be used, which is reported once.
    """
    is_known = is_away and companion.received.get("reason") in _OF_CLUSTER
    messages = (
        [str(companion.received["message"])] if companion.received.get("message") and not is_known else []
    )
    messages += [str(warning) for warning in companion.received.get("warnings", ())]
    unsent = int(companion.received.get("warningsTotal", 0)) - len(companion.received.get("warnings", ()))
    return _first(messages, len(messages) + unsent)


def _first(sentences: Sequence[str], total: int) -> list[str]:
    further = total - len(sentences[:SENTENCES_MAX])
    return [*sentences[:SENTENCES_MAX], *([f"{further} more."] if further > 0 else [])]


class CauseAges:
    """Remembers since when each cause is known. Call `of` with all causes, in order."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since_s: dict[str, float] = {}

    def of(self, present: Sequence[Cause]) -> tuple[Cause, ...]:
        """Returns *present* with the time since when each is known, where it does not report its own."""
        now_s = self._clock()
        self._since_s = {cause.key: self._since_s.get(cause.key, now_s) for cause in present}
        return tuple(
            replace(cause, for_s=self.known_s(cause)) if cause.for_s is None else cause for cause in present
        )

    def known_s(self, cause: Cause) -> float:
        """Returns for how long *cause*, one of the last call, is known."""
        return self._clock() - self._since_s[cause.key]
