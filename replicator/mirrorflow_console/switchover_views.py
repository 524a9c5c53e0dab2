"""Turns switchovers into what the cockpit and the map show: the row of states, for how long writes are refused, commands. Pure.

Names of states, and which of them refuse writes, are those of `mirrorflow_core.switchover.states`. States of other types are
shown as they come.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mirrorflow_console.documents import RunningSwitchover
from mirrorflow_console.flow_views import Level
from mirrorflow_console.switchovers import SwitchoverReading
from mirrorflow_core.switchover.states import ENDING, FENCED, PROMOTED, SwitchoverState, SwitchoverType

_S: Final = SwitchoverState
# A command that works writes how it stands once a second; a request to a broker may delay that.
SILENT_S: Final = 15.0
_COMMON: Final = (
    _S.CHECKING, _S.FENCING, _S.QUIESCING, _S.SEALED, _S.DRAINING, _S.VERIFYING, _S.GROUPS_FINAL, _S.FORWARD_ENDED,
)  # fmt: skip
# The way of a switchover that nothing stops.
_PATHS: Final = {
    SwitchoverType.PLANNED.value: (*_COMMON, _S.PROMOTING, _S.REVERSING, _S.DONE),
    SwitchoverType.RESTORE.value: (*_COMMON, _S.PROMOTING, _S.REVERSING, _S.DONE),
    SwitchoverType.REHEARSAL.value: (*_COMMON, _S.ROLLING_BACK, _S.REHEARSED),
    SwitchoverType.UNPLANNED.value: (
        _S.ASSESSING,
        _S.FORWARD_ENDED,
        _S.GROUPS_CLAMPED,
        _S.PROMOTING,
        _S.DEGRADED,
    ),
}
_PASSED, _PRESENT, _COMING = "passed", "present", "to come"
_FINE: Final = frozenset({_S.DONE.value, _S.REHEARSED.value})
_UNDONE: Final = frozenset({_S.LIFTED.value, _S.REFUSED.value, _S.ROLLING_BACK.value})
_UNDOABLE: Final = frozenset(state.value for state in (_S.CHECKING, _S.ASSESSING, *FENCED, *ENDING))
# How a switchover has ended that is neither fine nor rolled back.
_ENDS: Final = {_S.REFUSED.value: "refused", _S.DEGRADED.value: "degraded", "Overtaken": "overtaken"}
_REFUSING: Final = frozenset(state.value for state in (*FENCED, _S.PROMOTING, _S.ROLLING_BACK))
_PROMOTED: Final = frozenset(state.value for state in PROMOTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCell:
    """A state in the row of a switchover. *took_s*: how long it lasted; None for the present one and those to come."""

    name: str
    place: str  # passed, present or to come
    entered_s: float | None
    took_s: float | None
    refuses_writes: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestedCommand:
    """A command to copy, and what it does."""

    meaning: str
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchoverView:
    """A switchover at one moment. *age_s*: how old everything is that the page shows of it."""

    reading: SwitchoverReading
    level: Level
    word: str
    sentence: str
    age_s: float
    in_state_s: float
    cells: tuple[StateCell, ...]
    refused_s: float | None  # None: writes were not refused
    is_refusing: bool  # they are refused still
    left_s: float | None  # until the limit rolls it back
    commands: tuple[SuggestedCommand, ...]
    # A newer one of its pair is known, which cannot have begun before this one ended: on another machine.
    is_superseded: bool = False

    @property
    def is_under_way(self) -> bool:
        """Whether it has not ended."""
        return not self.reading.is_final and not self.is_superseded


def switchover_views(readings: Iterable[SwitchoverReading], now_s: float) -> list[SwitchoverView]:
    """Returns the views of *readings*: those under way first, worst first, then the newest."""
    known = [*readings]
    newest_s: dict[tuple[str, str], float] = {}
    for reading in known:
        pair = (reading.namespace, reading.pair)
        newest_s[pair] = max(newest_s.get(pair, 0.0), reading.created_s)
    views = [
        _superseded(view)
        if view.is_under_way
        and not view.reading.is_running
        and not view.reading.namespace  # a cluster's status is never that of another machine
        and view.reading.created_s < newest_s[view.reading.namespace, view.reading.pair]
        else view
        for view in (switchover_view(reading, now_s) for reading in known)
    ]
    return sorted(
        views,
        key=lambda view: (
            not view.is_under_way, view.level if view.is_under_way else 0, -view.reading.created_s, view.reading.key,
        ),
    )  # fmt: skip


def switchover_view(reading: SwitchoverReading, now_s: float) -> SwitchoverView:
    """Returns the view of *reading* at *now_s*, in seconds since 1970."""
    age_s = max(0.0, now_s - reading.at_s)
    refused_s, is_refusing = _refused(reading, now_s)
    is_carried_out = reading.is_running is not False and age_s <= SILENT_S
    left_s = None
    if (
        is_carried_out
        and reading.state in _UNDOABLE
        and reading.limit_s is not None
        and refused_s is not None
    ):
        left_s = max(0.0, reading.limit_s - refused_s)
    level, word = _level(reading, age_s)
    return SwitchoverView(
        reading=reading,
        level=level,
        word=word,
        sentence=_sentence(reading, is_refusing=is_refusing),
        age_s=age_s,
        in_state_s=max(0.0, (reading.at_s if reading.is_final else now_s) - _entered_s(reading)),
        cells=_cells(reading),
        refused_s=refused_s,
        is_refusing=is_refusing,
        left_s=left_s,
        commands=_commands(reading),
    )


def _superseded(view: SwitchoverView) -> SwitchoverView:
    return replace(
        view,
        level=Level.UNKNOWN,
        word="ended elsewhere",
        sentence="Another machine has ended it: there is a newer switchover of this pair.",
        is_superseded=True,
        commands=(),
        refused_s=None,
        is_refusing=False,
        left_s=None,
    )


def running_switchover(view: SwitchoverView) -> RunningSwitchover:
    """Returns what a flow of the pair shows of a switchover that has not ended."""
    return RunningSwitchover(
        key=view.reading.key,
        state=view.reading.state,
        text=f"A {view.reading.type.lower()} switchover from {view.reading.source} to {view.reading.to} is in state "
        f"{view.reading.state}. {view.sentence}".rstrip(),
        is_abandoned=view.level is Level.BROKEN,
    )


def _entered_s(reading: SwitchoverReading) -> float:
    return reading.states[-1].entered_s if reading.states else reading.created_s


def _refused(reading: SwitchoverReading, now_s: float) -> tuple[float | None, bool]:
    """Returns for how long writes are refused, and whether they still are. A process that has ended lifts no fence."""
    if reading.refused_s is not None:
        return reading.refused_s, False
    if reading.refused_since_s is None or reading.state not in _REFUSING:
        return None, False
    return max(0.0, now_s - reading.refused_since_s), True


def _level(reading: SwitchoverReading, age_s: float) -> tuple[Level, str]:
    if reading.is_final:
        if reading.canary is not None and not reading.canary.has_passed:
            return Level.WARNING, "canary failed"
        if reading.state in _FINE:
            return Level.FINE, "succeeded"
        return Level.WARNING, _ENDS.get(reading.state, "rolled back")
    if reading.is_running is False:
        return Level.BROKEN, "not carried out"
    if age_s > SILENT_S:
        return Level.BROKEN, "silent"
    return Level.WARNING, "rolling back" if reading.state in _UNDONE else "under way"


def _sentence(reading: SwitchoverReading, *, is_refusing: bool) -> str:
    if reading.is_final:
        failed = reading.canary is not None and not reading.canary.has_passed and reading.canary.sentence
        return failed or reading.sentence
    if reading.is_running is False:
        refused = f" Applications cannot write to {reading.source}." if is_refusing else ""
        undo = "complete it" if reading.state in _PROMOTED else "continue it or roll it back"
        return f"The command that carried it out has ended in state {reading.state}.{refused} Nothing happens until you {undo}."
    return reading.problem or reading.waits_for or reading.reason


def _cells(reading: SwitchoverReading) -> tuple[StateCell, ...]:
    """Returns the row of states: those of the last attempt, then those to come."""
    entered: list[tuple[str, float]] = []
    for state in reading.states:
        names = [name for name, _ in entered]
        # An attempt that begins again takes the place of the earlier one.
        entered = entered[: names.index(state.state)] if state.state in names else entered
        entered.append((state.state, state.entered_s))
    following = [entered_s for _, entered_s in entered[1:]]
    cells = [
        StateCell(
            name=name,
            place=_PRESENT if index == len(entered) - 1 else _PASSED,
            entered_s=entered_s,
            took_s=max(0.0, following[index] - entered_s) if index < len(following) else None,
            refuses_writes=name in _REFUSING,
        )
        for index, (name, entered_s) in enumerate(entered)
    ]
    path = [state.value for state in _PATHS.get(reading.type, ())]
    if reading.is_final or (cells and cells[-1].name not in path):
        return tuple(cells)
    coming = path[path.index(cells[-1].name) + 1 :] if cells else path
    return (
        *cells,
        *(
            StateCell(name=name, place=_COMING, entered_s=None, took_s=None, refuses_writes=name in _REFUSING)
            for name in coming
        ),
    )


def _commands(reading: SwitchoverReading) -> tuple[SuggestedCommand, ...]:
    """Returns what a person may do now: undo it before it promotes, else complete it."""
    commands = reading.commands or {}
    wanted: Sequence[tuple[str, str]] = ()
    if reading.is_final or reading.state in _UNDONE:
        wanted = () if reading.is_final or reading.is_running else (("Continues the rollback", "rollBack"),)
    elif reading.is_running:
        wanted = (("Rolls it back", "stop"),) if reading.state in _UNDOABLE else ()
    elif reading.state in _PROMOTED:
        wanted = (("Completes it", "continue"),)
    else:
        wanted = (("Rolls it back", "rollBack"), ("Continues it", "continue"))
    return tuple(
        SuggestedCommand(meaning=meaning, command=commands[name])
        for meaning, name in wanted
        if name in commands
    )
