"""Finds topics, prepares their copies on the target, and assigns partitions to tasks.

    connect both ──> run the periodic job that is due ──> sleep until the next is due ──┐
        ^                ^──────────────────────────────────────────────────────────────┘
        └── any error: reported, retried after a backoff

This is what a source connector does besides copying. Guarantees: the first assignment waits for nothing that
copying does not need; a failure of a cluster or of one topic is reported and retried, and takes no partition
away from a task that copies it; a partition leaves its task only when its source topic is gone.
`connectors.source_connector` runs the tasks.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import NamedTuple

from mirrorflow_core.backoff import backoff_s
from mirrorflow_core.errors import (
    BrokerError,
    ClusterError,
    InternalTopicUnavailableError,
    MirrorFlowError,
    NotAuthorizedError,
)
from mirrorflow_core.partition_assignment import Assignment, assign
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.reports import SideReport
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.topics.retention_hold import LEASE_S
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.security.secret_rotation import Resolve
from mirrorflow_kafka.stores.identity_topic import HoldLog
from mirrorflow_replicator.config.plugins import make_selection
from mirrorflow_replicator.connectors.acl_sync import AclSync
from mirrorflow_replicator.connectors.connector_state import ClusterClients
from mirrorflow_replicator.connectors.internal_topics import (
    correct_topic_configs,
    create_again,
    internal_topics,
    internal_topics_of_source,
)
from mirrorflow_replicator.connectors.load_balancing import LoadBalancer
from mirrorflow_replicator.connectors.retention_writer import RetentionWriter
from mirrorflow_replicator.connectors.topic_sync import Arrangement, TopicSync
from mirrorflow_replicator.process import now_ms

OnAssignment = Callable[[Assignment], Awaitable[None]]

# Backoff after a failure of a cluster: short at first, because brokers restart in seconds, then twice a
# minute.
BACKOFF_MIN_S = 0.5
BACKOFF_MAX_S = 30.0
# Backoff for a topic that could not be created, instead of the ten minutes of a refresh: short at first,
# because a target that has just started lacks some of its brokers, then as long as above. A topic that is refused
# for good must not cost a listing of both clusters twice a minute: as below, later pauses are a share of the time
# since the newest such topic was found, up to the usual interval.
INCOMPLETE_MIN_S = 1.0
INCOMPLETE_MAX_S = 30.0
INCOMPLETE_REST_S = 600.0  # where topics are not refreshed: MM2's default interval
# A connector starts together with others that create topics on its source. Above all these are heartbeats
# topics, by which clients of the target know their upstream clusters. So topics are listed again soon after
# the start, then ever more rarely: a topic is found after at most a quarter of the connector's age at that
# time, with about thirty listings until the usual interval.
RELIST_MIN_S = 2.0
RELIST_SHARE = 0.25
CONNECT_TIMEOUT_S = 20.0  # then the failure is reported; the attempts continue
WARNINGS_MAX = 100  # warnings of one kind that are shown; the rest is a number
TOPICS_GONE_MAX = 20  # topics that are no longer visible and have a warning
# An unreachable cluster is reported within half a minute, as where records are copied.
REACH_CHECK_S = 20.0
INTERNAL_TOPICS_CHECK_S = 20.0  # a topic that is deleted or altered is corrected within a minute
NEVER = float("inf")


class PeriodicJob(NamedTuple):
    """A job of the discovery. It is due at once, then *interval_s* after each run; None: it is switched off."""

    name: str
    interval_s: float | None
    run: Callable[[], Awaitable[float | None]]  # may return a shorter interval until the next run


class TargetSyncs(NamedTuple):
    """The syncs of topics and ACLs, which need both clusters."""

    topics: TopicSync
    acls: AclSync


class TopicDiscovery:
    """Discovers the topics of one MirrorSourceConnector. `run` ends only by cancellation; all properties are safe at any time."""

    def __init__(
        self, settings: SourceSettings, *, resolve: Resolve, balancer: LoadBalancer | None = None
    ) -> None:
        self._settings = settings
        self._balancer = balancer  # None: tasks get equal numbers of partitions, whatever their load
        self._resolve = resolve
        self._selection = make_selection(settings)
        self._clusters: dict[str, Cluster] = {}
        self._sides = ClusterClients(settings.source_alias, settings.target_alias)
        self._syncs: TargetSyncs | None = None
        self._hold_log: HoldLog | None = None  # of bulk jobs, on the target
        self._arrangement: Arrangement | None = None
        self._internal_topics: dict[str, set[str]] = {}  # its own that were seen, by cluster
        self._internal_warnings: tuple[str, ...] = ()
        self._config_warnings: tuple[str, ...] = ()
        self._acl_warnings: tuple[str, ...] = ()
        self._topics_gone: dict[str, str] = {}  # topics that are no longer visible, newest last -> a message
        self._failures = 0  # consecutive failed passes
        self._job: str | None = None  # the periodic job that runs, or ran last; None: connecting
        self._failed_job: str | None = None  # the one whose failure is `problem`; None: connecting
        # Passes after which a topic lacked partitions on the target, since the newest was found.
        self._incomplete = 0
        self._incomplete_since = 0.0
        self._uncopied_before: frozenset[str] = frozenset()  # source topics, in the pass before
        self._first_listing_at: float | None = None
        self.connected = asyncio.Event()  # to both clusters, for the first time
        self._earlier_assignment: Assignment = ()  # what tasks hold from an earlier assignment, by another leader
        self.assignment: Assignment | None = None
        # Until what has failed succeeds: the other jobs are repeated with it, and succeed meanwhile.
        self.problem: MirrorFlowError | None = None

    @property
    def state(self) -> str:
        """The connector's state in Connect's terms. UNASSIGNED: it has not reached both clusters yet."""
        if self.assignment is None:
            return "UNASSIGNED" if self.problem is None else "FAILED"
        return "RUNNING" if self.problem is None else "FAILED"

    @property
    def clusters(self) -> tuple[Cluster, Cluster]:
        """Source and target; both are connected before anything is assigned."""
        return self._clusters["source"], self._clusters["target"]

    @property
    def sides(self) -> tuple[SideReport, SideReport]:
        return self._sides.reports(self._clusters.values())

    @property
    def names(self) -> Mapping[str, str]:
        """Source topic -> target topic, of the topics that are copied."""
        return self._arrangement.names if self._arrangement is not None else {}

    @property
    def uncopied(self) -> tuple[str, ...]:
        """A message for each selected topic that is not copied completely."""
        return tuple(self._arrangement.uncopied.values()) if self._arrangement is not None else ()

    @property
    def nothing_selected(self) -> str | None:
        """A message if no topic other than heartbeats is selected; None otherwise."""
        return self._arrangement.nothing_selected if self._arrangement is not None else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What failed for single topics or was left out; at most WARNINGS_MAX messages of a kind."""
        arranged = self._arrangement.warnings if self._arrangement is not None else ()
        warnings = (
            self.nothing_selected,
            *((self._syncs.topics.same_cluster_warning,) if self._syncs is not None else ()),
            *self._internal_warnings,
            *_bounded(self.uncopied),
            *_bounded(arranged),
            *_bounded(self._config_warnings),
            *_bounded(self._acl_warnings),
            *(() if self._balancer is None else (self._balancer.warning,)),
            *self._topics_gone.values(),
            *(warning for cluster in self._clusters.values() for warning in cluster.warnings),
        )
        return tuple(
            dict.fromkeys(filter(None, warnings))
        )  # a config refused at creation is refused again at the next sync

    async def run(self, on_assignment: OnAssignment) -> None:
        """Runs until cancelled. Calls *on_assignment* with all tasks' partitions whenever they change."""
        try:
            while True:
                self._job = None
                try:
                    await self._follow(await self.connect(), on_assignment)
                except MirrorFlowError as error:
                    self.problem, self._failed_job = error, self._job
                    self._failures += 1
                await asyncio.sleep(
                    backoff_s(self._failures, lowest_s=BACKOFF_MIN_S, highest_s=BACKOFF_MAX_S)
                )
        finally:
            await self.close()

    async def close(self) -> None:
        """Closes all connections; `run` does so at its end."""
        await asyncio.gather(*(cluster.close() for cluster in self._clusters.values()))
        self._clusters.clear()

    async def connect(self) -> TargetSyncs:
        """Connects to the clusters that are not connected yet, both at once. Raises ClusterError, SameClusterError."""
        wanted = {"source": self._settings.source_admin, "target": self._settings.target_admin}
        missing = {side: client for side, client in wanted.items() if side not in self._clusters}
        results = await asyncio.gather(
            *(
                Cluster.connect(client, resolve=self._resolve, timeout_s=CONNECT_TIMEOUT_S)
                for client in missing.values()
            ),
            return_exceptions=True,
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
        if self._syncs is None:
            source, target = self.clusters
            topics = TopicSync(source, target, settings=self._settings, selection=self._selection)
            topics.require_no_loop()  # before anything is written
            self._syncs = TargetSyncs(
                topics=topics,
                acls=AclSync(source, target, settings=self._settings, selection=self._selection),
            )
            self.connected.set()
        return self._syncs

    async def _follow(self, syncs: TargetSyncs, on_assignment: OnAssignment) -> None:
        """Runs the periodic jobs until one fails as a whole."""
        now = asyncio.get_running_loop().time
        jobs = [job for job in self._jobs(syncs, on_assignment) if job.interval_s is not None]
        due_at = {job.name: now() for job in jobs}
        while True:
            due = next((job for job in jobs if due_at[job.name] <= now()), None)
            if due is not None:
                self._job = due.name
                wait_s = await due.run() or due.interval_s or NEVER
                due_at[due.name] = now() + wait_s
                if self._failed_job in {None, due.name}:
                    self.problem, self._failures, self._failed_job = None, 0, None
            await self._sleep_until(min(due_at.values()))

    def _jobs(self, syncs: TargetSyncs, on_assignment: OnAssignment) -> tuple[PeriodicJob, ...]:
        """Returns the periodic jobs; of several that are due, the first runs: a new copy matters more than its settings."""
        settings = self._settings
        balance_s = None if self._balancer is None else settings.balance_tasks_s
        return (
            PeriodicJob(
                "arrange topics",
                settings.refresh_topics_s or NEVER,  # at least once
                partial(self._arrange, syncs.topics, on_assignment),
            ),
            PeriodicJob("check internal topics", INTERNAL_TOPICS_CHECK_S, self._check_internal_topics),
            PeriodicJob(
                "sync topic configs", settings.sync_configs_s, partial(self._sync_configs, syncs.topics)
            ),
            # Where settings are not synced, no other job would restore what a killed bulk job has held.
            PeriodicJob(
                "restore retention", LEASE_S if settings.sync_configs_s is None else None, self._end_holds
            ),
            PeriodicJob("sync ACLs", settings.sync_acls_s, partial(self._sync_acls, syncs.acls)),
            PeriodicJob("balance tasks", balance_s, partial(self._balance, on_assignment)),
        )

    async def _arrange(self, topics: TopicSync, on_assignment: OnAssignment) -> float:
        """Arranges topics and assigns their partitions; returns the seconds until the next time."""
        arrangement = await topics.arrange()
        await self._assign(arrangement, on_assignment)
        return self._rearrange_after_s(arrangement)

    async def _sync_configs(self, topics: TopicSync) -> None:
        held, unknown = await self._retention_holds()
        synced = await topics.sync_configs(self.names, held=held)
        # After the sync of settings, so that retention raised on the source meanwhile is never shorter.
        self._config_warnings = (*synced, *(unknown or await self._restore_retention()))

    async def _end_holds(self) -> None:
        self._config_warnings = await self._restore_retention()

    async def _sync_acls(self, acls: AclSync) -> None:
        self._acl_warnings = await acls.sync(self.names)

    async def _check_internal_topics(self) -> None:
        """Creates the flow's own topics again if they are gone, and sets their required settings; warns where it may not."""
        source, target = self.clusters
        warnings: list[str] = []
        for cluster, topics in (
            (target, internal_topics(self._settings)),
            (source, internal_topics_of_source(self._settings)),
        ):
            try:
                await create_again(cluster, topics, self._internal_topics.setdefault(cluster.alias, set()))
                warnings += (await correct_topic_configs(cluster, topics)).warnings
            except (BrokerError, InternalTopicUnavailableError, NotAuthorizedError) as error:
                warnings.append(f"The flow's own topics on {cluster.alias} cannot be checked: {error}")
        self._internal_warnings = tuple(warnings)

    async def _retention_holds(self) -> tuple[frozenset[str], tuple[str, ...]]:
        """Returns the target topics whose retention a bulk job holds, and a message if that is unknown."""
        retention = await self._retention()
        if retention is None:
            return frozenset(), ()
        try:
            return await retention.held(), ()
        except NotAuthorizedError as error:
            # A job with the same rights cannot have held anything since. What was held before may still be.
            return retention.last_held, (_holds_unknown(error),)
        except InternalTopicUnavailableError as error:
            # Any topic may be held: its old records would be deleted within minutes.
            return frozenset(self.names.values()), (_holds_unknown(error),)

    async def _restore_retention(self) -> tuple[str, ...]:
        """Restores the retention that finished bulk jobs held; returns messages for topics where that failed."""
        retention = await self._retention()
        try:
            return () if retention is None else await retention.settle()
        except (NotAuthorizedError, InternalTopicUnavailableError) as error:
            return (_holds_unknown(error),)

    async def _retention(self) -> RetentionWriter | None:
        """Returns the writer of retention holds; None if the flow has no identity topic, and so no holds."""
        if self._hold_log is None:
            self._hold_log = HoldLog(
                self._clusters["target"],
                self._settings.source_alias,
                replication_factor=self._settings.offsets.replication_factor,
            )
        if not await self._hold_log.exists():
            return None
        return RetentionWriter(self._clusters["target"], self._hold_log, now_ms=now_ms)

    async def _sleep_until(self, due_at: float) -> None:
        """Sleeps until *due_at*.

        While no task has anything to copy, it checks every REACH_CHECK_S that both clusters can be reached.
        """
        now = asyncio.get_running_loop().time
        while not any(self.assignment or ()) and now() + REACH_CHECK_S < due_at:
            await asyncio.sleep(REACH_CHECK_S)
            # The cluster's own reach reports a failed connection; the next pass reports any other error.
            checks = (cluster.refresh([]) for cluster in self.clusters)
            for failed in await asyncio.gather(*checks, return_exceptions=True):
                if isinstance(failed, BaseException) and not isinstance(failed, ClusterError):
                    raise failed
        await asyncio.sleep(max(0.0, due_at - now()))

    def _rearrange_after_s(self, arrangement: Arrangement) -> float:
        every_s = NEVER
        if self._settings.refresh_topics_s is not None:
            now = asyncio.get_running_loop().time()
            if self._first_listing_at is None:
                self._first_listing_at = now
            every_s = relist_after_s(now - self._first_listing_at, self._settings.refresh_topics_s)
        if not arrangement.incomplete:
            self._incomplete = 0
            return every_s
        now = asyncio.get_running_loop().time()
        if not self._incomplete or arrangement.uncopied.keys() - self._uncopied_before:
            self._incomplete, self._incomplete_since = 0, now
        self._incomplete += 1
        self._uncopied_before = frozenset(arrangement.uncopied)
        return incomplete_after_s(self._incomplete, now - self._incomplete_since, every_s)

    def continue_from(self, assignment: Assignment) -> None:
        """Continues from *assignment*, which an earlier leader has made."""
        self._earlier_assignment = assignment

    async def _assign(self, arrangement: Arrangement, on_assignment: OnAssignment) -> None:
        self._note_topics_gone(arrangement)
        self._arrangement = arrangement
        held = self._earlier_assignment if self.assignment is None else self.assignment
        copied = _assignable(arrangement, held)
        if self._balancer is None:
            assignment = assign(copied, self._settings.tasks_max, held)
        else:
            assignment = self._balancer.assign(copied, held)
        if assignment != self.assignment:
            await on_assignment(assignment)
            self.assignment = assignment

    def _note_topics_gone(self, arrangement: Arrangement) -> None:
        """Keeps a message for each topic that *arrangement* lacks and an earlier one had, at most TOPICS_GONE_MAX."""
        before = self.names
        gone = {
            **{
                topic: message
                for topic, message in self._topics_gone.items()
                if topic not in arrangement.names
            },
            **{
                topic: f"Topic {topic} is no longer visible on {self._settings.source_alias} (deleted, or Describe was "
                f"revoked); its copy {before[topic]} stays as it is."
                for topic in sorted(before.keys() - arrangement.names)
            },
        }
        self._topics_gone = dict([*gone.items()][-TOPICS_GONE_MAX:])

    async def _balance(self, on_assignment: OnAssignment) -> None:
        """Balances the load of the tasks. With a single task there is nothing to measure."""
        if self._balancer is None or self.assignment is None or len(self.assignment) < 2:
            return
        try:
            assignment = await self._balancer.balance(*self.clusters, self.assignment)
        except MirrorFlowError as error:
            # Tasks keep their partitions; if a cluster is unreachable, the next arrangement reports it.
            self._balancer.failed(error)
            return
        if assignment != self.assignment:
            await on_assignment(assignment)
            self.assignment = assignment


def _holds_unknown(error: ClusterError) -> str:
    return f"Whether a bulk job holds the retention of topics is not known: {error}"


def relist_after_s(age_s: float, every_s: float) -> float:
    """Returns when to list topics again, *age_s* after the first listing. *every_s* is the configured interval."""
    return min(every_s, max(RELIST_MIN_S, RELIST_SHARE * age_s))


def incomplete_after_s(passes: int, age_s: float, every_s: float) -> float:
    """Returns when to arrange topics again after the newest topic without a copy was found *age_s* ago, in *passes* so far."""
    soon_s = backoff_s(passes, lowest_s=INCOMPLETE_MIN_S, highest_s=INCOMPLETE_MAX_S)
    return min(every_s, max(soon_s, min(RELIST_SHARE * age_s, INCOMPLETE_REST_S)))


def _assignable(arrangement: Arrangement, held: Assignment) -> set[TopicPartition]:
    """Returns the partitions that exist on the target, and those that tasks already hold.

    A task keeps a partition whose copy is missing: it reports the cause better than the connector can.
    """
    return {*arrangement.partitions} | {
        partition
        for task in held
        for partition in task
        if partition.partition < arrangement.sizes.get(partition.topic, 0)
    }


def _bounded(warnings: tuple[str, ...]) -> tuple[str, ...]:
    if len(warnings) <= WARNINGS_MAX:
        return warnings
    return (
        *warnings[:WARNINGS_MAX],
        f"{len(warnings) - WARNINGS_MAX} further warnings of this kind are not shown.",
    )
