"""Makes a page of the report of a switchover: one HTML file without scripts and without requests, to read, print and keep.

Everything of the JSON report is on it. Values are escaped, since names of topics and groups are anything that Kafka accepts.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined

from mirrorflow_core.switchover.states import FENCED, SwitchoverState
from mirrorflow_replicator.version import version

UNKNOWN: Final = "\N{EN DASH}"
BAR_WIDTH: Final = 1_000  # of the bar of states, in units of its SVG
_SHOWN: Final = frozenset(
    {
        "switchover", "pair", "type", "from", "to", "state", "reason", "sentence", "created", "user", "runner", "attempts",
        "limitSeconds", "writesRefusedSince", "writesRefusedSeconds", "states", "seal", "canary", "groups", "notes", "checks",
        "verification", "canaryApplication", "recordsReadAgain",
    }
)  # fmt: skip
# What each step of the canary application is, for a reader who has not read the documentation.
CANARY_STEPS: Final = {
    "copied": "The first record was on the other cluster after",
    "refused": "A write was refused after the fence was requested, within",
    "read": "The group had read and committed everything, and had left, after",
    "offsetMoved": "Its offset was on the other cluster after",
    "accepted": "A write was accepted after the rollback had begun, within",
    "continued": "The group had read that record on the other cluster after",
    "notWritten": "In all, no write was accepted for",
}
_REFUSED: Final = frozenset(
    state.value for state in (*FENCED, SwitchoverState.PROMOTING, SwitchoverState.ROLLING_BACK)
)
_GOOD: Final = frozenset({SwitchoverState.DONE.value, SwitchoverState.REHEARSED.value})


def switchover_page(report: Mapping[str, Any], *, written: datetime) -> str:
    """Returns *report*, that of `switchover_report`, as HTML. *written*: when it is written, with a time zone."""
    templates = Environment(
        loader=PackageLoader("mirrorflow_cli"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update({"moment": _moment, "seconds": _seconds, "count": _count})
    return templates.get_template("switchover_report.html").render(
        {
            **dict.fromkeys(_SHOWN),
            **report,
            "bars": _bars(report["states"]),
            "bar_width": BAR_WIDTH,
            "refused_states": _REFUSED,
            "is_good": report["state"] in _GOOD and _has_passed(report),
            "canary_steps": CANARY_STEPS,
            "further": {
                name: json.dumps(value, indent=2, ensure_ascii=False)
                for name, value in report.items()
                if name not in _SHOWN
            },
            "version": version(),
            "written": written.astimezone(UTC).isoformat(timespec="seconds"),
        }
    )


def _has_passed(report: Mapping[str, Any]) -> bool:
    canary = report.get("canaryApplication")
    return canary is None or bool(canary["passed"])


def _bars(states: list[Mapping[str, Any]]) -> list[tuple[str, float, float]]:
    """Returns the states that took time, each with where it begins and how wide it is, in units of the bar."""
    total_s = sum(state["seconds"] or 0.0 for state in states)
    bars, begin = [], 0.0
    for state in states:
        width = BAR_WIDTH * (state["seconds"] or 0.0) / total_s if total_s else 0.0
        if width:
            bars.append((str(state["state"]), round(begin, 2), round(width, 2)))
        begin += width
    return bars


def _moment(timestamp: str | None) -> str:
    """Returns "2026-11-29 16:04:05.123 UTC", or a dash."""
    if not timestamp:
        return UNKNOWN
    when = datetime.fromisoformat(timestamp).astimezone(UTC)
    return f"{when:%Y-%m-%d %H:%M:%S}.{when.microsecond // 1000:03d} UTC"


def _seconds(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:,.3f} s" if value < 60 else f"{value:,.0f} s"


def _count(value: float | None) -> str:
    return "unknown" if value is None else f"{value:,}"
