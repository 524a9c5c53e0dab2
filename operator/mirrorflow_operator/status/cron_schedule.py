"""Computes from a cron schedule the longest interval between two runs, after which one is overdue, and the next run. Pure."""

import calendar
import datetime as dt
import functools
import itertools
import zoneinfo
from collections.abc import Callable, Sequence
from typing import Final

# The longest gap between two leap days is eight years (around 2100).
YEARS: Final = 9
_MONTHS: Final = tuple(name.lower() for name in calendar.month_abbr)
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ANY: Final = frozenset("*?")


@functools.lru_cache(maxsize=1_000)
def days_between_max(schedule: str) -> int | None:
    """Returns the maximum days between two days of *schedule* (daily or hourly: 1), or None if it is invalid."""
    fields = schedule.lower().split()
    if len(fields) != 5:
        return None
    try:
        runs_on = _days_of(*fields[2:])
    except ValueError:
        return None
    first = dt.date(2096, 1, 1)  # so that the range includes 2100, which has no leap day
    days = [
        number
        for number in range(366 * YEARS)
        for day in (first + dt.timedelta(days=number),)
        if runs_on(day)
    ]
    gaps = [later - earlier for earlier, later in itertools.pairwise(days)]
    return max(gaps, default=None)


def next_time_s(schedule: str, time_zone: str, now_s: float) -> float | None:
    """Returns the first time of *schedule* after *now_s*, in seconds since 1970.

    None if the schedule is empty or invalid, or the time zone is unknown here. Times that a change of the clock skips or
    repeats are as Python maps them, and may differ from those of Kubernetes by that change.
    """
    fields = schedule.lower().split()
    try:
        zone = zoneinfo.ZoneInfo(time_zone)
        minute, hour, *of_days = fields
        runs_on = _days_of(*of_days)
        times = sorted(
            dt.time(hour=at_hour, minute=at_minute, tzinfo=zone)
            for at_hour in _values(hour, 0, 23, ())
            for at_minute in _values(minute, 0, 59, ())
        )
    except (ValueError, TypeError, OSError, zoneinfo.ZoneInfoNotFoundError):
        return None  # OSError: the name is that of a folder, such as Europe
    today = dt.datetime.fromtimestamp(now_s, tz=zone).date()
    days = (today + dt.timedelta(days=number) for number in range(366 * YEARS))
    moments = (dt.datetime.combine(day, time).timestamp() for day in days if runs_on(day) for time in times)
    return next((moment for moment in moments if moment > now_s), None)


def _days_of(of_month: str, month: str, of_week: str) -> Callable[[dt.date], bool]:
    """Returns whether a day matches these fields of a schedule. Raises ValueError where one is invalid."""
    months = _values(month, 1, 12, _MONTHS)
    dates = _values(of_month, 1, 31, ())
    weekdays = _values(of_week, 0, 6, _DAYS)
    # The rule of cron: if both fields restrict days, matching one of them is enough.
    either = of_month[0] not in _ANY and of_week[0] not in _ANY

    def matches(day: dt.date) -> bool:
        if day.month not in months:
            return False
        is_date, is_weekday = day.day in dates, day.isoweekday() % 7 in weekdays
        return is_date or is_weekday if either else is_date and is_weekday

    return matches


def _values(field: str, minimum: int, maximum: int, names: Sequence[str]) -> frozenset[int]:
    """Returns the values of a cron field. Raises ValueError where it is invalid."""
    values: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        if span in _ANY:
            low, high = minimum, maximum
        else:
            begin, dash, end = span.partition("-")
            low = _number(begin, names)
            high = _number(end, names) if dash else (maximum if step else low)
        if not minimum <= low <= high <= maximum:
            raise ValueError(field)
        every = int(step) if step else 1
        if every < 1:
            raise ValueError(field)
        values.update(range(low, high + 1, every))
    return frozenset(values)


def _number(text: str, names: Sequence[str]) -> int:
    return names.index(text) if text in names else int(text)
