"""Decides whether applications have read what they have written while they were moved between two clusters.

Planned: every acknowledged record is read exactly once, in the order in which its producer has sent it. A record whose
producer received an error is not acknowledged. It may be in the log or not, and the application writes its number
again, as another attempt.

Unplanned: every acknowledged record is in the log of the new side or in the kept tail, and none is in both. The group
reads each record of the log. After such a move, the group begins at an earlier offset, and may read each record once
more. Between two such moves, the rules of planned moves apply.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tests.harness.kafka.pair_clients import Attempt, Outcome, ReadRecord

SHOWN = 5

Written = Mapping[str, Sequence[Attempt]]
AttemptKey = tuple[str, int]  # pair of producer and attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class UnplannedMove:
    """A move to the member *to* that began at *began_ms*, while applications still used the other member."""

    to: str
    began_ms: int


def keys_of(reads: Sequence[ReadRecord]) -> set[AttemptKey]:
    return {(read.producer, read.attempt) for read in reads}


def sections(reads: Sequence[ReadRecord], moves: Sequence[UnplannedMove]) -> list[list[ReadRecord]]:
    """Splits the records that a group has read at the points where it began to read after each of *moves*."""
    parts: list[list[ReadRecord]] = [[]]
    for read in reads:
        if len(parts) <= len(moves):
            move = moves[len(parts) - 1]
            if read.member == move.to and read.time_ms >= move.began_ms:
                parts.append([])
        parts[-1].append(read)
    return parts


def group_problems(
    written: Written,
    reads: Sequence[ReadRecord],
    *,
    of: str,
    moves: Sequence[UnplannedMove] = (),
    kept: Collection[AttemptKey] = (),
) -> list[str]:
    """Returns a sentence for each kind of defect in the records that a group has read.

    It need not have read the *kept* tails.
    """
    problems = []
    parts = sections(reads, moves)
    for number, part in enumerate(parts):
        after = f" after unplanned move {number}" if number else ""
        counts = Counter((read.producer, read.attempt) for read in part)
        known = _known(written)
        if repeated := sorted(key for key, count in counts.items() if count > 1):
            problems.append(_sentence(f"{of}{after}", "records repeated", repeated, known))
        if len(parts) > 1 and (swapped := _out_of_order(part)):
            problems.append(_sentence(f"{of}{after}", "records out of order", swapped, known))
    first_reads: dict[AttemptKey, ReadRecord] = {}
    for read in reads:
        first_reads.setdefault((read.producer, read.attempt), read)
    return problems + problems_of(written, list(first_reads.values()), of=of, elsewhere=kept)


def problems_of(
    written: Written, reads: Sequence[ReadRecord], *, of: str, elsewhere: Collection[AttemptKey] = ()
) -> list[str]:
    """Returns a sentence for each kind of defect in *reads*, the records that *of* has, by partition in their order.

    *written* has the attempts of each producer, by its name and in the order of their sending. The records in
    *elsewhere* may be missing here.
    """
    counts = Counter((read.producer, read.attempt) for read in reads)
    known = _known(written)
    acknowledged = {key for key, attempt in known.items() if attempt.outcome is Outcome.ACKNOWLEDGED}
    aborted = {key for key, attempt in known.items() if attempt.outcome is Outcome.ABORTED}
    problems = {
        "acknowledged records missing": sorted(acknowledged - counts.keys() - set(elsewhere)),
        "records repeated": sorted(key for key, count in counts.items() if count > 1),
        "aborted records present": sorted(aborted & counts.keys()),
        "records that no producer has sent": sorted(counts.keys() - known.keys()),
        "records in another partition than acknowledged": sorted(
            (read.producer, read.attempt)
            for read in reads
            if (attempt := known.get((read.producer, read.attempt))) is not None
            and attempt.partition not in {-1, read.partition}
        ),
        "records out of order": _out_of_order(reads),
    }
    return [_sentence(of, what, keys, known) for what, keys in problems.items() if keys]


def side_problems(
    written: Written, log: Sequence[ReadRecord], kept: Sequence[ReadRecord], *, of: str
) -> list[str]:
    """Returns the defects of the *log* of a member, and of the tails of the other member that are *kept* there."""
    log_keys, kept_keys = keys_of(log), keys_of(kept)
    problems = problems_of(written, log, of=f"the log of {of}", elsewhere=kept_keys)
    problems += problems_of(
        written, kept, of=f"the tail kept on {of}", elsewhere=_known(written).keys() - kept_keys
    )
    if both := sorted(log_keys & kept_keys):
        problems.append(_sentence(of, "records both in the log and in a kept tail", both, _known(written)))
    return problems


def _known(written: Written) -> dict[AttemptKey, Attempt]:
    return {
        (name, index): attempt for name, attempts in written.items() for index, attempt in enumerate(attempts)
    }


def _out_of_order(reads: Sequence[ReadRecord]) -> list[AttemptKey]:
    """Returns records that follow a later record of the same producer in their partition, or with their key."""
    out: dict[AttemptKey, None] = {}
    for name in ("partition", "key"):
        orders: dict[tuple[str, object], list[int]] = {}
        for read in reads:
            orders.setdefault((read.producer, getattr(read, name)), []).append(read.attempt)
        for (producer, _), attempts in orders.items():
            out |= {(producer, after): None for before, after in pairwise(attempts) if after < before}
    return sorted(out)


def _sentence(of: str, what: str, keys: Sequence[AttemptKey], known: Mapping[AttemptKey, Attempt]) -> str:
    shown = ", ".join(_name(key, known.get(key)) for key in keys[:SHOWN])
    rest = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return f"{of}: {len(keys)} {what}: {shown}{rest}"


def _name(key: AttemptKey, attempt: Attempt | None) -> str:
    producer, index = key
    if attempt is None:
        return f"{producer} #{index}"
    place = f" at {attempt.partition}:{attempt.offset}" if attempt.partition >= 0 else ""
    return f"{producer} #{index} ({attempt.outcome.value} by {attempt.member}{place})"


def difference(east: Sequence[ReadRecord], west: Sequence[ReadRecord]) -> str:
    """Describes where the logs of both clusters, by partition in their order, first differ.

    Returns "" if they are equal.
    """
    partitions = {record.partition for record in (*east, *west)}
    for partition in sorted(partitions):
        sides = [
            [
                (record.producer, record.attempt, record.key)
                for record in side
                if record.partition == partition
            ]
            for side in (east, west)
        ]
        if sides[0] == sides[1]:
            continue
        index = next(
            (index for index, (left, other) in enumerate(zip(*sides, strict=False)) if left != other),
            min(len(side) for side in sides),
        )
        around = [side[max(0, index - 1) : index + 2] for side in sides]
        return f"partition {partition} differs from record {index} on: {len(sides[0])} on east, {around[0]}; {len(sides[1])} on west, {around[1]}"
    return ""


def journal_problems(status: Mapping[str, object], *, active: str, passive: str) -> list[str]:
    """Returns what is wrong with `mirrorflow switchover status --json` after the applications have moved to *active*."""
    newest, fences = status.get("newest"), status.get("fences")
    state = newest.get("state") if isinstance(newest, Mapping) else None
    fences = fences if isinstance(fences, Mapping) else {}
    problems = []
    if state != "Done":
        problems.append(f"the newest switchover of the journal is in state {state}")
    if status.get("active") != active:
        problems.append(f"the journal's active member is {status.get('active')}, not {active}")
    if fences.get(active) != "absent" or fences.get(passive) in {"absent", None}:
        problems.append(f"the journal's fences are {dict(fences)}, and applications write to {active}")
    return problems


def fence_problems(denied: Mapping[str, int], *, active: str, passive: str) -> list[str]:
    """Returns what is wrong with the number of DENY ACLs on each cluster."""
    problems = []
    if denied[active]:
        problems.append(f"{denied[active]} DENY ACLs are left on {active}, the active member")
    if not denied[passive]:
        problems.append(f"nothing keeps applications from writing to {passive}, which was left")
    return problems
