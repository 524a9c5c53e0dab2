"""The effects that a copied partition asks its shell to carry out.

Every event of `copying.partition` returns a tuple of them, in the order in which they are carried out. Those of the usual way
of a batch are constants, so that a batch allocates none.
"""

from enum import Enum
from typing import Final, NamedTuple

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.partitions import OffsetPair
from mirrorflow_core.writer.stream import Span


class Signal(Enum):
    """The effects that need no more than their partition."""

    READY = "its connection may take a batch"
    FETCH = "what it fetches next has changed"
    REPORT = "its report has changed"
    JOIN_TRANSACTION = "it waits for the transaction of its task: to be a member, or to change its mode"
    REFRESH_LEADER = "its leaders are looked up again"
    RESUME = "it has nothing in flight, and waits for `resumed`"
    RESUME_LATER = "as RESUME, after a pause: it was refused again and again"
    DRAINED = "it sends nothing more for now, and has nothing in flight"


class ReadFrom(NamedTuple):
    """Fetch from this broker, which the leader prefers (KIP-392)."""

    node_id: int


class ResolveLoss(NamedTuple):
    """Ask where the source's log begins and ends: *offset* is not in it. Answered by `loss_resolved`.

    *resyncs* is the number of resyncs of the partition so far.
    """

    offset: int
    resyncs: int


class ReadBatchLimit(NamedTuple):
    """Read how large batches may be on the target, which has refused *span* for its size."""

    span: Span


class Align(NamedTuple):
    """Note for offset syncs and maps that copying continues after *pair*. *was_cut_off*: the last writer has not left."""

    pair: OffsetPair
    was_cut_off: bool


class Count(NamedTuple):
    """Count an error of a broker by its name."""

    name: str


class Retry(Enum):
    """When a stopped partition is tried again."""

    NEVER = "a person decides, and restarts the process"
    LATER = "the cause may be fixed without any event here: an ACL, a full disk"
    WITH_NEW_LIMIT = "later, when the settings of the target topic are read"


class StopPartition(NamedTuple):
    """Report that the partition has stopped."""

    error: MirrorFlowError
    retry: Retry


class Alert(NamedTuple):
    """Report a loss after which the loss policy continues."""

    error: MirrorFlowError


class EndSession(NamedTuple):
    """End the session of the task: its next one finds in the logs what was written."""

    reason: str


Effect = Signal | ReadFrom | ResolveLoss | ReadBatchLimit | Align | Count | StopPartition | Alert | EndSession
Effects = tuple[Effect, ...]

NOTHING: Final[Effects] = ()
READY: Final[Effects] = (Signal.READY,)
FETCH: Final[Effects] = (Signal.FETCH,)
READY_AND_FETCH: Final[Effects] = (Signal.READY, Signal.FETCH)
REPORT: Final[Effects] = (Signal.REPORT,)
REPORT_AND_READY: Final[Effects] = (Signal.REPORT, Signal.READY)
JOIN: Final[Effects] = (Signal.JOIN_TRANSACTION,)
