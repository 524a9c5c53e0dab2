"""Reads from the status of a MirrorFlow what its time line shows: its runs, and the images of its workloads. Pure.

A run is a seed, a verification, a restore or a restart; the status has the last one of each kind. Exports into an archive
are left out: they may run every minute, and the condition Archived changes when one fails.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from mirrorflow_console.field_kinds import NAME_MAX, TEXT_MAX

# By the name of the field in the status.
RUN_KINDS: Final[Mapping[str, str]] = {
    "seed": "seed",
    "verify": "verification",
    "restore": "restore",
    "restart": "restart",
}
CONNECTORS: Final = ("source", "checkpoint", "heartbeat", "schemas")


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRun:
    """The last run of one kind; `began_s` and `ended_s` are seconds since 1970, None if the status does not have them."""

    kind: str
    run_id: str
    phase: str
    began_s: float | None = None
    ended_s: float | None = None
    message: str = ""
    wave: int = 0  # of a seed
    lost: int = 0  # partitions of a seed or a restore
    differing: int = 0  # windows of a verification

    @property
    def name(self) -> str:
        """The kind, with the id where there is one."""
        return f"{self.kind} {self.run_id}" if self.run_id else self.kind

    def is_same_run(self, other: "FlowRun") -> bool:
        """Whether both describe one run; a status has its beginning some time after its id."""
        return self.run_id == other.run_id and (
            self.began_s == other.began_s or None in {self.began_s, other.began_s}
        )


def runs_of(status: Mapping[str, Any] | None) -> tuple[FlowRun, ...]:
    """Returns the runs in *status*, of each kind the last one."""
    return tuple(_runs(status or {}))


def _runs(status: Mapping[str, Any]) -> Iterator[FlowRun]:
    for field, kind in RUN_KINDS.items():
        run = status.get(field)
        if not isinstance(run, dict) or not run.get("phase"):
            continue
        partitions, windows = _counts(run.get("partitions")), _counts(run.get("windows"))
        yield FlowRun(
            kind=kind,
            run_id=_text(run.get("runId"), NAME_MAX),
            phase=_text(run.get("phase"), NAME_MAX),
            began_s=seconds_of(run.get("startTime")),
            ended_s=seconds_of(run.get("completionTime")),
            message=_text(run.get("message"), TEXT_MAX),
            wave=_count(run.get("wave")),
            lost=_count(partitions.get("lost")),
            differing=_count(windows.get("different")) + _count(windows.get("reordered")),
        )


def images_of(status: Mapping[str, Any] | None) -> tuple[tuple[str, str], ...]:
    """Returns the connectors in *status* whose workloads exist, each with its image."""
    connectors = (status or {}).get("connectors")
    given = connectors if isinstance(connectors, dict) else {}
    images = (
        (name, _text(given[name].get("image"), NAME_MAX))
        for name in CONNECTORS
        if isinstance(given.get(name), dict)
    )
    return tuple((name, image) for name, image in images if image)


def seconds_of(time: Any) -> float | None:
    """Returns a time of a status in seconds since 1970; None if it is none."""
    try:
        when = datetime.fromisoformat(time) if isinstance(time, str) else None
        return None if when is None or when.tzinfo is None else when.timestamp()
    except (ValueError, OverflowError):
        return None


def _text(value: Any, length_max: int) -> str:
    return value[:length_max] if isinstance(value, str) else ""


def _counts(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _count(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0
