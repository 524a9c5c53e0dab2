"""Identity and anchors: decided once by whoever comes first, then used by everyone (DESIGN 4.2, clause 1).

The topic `mm2-identity.<source>.internal` on the target has one partition, is never compacted and never expires. To decide
something a copier writes a proposal and reads to the end: the first proposal for a key binds everyone, also its author.
`Decisions` is that reading, pure: feed it the records in order.

A *generation* is one definition of the stream: producer id and epoch, both cluster ids, naming, flow, isolation level.
An *anchor* says which source offset has ordinal 0 (or a later one, at a step of the stream: after a loss) in a generation.
"""

import json
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from mirrorflow_replicator.flow.alignment import Pair
from mirrorflow_replicator.flow.holding import Hold, Holds, Lease
from mirrorflow_replicator.flow.partitions import TopicPartition

UNTOLD: Final = -2  # by a version that did not look


def identity_topic(source_alias: str) -> str:
    """The topic of the decisions; always with ".", like the worker's topics of MM2."""
    return f"mm2-identity.{source_alias}.internal"


def transactional_id(source_alias: str) -> str:
    """The flow's transactional id; needs Write and Describe where ACLs are used."""
    return f"mirrorflow.{source_alias}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """One generation. `stream` is the definition of the stream in words; another definition is another generation."""

    generation: int
    producer_id: int
    producer_epoch: int
    transactional_id: str  # "": not authorized, so nothing can be fenced or pinned
    source_cluster_id: str
    target_cluster_id: str
    policy: str
    flow: str
    stream: str
    why: str  # what made this generation: "begin", "isolation.level", "java", ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchor:
    """Source offset `source_offset` carries `ordinal`; `target_offset` was the target's end when that was decided."""

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
    # The offset of the newest word of others on its position that was known then (`flow.altered`); -1: there was none.
    seen_at: int = UNTOLD

    def as_pair(self) -> Pair:
        """The state before the anchor's first record."""
        return Pair(
            source_offset=self.source_offset - 1,
            ordinal=self.ordinal - 1,
            target_offset=self.target_offset - 1,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """A word on where *partition* begins in a generation, whatever it has copied before (clause 9).

    A user's, or the plan of a bulk job, which may not come to a partition for hours. `source_offset` is the first to be
    copied; -1: where a partition begins that was never copied. `source_topic_id` "": it holds for whatever bears the name.
    """

    generation: int
    topic: str
    partition: int
    source_offset: int
    why: str
    source_topic_id: str = ""


Proposal = Identity | Anchor | Beginning | Hold | Lease
_Kind = type[Identity] | type[Anchor] | type[Beginning] | type[Hold] | type[Lease]
_KINDS: dict[str, _Kind] = {
    "identity": Identity,
    "anchor": Anchor,
    "beginning": Beginning,
    "hold": Hold,
    "lease": Lease,
}
_NAMES: dict[type, tuple[str, list[str]]] = {
    Identity: ("identity", ["generation"]),
    Anchor: ("anchor", ["generation", "topic", "partition", "step"]),
    Beginning: ("beginning", ["generation", "topic", "partition"]),
    Hold: ("hold", ["holder", "topic"]),
    Lease: ("lease", ["holder"]),
}


def encode(proposal: Proposal) -> tuple[bytes, bytes]:
    """Key and value of a proposal: compact JSON."""
    body = asdict(proposal)
    kind, names = _NAMES[type(proposal)]
    key = {"type": kind} | {name: body.pop(name) for name in names}
    return _dump(key), _dump(body)


def decode(key: bytes, value: bytes) -> Proposal | None:
    """The proposal in a record; None for what a later version may have written there."""
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
    """What has been decided, from the records read so far. The first record of a key wins."""

    def __init__(self) -> None:
        self._identities: dict[int, Identity] = {}
        self._anchors: dict[TopicPartition, dict[tuple[int, int], Anchor]] = {}
        self._beginnings: dict[TopicPartition, dict[int, Beginning]] = {}
        self.holds = Holds()  # they bind nobody's stream, and are kept where all copiers look

    def read(self, proposal: Proposal) -> None:
        """The next record of the topic."""
        if isinstance(proposal, Hold | Lease):
            self.holds.take(proposal)
            return
        if isinstance(proposal, Identity):
            self._identities.setdefault(proposal.generation, proposal)
            return
        if isinstance(proposal, Beginning):
            beginnings = self._beginnings.setdefault(TopicPartition(proposal.topic, proposal.partition), {})
            beginnings.setdefault(proposal.generation, proposal)
            return
        of_partition = self._anchors.setdefault(TopicPartition(proposal.topic, proposal.partition), {})
        of_partition.setdefault((proposal.generation, proposal.step), proposal)

    @property
    def identity(self) -> Identity | None:
        """The newest generation."""
        return self._identities[max(self._identities)] if self._identities else None

    def generation(self, number: int) -> Identity | None:
        """An earlier generation."""
        return self._identities.get(number)

    @property
    def producer_ids(self) -> frozenset[int]:
        """Of all generations: whatever bears one of them was written by this flow."""
        return frozenset(one.producer_id for one in self._identities.values())

    def first_anchor(self, partition: TopicPartition) -> Anchor | None:
        """Where *partition* was begun at all."""
        steps = self._anchors.get(partition, {})
        return steps[min(steps)] if steps else None

    def anchor(self, partition: TopicPartition, generation: int) -> Anchor | None:
        """The newest step of *partition* in *generation*."""
        steps = [a for (g, _), a in self._anchors.get(partition, {}).items() if g == generation]
        return max(steps, key=lambda anchor: anchor.step, default=None)

    def newest_anchor(self, partition: TopicPartition, generation: int) -> Anchor | None:
        """Its anchor in the newest generation up to *generation* that has one: a generation may end before it is used."""
        found = (self.anchor(partition, number) for number in range(generation, 0, -1))
        return next((anchor for anchor in found if anchor is not None), None)

    def beginning(self, partition: TopicPartition, *, after: int) -> Beginning | None:
        """The newest word on where *partition* begins, of a generation later than *after*."""
        found = [one for number, one in self._beginnings.get(partition, {}).items() if number > after]
        return max(found, key=lambda one: one.generation, default=None)

    def owners(self, generation: int) -> dict[tuple[str, int], str]:
        """By topic id and partition of the target: the source topic that was the first to be copied there in *generation*."""
        owners: dict[tuple[str, int], str] = {}
        for (topic, partition), anchors in self._anchors.items():
            for (number, _), anchor in anchors.items():
                if number == generation and anchor.target_topic_id:
                    owners.setdefault((anchor.target_topic_id, partition), topic)
        return owners

    def partitions(self) -> tuple[TopicPartition, ...]:
        """Every partition that has an anchor."""
        return tuple(self._anchors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What this copier is set to do."""

    source_cluster_id: str
    target_cluster_id: str
    policy: str
    flow: str
    stream: str


def stream_definition(*, read_committed: bool, header_words: str = "", with_java: bool = False) -> str:
    """The definition of the stream in words: whatever changes which records are counted, or how a copy is recognised.

    *header_words* are what is done to headers: who resumes compares copies with the source's records, headers included, and
    records copied under other settings would not be found again.
    """
    level = f"isolation.level={'read_committed' if read_committed else 'read_uncommitted'}"
    words = f"{level} headers={header_words}" if header_words else level
    # Tasks that write in transactions of their own do not go by the flow's numbers.
    return f"{words} transactions=tasks" if with_java else words
