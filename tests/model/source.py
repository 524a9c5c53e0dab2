"""The producer of a world's source topic: it labels each record, and remembers what became of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.wire.batch import split
from mirrorflow_core.wire.records import Record, encode
from tests.model.batches import ABORT, COMMIT
from tests.model.leader import PartitionLeader
from tests.model.partition_log import PartitionLog

if TYPE_CHECKING:
    from tests.model.world import World

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
OLD_S = 2 * DAY_S
Content = tuple[bytes | None, bytes | None]  # key and value: what a reader can tell records apart by
PRESENT, TRUNCATED, DELETED, COMPACTED = "present", "truncated", "deleted", "compacted"
ABORTED = "aborted"  # of a history as readers of committed records see it


@dataclass(slots=True)
class SourceRecord:
    """A record as it was appended, and what became of it since."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    is_aborted: bool = False
    fate: str = PRESENT

    @property
    def content(self) -> Content:
        return self.key, self.value


class SourceProducer:
    """Writes to the source. `history` has every record of each partition that was ever appended, in that order."""

    def __init__(self, world: "World") -> None:
        self.history: dict[TopicPartition, list[SourceRecord]] = {at: [] for at in world.partitions}
        self._world = world
        self._numbers = dict.fromkeys(world.partitions, 0)

    def leader(self, at: TopicPartition) -> PartitionLeader:
        found = self._world.source.partition(at)
        assert found is not None
        return found.leader

    def append(
        self,
        at: TopicPartition,
        count: int,
        *,
        age_s: float = 0.0,
        in_batches_of: int = 5,
        codec: int = 0,
        keys: int = 0,
        size_bytes: int = 0,
        producer_id: int = -1,
        same_time: bool = False,
        key_prefix: bytes = b"k",
    ) -> None:
        """*count* records of that age; with *keys* they take turns among so many keys.

        With *producer_id* they are in a transaction of that producer, which `end` ends.
        """
        timestamp = self._world.wall_ms - int(age_s * 1000)
        records: list[tuple[int, bytes | None, bytes | None]] = []
        for _ in range(count):
            number = self._numbers[at]
            self._numbers[at] += 1
            value = b"%d:%06d" % (at.partition, number)
            value += b"." * (size_bytes - len(value))
            key = key_prefix + b"%d" % (number % keys) if keys else None
            records.append((timestamp if same_time else timestamp + len(records) % 1000, key, value))
        self.append_these(at, records, in_batches_of=in_batches_of, codec=codec, producer_id=producer_id)

    def append_these(
        self,
        at: TopicPartition,
        records: Sequence[tuple[int, bytes | None, bytes | None]],
        *,
        in_batches_of: int = 5,
        codec: int = 0,
        producer_id: int = -1,
    ) -> None:
        """Records of these timestamps, keys and values."""
        leader = self.leader(at)
        for first in range(0, len(records), in_batches_of):
            part = records[first : first + in_batches_of]
            sequence = -1
            if producer_id >= 0:
                known = leader.producers.producers.get(producer_id)
                sequence = 0 if known is None else known.last_sequence + 1
            data = encode(
                [Record(0, *record) for record in part],
                codec=codec,
                producer_id=producer_id,
                producer_epoch=0 if producer_id >= 0 else -1,
                base_sequence=sequence,
                transactional=producer_id >= 0,
            )
            base = leader.append(split(data)[0], self._world.wall_ms).base_offset
            self.history[at] += [
                SourceRecord(base + i, timestamp, key, value)
                for i, (timestamp, key, value) in enumerate(part)
            ]
        self._world.tell(None, f"{len(records)} records are appended to {at}")

    def end(self, at: TopicPartition, producer_id: int, *, commit: bool) -> None:
        """End the transaction of *producer_id*."""
        leader = self.leader(at)
        began = leader.producers.producers[producer_id].txn_first_offset
        leader.append_marker(
            producer_id=producer_id,
            producer_epoch=0,
            kind=COMMIT if commit else ABORT,
            coordinator_epoch=0,
            now_ms=self._world.wall_ms,
        )
        if not commit and began is not None:
            aborted = [batch for batch in leader.log.batches if leader.log.is_aborted(batch)]
            offsets = {record.offset for batch in aborted for record in batch.records}
            for record in self.history[at]:
                record.is_aborted |= record.fate == PRESENT and record.offset in offsets

    # -- what happens to the source

    def truncate(self, at: TopicPartition, end: int) -> None:
        """An unclean election: the log ends at *end* (or at the batch before), and continues in a new leader epoch."""
        leader = self.leader(at)
        leader.elect(end)
        end = leader.log.end
        self._mark(at, TRUNCATED, lambda record: record.offset >= end)
        self._world.tell(None, f"{at} of the source is truncated to {end}, epoch {leader.epoch}")

    def replica(self, at: TopicPartition) -> PartitionLog:
        """Return a copy of the log of *at*: what a follower holds that stops now."""
        return self.leader(at).log.copy()

    def elect_replica(self, at: TopicPartition, replica: PartitionLog) -> None:
        """Elect a follower that stopped earlier: it holds *replica*, and lacks the records written since."""
        leader = self.leader(at)
        leader.elect_replica(replica, replica.end)
        back = {record.value for record in replica.records(end=replica.end, committed=False)}
        self._mark(at, TRUNCATED, lambda record: record.value not in back)
        # Records that only this replica holds are copied after those that were copied without it.
        lost = [one for one in self.history[at] if one.fate == TRUNCATED and one.value in back]
        for record in lost:
            record.fate = PRESENT
        self.history[at] = [one for one in self.history[at] if one not in lost] + lost
        self._world.tell(
            None, f"the source elects a replica of {at} that ends at {replica.end}, epoch {leader.epoch}"
        )

    def delete_before(self, at: TopicPartition, offset: int) -> None:
        """Retention."""
        leader = self.leader(at)
        leader.delete_before(offset)
        self._mark(at, DELETED, lambda record: record.offset < leader.log.start)
        self._world.tell(None, f"{at} of the source begins at {leader.log.start}")

    def lose_all(self, at: TopicPartition) -> None:
        """Its topic is deleted."""
        self._mark(at, DELETED, lambda _: True)

    def compact(self, at: TopicPartition, end: int | None = None) -> None:
        """The log cleaner has come to *end*, by default to the log's end."""
        leader = self.leader(at)
        gone = leader.compact(leader.log.end if end is None else end)
        self._mark(at, COMPACTED, lambda record: record.offset in gone)
        self._world.tell(None, f"{at} of the source is compacted: {len(gone)} records go")

    def _mark(self, at: TopicPartition, fate: str, concerns: Callable[[SourceRecord], bool]) -> None:
        for record in self.history[at]:
            if record.fate == PRESENT and concerns(record):
                record.fate = fate

    # -- how far it is copied

    def end_of(self, at: TopicPartition) -> int:
        """Where a copier comes to its end."""
        leader = self.leader(at)
        return leader.last_stable_offset if self._world.options.read_committed else leader.log.high_watermark
