"""Which partitions are seeded up to where, and which task copies which of them: decisions only.

A *share* is one partition with the end offset that was frozen when it was planned; a *chain* is what one task copies. A
task copies several partitions at once, because one request to a broker carries one batch of each: with few of them a
broker works half as much again for the same bytes. Each share goes to the chain that has least, the largest shares
first, and the longest chains are started first: the last task to start is then a short one.
"""

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mirrorflow_replicator.flow.partitions import TopicPartition

CHAIN_BYTES_MIN: Final = 2 << 30  # half a minute at 70 MB/s, and a start costs a second
CHAIN_BYTES_MAX: Final = 8 << 30  # two minutes at 70 MB/s: no task is looked at for long before its end
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
    count = min(len(left), _count_of_chains(sum(share.bytes for share in left), len(left), slots))
    chains: list[list[Share]] = [[] for _ in range(count)]
    emptiest = [(0, 0, index) for index in range(count)]  # bytes, partitions, which: a heap
    for share in left:
        filled, partitions, index = heapq.heappop(emptiest)
        chains[index].append(share)
        if partitions + 1 < CHAIN_PARTITIONS_MAX:
            heapq.heappush(emptiest, (filled + share.bytes, partitions + 1, index))
    return tuple(sorted((Chain(shares=tuple(chain)) for chain in chains), key=lambda chain: -chain.bytes))


def _count_of_chains(total_bytes: int, partitions: int, slots: int) -> int:
    """One for each slot at least, then as many turns as chains of a good length make."""
    slots = max(1, slots)  # executors may not be there yet
    turns = min(CHAINS_PER_SLOT, max(1, total_bytes // (slots * CHAIN_BYTES_MIN)))
    return max(
        slots * turns, math.ceil(total_bytes / CHAIN_BYTES_MAX), math.ceil(partitions / CHAIN_PARTITIONS_MAX)
    )


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
