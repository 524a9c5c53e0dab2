"""The process of a Job of the operator, which carries a switchover out (`switchover_job` starts it).

It is `mirrorflow switchover` with the operator's files instead of a pair's (mirrorflow_replicator/switchover/job_settings.py). It
serves its report as `GET /progress` on `HTTP_PORT`, and leaves the last one in the file `TERMINATION_MESSAGE`.

Exit status: 0 when the switchover has ended, however it did: the report says how. Any other status means that it has not ended, so
that Kubernetes starts the process again, which continues by the journal: 143 after SIGTERM, 1 after any other error. SIGTERM rolls
back before promoting, as Ctrl-C does for the command.

While the source does not respond, a planned switchover that has promoted continues with the target alone, as far as the state
Reversing. The process then tries the source again and again, and starts the flow back once it responds.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mirrorflow_cli.errors import EXIT_DONE, EXIT_SIGNAL_BASE, EXIT_USAGE
from mirrorflow_cli.loss_report import degraded_sentence, loss_sentences
from mirrorflow_cli.switchover_job_progress import SwitchoverProgress, served
from mirrorflow_cli.switchover_report import StepDisplay, canary_report, continues_alone, print_if_read
from mirrorflow_core.errors import ClusterError, MirrorFlowError, SettingError
from mirrorflow_core.switchover.canary import CanaryRequest
from mirrorflow_core.switchover.record import SwitchoverRecord, newest_record
from mirrorflow_core.switchover.state_machine import SwitchoverStep
from mirrorflow_core.switchover.states import PROMOTED, SwitchoverState, SwitchoverType
from mirrorflow_replicator.switchover.canary_application import (
    CanaryApplication,
    started_canary,
    why_not_selected,
)
from mirrorflow_replicator.switchover.endpoint import endpoint_problem
from mirrorflow_replicator.switchover.errors import CanaryFailedError
from mirrorflow_replicator.switchover.job_settings import SwitchoverJob, load_switchover_job
from mirrorflow_replicator.switchover.session import SwitchoverSession, switchover_session
from mirrorflow_replicator.switchover.unplanned_session import (
    UnplannedSession,
    complete_alone,
    journal_of_target,
    unplanned_session,
)

MESSAGE_KEY: Final = "TERMINATION_MESSAGE"
RETRY_S: Final = 5.0
REVERSE_POLL_S: Final = 0.5
CANARY_UNKNOWN: Final = "The process of the rehearsal was started again, so it is not known what the canary's application saw; create another Switchover."
_Session = SwitchoverSession | UnplannedSession


@dataclass(slots=True, kw_only=True)
class SwitchoverProcess:
    """One run of the Job's container."""

    job: SwitchoverJob
    progress: SwitchoverProgress
    display: StepDisplay = field(default_factory=StepDisplay)
    _canary: CanaryApplication | None = None
    _session: _Session | None = None
    _is_stopped: bool = False

    def stop(self, running: asyncio.Task[Any]) -> None:
        """Rolls back, or ends at once where nothing can be rolled back or it was asked for already."""
        record = self.progress.record
        is_begun = self._session is not None and record is not None and record.state not in PROMOTED
        if self._session is None or not is_begun or self._is_stopped:
            running.cancel()
            return
        self._is_stopped = True
        self._session.observer.request_rollback()
        print_if_read("Rolls back, because this process is to end.")

    async def run(self) -> None:
        """Carries the switchover out to its end, however long a cluster is away or another process works."""
        while True:
            try:
                async with self._opened() as session:
                    await self._carry_out(session)
                    return
            except MirrorFlowError as error:
                # Nothing may end this process while writes may be refused. A newcomer begins nothing after its time.
                if await self._ends_without_source(error):
                    return
                await asyncio.sleep(RETRY_S)

    async def _ends_without_source(self, error: MirrorFlowError) -> bool:
        """Does what needs the target alone after *error*, and notes what is waited for; returns whether the switchover has ended."""
        problem = str(error)
        # Only opening the session raises it: what fails later is repeated.
        if isinstance(error, ClusterError) and self.job.type is not SwitchoverType.UNPLANNED:
            try:
                known = await self._completed_alone(problem)
            except MirrorFlowError as failed:
                known, problem = None, str(failed)
            if known is not None and (known.is_final or self.progress.overtaken_by is not None):
                return True
            if known is not None:
                problem = f"Applications run on {known.to}. Waits until {known.source} responds again, to start the flow back: {error}"
        self._wait(problem)
        return False

    async def _completed_alone(self, problem: str) -> SwitchoverRecord | None:
        """Returns the switchover once it needs the source, or has ended or was overtaken, by the target's journal; None otherwise."""
        settings = self.job.settings
        journal = await journal_of_target(settings)
        known = newest_record(record for record in journal.records if record.id == self.job.id)
        request = self.job.record(time.time_ns() // 1_000_000)
        if known is None or _refusal(self.job, request, known) is not None:
            return None
        if known.state is SwitchoverState.PROMOTING:
            print_if_read(f"{problem} {continues_alone(known)}")
            async with unplanned_session(settings, on_step=self._show) as session:
                known = await complete_alone(session, known)
                journal = session.journal
        is_overtaken = self.progress.note_superseded(known, journal.records)
        if known.state not in PROMOTED and not known.is_final and not is_overtaken:
            return None
        self.progress.note_journal(journal.records)
        if known.is_final:
            self.progress.note_end(known, ())
        if known.is_final or is_overtaken:
            self._publish()
        else:
            self.progress.note_known(known)
        return known

    def _opened(self) -> contextlib.AbstractAsyncContextManager[_Session]:
        """Opens the session; that of an unplanned switchover does not need the source."""
        if self.job.type is SwitchoverType.UNPLANNED:
            return unplanned_session(self.job.settings, on_step=self._show, progress=self.job.last_seen)
        return switchover_session(self.job.settings, on_step=self._show)

    async def _carry_out(self, session: _Session) -> None:
        self._session = session
        known = newest_record(record for record in session.journal.records if record.id == self.job.id)
        self.progress.note_journal(session.journal.records)
        request = self.job.record(time.time_ns() // 1_000_000)
        if (refusal := _refusal(self.job, request, known)) is not None:
            self.progress.note_refusal(refusal)
            self._publish()
            return
        # A planned one checks it later. This one would promote, and then lead clients nowhere.
        is_unchecked = known is None and isinstance(session, UnplannedSession)
        if is_unchecked and (problem := await self._endpoint_problem()):
            self.progress.note_refusal(problem)
            self._publish()
            return
        if known is not None and self.progress.note_superseded(known, session.journal.records):
            self._publish()
            return
        try:
            async with self._watching_reverse(session), contextlib.AsyncExitStack() as stack:
                if self.job.canary is not None and not await self._has_canary(self.job.canary, known, stack):
                    self._publish()
                    return
                last = await session.runner.run(known or request)
                if self._canary is not None:
                    self._wait(f"Waits until the canary's group reads on {last.to}.")
                    result = await asyncio.to_thread(self._canary.finish, last.state)
                    self.progress.note_canary(canary_report(result)["canaryApplication"])
        finally:
            self._session = self._canary = None
        with contextlib.suppress(MirrorFlowError):
            await session.journal.read()
        self.progress.note_journal(session.journal.records)
        notes = session.checks.notes if isinstance(session, SwitchoverSession) else _loss_notes(last)
        self.progress.note_end(last, notes)
        self._publish()

    async def _has_canary(
        self, wanted: CanaryRequest, known: SwitchoverRecord | None, stack: contextlib.AsyncExitStack
    ) -> bool:
        """Runs the application of a rehearsal until *stack* is closed; returns False if it cannot run, with the refusal noted.

        One whose rehearsal has begun already does not run again: it would see a fence that was there before its first record.
        """
        if known is not None:
            self.progress.note_canary({"passed": False, "sentence": CANARY_UNKNOWN})
            return True
        self._wait(f"Waits until the flow copies the canary's topic {wanted.topic}.")
        problem = ""
        try:
            if why := why_not_selected(self.job.settings, wanted.topic, wanted.group):
                problem = f"{why}."
            else:
                self._canary = await stack.enter_async_context(started_canary(self.job.settings, wanted))
        except ModuleNotFoundError as error:
            problem = (
                f"this image has no Python package {error.name}; use MirrorFlow's image, or install it there."
            )
        except (CanaryFailedError, SettingError) as error:
            problem = str(error)
        if problem:
            self.progress.note_refusal(f"spec.canary: {problem}")
        return not problem

    async def _endpoint_problem(self) -> str:
        """Returns which field of the endpoint keeps clients from being led, with the cure; "" if none does."""
        settings = self.job.settings
        if problem := await endpoint_problem(settings):
            return f"spec.endpoint: {problem}"
        if settings.endpoint_hook is not None and (problem := await settings.endpoint_hook.problem()):
            return f"spec.endpoint.hook.{problem}"
        return ""

    @contextlib.asynccontextmanager
    async def _watching_reverse(self, session: _Session) -> AsyncIterator[None]:
        """Notes meanwhile when the flow back may be started: not before its positions are stored, or it would copy all back."""
        if not isinstance(session, SwitchoverSession):
            yield  # the flow back of an unplanned switchover is started when the clusters are reconciled
            return

        async def watch() -> None:
            while not self.progress.may_copy_back:
                record = self.progress.record
                if record is not None and record.state is SwitchoverState.REVERSING:
                    with contextlib.suppress(MirrorFlowError):
                        reverse = await session.flows.reverse()
                        is_started = reverse is not None and reverse.started_by == record.id
                        self.progress.note_reverse(may_copy_back=is_started)
                await asyncio.sleep(REVERSE_POLL_S)

        watching = asyncio.create_task(watch(), name="watch-reverse")
        try:
            yield
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching

    def _show(self, step: SwitchoverStep, problem: str) -> None:
        if self._canary is not None:
            self._canary.note(step.record.state)
        self.progress.note_step(step, problem)
        self.display.show(step, problem)

    def _wait(self, problem: str) -> None:
        if self.progress.note_wait(problem):
            print_if_read(problem)

    def _publish(self) -> None:
        if path := os.environ.get(MESSAGE_KEY):
            Path(path).write_bytes(self.progress.body())


def _refusal(job: SwitchoverJob, request: SwitchoverRecord, known: SwitchoverRecord | None) -> str | None:
    """Returns why *request* must not be carried out; "" if it may. *known*: what the journal has under its id."""
    if known is not None and (known.to, known.type) != (request.to, request.type):
        return (
            f"metadata.name: the journal of {request.pair} has a switchover of this name already ({known.type.value} to {known.to}, state "
            f"{known.state.value}); create one with another name."
        )
    if known is None and request.created_ms > job.begin_until_ms:
        return "It could not begin in time, and applications are not moved at a moment that no user expects; create another Switchover."
    return None


def _loss_notes(record: SwitchoverRecord) -> Sequence[str]:
    is_degraded = record.state is SwitchoverState.DEGRADED
    return [*loss_sentences(record), *([degraded_sentence(record)] if is_degraded else [])]


async def _run(process: SwitchoverProcess) -> int:
    loop, running = asyncio.get_running_loop(), asyncio.current_task()
    assert running is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, process.stop, running)
    try:
        await process.run()
    except asyncio.CancelledError:
        print("The switchover has not ended; the next process continues it.", file=sys.stderr, flush=True)
        return EXIT_SIGNAL_BASE + signal.SIGTERM
    return EXIT_DONE


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if len(given) != 1:
        print("usage: python3 -m mirrorflow_cli.switchover_job FOLDER", file=sys.stderr)
        return EXIT_USAGE
    try:
        job = load_switchover_job(Path(given[0]))
    except (SettingError, OSError) as error:
        # The files never change, so nothing has begun, and nothing ever will.
        refused = SwitchoverProgress(id="", refusal=str(error))
        print(error, file=sys.stderr)
        if path := os.environ.get(MESSAGE_KEY):
            Path(path).write_bytes(refused.body())
        return EXIT_DONE
    progress = SwitchoverProgress(id=job.id, waits_for="Connects to both clusters.")
    with served(progress):
        return asyncio.run(_run(SwitchoverProcess(job=job, progress=progress)))
