"""Runs hooks of the user, which fence, lift or lead clients elsewhere: here a command, which has succeeded if it ends with 0.

`hook_jobs` has the other form, a Job of Kubernetes.
"""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from mirrorflow_replicator.switchover.errors import HookFailedError

MESSAGE_MAX: Final = 300  # characters of its last line on stderr, which may be a whole document
KILLED_WITHIN_S: Final = 5.0
_NULL: Final = "\0"


class HookAction(Enum):
    """What a hook is run for; in its environment as MIRRORFLOW_ACTION."""

    FENCE = "fence"
    LIFT = "lift"
    PROMOTE = "promote"


class SwitchoverHook(Protocol):
    """A hook of a pair. It may be run again with the same action, and must succeed then."""

    @property
    def timeout_s(self) -> float:
        """For how long it may work."""
        ...

    async def run(self, action: HookAction, variables: Mapping[str, str]) -> None:
        """Runs it to its end, with *variables* in its environment. Raises SwitchoverError."""
        ...

    async def problem(self) -> str:
        """Returns which field below that of the hook keeps it from being run, with the cure; "" if nothing does."""
        ...


@dataclass(frozen=True, slots=True)
class HookSettings:
    """Program and arguments, without a shell."""

    command: tuple[str, ...]
    timeout_s: float

    async def run(self, action: HookAction, variables: Mapping[str, str]) -> None:
        await run_hook(self, action, variables)

    async def problem(self) -> str:
        if any(_NULL in part for part in self.command):
            return "command: an argument has a null character, which no program can take; remove it."
        if shutil.which(self.command[0]) is not None:
            return ""
        return f"command: {self.command[0]} is not a program of this machine; write the path of one."


async def run_hook(settings: HookSettings, action: HookAction, variables: Mapping[str, str]) -> None:
    """Runs a hook to its end, with *variables* in its environment. Raises HookFailedError."""
    try:
        process = await asyncio.create_subprocess_exec(
            *settings.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "MIRRORFLOW_ACTION": action.value, **variables},
            start_new_session=True,  # a group of its own, which is stopped as a whole
        )
    except OSError as error:
        raise _failed(settings, action, error.errno, error.strerror or "") from error
    except ValueError as error:
        raise _failed(settings, action, None, str(error)) from error
    has_ended = False
    try:
        async with asyncio.timeout(settings.timeout_s):
            _, stderr = await process.communicate()
        has_ended = True
    except TimeoutError:
        raise _failed(settings, action, None, "") from None
    finally:
        if not has_ended:
            await _stop(process)
    if process.returncode:
        lines = stderr.decode(errors="replace").strip().splitlines() or [""]
        raise _failed(settings, action, process.returncode, lines[-1][:MESSAGE_MAX])


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Ends *process* and what it has started: a tool that it waits for would act later, as after the opposite action."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # PermissionError: by sudo
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), KILLED_WITHIN_S)


def _failed(settings: HookSettings, action: HookAction, status: int | None, message: str) -> HookFailedError:
    return HookFailedError(command=settings.command, action=action.value, status=status, message=message)
