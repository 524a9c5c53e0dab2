"""Keeps the target's topics in line with the source's: creates them, grows them, copies their settings.

`mirrorflow_core.topics.topic_configs` makes the plans. Each pass reads both clusters again and is safe to repeat, also by two processes at
once. What fails for one topic is a message in the result, and the others continue; only errors of a whole cluster are raised.

`RetentionWriter` holds the retention of target topics during bulk jobs, and restores it (`mirrorflow_core.topics.retention_hold` decides).
Guarantees: a topic's settings are in the identity topic before they are changed; nothing is restored while another job's lease
runs; a step that was done twice, or interrupted by a kill, does no harm.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from mirrorflow_core.errors import ClusterError, NotAuthorizedError, UnsupportedBrokerError
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.topics.retention_hold import (
    FOR_EVER,
    LEASE_S,
    OVER_MS,
    RESTORED_MS,
    RETENTION,
    Hold,
    RetentionLease,
    changed,
    restoring,
)
from mirrorflow_core.topics.same_cluster import same_cluster_refusal, same_cluster_warning
from mirrorflow_core.topics.topic_configs import (
    ConfigChange,
    ConfigEntry,
    NewTopicPlan,
    TopologyPlan,
    changes_by_copy,
    compacted_alone,
    explain,
    plan_topics,
    target_names,
)
from mirrorflow_core.topics.topic_selection import TopicSelection
from mirrorflow_core.wire.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    INVALID_PARTITIONS,
    INVALID_REPLICATION_FACTOR,
    TOPIC_AUTHORIZATION_FAILED,
)
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.admin.topics import alter_to_accepted_settings, create_with_accepted_settings
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.identity_topic import HoldLog
from mirrorflow_replicator.config.plugins import make_config_rules

log = logging.getLogger("mirrorflow.worker")

TOPICS_PER_REQUEST = 200  # about 40 settings of 100 bytes each are returned for every topic: below 1 MB
# New partitions have leaders within a second or two; a partition copier that starts earlier retries by
# itself.
LEADERS_WAIT_S = 10.0
LEADERS_POLL_S = 0.02
_UNAUTHORIZED = (TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """What can be copied now: partitions by source name that exist on the target."""

    partitions: tuple[TopicPartition, ...]
    names: Mapping[str, str]  # source topic -> target topic, of all selected topics
    sizes: Mapping[str, int]  # source topic -> its partitions on the source
    warnings: tuple[str, ...]
    # source topic that lacks its copy, or partitions of it -> why, as a message
    uncopied: Mapping[str, str]
    incomplete: bool  # some of those may exist later
    nothing_selected: str | None = None  # a message if no topic but heartbeats is selected; None: some are


class TopicSync:
    """The topics of one flow on both of its clusters."""

    def __init__(
        self, source: Cluster, target: Cluster, *, settings: SourceSettings, selection: TopicSelection
    ) -> None:
        self._source = source
        self._target = target
        self._selection = selection
        self._rules = make_config_rules(settings)
        self._replication_factor = settings.replication_factor
        self._report_only = settings.configs_report_only
        self._copied: frozenset[str] = frozenset()  # source topics that had a target topic in the last pass

    @property
    def same_cluster_warning(self) -> str | None:
        """A message if source and target are one cluster; None otherwise."""
        shared_id = self._shared_cluster_id
        if shared_id is None:
            return None
        return same_cluster_warning(
            source_alias=self._source.alias,
            target_alias=self._target.alias,
            cluster_id=shared_id,
        )

    @property
    def _shared_cluster_id(self) -> str | None:
        """The id of the cluster that is both source and target; None if they are two, or their ids are not known."""
        cluster_id = self._source.cluster_id
        return cluster_id if cluster_id == self._target.cluster_id else None

    def require_no_loop(self, topics: Collection[str] = ()) -> None:
        """Raises SameClusterError if both clusters are one, and the flow would copy its copies of *topics*, or all of its copies."""
        shared_id = self._shared_cluster_id
        if shared_id is None:
            return
        refusal = same_cluster_refusal(
            self._selection,
            source_alias=self._source.alias,
            target_alias=self._target.alias,
            cluster_id=shared_id,
            topics=topics,
        )
        if refusal is not None:
            raise refusal

    async def arrange(self) -> Arrangement:
        """Reads both clusters, creates and grows what the target lacks. Raises ClusterError, SameClusterError."""
        await asyncio.gather(self._source.refresh(), self._target.refresh())
        source, obstacles = self._selected()
        self.require_no_loop(source)
        target = _sizes(self._target)
        remote = self._selection.target_topic
        missing = [
            topic
            for topic, name in target_names(source, remote, self._copied)[0].items()
            if name not in target
        ]
        configs, warnings, undescribed = await self._creation_configs(missing)
        plan = plan_topics(
            source=source,
            target=target,
            remote=remote,
            configs=configs,
            rules=self._rules,
            replication_factor=self._replication_factor,
            before=self._copied,
        )
        failures, refused_settings = await self._carry_out(plan, undescribed)
        if plan.create or plan.grow:
            wanted = {new.name: new.partitions for new in plan.create} | {
                new.name: new.total for new in plan.grow
            }
            await self._wait_for_leaders(
                {name: total for name, total in wanted.items() if name not in failures}
            )
            target = _sizes(self._target)
        own_alias = self._selection.of_own_alias(_sizes(self._source))
        names = {topic: remote(topic) for topic in source if topic not in plan.clashes}
        self._copied = frozenset(names)
        partitions = tuple(
            TopicPartition(topic, number)
            for topic, name in sorted(names.items())
            for number in range(min(source[topic], target.get(name, 0)))
        )
        clashes = {
            topic: f"Topic {topic} is not copied: its copy would have the name of the copy of {other}, {remote(topic)}."
            for topic, other in plan.clashes.items()
        }
        lacking = {
            topic: failures.get(name) or self._invisible(name)
            for topic, name in sorted(names.items())
            if target.get(name, 0) < source[topic]
        }
        return Arrangement(
            partitions=partitions,
            names=names,
            sizes={topic: source[topic] for topic in names},
            warnings=(*warnings, *refused_settings, *([] if own_alias is None else [own_alias])),
            uncopied=lacking | clashes | obstacles,
            incomplete=bool(lacking),
            nothing_selected=self._selection.nothing_selected(_sizes(self._source)),
        )

    def _selected(self) -> tuple[dict[str, int], dict[str, str]]:
        """Returns source topic -> partitions, and a message for each selected topic that cannot be copied."""
        sizes = {topic: n for topic, n in _sizes(self._source).items() if self._selection.selects(topic)}
        obstacles = {
            topic: f"Topic {topic} is not copied: {why}."
            for topic in sizes
            if (why := self._selection.obstacle(topic)) is not None
        }
        return {topic: n for topic, n in sizes.items() if topic not in obstacles}, obstacles

    async def sync_configs(self, names: Mapping[str, str], *, held: Collection[str] = ()) -> tuple[str, ...]:
        """Copies topic settings to the target; *names* as in Arrangement.

        Returns messages for what was not done. The retention of target topics in *held* is left alone: a bulk
        job writes older records into them.
        """
        warnings: list[str] = []
        refused: list[ClusterError] = []
        on_target = _sizes(self._target)
        present = [topic for topic, name in sorted(names.items()) if name in on_target]
        for topics in _chunks(present):
            try:
                warnings += await self._sync_some({topic: names[topic] for topic in topics}, held, refused)
            except UnsupportedBrokerError as error:
                return (f"Topic settings are not synchronised: {error}",)
        return (*_of_topics("Topic settings are not synchronised", refused), *warnings)

    async def _sync_some(
        self, names: Mapping[str, str], held: Collection[str], refused: list[ClusterError]
    ) -> list[str]:
        """Copies the settings of *names*; adds to *refused* why those of some topics cannot be read."""
        described = await asyncio.gather(
            admin.try_describe_topic_configs(self._source, list(names)),
            admin.try_describe_topic_configs(self._target, list(names.values())),
        )
        refused += [error for side in described for error in side.refused.values()]
        source, target = (side.configs for side in described)
        changes = changes_by_copy(names, source, target, self._rules)
        for name in changes.keys() & held:
            changes[name] = tuple(change for change in changes[name] if change.name not in RETENTION)
        changes = {name: of_topic for name, of_topic in changes.items() if of_topic}
        applied, outcome = await alter_to_accepted_settings(
            self._target, changes, validate_only=self._report_only
        )
        warnings = [*outcome.settings, *compacted_alone(names, source, target, applied)]
        for name, accepted in applied.items():
            if self._report_only:
                differences = ", ".join(explain(change, target[name]) for change in accepted)
                warnings.append(
                    f"Target topic {name} would be given {differences}, but settings are only reported."
                )
            elif deleted := [change for change in accepted if change.value is None]:
                # For a user who has set them on the target and looks for the reason.
                log.info(
                    "Settings of target topic %s were deleted, because the topic on %s has none of its own: %s; "
                    "mirrorflow.config.properties.exclude.by.topic (topics.configs.exceptions) keeps them.",
                    name,
                    self._source.alias,
                    ", ".join(explain(change, target[name]) for change in deleted),
                )
        warnings += [
            f"The settings of target topic {name} cannot be changed: {refusal}."
            for name, refusal in outcome.refused.items()
        ]
        return warnings

    async def _creation_configs(
        self, topics: Sequence[str]
    ) -> tuple[dict[str, Collection[ConfigEntry]], list[str], dict[str, str]]:
        """Returns the settings of new topics, warnings, and a message for each topic that is not to be created yet."""
        configs: dict[str, Collection[ConfigEntry]] = {}
        denied: list[ClusterError] = []
        undescribed: dict[str, str] = {}
        for some in _chunks(topics):
            try:
                described = await admin.try_describe_topic_configs(self._source, some)
            except UnsupportedBrokerError as error:
                return configs, [f"New topics get the target's default settings: {error}"], {}
            configs |= described.configs
            for topic, refusal in described.refused.items():
                if isinstance(refusal, NotAuthorizedError):
                    # A copy with the target's defaults is better than none; a settings pass corrects it when it may.
                    denied.append(refusal)
                else:
                    undescribed[topic] = f"Topic {topic} has no copy yet: {refusal}"
            # A broker that lags behind the one that has listed the topic; or the topic is deleted, and not listed again.
            for topic in described.unknown:
                undescribed[topic] = (
                    f"Topic {topic} has no copy yet: a broker of {self._source.alias} does not know it."
                )
        return configs, _of_topics("New topics get the target's default settings", denied), undescribed

    async def _carry_out(
        self, plan: TopologyPlan, undescribed: Mapping[str, str]
    ) -> tuple[dict[str, str], tuple[str, ...]]:
        """Creates and grows topics, but not those of *undescribed*.

        Returns a message by target name for each topic that was not created or grown, and for refused settings.
        """
        described = [new for new in plan.create if new.source not in undescribed]
        late = {new.name: undescribed[new.source] for new in plan.create if new.source in undescribed}
        not_created, refused_settings = await self._create(described)
        return {**late, **not_created, **await self._grow(plan)}, refused_settings

    async def _create(self, plans: Sequence[NewTopicPlan]) -> tuple[dict[str, str], tuple[str, ...]]:
        """Returns a message by target name for each topic that was not created, and for refused settings."""
        outcome = await create_with_accepted_settings(
            self._target,
            [
                admin.NewTopic(
                    name=plan.name,
                    partitions=plan.partitions,
                    replication_factor=plan.replication_factor,
                    configs=plan.configs,
                )
                for plan in plans
            ],
        )
        return {
            name: f"Target topic {name} cannot be created: {self._why(refusal, 'Create', name)}"
            for name, refusal in outcome.refused.items()
        }, outcome.settings

    async def _grow(self, plan: TopologyPlan) -> dict[str, str]:
        if not plan.grow:
            return {}
        totals = {growth.name: growth.total for growth in plan.grow}
        results = await admin.create_partitions(self._target, totals)
        return {
            name: f"Target topic {name} cannot grow to {totals[name]} partitions: {self._why(refusal, 'Alter', name)}"
            for name, refusal in results.items()
            # INVALID_PARTITIONS: another process was faster.
            if refusal is not None and refusal.code != INVALID_PARTITIONS
        }

    def _invisible(self, name: str) -> str:
        return (
            f"Target topic {name} exists, but not all of its partitions are visible on {self._target.alias}:"
            " they have no leader yet, or Describe on it is not granted."
        )

    def _why(self, refusal: admin.BrokerRefusal, operation: str, name: str) -> str:
        if refusal.code in _UNAUTHORIZED:
            resource = f"topic {name}"
            return str(NotAuthorizedError(cluster=self._target.alias, operation=operation, resource=resource))
        if refusal.code == INVALID_REPLICATION_FACTOR:
            return f"{refusal}; set replication.factor, -1 being the target's default."
        return f"{refusal}."

    async def _wait_for_leaders(self, wanted: Mapping[str, int]) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + LEADERS_WAIT_S
        while loop.time() < until:
            await self._target.refresh(wanted)
            if all(
                self._target.leader(name, number) is not None
                for name, total in wanted.items()
                for number in range(total)
            ):
                return
            await asyncio.sleep(LEADERS_POLL_S)


def _sizes(cluster: Cluster) -> dict[str, int]:
    """Topic -> partitions, of the topics that exist."""
    return {
        name: len(topic.partitions)
        for name, topic in cluster.metadata.topics.items()
        if not topic.error and topic.partitions
    }


def _of_topics(what: str, errors: Sequence[ClusterError]) -> list[str]:
    """Returns one sentence for all *errors*, each of another topic: the first, and the number of the others."""
    if not errors:
        return []
    more = f" The same holds for {len(errors) - 1} more." if len(errors) > 1 else ""
    return [f"{what}: {errors[0]}{more}"]


def _chunks(topics: Iterable[str]) -> Iterator[list[str]]:
    names = list(topics)
    return (names[begin : begin + TOPICS_PER_REQUEST] for begin in range(0, len(names), TOPICS_PER_REQUEST))


class RetentionWriter:
    """Retention holds on one flow's target topics. Methods read *log* again where its newest state matters."""

    def __init__(self, target: Cluster, log: HoldLog, *, now_ms: Callable[[], int]) -> None:
        self._target = target
        self._log = log
        self._now_ms = now_ms

    async def hold(self, holder: str, before: Mapping[str, Mapping[str, str | None]]) -> tuple[str, ...]:
        """Holds the topics of *before* until `give_up`; returns messages for what was refused. Raises ClusterError."""
        known = await self._log.read()
        holds = [
            # A topic that is held already shows the other hold's value; what it had before that one counts.
            Hold(holder=holder, topic=topic, before={**values, **known.before(topic)})
            for topic, values in sorted(before.items())
        ]
        if not holds:
            return ()
        now_ms = self._now_ms()
        await self._log.write(
            [*holds, RetentionLease(holder=holder, until_ms=now_ms + round(1000 * LEASE_S))], now_ms=now_ms
        )
        return await self.renew(holder, {hold.topic: tuple(hold.before) for hold in holds})

    async def renew(self, holder: str, settings: Mapping[str, Collection[str]]) -> tuple[str, ...]:
        """Extends the lease of *holder* on *settings* by topic, and sets again what was changed.

        Raises ClusterError. A value that a user set meanwhile is held as well, and noted: it is what will be restored.
        """
        now_ms = self._now_ms()
        lease = RetentionLease(holder=holder, until_ms=now_ms + round(1000 * LEASE_S))
        holds = await self._log.write([lease], now_ms=now_ms)
        configs, unread, _ = await admin.try_describe_topic_configs(self._target, sorted(settings))
        changed_by_others = {
            topic: changed(configs.get(topic, ()), names, holds.before(topic))
            for topic, names in settings.items()
        }
        if any(changed_by_others.values()):
            noted = [
                Hold(holder=holder, topic=t, before=before, is_change=True)
                for t, before in changed_by_others.items()
                if before
            ]
            await self._log.write(noted, now_ms=now_ms)
        changes = {
            topic: [ConfigChange(name=name, value=FOR_EVER) for name in names]
            for topic, names in settings.items()
            if any(entry.name in names and entry.value != FOR_EVER for entry in configs.get(topic, ()))
        }
        return await self._alter(changes, unread, "cannot be held")

    async def give_up(self, holders: Iterable[str]) -> None:
        """Ends the leases of *holders*; `settle` restores the settings. Raises ClusterError."""
        over = [RetentionLease(holder=holder, until_ms=OVER_MS) for holder in sorted(holders)]
        await self._log.write(over, now_ms=self._now_ms())

    async def settle(self) -> tuple[str, ...]:
        """Restores what is no longer held; returns messages for what was refused. Raises ClusterError."""
        began_s = time.monotonic()  # a renewal that is written later is not read
        holds = await self._log.read()
        holders, topics = holds.over(began_s)
        if not holders:
            return ()
        configs, unread, _ = await admin.try_describe_topic_configs(self._target, sorted(topics))
        changes = {topic: restoring(entries, holds.before(topic)) for topic, entries in configs.items()}
        refused = await self._alter(changes, unread, "cannot be restored")
        if not refused:
            over = [RetentionLease(holder=holder, until_ms=RESTORED_MS) for holder in sorted(holders)]
            await self._log.write(over, now_ms=self._now_ms())
        return refused

    async def held(self) -> frozenset[str]:
        """Returns the target topics whose retention must be left alone. Raises ClusterError."""
        began_s = time.monotonic()
        return (await self._log.read()).active(began_s)

    async def _alter(
        self, changes: Mapping[str, Collection[ConfigChange]], unread: Mapping[str, ClusterError], what: str
    ) -> tuple[str, ...]:
        """Makes *changes*; returns a message that begins with *what* for each refused topic, and each whose settings are *unread*."""
        wanted = {topic: tuple(of_topic) for topic, of_topic in changes.items() if of_topic}
        results = await admin.alter_topic_configs(self._target, wanted) if wanted else {}
        refused = {topic: f"{refusal}." for topic, refusal in results.items() if refusal is not None}
        refused |= {topic: str(error) for topic, error in unread.items()}
        return tuple(
            f"The retention of target topic {topic} {what}: {why}" for topic, why in sorted(refused.items())
        )
