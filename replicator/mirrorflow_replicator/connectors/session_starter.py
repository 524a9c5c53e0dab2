"""Claims the sessions of a task, and sends the start of each to the task's process.

    assign ──> claim, with retries ──> send ──> the process reports that the session has ended ┐
                   ^───────────────────────────────────────────────────────────────────────────┘

During a session, the process is the only writer of its partitions: others may have to be fenced before.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import NamedTuple

from mirrorflow_core.backoff import Backoff, backoff_s
from mirrorflow_core.errors import MirrorFlowError, StartPendingError
from mirrorflow_core.reports import AcknowledgedPosition, TaskReport
from mirrorflow_core.stall_detection import STALLED_AFTER_S
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_replicator.connectors.child_process import ChildProcess
from mirrorflow_replicator.connectors.task_messages import Assign, Finish, TaskAssignment

# Short at first: a rebalance of the group, or electing its leader, takes a second.
CLAIM_RETRY_MIN_S, CLAIM_RETRY_MAX_S = 0.1, 5.0
SHORT_SESSION_S = 30.0  # after a longer session the next one is claimed without a pause

Claim = Callable[[int, TaskAssignment], Awaitable[Assign]]

log = logging.getLogger("mirrorflow.worker")


class SessionDelay(NamedTuple):
    """Why a task has had no session, or its process has reported nothing, for STALLED_AFTER_S."""

    error: MirrorFlowError
    since_ms: int  # monotonic clock


class SessionStarter:
    """Starts the sessions of one task with its newest assignment, in one process after the other.

    *claim* returns an assignment with the start of a session. It raises MirrorFlowError while that is not possible.
    """

    def __init__(self, task: int, *, target_alias: str, claim: Claim) -> None:
        self.problem: SessionDelay | None = None
        self._task = task
        self._target_alias = target_alias
        self._claim = claim
        self._assignment: TaskAssignment | None = None
        self._child: ChildProcess | None = None
        self._claiming: asyncio.Task[None] | None = None
        self.has_session = False  # the process has a session that it has not ended
        self._sent = 0  # sessions that this process has had
        self._sent_at_s = 0.0  # when it got the last one
        self._short_sessions = 0  # consecutive sessions that lasted less than SHORT_SESSION_S

    def assign(self, wanted: TaskAssignment) -> None:
        """Starts the task with *wanted* from now on, also in later processes."""
        if wanted == self._assignment:
            return
        self._assignment, self.problem = wanted, None
        if self.has_session:
            self.finish()
        elif self._child is not None and self._claiming is None:
            self._begin_claim()

    def finish(self) -> None:
        """Ends the process's session; when it reports that, the next one is claimed."""
        if self._child is not None and self.has_session:
            self._child.send(Finish())

    def child_started(self, child: ChildProcess) -> None:
        """Claims a session for *child*, which has had none."""
        self._child, self._sent = child, 0
        if self._assignment is not None:
            self._begin_claim()

    def child_ended(self) -> None:
        """Gives up the claim under way; the next process gets a session of its own."""
        self._child, self.has_session = None, False
        if self._claiming is not None:
            self._claiming.cancel()
            self._claiming = None

    def child_reported(self, report: TaskReport) -> None:
        """Claims the next session if the last one has ended according to *report*, later if the last ones were short."""
        if not self.has_session or report.sessions_ended < self._sent:
            return
        self.has_session = False
        is_short = time.monotonic() - self._sent_at_s < SHORT_SESSION_S
        self._short_sessions = self._short_sessions + 1 if is_short else 0
        self._begin_claim(report.acknowledged)

    def _begin_claim(self, acknowledged: tuple[AcknowledgedPosition, ...] = ()) -> None:
        self._claiming = asyncio.create_task(self._start(acknowledged), name=f"claim-{self._task}")
        self._claiming.add_done_callback(self._claim_ended)

    def _claim_ended(self, claiming: asyncio.Task[None]) -> None:
        if claiming.cancelled() or (error := claiming.exception()) is None:
            return
        # A bug in this code: the process is replaced, instead of waiting for a start that does not come.
        log.error("The claim of task %d failed", self._task, exc_info=error)
        if claiming is self._claiming and self._child is not None:
            self._child.kill()

    async def _start(self, acknowledged: tuple[AcknowledgedPosition, ...]) -> None:
        """Claims the newest assignment, and sends it to the process with its start."""
        logged, began_s = "", time.monotonic()
        since_ms = round(1000 * began_s)
        if self._short_sessions > 1:
            await asyncio.sleep(
                backoff_s(self._short_sessions + 1, lowest_s=CLAIM_RETRY_MIN_S, highest_s=CLAIM_RETRY_MAX_S)
            )
        attempts = Backoff(min_s=CLAIM_RETRY_MIN_S, max_s=CLAIM_RETRY_MAX_S)
        async for _ in attempts:
            if (wanted := self._assignment) is None or self._child is None:
                return
            try:
                message = await self._claimed(replace(wanted, acknowledged=acknowledged), since_ms)
            except MirrorFlowError as error:
                if str(error) != logged:
                    logged = str(error)
                    log.warning("task %d does not begin yet: %s", self._task, error)
                if time.monotonic() - began_s >= STALLED_AFTER_S:
                    self.problem = SessionDelay(error, since_ms)
                continue
            if wanted is self._assignment:
                self.has_session, self.problem = self._child.send(message), None
                self._sent += 1
                self._sent_at_s = time.monotonic()
                return
            attempts.reset()  # a newer assignment is claimed at once

    async def _claimed(self, wanted: TaskAssignment, since_ms: int) -> Assign:
        """Returns *wanted* with its start; notes when that takes long. Raises MirrorFlowError."""
        claiming = asyncio.ensure_future(self._claim(self._task, wanted))
        try:
            await asyncio.wait({claiming}, timeout=STALLED_AFTER_S)
            if not claiming.done():
                pending = StartPendingError(target=self._target_alias, waits_s=STALLED_AFTER_S)
                self.problem = SessionDelay(pending, since_ms)
                log.warning("task %d: %s", self._task, pending)
            return await claiming
        finally:
            await cancel_and_wait(claiming)
