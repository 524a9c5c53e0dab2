"""What an owner of a flow checks before it takes the flow over."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mirrorflow_core.errors import ClusterChangedError
from mirrorflow_core.writer.claim import Claim
from mirrorflow_replicator.connectors.flow_owner import refuse_changed_clusters

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
