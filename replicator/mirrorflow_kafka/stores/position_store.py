"""The interface of stores of source offsets, and the in-memory state that both implementations share."""

from collections import deque
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Protocol

from mirrorflow_core.connect.position_records import Malformed, PositionKey, Reset, Stored, decode, encode_key
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.position import UNKNOWN, Position

WARNINGS_MAX = 20  # the newest are kept; a topic full of unreadable records must not fill memory


class PositionStore(Protocol):
    """A store of source offsets, implemented by `offsets_topic.OffsetsLog` and `offsets_file.OffsetsFile`."""

    @property
    def positions(self) -> Mapping[TopicPartition, Position]:
        """The newest known position of each source partition, as last read or written."""

    @property
    def foreign(self) -> AbstractSet[TopicPartition]:
        """Partitions whose newest record, or removal, is not an earlier release's."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings about records that could not be read, newest last."""

    async def open(self) -> None:
        """Create the store if it is missing, and read it whole."""

    async def read_new(self) -> frozenset[TopicPartition]:
        """Read new records; return the partitions whose position was written or reset."""

    async def write(self, positions: Iterable[Position], *, now_ms: int) -> None:
        """Store *positions*."""


class KnownPositions:
    """Keeps the newest position of each partition, from records passed in log order."""

    def __init__(self, *, connector: str, source_alias: str) -> None:
        self.positions: dict[TopicPartition, Position] = {}
        self.foreign: set[TopicPartition] = set()
        self.warnings: deque[str] = deque(maxlen=WARNINGS_MAX)
        self._connector = connector
        self._source_alias = source_alias

    def key(self, partition: TopicPartition) -> bytes:
        """Return the record key of *partition*, in the bytes that Java writes."""
        return encode_key(
            PositionKey(self._connector, self._source_alias, partition.topic, partition.partition)
        )

    def written(self, positions: Iterable[Position], now_ms: int) -> dict[TopicPartition, Position]:
        """Return *positions* as written at *now_ms*, by partition."""
        return {
            TopicPartition(one.topic, one.partition): replace(one, written_ms=now_ms) for one in positions
        }

    def take(self, key: bytes | None, value: bytes | None) -> TopicPartition | None:
        """Apply the next record; return its partition, None if unreadable or of another connector."""
        found = decode(key, value, connector=self._connector, cluster=self._source_alias)
        match found:
            case Stored(key=key_, position=position, warning=warning):
                if warning:
                    self.warnings.append(warning)
                partition = TopicPartition(key_.topic, key_.partition)
                if position.sequence == UNKNOWN:
                    self.foreign.add(partition)
                else:
                    self.foreign.discard(partition)
                self.positions[partition] = position
                return partition
            case Reset(key=key_):
                partition = TopicPartition(key_.topic, key_.partition)
                self.foreign.add(partition)
                self.positions.pop(partition, None)
                return partition
            case Malformed(problem=problem):
                # Keep the older position: it is correct, only further behind.
                self.warnings.append(problem)
        return None
