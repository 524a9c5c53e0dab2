"""Both clusters of a flow, as its source connector will reach them, for a look that changes nothing."""

import contextlib
from collections.abc import AsyncIterator

from mirrorflow_replicator.connect.config_rules import make_config_rules
from mirrorflow_replicator.connect.plugins import make_selection
from mirrorflow_replicator.connect.providers import Resolver
from mirrorflow_replicator.flow.topic_configs import ConfigEntry
from mirrorflow_replicator.flow.topology import TopologyPlan, plan_topics
from mirrorflow_replicator.kafka import admin
from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.settings import ClientSettings, SourceSettings

REACH_TIMEOUT_S = 15.0  # someone waits at the keyboard; a broker that needs longer is worth a sentence


@contextlib.asynccontextmanager
async def reached(client: ClientSettings, settings: SourceSettings) -> AsyncIterator[Cluster]:
    """The cluster of *client*, closed afterwards. Raises SettingError and ClusterError."""
    resolver = Resolver(settings.providers)
    cluster = await Cluster.connect(client, resolve=resolver.resolve_client, timeout_s=REACH_TIMEOUT_S)
    try:
        yield cluster
    finally:
        await cluster.close()


async def topic_sizes(cluster: Cluster) -> dict[str, int]:
    """Topic -> partitions, of all that we may describe. Raises ClusterError."""
    topics = await admin.list_topics(cluster)
    return {name: len(topic.partitions) for name, topic in topics.items() if not topic.error}


async def selected_topics(cluster: Cluster, settings: SourceSettings) -> dict[str, int]:
    """Source topic -> partitions, of those that the flow copies right now."""
    selection = make_selection(settings)
    return {
        name: count for name, count in sorted((await topic_sizes(cluster)).items()) if selection.selects(name)
    }


def target_plan(
    settings: SourceSettings,
    source: dict[str, int],
    target: dict[str, int],
    configs: dict[str, tuple[ConfigEntry, ...]],
) -> TopologyPlan:
    """What the connector would create and grow, by its own decision."""
    return plan_topics(
        source=source,
        target=target,
        remote=make_selection(settings).target_topic,
        configs=configs,
        rules=make_config_rules(settings),
        replication_factor=settings.replication_factor,
    )
