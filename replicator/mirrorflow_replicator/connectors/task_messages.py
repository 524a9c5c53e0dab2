"""The messages from a worker to a task process, through the process's stdin.

They are pickled, because both are the same program on the same machine; the process answers with the JSON
lines of `report_lines`.
"""

import asyncio
import pickle
import struct
from collections.abc import Mapping
from dataclasses import field

from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import AcknowledgedPosition
from mirrorflow_core.settings import TRANSACTION_TIMEOUT_MS, SourceSettings
from mirrorflow_core.writer.flow_plan import SessionStart
from mirrorflow_kafka.stores.compacted_topic import TopicState
from mirrorflow_kafka.writer.producer_transactions import SequenceKey

_SIZE = struct.Struct(">I")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The first message: the settings and number of the task, which connects to both clusters at once."""

    settings: SourceSettings
    task: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAssignment:
    """The partitions that a task copies. `initial`: they existed when the flow began."""

    partitions: tuple[TopicPartition, ...]
    initial: bool
    bytes_per_s: int | None = None  # this task's share of the flow's limit
    acknowledged: tuple[
        AcknowledgedPosition, ...
    ] = ()  # positions of the task's previous start: what is stored, then what is newer


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Makes the task copy exactly the partitions of the assignment, from `start` on."""

    assignment: TaskAssignment
    start: SessionStart
    # The next sequence numbers of the producers of `start`, which have stored positions already.
    sequences: Mapping[SequenceKey, int] = field(default_factory=dict)
    transaction_timeout_ms: int = (
        TRANSACTION_TIMEOUT_MS  # with which the producers of `start` were initialized
    )
    offsets_topic: TopicState | None = None  # before the positions of `start` were stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Makes the task finish what is in flight, store positions, and wait for the next assignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Makes the process finish what is in flight, store positions, and end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetLogLevel:
    """Sets the level of a logger and all loggers below it."""

    logger: str
    level: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteReplays:
    """Makes the task write what its partitions did lately into files, for a developer."""


Message = Begin | Assign | Finish | Stop | SetLogLevel | WriteReplays


def encode(message: Message) -> bytes:
    """Returns *message* as it is written to the pipe."""
    body = pickle.dumps(message, protocol=5)
    return _SIZE.pack(len(body)) + body


async def read(stream: asyncio.StreamReader) -> Message | None:
    """Returns the next message; None if the worker has ended."""
    try:
        size = _SIZE.unpack(await stream.readexactly(_SIZE.size))[0]
        message: Message = pickle.loads(await stream.readexactly(size))  # noqa: S301 from our own parent
    except asyncio.IncompleteReadError:
        return None
    return message
