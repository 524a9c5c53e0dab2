"""Computes the longest interval, in days, between consecutive runs of a cron schedule: then a verification is overdue. Pure."""

import calendar
import datetime as dt
import functools
import itertools
from collections.abc import Sequence
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
    _, _, of_month, month, of_week = fields
    try:
        months = _values(month, 1, 12, _MONTHS)
        dates = _values(of_month, 1, 31, ())
        weekdays = _values(of_week, 0, 6, _DAYS)
    except ValueError:
        return None
    # The rule of cron: if both fields restrict days, matching one of them is enough.
    either = of_month[0] not in _ANY and of_week[0] not in _ANY
    first = dt.date(2096, 1, 1)  # so that the range includes 2100, which has no leap day
    days = [
        number
        for number in range(366 * YEARS)
        for day in (first + dt.timedelta(days=number),)
        if day.month in months
        and (
            (day.day in dates or day.isoweekday() % 7 in weekdays)
            if either
            else (day.day in dates and day.isoweekday() % 7 in weekdays)
        )
    ]
    gaps = [later - earlier for earlier, later in itertools.pairwise(days)]
    return max(gaps, default=None)


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
