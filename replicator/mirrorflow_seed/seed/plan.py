"""Which partitions are seeded up to where, and which task copies which of them: decisions only.

A *share* is one partition with the end offset that was frozen when it was planned; a *chain* is what one task copies. A
large partition is a chain of its own, small ones go together, so that a task lasts long enough to be worth its start. The
longest chains come first: the last task to start is then a short one.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mirrorflow_replicator.flow.partitions import TopicPartition

CHAIN_BYTES_MIN: Final = 64 << 20  # at 100 MB/s less than a second, and a start costs a tenth of one
CHAIN_BYTES_MAX: Final = 1 << 30
CHAIN_PARTITIONS_MAX: Final = 200  # of empty partitions; each costs a few questions
CHAINS_PER_SLOT: Final = 4  # so many turns even out what was estimated wrong
RECORD_BYTES: Final = 1_000  # of a record where no broker tells the size of its log


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """One partition of a wave. `index` is its place in the plan, by which it is named in reports."""

    index: int
    topic: str
    partition: int
    start: int  # where the copy stood, or the source began, when it was planned
    end: int  # frozen: what comes behind it is for the next wave, or the live connector
    bytes: int  # estimated, from start to end
    is_new: bool = False  # nobody has copied it yet

    @property
    def source(self) -> TopicPartition:
        """Its address on the source."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """What one task copies."""

    shares: tuple[Share, ...]

    @property
    def bytes(self) -> int:
        """Estimated."""
        return sum(share.bytes for share in self.shares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """What a source partition holds; `bytes` None where the brokers do not tell."""

    start: int
    end: int
    bytes: int | None = None


def shares_of(
    logs: Mapping[TopicPartition, Log],
    positions: Mapping[TopicPartition, int],
    begins: Mapping[TopicPartition, int],
) -> tuple[Share, ...]:
    """A share for each partition of *logs*, in their order: from its next offset in *positions*, else from *begins*."""
    shares = []
    for index, (source, log) in enumerate(sorted(logs.items())):
        known = positions.get(source)
        start = begins.get(source, log.start) if known is None else known
        left, held = max(0, log.end - max(start, log.start)), log.end - log.start
        size = left * RECORD_BYTES if log.bytes is None or held <= 0 else log.bytes * left // held
        shares.append(
            Share(
                index=index,
                topic=source.topic,
                partition=source.partition,
                start=start,
                end=log.end,
                bytes=size,
                is_new=known is None,
            )
        )
    return tuple(shares)


def chains_of(shares: Iterable[Share], *, slots: int) -> tuple[Chain, ...]:
    """What each task copies, longest first; shares that are already at their end are left out."""
    left = sorted(
        (share for share in shares if share.start < share.end), key=lambda share: (-share.bytes, share.index)
    )
    total = sum(share.bytes for share in left)
    room = min(CHAIN_BYTES_MAX, max(CHAIN_BYTES_MIN, total // max(1, slots * CHAINS_PER_SLOT)))
    chains: list[list[Share]] = []
    filled = 0
    for share in left:
        is_full = filled + share.bytes > room or (chains and len(chains[-1]) >= CHAIN_PARTITIONS_MAX)
        if not chains or is_full:
            chains.append([])
            filled = 0
        chains[-1].append(share)
        filled += share.bytes
    return tuple(sorted((Chain(shares=tuple(chain)) for chain in chains), key=lambda chain: -chain.bytes))


def foreign_topics(
    ends: Mapping[TopicPartition, tuple[int, int]], known: Iterable[TopicPartition], names: Mapping[str, str]
) -> tuple[str, ...]:
    """Target topics with records in a partition that nobody of this flow has written to, Java MM2 included.

    *ends* are begin and end of the target's partitions, by source partition; *known* are those with a position or an anchor;
    *names* give the target topics.
    """
    ours = set(known)
    return tuple(
        sorted(
            {
                names[source.topic]
                for source, (begin, end) in ends.items()
                if end > begin and source not in ours
            }
        )
    )


def lag_of(shares: Sequence[Share], next_offsets: Mapping[int, int]) -> int:
    """Offsets between where copies stand and the shares' ends."""
    return sum(max(0, share.end - max(share.start, next_offsets.get(share.index, 0))) for share in shares)
