"""Tracks whether one partition's batches are written inside the task's transaction.

    out ── change of form ──> wanted ── joined ──> inside ── commit ──> held ── marker written ──> inside, or out

`copy.task_transaction` decides when to join and when to commit. Guarantee: nothing is sent while the partition is held.
"""

from typing import TYPE_CHECKING

from mirrorflow_replicator.copy.batch_packer import ANY_AGE_MS, NO_AGE_MS

if TYPE_CHECKING:
    from mirrorflow_replicator.copy.partition_copier import PartitionCopier


class TransactionMember:
    """One partition copier's membership in its task's transaction."""

    __slots__ = ("_lane", "is_held")

    def __init__(self, lane: "PartitionCopier") -> None:
        self._lane = lane
        # Nothing is sent: a commit is under way, or a transaction is open that the partition is not in.
        self.is_held = False

    def want(self) -> None:
        """Asks to be taken into the transaction; copying continues then."""
        self._lane.around.writer.want(self._lane)

    def join(self) -> None:
        """Sends everything inside the transaction from now on."""
        lane = self._lane
        self.is_held = False
        lane.packer.transactional = True
        producer = lane.packer.producer
        lane.transactional_id = None if producer is None else producer.transactional_id
        if lane.pipe is not None:
            lane.pipe.ready(lane)

    def hold(self) -> None:
        """Sends nothing until `release`: a commit follows."""
        self.is_held = True

    def release(self, *, marked: bool) -> None:
        """Ends the hold after a commit. *marked*: only its marker lies behind what was delivered."""
        lane = self._lane
        self.is_held = False
        self.doubted()
        if marked and lane.stream is not None:
            lane.stream.pass_markers(1)
            lane.around.changed(lane)
        if lane.pipe is not None:
            lane.pipe.ready(lane)

    @property
    def old_before_ms(self) -> int:
        """Batches with a timestamp below this go inside the transaction."""
        lane = self._lane
        if lane.form is None or not lane.form.is_plain:
            return ANY_AGE_MS
        is_ageless = lane.target_topic in lane.around.stamped or not lane.around.is_fenced
        return NO_AGE_MS if is_ageless else lane.around.old_before_ms

    def doubted(self) -> None:
        """Forgets whether the partition is in a transaction."""
        self._lane.packer.transactional = False
        self._lane.transactional_id = None

    def found(self, *, is_open: bool) -> None:
        """Notes whether the task's open transaction has the partition: then it sends inside it only."""
        self.is_held = is_open
        if is_open:
            self.want()
