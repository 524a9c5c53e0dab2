"""A simulated process of the product: real clusters, real identity, a real `CopyTask`.

It does what `connectors.source_host.HostedConnector` and `worker.task_process.TaskProcess` do around them: connects, asks for the
identity, hands the task its partitions, retries what may heal, and continues in the next generation after it was fenced.
"""

import asyncio
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mirrorflow_core.errors import FencedError, IdentityError, MirrorFlowError
from mirrorflow_core.exactly_once.identity import Identity
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import PartitionPhase, PartitionReport
from mirrorflow_core.settings import ClientSettings, SourceSettings
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.client.cluster_pair import connect_both
from mirrorflow_kafka.stores.offset_stores import position_store
from mirrorflow_replicator.connectors.source_host import STEP_RETRY_MAX_S, STEP_SPREAD_S
from mirrorflow_replicator.copy.copy_task import CopyTask
from mirrorflow_replicator.copy.partition_reports import partition_report
from mirrorflow_replicator.copy.resume.identity_resolution import identify
from mirrorflow_replicator.worker.task_factory import begin
from tests.model.loop import new_loop

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.model.world import World

REPORT_S = 0.5
RETRY_MIN_S, RETRY_MAX_S = 0.5, 15.0
CONNECT_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How a copier is started."""

    settings: SourceSettings
    partitions: tuple[TopicPartition, ...]
    predecessor_gone: bool = False  # its parent knows that the previous copier of these is dead
    may_change: bool = True
    copier: str = ""  # the id in positions; "" for a new one


@dataclass(slots=True, eq=False)
class Seen:
    """What a copier has reported of one partition, over all its lives."""

    report: PartitionReport | None = None
    reasons: dict[str, float] = field(default_factory=dict)  # with the time since which it is reported
    losses: int = 0
    lost_records: int = 0


class Copier:
    """One process. The world steps its loop; `kill`, `freeze` and `stop` are the world's."""

    def __init__(self, world: "World", name: str, setup: Setup) -> None:
        self.world = world
        self.name = name
        self.setup = setup
        self.loop = new_loop(world.clock, name=name, on_error=self._crashed)
        self.is_dead = False  # killed, or ended by itself
        self.is_frozen = False
        self.task: CopyTask | None = None
        self.refused: MirrorFlowError | None = None  # why it does not go on after it was fenced
        self.problem: MirrorFlowError | None = None  # of the last attempt to begin
        self.generation = 0
        self._copier = setup.copier or f"{name}-id"
        self._stopping = asyncio.Event()
        self._initial = False
        self.main = self.loop.create_task(self._run(), name=name)

    @property
    def copier_id(self) -> str:
        return self._copier

    @property
    def is_running(self) -> bool:
        """Whether the world steps it."""
        return not (self.is_dead or self.is_frozen)

    def ask_to_stop(self) -> None:
        """SIGTERM."""
        self._stopping.set()

    def _crashed(self, message: str, error: BaseException | None) -> None:
        """A mistake of ours: the real process would end with it, and be started again."""
        lines = traceback.format_exception(error) if error is not None else []
        self.world.mistake(self, f"{message}\n{''.join(lines)}")

    # -- what the process does

    async def _run(self) -> None:
        try:
            identity = await self._identity()
            is_first_life = True
            while identity is not None:
                identity = await self._live(identity, gone=self.setup.predecessor_gone or not is_first_life)
                is_first_life = False
        except Exception as error:  # noqa: BLE001 whatever it is, the run has to say so
            self._crashed("the process ended", error)
        self.is_dead = True
        self.world.ended(self)

    async def _until_stopped(self, pause_s: float) -> bool:
        """Wait; True when it has to stop."""
        try:
            async with asyncio.timeout(pause_s):
                await self._stopping.wait()
        except TimeoutError:
            return False
        return True

    async def _connect(self) -> tuple[Cluster, Cluster]:
        settings = self.setup.settings
        return await connect_both(
            settings.source_consumer,
            settings.target_producer,
            resolve=lambda properties: properties,
            timeout_s=CONNECT_TIMEOUT_S,
        )

    async def _identity(self) -> Identity | None:
        """The identity to begin with, asked again until it is given; None when it has to stop before."""
        pause_s = RETRY_MIN_S
        while True:
            clusters: tuple[Cluster, Cluster] | None = None
            try:
                clusters = await self._connect()
                found = await identify(self.setup.settings, *clusters, may_change=self.setup.may_change)
                self._initial = found.is_first
            except MirrorFlowError as error:
                self.problem = error
                self.world.tell(self, f"does not begin: {error}")
            else:
                self.problem = None
                self.generation = found.identity.generation
                return found.identity
            finally:
                await asyncio.gather(*(cluster.close() for cluster in clusters or ()))
            if await self._until_stopped(pause_s):
                return None
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def _live(self, identity: Identity, *, gone: bool) -> Identity | None:
        """One life of the task; the identity of the next, None when there is none."""
        task = await self._begin(identity, gone=gone)
        if task is None:
            return None
        self.task = task
        stepping: asyncio.Task[Identity | None] | None = None
        while not await self._until_stopped(REPORT_S):
            task.report()
            is_fenced = any(
                lane.error is not None and lane.error.reason == FencedError.reason
                for lane in task.lanes.values()
            )
            if is_fenced and stepping is None and self.refused is None:
                stepping = asyncio.get_running_loop().create_task(self._step_back(identity))
            if stepping is not None and stepping.done():
                adopted, stepping = stepping.result(), None
                if adopted is not None and adopted != identity:
                    self.world.tell(self, f"adopts generation {adopted.generation}")
                    await self._end(task)
                    return adopted
        if stepping is not None:
            stepping.cancel()
        await self._end(task)
        return None

    async def _end(self, task: CopyTask) -> None:
        self.world.remember(self)
        self.task = None
        await task.stop()

    async def _begin(self, identity: Identity, *, gone: bool) -> CopyTask | None:
        settings, pause_s = self.setup.settings, RETRY_MIN_S
        while True:
            clusters: tuple[Cluster, Cluster] | None = None
            try:
                clusters = await self._connect()
                store = position_store(settings, clusters[1])
                await store.open()
                task = await begin(
                    settings, clusters, store, identity, resolve=lambda properties: properties, task=0, copier=self._copier
                )  # fmt: skip
                await task.assign(
                    self.setup.partitions,
                    initial=self._initial,
                    gone=gone,
                    bytes_per_s=settings.bytes_per_second,
                )
            except MirrorFlowError as error:
                self.problem = error
                self.world.tell(self, f"does not begin: {error}")
                await asyncio.gather(*(cluster.close() for cluster in clusters or ()))
            else:
                self.problem = None
                return task
            if await self._until_stopped(pause_s):
                return None
            pause_s = min(2 * pause_s, RETRY_MAX_S)

    async def _step_back(self, identity: Identity) -> Identity | None:
        """HostedConnector._step_back."""
        pause_s = self.world.draws.uniform(0, STEP_SPREAD_S)
        while True:
            await asyncio.sleep(pause_s)
            clusters: tuple[Cluster, Cluster] | None = None
            try:
                clusters = await self._connect()
                found = await identify(
                    self.setup.settings, *clusters, may_change=False, fenced=identity.generation
                )
            except IdentityError as error:
                self.refused = error
                self.world.tell(self, f"does not go on: {error}")
                return None
            except MirrorFlowError as error:
                self.world.tell(self, f"does not step back yet: {error}")
                pause_s = min(2 * pause_s + STEP_SPREAD_S, STEP_RETRY_MAX_S)
            else:
                self.generation = found.identity.generation
                return found.identity
            finally:
                await asyncio.gather(*(cluster.close() for cluster in clusters or ()))

    # -- what it reports

    def reports(self) -> "Mapping[TopicPartition, PartitionReport]":
        """Of each partition that it copies now."""
        task = self.task
        return {} if task is None else {at: partition_report(lane) for at, lane in task.lanes.items()}


def stopped(report: PartitionReport) -> str:
    """The reason of a partition that has stopped; "" where it has not."""
    return report.reason if report.phase is PartitionPhase.STOPPED else ""


def client(alias: str, brokers: Sequence[int]) -> ClientSettings:
    """A client of the simulated cluster *alias*."""
    addresses = ",".join(f"{alias}:{node}" for node in brokers)
    return ClientSettings(alias=alias, client_id="model", properties={"bootstrap.servers": addresses})
