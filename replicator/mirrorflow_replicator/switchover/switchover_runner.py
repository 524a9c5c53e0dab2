"""Carries a switchover out: observes both clusters, asks the state machine for the next step, and does it.

What is done is announced in the journal before, so a process may be killed anywhere: the next one reads the newest record and what
the clusters report, and continues. What fails is repeated; before promoting, the time limit of the switchover rolls it back.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any, Final

from mirrorflow_core.backoff import backoff_s
from mirrorflow_core.errors import ClusterError, MirrorFlowError
from mirrorflow_core.switchover import guards
from mirrorflow_core.switchover.actions import (
    ClearEnd,
    EndFlow,
    FenceCluster,
    FinishGroups,
    LiftFence,
    StartReverse,
    SwitchEndpoint,
    SwitchoverAction,
    TryFence,
    VerifySeal,
    WriteRecord,
)
from mirrorflow_core.switchover.observation import SwitchoverObservation, SwitchoverSide
from mirrorflow_core.switchover.record import SwitchoverRecord
from mirrorflow_core.switchover.state_machine import SwitchoverStep, step
from mirrorflow_core.switchover.states import FENCED, SwitchoverState
from mirrorflow_kafka.client.cancellation import cancel_and_wait
from mirrorflow_replicator.switchover.errors import SwitchoverTakenError
from mirrorflow_replicator.switchover.flow_mover import FlowMover
from mirrorflow_replicator.switchover.hooks import HookAction, run_hook
from mirrorflow_replicator.switchover.journal import SwitchoverJournal
from mirrorflow_replicator.switchover.observer import SwitchoverObserver
from mirrorflow_replicator.switchover.pair_settings import SwitchoverSettings
from mirrorflow_replicator.switchover.readiness import ReadinessChecks
from mirrorflow_replicator.switchover.sealed_partitions import SealedPartitions
from mirrorflow_replicator.switchover.write_fences import WriteFence

# An observation takes some ten requests, and writes are refused meanwhile, so the next one follows soon.
POLL_S: Final = 0.05
RETRY_MIN_S, RETRY_S = 0.05, 0.5
INTERRUPT_POLL_S: Final = 0.2


class SwitchoverRunner:
    """Runs one switchover to its end. `observer.request_rollback` rolls it back, unless it has promoted."""

    def __init__(
        self,
        settings: SwitchoverSettings,
        journal: SwitchoverJournal,
        observer: SwitchoverObserver,
        *,
        fences: Mapping[str, WriteFence],
        flows: FlowMover,
        checks: ReadinessChecks,
        partitions: SealedPartitions,
        on_step: Callable[[SwitchoverStep, str], None],
    ) -> None:
        """*fences*: by the alias of their cluster. *on_step* is called with each step, and the error that is repeated; "" without one."""
        self._settings = settings
        self._journal = journal
        self._observer = observer
        self._fences = fences
        self._flows = flows
        self._checks = checks
        self._partitions = partitions
        self._on_step = on_step
        self._began_ns, self._began_monotonic_ns = time.time_ns(), time.monotonic_ns()

    async def run(self, record: SwitchoverRecord) -> SwitchoverRecord:
        """Carries *record* out; returns its last revision. Raises SwitchoverTakenError."""
        failures = 0
        while True:
            observation = await self._observer.observe(record)
            result = step(record, observation, self._now_ms())
            if result.is_superseded:
                raise SwitchoverTakenError(pair=record.pair)
            if result.record.is_final and not result.actions:
                self._on_step(result, "")
                return result.record
            is_waiting = not result.actions and result.record is record
            record = result.record
            problem = await self._carry_out(result) or self._observer.problem
            self._on_step(result, problem)
            failures = failures + 1 if problem else 0
            if problem:
                await asyncio.sleep(backoff_s(failures, lowest_s=RETRY_MIN_S, highest_s=RETRY_S))
            elif is_waiting:
                await self._wait(record, observation)

    async def _wait(self, record: SwitchoverRecord, observation: SwitchoverObservation) -> None:
        """Waits for the next observation. While the ends must stay unchanged, the copies are compared already."""
        began_s, pause_s = time.monotonic(), POLL_S
        if record.state is SwitchoverState.QUIESCING:
            # What was in flight arrives soon after the fence, so later pauses are longer; the last one ends in time.
            unchanged_ms = observation.source.unchanged_ms or 0
            left_s = max(record.limits.quiet_ms - unchanged_ms, 0) / 1000
            pause_s = min(max(POLL_S, unchanged_ms / 1000), left_s)
            if (ends := guards.copied_ends(observation)) is not None:
                starts = self._journal.starts_on(self._settings.source)
                with contextlib.suppress(ClusterError):  # `verify` raises it again
                    await self._finishes(self._flows.verify_ahead(ends, starts), record)
        await asyncio.sleep(max(0.0, pause_s - (time.monotonic() - began_s)))

    async def _carry_out(self, result: SwitchoverStep) -> str:
        """Does the actions of a step in their order; returns the error that the next step repeats, "" without one."""
        # Before promoting, its limit rolls the switchover back; so no error may end the process while writes are refused.
        try:
            if not await self._finishes(self._act_all(result.actions), result.record):
                return "An action took longer than writes may be refused, or a rollback was requested, and was stopped."
        except SwitchoverTakenError:
            raise
        except MirrorFlowError as error:
            return str(error)
        return ""

    async def _finishes(self, work: Coroutine[Any, Any, None], record: SwitchoverRecord) -> bool:
        """Runs *work*, and stops it where *record* is to be rolled back; returns whether it has ended by itself. Raises as *work*."""
        working = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait({working}, timeout=INTERRUPT_POLL_S))[0]:
                if self._is_to_roll_back(record):
                    return False
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

    async def _act_all(self, actions: Iterable[SwitchoverAction]) -> None:
        for action in actions:
            await self._act(action)

    def _is_to_roll_back(self, record: SwitchoverRecord) -> bool:
        """Returns whether the next step rolls *record* back; an action may take for ever, as on brokers before 4.0 without a leader."""
        is_late = guards.is_past_limit(record, self._now_ms()) or self._observer.is_rollback_requested
        return record.state in FENCED and is_late

    async def _act(self, action: SwitchoverAction) -> None:
        aliases = {SwitchoverSide.SOURCE: self._settings.source, SwitchoverSide.TARGET: self._settings.to}
        match action:
            case WriteRecord(record):
                await self._journal.write(record)
            case TryFence():
                await self._checks.try_fence()
            case FenceCluster(side):
                await self._fences[aliases[side]].set(await self._partitions.topics())
            case LiftFence(side):
                await self._journal.confirm(aliases[side])
                await self._fences[aliases[side]].lift()
            case VerifySeal(seal):
                await self._flows.verify(seal, self._journal.starts_on(self._settings.source))
            case FinishGroups():
                await self._journal.confirm(self._settings.to)
                await self._flows.finish_groups()
            case EndFlow(switchover):
                await self._journal.confirm(self._settings.to)
                await self._flows.end(switchover)
            case ClearEnd(switchover):
                # A successor of this process may have promoted: the flow must not run again then.
                await self._journal.confirm(self._settings.to)
                await self._flows.clear_end(switchover)
            case SwitchEndpoint(to):
                await self._switch_endpoint(to)
            case StartReverse(switchover, starts):
                await self._journal.confirm(self._settings.to)
                await self._flows.start_reverse(switchover, starts)

    async def _switch_endpoint(self, to: str) -> None:
        await self._journal.confirm(to)
        if self._settings.endpoint_hook is not None:
            await run_hook(self._settings.endpoint_hook, HookAction.PROMOTE, self._settings.variables)
        await self._journal.write_endpoint(to)
