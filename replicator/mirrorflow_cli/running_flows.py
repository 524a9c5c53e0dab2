"""Lists the flows that `mirrorflow run` runs on this machine for this user.

Each run holds a locked file. The kernel releases the lock however a run ends, so an unlocked file belongs to
a killed run and is removed.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mirrorflow_cli.run_process import ProcessFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningFlow:
    """A flow that runs here now; `url` is None until its process has written its HTTP address."""

    name: str
    pid: int
    began_ms: int  # wall clock
    url: str | None


def state_folder() -> Path:
    """Returns the folder for this user's logs and state (XDG Base Directory Specification)."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "mirrorflow"


@contextlib.contextmanager
def registered(name: str, files: ProcessFiles) -> Iterator[None]:
    """Registers the flow *name* for `running_flows` inside the block. Raises OSError.

    *files* are those of its process.
    """
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / f"{os.getpid()}.json"
    said = {
        "flow": name,
        "pid": os.getpid(),
        "beganMs": time.time_ns() // 1_000_000,
        "urlFile": str(files.http),
    }
    with path.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        json.dump(said, file)
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def running_flows() -> tuple[RunningFlow, ...]:
    """Returns all running flows, by name, then oldest first."""
    found = [one for path in _folder().glob("*.json") if (one := _read(path)) is not None]
    return tuple(sorted(found, key=lambda one: (one.name, one.began_ms)))


def _folder() -> Path:
    return state_folder() / "running"


def _read(path: Path) -> RunningFlow | None:
    try:
        with path.open("r", encoding="utf-8") as file:
            if _is_unlocked(file.fileno()):
                path.unlink(missing_ok=True)
                return None
            said = json.load(file)
        url_file = Path(said["urlFile"])
        files = ProcessFiles(folder=url_file.parent, connectors=())
        return RunningFlow(name=said["flow"], pid=said["pid"], began_ms=said["beganMs"], url=files.url())
    except (OSError, ValueError, KeyError):
        return None  # The run has just ended, or has not written its file yet.


def _is_unlocked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
