"""Both flows of a pair, for tests of switchovers.

It has their settings as the processes read them, and runs calls on both clusters.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from mirrorflow_core.settings import ClientSettings, SourceSettings
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.config.source_properties import parse_source
from mirrorflow_replicator.switchover.flow_end import EndedFlow, clear_end, end_flow, ended_flow
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.replicator import Replicator
from tests.integration.kafka.flows import call_cluster

T = TypeVar("T")


def settings_of(replicator: Replicator) -> SourceSettings:
    """Returns the settings of the flow that *replicator* runs as a standalone worker."""
    worker, connector = replicator.files
    assert not isinstance(worker, str)
    assert not isinstance(connector, str)
    return parse_source(connector, worker)


def end(replicator: Replicator, target: KafkaCluster, switchover: str = "to-west") -> EndedFlow:
    """Ends the flow of *replicator*, which may still run."""
    settings = settings_of(replicator)

    async def ended(cluster: Cluster) -> EndedFlow:
        await end_flow(settings, cluster, switchover)
        return await ended_flow(settings, cluster, switchover)

    return call_cluster(target, ended)


def clear(replicator: Replicator, target: KafkaCluster, switchover: str = "to-west") -> bool:
    """Clears the end of the flow of *replicator*."""
    return call_cluster(target, lambda cluster: clear_end(settings_of(replicator), cluster, switchover))


def call_clusters(
    first: KafkaCluster, second: KafkaCluster, use: Callable[[Cluster, Cluster], Awaitable[T]]
) -> T:
    """Runs *use* with MirrorFlow's clients of both clusters."""

    async def main() -> T:
        clients = [
            await Cluster.connect(
                ClientSettings(
                    alias=cluster.name,
                    client_id="switchover",
                    properties={"bootstrap.servers": cluster.internal_bootstrap},
                ),
                resolve=dict,
            )
            for cluster in (first, second)
        ]
        try:
            return await use(*clients)
        finally:
            await asyncio.gather(*(client.close() for client in clients))

    return asyncio.run(main())
