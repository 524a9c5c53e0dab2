"""A flow connects to both clusters or to none, and reports each error."""

import asyncio
from typing import Any

import pytest

from mirrorflow_core.errors import UnreachableError
from mirrorflow_core.settings import ClientSettings
from mirrorflow_kafka.client.cluster import Cluster, connect_both


class ReachableCluster(Cluster):
    """A reachable cluster without a connection."""

    def __init__(self, alias: str) -> None:
        super().__init__(
            ClientSettings(alias=alias, client_id="", properties={}), resolve=lambda properties: properties
        )
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def reach(monkeypatch: pytest.MonkeyPatch) -> dict[str, ReachableCluster]:
    """The reachable clusters by alias."""
    clusters: dict[str, ReachableCluster] = {}

    async def connect(client: ClientSettings, **_: Any) -> Cluster:
        if client.alias not in clusters:
            raise UnreachableError(cluster=client.alias, addresses="a:1", problem="no broker listens")
        return clusters[client.alias]

    monkeypatch.setattr(Cluster, "connect", connect)
    return clusters


def connect(noted: list[object]) -> tuple[Cluster, Cluster]:
    east, west = (ClientSettings(alias=alias, client_id="", properties={}) for alias in ("east", "west"))
    return asyncio.run(
        connect_both(east, west, resolve=lambda properties: properties, timeout_s=1.0, note=noted.append)
    )


def test_both_clusters_are_connected(reach: dict[str, ReachableCluster]) -> None:
    reach |= {alias: ReachableCluster(alias) for alias in ("east", "west")}
    noted: list[object] = []
    assert (reach["east"], reach["west"]) == connect(noted)
    assert noted == [reach["east"], reach["west"]]


@pytest.mark.parametrize("reachable", [("east",), ("west",), ()])
def test_no_connection_stays_open_if_a_cluster_is_unreachable(
    reach: dict[str, ReachableCluster], reachable: tuple[str, ...]
) -> None:
    reach |= {alias: ReachableCluster(alias) for alias in reachable}
    noted: list[object] = []
    with pytest.raises(UnreachableError) as refused:
        connect(noted)
    assert refused.value.cluster == next(alias for alias in ("east", "west") if alias not in reachable)
    assert all(cluster.is_closed for cluster in reach.values())
    assert len(noted) == 2
