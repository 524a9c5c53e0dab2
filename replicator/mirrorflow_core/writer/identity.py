"""Records of a flow's identity topic: holds of retention (`mirrorflow_core.retention_hold`), and what earlier releases decided.

The topic `mm2-identity.<source>.internal` on the target has one partition, is never compacted and never expires. The
first record of a key binds. `Decisions` applies the records in order and does no I/O.

Earlier releases numbered the records of a flow: a *generation* is one definition of what is copied, with producer id
and epoch; an *anchor* says which source offset has which ordinal in it. Behind a known record, the last sequence number
in the target says how many more were written, and the source which offset follows: there one owner continues the flow.
"""

import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from mirrorflow_core.partitions import UNKNOWN, OffsetPair, Position, TopicPartition
from mirrorflow_core.retention_hold import Hold, Holds, RetentionLease
from mirrorflow_core.writer.transaction_log import SEQUENCES, LogBatch, Marker

LAST_EPOCH: Final = 2**15 - 1


def identity_topic(source_alias: str) -> str:
    """Returns the name of the identity topic; always with ".", like the worker's internal topics of MM2."""
    return f"mm2-identity.{source_alias}.internal"


def transactional_id(source_alias: str) -> str:
    """Returns the flow's transactional id; with ACLs it needs Write and Describe."""
    return f"mirrorflow.{source_alias}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One generation of the flow."""

    generation: int
    producer_id: int
    producer_epoch: int
    transactional_id: str  # "": not authorized, so no fencing and no shared transaction
    source_cluster_id: str
    target_cluster_id: str
    policy: str
    flow: str
    stream: str
    why: str  # what made this generation: "begin", "isolation.level", "java", ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """The record at `source_offset` has `ordinal`; `target_offset` was the target's end offset then."""

    generation: int
    topic: str
    partition: int
    step: int
    ordinal: int
    source_offset: int
    target_offset: int
    source_topic_id: str
    target_topic_id: str
    why: str

    def as_pair(self) -> OffsetPair:
        """Returns the pair just before the anchor's first record."""
        return OffsetPair(
            source_offset=self.source_offset - 1,
            ordinal=self.ordinal - 1,
            target_offset=self.target_offset - 1,
        )


Proposal = Identity | Anchor | Hold | RetentionLease
_Kind = type[Identity] | type[Anchor] | type[Hold] | type[RetentionLease]
_KINDS: dict[str, _Kind] = {
    "identity": Identity,
    "anchor": Anchor,
    "hold": Hold,
    "lease": RetentionLease,
}
_NAMES: dict[type, tuple[str, list[str]]] = {
    Identity: ("identity", ["generation"]),
    Anchor: ("anchor", ["generation", "topic", "partition", "step"]),
    Hold: ("hold", ["holder", "topic"]),
    RetentionLease: ("lease", ["holder"]),
}


def encode(proposal: Proposal) -> tuple[bytes, bytes]:
    """Returns key and value of the proposal's record, as compact JSON."""
    body = asdict(proposal)
    kind, names = _NAMES[type(proposal)]
    key = {"type": kind} | {name: body.pop(name) for name in names}
    return _dump(key), _dump(body)


def decode(key: bytes, value: bytes) -> Proposal | None:
    """Returns the proposal in a record; None if it cannot be read, as when a later version wrote it."""
    try:
        head: dict[str, Any] = json.loads(key)
        kind: _Kind = _KINDS[head.pop("type")]
        names = {field.name for field in fields(kind)}
        return kind(**{name: item for name, item in (head | json.loads(value)).items() if name in names})
    except (ValueError, TypeError, KeyError, AttributeError):
        return None


def _dump(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


class Decisions:
    """The decisions in the records read so far. The first record of a key wins."""

    def __init__(self) -> None:
        self._identities: dict[int, Identity] = {}
        self._anchors: dict[TopicPartition, dict[tuple[int, int], Anchor]] = {}
        self.holds = Holds()

    def read(self, proposal: Proposal, now_s: float) -> None:
        """Applies the next record of the topic, which was read at *now_s* (monotonic clock)."""
        if isinstance(proposal, Hold | RetentionLease):
            self.holds.take(proposal, now_s)
            return
        if isinstance(proposal, Identity):
            self._identities.setdefault(proposal.generation, proposal)
            return
        of_partition = self._anchors.setdefault(TopicPartition(proposal.topic, proposal.partition), {})
        of_partition.setdefault((proposal.generation, proposal.step), proposal)

    @property
    def identity(self) -> Identity | None:
        """The identity of the newest generation, or None."""
        return self._identities[max(self._identities)] if self._identities else None

    @property
    def last_generation(self) -> int:
        """The newest generation with any decision, else 0. Retention may have removed its identity."""
        anchors = (number for of_partition in self._anchors.values() for number, _ in of_partition)
        return max((*self._identities, *anchors), default=0)

    def generation(self, number: int) -> Identity | None:
        """Returns the identity of generation *number*, or None."""
        return self._identities.get(number)

    def anchor(self, partition: TopicPartition, generation: int) -> Anchor | None:
        """Returns the anchor of the newest step of *partition* in *generation*, or None."""
        steps = [a for (g, _), a in self._anchors.get(partition, {}).items() if g == generation]
        return max(steps, key=lambda anchor: anchor.step, default=None)

    def newest_anchor(self, partition: TopicPartition, generation: int) -> Anchor | None:
        """Returns the anchor from the newest generation up to *generation* that has one, or None."""
        found = (self.anchor(partition, number) for number in range(generation, 0, -1))
        return next((anchor for anchor in found if anchor is not None), None)

    def partitions(self) -> tuple[TopicPartition, ...]:
        """Returns every partition that has an anchor."""
        return tuple(self._anchors)


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedRecord:
    """The last record of a partition that is known to be in the target, with its ordinal in a generation.

    `is_last`: its copier has stopped, and nothing was written behind it.
    """

    source_offset: int
    source_epoch: int
    ordinal: int
    target_offset: int
    generation: int
    is_last: bool


def last_known(
    positions: Mapping[TopicPartition, Position], foreign: Container[TopicPartition], decisions: Decisions
) -> dict[TopicPartition, NumberedRecord]:
    """Returns the last known record of each partition whose newest position an earlier release has stored, or none.

    *foreign* are partitions with a position of an owner or of Java, or whose position was altered: these are obeyed.
    """
    found: dict[TopicPartition, NumberedRecord] = {}
    for partition in {*positions, *decisions.partitions()}:
        position = positions.get(partition)
        if partition in foreign or (position is not None and position.sequence == UNKNOWN):
            continue
        anchor = decisions.newest_anchor(partition, decisions.last_generation)
        if position is not None and (
            anchor is None or (position.epoch, position.sequence) >= (anchor.generation, anchor.ordinal - 1)
        ):
            found[partition] = NumberedRecord(
                source_offset=position.source_offset,
                source_epoch=position.source_epoch,
                ordinal=position.sequence,
                target_offset=position.target_offset,
                generation=position.epoch,
                is_last=position.left,
            )
        elif anchor is not None:
            pair = anchor.as_pair()
            found[partition] = NumberedRecord(
                source_offset=pair.source_offset,
                source_epoch=UNKNOWN,
                ordinal=pair.ordinal,
                target_offset=pair.target_offset,
                generation=anchor.generation,
                is_last=False,
            )
    return found


def records_behind(known: NumberedRecord, batches: Iterable[LogBatch], producer: tuple[int, int]) -> int:
    """Returns how many records *producer* has written in *batches*, behind the known one, without aborted ones."""
    last = committed = known.ordinal % SEQUENCES
    for batch in batches:
        if batch.marker is not None:
            if batch.producer_id == producer[0]:
                last = committed = committed if batch.marker is Marker.ABORT else last
        elif (batch.producer_id, batch.producer_epoch) == producer:
            last = batch.last_sequence
            if not batch.is_transactional:
                committed = last
    return (last - known.ordinal) % SEQUENCES
