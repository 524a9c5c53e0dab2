"""What a worker tells a task process, through its stdin. Pickled, because both are the same program on the same machine;
what comes back are the JSON lines of `runtime.reporting`.
"""

import asyncio
import pickle
import struct
from dataclasses import dataclass

from mirrorflow_replicator.flow.identity import Identity
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.settings import SourceSettings

_SIZE = struct.Struct(">I")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The first message: who you are. Clients are connected at once, to be warm when the work comes."""

    settings: SourceSettings
    task: int
    copier: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Assign:
    """Copy exactly these partitions. `initial`: they were there when the flow began; `gone`: their copier is dead."""

    identity: Identity
    partitions: tuple[TopicPartition, ...]
    initial: bool
    gone: bool
    bytes_per_s: int | None = None  # this task's share of the flow's limit
    claimed: bool = False  # the partitions' former tasks, who may be Java's, have been fenced just now
    own: Identity | None = (
        None  # what it writes with in transactions of its own; None: with the flow's identity
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Finish what is in flight, write positions, end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """Set the level of a logger and all below it."""

    logger: str
    level: str


Message = Begin | Assign | Stop | Level


def encode(message: Message) -> bytes:
    """A message as it goes through the pipe."""
    body = pickle.dumps(message, protocol=5)
    return _SIZE.pack(len(body)) + body


async def read(stream: asyncio.StreamReader) -> Message | None:
    """The next message; None when the worker is gone."""
    try:
        size = _SIZE.unpack(await stream.readexactly(_SIZE.size))[0]
        message: Message = pickle.loads(await stream.readexactly(size))  # noqa: S301 from our own parent
    except asyncio.IncompleteReadError:
        return None
    return message
