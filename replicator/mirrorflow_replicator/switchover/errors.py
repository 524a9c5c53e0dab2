"""Defines the errors of a switchover. Each says whether anything was changed and what to do.

MirrorFlowError
└── SwitchoverError             a switchover cannot begin, or cannot continue as it is
    ├── FenceUnavailableError   the fence cannot be raised, or would not hold
    ├── SwitchoverTakenError    another process has taken the switchover
    ├── SwitchoverHeldError     another process carries the switchover out
    ├── RollbackOvertakenError  the switchover to roll back has gone on meanwhile
    ├── HookFailedError         a hook has not done its action
    ├── HookJobFailedError      the Job of a hook has not done its action
    ├── NetworkFenceFailedError a NetworkPolicy could not be put in force, or out of it
    ├── EndpointFailedError     the object that leads clients cannot be switched
    ├── CanaryFailedError       the application of a rehearsal cannot run
    ├── TailTakenError          another process writes the diverged tail
    └── TailNotKeptError        the diverged tail cannot be kept as it was asked for
"""

from collections.abc import Sequence

from mirrorflow_core.errors import MirrorFlowError
from mirrorflow_core.switchover.record import SwitchoverRecord


class SwitchoverError(MirrorFlowError):
    """The base class."""

    reason = "SwitchoverFailed"


class FenceUnavailableError(SwitchoverError):
    """Producers cannot be kept from writing to *cluster*; *problem* says why, *action* what to do."""

    reason = "FenceUnavailable"

    def __init__(self, *, cluster: str, problem: str, action: str) -> None:
        self.cluster = cluster
        super().__init__(f"Cluster {cluster} cannot be fenced: {problem}; {action}.")


class SwitchoverTakenError(SwitchoverError):
    """Another process has taken the switchovers of *pair*; this one may change nothing more."""

    reason = "SwitchoverTaken"

    def __init__(self, *, pair: str) -> None:
        super().__init__(
            f"Another process carries out the switchover of {pair}, and this one changes nothing more. "
            "`mirrorflow switchover status` shows its state."
        )


class SwitchoverHeldError(SwitchoverError):
    """A process that works carries out *record*, so another one must not take it."""

    reason = "SwitchoverHeld"

    def __init__(self, *, record: SwitchoverRecord) -> None:
        host, pid, _ = f"{record.runner}//".split("/", 2)
        super().__init__(
            f"Process {pid} on host {host} carries out switchover {record.id} of {record.pair} to {record.to} (state {record.state.value}). "
            "Wait until it has ended, or stop it with Ctrl-C, which rolls back before promoting."
        )


class RollbackOvertakenError(SwitchoverError):
    """Switchover *switchover* was to be rolled back with its source alone; by now the journal's newest record is *newest*."""

    reason = "RollbackOvertaken"

    def __init__(self, *, switchover: str, newest: SwitchoverRecord | None) -> None:
        now = (
            "the journal has no switchover"
            if newest is None
            else f"the newest one is {newest.id} to {newest.to}, in state {newest.state.value}"
        )
        super().__init__(
            f"Switchover {switchover} was not rolled back, and nothing was changed: another process has gone on meanwhile, and {now}. See "
            "`mirrorflow switchover status`; repeat the rollback only if applications are still to write to the source."
        )


class HookFailedError(SwitchoverError):
    """A hook has ended with *status*, or was stopped after its time (None). It may be run again."""

    reason = "HookFailed"

    def __init__(self, *, command: Sequence[str], action: str, status: int | None, message: str) -> None:
        how = "has not ended in time and was stopped" if status is None else f"has ended with status {status}"
        why = f": {message}" if message else ""
        super().__init__(f"The hook {command[0]} {how} (action {action}){why}.")


class HookJobFailedError(SwitchoverError):
    """The Job of a hook has failed, or cannot be started: *problem*, and what to do. It may be run again."""

    reason = "HookFailed"

    def __init__(self, *, job: str, problem: str, action: str) -> None:
        super().__init__(f"Job {job} has not done its action: {problem}; {action}.")


class NetworkFenceFailedError(SwitchoverError):
    """The NetworkPolicy of a fence is not changed: *problem*, and what to do. It may be tried again."""

    reason = "FenceFailed"

    def __init__(self, *, policy: str, problem: str, action: str) -> None:
        super().__init__(f"NetworkPolicy {policy} cannot be changed: {problem}; {action}.")


class EndpointFailedError(SwitchoverError):
    """The object of Kubernetes that leads clients is not switched: *problem*, and what to do. It may be tried again."""

    reason = "EndpointFailed"

    def __init__(self, *, endpoint: str, problem: str, action: str) -> None:
        super().__init__(f"{endpoint} cannot be switched: {problem}; {action}.")


class CanaryFailedError(SwitchoverError):
    """The application of a rehearsal cannot run, or does not continue; *problem* says why."""

    reason = "CanaryFailed"

    def __init__(self, *, problem: str) -> None:
        super().__init__(f"The canary of the rehearsal has failed: {problem}.")


class TailTakenError(SwitchoverError):
    """Another process writes the diverged tail of *switchover*; this one may write nothing more."""

    reason = "TailTaken"

    def __init__(self, *, switchover: str) -> None:
        super().__init__(
            f"Another process writes the diverged tail of switchover {switchover}, and this one writes nothing more. "
            "Wait until it has ended; the same command then writes what is left."
        )


class TailNotKeptError(SwitchoverError):
    """The diverged tail cannot be written, or its topic cannot be deleted yet: *problem*, and what to do."""

    reason = "TailNotKept"

    def __init__(self, *, problem: str, action: str) -> None:
        super().__init__(f"{problem}; {action}. Nothing was deleted.")
