"""Connecting to both clusters of a flow: all or nothing, with an error for each side."""

import asyncio
from typing import Any

import pytest

from mirrorflow_core.errors import UnreachableError
from mirrorflow_core.settings import ClientSettings
from mirrorflow_kafka.client.cluster import Cluster, connect_both


class Reached(Cluster):
    """A cluster that was reached, without a connection."""

    def __init__(self, alias: str) -> None:
        super().__init__(
            ClientSettings(alias=alias, client_id="", properties={}), resolve=lambda given: given
        )
        self.is_closed = False

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def reach(monkeypatch: pytest.MonkeyPatch) -> dict[str, Reached]:
    """What can be reached, by alias."""
    found: dict[str, Reached] = {}

    async def connect(client: ClientSettings, **_: Any) -> Cluster:
        if client.alias not in found:
            raise UnreachableError(cluster=client.alias, addresses="a:1", problem="no broker listens")
        return found[client.alias]

    monkeypatch.setattr(Cluster, "connect", connect)
    return found


def both(noted: list[object]) -> tuple[Cluster, Cluster]:
    east, west = (ClientSettings(alias=alias, client_id="", properties={}) for alias in ("east", "west"))
    return asyncio.run(
        connect_both(east, west, resolve=lambda given: given, timeout_s=1.0, note=noted.append)
    )


def test_both_are_there(reach: dict[str, Reached]) -> None:
    reach |= {alias: Reached(alias) for alias in ("east", "west")}
    noted: list[object] = []
    assert (reach["east"], reach["west"]) == both(noted)
    assert noted == [reach["east"], reach["west"]]


@pytest.mark.parametrize("there", [("east",), ("west",), ()])
def test_where_one_is_away_nothing_stays_open(reach: dict[str, Reached], there: tuple[str, ...]) -> None:
    reach |= {alias: Reached(alias) for alias in there}
    noted: list[object] = []
    with pytest.raises(UnreachableError) as refused:
        both(noted)
    assert refused.value.cluster == next(alias for alias in ("east", "west") if alias not in there)
    assert all(cluster.is_closed for cluster in reach.values())
    assert len(noted) == 2
