"""What a partition's copy must hold, and how it differs. Pure: records in, sentences out.

Most trials expect the copy to equal its source. Four kinds of trial allow more than one outcome:

- compacted topics: the latest record of each key, in the order of the log;
- an isolation level that changes: at least the committed records, at most all of them;
- a flow without its transactional ids: nothing is missing, and where a record is for the first time, it is in order;
- a source that loses records: at least those that it still has, in their order, each as often as the source has had it
  (producers send some again that it has lost); where such a loss leads to another beginning (`restart`), that is so from the
  source's first record to where the copy begins with it again.
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
    """The copy holds *least* in its order, and no other records than those of *most* in theirs; None: any, but each once.

    *again*: how much more often the source has had a record than once. *restarts*: each once in each piece that begins with
    the first of *least*. *repeats*: only where a record is for the first time counts, but for those of *again*.
    """

    least: Sequence[Mark]
    most: Sequence[Mark] | None
    again: Mapping[Mark, int] = field(default_factory=dict)
    restarts: bool = False
    repeats: bool = False


def marks(records: Sequence[Record], *, has_times: bool) -> list[Mark]:
    """What makes a record the same on both sides; without *has_times* the target replaces timestamps."""
    return [
        (record.timestamp if has_times else 0, record.key, record.value, record.headers) for record in records
    ]


def latest(found: Sequence[Mark]) -> list[Mark]:
    """What compaction leaves in the end: the last record of each key, in order."""
    last = {key: index for index, (_, key, _, _) in enumerate(found)}
    return [mark for index, mark in enumerate(found) if last[mark[1]] == index]


def difference(expected: Expected, copy: Sequence[Mark]) -> str:
    """A sentence about the first record that is missing, repeated or out of order; "" where there is none."""
    if expected.repeats and expected.restarts and expected.least:
        # Producers repeat what a source has lost: the order of the copies before may be another.
        copy = _pieces(copy, expected.least[0])[-1]
    if expected.repeats:
        copy = _first_occurrences(copy, expected.again)
    sentences = []
    if expected.most is not None:
        sentences.append(_unmatched(copy, expected.most, "not expected, or not there"))
    elif not expected.repeats:
        pieces = _pieces(copy, expected.least[0]) if expected.restarts and expected.least else [copy]
        sentences += [repetition(piece, expected.again) for piece in pieces]
    sentences.append(_unmatched(expected.least, copy, "missing, or not in its place"))
    return "; ".join(filter(None, sentences))


def repetition(copy: Sequence[Mark], again: Mapping[Mark, int]) -> str:
    """A sentence about records that the copy has more often than the source has had them; "" where there are none."""
    excess = {mark: count - 1 - again.get(mark, 0) for mark, count in Counter(copy).items() if count > 1}
    repeated = [mark for mark, count in excess.items() if count > 0]
    total = sum(excess[mark] for mark in repeated)
    return f"{total} records repeated, of them {_name(repeated[0])}" if repeated else ""


def _first_occurrences(copy: Sequence[Mark], again: Mapping[Mark, int]) -> list[Mark]:
    """*copy* without its repeats; of a record that the source has had *again*, all stay."""
    seen: set[Mark] = set()
    kept = []
    for mark in copy:
        if mark in again or mark not in seen:
            kept.append(mark)
        seen.add(mark)
    return kept


def _pieces(copy: Sequence[Mark], first: Mark) -> list[Sequence[Mark]]:
    """*copy*, cut before each *first*."""
    cuts = [0, *(index for index, mark in enumerate(copy) if mark == first and index), len(copy)]
    return [copy[begin:end] for begin, end in pairwise(cuts)]


def _unmatched(part: Sequence[Mark], whole: Sequence[Mark], what: str) -> str:
    """The first record of *part* that is not found in *whole* behind the one before it."""
    rest = iter(whole)
    for index, mark in enumerate(part):
        if mark not in rest:
            others = (Counter(part) - Counter(whole)).total()
            around = ", ".join(_name(one) for one in part[max(0, index - AROUND) : index + AROUND])
            return f"{_name(mark)} (index {index} of {len(part)}) is {what}; {others} records in all; around it: {around}"
    return ""


def _name(mark: Mark) -> str:
    timestamp, _, _, headers = mark
    return f"n={headers[0][1]!r} at {timestamp}"
