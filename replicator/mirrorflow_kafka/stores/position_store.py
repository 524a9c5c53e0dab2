"""The interface of stores of source offsets, and the in-memory state that both implementations share."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Protocol

from mirrorflow_core.connect.position_keys import PositionKey, encode_key
from mirrorflow_core.connect.position_records import Malformed, Reset, Stored, decode
from mirrorflow_core.exactly_once.altered_offsets import NOTHING_FOREIGN, AlteredOffset
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.position import UNKNOWN, Position, advance

WARNINGS_MAX = 20  # the newest are kept; a topic full of unreadable records must not fill memory


class PositionStore(Protocol):
    """A store of source offsets, implemented by `offsets_topic.OffsetsLog` and `offsets_file.OffsetsFile`."""

    @property
    def positions(self) -> Mapping[TopicPartition, Position]:
        """The newest known position of each source partition, as last read or written."""

    @property
    def foreign(self) -> Mapping[TopicPartition, AlteredOffset]:
        """Partitions whose newest record was not written by this flow, as last read or written."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about records that could not be read, newest last."""

    async def open(self) -> None:
        """Create the store if it is missing, and read it whole."""

    async def read_new(self) -> frozenset[TopicPartition]:
        """Read new records; return the partitions whose position was written or reset."""

    async def settled(self, timeout_s: float) -> bool:
        """Wait until `read_new` sees everything committed so far; return False after *timeout_s*."""

    async def write(self, positions: Iterable[Position], *, now_ms: int) -> None:
        """Store *positions*, each with the resume points of its predecessor."""

    async def reset(self, partitions: Iterable[TopicPartition], *, now_ms: int) -> None:
        """Remove the positions of *partitions*."""


class KnownPositions:
    """Keeps the newest position of each partition, from records passed in log order."""

    def __init__(self, *, connector: str, source_alias: str) -> None:
        self.positions: dict[TopicPartition, Position] = {}
        self.foreign: dict[TopicPartition, AlteredOffset] = {}
        self.warnings: deque[str] = deque(maxlen=WARNINGS_MAX)
        self._connector = connector
        self._source_alias = source_alias

    def key(self, partition: TopicPartition) -> bytes:
        """Return the record key of *partition*, in the bytes that Java writes."""
        return encode_key(
            PositionKey(self._connector, self._source_alias, partition.topic, partition.partition)
        )

    def advanced(self, positions: Iterable[Position], now_ms: int) -> dict[TopicPartition, Position]:
        """Return *positions* by partition, each with the resume points of its predecessor."""
        by_partition = {TopicPartition(one.topic, one.partition): one for one in positions}
        return {key: advance(self.positions.get(key), one, now_ms) for key, one in by_partition.items()}

    def written(self, positions: Mapping[TopicPartition, Position]) -> None:
        """Note that *positions* were stored."""
        self.positions.update(positions)
        for partition in positions:
            self.foreign.pop(partition, None)

    def take(self, key: bytes | None, value: bytes | None, offset: int = UNKNOWN) -> TopicPartition | None:
        """Apply the record at *offset*; return its partition, None if unreadable or of another connector."""
        found = decode(key, value, connector=self._connector, cluster=self._source_alias)
        match found:
            case Stored(key=key_, position=position, warning=warning):
                if warning:
                    self.warnings.append(warning)
                partition = TopicPartition(key_.topic, key_.partition)
                self._note(partition, offset, is_foreign=position.sequence == UNKNOWN and not position.copier)
                self.positions[partition] = position
                return partition
            case Reset(key=key_):
                partition = TopicPartition(key_.topic, key_.partition)
                self._note(partition, offset, is_foreign=value is None)
                self.positions.pop(partition, None)
                return partition
            case Malformed(problem=problem):
                # Keep the older position: it is correct, only further behind.
                self.warnings.append(problem)
        return None

    def _note(self, partition: TopicPartition, offset: int, *, is_foreign: bool) -> None:
        if not is_foreign:
            self.foreign.pop(partition, None)
            return
        before, position = self.foreign.get(partition, NOTHING_FOREIGN), self.positions.get(partition)
        after = before.after if position is None or position.sequence == UNKNOWN else position.epoch
        self.foreign[partition] = AlteredOffset(offset, after)
