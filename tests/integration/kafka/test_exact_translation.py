"""Checkpoints of groups at any distance from the log end are exact if the copy has no unknown gap there."""

import json
import uuid
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load, records
from tests.integration.kafka.groups import consume, group_offsets, put_group, translated_by_java
from tests.integration.kafka.test_checkpoints import Flow

QUICK = {"offset.flush.interval.ms": "500"}
Names = Callable[[], str]


@pytest.fixture
def flow(east: KafkaCluster, west: KafkaCluster, tmp_path: Any) -> Flow:
    own = uuid.uuid4().hex[:8]
    return Flow(source=east, target=west, folder=tmp_path, alias=f"x{own}", target_alias=f"y{own}")


class CopiedOffsets:
    """Source and target offsets of the copied records of partition 0, matched by their unique values."""

    def __init__(self, flow: Flow, topic: str) -> None:
        target_offsets = {record.value: record.offset for record in records(flow.target, flow.remote(topic))}
        both = [
            (record.offset, target_offsets[record.value])
            for record in records(flow.source, topic)
            if record.value in target_offsets
        ]
        self.upstream = [offset for offset, _ in both]
        self.downstream = [offset for _, offset in both]

    def allowed(self, group_offset: int) -> range:
        """Returns the target offsets at which the group misses no record and reads none again."""
        index = bisect_left(self.upstream, group_offset)
        first = self.downstream[index - 1] + 1 if index else 0
        return range(first, self.downstream[index] + 1 if index < len(self.downstream) else first + 1)


def put_groups_across(flow: Flow, topic: str, count: int = 12) -> dict[str, int]:
    """Creates *count* groups at offsets from the first source record to the end, and returns their offsets."""
    end = flow.source.end_offsets(topic)[0]
    own = uuid.uuid4().hex[:6]
    groups = {f"g{number:02}-{own}": end * number // (count - 1) for number in range(count)}
    for group, offset in groups.items():
        put_group(flow.source, group, {(topic, 0): offset})
    return groups


def latest_checkpoints(flow: Flow, groups: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    checkpoints = [line["record"] for line in flow.dumped("checkpoints")]
    return {checkpoint["group"]: checkpoint for checkpoint in checkpoints if checkpoint["group"] in groups}


def wait_until_copied(flow: Flow, topic: str, count: int) -> None:
    """Waits until readers of committed records receive *count* of them.

    Offsets do not show this, because markers take offsets.
    """
    wait_until(
        f"{count} records are copied",
        lambda: len(records(flow.target, flow.remote(topic), isolation="read_committed")) >= count,
        poll_s=1.0,
    )


def wait_until_exact(flow: Flow, topic: str, groups: Mapping[str, int]) -> CopiedOffsets:
    """Waits until no checkpoint of *groups* misses or repeats a record, and returns the offsets of the copied records."""
    copied = CopiedOffsets(flow, topic)

    def exact() -> bool:
        checkpoints = latest_checkpoints(flow, groups)
        return all(
            group in checkpoints
            and checkpoints[group]["upstream_offset"] == offset
            and checkpoints[group]["downstream_offset"] in copied.allowed(offset)
            for group, offset in groups.items()
        )

    wait_until(f"checkpoints of {groups} are exact", exact)
    return copied


def test_groups_at_any_distance_are_exact_after_kill_9(flow: Flow, unique_topic: Names) -> None:
    """The process is killed twice while it copies. Java reads the checkpoints of the next process.

    A takeover writes a marker. Its offset is exact once the next session has written its offset map.
    """
    topic = flow.source.create_topic(unique_topic())
    remote = flow.remote(topic)
    process = flow.process(topic, worker=QUICK)
    with process:
        for part in range(3):
            load(flow.source, topic, 4000, first=4000 * part, batch_bytes=2000)
            process.wait_for_copy(flow.target, remote, 4000 * part + 1000)
            if part < 2:
                early = {f"early{part}-{flow.alias}": 4000 * part + 500}
                for group, offset in early.items():
                    put_group(flow.source, group, {(topic, 0): offset})
                wait_until_exact(flow, topic, early)
                process.kill()
                process.start()
        wait_until_copied(flow, topic, 12_000)
        groups = put_groups_across(flow, topic)
        copied = wait_until_exact(flow, topic, groups)

    far = min(group for group in groups if group > min(groups))
    translated = translated_by_java(flow.target, flow.alias, far)
    assert [(remote, 0)] == list(translated)
    assert translated[remote, 0] in copied.allowed(groups[far])


def test_groups_are_exact_before_at_and_after_transaction_markers(flow: Flow, unique_topic: Names) -> None:
    """Source and target have markers at different offsets."""
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 2000, transactional_id=f"t-{flow.alias}", transaction_records=50)
    with flow.process(topic, worker=QUICK, sync_group_offsets_enabled="true") as process:
        process.wait_for_copy(flow.target, flow.remote(topic), 1)
        wait_until_copied(flow, topic, 2000)
        groups = put_groups_across(flow, topic)
        for offset in (50, 51, 52):
            groups[f"m{offset}-{flow.alias}"] = offset
            put_group(flow.source, f"m{offset}-{flow.alias}", {(topic, 0): offset})
        allowed = wait_until_exact(flow, topic, groups).allowed(51)
        group, copy = f"m51-{flow.alias}", (flow.remote(topic), 0)
        wait_until(
            "the target's group has an exact offset",
            lambda: group_offsets(flow.target, group).get(copy, -1) in allowed,
        )

    copied = consume(flow.target, group, flow.remote(topic))
    expected = [record.value for record in records(flow.source, topic) if record.offset >= 51]
    assert expected == [value for _, _, value in copied]


def test_groups_are_translated_by_syncs_without_permission_for_the_offset_map(
    east: KafkaCluster, unique_topic: Names, tmp_path: Any
) -> None:
    """The missing permission is reported. Otherwise, copying and checkpoints are not affected."""
    own = uuid.uuid4().hex[:8]
    with KafkaCluster(name="mapless", listeners=("SASL_PLAINTEXT",), authorizer=True) as target:
        flow = Flow(source=east, target=target, folder=tmp_path, alias=f"x{own}", target_alias=f"y{own}")
        topic, group = east.create_topic(unique_topic()), f"g-{own}"
        load(east, topic, 1000)
        put_group(east, group, {(topic, 0): 500})
        internal = ("mm2-offsets", "mm2-claims", "mm2-status", "mm2-configs", "mm2-offset-syncs")
        prefixes = (flow.alias, "heartbeats", *internal)
        for operation in (
            "CREATE",
            "WRITE",
            "READ",
            "DESCRIBE",
            "DESCRIBE_CONFIGS",
            "ALTER",
            "ALTER_CONFIGS",
        ):
            for prefix in prefixes:
                target.allow(operation, "TOPIC", prefix, prefixed=True)
        for operation in ("WRITE", "DESCRIBE"):
            target.allow(operation, "TRANSACTIONAL_ID", f"mirrorflow:{flow.alias}:", prefixed=True)
        client = target.java_client("SASL_PLAINTEXT")
        lines = {f"target.cluster.{key}": value for key, value in client.items()}
        with flow.process(topic, worker={**client, **QUICK}, connector=lines) as process:
            process.wait_for_copy(target, flow.remote(topic), 1000)
            checkpoint = flow.wait_for_checkpoint(group, 500)
            topic_of_map = f"mm2-offset-map.{flow.alias}.internal"
            wait_until(
                "the missing permission is reported",
                lambda: topic_of_map in str(process.rest("/connectors/MirrorSourceConnector/status")),
            )

    assert checkpoint["downstream_offset"] <= 500


def test_the_command_and_the_connector_report_the_offset_of_each_group_with_its_reason(
    flow: Flow, unique_topic: Names
) -> None:
    """A consumer in the target's group rereads exactly the records that the dry run of a failover predicts."""
    topic, own = flow.source.create_topic(unique_topic()), uuid.uuid4().hex[:6]
    remote = flow.remote(topic)
    load(flow.source, topic, 3000)
    moved, ahead, busy = (f"{name}-{own}" for name in ("moved", "ahead", "busy"))
    for group in (moved, ahead, busy):
        put_group(flow.source, group, {(topic, 0): 1234})
    process = flow.process(
        topic,
        worker=QUICK,
        connector={"offset-syncs.topic.location": "target"},
        sync_group_offsets_enabled="true",
        groups=f"{moved},{ahead},{busy}",
    )
    with process:
        process.wait_for_copy(flow.target, remote, 3000)
        flow.wait_for_group(moved, {(remote, 0): 1234})
        put_group(flow.target, ahead, {(remote, 0): 2000})

        def offset_lines() -> dict[str, dict[str, Any]] | None:
            _, body = process.rest("/offsets")
            lines = {line["group"]: line for line in body["offsets"]}
            complete = len(lines) == 3 and lines[ahead]["groupOffset"] == 2000
            return (
                lines if complete and all(line["translation"] == "exact" for line in lines.values()) else None
            )

        lines = wait_until("the connector reports all", offset_lines)
        status, only = process.rest(f"/offsets?group={moved}&limit=1")
    # The flow is stopped, so that the target's group keeps its offset.
    put_group(flow.source, moved, {(topic, 0): 2234})

    printed = flow.command("offsets", "--json")
    assert lines is not None
    assert (200, [moved]) == (status, [line["group"] for line in only["offsets"]])
    assert (True, "", 1234, 1234) == tuple(
        lines[moved][key] for key in ("written", "why", "targetOffset", "groupOffset")
    )
    assert "never goes back" in lines[ahead]["why"]
    by_group = {line["group"]: line for line in map(json.loads, printed.splitlines())}
    assert (2234, 2234, "exact", 1234, 1000) == tuple(
        by_group[moved][key]
        for key in ("sourceOffset", "targetOffset", "translation", "groupOffset", "readAgainAtMost")
    )
    failover = flow.command("offsets", "--dry-run-failover", "--group", moved).splitlines()[-1].split()
    assert [moved, "1", "1000", "0"] == failover[:4]
    expected = [record.value for record in records(flow.source, topic) if record.offset >= 2234]
    copied = [value for _, _, value in consume(flow.target, moved, remote)]
    assert expected == copied[1000:]
