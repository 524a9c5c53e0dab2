"""Source and target are one cluster with two addresses. Nothing is written before this is known."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mirrorflow_core.errors import SameClusterError
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.replicator import Replicator
from tests.integration.kafka.flows import Flow
from tests.integration.kafka.seeding import files_of, seed
from tests.integration.kafka.test_archive import archive, restore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS = 50
IDENTITY = {"replication.policy.class": "IdentityReplicationPolicy"}
COMMAND_WAIT_S = 60.0


@pytest.fixture
def other_address(west: KafkaCluster) -> str:
    """A second address of *west*."""
    return west.bootstrap.replace("127.0.0.1", "localhost")


@pytest.fixture
def topic(west: KafkaCluster, unique_topic: Callable[[], str]) -> str:
    name = west.create_topic(unique_topic())
    load(west, name, RECORDS)
    return name


def internal_topics(cluster: KafkaCluster, alias: str) -> list[str]:
    return [name for name in cluster.topics() if alias in name]


def progress_has(replicator: Replicator, phrase: str) -> Callable[[], bool]:
    return lambda: phrase in str(replicator.progress())


def test_a_flow_that_keeps_names_within_one_cluster_writes_nothing(
    west: KafkaCluster, other_address: str, topic: str, tmp_path: Path
) -> None:
    alias = f"s{topic[-7:]}"
    connector = {
        "source.cluster.alias": alias,
        "target.cluster.bootstrap.servers": other_address,
        **IDENTITY,
    }
    with Replicator.standalone(west, west, topics=topic, folder=tmp_path, connector=connector) as replicator:
        wait_until("the flow is refused", progress_has(replicator, "SameCluster"))

    assert sum(west.end_offsets(topic).values()) == RECORDS
    assert internal_topics(west, alias) == []


@pytest.mark.more
def test_mm2_that_keeps_names_within_one_cluster_writes_nothing(
    west: KafkaCluster, other_address: str, topic: str, tmp_path: Path
) -> None:
    first, second = f"a{topic[-8:]}", f"b{topic[-8:]}"
    properties: Mapping[str, str] = {
        "clusters": f"{first},{second}",
        f"{first}.bootstrap.servers": west.bootstrap,
        f"{second}.bootstrap.servers": other_address,
        f"{first}->{second}.enabled": "true",
        f"{first}->{second}.topics": topic,
        "replication.factor": "1",
        **IDENTITY,
    }
    with Replicator.mm2(properties, folder=tmp_path) as replicator:
        wait_until("the flow is refused", progress_has(replicator, "SameCluster"))

    assert sum(west.end_offsets(topic).values()) == RECORDS


@pytest.mark.more
def test_a_flow_with_prefixes_within_one_cluster_copies_with_a_warning(
    west: KafkaCluster, other_address: str, topic: str, tmp_path: Path
) -> None:
    alias = f"s{topic[-7:]}"
    connector = {"source.cluster.alias": alias, "target.cluster.bootstrap.servers": other_address}
    with Replicator.standalone(west, west, topics=topic, folder=tmp_path, connector=connector) as replicator:
        replicator.wait_until_caught_up()
        wait_until("the warning is reported", progress_has(replicator, "are one cluster"))
        assert "are one cluster" in replicator.log_text()


@pytest.mark.parametrize("policy", ["Identity", pytest.param("Prefix", marks=pytest.mark.more)])
def test_check_refuses_unchanged_names_within_one_cluster_and_warns_about_prefixes(
    west: KafkaCluster, other_address: str, topic: str, policy: str
) -> None:
    command = [
        sys.executable, "-m", "mirrorflow_cli", "check", "--from", west.bootstrap, "--to", other_address,
        "--topics", topic, "--naming", policy,
    ]  # fmt: skip
    result = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_WAIT_S, check=False)

    assert "are one cluster" in result.stdout
    assert result.returncode == (1 if policy == "Identity" else 0), result.stdout


@pytest.mark.parametrize("job", ["seed", "restore"])
def test_a_spark_job_that_keeps_names_within_one_cluster_writes_nothing(
    west: KafkaCluster,
    east: KafkaCluster,
    other_address: str,
    topic: str,
    tmp_path: Path,
    spark: "SparkSession",
    job: str,
) -> None:
    """The source of a restore is the cluster from which its archive was exported."""
    archived = Flow.new(west, east, tmp_path / "archived")
    if job == "restore":
        archive(files_of(archived, topic), spark, tmp_path / "archive")
    connector = {
        "target.cluster.bootstrap.servers": other_address,
        "offset-syncs.topic.location": "target",
        **IDENTITY,
    }
    flow = Flow.new(west, west, tmp_path, connector=connector)
    files = files_of(flow, topic)

    run: Mapping[str, Callable[[], object]] = {
        "seed": partial(seed, files, spark),
        "restore": partial(restore, files, spark, tmp_path / "archive"),
    }

    with pytest.raises(SameClusterError, match=f"topic {topic} would be copied onto itself"):
        run[job]()

    assert sum(west.end_offsets(topic).values()) == RECORDS
    assert internal_topics(west, flow.alias) == []
