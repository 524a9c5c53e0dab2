"""Compares the copy of a partition with what it must hold, and describes the difference.

Most trials expect the copy to equal its source. Four kinds of trial allow more than one outcome:

- compacted topics: the latest record of each key, in the order of the log;
- an isolation level that changes: at least the committed records, at most all of them;
- a flow without transactional ids: no record is missing, and the first occurrences are in order. Where its isolation level
  changes, too, this holds for the committed records: after a failure it may copy again what it has copied, and then also
  the aborted records between;
- a source that loses records: at least those that it still has, in order, and each at most as often as the source has
  had it (producers send some lost records again). With the policy `restart`, this holds for each piece of the copy that
  begins with the source's first record.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from tests.harness.kafka.tools import Record

AROUND = 3  # records shown on either side of a difference

Mark = tuple[int, bytes | None, bytes | None, tuple[tuple[str, bytes | None], ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """The copy has the records of *least* in order, and only records of *most* in order.

    If *most* is None, the copy may have any record, but each only once. *rewrites* counts how often the source had a
    record in addition to the first time. With *restarts*, a record may occur once in each piece that begins with the
    first of *least*. With *repeats*, only first occurrences count, except for records of *rewrites*, and only *least*
    has an order.
    """

    least: Sequence[Mark]
    most: Sequence[Mark] | None
    rewrites: Mapping[Mark, int] = field(default_factory=dict)
    restarts: bool = False
    repeats: bool = False


def marks(records: Sequence[Record], *, has_times: bool) -> list[Mark]:
    """Returns what identifies each record on both sides.

    Without *has_times*, the target replaces timestamps.
    """
    return [
        (record.timestamp if has_times else 0, record.key, record.value, record.headers) for record in records
    ]


def latest(marks: Sequence[Mark]) -> list[Mark]:
    """Returns what compaction keeps, which is the last record of each key, in order."""
    last_index = {key: index for index, (_, key, _, _) in enumerate(marks)}
    return [mark for index, mark in enumerate(marks) if last_index[mark[1]] == index]


def difference(expected: Expected, copy: Sequence[Mark]) -> str:
    """Describes the first record that is missing, repeated or out of order. Returns "" if there is none."""
    if expected.repeats and expected.restarts and expected.least:
        # Producers send lost records again, so that earlier pieces may have a different order.
        copy = _pieces(copy, expected.least[0])[-1]
    if expected.repeats:
        copy = _first_occurrences(copy, expected.rewrites)
    sentences = []
    if expected.most is not None and expected.repeats:
        sentences.append(_foreign(copy, expected.most))
    elif expected.most is not None:
        sentences.append(_unmatched(copy, expected.most, "not expected, or not there"))
    elif not expected.repeats:
        pieces = _pieces(copy, expected.least[0]) if expected.restarts and expected.least else [copy]
        sentences += [repetition(piece, expected.rewrites) for piece in pieces]
    sentences.append(_unmatched(expected.least, copy, "missing, or not in its place"))
    return "; ".join(filter(None, sentences))


def repetition(copy: Sequence[Mark], rewrites: Mapping[Mark, int]) -> str:
    """Describes records that the copy has more often than the source had them. Returns "" if there are none."""
    excess = {mark: count - 1 - rewrites.get(mark, 0) for mark, count in Counter(copy).items() if count > 1}
    repeated = [mark for mark, count in excess.items() if count > 0]
    total = sum(excess[mark] for mark in repeated)
    return f"{total} records repeated, of them {_name(repeated[0])}" if repeated else ""


def _foreign(copy: Sequence[Mark], most: Sequence[Mark]) -> str:
    """Describes the first record of *copy* that is not in *most*. Returns "" if there is none."""
    known = set(most)
    foreign = [mark for mark in copy if mark not in known]
    return f"{len(foreign)} records are not expected, of them {_name(foreign[0])}" if foreign else ""


def _first_occurrences(copy: Sequence[Mark], rewrites: Mapping[Mark, int]) -> list[Mark]:
    """Returns *copy* without repetitions, but with every occurrence of a record in *rewrites*."""
    seen: set[Mark] = set()
    kept = []
    for mark in copy:
        if mark in rewrites or mark not in seen:
            kept.append(mark)
        seen.add(mark)
    return kept


def _pieces(copy: Sequence[Mark], first: Mark) -> list[Sequence[Mark]]:
    """Splits *copy* before each occurrence of *first*."""
    cuts = [0, *(index for index, mark in enumerate(copy) if mark == first and index), len(copy)]
    return [copy[begin:end] for begin, end in pairwise(cuts)]


def _unmatched(part: Sequence[Mark], whole: Sequence[Mark], problem: str) -> str:
    """Describes the first record of *part* that does not follow its predecessor in *whole*."""
    rest = iter(whole)
    for index, mark in enumerate(part):
        if mark not in rest:
            others = (Counter(part) - Counter(whole)).total()
            around = ", ".join(_name(mark) for mark in part[max(0, index - AROUND) : index + AROUND])
            return f"{_name(mark)} (index {index} of {len(part)}) is {problem}; {others} records in all; around it: {around}"
    return ""


def _name(mark: Mark) -> str:
    timestamp, _, _, headers = mark
    return f"n={headers[0][1]!r} at {timestamp}"
