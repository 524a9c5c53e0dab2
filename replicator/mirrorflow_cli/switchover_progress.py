"""Shows a switchover that this machine carries out to the console, and keeps the last ones: a file of this user for each.

The file is the report so far, with what is waited for and when it was written. The command that works holds a lock, so a file that
does not end in a final state and has no holder belongs to a command that was killed: writes may be refused still.
"""

import argparse
import contextlib
import json
import os
import shlex
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from mirrorflow_cli.switchover_report import report_of, seal_summary, session_report
from mirrorflow_core.switchover.observation import FenceState
from mirrorflow_core.switchover.record import SwitchoverRecord
from mirrorflow_core.switchover.seal import Seal
from mirrorflow_core.switchover.state_machine import SwitchoverStep
from mirrorflow_core.switchover.states import SwitchoverState
from mirrorflow_replicator.switchover.pair_settings import SwitchoverSettings
from mirrorflow_replicator.switchover.session import SwitchoverSession, switchover_session
from mirrorflow_replicator.worker import running_processes

# Writes are refused meanwhile. A file of a few kilobytes takes less than a millisecond.
WRITE_EVERY_S: Final = 1.0
KEPT_MAX: Final = 50  # the newest
LISTED_MAX: Final = 100  # partitions of a seal and groups; the report has all
UNKNOWN_FENCE: Final = "unknown"
_REGISTERED: Final = "switchoverOf"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSwitchover:
    """A switchover that this machine carries out, or has carried out. *document* is as `SwitchoverProgressFile` has written it."""

    document: Mapping[str, Any]
    is_running: bool


class SwitchoverProgressFile:
    """Writes how a switchover of this process stands. What cannot be written is not shown: no switchover may fail by that."""

    def __init__(self, settings: SwitchoverSettings, *, file: str, secrets: str) -> None:
        """*file* and *secrets*: as given to the command, for the commands that undo or continue it."""
        self._settings = settings
        self._arguments = ["-f", file if file == "-" else str(Path(file).resolve())]
        self._arguments += [] if secrets == "." else ["--secrets", str(Path(secrets).resolve())]
        self._session: SwitchoverSession | None = None
        self._written: tuple[SwitchoverState | None, str] = None, ""
        self._written_s = 0.0
        # Hashed once: a seal of ten thousand partitions takes some hundredths of a second.
        self._seal: Seal | None = None
        self._sealed: dict[str, Any] = {}

    def begin(self, session: SwitchoverSession) -> None:
        """Takes checks, groups and fences from *session*."""
        self._session = session

    def show(self, step: SwitchoverStep, problem: str) -> None:
        """Writes *step* when the state has changed, and once a second; *problem*: the error that the next step repeats."""
        now_s, state = time.monotonic(), step.record.state
        if self._written == (state, problem) and now_s - self._written_s < WRITE_EVERY_S:
            return
        self._written, self._written_s = (state, problem), now_s
        # Whatever fails here must not end a process while writes are refused.
        with contextlib.suppress(Exception):
            _write(step.record.id, self._document(step, problem))

    def _document(self, step: SwitchoverStep, problem: str) -> dict[str, Any]:
        settings, session, record = self._settings, self._session, step.record
        assert session is not None, "a step of no session"
        if record.seal is not self._seal:
            self._seal, self._sealed = record.seal, {} if record.seal is None else seal_summary(record.seal)
        report = session_report(replace(record, seal=None), session)
        members = (settings.source, settings.to)
        return {
            **report,
            "seal": {**self._sealed, "ends": self._sealed["ends"][:LISTED_MAX]} if self._sealed else None,
            "groups": report.get("groups", [])[:LISTED_MAX],
            "groupsTotal": len(report.get("groups", [])),
            "flows": {settings.source: settings.forward.flow, settings.to: settings.back.flow},
            "fence": settings.fence.value,
            "fences": {alias: fence_text(session.fences[alias].seen) for alias in members},
            "waitsFor": step.waits_for,
            "problem": problem,
            "revision": record.revision,
            "epoch": record.epoch,
            "isFinal": record.is_final,
            "commands": self._commands(record),
            "pid": os.getpid(),
            "writtenMs": time.time_ns() // 1_000_000,
        }

    def _commands(self, record: SwitchoverRecord) -> dict[str, str]:
        """Returns the commands that end this process, undo the switchover, and continue it without this process."""
        options = {"Rehearsal": ["--rehearse"], "Restore": ["--restore"]}.get(record.type.value, [])
        command = ["mirrorflow", "switchover"]
        return {
            "stop": f"kill {os.getpid()}",
            "rollBack": shlex.join([*command, "rollback", *self._arguments]),
            "continue": shlex.join([*command, "--to", record.to, *options, *self._arguments]),
        }


@contextlib.asynccontextmanager
async def shown_session(
    arguments: argparse.Namespace,
    settings: SwitchoverSettings,
    *,
    on_step: Callable[[SwitchoverStep, str], None],
) -> AsyncIterator[SwitchoverSession]:
    """Opens a session as `switchover_session`, and shows its steps to the console, too.

    *arguments* have `file` and `secrets`, for the commands that undo or continue the switchover.
    """
    progress = SwitchoverProgressFile(settings, file=arguments.file, secrets=arguments.secrets)

    def show(step: SwitchoverStep, problem: str) -> None:
        on_step(step, problem)
        progress.show(step, problem)

    with running_processes.registered_if_possible({_REGISTERED: settings.pair}):
        async with switchover_session(settings, on_step=show) as session:
            progress.begin(session)
            yield session


def local_switchovers() -> tuple[LocalSwitchover, ...]:
    """Returns the last switchovers that this user has carried out on this machine, those that have changed last first."""
    known = [(path, document) for path in _files()[:KEPT_MAX] if (document := _read(path)) is not None]
    running = {
        (fields.get("pid"), fields[_REGISTERED])
        for fields in running_processes.registered_processes()
        if _REGISTERED in fields
    }

    def local(path: Path, document: dict[str, Any]) -> LocalSwitchover:
        is_running = (document.get("pid"), document.get("pair")) in running
        # A process registers before it writes, and writes the final state before it ends. So a file that is read after the
        # process was seen to have ended has its last state.
        newest = document if is_running or document.get("isFinal") else _read(path) or document
        return LocalSwitchover(document=newest, is_running=is_running)

    return tuple(local(path, document) for path, document in known)


def refresh_local_switchover(record: SwitchoverRecord) -> None:
    """Replaces what this machine shows of a switchover by *record*, that of the journal, if another machine has continued it."""
    path = _path(record.id)
    shown = _read(path) or {}
    if shown and shown.get("revision", 0) < record.revision:
        newer = {"revision": record.revision, "epoch": record.epoch, "isFinal": record.is_final, "pid": None}
        written = {"waitsFor": "", "problem": "", "writtenMs": time.time_ns() // 1_000_000}
        with contextlib.suppress(OSError):
            running_processes.write_progress(path, {**shown, **report_of(record), **newer, **written})


def show_canary_report(switchover: str, report: Mapping[str, Any]) -> None:
    """Adds the *report* on the application of a rehearsal, which reads on after the rehearsal has ended, to what this machine shows."""
    path = _path(switchover)
    shown = _read(path)
    if shown is not None:
        with contextlib.suppress(OSError):
            running_processes.write_progress(path, {**shown, **report})


def fence_text(state: FenceState | None) -> str:
    """Returns the word for a fence; None: its cluster does not respond."""
    return UNKNOWN_FENCE if state is None else state.value


def _folder() -> Path:
    return running_processes.state_folder() / "switchovers"


def _path(name: str) -> Path:
    return _folder() / f"{quote(name, safe='')}.json"


def _files() -> list[Path]:
    """Returns the files, the newest first."""
    with contextlib.suppress(OSError, RuntimeError):
        return sorted(_folder().glob("*.json"), key=lambda path: (-path.stat().st_mtime_ns, path.name))
    return []


def _write(name: str, document: Mapping[str, Any]) -> None:
    path = _path(name)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        for old in _files()[KEPT_MAX - 1 :]:
            old.unlink(missing_ok=True)
    running_processes.write_progress(path, document)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return document if isinstance(document, dict) else None
