"""What the transactions of a task ask of their shell, one request at a time (`copying.transaction`)."""

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from mirrorflow_core.copying.effects import Effects
from mirrorflow_core.copying.partition import PartitionCopier
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.writer.broker_requests import Producer, Transaction
from mirrorflow_core.writer.position import WriterPosition


class Now(NamedTuple):
    """The time: seconds of a monotonic clock, and milliseconds since 1970 of a wall clock."""

    monotonic_s: float
    wall_ms: int


class BeginTransaction(NamedTuple):
    """Begin a transaction that will store *positions*, once the markers of the last one are written. Response: None."""

    producer: Producer
    positions: Sequence[WriterPosition]


class AskLeaders(NamedTuple):
    """Ask the leaders of target partitions for their epochs. Response: the epochs by partition."""

    partitions: Sequence[TopicPartition]


class AddPartitions(NamedTuple):
    """Add target partitions to the open transaction. Response: error codes by partition."""

    producer: Producer
    partitions: Sequence[TopicPartition]


class Drain(NamedTuple):
    """Wait for the responses to what is in flight, at most until *ends_s*. Response: None; some may be missing.

    A broker that responds, or throttles, is waited for; one that does not is given up earlier.
    """

    copiers: Sequence[PartitionCopier]
    ends_s: float


class StorePositions(NamedTuple):
    """Write positions in the open transaction. Response: None."""

    producer: Producer
    positions: Sequence[WriterPosition]


class Commit(NamedTuple):
    """Commit the open transaction; its markers may still be on their way. Response: None."""

    producer: Producer


class AwaitMarkers(NamedTuple):
    """Wait until the positions that were just committed are decided. Response: None."""

    producer: Producer


class CarryOut(NamedTuple):
    """Carry out the effects of an event of a partition. Response: None."""

    copier: PartitionCopier
    effects: Effects


TransactionRequest = (
    BeginTransaction
    | AskLeaders
    | AddPartitions
    | Drain
    | StorePositions
    | Commit
    | AwaitMarkers
    | CarryOut
    | Transaction
)
Steps = Generator[TransactionRequest, tuple[Any, Now], Now]
