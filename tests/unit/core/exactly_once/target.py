"""A partition of a target, as far as deciding where to go on has to do with it: for model tests.

The log is a list of what lies at each offset. The leader's memory follows the log and may be lost (KIP-98, ProducerStateManager).
"""

from dataclasses import dataclass, field, replace

from mirrorflow_core.exactly_once.alignment import (
    Evidence,
    LeaderMemory,
    Need,
    OffsetPair,
    Tail,
    align,
    scan_from,
    sequence_of,
)

EPOCH = 3
FOREIGN = -1  # a record of another producer, or a marker: it takes an offset and is none of ours


@dataclass(kw_only=True)
class Target:
    """*log* holds the ordinal of our record at each offset, or FOREIGN. *first* is the anchor's ordinal.

    What is in *gone* was compacted away since.
    """

    first: int = 0
    log: list[int] = field(default_factory=list)
    high_watermark: int = 0
    log_start: int = 0
    gone: set[int] = field(default_factory=set)
    remembers: bool = False
    ladder: list[OffsetPair] = field(default_factory=list)
    delivered: int = field(init=False)  # the last ordinal below the high watermark, wherever it is now

    def __post_init__(self):
        self.delivered = self.first - 1
        at = len(self.log)
        self.ladder.append(
            OffsetPair(source_offset=self.first - 1, ordinal=self.first - 1, target_offset=at - 1)
        )

    def ours(self, start, end):
        """The ordinals from offset *start* up to *end*."""
        return [ordinal for ordinal in self.log[start:end] if ordinal != FOREIGN]

    @property
    def unreplicated(self):
        """What is ours above the high watermark."""
        return self.ours(self.high_watermark, len(self.log))

    @property
    def leader_has(self):
        """The last ordinal that the leader's log has, replicated or not."""
        return max([self.delivered, *self.unreplicated])

    @property
    def lost_pairs(self):
        """The known pairs in whose place lies something else, or lay before it was taken."""
        return [
            p
            for p in self.ladder[:-1]
            if self.log[p.target_offset : p.target_offset + 1] not in ([], [p.ordinal])
        ]

    @property
    def hides_a_loss(self):
        """Whether retention or compaction took what was written over a known pair."""
        return any(p.target_offset < self.log_start or p.target_offset in self.gone for p in self.lost_pairs)

    @property
    def hides_ours(self):
        """Whether compaction took the last record of ours that is delivered."""
        return any(self.log[offset] == self.delivered for offset in self.gone)

    @property
    def is_shifted(self):
        """Whether another record of ours lies where a known pair was: it was written again, at lower offsets."""
        return any(self.log[p.target_offset] != FOREIGN for p in self.lost_pairs)

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
        """The last writer notes what is replicated as a known pair."""
        for offset in range(self.high_watermark - 1, self.log_start - 1, -1):
            ordinal = self.log[offset]
            if ordinal != FOREIGN and ordinal > self.ladder[0].ordinal:
                self.ladder.insert(
                    0, OffsetPair(source_offset=ordinal, ordinal=ordinal, target_offset=offset)
                )
                return

    def settle(self, count):
        """*count* records of ours, replicated and noted."""
        self.write(count)
        self.replicate()
        self.acknowledge()

    def lose(self, end, foreign):
        """An unclean election down to *end*, and others write over what is lost before anybody of us comes back."""
        self.truncate(end)
        self.write_foreign(foreign)
        self.replicate()

    def elect(self):
        """A clean election: what was not replicated is gone, and what the new leader remembers is what its log holds."""
        self.truncate(self.high_watermark)

    def truncate(self, end):
        """An unclean election, down to *end*."""
        end = max(end, self.log_start)
        del self.log[end:]
        self.gone = {offset for offset in self.gone if offset < end}
        self.high_watermark = len(self.log)
        self.delivered = max([self.first - 1, *self.ours(0, end)])
        self.remembers = self.remembers and any(offset >= self.log_start for offset in self.batches())

    def delete(self, before):
        """Retention, or DeleteRecords: the log begins later, the leader remembers all the same."""
        self.log_start = max(self.log_start, min(before, self.high_watermark))

    def compact(self, first, count):
        """The cleaner takes records that are replicated, but leaves a header of ours while the leader remembers us."""
        kept = self.batches()[-1:] if self.remembers else []
        self.gone.update(set(range(first, min(first + count, self.high_watermark))) - set(kept))

    def batches(self):
        """The offsets of what is ours in the log, and not compacted away."""
        return [o for o, ordinal in enumerate(self.log) if ordinal != FOREIGN and o not in self.gone]

    def forget(self):
        """A restart without our records, a move to another broker, or timestamps older than a day.

        Never while something of ours is not replicated: then one writer has one batch in flight (clause 3).
        """
        self.remembers = self.remembers and bool(self.unreplicated)

    def memory(self):
        """DescribeProducers."""
        if not self.remembers:
            return None
        return LeaderMemory(epoch=EPOCH, sequence=sequence_of(self.log[self.batches()[-1]]))

    def evidence(self, memory="now", tail=None):
        """What a copier learns."""
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
        read = range(start, self.high_watermark)
        ours = [offset for offset in self.batches() if offset in read]
        if not ours:
            taken = start in read and start not in self.gone
            return Tail(
                scanned_from=start, sequence=None, taken=taken, has_gaps=not self.gone.isdisjoint(read)
            )
        return Tail(scanned_from=start, sequence=sequence_of(self.log[ours[-1]]), target_offset=ours[-1])

    def witnesses(self, memory="now"):
        """All that a copier gets to know before it decides: the log is read as far back as it asks."""
        evidence = self.evidence(memory)
        while align(evidence) is Need.READ_TAIL:
            start = scan_from(evidence)
            assert evidence.tail is None or start < evidence.tail.scanned_from, "each look reaches farther"
            evidence = replace(evidence, tail=self.tail(start))
        return evidence

    def verdict(self, memory="now"):
        """What `align` says in the end."""
        return align(self.witnesses(memory))


def settled(count, *, foreign=0, first=0):
    """A target that has *count* records of ours, all replicated and acknowledged; other records before them."""
    target = Target(first=first, log=[-1] * foreign)
    target.replicate()
    target.settle(count)
    return target
