"""Records and rules of the identity topic, where copiers of a flow agree on identity and anchors.

The topic `mm2-identity.<source>.internal` on the target has one partition, is never compacted and never
expires. To decide something, a copier appends a proposal and reads to the end: the first proposal for a key
binds all copiers, including its author (docs/exactly-once.md, clause 1). `Decisions` applies the records in
order and does no I/O.

A *generation* is one definition of the stream: producer id and epoch, both cluster ids, naming, flow,
isolation level. An *anchor* decides which source offset has ordinal 0 in a generation, or a later ordinal at
a later step (after a loss).
"""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from mirrorflow_core.exactly_once.alignment import OffsetPair
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.topics.retention_hold import Hold, Holds, RetentionLease

UNTOLD: Final = -2  # written by a version without this field
# Producer ids are unique within one cluster only. A client that moves here from another cluster with the same
# id has a low epoch, so it is refused. If our epoch were as low, it could write our next sequence number
# (shown with Kafka 3.9.1, 4.3.1).
FIRST_EPOCH: Final = 16
LAST_EPOCH: Final = 2**15 - 1


def identity_topic(source_alias: str) -> str:
    """Return the name of the identity topic; always with ".", like the worker's internal topics of MM2."""
    return f"mm2-identity.{source_alias}.internal"


def transactional_id(source_alias: str) -> str:
    """Return the flow's transactional id; with ACLs it needs Write and Describe."""
    return f"mirrorflow.{source_alias}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One generation of the flow.

    `stream` is the definition of the stream as text; a changed definition needs a new generation.
    """

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

    def can_fence(self, earlier: "Identity") -> bool:
        """Return whether an empty transaction with this identity makes leaders refuse writes of *earlier*."""
        return bool(self.transactional_id) and self.producer_id == earlier.producer_id


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
    # Offset, in the offsets topic, of the newest foreign entry known at that decision (`altered_offsets`);
    # -1: none.
    seen_at: int = UNTOLD

    def as_pair(self) -> OffsetPair:
        """Return the pair just before the anchor's first record."""
        return OffsetPair(
            source_offset=self.source_offset - 1,
            ordinal=self.ordinal - 1,
            target_offset=self.target_offset - 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """A requested start offset of `partition` in a generation, whatever was copied before (clause 9).

    It comes from a user, or from the plan of a bulk job, which may reach a partition only hours later.
    `source_offset` is the first to be copied; -1: where a partition starts that was never copied.
    `source_topic_id` "": any topic with this name.
    """

    generation: int
    topic: str
    partition: int
    source_offset: int
    why: str
    source_topic_id: str = ""


Proposal = Identity | Anchor | Beginning | Hold | RetentionLease
_Kind = type[Identity] | type[Anchor] | type[Beginning] | type[Hold] | type[RetentionLease]
_KINDS: dict[str, _Kind] = {
    "identity": Identity,
    "anchor": Anchor,
    "beginning": Beginning,
    "hold": Hold,
    "lease": RetentionLease,
}
_NAMES: dict[type, tuple[str, list[str]]] = {
    Identity: ("identity", ["generation"]),
    Anchor: ("anchor", ["generation", "topic", "partition", "step"]),
    Beginning: ("beginning", ["generation", "topic", "partition"]),
    Hold: ("hold", ["holder", "topic"]),
    RetentionLease: ("lease", ["holder"]),
}


def encode(proposal: Proposal) -> tuple[bytes, bytes]:
    """Return key and value of the proposal's record, as compact JSON."""
    body = asdict(proposal)
    kind, names = _NAMES[type(proposal)]
    key = {"type": kind} | {name: body.pop(name) for name in names}
    return _dump(key), _dump(body)


def decode(key: bytes, value: bytes) -> Proposal | None:
    """Return the proposal in a record; None if it cannot be read, as when a later version wrote it."""
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
        self._decided_ms: dict[int, int] = {}  # by generation
        self._anchors: dict[TopicPartition, dict[tuple[int, int], Anchor]] = {}
        self._beginnings: dict[TopicPartition, dict[int, Beginning]] = {}
        self.holds = Holds()  # no part of a stream; they are here because all copiers read this topic

    def read(self, proposal: Proposal, at_ms: int = -1) -> None:
        """Apply the next record of the topic, with its timestamp *at_ms*."""
        if isinstance(proposal, Hold | RetentionLease):
            self.holds.take(proposal)
            return
        if isinstance(proposal, Identity):
            self._identities.setdefault(proposal.generation, proposal)
            self._decided_ms.setdefault(proposal.generation, at_ms)
            return
        if isinstance(proposal, Beginning):
            beginnings = self._beginnings.setdefault(TopicPartition(proposal.topic, proposal.partition), {})
            beginnings.setdefault(proposal.generation, proposal)
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
        """Return the identity of generation *number*, or None."""
        return self._identities.get(number)

    def decided_ms(self, generation: int) -> int:
        """Return when *generation* was decided, by its author's clock; -1: unknown."""
        return self._decided_ms.get(generation, -1)

    @property
    def producer_ids(self) -> frozenset[int]:
        """The producer ids of all generations; a batch with one of them was written by this flow."""
        return frozenset(one.producer_id for one in self._identities.values())

    def first_anchor(self, partition: TopicPartition) -> Anchor | None:
        """Return the first anchor of *partition*, or None."""
        steps = self._anchors.get(partition, {})
        return steps[min(steps)] if steps else None

    def anchor(self, partition: TopicPartition, generation: int) -> Anchor | None:
        """Return the anchor of the newest step of *partition* in *generation*, or None."""
        steps = [a for (g, _), a in self._anchors.get(partition, {}).items() if g == generation]
        return max(steps, key=lambda anchor: anchor.step, default=None)

    def newest_anchor(self, partition: TopicPartition, generation: int) -> Anchor | None:
        """Return the anchor from the newest generation up to *generation* that has one, or None."""
        found = (self.anchor(partition, number) for number in range(generation, 0, -1))
        return next((anchor for anchor in found if anchor is not None), None)

    def beginning(self, partition: TopicPartition, *, after: int) -> Beginning | None:
        """Return the newest requested start of *partition* from a generation later than *after*, or None."""
        found = [one for number, one in self._beginnings.get(partition, {}).items() if number > after]
        return max(found, key=lambda one: one.generation, default=None)

    def owners(self, generation: int) -> dict[tuple[str, int], str]:
        """Return the source topic first copied to each (target topic id, partition) in *generation*."""
        owners: dict[tuple[str, int], str] = {}
        for (topic, partition), anchors in self._anchors.items():
            for (number, _), anchor in anchors.items():
                if number == generation and anchor.target_topic_id:
                    owners.setdefault((anchor.target_topic_id, partition), topic)
        return owners

    def partitions(self) -> tuple[TopicPartition, ...]:
        """Return every partition that has an anchor."""
        return tuple(self._anchors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The identity fields that this copier's settings require."""

    source_cluster_id: str
    target_cluster_id: str
    policy: str
    flow: str
    stream: str
    takes_over: tuple[str, ...] = ()  # ids of flows whose source alias this copier may take


def stream_definition(*, read_committed: bool, header_words: str = "") -> str:
    """Return the definition of the stream as text: what decides which records count, and how copies match.

    *header_words* describes the header edits. A resumption compares copies with the source's records, headers
    included, so it would not find records that were copied with other edits.
    """
    level = f"isolation.level={'read_committed' if read_committed else 'read_uncommitted'}"
    return f"{level} headers={header_words}" if header_words else level
