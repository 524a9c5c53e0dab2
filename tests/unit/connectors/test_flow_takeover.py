"""The checks before a takeover: whether the clusters are the same, and whether the process waits for the owner."""

from dataclasses import replace

import pytest

from mirrorflow_core.errors import ClusterChangedError
from mirrorflow_core.writer.claim import Claim
from mirrorflow_replicator.connectors.flow_takeover import must_wait, refuse_changed_clusters
from tests.unit.connectors.flow_settings import settings

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
SHARED = replace(CLAIM, group="group")
SEED = replace(CLAIM, group="seed")
FORMER = replace(CLAIM, flow="former")


@pytest.mark.parametrize(("side", "alias"), [("source_cluster_id", "east"), ("target_cluster_id", "west")])
def test_changed_cluster_id_is_refused(side: str, alias: str):
    changed = replace(CLAIM, **{side: "other"})  # type: ignore[arg-type]

    with pytest.raises(ClusterChangedError, match=f"Cluster {alias} was . and is now other"):
        refuse_changed_clusters(CLAIM, changed, settings())


@pytest.mark.parametrize("current", [CLAIM, replace(CLAIM, source_cluster_id="")])
def test_same_or_unknown_cluster_id_is_accepted(current: Claim):
    refuse_changed_clusters(CLAIM, current, settings())


@pytest.mark.parametrize(
    ("owner", "newcomer", "flag", "expected"),
    [
        (CLAIM, CLAIM, "", "waits"),
        (SHARED, SHARED, "", "takes"),
        (SHARED, SHARED, "waits_for_group", "waits"),
        (SEED, SHARED, "", "waits"),
        (CLAIM, SHARED, "", "waits"),
        (SHARED, SEED, "preempts", "takes"),
        (FORMER, SEED, "preempts", "waits"),
    ],
)
def test_newcomer_waits_for_owners_outside_its_group_unless_it_preempts(
    owner: Claim, newcomer: Claim, flag: str, expected: str
):
    waits_for_group, preempts = flag == "waits_for_group", flag == "preempts"
    waits = must_wait(owner, newcomer, waits_for_group=waits_for_group, preempts=preempts)
    assert expected == ("waits" if waits else "takes")
