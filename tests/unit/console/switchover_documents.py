"""Builds the documents of switchovers for the tests of the console, as `mirrorflow switchover` writes them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from mirrorflow_console.switchovers import SwitchoverReading, switchover_reading

CREATED_S = 1_700_000_000


def timestamp(after_s: float) -> str:
    """The time *after_s* seconds after the switchover was created."""
    return datetime.fromtimestamp(CREATED_S + after_s, tz=UTC).isoformat(timespec="milliseconds")


def document(*states: tuple[str, float], written_after_s: float = 10.0, **changes: Any) -> dict[str, Any]:
    """A planned switchover that has entered *states*, each so many seconds after it was created."""
    fenced = [after_s for state, after_s in states if state == "Fencing"]
    values: dict[str, Any] = {
        "switchover": "east-west-ab12",
        "pair": "east-west",
        "type": "Planned",
        "from": "east",
        "to": "west",
        "state": states[-1][0],
        "sentence": "west is the active member of east-west.",
        "reason": "",
        "waitsFor": "Waits for the copy of 7 offsets.",
        "problem": "",
        "created": timestamp(0),
        "states": [{"state": state, "entered": timestamp(after_s)} for state, after_s in states],
        "writesRefusedSince": timestamp(fenced[-1]) if fenced else None,
        "writesRefusedSeconds": None,
        "limitSeconds": 60.0,
        "flows": {"east": "east-to-west", "west": "west-to-east"},
        "fence": "DenyAcl",
        "fences": {"east": "complete", "west": "absent"},
        "commands": {"stop": "kill 7", "rollBack": "mirrorflow rollback", "continue": "mirrorflow continue"},
        "pid": 7,
        "isFinal": states[-1][0] in {"Done", "Rehearsed", "Lifted", "Refused"},
        "writtenMs": int((CREATED_S + written_after_s) * 1000),
    }
    return values | changes


def switchover(
    *states: tuple[str, float], is_running: bool | None = True, namespace: str = "", **changes: Any
) -> SwitchoverReading:
    """The reading of `document`."""
    given = switchover_reading(document(*states, **changes), is_running=is_running, namespace=namespace)
    assert given is not None
    return given


class FixedSwitchovers:
    """A source of switchovers that a test sets."""

    def __init__(self, *readings: SwitchoverReading) -> None:
        self.readings: Sequence[SwitchoverReading] = readings

    def read(self) -> Sequence[SwitchoverReading]:
        return self.readings
