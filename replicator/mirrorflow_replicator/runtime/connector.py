"""What a source connector does besides copying: it finds topics, prepares their copies, and says who copies what.

    connect both ──> arrange topics ──> assign ──> settings ──> sleep ──┐
        ^   └ error: state and sentence, back off                      │
        └──────────────────────────────────────────────────────────────┘

Promises: the first assignment waits for nothing that copying does not need; a failure, of a whole cluster or of one topic,
is told and tried again, and takes no partition away from a task that copies it; a partition leaves its task only when
its source topic is gone. Tasks, processes and restarts are `runtime.worker`'s.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

from mirrorflow_replicator.connect.config_rules import make_config_rules
from mirrorflow_replicator.connect.plugins import make_selection
from mirrorflow_replicator.errors import ClusterError, MirrorFlowError, NotAuthorizedError
from mirrorflow_replicator.flow.assignment import Assignment, assign
from mirrorflow_replicator.flow.partitions import TopicPartition
from mirrorflow_replicator.flow.report import SideReport
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.credentials import Resolve
from mirrorflow_replicator.kafka.identity import IdentityLog
from mirrorflow_replicator.runtime.acl_syncing import AclSync
from mirrorflow_replicator.runtime.balancing import Balancing
from mirrorflow_replicator.runtime.clock import now_ms
from mirrorflow_replicator.runtime.holding import Retention
from mirrorflow_replicator.runtime.sides import Sides
from mirrorflow_replicator.runtime.topics import Arrangement, Topics
from mirrorflow_replicator.settings import ClientSettings, SourceSettings

Hand = Callable[[Assignment], Awaitable[None]]

# After a failure of a cluster: soon at first, for brokers restart in seconds, then twice a minute.
BACKOFF_MIN_S = 0.5
BACKOFF_MAX_S = 30.0
# A topic that could not be created is tried again after these, not after the ten minutes of a refresh: soon at first, for
# a target that has just started does not have all of its brokers, then as rarely as above.
INCOMPLETE_RETRY_MIN_S = 1.0
INCOMPLETE_RETRY_MAX_S = 30.0
CONNECT_TIMEOUT_S = 20.0  # then the failure is told; the attempts go on
WARNINGS_MAX = 100  # sentences of one kind that are shown; the rest is a number
GONE_MAX = 20  # topics that left, newest last
LOOK_S = 20.0  # a cluster is told to be away within half a minute, as where records are copied
NEVER = float("inf")


class SourceConnector:
    """One MirrorSourceConnector. `run` ends only by cancellation; everything else is read-only and always safe to ask."""

    def __init__(
        self, settings: SourceSettings, *, resolve: Resolve, balancing: Balancing | None = None
    ) -> None:
        self._settings = settings
        self._balancing = balancing  # None: tasks have as many partitions each, whatever those cost
        self._resolve = resolve
        self._selection = make_selection(settings)
        self._rules = make_config_rules(settings)
        self._clusters: dict[str, Cluster] = {}
        self._sides = Sides(settings.source_alias, settings.target_alias)
        self._topics: Topics | None = None
        self._decisions: IdentityLog | None = None  # of the target, for what bulk jobs hold
        self._acls: AclSync | None = None
        self._arrangement: Arrangement | None = None
        self._config_warnings: tuple[str, ...] = ()
        self._acl_warnings: tuple[str, ...] = ()
        self._gone: deque[str] = deque(maxlen=GONE_MAX)
        self._failures = 0  # passes in a row
        self._incomplete = 0  # passes in a row after which a topic had no place on the target
        self.held: Assignment = ()  # what tasks have from whoever handed out before us
        self.assignment: Assignment | None = None
        self.problem: MirrorFlowError | None = None  # of the last pass; None while all is well

    @property
    def state(self) -> str:
        """In Connect's words. UNASSIGNED: it has not yet reached both clusters; `problem` says why."""
        if self.assignment is None:
            return "UNASSIGNED" if self.problem is None else "FAILED"
        return "RUNNING" if self.problem is None else "FAILED"

    @property
    def clusters(self) -> tuple[Cluster, Cluster]:
        """Source and target; connected before anything is handed out."""
        return self._clusters["source"], self._clusters["target"]

    @property
    def sides(self) -> tuple[SideReport, SideReport]:
        """Whether source and target can be used."""
        return self._sides.reports(self._clusters.values())

    @property
    def names(self) -> Mapping[str, str]:
        """Source topic -> target topic, of what is copied."""
        return self._arrangement.names if self._arrangement is not None else {}

    @property
    def uncopied(self) -> tuple[str, ...]:
        """A sentence for each selected topic that is not, or not wholly, copied."""
        return tuple(self._arrangement.uncopied.values()) if self._arrangement is not None else ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What failed for single topics, or was left out; bounded."""
        arranged = self._arrangement.warnings if self._arrangement is not None else ()
        nothing: tuple[str, ...] = ()
        if self._arrangement is not None and not self._arrangement.names:
            nothing = (
                f"No topic of {self._settings.source_alias} is selected by `topics`, or Describe on them is not granted.",
            )
        return (
            *nothing,
            *_shown(self.uncopied),
            *_shown(arranged),
            *_shown(self._config_warnings),
            *_shown(self._acl_warnings),
            *((self._balancing.warning,) if self._balancing is not None and self._balancing.warning else ()),
            *self._gone,
            *(warning for cluster in self._clusters.values() for warning in cluster.warnings),
        )

    async def run(self, hand: Hand) -> None:
        """Follow both clusters until cancelled. *hand* is given all tasks' partitions whenever they are others."""
        try:
            while True:
                try:
                    await self.connect()
                    await self._follow(hand)
                except MirrorFlowError as error:
                    self.problem = error
                    self._failures += 1
                await asyncio.sleep(min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2 ** min(self._failures - 1, 10)))
        finally:
            await self.close()

    async def close(self) -> None:
        """End all connections; `run` does so at its end."""
        await asyncio.gather(*(cluster.close() for cluster in self._clusters.values()))
        self._clusters.clear()

    async def connect(self) -> None:
        """Reach whichever cluster is not reached yet, both at once. Raises ClusterError."""
        wanted = {"source": self._settings.source_admin, "target": self._settings.target_admin}
        missing = {side: client for side, client in wanted.items() if side not in self._clusters}
        results = await asyncio.gather(
            *(self._reach(client) for client in missing.values()), return_exceptions=True
        )
        errors = []
        for side, result in zip(missing, results, strict=True):
            if isinstance(result, BaseException):
                errors.append(result)
                self._sides.note(result)
            else:
                self._clusters[side] = result
                self._sides.connected(result)
        if errors:
            raise errors[0]
        if self._topics is None:
            self._topics = Topics(
                self._clusters["source"],
                self._clusters["target"],
                selection=self._selection,
                rules=self._rules,
                replication_factor=self._settings.replication_factor,
                report_only=self._settings.configs_report_only,
            )
            self._acls = AclSync(
                self._clusters["source"],
                self._clusters["target"],
                settings=self._settings,
                selection=self._selection,
            )

    async def _reach(self, client: ClientSettings) -> Cluster:
        return await Cluster.connect(client, resolve=self._resolve, timeout_s=CONNECT_TIMEOUT_S)

    async def _follow(self, hand: Hand) -> None:
        """Passes for ever, until one fails as a whole."""
        assert self._topics is not None
        assert self._acls is not None
        now = asyncio.get_running_loop().time
        refresh_at = now()
        # Right after the first assignment: a copy that starts is worth more than one with the last setting in place.
        configs_at = NEVER if self._settings.sync_configs_s is None else refresh_at
        acls_at = NEVER if self._settings.sync_acls_s is None else refresh_at
        balance_at = NEVER if self._balancing is None else refresh_at
        while True:
            if now() >= refresh_at:
                arrangement = await self._topics.arrange()
                await self._take(arrangement, hand)
                if self._settings.sync_configs_s is None:
                    # Nobody else would give back what a bulk job that was killed has held.
                    self._config_warnings = await self._give_back()
                refresh_at = now() + self._refresh_after_s(arrangement)
            elif now() >= configs_at:
                held, unknown = await self._held()
                synced = await self._topics.sync_configs(self.names, held=held)
                # After what the source has now: a retention that was raised there meanwhile is never shorter.
                self._config_warnings = (*synced, *(unknown or await self._give_back()))
                assert self._settings.sync_configs_s is not None
                configs_at = now() + self._settings.sync_configs_s
            elif now() >= acls_at:
                self._acl_warnings = await self._acls.sync(self.names)
                assert self._settings.sync_acls_s is not None
                acls_at = now() + self._settings.sync_acls_s
            elif now() >= balance_at:
                await self._balance(hand)
                assert self._settings.balance_tasks_s is not None
                balance_at = now() + self._settings.balance_tasks_s
            self.problem, self._failures = None, 0
            await self._sleep_until(min(refresh_at, configs_at, acls_at, balance_at))

    async def _held(self) -> tuple[frozenset[str], tuple[str, ...]]:
        """Target topics whose retention a bulk job holds, and why that is not known."""
        retention = await self._retention()
        try:
            return frozenset() if retention is None else await retention.held(), ()
        except NotAuthorizedError as error:
            # A job with the same rights cannot have held anything.
            return frozenset(), (f"Whether a bulk job holds the retention of topics is not known: {error}",)

    async def _give_back(self) -> tuple[str, ...]:
        """What jobs that are over have held; the sentences of what could not be given back."""
        retention = await self._retention()
        try:
            return () if retention is None else await retention.settle()
        except NotAuthorizedError as error:
            return (f"Whether a bulk job holds the retention of topics is not known: {error}",)

    async def _retention(self) -> Retention | None:
        """None if nothing was ever decided, so that nothing can be held."""
        if self._decisions is None:
            self._decisions = IdentityLog(
                self._clusters["target"],
                self._settings.source_alias,
                replication_factor=self._settings.offsets.replication_factor,
            )
        if not await self._decisions.exists():
            return None
        return Retention(self._clusters["target"], self._decisions, now_ms=now_ms)

    async def _sleep_until(self, due_at: float) -> None:
        """Where no task has anything to copy, nobody else would notice that a cluster is away."""
        now = asyncio.get_running_loop().time
        while not any(self.assignment or ()) and now() + LOOK_S < due_at:
            await asyncio.sleep(LOOK_S)
            # A connection that fails is told by the cluster's own reach; the next pass tells whatever else is wrong.
            looks = (cluster.refresh([]) for cluster in self.clusters)
            for failed in await asyncio.gather(*looks, return_exceptions=True):
                if isinstance(failed, BaseException) and not isinstance(failed, ClusterError):
                    raise failed
        await asyncio.sleep(max(0.0, due_at - now()))

    def _refresh_after_s(self, arrangement: Arrangement) -> float:
        every_s = NEVER if self._settings.refresh_topics_s is None else self._settings.refresh_topics_s
        if not arrangement.incomplete:
            self._incomplete = 0
            return every_s
        retry_s = min(INCOMPLETE_RETRY_MAX_S, INCOMPLETE_RETRY_MIN_S * 2.0 ** min(self._incomplete, 10))
        self._incomplete += 1
        return min(every_s, retry_s)

    async def _take(self, arrangement: Arrangement, hand: Hand) -> None:
        before = self.names
        self._gone.extend(
            f"Topic {topic} is no longer to be seen on {self._settings.source_alias} (deleted, or Describe was revoked); "
            f"its copy {before[topic]} stays as it is."
            for topic in sorted(before.keys() - arrangement.names)
        )
        self._arrangement = arrangement
        held = self.held if self.assignment is None else self.assignment
        copied = _copied(arrangement, held)
        if self._balancing is None:
            assignment = assign(copied, self._settings.tasks_max, held)
        else:
            assignment = self._balancing.place(copied, held)
        if assignment != self.assignment:
            await hand(assignment)
            self.assignment = assignment

    async def _balance(self, hand: Hand) -> None:
        """Let tasks have about as much to do each. Where one task does all there is nothing to measure either."""
        if self._balancing is None or self.assignment is None or len(self.assignment) < 2:
            return
        try:
            assignment = await self._balancing.look(*self.clusters, self.assignment)
        except MirrorFlowError as error:
            # What is copied goes on as it is; where a cluster is away the next refresh says so.
            self._balancing.warning = f"Tasks are not balanced by load: {error}"
            return
        if assignment != self.assignment:
            await hand(assignment)
            self.assignment = assignment


def _copied(arrangement: Arrangement, held: Assignment) -> set[TopicPartition]:
    """What has its place on the target, and what a task holds already: it says better than we what its copy lacks."""
    return {*arrangement.partitions} | {
        partition
        for task in held
        for partition in task
        if partition.partition < arrangement.sizes.get(partition.topic, 0)
    }


def _shown(warnings: tuple[str, ...]) -> tuple[str, ...]:
    if len(warnings) <= WARNINGS_MAX:
        return warnings
    return (
        *warnings[:WARNINGS_MAX],
        f"{len(warnings) - WARNINGS_MAX} further warnings of this kind are not shown.",
    )
