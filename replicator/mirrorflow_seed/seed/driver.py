"""The driver of a seed: plans waves, lets Spark run their chains, and says how it gets on.

    survey ──> plan ──> chains ──> Spark ──> what is left ──> plan ... until the lag is small, or the waves are used up

A wave's ends are frozen; the next one takes what has been written since. Nothing is remembered between runs: a run that
was killed is started again and finds where it was on the target. SIGTERM or Ctrl-C lets the tasks end in order.
"""

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Final, TypeVar

from mirrorflow_replicator.errors import MirrorFlowError, NotAuthorizedError, SettingError
from mirrorflow_replicator.flow.identity import Identity
from mirrorflow_replicator.runtime.topics import Arrangement
from mirrorflow_replicator.settings import LossPolicy, SourceSettings
from mirrorflow_seed.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    EXIT_STOPPED,
    StalledError,
)
from mirrorflow_seed.outlet import Outlet
from mirrorflow_seed.report import JobPhase
from mirrorflow_seed.seed.chain import Ended, Order, Outcome
from mirrorflow_seed.seed.keeping import Keeping
from mirrorflow_seed.seed.orders import Desk
from mirrorflow_seed.seed.plan import Chain, Share, chains_of, shares_of
from mirrorflow_seed.seed.progress import Movement, Progress
from mirrorflow_seed.seed.survey import Survey
from mirrorflow_seed.settings import FlowFiles, JobSettings, require_shared_positions

REPORT_EVERY_S: Final = 1.0
POSITIONS_EVERY_S: Final = 5.0  # as often as tasks write them
STOP_S: Final = 20.0  # for tasks to end in order; then Spark kills them, which costs a successor some seconds
STALLED_WAVES_MAX: Final = 3  # in a row in which nothing has moved
NAMED_MAX: Final = 10  # topics in an error
TRIES_MAX: Final = 10  # of a question to a cluster that cannot be used, a minute in all
RETRY_S: Final = 6.0
# A target that has just started does not have all of its brokers, nor new topics at once their leaders.
ARRANGE_TRIES_MAX: Final = 5
ARRANGE_AGAIN_S: Final = 2.0

T = TypeVar("T")
log = logging.getLogger("mirrorflow.seed")

# Runs chains and returns what their tasks did, blocking; `cancel` ends it from elsewhere.
Run = Callable[[Sequence[Chain], Order], list[Ended]]


class SeedJob:
    """One run. *run* and *cancel* are Spark's; *slots* is how many tasks run at once."""

    def __init__(
        self,
        files: FlowFiles,
        job: JobSettings,
        *,
        outlet: Outlet,
        desk: Desk,
        run: Run,
        cancel: Callable[[], None],
        slots: Callable[[], int],
        url: str,
    ) -> None:
        self._files = files
        self._job = job
        self._settings: SourceSettings = files.load()
        require_shared_positions(self._settings)
        self._outlet = outlet
        self._desk = desk
        self._run_chains = run
        self._cancel = cancel
        self._slots = slots
        self._url = url
        self._progress = Progress(job.run_id)
        self._phase = JobPhase.PREPARING
        self._said = ""
        self._stalled_s = 0.0  # for how long nothing had moved when it gave up
        self._held_up: frozenset[str] = frozenset()  # reasons that were logged
        self._memory_bytes = 0

    async def run(self) -> int:
        """The exit status. Raises SeedError, SettingError, MirrorFlowError, after having said so."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        telling = asyncio.create_task(self._tell_again())
        try:
            status = await self._seed()
        except Exception as error:
            self._phase, self._said = JobPhase.FAILED, _without_names(error)
            raise
        finally:
            telling.cancel()
            self._tell()
        return status

    def _stop(self) -> None:
        if self._desk.stop:
            self._cancel()  # asked twice
        self._desk.stop = True
        log.info("stopping: tasks finish what is in flight")

    async def _seed(self) -> int:
        survey = await self._patiently(lambda: Survey.open(self._settings))
        try:
            arrangement = await self._arrange(survey)
            identity, initial = await self._patiently(survey.identify)
            await self._refuse_foreign(survey, arrangement)
            shares = await self._plan(survey, arrangement, initial=initial)
            keeping = Keeping(survey)
            await self._patiently(lambda: keeping.begin(arrangement.names, shares))
            self._phase = JobPhase.RUNNING
            try:
                await self._waves(survey, arrangement, shares, identity, initial=initial)
            finally:
                await keeping.end()
        finally:
            await survey.close()
        return self._verdict(arrangement)

    async def _arrange(self, survey: Survey) -> Arrangement:
        """The target's topics, when all have their place there, or will not have it soon."""
        arrangement = await self._patiently(survey.arrange)
        for _ in range(ARRANGE_TRIES_MAX):
            if not arrangement.incomplete or self._desk.stop:
                break
            await asyncio.sleep(ARRANGE_AGAIN_S)
            arrangement = await self._patiently(survey.arrange)
        return arrangement

    async def _waves(
        self,
        survey: Survey,
        arrangement: Arrangement,
        shares: tuple[Share, ...],
        identity: Identity,
        *,
        initial: bool,
    ) -> None:
        catching_up = stalled = 0
        while not self._desk.stop:
            failed = {one.index for one in self._progress.failed}
            chains = chains_of((one for one in shares if one.index not in failed), slots=self._slots())
            if chains:
                before = self._progress.lag
                await self._patiently(partial(survey.promise, shares, identity))
                await self._wave(survey, chains, identity, initial=initial)
                if self._desk.stop:
                    return
                stalled = stalled + 1 if self._progress.lag >= before else 0
                if stalled >= STALLED_WAVES_MAX:
                    raise StalledError(how=f"in {stalled} waves", reasons=self._why())
            waits = any(one.outcome is Outcome.MORE for one in self._progress.receipts.values())
            shares = await self._plan(survey, arrangement, initial=initial, frozen=waits)
            if not waits:
                catching_up += 1
                if self._progress.lag <= self._job.lag_records_max or catching_up > self._job.waves_max:
                    return

    async def _plan(
        self, survey: Survey, arrangement: Arrangement, *, initial: bool, frozen: bool = False
    ) -> tuple[Share, ...]:
        """The shares of the next wave; with *frozen* ends they are what is left of the last one."""
        progress = self._progress
        if frozen:
            return tuple(self._moved(share) for share in progress.shares)
        await self._patiently(survey.store.read_new)
        logs = await self._patiently(lambda: survey.logs(arrangement.partitions))
        begins = await self._patiently(lambda: survey.begins(logs, initial=initial))
        shares = shares_of(logs, survey.known(), begins)
        if progress.shares:
            shares = tuple(self._moved(share) for share in shares)
        progress.plan(shares)
        return shares

    def _moved(self, share: Share) -> Share:
        """*share* from where its copy stands now."""
        at = max(share.start, self._progress.next_offsets.get(share.index, -1))
        return replace(share, start=at, is_new=share.is_new and share.index not in self._progress.receipts)

    async def _wave(
        self, survey: Survey, chains: Sequence[Chain], identity: Identity, *, initial: bool
    ) -> None:
        """Let Spark copy *chains*, and follow it."""
        order = Order(
            files=self._files,
            identity=identity,
            initial=initial,
            seconds=self._job.wave_s,
            url=self._url,
            bytes_per_second=self._desk.share,
        )
        working = asyncio.create_task(asyncio.to_thread(self._run_chains, chains, order))
        asked_s = time.monotonic()
        stopped_s: float | None = None
        movement = Movement(asked_s)
        # Beside the rest: a cluster that is away keeps a question for a minute, and orders to stop must not wait for it.
        looking = asyncio.create_task(self._look_at_positions(survey))
        while not working.done():
            await asyncio.wait({working}, timeout=REPORT_EVERY_S)
            for index, offset in list(self._desk.next_offsets.items()):
                self._progress.reached(index, offset)
            if looking.done() and time.monotonic() - asked_s > POSITIONS_EVERY_S:
                looking = asyncio.create_task(self._look_at_positions(survey))
                asked_s = time.monotonic()
            still_s = movement.still_s(self._progress.lag, active=self._desk.active, now_s=time.monotonic())
            self._follow_troubles(still_s)
            if self._desk.stop:
                stopped_s = stopped_s or time.monotonic()
                if time.monotonic() - stopped_s > STOP_S:
                    await asyncio.to_thread(self._cancel)
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        try:
            self._take(working.result())
        except Exception:
            # Spark was told to end what did not end by itself.
            if not self._desk.stop:
                raise

    def _take(self, ended: Sequence[Ended]) -> None:
        for one in ended:
            self._desk.hear(one.word)
            self._memory_bytes = max(self._memory_bytes, one.memory_bytes)
            self._progress.take(one.receipts)
        log.info(
            "a wave of %d tasks is over, %d offsets are left; a task began to copy after %.2f s, the largest used %d MiB",
            len(ended),
            self._progress.lag,
            median(one.start_s for one in ended),
            self._memory_bytes >> 20,
        )
        for receipt in (receipt for one in ended for receipt in one.receipts):
            source = self._progress.shares[receipt.index].source
            if receipt.message:
                log.warning("%s", receipt.message)
            if receipt.gap_records:
                log.warning(
                    "%s: %d offsets were gone from the source before they were copied",
                    source,
                    receipt.gap_records,
                )

    def _follow_troubles(self, still_s: float) -> None:
        """Say what holds tasks up when it begins to; and give up where nothing has moved for too long."""
        troubles = self._desk.troubles
        for reason in troubles.keys() - self._held_up:
            log.warning("tasks are held up: %s", troubles[reason][1])
        self._held_up = frozenset(troubles)
        if still_s > self._job.stalled_s and not self._desk.stop:
            self._stalled_s = still_s
            self._desk.stop = True

    async def _look_at_positions(self, survey: Survey) -> None:
        """Where copies stand, whoever writes them."""
        with contextlib.suppress(MirrorFlowError):
            await survey.store.read_new()
        for share in self._progress.shares:
            position = survey.store.positions.get(share.source)
            if position is not None:
                self._progress.reached(share.index, position.source_offset + 1)

    async def _refuse_foreign(self, survey: Survey, arrangement: Arrangement) -> None:
        if not self._job.accept_foreign:
            await self._patiently(lambda: survey.refuse_foreign(arrangement))

    async def _patiently(self, question: Callable[[], Awaitable[T]]) -> T:
        """The answer, also where a cluster cannot be used for a moment. Raises what does not heal, or not in a minute."""
        for tries in range(1, TRIES_MAX + 1):
            try:
                return await question()
            except MirrorFlowError as error:
                heals = error.retriable and not isinstance(error, NotAuthorizedError | SettingError)
                if not heals or tries == TRIES_MAX or self._desk.stop:
                    raise
                log.warning("%s", error)
                await asyncio.sleep(RETRY_S)
        raise AssertionError("the last try has raised")

    def _verdict(self, arrangement: Arrangement) -> int:
        for sentence in arrangement.uncopied.values():
            log.warning("%s", sentence)
        if self._stalled_s:
            raise StalledError(how=f"for {self._stalled_s:.0f} s", reasons=self._why())
        if self._desk.stop:
            self._phase, self._said = JobPhase.PAUSED, "Stopped in order; the next start goes on."
            return EXIT_STOPPED
        if self._progress.failed or arrangement.uncopied:
            self._phase = JobPhase.FAILED
            if not self._progress.failed:
                self._said = f"{len(arrangement.uncopied)} topics have no place on the target."
            return EXIT_FAILED
        gap, cut_off = self._progress.gap_records, self._desk.unended
        said = [f"{gap} offsets were gone from the source before they were copied."] if gap else []
        if cut_off:
            said.append(
                f"{cut_off} {'task was' if cut_off == 1 else 'tasks were'} cut off; others went on in their place."
            )
        self._said = " ".join(said)
        if gap and self._settings.on_source_loss is LossPolicy.FAIL:
            # The connector was there first, and has begun where the source began by then.
            self._phase = JobPhase.FAILED
            return EXIT_FAILED
        self._phase = JobPhase.SUCCEEDED
        return EXIT_DONE

    def _why(self) -> tuple[str, ...]:
        """What tasks that have ended were held up by, and those that never came back."""
        ended = {one.reason for one in self._progress.receipts.values() if one.reason}
        return tuple(sorted(ended | self._held_up))

    # -- what is said

    async def _tell_again(self) -> None:
        while True:
            self._tell()
            await asyncio.sleep(REPORT_EVERY_S)

    def _tell(self) -> None:
        desk = self._desk
        self._outlet.say(
            self._progress.report(
                self._phase,
                desk.totals,
                active=desk.active,
                now_s=time.monotonic(),
                held_up={reason: count for reason, (count, _) in desk.troubles.items()},
                message=self._said,
            )
        )


def _without_names(error: Exception) -> str:
    """What may be seen by everybody: the reason, not the sentence, which names topics and addresses."""
    return getattr(error, "reason", "") or type(error).__name__
