"""A partition of a target, as far as deciding where to go on has to do with it: for model tests.

The log is a list of what lies at each offset. The leader's memory follows the log and may be lost (KIP-98, ProducerStateManager).
"""

from dataclasses import dataclass, field

from mirrorflow_replicator.flow.alignment import (
    Evidence,
    Memory,
    Need,
    Pair,
    Tail,
    align,
    scan_from,
    sequence_of,
)

EPOCH = 3
FOREIGN = -1  # a record of another producer, or a marker: it takes an offset and is none of ours


@dataclass(kw_only=True)
class Target:
    """*log* holds the ordinal of our record at each offset, or FOREIGN. *first* is the anchor's ordinal."""

    first: int = 0
    log: list[int] = field(default_factory=list)
    high_watermark: int = 0
    log_start: int = 0
    remembers: bool = False
    ladder: list[Pair] = field(default_factory=list)
    delivered: int = field(init=False)  # the last ordinal below the high watermark, wherever it is now

    def __post_init__(self):
        self.delivered = self.first - 1
        at = len(self.log)
        self.ladder.append(Pair(source_offset=self.first - 1, ordinal=self.first - 1, target_offset=at - 1))

    def ours(self, start, end):
        """The ordinals from offset *start* up to *end*."""
        return [ordinal for ordinal in self.log[start:end] if ordinal != FOREIGN]

    @property
    def unreplicated(self):
        """What is ours above the high watermark."""
        return self.ours(self.high_watermark, len(self.log))

    @property
    def has_foreign(self):
        """Whether others wrote since the newest known pair that is still there."""
        known = max(
            (p.target_offset for p in self.ladder if p.target_offset < self.high_watermark), default=-1
        )
        return FOREIGN in self.log[known + 1 : self.high_watermark]

    @property
    def is_overwritten(self):
        """Whether something else lies where a known pair was, which was lost."""
        return any(
            self.log[p.target_offset : p.target_offset + 1] not in ([], [p.ordinal]) for p in self.ladder[:-1]
        )

    def write(self, count):
        """*count* records of ours, in their order; the leader remembers us from now on."""
        begin = max([self.delivered, *self.unreplicated]) + 1
        self.log += range(begin, begin + count)
        self.remembers = True

    def write_foreign(self, count):
        self.log += [FOREIGN] * count

    def replicate(self, up_to=None):
        """The followers have everything below *up_to*."""
        self.high_watermark = (
            len(self.log) if up_to is None else max(self.high_watermark, min(up_to, len(self.log)))
        )
        self.delivered = max([self.delivered, *self.ours(0, self.high_watermark)])

    def acknowledge(self):
        """Whoever wrote last notes what is replicated as a known pair."""
        for offset in range(self.high_watermark - 1, self.log_start - 1, -1):
            ordinal = self.log[offset]
            if ordinal != FOREIGN and ordinal > self.ladder[0].ordinal:
                self.ladder.insert(0, Pair(source_offset=ordinal, ordinal=ordinal, target_offset=offset))
                return

    def elect(self):
        """A clean election: what was not replicated is gone, and what the new leader remembers is what its log holds."""
        self.truncate(self.high_watermark)

    def truncate(self, end):
        """An unclean election, down to *end*."""
        end = max(end, self.log_start)
        del self.log[end:]
        self.high_watermark = min(self.high_watermark, end)
        self.high_watermark = len(self.log)
        self.delivered = max([self.first - 1, *self.ours(0, end)])
        self.remembers = self.remembers and bool(self.ours(self.log_start, end))

    def delete(self, before):
        """Retention, or DeleteRecords: the log begins later, the leader remembers all the same."""
        self.log_start = max(self.log_start, min(before, self.high_watermark))

    def forget(self):
        """A restart without our records, a move to another broker, or timestamps older than a day.

        Never while something of ours is not replicated: then one writer has one batch in flight (clause 3).
        """
        self.remembers = self.remembers and bool(self.unreplicated)

    def memory(self):
        """DescribeProducers."""
        if not self.remembers:
            return None
        return Memory(epoch=EPOCH, sequence=sequence_of(self.ours(0, len(self.log))[-1]))

    def evidence(self, memory="now", tail=None):
        """What a copier is told."""
        return Evidence(
            epoch=EPOCH,
            ladder=tuple(self.ladder),
            memory=self.memory() if memory == "now" else memory,
            log_start=self.log_start,
            high_watermark=self.high_watermark,
            tail=tail,
        )

    def tail(self, start):
        """Reading the log from *start* to the high watermark."""
        found, foreign = None, False
        for offset in range(max(start, self.log_start), self.high_watermark):
            if self.log[offset] == FOREIGN:
                foreign = True
            else:
                found = (self.log[offset], offset)
        if found is None:
            return Tail(scanned_from=start, sequence=None, foreign=foreign)
        return Tail(
            scanned_from=start, sequence=sequence_of(found[0]), target_offset=found[1], foreign=foreign
        )

    def verdict(self, memory="now"):
        """What `align` says in the end, the log read where it asks for it."""
        evidence = self.evidence(memory)
        said = align(evidence)
        if said is Need.READ_TAIL:
            return align(self.evidence(evidence.memory, self.tail(scan_from(evidence))))
        return said
