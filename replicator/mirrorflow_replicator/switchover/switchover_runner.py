"""Carries a switchover out: observes the clusters, asks the state machine for the next step, and does it.

What is done is announced in the journal before, so a process may be killed anywhere: the next one reads the newest record and what
the clusters report, and continues. What fails is repeated; before promoting, the time limit of a planned switchover rolls it back.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Coroutine
from dataclasses import replace
from typing import Any, Final, Protocol

from mirrorflow_core.backoff import backoff_s
from mirrorflow_core.errors import ClusterError, MirrorFlowError
from mirrorflow_core.switchover import guards
from mirrorflow_core.switchover.actions import SwitchoverAction, TryToFence, WriteRecord
from mirrorflow_core.switchover.observation import SwitchoverObservation
from mirrorflow_core.switchover.record import SwitchoverRecord
from mirrorflow_core.switchover.state_machine import SwitchoverStep, step
from mirrorflow_core.switchover.states import AT_REST, ENDING, FENCED, SwitchoverState
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_replicator.switchover.errors import SwitchoverTakenError
from mirrorflow_replicator.switchover.observer import SwitchoverObserver

# An observation takes some ten requests, and writes are refused meanwhile, so the next one follows soon.
POLL_S: Final = 0.05
RETRY_MIN_S, RETRY_S = 0.05, 0.5
INTERRUPT_POLL_S: Final = 0.2


class ActionRunner(Protocol):
    """Carries actions out. Each may be repeated, and cancelled while it waits."""

    async def act(self, action: SwitchoverAction) -> None:
        """Carries *action* out. Raises SwitchoverTakenError, MirrorFlowError."""
        ...

    async def work_ahead(self, observation: SwitchoverObservation) -> None:
        """Does ahead what will probably be asked for. Raises ClusterError."""
        ...


class SwitchoverRunner:
    """Runs one switchover until it rests. `observer.request_rollback` rolls it back, unless it has promoted."""

    def __init__(
        self,
        observer: SwitchoverObserver,
        actions: ActionRunner,
        *,
        on_step: Callable[[SwitchoverStep, str], None],
    ) -> None:
        """*on_step* is called with each step, while its actions take long and after them, and with the error that is repeated; "" without one."""
        self._observer = observer
        self._actions = actions
        self._on_step = on_step
        self._began_ns, self._began_monotonic_ns = time.time_ns(), time.monotonic_ns()

    async def run(
        self, record: SwitchoverRecord, *, until: Collection[SwitchoverState] = AT_REST
    ) -> SwitchoverRecord:
        """Carries *record* out until a state of *until* is stored, or nothing is left that can be done without the target.

        Returns its last revision. Raises SwitchoverTakenError.
        """
        failures, stored = 0, record
        while True:
            observation = await self._observer.observe(record)
            result = step(record, observation, self._now_ms())
            if result.is_superseded:
                raise SwitchoverTakenError(pair=record.pair)
            if result.is_paused or (result.record.state in until and not _announces(result)):
                self._on_step(result, "")
                return result.record
            is_waiting = not result.actions and result.record is record
            # Until the journals have it, the state is still the one before: it may be rolled back instead.
            meanwhile = replace(result, record=stored) if _announces(result) else result
            record = result.record
            failed = await self._carry_out(result, meanwhile)
            stored = meanwhile.record if failed else record
            problem = failed or self._observer.problem
            self._on_step(replace(result, record=stored), problem)
            failures = failures + 1 if problem else 0
            if problem:
                await asyncio.sleep(backoff_s(failures, lowest_s=RETRY_MIN_S, highest_s=RETRY_S))
            elif is_waiting:
                await self._wait(result, observation)

    async def _wait(self, result: SwitchoverStep, observation: SwitchoverObservation) -> None:
        """Waits for the next observation. While the ends must stay unchanged, work is done ahead."""
        began_s, pause_s, record = time.monotonic(), POLL_S, result.record
        if record.state is SwitchoverState.QUIESCING:
            # What was in flight arrives soon after the fence, so later pauses are longer; the last one ends in time.
            unchanged_ms = observation.source.unchanged_ms or 0
            left_s = max(record.limits.quiet_ms - unchanged_ms, 0) / 1000
            pause_s = min(max(POLL_S, unchanged_ms / 1000), left_s)
            with contextlib.suppress(ClusterError):  # the action that needs it raises it again
                await self._finishes(self._actions.work_ahead(observation), record, result)
        await asyncio.sleep(max(0.0, pause_s - (time.monotonic() - began_s)))

    async def _carry_out(self, result: SwitchoverStep, meanwhile: SwitchoverStep) -> str:
        """Does the actions of a step in their order; returns the error that the next step repeats, "" without one."""
        # Before promoting, it may be rolled back; so no error may end the process while writes are refused.
        try:
            if not await self._finishes(self._act_all(result), result.record, meanwhile):
                return "An action took longer than writes may be refused, or a rollback was requested, and was stopped."
        except SwitchoverTakenError:
            raise
        except MirrorFlowError as error:
            return str(error)
        return ""

    async def _finishes(
        self, work: Coroutine[Any, Any, None], record: SwitchoverRecord, meanwhile: SwitchoverStep
    ) -> bool:
        """Runs *work*, and stops it where *record* is to be rolled back; returns whether it has ended by itself. Raises as *work*.

        *meanwhile* is shown again and again, so that a process whose hook takes a minute is not taken for dead.
        """
        working = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({working}, timeout=INTERRUPT_POLL_S))[0]:
                if self._is_to_roll_back(record):
                    return False
                self._on_step(meanwhile, "")
            await working
            return True
        finally:
            if not working.done():
                with contextlib.suppress(MirrorFlowError):
                    await cancel_and_wait(working)

    def _now_ms(self) -> int:
        """Returns the wall clock, which is not set back while this process runs: writes would be refused for longer than the limit."""
        elapsed_ns = time.monotonic_ns() - self._began_monotonic_ns
        return max(time.time_ns(), self._began_ns + elapsed_ns) // 1_000_000

    async def _act_all(self, result: SwitchoverStep) -> None:
        """Does the actions in their order. An attempt to fence a lost source keeps no other action from being done; its error comes last."""
        failed: MirrorFlowError | None = None
        for action in result.actions:
            try:
                await self._actions.act(action)
            except SwitchoverTakenError:
                raise
            except MirrorFlowError as error:
                if not isinstance(action, TryToFence):
                    raise
                failed = error
        if failed is not None:
            raise failed

    def _is_to_roll_back(self, record: SwitchoverRecord) -> bool:
        """Returns whether the next step rolls *record* back; an action may take for ever, as on brokers before 4.0 without a leader."""
        is_requested = self._observer.is_rollback_requested
        if record.is_unplanned:
            return record.state in ENDING and is_requested
        return record.state in FENCED and (is_requested or guards.is_past_limit(record, self._now_ms()))


def _announces(result: SwitchoverStep) -> bool:
    return any(isinstance(action, WriteRecord) for action in result.actions)
