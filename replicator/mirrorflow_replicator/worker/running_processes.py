"""Lists this user's processes that run flows on this machine, for `mirrorflow status`.

Each process holds a locked file with its facts while it runs. The kernel releases the lock however a process ends, so an
unlocked file belongs to a killed process and is removed. Beside it, a replicator that has no runner writes its progress.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def state_folder() -> Path:
    """Returns the folder for this user's logs and state (XDG Base Directory Specification). Raises RuntimeError without a home."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "mirrorflow"


@contextlib.contextmanager
def registered(fields: Mapping[str, Any]) -> Iterator[Path]:
    """Registers this process with *fields* inside the block; yields the path for its progress. Raises OSError, RuntimeError."""
    folder = _folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for path in folder.glob("*.json"):
        _read(path)  # removes those of killed processes
    path = folder / f"{os.getpid()}.json"
    # Others see the file only when it is locked: they remove it as that of a killed process otherwise.
    new = path.with_suffix(".new")
    with new.open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            json.dump({"pid": os.getpid(), "beganMs": time.time_ns() // 1_000_000, **fields}, file)
            file.flush()
            new.replace(path)
            yield _progress_of(path)
        finally:
            _remove(path)


@contextlib.contextmanager
def registered_if_possible(fields: Mapping[str, Any]) -> Iterator[Path | None]:
    """As `registered`; yields None where this user has no folder to write to, as in most containers, or a full disk."""
    with contextlib.ExitStack() as stack:
        path = None
        with contextlib.suppress(OSError, RuntimeError):
            path = stack.enter_context(registered(fields))
        yield path


def registered_processes() -> list[dict[str, Any]]:
    """Returns the fields of each registered process; `progress` is what it wrote last, if anything."""
    try:
        folder = _folder()
    except RuntimeError:
        return []  # a user without a home registers nothing
    return [fields for path in folder.glob("*.json") if (fields := _read(path)) is not None]


def write_progress(path: Path, progress: Mapping[str, Any]) -> None:
    """Replaces the progress that this process shows. Raises OSError."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(progress, ensure_ascii=False), encoding="utf-8")
    new.replace(path)


def _folder() -> Path:
    return state_folder() / "running"


def _progress_of(path: Path) -> Path:
    return path.with_suffix(".progress")


def _remove(path: Path) -> None:
    for file in (path, _progress_of(path), path.with_suffix(".new")):
        file.unlink(missing_ok=True)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        with path.open("r", encoding="utf-8") as file:
            if _is_unlocked(file.fileno()):
                _remove(path)
                return None
            fields = dict(json.load(file))
        with contextlib.suppress(FileNotFoundError):
            fields["progress"] = json.loads(_progress_of(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return None  # The process has just ended, or has not written its file yet.
    return fields


def _is_unlocked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
