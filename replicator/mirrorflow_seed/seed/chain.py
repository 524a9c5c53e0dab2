"""Copies the partitions of one chain in one Spark task, with the replicator's own copy task.

Guarantees: it writes with the flow's identity, so the target refuses what Spark runs again or too late. It
resumes where the target's state says. It ends when each partition has reached its frozen end, when its time
is over, when the driver stops it, or when nothing more can be copied, and it then releases its partitions
gracefully. Its result is used only for the report.
"""

import asyncio
import logging
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from mirrorflow_core.errors import (
    FencedError,
    IdentityError,
    MirrorFlowError,
    SettingError,
    SourceDataLostError,
)
from mirrorflow_core.exactly_once.identity import Identity
from mirrorflow_core.reports import Guarantee
from mirrorflow_core.settings import SourceSettings, StartPosition
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.cluster_pair import connect_both
from mirrorflow_kafka.stores.offset_stores import position_store
from mirrorflow_replicator.config.providers import Resolver
from mirrorflow_replicator.copy.copier_context import CopierState
from mirrorflow_replicator.copy.copy_task import CopyTask
from mirrorflow_replicator.copy.partition_copier import PartitionCopier
from mirrorflow_replicator.copy.partition_reports import guarantee_of
from mirrorflow_replicator.copy.resume.identity_resolution import identify
from mirrorflow_replicator.process import memory_tuning
from mirrorflow_replicator.worker.task_factory import begin
from mirrorflow_seed.seed.plan import Chain, SeedShare
from mirrorflow_seed.seed.task_messages import ASK_EVERY_S, Orders, Word, ask
from mirrorflow_seed.settings import FlowFiles

LOOK_S: Final = 0.05
START_S: Final = 60.0  # upper bound for a start; added to the time of a task
CONNECT_TIMEOUT_S: Final = 15.0
RETRY_MIN_S, RETRY_MAX_S = 0.5, 15.0  # while a cluster cannot be used
STEP_SPREAD_S: Final = 1.0  # tasks that were fenced together spread their resumption over this time
_BEGINNINGS: Final = frozenset(start.value for start in StartPosition)

log = logging.getLogger("mirrorflow.seed")


class ChainOutcome(Enum):
    """The outcome of a share in its task."""

    DONE = "done"
    MORE = "more"  # the time was over, or the driver stopped the task
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """The input that all chains of a wave share. It holds no secret and no resolved reference."""

    files: FlowFiles
    identity: Identity
    initial: bool  # the flow began with this job
    seconds: float
    url: str  # where the driver answers tasks
    bytes_per_second: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainReceipt:
    """The result of one share in a task."""

    index: int
    outcome: ChainOutcome
    next_offset: int = -1
    gap_records: int = 0
    guarantee: str = Guarantee.EXACTLY_ONCE.value
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The result of one Spark task."""

    word: Word
    receipts: tuple[ChainReceipt, ...]
    memory_bytes: int  # peak memory of its process
    start_s: float  # from the start of the task until it copied, connecting and resuming included


def copy(chains: Iterator[Chain], order: Order) -> Iterator[Ended]:
    """Copies each of *chains* and yields one result per chain; for Spark's `mapPartitions`."""
    prepare()
    for chain in chains:
        yield asyncio.run(ChainCopy(chain, order).run())


def prepare() -> None:
    """Tunes memory use and sets up logging in a Spark worker process."""
    memory_tuning.settle_in()
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s"
    )


class ChainCopy:
    """Copies one chain; `run` returns its result."""

    def __init__(self, chain: Chain, order: Order) -> None:
        self._order = order
        self._settings: SourceSettings = order.files.load()
        self._resolve = Resolver(self._settings.providers).resolve_client
        self._open: dict[int, SeedShare] = {share.index: share for share in chain.shares}
        self._lanes: dict[int, PartitionCopier] = {}  # of the current connection
        self._receipts: dict[int, ChainReceipt] = {}
        self._copier = secrets.token_hex(8)
        self._word = Word(attempt=self._copier)
        self._orders = Orders(bytes_per_second=order.bytes_per_second)
        self._began_s = time.monotonic()
        # `_copy` shortens this once records move: a slow start must not use up a short time.
        self._until_s = self._began_s + START_S + order.seconds
        self._moves = False
        self._start_s = 0.0
        self._counted = (0, 0)  # records and bytes copied over earlier connections
        self._lost: Counter[int] = Counter()  # source offsets lost over earlier connections, by share
        self._mistake: BaseException | None = None
        self._trouble: MirrorFlowError | None = None

    async def run(self) -> Ended:
        """Copies until there is a reason to end.

        Raises unexpected exceptions, which are bugs of ours: Spark then retries the task.
        """
        asyncio.get_running_loop().set_exception_handler(self._note_mistake)
        await self._ask()
        asking = asyncio.create_task(self._keep_asking())
        try:
            await self._live()
        finally:
            asking.cancel()
        for share in list(self._open.values()):
            self._end(share, ChainOutcome.MORE, self._trouble_of(share))
        self._word = replace(self._word, ended=True)
        await self._ask()
        return Ended(
            word=self._word,
            receipts=tuple(self._receipts.values()),
            memory_bytes=memory_tuning.peak_bytes(),
            start_s=self._start_s,
        )

    async def _live(self) -> None:
        """Connects and copies, again after each error, until all shares are done or the time is over."""
        identity, pause_s = self._order.identity, RETRY_MIN_S
        while self._open and not self._is_over():
            try:
                identity = await self._one_life(identity)
            except (SettingError, IdentityError) as error:
                for share in list(self._open.values()):
                    self._end(share, ChainOutcome.FAILED, error)
            except MirrorFlowError as error:
                self._trouble = error
                log.warning("%s", error)
                await self._pause(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
            else:
                self._trouble, pause_s = None, RETRY_MIN_S

    async def _one_life(self, identity: Identity) -> Identity:
        """Copies with *identity* until the end; returns the identity to continue with, newer if fenced."""
        clusters = await self._connect()
        task = None
        try:
            store = position_store(self._settings, clusters[1])
            await store.open()
            task = await begin(
                self._settings,
                clusters,
                store,
                identity,
                resolve=self._resolve,
                task=0,
                copier=self._copier,
            )
            fenced = await self._copy(task)
        finally:
            if task is not None:
                await task.stop()
            else:
                await asyncio.gather(*(cluster.close() for cluster in clusters))
            self._count()
        if self._mistake is not None:
            raise self._mistake
        for share in list(self._open.values()):
            self._settle(share)  # acknowledgements may have arrived during the stop
        return await self._step(identity) if fenced else identity

    async def _copy(self, task: CopyTask) -> bool:
        """Copies until nothing is left to do on this connection; returns whether the epoch was fenced."""
        self._lost.update({index: lane.lost_records for index, lane in self._lanes.items()})
        self._counted, self._lanes = (self._word.records, self._word.bytes), {}
        assigned: frozenset[int] = frozenset()
        while self._open and not self._is_over() and self._mistake is None:
            wanted = frozenset(self._open)
            limit = self._orders.bytes_per_second
            if wanted != assigned:
                await task.assign(
                    [share.source for share in self._open.values()],
                    initial=self._order.initial,
                    bytes_per_s=limit,
                )
                assigned = wanted
                self._lanes = {index: task.lanes[share.source] for index, share in self._open.items()} | {
                    index: lane for index, lane in self._lanes.items() if index not in wanted
                }
            task.pace.bytes_per_s = limit
            await asyncio.sleep(LOOK_S)
            self._count()
            if not self._moves and any(
                lane.records or lane.state is CopierState.WAITING for lane in self._lanes.values()
            ):
                self._moves = True
                self._start_s = time.monotonic() - self._began_s
                self._until_s = min(self._until_s, time.monotonic() + self._order.seconds)
            for share in list(self._open.values()):
                if self._settle(share):
                    return True
            if all(_delivered(self._lanes[index]) >= share.end for index, share in self._open.items()):
                break  # the stop commits what is left; the caller then checks the shares once more
        return False

    def _settle(self, share: SeedShare) -> bool:
        """Records the outcome of *share* if it has ended; returns whether its epoch was fenced."""
        lane = self._lanes.get(share.index)
        if lane is None:
            return False
        if _next_offset(lane) >= share.end:
            self._end(share, ChainOutcome.DONE, None)
            return False
        error = lane.error
        if isinstance(error, FencedError):
            return True
        if lane.is_halted and error is not None and not error.retriable:
            self._end(share, ChainOutcome.FAILED, error)
        return False

    def _end(self, share: SeedShare, outcome: ChainOutcome, error: MirrorFlowError | None) -> None:
        self._open.pop(share.index)
        lane = self._lanes.get(share.index)
        self._receipts[share.index] = ChainReceipt(
            index=share.index,
            outcome=outcome,
            next_offset=-1 if lane is None else _next_offset(lane),
            gap_records=self._lost[share.index] + _gap_records(share, lane, error),
            guarantee=(guarantee_of(lane) if lane is not None else Guarantee.EXACTLY_ONCE).value,
            reason="" if error is None else error.reason,
            message="" if error is None else str(error),
        )

    def _trouble_of(self, share: SeedShare) -> MirrorFlowError | None:
        """The error that holds up *share* now: its own, else that of the whole connection."""
        lane = self._lanes.get(share.index)
        return self._trouble if lane is None or lane.error is None else lane.error

    async def _step(self, identity: Identity) -> Identity:
        """Returns the identity of the generation that replaced ours."""
        await asyncio.sleep(secrets.randbelow(1000) / 1000 * STEP_SPREAD_S)
        clusters = await self._connect()
        try:
            found = await identify(self._settings, *clusters, may_change=False, fenced=identity.generation)
            return found.identity
        finally:
            await asyncio.gather(*(cluster.close() for cluster in clusters))

    async def _connect(self) -> tuple[Cluster, Cluster]:
        settings = self._settings
        return await connect_both(
            settings.source_consumer,
            settings.target_producer,
            resolve=self._resolve,
            timeout_s=CONNECT_TIMEOUT_S,
        )

    # -- the driver

    def _is_over(self) -> bool:
        return self._orders.stop or time.monotonic() > self._until_s

    def _count(self) -> None:
        lanes = self._lanes
        self._word = Word(
            attempt=self._copier,
            records=self._counted[0] + sum(lane.records for lane in lanes.values()),
            bytes=self._counted[1] + sum(lane.bytes for lane in lanes.values()),
            seconds=time.monotonic() - self._began_s,
            next_offsets={index: _next_offset(lane) for index, lane in lanes.items()},
        )

    async def _keep_asking(self) -> None:
        while True:
            await asyncio.sleep(ASK_EVERY_S)
            # One error is enough: an unusable cluster holds up all shares alike.
            errors = (self._trouble_of(share) for share in list(self._open.values()))
            trouble = next((error for error in errors if error is not None), None)
            self._word = replace(
                self._word,
                seconds=time.monotonic() - self._began_s,
                reason="" if trouble is None else trouble.reason,
                message="" if trouble is None else str(trouble),
            )
            await self._ask()

    async def _ask(self) -> None:
        said = await asyncio.to_thread(ask, self._order.url, self._word)
        if said is not None:
            self._orders = said

    async def _pause(self, seconds: float) -> None:
        for _ in range(round(seconds / LOOK_S)):
            if self._is_over():
                return
            await asyncio.sleep(LOOK_S)

    def _note_mistake(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        loop.default_exception_handler(context)
        error = context.get("exception")
        if isinstance(error, BaseException):
            self._mistake = error


def _next_offset(lane: PartitionCopier) -> int:
    """The first source offset not known to be settled on the target, by this copier or by the active one."""
    settled = lane.pin.settled
    ours = -1 if settled is None else settled.source_offset + 1
    position = lane.position
    theirs = -1 if position is None or lane.state is not CopierState.WAITING else position.source_offset + 1
    return max(ours, theirs)


def _delivered(lane: PartitionCopier) -> int:
    """The first source offset not known to be delivered; an open transaction may still be aborted."""
    return -1 if lane.stream is None else lane.stream.delivered.source_offset + 1


def _gap_records(share: SeedShare, lane: PartitionCopier | None, error: MirrorFlowError | None) -> int:
    """Number of source offsets that existed at planning and were deleted before they were copied."""
    gap = 0 if lane is None else lane.lost_records
    if isinstance(error, SourceDataLostError):
        gap += max(0, error.found - error.wanted)
    anchor = None if lane is None else lane.anchor
    if share.is_new and anchor is not None and anchor.ordinal == 0 and anchor.why in _BEGINNINGS:
        gap += max(0, anchor.source_offset - share.start)
    return gap
