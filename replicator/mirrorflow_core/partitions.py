"""Names a partition, and says how far it has been copied.

`connect.position_records` encodes positions in MM2's format, `stores.position_store` stores them.
"""

from dataclasses import dataclass
from typing import NamedTuple

from mirrorflow_core.source_epochs import SourceEpochs

UNKNOWN = -1


class OffsetPair(NamedTuple):
    """The source offset, ordinal and target offset of one record."""

    source_offset: int
    ordinal: int
    target_offset: int
    source_epoch: int = UNKNOWN  # leader epoch of the source record


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The stored offset of one partition.

    Offsets are of the last delivered record, as in MM2; -1: unknown. Java MM2 writes `source_offset` only.
    """

    topic: str  # on the source
    partition: int
    source_offset: int
    source_epoch: int = UNKNOWN  # leader epoch of the source record
    epochs: SourceEpochs = ()  # of all that is copied
    source_topic_id: str = ""
    target_topic_id: str = ""
    written_ms: int | None = None  # wall clock; None: unknown


class TopicPartition(NamedTuple):
    """A partition of a topic; the topic's name is that on the cluster in question."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
