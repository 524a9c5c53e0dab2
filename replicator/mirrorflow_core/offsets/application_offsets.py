"""Translates offsets that applications keep outside Kafka (in savepoints, tables, files) to the other cluster of a flow.

Such an offset is that of the next record to read, as a committed offset is. The translated offset never lies after a record that
the application has yet to read; if it is a bound, the application reads again at most the given number of records. Where neither
is certain, there is no offset but a reason. Both directions use the same rules: *origin* is the cluster of the given offset,
*destination* the other one.

No I/O: `connectors.application_offsets` collects the facts, `offset_list_formats` reads and writes lists of offsets.
"""

from typing import Final, NamedTuple

from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.offsets.offset_map import MappedOffset, Run
from mirrorflow_core.partitions import TopicPartition

NOTHING_KNOWN: Final = "the flow knows no offsets of this partition: it does not exist, or nothing of it is copied and stored yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationOffset:
    """The offset of the next record that an application reads of a partition."""

    topic: str
    partition: int
    offset: int


class LogRange(NamedTuple):
    """The offsets of a partition's log: its first one, and the one after its last."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslationFacts:
    """The facts about a partition of which an offset is translated."""

    origin: str  # alias of the cluster
    destination: str  # alias of the cluster
    partition: TopicPartition | None  # on the destination; None: unknown
    problem: str | None = None  # a clause why no offset of it can be translated; None if offsets can
    origin_log: LogRange | None = None  # None: it cannot be read, so the offset is not compared with it
    destination_log: LogRange | None = None  # None: it cannot be read
    extent: Run | None = None  # the known ranges, origin first; None: no offset is known


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationTranslation:
    """An offset on the destination, which never lies after an unread record; `offset` None: unknown."""

    topic: str | None  # on the destination; None: unknown
    partition: int
    offset: int | None
    is_exact: bool = False  # skips nothing and reads nothing again
    reread_max_records: int | None = None  # None if `offset` is
    why: str | None = None  # a clause why it is not exact; None if it is

    @property
    def translation(self) -> str:
        """The precision of the translation: exact, bound or unknown."""
        if self.offset is None:
            return "unknown"
        return "exact" if self.is_exact else "bound"


class _Bound(NamedTuple):
    at_least: int
    reread_max_records: int
    why: str | None  # None: exact


def translate_offset(
    given: ApplicationOffset, mapped: MappedOffset | None, facts: TranslationFacts
) -> ApplicationTranslation:
    """Returns the offset on the destination. *mapped*: the translation by offset map and offset syncs."""
    log, destination_log, extent = facts.origin_log, facts.destination_log, facts.extent
    if facts.problem is not None:
        return _unknown(given, facts, facts.problem)
    if log is not None and given.offset > log.end:
        return _unknown(given, facts, f"the log of {facts.origin} ends at {log.end}, before this offset")
    if extent is None:
        return _unknown(given, facts, NOTHING_KNOWN)
    if destination_log is None:
        return _unknown(given, facts, f"the log of {facts.destination} cannot be read")
    bound = _bound(given.offset, mapped, extent, facts, destination_log.start)
    if bound.at_least > destination_log.end:
        why = (
            f"the log of {facts.destination} ends at {destination_log.end}, before the translated offset "
            f"{bound.at_least}: it has lost records"
        )
        return _unknown(given, facts, why)
    return ApplicationTranslation(
        topic=None if facts.partition is None else facts.partition.topic,
        partition=given.partition,
        offset=bound.at_least,
        is_exact=bound.why is None,
        reread_max_records=bound.reread_max_records,
        why=bound.why,
    )


def _bound(
    offset: int, mapped: MappedOffset | None, extent: Run, facts: TranslationFacts, start: int
) -> _Bound:
    """Returns the translation, not before the destination's log, which begins at *start*."""
    if mapped is not None and mapped.at_most is not None:
        at_least, reread = mapped.at_least, mapped.at_most - mapped.at_least
        why = "the flow knows only offsets before and after this one" if reread else None
    elif mapped is None and offset <= extent.upstream < extent.upstream_end:
        at_least, reread = min(start, extent.downstream), max(0, extent.downstream - start)
        is_first = facts.origin_log is not None and extent.upstream <= facts.origin_log.start
        why = f"the flow knows offsets of {facts.origin} only from {extent.upstream} on, so this is the beginning of the log"
        why = None if is_first and not reread else why
    else:
        at_least = extent.downstream_end if mapped is None else mapped.at_least
        reread = max(0, offset - extent.upstream_end)
        why = f"the flow knows offsets of {facts.origin} only up to {extent.upstream_end}" if reread else None
    if at_least < start:
        why = f"the log of {facts.destination} begins at {start}, earlier records are deleted"
        at_least, reread = start, max(0, at_least + reread - start)
    return _Bound(at_least, reread, why)


def _unknown(given: ApplicationOffset, facts: TranslationFacts, why: str) -> ApplicationTranslation:
    topic = None if facts.partition is None else facts.partition.topic
    return ApplicationTranslation(topic=topic, partition=given.partition, offset=None, why=why)
