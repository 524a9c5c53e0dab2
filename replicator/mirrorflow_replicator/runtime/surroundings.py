"""What lanes have around them: the states they can be in, whom they call, what they share."""

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from mirrorflow_replicator.errors import MirrorFlowError
from mirrorflow_replicator.flow.stream import Span
from mirrorflow_replicator.runtime.packing import ANY_AGE_MS, NO_AGE_MS
from mirrorflow_replicator.wire.fetch import FetchedPartition

if TYPE_CHECKING:
    from mirrorflow_replicator.runtime.lane import Lane
    from mirrorflow_replicator.runtime.pinning import Pinning
    from mirrorflow_replicator.runtime.syncing import Syncing


class State(Enum):
    """See the picture in `runtime.lane`."""

    ASKING = "asking"
    COPYING = "copying"
    WAITING = "waiting"
    STOPPED = "stopped"
    LEAVING = "leaving"


class Surroundings:
    """What all lanes of a task share, and whom they call. The task fills it in."""

    def __init__(
        self,
        *,
        read_committed: bool,
        doubtful: Callable[["Lane"], None],
        source_trouble: Callable[["Lane", int, FetchedPartition], None],
        refused: Callable[["Lane", int, str, Span], None],
        stopped: Callable[["Lane", MirrorFlowError], None],
        changed: Callable[["Lane"], None],
        clock_ms: Callable[[], int],
        syncs: "Syncing | None" = None,
        pinning: "Pinning | None" = None,
        pins_all: bool = False,
    ) -> None:
        self.read_committed = read_committed
        self.doubtful = doubtful
        self.source_trouble = source_trouble
        self.refused = refused
        self.stopped = stopped
        self.changed = changed
        self.syncs = syncs  # None: no offset syncs are written
        self.pinning = pinning
        self._pins_all = pins_all  # whatever their age, all records go inside a transaction
        self.now_ms = clock_ms()
        self._clock_ms = clock_ms
        self.buffered_bytes = 0
        # Older than this, and the target's leaders may forget us (clause 3); half of Kafka's default until the target was asked.
        self.old_after_ms = 12 * 3_600_000
        self.pin_before_ms = NO_AGE_MS  # records with an older timestamp go inside a transaction

    @property
    def can_pin(self) -> bool:
        """Whether old records can go inside a transaction; else there is a single writer of them."""
        return self.pinning is not None and not self.pinning.unavailable

    def look_at_clock(self) -> None:
        """Set `now_ms`: before anything is sent and when something is answered, for all that is sent or answered then."""
        self.now_ms = self._clock_ms()
        if self._pins_all:
            self.pin_before_ms = ANY_AGE_MS
            return
        self.pin_before_ms = self.now_ms - self.old_after_ms if self.can_pin else NO_AGE_MS


class Loss(NamedTuple):
    """Source records that are gone: the offset that was to be read, what there is instead, and how it came about."""

    wanted: int
    found: int
    how: str
