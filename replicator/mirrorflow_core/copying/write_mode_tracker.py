"""Tracks in which mode one partition is written, and under which producer and sequence numbers.

    plain batches ── gap, old record ──> position stored ──> transactions
          ^                                                        │
          └────────── position stored <── young, no gaps ──────────┘

`mirrorflow_core.writer.write_mode` decides; `copying.transaction` stores the position. Guarantee: plain batches after a
stored position hold consecutive source offsets of one leader epoch, so that the end lookup counts them by their sequence
numbers.
"""

from dataclasses import replace

from mirrorflow_core.partitions import UNKNOWN
from mirrorflow_core.wire.batch import Batch
from mirrorflow_core.writer.broker_requests import Producer
from mirrorflow_core.writer.flow_plan import WritePoint
from mirrorflow_core.writer.position import WriteMode
from mirrorflow_core.writer.transaction_log import SEQUENCES
from mirrorflow_core.writer.write_mode import ChangeMode, PartitionMode, SourceBatch


class WriteModeTracker:
    """The mode of one partition in one session of its task. Ordinals count the records since the count began."""

    def __init__(
        self,
        point: WritePoint,
        producers: dict[WriteMode, Producer],
        *,
        is_fenced: bool = True,
        earlier: "WriteModeTracker | None" = None,
    ) -> None:
        """If others cannot be fenced, all batches are plain. *earlier* is of the last session."""
        self.change: ChangeMode | None = None  # what the partition waits for
        self._producers = producers
        self._is_fenced = is_fenced
        self._state: PartitionMode = PartitionMode(
            mode=WriteMode.PLAIN,
            next_source_offset=point.next_source_offset,
            source_epoch=point.source_epoch,
        )
        if earlier is not None:
            before = earlier._state  # noqa: SLF001 it is of this class
            self._state = replace(
                self._state,
                last_gap_ms=before.last_gap_ms,
                stays_in_transactions=before.stays_in_transactions,
            )
        # Whether batches are written outside of transactions now. An attribute, because it is read several times a batch.
        self.is_plain = True
        # The end of what was taken; in plain batches it is newer than that of `_state`.
        self._next_source_offset = point.next_source_offset
        self._source_epoch: int | None = point.source_epoch
        self._written = dict.fromkeys(WriteMode, 0)  # records of the modes before the current one
        self._began = max(0, point.records)  # the ordinal at which the current mode began

    @property
    def current(self) -> WriteMode:
        """The current mode."""
        return self._state.mode

    @property
    def producer(self) -> Producer:
        """The producer of the current mode."""
        return self._producers[self._state.mode]

    @property
    def first_ordinal(self) -> int:
        """The ordinal that sequence number 0 of the current producer has."""
        return self._began - self._written[self._state.mode]

    def plain_sequence(self, ordinal: int) -> int:
        """Returns the last sequence number of plain batches up to *ordinal*; -1: none yet."""
        records = self._written[WriteMode.PLAIN] + (ordinal + 1 - self._began if self.is_plain else 0)
        return (records - 1) % SEQUENCES if records else UNKNOWN

    def check(self, batch: Batch, from_offset: int, *, now_ms: int, age_limit_ms: int) -> ChangeMode | None:
        """Returns what must happen before *batch* is written from *from_offset* on; None: nothing.

        A target with LogAppendTime is no exception. There no record is old, but that can change at any time.
        """
        if not self._is_fenced:
            return None
        oldest = min(batch.max_timestamp, batch.base_timestamp)
        is_whole = batch.count == batch.last_offset_delta + 1
        first = from_offset if is_whole and from_offset > batch.base_offset else batch.base_offset
        if (
            self.is_plain
            and not self._state.stays_in_transactions
            and is_whole
            and first == self._next_source_offset
            and batch.leader_epoch == self._source_epoch
            and age_limit_ms
            and now_ms - oldest < age_limit_ms
        ):
            return None
        # A compressed set of magic 0 or 1 has the offset of its last record.
        source_batch = SourceBatch(
            first_offset=max(batch.base_offset, from_offset) if batch.magic > 1 else from_offset,
            next_offset=batch.next_offset,
            records=batch.next_offset - first if is_whole else UNKNOWN,
            leader_epoch=batch.leader_epoch,
            oldest_timestamp=oldest,
        )
        decision = self._present.decide(source_batch, now_ms=now_ms, age_limit_ms=age_limit_ms)
        return decision if isinstance(decision, ChangeMode) else None

    def refuse_plain(self, next_source_offset: int) -> ChangeMode:
        """Returns the change that an old record at *next_source_offset* needs, which its batch did not show."""
        epoch = UNKNOWN if self._source_epoch is None else self._source_epoch
        return ChangeMode(WriteMode.TRANSACTION, next_source_offset, epoch)

    def taken(self, next_source_offset: int, source_epoch: int) -> None:
        """Notes that all records before *next_source_offset*, the last of *source_epoch*, were sent."""
        self._next_source_offset, self._source_epoch = next_source_offset, source_epoch

    def rewind(self, next_source_offset: int, *, is_after_gap: bool) -> None:
        """Continues at *next_source_offset*. The epoch is forgotten, so that a position is stored first.

        Batches of magic 0 and 1 have no epoch: of them, one is stored first if records before them were passed over.
        """
        self._next_source_offset = next_source_offset
        self._source_epoch = None if is_after_gap else UNKNOWN
        self.change = None

    def want(self, change: ChangeMode) -> None:
        """Waits for *change*, whose position is to be committed."""
        self.change = change

    def apply(self, change: ChangeMode, ordinal: int, now_ms: int) -> None:
        """Continues as *change* says, with the record of *ordinal*; its position is committed."""
        self._written[self.current] += ordinal - self._began
        self._began = ordinal
        self._state = self._present.changed(change, now_ms)
        self.is_plain = change.mode is WriteMode.PLAIN
        self._next_source_offset, self._source_epoch = change.next_source_offset, change.source_epoch
        self.change = None

    @property
    def _present(self) -> PartitionMode:
        return replace(
            self._state, next_source_offset=self._next_source_offset, source_epoch=self._source_epoch
        )
