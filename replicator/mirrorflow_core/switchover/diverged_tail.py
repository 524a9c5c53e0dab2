"""Cuts out the diverged tail: the records of a cluster that applications have left unplanned, which never crossed to the other one.

    old side   0 ........... C ============ end      [C, end) is the tail
    new side   0 ........... C'                      C' is the copy of C; applications write from here on

C is the offset at which the forward flow ended. All offsets are those of the old side, and ends are exclusive. Nothing here
deletes anything: what is cut out is read, counted and kept somewhere else.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

from mirrorflow_core.java.json_text import integer_field, parsed_object, text_field
from mirrorflow_core.partitions import UNKNOWN, TopicPartition
from mirrorflow_core.record_digests import size_bytes
from mirrorflow_core.switchover.json_fields import decoded
from mirrorflow_core.wire.records import Header, Record

# `.internal`, so no flow selects it.
TAILS_TOPIC: Final = "mm2-diverged-tails.internal"
TAIL_HEADER: Final = b"mirrorflow.diverged"
PROGRESS_FORMAT: Final = 1
PRODUCERS_MAX: Final = 1_000  # whose ids are listed; more than write during the time of a tail
TOPIC_NAME_LENGTH_MAX: Final = 249  # of Kafka (Topic.java)


class TailState(Enum):
    """What the old side still has of a partition."""

    CUT = "Cut"  # all that was copied; the tail follows, and may be empty
    NEVER_COPIED = "NeverCopied"  # the flow has copied nothing of it, so all of it is the tail
    LOST = "Lost"  # it lacks records that were copied, and has none in their place
    REWRITTEN = "Rewritten"  # it lacks records that were copied, and has others at their offsets
    RECREATED = (
        "Recreated"  # the topic was deleted and created again, so its offsets are not those of the copy
    )
    UNDECIDED = "Undecided"  # it is not known where copying has ended
    MISSING = "Missing"  # the topic or the partition no longer exists


# Where no tail can be cut out, so a person has to compare both sides.
REFUSED: Final = frozenset({TailState.RECREATED, TailState.UNDECIDED})


class TailChoice(Enum):
    """What is written to the new side; the value is that in the progress records."""

    KEEP = "keep"  # to a topic of its own
    APPEND = "append"  # to the topic that applications use now


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedEnd:
    """Where the forward flow ended in a partition: the next source offset to copy, and the id of the source topic ("": unknown)."""

    next_offset: int
    topic_id: str = ""
    is_exact: bool = True  # False: copying had stopped before, or its writer could not be fenced


@dataclass(frozen=True, slots=True, kw_only=True)
class ReturnedLog:
    """A partition of the old side, after it was fenced.

    *same_until*: up to where it has the records that were copied, by their leader epochs; None if that is not known.
    """

    topic_id: str
    start: int
    end: int
    last_stable: int
    same_until: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DivergedTail:
    """The tail of one partition: offsets from `start` up to `end`.

    `gone` offsets at its beginning were deleted by retention. `lost` offsets before it were copied, and the old side no longer has
    their records. Offsets are not records: markers, compaction and aborted transactions leave gaps.
    """

    partition: TopicPartition
    state: TailState
    start: int = 0
    end: int = 0
    gone: int = 0
    lost: int = 0
    is_open: bool = False  # a transaction is open in it, or before it

    @property
    def is_empty(self) -> bool:
        """Whether it has no offset, so no record."""
        return self.start >= self.end


def cut_tail(partition: TopicPartition, copied: CopiedEnd | None, log: ReturnedLog | None) -> DivergedTail:
    """Returns the tail of *partition*. *copied* None: the flow has copied nothing of it; *log* None: it does not exist."""
    if log is None:
        return DivergedTail(partition=partition, state=TailState.MISSING)
    is_open = log.last_stable < log.end
    if copied is None:
        return DivergedTail(
            partition=partition,
            state=TailState.NEVER_COPIED,
            start=log.start,
            end=log.end,
            is_open=is_open,
        )
    if copied.topic_id and log.topic_id and copied.topic_id != log.topic_id:
        return DivergedTail(partition=partition, state=TailState.RECREATED)
    if not copied.is_exact:
        return DivergedTail(partition=partition, state=TailState.UNDECIDED)
    same_until = copied.next_offset if log.same_until is None else min(log.same_until, copied.next_offset)
    cut = min(same_until, log.end)
    lost = copied.next_offset - cut
    if_lost = TailState.LOST if cut == log.end else TailState.REWRITTEN
    state = if_lost if lost else TailState.CUT
    start = max(cut, log.start)
    return DivergedTail(
        partition=partition,
        state=state,
        start=start,
        end=log.end,
        gone=start - cut,
        lost=lost,
        is_open=is_open,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TailCount:
    """What is in the tail of a partition, or of several. Records are those of no transaction, and of committed ones.

    `size_bytes` is that of keys, values and headers. Times are in ms since 1970, None if no record has one. Keys are those of the
    first and the last record, in offset order.
    """

    records: int = 0
    size_bytes: int = 0
    aborted: int = 0  # records of aborted transactions, which are no tail
    first_ms: int | None = None
    last_ms: int | None = None
    first_key: bytes | None = None
    last_key: bytes | None = None
    producer_ids: frozenset[int] = frozenset()  # at most PRODUCERS_MAX

    def with_records(self, records: Iterable[Record], producer_id: int) -> "TailCount":
        """Returns the count after the records of the next batch."""
        added = list(records)
        if not added:
            return self
        times = [record.timestamp for record in added if record.timestamp >= 0]
        known = [time for time in (self.first_ms, self.last_ms) if time is not None]
        is_new = producer_id >= 0 and len(self.producer_ids) < PRODUCERS_MAX
        return replace(
            self,
            records=self.records + len(added),
            size_bytes=self.size_bytes + sum(map(size_bytes, added)),
            first_ms=min([*known, *times], default=None),
            last_ms=max([*known, *times], default=None),
            first_key=self.first_key if self.records else added[0].key,
            last_key=added[-1].key,
            producer_ids=self.producer_ids | {producer_id} if is_new else self.producer_ids,
        )

    def joined(self, other: "TailCount") -> "TailCount":
        """Returns the count of both; the keys are those of the first and the last partition."""
        if not other.records or not self.records:
            counted = self if self.records else other
            return replace(counted, aborted=self.aborted + other.aborted)
        times = [
            time for time in (self.first_ms, self.last_ms, other.first_ms, other.last_ms) if time is not None
        ]
        return TailCount(
            records=self.records + other.records,
            size_bytes=self.size_bytes + other.size_bytes,
            aborted=self.aborted + other.aborted,
            first_ms=min(times, default=None),
            last_ms=max(times, default=None),
            first_key=self.first_key,
            last_key=other.last_key,
            producer_ids=self.producer_ids | other.producer_ids,
        )


def kept_prefix(topic: str) -> str:
    """Returns what the names of all topics begin with that keep a tail of *topic*."""
    return f"{topic}.diverged."


def kept_topic(topic: str, switchover: str) -> str:
    """Returns the topic that keeps the tail of *topic*. Raises ValueError if Kafka has no such name."""
    # The id of a Switchover in Kubernetes has a slash, which no name of a topic has.
    name = kept_prefix(topic) + switchover.replace("/", ".")
    if len(name) > TOPIC_NAME_LENGTH_MAX:
        raise ValueError(f"{name} has {len(name)} characters, and Kafka allows {TOPIC_NAME_LENGTH_MAX}")
    return name


def marked(record: Record, switchover: str) -> Record:
    """Returns *record* with the header that says from which switchover's tail it is."""
    header: Header = (TAIL_HEADER, switchover.encode())
    return record._replace(headers=(*record.headers, header))


@dataclass(frozen=True, slots=True, kw_only=True)
class TailProgress:
    """How far the tail of a partition is written to the new side. It is stored in the transaction of the records that it counts.

    `partition` is that on the old side. `target_topic_id` is the topic that has the records: with a different one, they are gone.
    """

    switchover: str
    choice: TailChoice
    partition: TopicPartition
    next_offset: int  # of the old side
    records: int
    source_topic_id: str
    target_topic_id: str


def encode_progress(progress: TailProgress) -> tuple[bytes, bytes]:
    """Returns key and value of a record of `TAILS_TOPIC`, as compact JSON."""
    body = {
        "format": PROGRESS_FORMAT,
        "next_offset": progress.next_offset,
        "records": progress.records,
        "source_topic_id": progress.source_topic_id,
        "target_topic_id": progress.target_topic_id,
    }
    return _progress_key(progress.switchover, progress.choice, progress.partition), _compact(body)


def decode_progress(key: bytes, value: bytes) -> TailProgress | None:
    """Returns what `encode_progress` has encoded; None for a start. Raises ValueError if it is neither, or of a newer version."""
    identity, body = parsed_object(key), parsed_object(value)
    if integer_field(body, "format") != PROGRESS_FORMAT:
        raise ValueError("the tail was written by a newer version of MirrorFlow; use that version")
    if "start" in identity:
        return None
    partition = TopicPartition(text_field(identity, "topic"), integer_field(identity, "partition"))
    return decoded(TailProgress, {**body, **identity, "partition": partition})


def encode_start(switchover: str, choice: TailChoice, token: str) -> tuple[bytes, bytes]:
    """Returns key and value of the record with which a process begins: what is read before *token* is decided."""
    key = {"switchover": switchover, "choice": choice.value, "start": True}
    return _compact(key), _compact({"format": PROGRESS_FORMAT, "token": token})


def remaining_tail(
    tail: DivergedTail, progress: TailProgress | None, *, source_topic_id: str, target_topic_id: str
) -> tuple[int, int]:
    """Returns the first offset of *tail* that is still to be written, and how many of its records are there.

    Progress of a topic that was created again since, on either side, does not count: the records are not there.
    """
    if (
        progress is None
        or progress.source_topic_id != source_topic_id
        or progress.target_topic_id != target_topic_id
        or progress.next_offset == UNKNOWN
    ):
        return tail.start, 0
    return max(tail.start, progress.next_offset), progress.records


def _progress_key(switchover: str, choice: TailChoice, partition: TopicPartition) -> bytes:
    return _compact(
        {
            "switchover": switchover,
            "choice": choice.value,
            "topic": partition.topic,
            "partition": partition.partition,
        }
    )


def _compact(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
