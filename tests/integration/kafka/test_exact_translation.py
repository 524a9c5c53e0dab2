"""Groups at any distance from the head, on real clusters: their checkpoints are exact wherever the copy has no unknown gap."""

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


class Truth:
    """Where each record of partition 0 that is copied by now lies on both sides, by its value, which is unlike all others."""

    def __init__(self, flow: Flow, topic: str) -> None:
        lies = {one.value: one.offset for one in records(flow.target, flow.remote(topic))}
        both = [(one.offset, lies[one.value]) for one in records(flow.source, topic) if one.value in lies]
        self.upstream = [offset for offset, _ in both]
        self.downstream = [offset for _, offset in both]

    def allowed(self, group_offset: int) -> range:
        """Where a group may go on that misses nothing and reads nothing again."""
        at = bisect_left(self.upstream, group_offset)
        first = self.downstream[at - 1] + 1 if at else 0
        return range(first, self.downstream[at] + 1 if at < len(self.downstream) else first + 1)


def spread(flow: Flow, topic: str, places: int = 12) -> dict[str, int]:
    """Groups of the source, from its first record to its end, by their offsets."""
    end = flow.source.end_offsets(topic)[0]
    own = uuid.uuid4().hex[:6]
    groups = {f"g{at:02}-{own}": end * at // (places - 1) for at in range(places)}
    for group, offset in groups.items():
        put_group(flow.source, group, {(topic, 0): offset})
    return groups


def newest(flow: Flow, groups: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    found = [line["record"] for line in flow.dumped("checkpoints")]
    return {one["group"]: one for one in found if one["group"] in groups}


def wait_until_copied(flow: Flow, topic: str, count: int) -> None:
    """Until readers of committed records see as many; not by offsets, as markers take some."""
    wait_until(
        f"{count} records are copied",
        lambda: len(records(flow.target, flow.remote(topic), isolation="read_committed")) >= count,
        poll_s=1.0,
    )


def wait_until_exact(flow: Flow, topic: str, groups: Mapping[str, int]) -> Truth:
    """Each has a checkpoint with which nothing is missed and nothing is read again; where the records lie."""
    truth = Truth(flow, topic)

    def exact() -> bool:
        found = newest(flow, groups)
        return all(
            group in found
            and found[group]["upstream_offset"] == offset
            and found[group]["downstream_offset"] in truth.allowed(offset)
            for group, offset in groups.items()
        )

    wait_until(f"checkpoints of {groups} are exact", exact)
    return truth


def test_groups_at_any_distance_are_exact_after_kill_9(flow: Flow, unique_topic: Names) -> None:
    """The process is killed twice while it copies, and Java reads what its successor has written.

    A takeover writes a marker, whose place is exact once the map of that start is written.
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
        groups = spread(flow, topic)
        truth = wait_until_exact(flow, topic, groups)

    far = min(group for group in groups if group > min(groups))
    translated = translated_by_java(flow.target, flow.alias, far)
    assert [(remote, 0)] == list(translated)
    assert translated[remote, 0] in truth.allowed(groups[far])


def test_groups_are_exact_behind_the_markers_of_transactions(flow: Flow, unique_topic: Names) -> None:
    """Both sides have markers at other offsets; a group stands before, at and behind them."""
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 2000, transactional_id=f"t-{flow.alias}", transaction_records=50)
    with flow.process(topic, worker=QUICK, sync_group_offsets_enabled="true") as process:
        process.wait_for_copy(flow.target, flow.remote(topic), 1)
        wait_until_copied(flow, topic, 2000)
        groups = spread(flow, topic)
        for at in (50, 51, 52):
            groups[f"m{at}-{flow.alias}"] = at
            put_group(flow.source, f"m{at}-{flow.alias}", {(topic, 0): at})
        allowed = wait_until_exact(flow, topic, groups).allowed(51)
        group, place = f"m51-{flow.alias}", (flow.remote(topic), 0)
        wait_until("the group is moved", lambda: group_offsets(flow.target, group).get(place, -1) in allowed)

    got = consume(flow.target, group, flow.remote(topic))
    wanted = [one.value for one in records(flow.source, topic) if one.offset >= 51]
    assert wanted == [value for _, _, value in got]


def test_without_permission_for_the_map_groups_are_translated_by_syncs_and_the_lack_is_reported(
    east: KafkaCluster, unique_topic: Names, tmp_path: Any
) -> None:
    """Nothing else suffers."""
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
            found = flow.wait_for_checkpoint(group, 500)
            topic_of_map = f"mm2-offset-map.{flow.alias}.internal"
            wait_until(
                "the lack is reported",
                lambda: topic_of_map in str(process.rest("/connectors/MirrorSourceConnector/status")),
            )

    assert found["downstream_offset"] <= 500


def test_the_command_and_the_connector_tell_where_each_group_stands_and_why(
    flow: Flow, unique_topic: Names
) -> None:
    """And what a failover would read again is what a consumer of the target's group then gets again."""
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

        def told() -> dict[str, dict[str, Any]] | None:
            _, body = process.rest("/offsets")
            lines = {line["group"]: line for line in body["offsets"]}
            done = len(lines) == 3 and lines[ahead]["groupOffset"] == 2000
            return lines if done and all(line["translation"] == "exact" for line in lines.values()) else None

        lines = wait_until("the connector reports all", told)
        status, only = process.rest(f"/offsets?group={moved}&limit=1")
    put_group(flow.source, moved, {(topic, 0): 2234})  # it does not move any more

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
    wanted = [one.value for one in records(flow.source, topic) if one.offset >= 2234]
    got = [value for _, _, value in consume(flow.target, moved, remote)]
    assert wanted == got[1000:]
