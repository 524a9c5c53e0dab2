"""A lane's side of the pin: whether its batches go inside the open transaction, and what of them is committed.

    out ── old batch ──> wanted ── joined ──> pinned ── commit ──> held ── marker written ──> pinned, or out
                           └──────────────── doubt ────────────────┘

When to join and to commit is `runtime.pinning`'s. What is promised here: nothing is sent while it is held; what may still be
aborted is in no position.
"""

from typing import TYPE_CHECKING

from mirrorflow_replicator.flow.alignment import Pair
from mirrorflow_replicator.flow.stream import Span

# Between two questions: of one commit, and of a coordinator that wrote its marker again.
MARKERS_MAX = 2

OLD_TIMESTAMPS = "OldTimestamps"

if TYPE_CHECKING:
    from mirrorflow_replicator.runtime.lane import Lane


class Pinned:
    """See the module."""

    __slots__ = ("_lane", "_settled", "is_held", "is_open")

    def __init__(self, lane: "Lane") -> None:
        self._lane = lane
        # Nothing is sent: a commit is under way, or a transaction is open that it is not in.
        self.is_held = False
        self.is_open = False  # some of what was delivered may be in a transaction that is not committed
        self._settled: Pair | None = None  # if it is open: the last that is

    @property
    def settled(self) -> Pair | None:
        """The last record that nothing can take back; None if that is not known."""
        stream = self._lane.stream
        return self._settled if self.is_open or stream is None else stream.delivered

    def want(self) -> None:
        """Go on when the lane has been taken into the transaction."""
        pinning = self._lane.around.pinning
        if pinning is not None:
            pinning.want(self._lane)

    def join(self) -> None:
        """What is sent from now on goes inside the transaction."""
        lane = self._lane
        self._settled, self.is_open, self.is_held = self.settled, True, False
        lane.packer.transactional = True
        identity = lane.packer.identity
        lane.transactional_id = None if identity is None else identity.transactional_id
        if lane.pipe is not None:
            lane.pipe.ready(lane)

    def hold(self) -> None:
        """Send nothing: a commit is to come."""
        self.is_held = True

    def commit(self, delivered: Pair) -> None:
        """What was *delivered* when the commit was asked for is committed."""
        stream = self._lane.stream
        if stream is not None and stream.delivered.ordinal < delivered.ordinal:
            return  # the target has lost its tail since
        self._settled = delivered
        self._lane.around.changed(self._lane)

    def release(self, *, marked: bool) -> None:
        """The commit is over. *marked*: nothing but its marker lies behind what was delivered."""
        lane = self._lane
        self.is_held = False
        self.doubted()
        if marked and lane.stream is not None:
            self.is_open = False
            lane.stream.pass_markers(1)
            lane.around.changed(lane)
        if lane.pipe is not None:
            lane.pipe.ready(lane)

    def judge(self, span: Span) -> None:
        """Without a transaction there is a single writer of old records; *span* is about to be sent."""
        lane, around = self._lane, self._lane.around
        old = span.max_timestamp < around.now_ms - around.old_after_ms
        if old != lane.single_writer:
            lane.single_writer = old
            # Behind an old record the leader may have forgotten us: the first new one has to be acknowledged alone.
            lane.alone = lane.alone or not old
            why = OLD_TIMESTAMPS if around.pinning is None else around.pinning.unavailable
            lane.guarantee_reason = why if old else ""

    def doubted(self) -> None:
        """Whether it is in a transaction is not known any more."""
        self._lane.packer.transactional = False
        self._lane.transactional_id = None

    def explains(self, grown: int) -> bool:
        """Whether the target is *grown* by so many offsets because others have committed."""
        return self.is_open and 0 < grown <= MARKERS_MAX

    def found(self, *, is_open: bool, grown: int) -> None:
        """The target was asked: its partition is, or is not, in a transaction of the flow that is not committed.

        *grown*: offsets behind the last record of ours, of a leader that remembers it as the last.
        """
        stream = self._lane.stream
        if stream is not None and self.explains(grown):
            stream.pass_markers(grown)
        if is_open and not self.is_open:
            self._settled = None
        self.is_open = is_open
        self.is_held = is_open and self._lane.around.can_pin
        if self.is_held:
            # Inside it, or not at all: the leader takes nothing else. And somebody has to commit it.
            self.want()
