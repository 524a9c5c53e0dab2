"""Tracks whether one partition's batches go inside the shared transaction, and what of them is committed.

    out ── old batch ──> wanted ── joined ──> inside ── commit ──> held ── marker written ──> inside, or out
                           └──────────────── doubt ────────────────┘

`copy.shared_transaction` decides when to join and when to commit. Guarantees: nothing is sent while the
partition is held; a record that may still be aborted is in no stored offset; a partition that joined leaves
only by a commit that includes it (`must_commit`).
"""

from typing import TYPE_CHECKING

from mirrorflow_core.exactly_once.alignment import OffsetPair
from mirrorflow_core.exactly_once.stream import Span
from mirrorflow_replicator.copy.batch_packer import ANY_AGE_MS, NO_AGE_MS

# Between two questions to the target: one commit's, and that of a coordinator that wrote its marker again.
MARKERS_MAX = 2

# Consecutive refusals of one sequence number by a leader that expects it. The first may be late: another
# copier may have brought the leader this far since. A next generation ends the others, but each partition of
# the flow then begins again.
BLOCKED_TIMES_MIN = 3

OLD_TIMESTAMPS = "OldTimestamps"

if TYPE_CHECKING:
    from mirrorflow_replicator.copy.partition_copier import PartitionCopier


class TransactionMember:
    """One partition copier's membership in the flow's shared transaction."""

    __slots__ = (
        "_lane",
        "_refused_ordinal",
        "_refused_times",
        "_settled",
        "is_held",
        "is_open",
        "must_commit",
    )

    def __init__(self, lane: "PartitionCopier") -> None:
        self._lane = lane
        # Nothing is sent: a commit is under way, or a transaction is open that the partition is not in.
        self.is_held = False
        self.is_open = False  # some of what was delivered may be in an uncommitted transaction
        # A leader that refuses a batch inside a transaction remembers its sequence number (KIP-890,
        # VerificationStateEntry), and refuses all later ones outside of a transaction until a marker or a
        # transactional append clears that.
        self.must_commit = False
        self._refused_ordinal, self._refused_times = -1, 0  # refused by a leader that expects it
        self._settled: OffsetPair | None = None  # while it is open: the last record known as committed

    @property
    def settled(self) -> OffsetPair | None:
        """The last record that no abort can remove; None if unknown."""
        stream = self._lane.stream
        return self._settled if self.is_open or stream is None else stream.delivered

    def want(self) -> None:
        """Asks to be taken into the transaction; copying continues then."""
        pinning = self._lane.around.pinning
        if pinning is not None:
            pinning.want(self._lane)

    def join(self) -> None:
        """Sends everything inside the transaction from now on."""
        lane = self._lane
        self._settled, self.is_open, self.is_held = self.settled, True, False
        self.must_commit = True
        lane.packer.transactional = True
        identity = lane.packer.identity
        lane.transactional_id = None if identity is None else identity.transactional_id
        if lane.pipe is not None:
            lane.pipe.ready(lane)

    def hold(self) -> None:
        """Sends nothing until `release`: a commit follows."""
        self.is_held = True

    def commit(self, delivered: OffsetPair) -> None:
        """Notes that *delivered*, the last record when the commit was requested, is committed."""
        stream = self._lane.stream
        if stream is not None and stream.delivered.ordinal < delivered.ordinal:
            return  # the target lost its tail since
        self._settled = delivered
        self._lane.around.changed(self._lane)

    def release(self, *, marked: bool) -> None:
        """Ends the hold after a commit. *marked*: only its marker lies behind what was delivered."""
        lane = self._lane
        self.is_held = False
        if marked or not lane.around.can_pin:
            self.must_commit = False
        self.doubted()
        if marked and lane.stream is not None:
            self.is_open = False
            lane.stream.pass_markers(1)
            lane.around.changed(lane)
        if lane.pipe is not None:
            lane.pipe.ready(lane)

    @property
    def old_before_ms(self) -> int:
        """Batches with a timestamp below this go inside the transaction."""
        lane = self._lane
        if lane.form is not None:
            if not lane.form.is_plain:
                return ANY_AGE_MS
            return NO_AGE_MS if lane.target_topic in lane.around.stamped else lane.around.old_before_ms
        return ANY_AGE_MS if self.must_commit else lane.around.pin_before_ms

    def refused_by_a_leader_that_expects_it(self, ordinal: int) -> None:
        """Notes that the leader refused *ordinal*, the next one by its own account.

        A commit clears what the leader remembers.
        """
        self.must_commit = self._lane.around.can_pin
        self._refused_times = self._refused_times + 1 if ordinal == self._refused_ordinal else 1
        self._refused_ordinal = ordinal

    def is_blocked_at(self, ordinal: int) -> bool:
        """Returns whether the leader keeps refusing *ordinal*, the next one, and no commit can clear it.

        That lasts as long as it remembers producers.
        """
        is_refused = ordinal == self._refused_ordinal and self._refused_times >= BLOCKED_TIMES_MIN
        return is_refused and not self._lane.around.can_pin

    def judge(self, span: Span) -> None:
        """Notes whether *span*, about to be sent, is old.

        Without a transaction, old records have a single writer.
        """
        lane, around = self._lane, self._lane.around
        old = span.max_timestamp < around.old_before_ms
        if old != lane.single_writer:
            lane.single_writer = old
            # Behind an old record the leader may have forgotten the identity: the first fresh batch must be
            # acknowledged alone.
            lane.alone = lane.alone or not old
            why = OLD_TIMESTAMPS if around.pinning is None else around.pinning.unavailable
            lane.guarantee_reason = why if old else ""

    def doubted(self) -> None:
        """Forgets whether the partition is in a transaction."""
        self._lane.packer.transactional = False
        self._lane.transactional_id = None

    def explains(self, grown: int) -> bool:
        """Returns whether commits of other copiers explain that the target has *grown* by so many offsets."""
        return self.is_open and 0 < grown <= MARKERS_MAX

    def found(self, *, is_open: bool, grown: int) -> None:
        """Notes whether the target partition is in an uncommitted transaction of the flow.

        *grown*: number of offsets behind this flow's last record, if the leader remembers that record as the
        last; else 0.
        """
        stream = self._lane.stream
        if stream is not None and self.explains(grown):
            stream.pass_markers(grown)
        if is_open and not self.is_open:
            self._settled = None
        self.is_open = is_open
        self.is_held = is_open and self._lane.around.can_pin
        if self.is_held:
            # The leader takes only batches inside that transaction, and some copier has to commit it.
            self.want()
