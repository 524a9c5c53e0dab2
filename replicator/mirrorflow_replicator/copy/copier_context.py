"""The context of partition copiers: their states, the callbacks they use, and what those of a task share."""

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from mirrorflow_core.errors import MirrorFlowError, PartitionError
from mirrorflow_core.wire.fetch import PartitionFetchResponse
from mirrorflow_core.writer.broker_requests import Producer
from mirrorflow_core.writer.stream import Span
from mirrorflow_core.writer.write_mode import plain_age_limit_ms
from mirrorflow_replicator.copy.batch_packer import ANY_AGE_MS

if TYPE_CHECKING:
    from mirrorflow_replicator.copy.offset_sync_writer import OffsetSyncWriter
    from mirrorflow_replicator.copy.partition_copier import PartitionCopier
    from mirrorflow_replicator.copy.partition_writer import PartitionWriter
    from mirrorflow_replicator.copy.position_writer import TaskWriter

PRODUCER_EXPIRATION_MS = 86_400_000  # Kafka's default, until the target's setting is read


class CopierState(Enum):
    """The states of a partition copier; `copy.partition_copier` has the diagram."""

    RESUMING = "resuming"
    COPYING = "copying"
    STOPPED = "stopped"
    LEAVING = "leaving"


class CopierContext:
    """What all partition copiers of a task share, and the callbacks they use. The task fills it in."""

    def __init__(
        self,
        *,
        read_committed: bool,
        schedule_resume: Callable[["PartitionCopier"], None],
        on_fetch_error: Callable[["PartitionCopier", int, PartitionFetchResponse], None],
        on_produce_error: Callable[["PartitionCopier", int, str, Span], None],
        stopped: Callable[["PartitionCopier", MirrorFlowError], None],
        changed: Callable[["PartitionCopier"], None],
        clock_ms: Callable[[], int],
        writer: "TaskWriter",
        plain_producer: Producer,
        syncs: "OffsetSyncWriter | None" = None,
        log_append_time_topics: set[str] | None = None,
        unfenced_why: str = "",
    ) -> None:
        self.read_committed = read_committed
        self.schedule_resume = schedule_resume
        self.on_fetch_error = on_fetch_error
        self.on_produce_error = on_produce_error
        self.stopped = stopped
        self.changed = changed
        self.syncs = syncs  # None: no offset syncs are written
        self.writer = writer
        self.plain_producer = plain_producer
        self.unfenced_why = unfenced_why
        self.is_fenced = not unfenced_why  # the task is the only writer of its partitions
        self._clock_ms = clock_ms
        self.buffered_bytes = 0
        # Target topics known to use LogAppendTime: by their settings, and then by each response.
        self.log_append_time_topics: set[str] = (
            set() if log_append_time_topics is None else log_append_time_topics
        )
        # From this age on, records go in transactions; 0: all do.
        self.plain_age_limit_ms = plain_age_limit_ms(PRODUCER_EXPIRATION_MS)
        self.update_clock()

    def may_be_another(self, writing: "PartitionWriter") -> bool:
        """Returns whether a response with a timestamp may be about another batch than the one sent.

        Not in transactions. The timestamp itself does not matter: another producer may have written in the same
        millisecond.
        """
        return writing.mode.is_plain and writing.target_topic not in self.log_append_time_topics

    def count_buffered(self, bytes_more: int) -> None:
        """Counts what was fetched and not yet sent, over all partitions."""
        self.buffered_bytes += bytes_more

    def limit_plain_age(self, age_ms: int) -> None:
        """Writes older records in transactions; 0: all."""
        self.plain_age_limit_ms = age_ms
        self.update_clock()

    def update_clock(self) -> None:
        """Updates `now_ms`, and from which timestamp on records are young. Called before anything is sent, and when anything is answered."""
        self.now_ms = self._clock_ms()
        limit_ms = self.plain_age_limit_ms
        # Records with an older timestamp go in transactions.
        self.old_before_ms = self.now_ms - limit_ms if limit_ms else ANY_AGE_MS


class Repeat(NamedTuple):
    """A response which says that the leader already had the batch: what was sent, and where the leader's batch lies."""

    span: Span
    base_offset: int
    is_foreign: bool = False  # the leader's batch was found to be of another producer


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
