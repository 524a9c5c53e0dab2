"""Decides whether the last verification of a flow is recent enough for a switchover.

`mirrorflow verify` compares both clusters of a flow while it runs. A switchover compares no more than the newest records while writes are
refused, so a pair may require that a verification has found both clusters equal not long ago.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

FIELD: Final = "spec.readiness.verifiedWithinSeconds"
NOT_REQUIRED: Final = f"{FIELD} is not set, so no verification is required"
_MINUTE_S: Final = 60
_HOUR_S: Final = 3_600
_DAY_S: Final = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class LastVerification:
    """The newest verification of a flow that has ended with a verdict on its two clusters."""

    run: str  # the id of its run, or the name of its Job
    ended_ms: int  # since 1970
    is_equal: bool  # whether everything that it compared was equal


def why_not_verified(
    flow: str, last: LastVerification | None, *, within_ms: int | None, now_ms: int, source: str
) -> str:
    """Returns why the *last* verification of *flow* does not allow a switchover, as a sentence; "": it does, or none is required.

    *source* says where a verification is looked for, for the sentence about none. The sentence does not change with *now_ms* alone, so
    that a status with it is not written again and again.
    """
    if within_ms is None:
        return ""
    within = duration_text(within_ms)
    cure = "Run one (mirrorflow verify, or spec.verify of the flow) and repeat the switchover"
    if last is None:
        return f"{FIELD}: it is unknown when a verification of flow {flow} last found both clusters equal: {source}. {cure}."
    ended = datetime.fromtimestamp(last.ended_ms / 1000, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    named = f"verification {last.run} of flow {flow} ended at {ended}"
    if not last.is_equal:
        return f"{FIELD}: {named} and has found differences. Correct them, then verify again (docs/verification.md)."
    if now_ms - last.ended_ms > within_ms:
        return f"{FIELD}: {named}, longer than {within} ago. {cure}, or raise the limit."
    return ""


def duration_text(duration_ms: int) -> str:
    """Returns a duration in its largest unit, rounded down, such as `26 h`; seconds below two minutes."""
    seconds = duration_ms // 1000
    for unit_s, name in ((_DAY_S, "d"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if seconds >= 2 * unit_s:
            return f"{seconds // unit_s} {name}"
    return f"{seconds} s"
