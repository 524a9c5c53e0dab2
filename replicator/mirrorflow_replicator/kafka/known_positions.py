"""What both stores of positions have in common: the protocol, and the newest position of each partition."""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Protocol

from mirrorflow_replicator.connect.position_keys import PositionKey, encode_key
from mirrorflow_replicator.connect.positions import Malformed, Reset, Stored, decode
from mirrorflow_replicator.flow.altered import NOTHING_FOREIGN, Foreign
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.flow.position import UNKNOWN, Position, advance

WARNINGS_MAX = 20  # the newest are kept; a topic full of rubbish must not fill memory


class PositionStore(Protocol):
    """Where positions are kept; `kafka.offsets.OffsetsLog` and `kafka.offsets_file.OffsetsFile` are the two."""

    @property
    def positions(self) -> Mapping[TopicPartition, Position]:
        """The newest known of each source partition, as last read or written."""

    @property
    def foreign(self) -> Mapping[TopicPartition, Foreign]:
        """Where the newest word on a position, as last read or written, is not ours."""

    @property
    def warnings(self) -> tuple[str, ...]:
        """What could not be read, newest last."""

    async def open(self) -> None:
        """Create what is missing and read everything."""

    async def read_new(self) -> frozenset[TopicPartition]:
        """Read what others have written since; the partitions whose position was written or reset."""

    async def settled(self, timeout_s: float) -> bool:
        """Wait until `read_new` finds all that is decided; False where that takes too long."""

    async def write(self, positions: Iterable[Position], *, now_ms: int) -> None:
        """Store *positions*, each with the ladder of the one before."""

    async def reset(self, partitions: Iterable[TopicPartition], *, now_ms: int) -> None:
        """Forget the positions of *partitions*."""


class KnownPositions:
    """The newest position of each partition, fed by records in their order."""

    def __init__(self, *, connector: str, source_alias: str) -> None:
        self.positions: dict[TopicPartition, Position] = {}
        self.foreign: dict[TopicPartition, Foreign] = {}
        self.warnings: deque[str] = deque(maxlen=WARNINGS_MAX)
        self._connector = connector
        self._source_alias = source_alias

    def key(self, partition: TopicPartition) -> bytes:
        """The key of *partition*, in Java's bytes."""
        return encode_key(
            PositionKey(self._connector, self._source_alias, partition.topic, partition.partition)
        )

    def advanced(self, positions: Iterable[Position], now_ms: int) -> dict[TopicPartition, Position]:
        """*positions* by partition, each with the ladder of the one before; nothing is remembered yet."""
        by_partition = {TopicPartition(one.topic, one.partition): one for one in positions}
        return {key: advance(self.positions.get(key), one, now_ms) for key, one in by_partition.items()}

    def written(self, positions: Mapping[TopicPartition, Position]) -> None:
        """*positions* are stored."""
        self.positions.update(positions)
        for partition in positions:
            self.foreign.pop(partition, None)

    def take(self, key: bytes | None, value: bytes | None, offset: int = UNKNOWN) -> TopicPartition | None:
        """Take one record, which lies at *offset*; the partition it is about, None if it says nothing of ours."""
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
                # An older position stays: it is a correct one, only farther back.
                self.warnings.append(problem)
        return None

    def _note(self, partition: TopicPartition, offset: int, *, is_foreign: bool) -> None:
        if not is_foreign:
            self.foreign.pop(partition, None)
            return
        before, position = self.foreign.get(partition, NOTHING_FOREIGN), self.positions.get(partition)
        after = before.after if position is None or position.sequence == UNKNOWN else position.epoch
        self.foreign[partition] = Foreign(offset, after)
