"""Forecasts when a flow will have caught up, from the lag of the last minutes. Pure.

A lag of records shrinks at a rate that varies, so the forecast is a range: the lag divided by the greatest and by the least
rate of three windows. Where the lag grew in one of them there is no latest time.

"Not at this rate" begins and ends only with a clear trend: the two shorter windows agree, and the third one agrees or the lag
would double, or be gone, within an hour. A flow that copies as fast as its source grows would otherwise change its forecast at
each poll.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from mirrorflow_replicator.http.progress_text import duration

# The target keeps up: records are in flight, and none waits. As the status' range "<10s".
KEEPING_UP_S: Final = 10.0
WINDOWS_S: Final = (60.0, 180.0, 600.0)
DECISIVE: Final = 2  # windows that must agree before "not at this rate" begins or ends
CLEAR_S: Final = 3_600.0  # a lag that doubles or ends within this time has a clear trend
SPAN_MIN_S: Final = 20.0  # four polls; a shorter span forecasts the noise of one of them
FORECAST_MAX_S: Final = 30 * 86_400.0  # a month: no more than "not at this rate"


class LagSample(NamedTuple):
    """The lag at one moment. None: unknown."""

    at_s: float
    records: int | None
    seconds: float | None
    records_per_s: float
    bytes_per_s: float


class Outlook(Enum):
    """What is known about the time at which a flow will have caught up."""

    CAUGHT_UP = "caught up"
    KEEPING_UP = "keeping up"
    ESTIMATE = "estimate"
    NOT_AT_THIS_RATE = "not at this rate"
    HELD_UP = "not while partitions are stopped"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The forecast; seconds from now are set for an estimate only. *most_s* None: there is no latest time."""

    outlook: Outlook
    least_s: float | None = None
    most_s: float | None = None

    @property
    def text(self) -> str:
        """The forecast as part of a sentence."""
        if self.outlook is not Outlook.ESTIMATE or self.least_s is None:
            return self.outlook.value
        if self.most_s is None:
            return f"in {duration(self.least_s)} or later"
        least, most = duration(self.least_s), duration(self.most_s)
        return f"in {least}" if least == most else f"in {least} to {most}"


UNKNOWN: Final = Forecast(outlook=Outlook.UNKNOWN)
HELD_UP: Final = Forecast(outlook=Outlook.HELD_UP)


def forecast(samples: Sequence[LagSample], *, was: Outlook = Outlook.UNKNOWN) -> Forecast:
    """Returns the forecast from *samples*, oldest first, of which the last is the current lag. *was*: the outlook before."""
    if not samples or samples[-1].records is None:
        return UNKNOWN
    now = samples[-1]
    lag = now.records or 0
    if not lag:
        return Forecast(outlook=Outlook.CAUGHT_UP)
    if now.seconds is not None and now.seconds < KEEPING_UP_S:
        return Forecast(outlook=Outlook.KEEPING_UP)
    rates = [rate for window_s in WINDOWS_S if (rate := _shrinks_by(samples, window_s)) is not None]
    if not rates:
        return UNKNOWN
    if not _is_shrinking(rates, lag, was):
        return Forecast(outlook=Outlook.NOT_AT_THIS_RATE)
    most = None if min(rates) <= 0 else lag / min(rates)
    return Forecast(outlook=Outlook.ESTIMATE, least_s=lag / max(rates), most_s=most)


def _is_shrinking(rates: Sequence[float], lag: int, was: Outlook) -> bool:
    """Whether a lag that shrinks by *rates*, that of the newest window first, becomes less; without a clear trend it is as before."""
    shrinks = [rate > lag / FORECAST_MAX_S for rate in rates]
    is_fast = all(abs(rate) * CLEAR_S >= lag for rate in rates[:DECISIVE])
    if len({*(shrinks[:DECISIVE] if is_fast else shrinks)}) == 1:
        return shrinks[0]
    return any(shrinks[:DECISIVE]) if was is Outlook.UNKNOWN else was is not Outlook.NOT_AT_THIS_RATE


def _shrinks_by(samples: Sequence[LagSample], window_s: float) -> float | None:
    """Returns by how many records a second the lag became less in the last *window_s*; None if too little is known."""
    now = samples[-1]
    since = next(
        (sample for sample in samples if sample.records is not None and sample.at_s >= now.at_s - window_s),
        now,
    )
    span_s = now.at_s - since.at_s
    if span_s < SPAN_MIN_S or since.records is None or now.records is None:
        return None
    return (since.records - now.records) / span_s
