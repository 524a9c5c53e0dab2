"""A partition leader of a target that takes and refuses batches by Kafka's rules, for tests of those who write to it.

Source: ProducerStateManager, ProducerAppendInfo.checkSequence, ProducerStateEntry (KIP-98): the last five batches are
remembered, an exact repeat of one of them succeeds with its offset, and who is not remembered may begin anywhere.
"""

from collections import deque
from dataclasses import replace

from mirrorflow_core.exactly_once.alignment import (
    SEQUENCES,
    Evidence,
    LeaderMemory,
    Need,
    Tail,
    align,
    scan_from,
)
from mirrorflow_core.wire.batch import checksum_holds, split
from mirrorflow_core.wire.records import decode

OUT_OF_ORDER = 45
NOT_ENOUGH_REPLICAS = 19
REMEMBERED = 5


class Leader:
    """The log: one (sequence or None, record) for each offset; None is another producer's."""

    def __init__(self):
        self.log: list[tuple[int | None, tuple[object, ...]]] = []
        self.recent: deque[tuple[int, int, int]] = deque(
            maxlen=REMEMBERED
        )  # (base sequence, last sequence, base offset)

    def append(self, data, *, may_refuse=False):
        """The error code and the base offset."""
        (batch,) = split(bytearray(data))
        assert checksum_holds(batch)
        assert batch.base_offset == 0
        first, last = batch.base_sequence, (batch.base_sequence + batch.count - 1) % SEQUENCES
        for known_first, known_last, base_offset in self.recent:
            if (first, last) == (known_first, known_last):
                return 0, base_offset
        if may_refuse:
            return NOT_ENOUGH_REPLICAS, -1
        if self.recent and first != (self.recent[-1][1] + 1) % SEQUENCES:
            return OUT_OF_ORDER, -1
        base_offset = len(self.log)
        self.log += [((first + i) % SEQUENCES, record[1:]) for i, record in enumerate(decode(batch))]
        self.recent.append((first, last, base_offset))
        return 0, base_offset

    def append_foreign(self):
        self.log.append((None, ()))

    def forget(self):
        self.recent.clear()

    def ours(self):
        """The records of ours, in the order in which a consumer reads them."""
        return [record for sequence, record in self.log if sequence is not None]

    def verdict(self, ladder, epoch):
        """Where a copier that knows *ladder* is to go on."""
        memory = LeaderMemory(epoch=epoch, sequence=self.recent[-1][1]) if self.recent else None
        evidence = Evidence(
            epoch=epoch, ladder=ladder, memory=memory, log_start=0, high_watermark=len(self.log)
        )
        said = align(evidence)
        while said is Need.READ_TAIL:
            evidence = replace(evidence, tail=self._tail(scan_from(evidence)))
            said = align(evidence)
        return said

    def _tail(self, start):
        found = [(at, self.log[at][0]) for at in range(start, len(self.log)) if self.log[at][0] is not None]
        at, sequence = found[-1] if found else (-1, None)
        taken = start < len(self.log) and self.log[start][0] is None
        return Tail(scanned_from=start, sequence=sequence, target_offset=at, taken=taken)
