"""What is wrong with a partition, for its report: the error that stops or delays it, and why it makes no progress.

The state machine (`copying.partition`) notes errors and obstacles; the stall watch of the shell judges from them whether the
partition is stalled. Within a session, nothing here decides what the partition does next.
"""

from dataclasses import dataclass, replace

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.stall_detection import Obstacle, Stalled


@dataclass(slots=True)
class PartitionHealth:
    """The health of one partition in one session."""

    error: MirrorFlowError | None = None  # that stops or delays it
    is_halted: bool = False  # `error` stopped it, and nothing has shown yet that the cause is gone
    obstacle: Obstacle | None = None  # the newest one since the last progress
    stalled: Stalled | None = None  # why it makes no progress

    def stopped(self, error: MirrorFlowError) -> None:
        """Notes that *error* stopped the partition."""
        self.is_halted, self.error = True, _without_frames(error)

    def left_out(self, error: MirrorFlowError) -> None:
        """Notes that the session leaves the partition out because of *error*."""
        self.is_halted, self.error = False, error

    def delayed(self, error: MirrorFlowError) -> bool:
        """Notes that *error* delays the partition, and returns True; if one has stopped it, notes nothing and returns False."""
        if self.is_halted:
            return False
        self.error = _without_frames(error)
        return True

    def resumed(self) -> None:
        """Notes that the partition copies again. An error that stopped it stays until a record shows that it is gone."""
        if not self.is_halted:
            self.error = None

    def recovered(self) -> bool:
        """Clears the error, because a record was read or copied; returns whether there was one."""
        if self.error is None:
            return False
        self.is_halted, self.error = False, None
        return True

    def note_obstacle(self, obstacle: Obstacle | None) -> None:
        """Notes what the partition has met since its last progress; None: it has made progress."""
        self.obstacle = None if obstacle is None else obstacle.after(self.obstacle)

    def note_stall(self, stalled: Stalled | None) -> None:
        """Notes why the partition makes no progress; None: it does."""
        self.stalled = stalled

    def without_stall(self) -> "PartitionHealth":
        """Returns what follows from the events of the partition alone, for its event log."""
        return replace(self, obstacle=None, stalled=None)


def _without_frames(error: MirrorFlowError) -> MirrorFlowError:
    return error.with_traceback(None)  # whose frames hold a fetch response
