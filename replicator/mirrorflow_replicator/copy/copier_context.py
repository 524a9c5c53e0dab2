"""The context of partition copiers: their states, the callbacks they use, and what those of a task share."""

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from mirrorflow_core.errors import MirrorFlowError, PartitionError
from mirrorflow_core.exactly_once.stream import Span
from mirrorflow_core.wire.fetch import FetchedPartition
from mirrorflow_core.writer.form import plain_age_limit_ms
from mirrorflow_replicator.copy.batch_packer import ANY_AGE_MS, NO_AGE_MS

if TYPE_CHECKING:
    from mirrorflow_replicator.copy.offset_sync_writer import OffsetSyncWriter
    from mirrorflow_replicator.copy.partition_copier import PartitionCopier
    from mirrorflow_replicator.copy.shared_transaction import SharedTransaction
    from mirrorflow_replicator.copy.task_transaction import TaskTransaction


# What a copier has sent may arrive this late: TCP gives up after a quarter of an hour, and brokers close idle
# connections after ten minutes. A leader that forgets sooner would accept it as new, except inside a
# transaction, which it verifies (KIP-890).
LATE_BYTES_MS = 30 * 60_000


class CopierState(Enum):
    """The states of a partition copier; `copy.partition_copier` has the diagram."""

    ASKING = "asking"
    COPYING = "copying"
    WAITING = "waiting"
    STOPPED = "stopped"
    LEAVING = "leaving"


class CopierContext:
    """What all partition copiers of a task share, and the callbacks they use. The task fills it in."""

    def __init__(
        self,
        *,
        read_committed: bool,
        doubtful: Callable[["PartitionCopier"], None],
        source_trouble: Callable[["PartitionCopier", int, FetchedPartition], None],
        refused: Callable[["PartitionCopier", int, str, Span], None],
        stopped: Callable[["PartitionCopier", MirrorFlowError], None],
        changed: Callable[["PartitionCopier"], None],
        clock_ms: Callable[[], int],
        syncs: "OffsetSyncWriter | None" = None,
        pinning: "SharedTransaction | TaskTransaction | None" = None,
        stamped: set[str] | None = None,
    ) -> None:
        self.read_committed = read_committed
        self.doubtful = doubtful
        self.source_trouble = source_trouble
        self.refused = refused
        self.stopped = stopped
        self.changed = changed
        self.syncs = syncs  # None: no offset syncs are written
        self.pinning = pinning
        self.now_ms = clock_ms()
        self._clock_ms = clock_ms
        self.buffered_bytes = 0
        # Target topics known to use LogAppendTime.
        self.stamped: set[str] = set() if stamped is None else stamped
        # After that a leader may have forgotten the producer of a record (clause 3); half of Kafka's default
        # until the target was asked.
        self.forgotten_after_ms = 12 * 3_600_000
        # Records with an older timestamp are protected only inside a transaction ...
        self.old_before_ms = NO_AGE_MS
        # ... and go inside one, where that is possible.
        self.pin_before_ms = NO_AGE_MS

    @property
    def can_pin(self) -> bool:
        """Returns whether old records can go inside a transaction. Otherwise they have a single writer."""
        return self.pinning is not None and not self.pinning.unavailable

    def may_be_another(self, lane: "PartitionCopier") -> bool:
        """Returns whether an answer with a timestamp may be about another batch than the one sent.

        Not in transactions of a fenced task. The timestamp itself does not matter: another copier may have read records
        that compaction has removed since, and another producer may have written in the same millisecond.
        """
        is_stamped = lane.target_topic in self.stamped
        if lane.form is not None:
            return lane.form.is_plain and not is_stamped
        return lane.is_compacted or not is_stamped

    @property
    def plain_age_limit_ms(self) -> int:
        """The age from which records of a fenced task go in transactions; 0: all do."""
        return plain_age_limit_ms(2 * self.forgotten_after_ms)

    def look_at_clock(self) -> None:
        """Updates `now_ms` and what depends on it.

        Called before anything is sent, and when anything is answered.
        """
        self.now_ms = self._clock_ms()
        any_age = self.forgotten_after_ms < LATE_BYTES_MS
        self.old_before_ms = ANY_AGE_MS if any_age else self.now_ms - self.forgotten_after_ms
        self.pin_before_ms = self.old_before_ms if self.can_pin else NO_AGE_MS


class Repeat(NamedTuple):
    """An answer that the leader already had a batch: what was sent, and where the leader's batch lies."""

    span: Span
    base_offset: int


class RefusedRecords(NamedTuple):
    """Records that the target refuses and that are left out: `ordinal` is that of the first of them."""

    ordinal: int
    next_offset: int  # the source offset behind them
    error: PartitionError


class DetectedLoss(NamedTuple):
    """Lost source records: the offset to be read next, the offset there is instead, and how it came about."""

    wanted: int
    found: int
    how: str
