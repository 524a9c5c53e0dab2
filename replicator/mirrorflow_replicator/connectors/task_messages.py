"""The messages from a worker to a task process, through the process's stdin.

They are pickled, because both are the same program on the same machine; the process answers with the JSON
lines of `copy.partition_reports`.
"""

import asyncio
import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import AcknowledgedPosition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.writer.flow_plan import TaskStart
from mirrorflow_kafka.writer.producer_transactions import SequenceKey

_SIZE = struct.Struct(">I")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The first message: the task's settings and ids. Clients connect at once, to be warm when the work comes."""

    settings: SourceSettings
    task: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAssignment:
    """What a task copies. `initial`: the partitions existed when the flow began."""

    partitions: tuple[TopicPartition, ...]
    initial: bool
    bytes_per_s: int | None = None  # this task's share of the flow's limit
    acknowledged: tuple[AcknowledgedPosition, ...] = ()  # by the task's start before; not stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Copy exactly the partitions of the assignment, as `start` says."""

    assignment: TaskAssignment
    start: TaskStart
    # The next sequence numbers of the producers of `start`, which have stored positions already.
    sequences: Mapping[SequenceKey, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """Finish what is in flight, store positions, and wait for the next assignment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Finish what is in flight, store offsets, end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Set the level of a logger and all below it."""

    logger: str
    level: str


Message = Begin | Assign | Finish | Stop | Level


def encode(message: Message) -> bytes:
    """Returns *message* as it is written to the pipe."""
    body = pickle.dumps(message, protocol=5)
    return _SIZE.pack(len(body)) + body


async def read(stream: asyncio.StreamReader) -> Message | None:
    """Returns the next message; None when the worker is gone."""
    try:
        size = _SIZE.unpack(await stream.readexactly(_SIZE.size))[0]
        message: Message = pickle.loads(await stream.readexactly(size))  # noqa: S301 from our own parent
    except asyncio.IncompleteReadError:
        return None
    return message
