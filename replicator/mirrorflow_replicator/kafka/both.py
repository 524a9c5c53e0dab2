"""Connects to both clusters of a flow: either both are there, or nothing is left open."""

import asyncio
from collections.abc import Callable

from mirrorflow_replicator.kafka.cluster import Cluster
from mirrorflow_replicator.kafka.credentials import Resolve
from mirrorflow_replicator.settings import ClientSettings


async def connect_both(
    source: ClientSettings,
    target: ClientSettings,
    *,
    resolve: Resolve,
    timeout_s: float,
    note: Callable[[Cluster | BaseException], None] = lambda _: None,
) -> tuple[Cluster, Cluster]:
    """Both at once. *note* is told what became of either side. Raises ClusterError, SettingError: the source's before the target's."""
    found = await asyncio.gather(
        *(Cluster.connect(client, resolve=resolve, timeout_s=timeout_s) for client in (source, target)),
        return_exceptions=True,
    )
    for one in found:
        note(one)
    failures = [one for one in found if isinstance(one, BaseException)]
    if failures:
        await asyncio.gather(*(one.close() for one in found if isinstance(one, Cluster)))
        raise failures[0]
    there = [one for one in found if isinstance(one, Cluster)]
    return there[0], there[1]
