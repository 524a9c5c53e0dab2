"""What an owner of a flow checks before it takes the flow over."""

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorflow_core.errors import BrokerError, ClusterChangedError, UnreachableError
from mirrorflow_core.writer.claim import Claim
from mirrorflow_replicator.connectors.flow_owner import FlowOwner, refuse_changed_clusters

SETTINGS = cast("Any", SimpleNamespace(source_alias="east", target_alias="west"))
CLAIM = Claim(
    flow="east->west",
    process="host/1/a",
    source_alias="east",
    tasks=1,
    lock_epoch=16,
    source_cluster_id="a",
    target_cluster_id="b",
    time_ms=0,
)


@pytest.mark.parametrize(("side", "alias"), [("source_cluster_id", "east"), ("target_cluster_id", "west")])
def test_another_cluster_behind_a_known_address_is_refused(side: str, alias: str):
    changed = replace(CLAIM, **{side: "other"})  # type: ignore[arg-type]

    with pytest.raises(ClusterChangedError, match=f"Cluster {alias} was . and is now other"):
        refuse_changed_clusters(CLAIM, changed, SETTINGS)


@pytest.mark.parametrize("now", [CLAIM, replace(CLAIM, source_cluster_id="")])
def test_the_same_or_an_unknown_cluster_is_not(now: Claim):
    refuse_changed_clusters(CLAIM, now, SETTINGS)


def test_what_could_not_be_opened_is_opened_at_the_next_attempt(monkeypatch: pytest.MonkeyPatch):
    """The offsets topic may have no leader while a broker is away."""
    owner = FlowOwner(cast("Any", SimpleNamespace(name="source")), on_lost=lambda: None)
    attempts: list[bool] = []

    async def new_runner(*_: object) -> object:
        attempts.append(True)
        if len(attempts) == 1:
            raise UnreachableError(cluster="west", addresses="a:1", problem="no leader")
        raise BrokerError(cluster="west", request="Metadata", code=3, name="UNKNOWN_TOPIC_OR_PARTITION")

    monkeypatch.setattr(owner, "_new_runner", new_runner)
    clusters = cast("Any", (object(), object()))
    with pytest.raises(UnreachableError):
        asyncio.run(owner.own(clusters, ()))
    with pytest.raises(BrokerError):
        asyncio.run(owner.own(clusters, ()))
