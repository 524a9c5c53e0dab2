"""Connects to both clusters of a flow as its source connector does, and lists their topics."""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from mirrorflow_core.settings import ClientSettings, SourceSettings
from mirrorflow_core.topics.topic_configs import ConfigEntry, TopologyPlan, plan_topics
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.plugins import make_config_rules, make_selection
from mirrorflow_replicator.config.providers import Resolver


@contextlib.asynccontextmanager
async def connected(client: ClientSettings, settings: SourceSettings) -> AsyncIterator[Cluster]:
    """Connects to the cluster of *client* and closes the connection afterwards.

    Raises SettingError and ClusterError.
    """
    resolver = Resolver(settings.providers)
    cluster = await Cluster.connect(client, resolve=resolver.resolve_client)
    try:
        yield cluster
    finally:
        await cluster.close()


async def topic_sizes(cluster: Cluster) -> dict[str, int]:
    """Returns topic -> partition count, for all topics that the user may describe. Raises ClusterError."""
    topics = await admin.list_topics(cluster)
    return {name: len(topic.partitions) for name, topic in topics.items() if not topic.error}


@dataclass(frozen=True, slots=True, kw_only=True)
class SelectedTopics:
    """The topics that the flow selects now: source topic -> partition count.

    `nothing_selected` is a sentence if the flow selects no topic but heartbeats (else None), `own_alias` one if topics are left out
    because their names begin with the source's alias.
    """

    topics: dict[str, int]
    nothing_selected: str | None
    own_alias: str | None


async def selected_topics(cluster: Cluster, settings: SourceSettings) -> SelectedTopics:
    """Lists the topics that the flow selects now. Raises ClusterError."""
    selection = make_selection(settings)
    sizes = await topic_sizes(cluster)
    topics = {name: count for name, count in sorted(sizes.items()) if selection.selects(name)}
    return SelectedTopics(
        topics=topics,
        nothing_selected=selection.nothing_selected(sizes),
        own_alias=selection.of_own_alias(sizes),
    )


def target_plan(
    settings: SourceSettings,
    source: dict[str, int],
    target: dict[str, int],
    configs: dict[str, tuple[ConfigEntry, ...]],
) -> TopologyPlan:
    """Returns which topics the connector would create and grow, using the connector's own planning code."""
    return plan_topics(
        source=source,
        target=target,
        remote=make_selection(settings).target_topic,
        configs=configs,
        rules=make_config_rules(settings),
        replication_factor=settings.replication_factor,
    )
