"""Keeps the target's topics in line with the source's: creates them, grows them, copies their settings.

`mirrorflow_core.topics.topic_configs` makes the plans. Each pass reads both clusters again and is safe to repeat, also by two processes at
once. What fails for one topic is a message in the result, and the others continue; only errors of a whole cluster are raised.
"""

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence

from mirrorflow_core.errors import ClusterError, NotAuthorizedError, UnsupportedBrokerError
from mirrorflow_core.light_dataclasses import dataclass
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.settings import SourceSettings
from mirrorflow_core.topics.retention_hold import RETENTION
from mirrorflow_core.topics.same_cluster import same_cluster_refusal, same_cluster_warning
from mirrorflow_core.topics.topic_configs import (
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
from mirrorflow_kafka.admin.configs import alter_to_accepted_settings, create_with_accepted_settings
from mirrorflow_kafka.client.cluster import Cluster, chunks
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
        for topics in chunks(present, TOPICS_PER_REQUEST):
            some = {topic: names[topic] for topic in topics}
            try:
                source, target = await asyncio.gather(
                    admin.try_describe_topic_configs(self._source, list(some)),
                    admin.try_describe_topic_configs(self._target, list(some.values())),
                )
                warnings += await self._sync_some(some, source.configs, target.configs, held)
            except UnsupportedBrokerError as error:
                return (f"Topic settings are not synchronised: {error}",)
            refused += [*source.refused.values(), *target.refused.values()]
        return (*_of_topics("Topic settings are not synchronised", refused), *warnings)

    async def _sync_some(
        self,
        names: Mapping[str, str],
        source: Mapping[str, Collection[ConfigEntry]],
        target: Mapping[str, Collection[ConfigEntry]],
        held: Collection[str],
    ) -> list[str]:
        """Copies the settings *source* of topics to their copies, which have *target*; returns messages for what was not done."""
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
    ) -> tuple[Mapping[str, Collection[ConfigEntry]], list[str], dict[str, str]]:
        """Returns the settings of new topics, warnings, and a message for each topic that is not to be created yet."""
        try:
            described = await admin.try_describe_topic_configs(self._source, topics)
        except UnsupportedBrokerError as error:
            return {}, [f"New topics get the target's default settings: {error}"], {}
        # A copy with the target's defaults is better than none; a settings pass corrects it when it may.
        denied = {t: error for t, error in described.refused.items() if isinstance(error, NotAuthorizedError)}
        undescribed = {
            topic: f"Topic {topic} has no copy yet: {error}"
            for topic, error in described.refused.items()
            if topic not in denied
        } | {
            # A broker that lags behind the one that has listed the topic; or the topic is deleted, and not listed again.
            topic: f"Topic {topic} has no copy yet: a broker of {self._source.alias} does not know it."
            for topic in described.unknown
        }
        return (
            described.configs,
            _of_topics("New topics get the target's default settings", [*denied.values()]),
            undescribed,
        )

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
