"""Who a flow writes as, decided by several at once or by one that died meanwhile: it ends with an epoch that all can write with."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from mirrorflow_core.errors import FlowExistsError
from mirrorflow_core.exactly_once.identity import Claim, Identity, identity_topic, transactional_id
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_kafka.stores.decision_log import DecisionLog, establish
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.tools import load
from tests.integration.kafka.flows import Flow, asking

AT_ONCE = 4
ROUNDS = 5
CLAIM = Claim(source_cluster_id="source", target_cluster_id="target", policy="east.", flow="east", stream="x")
TIMEOUT_MS = 60_000


def log_of(cluster: Cluster, alias: str) -> DecisionLog:
    return DecisionLog(cluster, alias, replication_factor=1)


async def begin(cluster: Cluster, alias: str, claim: Claim = CLAIM) -> Identity:
    return await establish(
        log_of(cluster, alias),
        cluster,
        alias,
        claim,
        java=False,
        may_change=True,
        now_ms=time.time_ns() // 1_000_000,
        timeout_ms=TIMEOUT_MS,
    )


def test_those_who_begin_a_flow_at_once_agree_on_an_epoch_that_the_coordinator_takes(
    west: KafkaCluster, unique_topic: Callable[[], str]
):
    """Each of them is given an epoch, and only the last one is good for a transaction."""

    async def rounds(cluster: Cluster) -> None:
        for number in range(ROUNDS):
            alias = f"{unique_topic()}-{number}"
            await asyncio.gather(*(begin(cluster, alias) for _ in range(AT_ONCE)))
            log = log_of(cluster, alias)
            decided = (await log.read()).identity
            assert decided is not None
            await admin.empty_transaction(
                cluster,
                decided.transactional_id,
                producer_id=decided.producer_id,
                producer_epoch=decided.producer_epoch,
                partitions=[(identity_topic(alias), 0)],
            )

    asking(west, rounds)


def test_a_flow_continues_where_a_copier_died_after_it_had_raised_the_epoch(
    flow: Flow, unique_topic: Callable[[], str]
):
    """Before it could publish that: the epoch that is decided cannot fence any copier any more."""
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 100)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
    name = transactional_id(flow.alias)

    async def raise_epoch(cluster: Cluster) -> None:
        log = log_of(cluster, flow.alias)
        decided = (await log.read()).identity
        assert decided is not None
        _, epoch = await admin.init_producer_id(cluster, name, timeout_ms=TIMEOUT_MS)
        following = replace(decided, generation=decided.generation + 1, producer_epoch=epoch, why="aborted")
        await log.decide([following], now_ms=time.time_ns() // 1_000_000)
        await admin.init_producer_id(cluster, name, timeout_ms=TIMEOUT_MS)

    asking(flow.target, raise_epoch)
    load(flow.source, topic, 100)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()

    flow.assert_exact(topic)


def test_a_flow_takes_over_only_flows_that_it_names(west: KafkaCluster, unique_topic: Callable[[], str]):
    """The flow that was taken over is refused from then on, and writes no more: the epoch of its identity is over."""
    alias = unique_topic()
    renamed = replace(CLAIM, flow="renamed")
    taker = replace(renamed, takes_over=("other", CLAIM.flow))

    async def take_over(cluster: Cluster) -> None:
        first = await begin(cluster, alias)
        with pytest.raises(
            FlowExistsError, match=r"from flow east; this flow is renamed\. .* spec\.takeOverFrom"
        ):
            await begin(cluster, alias, renamed)
        second = await begin(cluster, alias, taker)
        assert ("renamed", "takeover of east") == (second.flow, second.why)
        assert second.can_fence(first)
        assert second.producer_epoch > first.producer_epoch
        assert await begin(cluster, alias, renamed) == second
        with pytest.raises(FlowExistsError, match="from flow renamed; this flow is east"):
            await begin(cluster, alias)

    asking(west, take_over)
