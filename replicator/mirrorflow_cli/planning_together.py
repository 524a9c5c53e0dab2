"""Checks several flows of `mirrorflow plan` for conflicts, with ids and topics of reachable clusters.

`mirrorflow_operator.plan.topology` decides what is a conflict.
"""

import asyncio
from collections.abc import Mapping, Sequence

from mirrorflow_cli.clusters import reached, topic_sizes
from mirrorflow_core.errors import ClusterError, SettingError
from mirrorflow_core.settings import ClientSettings, SourceSettings
from mirrorflow_operator.api.spec import ClusterSpec, MirrorFlow
from mirrorflow_operator.plan.naming import naming_of
from mirrorflow_operator.plan.topology import Conflict, Endpoint, FlowRoute, conflicts, samples

# Cluster id and topics.
Seen = tuple[str, frozenset[str]]


def found_together(
    flows: Sequence[MirrorFlow], settings: Mapping[str, SourceSettings], *, offline: bool
) -> tuple[tuple[Conflict, ...], list[str]]:
    """Returns the conflicts among *flows*, and a note for each cluster that did not answer.

    *settings* is flow name -> source connector settings. With *offline* no cluster is contacted.
    """
    notes: list[str] = []
    seen = {} if offline else asyncio.run(_looked_at(flows, settings, notes))
    routes = [
        FlowRoute(
            flow=flow.metadata.name,
            source=_endpoint(flow.spec.source, seen),
            target=_endpoint(flow.spec.target, seen),
            naming=naming_of(flow),
        )
        for flow in flows
    ]
    patterns = [pattern for flow in flows for pattern in flow.spec.topics.include]
    return conflicts(routes, samples(patterns)), notes


async def _looked_at(
    flows: Sequence[MirrorFlow], settings: Mapping[str, SourceSettings], notes: list[str]
) -> dict[frozenset[str], Seen]:
    """Returns addresses -> cluster id and topics; connects to each cluster once, to all concurrently."""
    clients: dict[frozenset[str], tuple[ClientSettings, SourceSettings]] = {}
    for flow in flows:
        own = settings[flow.metadata.name]
        clients.setdefault(_addresses(flow.spec.source), (own.source_admin, own))
        clients.setdefault(_addresses(flow.spec.target), (own.target_admin, own))
    answers = await asyncio.gather(*(_ask(client, own, notes) for client, own in clients.values()))
    return {
        addresses: answer for addresses, answer in zip(clients, answers, strict=True) if answer is not None
    }


async def _ask(client: ClientSettings, settings: SourceSettings, notes: list[str]) -> Seen | None:
    try:
        async with reached(client, settings) as cluster:
            return cluster.cluster_id, frozenset(await topic_sizes(cluster))
    except (ClusterError, SettingError) as error:
        notes.append(f"{client.alias} is compared with other clusters by its addresses only. {error}")
        return None


def _endpoint(cluster: ClusterSpec, seen: Mapping[frozenset[str], Seen]) -> Endpoint:
    addresses = _addresses(cluster)
    cluster_id, topics = seen.get(addresses, ("", None))
    return Endpoint(alias=cluster.alias, addresses=addresses, cluster_id=cluster_id, topics=topics)


def _addresses(cluster: ClusterSpec) -> frozenset[str]:
    return frozenset(address.lower() for address in cluster.bootstrap_servers)
