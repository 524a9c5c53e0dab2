"""What the state machine asks its shell to do.

Each action may be repeated: the shell reads what is there already and adds the rest. It carries out the actions in the given order, and
stops at the first that fails. Before each request that changes a cluster, not only before the action, it checks that it still holds the
switchover lock on both clusters (the target's alone, if the source does not respond, and in an unplanned switchover). An action has no result; the next
observation shows what it has done.
"""

from dataclasses import dataclass

from mirrorflow_core.switchover.observation import SwitchoverSide
from mirrorflow_core.switchover.record import ReverseStart, SwitchoverRecord
from mirrorflow_core.switchover.seal import Seal


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Store *record* in the journal of `record.written_first`; once that is acknowledged, in the other one.

    So no process finds a promotion on the source that the target does not know, and a target that is lost does not prevent a rollback.
    The states in between (FENCED) are stored in both at once: a process that resumes one of them reads both, and fences again.
    """

    record: SwitchoverRecord


@dataclass(frozen=True, slots=True)
class TryFence:
    """Fence a canary topic of the source, show that a write is refused, lift it, and show that a write is accepted."""


@dataclass(frozen=True, slots=True)
class FenceCluster:
    """Refuse writes of applications on *side*. The flows of the pair may write."""

    side: SwitchoverSide


@dataclass(frozen=True, slots=True)
class TryToFence:
    """Refuse writes of applications on the source, if it answers within seconds; what fails does not stop later actions."""


@dataclass(frozen=True, slots=True)
class LiftFence:
    """Remove what `FenceCluster` has set on *side*, and nothing else."""

    side: SwitchoverSide


@dataclass(frozen=True, slots=True)
class VerifySeal:
    """Compare both sides from the last verified offsets to the ends of *seal*."""

    seal: Seal


@dataclass(frozen=True, slots=True)
class FinishGroups:
    """Translate and commit the offsets of all groups at the target; no group moves back or past what is copied."""


@dataclass(frozen=True, slots=True)
class ClampGroups:
    """Commit the last checkpoints of all groups at the target, from the target alone; no group moves back or past its copy."""


@dataclass(frozen=True, slots=True)
class EndFlow:
    """End the forward flow by a claim that names *switchover*, and have its markers written in every log."""

    switchover: str


@dataclass(frozen=True, slots=True)
class ClearEnd:
    """Remove the end that *switchover* has set, so that the forward flow runs again; an end that another one set stays."""

    switchover: str


@dataclass(frozen=True, slots=True)
class SwitchEndpoint:
    """Lead clients to the member *to*."""

    to: str


@dataclass(frozen=True, slots=True)
class HoldReverse:
    """Keep the reverse flow, whose processes may be started at any time, from copying until `StartReverse`.

    Its claim names *switchover* then. One that an earlier switchover has ended is held already. It fails if the flow runs or has copied.
    """

    switchover: str


@dataclass(frozen=True, slots=True)
class ReleaseReverse:
    """Remove what `HoldReverse` has set for *switchover*; the end that another one set stays."""

    switchover: str


@dataclass(frozen=True, slots=True)
class StartReverse:
    """Store *starts* as positions of the reverse flow, under its lock and with the id of *switchover*, and let it run.

    An earlier end of that flow is cleared. Positions that this switchover has stored already are left as they are.
    """

    switchover: str
    starts: tuple[ReverseStart, ...]


SwitchoverAction = (
    WriteRecord
    | TryFence
    | FenceCluster
    | TryToFence
    | LiftFence
    | VerifySeal
    | FinishGroups
    | ClampGroups
    | EndFlow
    | ClearEnd
    | SwitchEndpoint
    | HoldReverse
    | ReleaseReverse
    | StartReverse
)
