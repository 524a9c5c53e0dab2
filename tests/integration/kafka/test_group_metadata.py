"""Metadata of group offsets is translated as in MM2, also for lower bounds.

It never prevents the translation of an offset.
"""

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.integration.kafka.groups import group_commits, put_group
from tests.integration.kafka.test_checkpoints import Flow

pytestmark = pytest.mark.more

# `mirrorflow offsets` reads them on the target.
SYNCS_ON_TARGET = {"offset-syncs.topic.location": "target"}
PARTITIONS = 300

Names = Callable[[], str]


def new_flow(source: KafkaCluster, target: KafkaCluster, folder: Path) -> Flow:
    own = uuid.uuid4().hex[:8]
    return Flow(source=source, target=target, folder=folder, alias=f"e{own}", target_alias=f"w{own}")


def test_metadata_is_copied_to_a_lower_bound_and_its_source_offset_is_reported(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """The group lags by 1,000 transactions, which are more gaps than the offset map holds."""
    flow = new_flow(east, west, tmp_path)
    topic, group = east.create_topic(unique_topic()), f"g-{uuid.uuid4().hex[:8]}"
    source, target = (topic, 0), (flow.remote(topic), 0)
    load(east, topic, 3000, transactional_id=f"t-{flow.alias}", transaction_records=2)
    put_group(east, group, {source: 1000}, metadata={source: "of 1000"})
    process = flow.process(
        topic,
        worker={"offset.flush.interval.ms": "500"},
        connector=SYNCS_ON_TARGET,
        sync_group_offsets_enabled="true",
        groups=group,
    )
    with process:
        process.wait_until_caught_up()

        def bound() -> dict[str, Any]:
            line = dict(json.loads(flow.command("offsets", "--json", "--group", group)))
            return line if line["translation"] == "bound" and line["written"] else {}

        line = wait_until("the group is at its lower bound", bound)
        committed = group_commits(west, group)

    assert committed == {target: (line["targetOffset"], "of 1000")}
    assert line["why"] == "its metadata is that of source offset 1000"


def test_a_group_is_translated_without_metadata_that_the_target_refuses(
    west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """The source's limit is higher than that of the target, which is 4,096 characters."""
    own = uuid.uuid4().hex[:8]
    large, plain = f"large-{own}", f"plain-{own}"
    with KafkaCluster(name="roomy", config={"offset.metadata.max.bytes": "10000"}) as east:
        flow = new_flow(east, west, tmp_path)
        topic = east.create_topic(unique_topic(), partitions=2)
        load(east, topic, 200, keys=True)
        ends = {(topic, partition): end for partition, end in east.end_offsets(topic).items()}
        moved = {(flow.remote(topic), partition): end for partition, end in east.end_offsets(topic).items()}
        first, second = sorted(moved)
        put_group(east, large, ends, metadata={(topic, 0): "m" * 5000, (topic, 1): "kept"})
        put_group(east, plain, ends)
        process = flow.process(
            topic, connector=SYNCS_ON_TARGET, sync_group_offsets_enabled="true", groups=f".*-{own}"
        )
        with process:
            process.wait_for_copy(west, flow.remote(topic), 200)
            for group in (large, plain):
                flow.wait_for_group(group, moved)
                flow.wait_for_checkpoint(group, ends[topic, 0])
            connectors = process.rest("/progress/partitions")[1]["connectors"]
            (checkpoint_status,) = (
                entry for entry in connectors if entry["connector"] == "MirrorCheckpointConnector"
            )
            log = process.log_text()
            printed = [
                json.loads(line) for line in flow.command("offsets", "--json", "--group", large).splitlines()
            ]

    assert (moved[first], "") == group_commits(west, large)[first]
    assert (moved[second], "kept") == group_commits(west, large)[second]
    warning = next(entry for entry in checkpoint_status["warnings"] if large in entry)
    assert "offset.metadata.max.bytes" in warning
    assert f"{first[0]}-0" in warning
    assert "5001 characters" in warning  # librdkafka also commits the byte that ends a C string
    assert log.count(warning) == 1
    assert (
        checkpoint_status["state"],
        checkpoint_status["groups"]["failing"],
        checkpoint_status["groups"]["selected"],
    ) == ("RUNNING", 0, 2)
    assert {"without the metadata of source offset": 1, "": 1} == {
        " ".join(line["why"].split()[:6]): 1 for line in printed
    }


def test_a_group_whose_offsets_exceed_one_batch_is_translated(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """A coordinator appends a commit as one batch of at most 1 MiB.

    Here, the metadata has 1.2 MB and takes several commits.
    """
    flow = new_flow(east, west, tmp_path)
    topic, group = east.create_topic(unique_topic(), partitions=PARTITIONS), f"g-{uuid.uuid4().hex[:8]}"
    load(east, topic, 20 * PARTITIONS, keys=True)
    ends = {(topic, partition): end for partition, end in east.end_offsets(topic).items()}
    moved = {(flow.remote(topic), partition): end for (_, partition), end in ends.items()}
    for begin in range(0, PARTITIONS, 100):
        chunk = {key: ends[key] for key in sorted(ends)[begin : begin + 100]}
        put_group(east, group, chunk, metadata=dict.fromkeys(chunk, "m" * 4000))
    with flow.process(topic, sync_group_offsets_enabled="true", groups=group) as process:
        process.wait_for_copy(west, flow.remote(topic), 20 * PARTITIONS)
        flow.wait_for_group(group, moved)

    assert group_commits(west, group) == {key: (end, "m" * 4000) for key, end in moved.items()}
