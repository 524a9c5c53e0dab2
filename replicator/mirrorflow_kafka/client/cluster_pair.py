"""Connects to both clusters of a flow; if one fails, the other connection is closed."""

import asyncio
from collections.abc import Callable

from mirrorflow_core.settings import ClientSettings
from mirrorflow_kafka.client.cluster import REACH_TIMEOUT_S, Cluster
from mirrorflow_kafka.security.credentials import Resolve


async def connect_both(
    source: ClientSettings,
    target: ClientSettings,
    *,
    resolve: Resolve,
    timeout_s: float = REACH_TIMEOUT_S,
    note: Callable[[Cluster | BaseException], None] = lambda _: None,
) -> tuple[Cluster, Cluster]:
    """Connect to *source* and *target* in parallel; return both clients.

    *note* is called with the client or the error of each side. Raises ClusterError, SettingError; if both
    sides fail, the source's error.
    """
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
