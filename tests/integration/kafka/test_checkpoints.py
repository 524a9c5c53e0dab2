"""Checkpoints and translated consumer groups between two real clusters, as seen by consumers and by Java's client."""

import json
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_replicator.config.source_properties import parse_source
from mirrorflow_replicator.switchover.flow_end import clear_end, end_flow
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.mm2 import MirrorMaker
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load, records
from tests.harness.replicator import Replicator
from tests.integration.kafka.flows import call_cluster
from tests.integration.kafka.groups import consume, group_offsets, member, put_group, translated_by_java

LAG_MAX = 10
Names = Callable[[], str]


@dataclass(kw_only=True)
class Flow:
    """A source and a checkpoint connector in one process, with aliases of their own."""

    source: KafkaCluster
    target: KafkaCluster
    folder: Path
    alias: str
    target_alias: str

    def remote(self, topic: str) -> str:
        return f"{self.alias}.{topic}"

    def process(
        self,
        topics: str,
        *,
        with_source: bool = True,
        worker: dict[str, str] | None = None,
        connector: dict[str, str] | None = None,
        **checkpoint: str,
    ) -> Replicator:
        """Returns a process that is not yet started. *checkpoint* has underscores instead of dots."""
        shared = {
            "source.cluster.alias": self.alias,
            "target.cluster.alias": self.target_alias,
            "offset-syncs.topic.replication.factor": "1",
            "offset.lag.max": str(LAG_MAX),
            **(connector or {}),
        }
        process = Replicator.standalone(
            self.source, self.target, topics=topics, folder=self.folder, connector=shared, worker=worker
        )
        lines, source = process.files
        assert isinstance(source, dict)
        connector = {
            **source,
            "name": "MirrorCheckpointConnector",
            "connector.class": "MirrorCheckpointConnector",
            "checkpoints.topic.replication.factor": "1",
            "refresh.groups.interval.seconds": "1",
            "emit.checkpoints.interval.seconds": "1",
            "sync.group.offsets.interval.seconds": "1",
            **{key.replace("_", "."): value for key, value in checkpoint.items()},
        }
        process.files = (lines, source, connector) if with_source else (lines, connector)
        return process

    def dumped(self, what: str) -> list[dict[str, Any]]:
        """Returns the records of `mirrorflow dump WHAT --json`, or an empty list while the topic does not exist."""
        printed = self.command("dump", what, "--json", unless="There is no topic")
        return [line for line in map(json.loads, printed.splitlines()) if "problems" not in line]

    def command(self, *arguments: str, unless: str = "") -> str:
        """Returns what `mirrorflow` prints about the flow. The command may fail if its error contains *unless*."""
        addresses = ["--from", self.source.internal_bootstrap, "--to", self.target.internal_bootstrap]
        aliases = ["--from-alias", self.alias, "--to-alias", self.target_alias]
        command = [str(Path(sys.executable).parent / "mirrorflow"), *arguments, *addresses, *aliases]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert result.returncode == 0 or (unless and unless in result.stderr + result.stdout), result.stderr
        return result.stdout

    def checkpoints(self, group: str) -> list[dict[str, Any]]:
        """Returns every checkpoint of *group*, in the order of the log."""
        checkpoints = [line["record"] for line in self.dumped("checkpoints")]
        return [checkpoint for checkpoint in checkpoints if checkpoint["group"] == group]

    def wait_for_checkpoint(self, group: str, upstream: int) -> dict[str, Any]:
        """Waits until the latest checkpoint of *group* has upstream offset *upstream*."""

        def latest() -> dict[str, Any] | None:
            last = {
                (checkpoint["topic"], checkpoint["partition"]): checkpoint
                for checkpoint in self.checkpoints(group)
            }
            return next(
                (checkpoint for checkpoint in last.values() if checkpoint["upstream_offset"] == upstream),
                None,
            )

        checkpoint = wait_until(f"a checkpoint of {group} at {upstream}", latest)
        assert checkpoint is not None
        return dict(checkpoint)

    def wait_for_group(self, group: str, at_least: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        """Waits until the target's group has at least these offsets."""

        def moved() -> dict[tuple[str, int], int] | None:
            offsets = group_offsets(self.target, group)
            return (
                offsets if all(offsets.get(key, -1) >= offset for key, offset in at_least.items()) else None
            )

        offsets = wait_until(f"{group} of the target is at {at_least}", moved)
        assert offsets is not None
        return dict(offsets)


@pytest.fixture
def flow(east: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> Flow:
    own = uuid.uuid4().hex[:8]
    return Flow(source=east, target=west, folder=tmp_path, alias=f"e{own}", target_alias=f"w{own}")


def test_a_group_that_fails_over_misses_nothing_and_repeats_little(flow: Flow, unique_topic: Names) -> None:
    """The group has read half of the records.

    On the target it reads the other half, and at most `offset.lag.max` records again.
    """
    topic, group = flow.source.create_topic(unique_topic(), partitions=2), f"g-{uuid.uuid4().hex[:8]}"
    remote = flow.remote(topic)
    load(flow.source, topic, 1000, keys=True)
    half = flow.source.end_offsets(topic)
    put_group(flow.source, group, {(topic, partition): end for partition, end in half.items()})
    with flow.process(topic, sync_group_offsets_enabled="true") as process:
        flow.wait_for_group(group, {(remote, partition): end - LAG_MAX for partition, end in half.items()})
        load(flow.source, topic, 1000, keys=True)
        process.wait_for_copy(flow.target, remote, 2000)
    moved = group_offsets(flow.target, group)

    consumed = consume(flow.target, group, remote)

    expected = [
        (record.partition, record.value)
        for record in records(flow.source, topic)
        if record.offset >= half[record.partition]
    ]
    missed = set(expected) - {(partition, value) for partition, _, value in consumed}
    assert not missed
    assert len(consumed) - len(expected) <= LAG_MAX * 2
    assert all(moved[remote, partition] <= end for partition, end in half.items())
    assert translated_by_java(flow.target, flow.alias, group) == moved


def test_a_group_with_members_on_the_target_is_not_moved_until_they_leave(
    flow: Flow, unique_topic: Names
) -> None:
    """The group's offsets belong to the active consumers on the target."""
    topic, group = flow.source.create_topic(unique_topic()), f"g-{uuid.uuid4().hex[:8]}"
    remote = flow.remote(topic)
    load(flow.source, topic, 200)
    with flow.process(topic, sync_group_offsets_enabled="true") as process:
        process.wait_for_copy(flow.target, remote, 200)
        put_group(flow.target, group, {(remote, 0): 5})
        consumer = member(flow.target, group, remote)
        first = wait_until("the member reads", lambda: consumer.poll(0.2), poll_s=0)
        put_group(flow.source, group, {(topic, 0): 200})
        active = 'state="active-on-target"} 1'
        wait_until(
            "the group is reported as active",
            lambda: consumer.poll(0.1) is None and active in process.metrics(),
            poll_s=0,  # the member reads 200 records meanwhile
        )
        before = group_offsets(flow.target, group)
        consumer.close()
        flow.wait_for_group(group, {(remote, 0): 200 - LAG_MAX})

    assert first is not None
    assert (5, {(remote, 0): 5}) == (first.offset(), before)


def test_a_group_skips_nothing_in_a_copy_that_was_created_again(flow: Flow, unique_topic: Names) -> None:
    """Retention has deleted half of what was copied before, so that records have other offsets in the present copy."""
    topic, group = flow.source.create_topic(unique_topic()), f"g-{uuid.uuid4().hex[:8]}"
    remote = flow.remote(topic)
    load(flow.source, topic, 1000)
    put_group(flow.source, group, {(topic, 0): 900})
    restart = {"mirrorflow.source.loss.policy": "restart"}
    with flow.process(topic, connector=restart, sync_group_offsets_enabled="true") as process:
        flow.wait_for_group(group, {(remote, 0): 900})
        assert process.stop() == 0
        flow.target.delete_topic(remote)
        wait_until("the group has no offset", lambda: not group_offsets(flow.target, group))
        flow.source.delete_records(topic, {0: 500})
        load(flow.source, topic, 1000, first=1000)
        put_group(flow.source, group, {(topic, 0): 950})
        process.start()
        flow.wait_for_group(group, {(remote, 0): 450})
        flow.wait_for_checkpoint(group, 950)

    moved = group_offsets(flow.target, group)
    assert moved == {(remote, 0): 450}
    assert translated_by_java(flow.target, flow.alias, group) == moved


def test_a_group_on_the_target_is_never_moved_back(flow: Flow, unique_topic: Names) -> None:
    """One group was reset on the source before its translation to the end, and a second group afterwards."""
    topic, own = flow.source.create_topic(unique_topic()), uuid.uuid4().hex[:8]
    ahead, behind = f"a-{own}", f"b-{own}"
    remote = flow.remote(topic)
    load(flow.source, topic, 500)
    for group in (ahead, behind):
        put_group(flow.source, group, {(topic, 0): 500})
    with flow.process(topic, sync_group_offsets_enabled="true") as process:
        process.wait_for_copy(flow.target, remote, 500)
        at_end = flow.wait_for_group(behind, {(remote, 0): 500})[remote, 0]  # the last offset that it reaches
        put_group(flow.source, ahead, {(topic, 0): 100})
        flow.wait_for_checkpoint(ahead, 100)
        put_group(flow.source, behind, {(topic, 0): 50})
        flow.wait_for_checkpoint(behind, 50)

    assert {(remote, 0): at_end} == group_offsets(flow.target, behind)
    assert group_offsets(flow.target, ahead)[remote, 0] > 100


def test_a_checkpoint_follows_when_the_group_is_reset_on_the_source(flow: Flow, unique_topic: Names) -> None:
    """Java's client then reads the earlier offset."""
    topic, group = flow.source.create_topic(unique_topic()), f"g-{uuid.uuid4().hex[:8]}"
    remote = flow.remote(topic)
    load(flow.source, topic, 500)
    put_group(flow.source, group, {(topic, 0): 500})
    with flow.process(topic) as process:
        process.wait_for_copy(flow.target, remote, 500)
        forward = flow.wait_for_checkpoint(group, 500)
        put_group(flow.source, group, {(topic, 0): 100})
        flow.wait_for_checkpoint(group, 100)

    back = flow.checkpoints(group)[-1]  # a checkpoint from only the syncs may precede the exact one
    assert back["upstream_offset"] == 100
    assert forward["downstream_offset"] <= 500
    assert back["downstream_offset"] <= 100
    assert {(remote, 0): back["downstream_offset"]} == translated_by_java(flow.target, flow.alias, group)
    assert {} == group_offsets(flow.target, group)  # `sync.group.offsets.enabled` is false by default


def test_only_selected_groups_are_translated(flow: Flow, unique_topic: Names) -> None:
    """`groups` and `groups.exclude` select them."""
    topic, own = flow.source.create_topic(unique_topic()), uuid.uuid4().hex[:8]
    selected, excluded, other = f"in-{own}", f"in-{own}-test", f"out-{own}"
    load(flow.source, topic, 20)
    for group in (selected, excluded, other):
        put_group(flow.source, group, {(topic, 0): 20})
    with flow.process(topic, groups=f"in-{own}.*", groups_exclude=".*-test"):
        flow.wait_for_checkpoint(selected, 20)

    assert {selected} == {line["record"]["group"] for line in flow.dumped("checkpoints")}


def test_checkpoints_are_neither_repeated_nor_moved_back_after_a_kill(
    flow: Flow, unique_topic: Names
) -> None:
    """The next process reads the known checkpoints from their topic."""
    topic, group = flow.source.create_topic(unique_topic()), f"g-{uuid.uuid4().hex[:8]}"
    load(flow.source, topic, 300)
    put_group(flow.source, group, {(topic, 0): 150})
    process = flow.process(topic)
    with process:
        process.wait_for_copy(flow.target, flow.remote(topic), 300)
        first = flow.wait_for_checkpoint(group, 150)
        process.kill()
        process.start()
        other = f"h-{uuid.uuid4().hex[:8]}"
        put_group(flow.source, other, {(topic, 0): 300})
        flow.wait_for_checkpoint(other, 300)
        put_group(flow.source, group, {(topic, 0): 300})
        last = flow.wait_for_checkpoint(group, 300)

    checkpoints = flow.checkpoints(group)
    offsets = [checkpoint["downstream_offset"] for checkpoint in checkpoints]
    assert offsets == sorted(offsets)
    assert first["downstream_offset"] <= 150
    assert last["downstream_offset"] > first["downstream_offset"]
    assert len(checkpoints) == len(
        {(checkpoint["upstream_offset"], checkpoint["downstream_offset"]) for checkpoint in checkpoints}
    )


@pytest.fixture(scope="module")
def secured() -> Iterator[KafkaCluster]:
    """A target that grants nothing by default."""
    with KafkaCluster(name="guarded", listeners=("SASL_PLAINTEXT",), authorizer=True) as cluster:
        yield cluster


def test_a_group_without_permission_is_reported_and_others_continue(
    east: KafkaCluster, secured: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """The group is translated as soon as the permission is granted."""
    own = uuid.uuid4().hex[:8]
    flow = Flow(source=east, target=secured, folder=tmp_path, alias=f"e{own}", target_alias=f"w{own}")
    topic, allowed, refused = east.create_topic(unique_topic()), f"a-{own}", f"r-{own}"
    remote = flow.remote(topic)
    load(east, topic, 100)
    for group in (allowed, refused):
        put_group(east, group, {(topic, 0): 100})
    for operation in ("CREATE", "WRITE", "READ", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER", "ALTER_CONFIGS"):
        secured.allow(operation, "TOPIC", "*")
    for operation in ("READ", "DESCRIBE"):
        secured.allow(operation, "GROUP", allowed)
    client = secured.java_client("SASL_PLAINTEXT")
    lines = {f"target.cluster.{key}": value for key, value in client.items()}
    process = flow.process(
        topic,
        worker=client,
        connector=lines,
        sync_group_offsets_enabled="true",
        groups=f"{allowed},{refused}",
    )
    with process:
        flow.wait_for_group(allowed, {(remote, 0): 100 - LAG_MAX})
        status = wait_until(
            "the refused group is reported",
            lambda: next(
                (
                    status_text
                    for status_text in [str(process.rest("/connectors/MirrorCheckpointConnector/status")[1])]
                    if refused in status_text
                ),
                None,
            ),
        )
        upstream_offsets = {
            group: flow.checkpoints(group)[-1]["upstream_offset"] for group in (allowed, refused)
        }
        for operation in ("READ", "DESCRIBE"):
            secured.allow(operation, "GROUP", refused)
        flow.wait_for_group(refused, {(remote, 0): 100 - LAG_MAX})

    assert status is not None
    assert allowed not in status
    assert {allowed: 100, refused: 100} == upstream_offsets
    assert "state': 'RUNNING" in status


def test_groups_are_translated_while_checkpoints_cannot_be_written(
    east: KafkaCluster, secured: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """The topic is reported with the missing permission."""
    own = uuid.uuid4().hex[:8]
    flow = Flow(source=east, target=secured, folder=tmp_path, alias=f"e{own}", target_alias=f"w{own}")
    topic, group = east.create_topic(unique_topic()), f"d-{own}"
    load(east, topic, 100)
    put_group(east, group, {(topic, 0): 100})
    for operation in ("CREATE", "WRITE", "READ", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER", "ALTER_CONFIGS"):
        secured.allow(operation, "TOPIC", "*")
    checkpoints = f"{flow.alias}.checkpoints.internal"
    secured.allow("WRITE", "TOPIC", checkpoints, deny=True)
    secured.allow("READ", "GROUP", group)
    client = secured.java_client("SASL_PLAINTEXT")
    lines = {f"target.cluster.{key}": value for key, value in client.items()}
    process = flow.process(
        topic, worker=client, connector=lines, sync_group_offsets_enabled="true", groups=group
    )
    with process:
        flow.wait_for_group(group, {(flow.remote(topic), 0): 100 - LAG_MAX})
        status = str(process.rest("/connectors/MirrorCheckpointConnector/status")[1])

    assert f"Checkpoints cannot be written to {checkpoints}" in status
    assert "state': 'RUNNING" in status
    assert [] == flow.checkpoints(group)


def test_a_checkpoints_topic_that_would_lose_checkpoints_is_given_compaction(
    flow: Flow, unique_topic: Names
) -> None:
    """The topic was created with a broker's defaults."""
    topic, group = flow.source.create_topic(unique_topic()), f"d-{flow.alias}"
    load(flow.source, topic, 100)
    put_group(flow.source, group, {(topic, 0): 100})
    name = flow.target.create_topic(f"{flow.alias}.checkpoints.internal")

    with flow.process(topic, groups=group):
        flow.wait_for_checkpoint(group, 100)

    assert flow.target.topic_config(name)["cleanup.policy"] == "compact"


def test_checkpoints_deleted_while_the_connector_runs_are_written_again(
    flow: Flow, unique_topic: Names
) -> None:
    """Their topic is deleted, and then its settings are altered. The group does not move."""
    topic, group = flow.source.create_topic(unique_topic()), f"d-{flow.alias}"
    load(flow.source, topic, 100)
    put_group(flow.source, group, {(topic, 0): 100})
    name = f"{flow.alias}.checkpoints.internal"
    with flow.process(topic, groups=group):
        flow.wait_for_checkpoint(group, 100)
        flow.target.delete_topic(name)
        wait_until("the topic exists again", lambda: flow.target.has_topic(name))
        flow.wait_for_checkpoint(group, 100)
        flow.target.alter_topic(name, {"cleanup.policy": "delete"})
        wait_until(
            "the topic is compacted", lambda: flow.target.topic_config(name)["cleanup.policy"] == "compact"
        )


def test_groups_are_translated_by_offset_syncs_that_java_wrote(
    flow: Flow, east: KafkaCluster, west: KafkaCluster, unique_topic: Names
) -> None:
    """Java's MM2 copies and writes offset syncs to the source.

    Only MirrorFlow's checkpoint connector uses them for translation.
    """
    topic, group = east.create_topic(unique_topic()), f"g-{uuid.uuid4().hex[:8]}"
    flow.alias, flow.target_alias = east.name, west.name
    load(east, topic, 500)
    put_group(east, group, {(topic, 0): 500})
    java = {f"{east.name}->{west.name}.groups": "none", "offset.lag.max": str(LAG_MAX)}
    with MirrorMaker(source=east, target=west, topics=topic, properties=java) as mirror_maker:
        mirror_maker.wait_until_replicated(topic, 500)
        with flow.process(topic, with_source=False, groups=group, sync_group_offsets_enabled="true"):
            offsets = flow.wait_for_group(group, {(flow.remote(topic), 0): 500 - 2 * LAG_MAX})

    assert offsets[flow.remote(topic), 0] <= 500
    assert offsets == translated_by_java(west, east.name, group)
    consumed = consume(west, group, flow.remote(topic)) if offsets[flow.remote(topic), 0] < 500 else []
    assert len(consumed) <= 2 * LAG_MAX


def test_a_group_is_translated_to_the_topic_name_of_a_transformation(flow: Flow, unique_topic: Names) -> None:
    """Java's checkpoints would name a topic that does not exist."""
    topic, group = flow.source.create_topic(unique_topic()), f"g-{uuid.uuid4().hex[:8]}"
    copy = f"renamed.{topic}"
    load(flow.source, topic, 300)
    put_group(flow.source, group, {(topic, 0): 300})
    lines = {
        "transforms": "r",
        "transforms.r.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.r.regex": rf"{flow.alias}\.(.*)",
        "transforms.r.replacement": "renamed.$1",
    }
    with flow.process(topic, connector=lines, sync_group_offsets_enabled="true") as process:
        process.wait_for_copy(flow.target, copy, 300)
        flow.wait_for_group(group, {(copy, 0): 300 - LAG_MAX})

    assert not flow.target.has_topic(flow.remote(topic))
    assert {(copy, 0)} == set(translated_by_java(flow.target, flow.alias, group))


def test_a_group_before_the_start_of_the_copy_has_no_checkpoint(flow: Flow, unique_topic: Names) -> None:
    """A flow with auto.offset.reset=latest has no target offset for earlier groups. An empty partition has one."""
    topic, group = flow.source.create_topic(unique_topic(), partitions=2), f"g-{uuid.uuid4().hex[:8]}"
    load(flow.source, topic, 100, partition=0)
    put_group(flow.source, group, {(topic, 0): 40, (topic, 1): 0})
    lines = {"source.consumer.auto.offset.reset": "latest"}
    with flow.process(topic, connector=lines) as process:
        process.wait_until_caught_up(partitions=2)
        load(flow.source, topic, 50, first=100, partition=1)
        process.wait_for_copy(flow.target, flow.remote(topic), 50)
        put_group(flow.source, group, {(topic, 1): 50})
        of_second = wait_until(
            "the second partition has a checkpoint",
            lambda: [
                checkpoint for checkpoint in flow.checkpoints(group) if checkpoint["upstream_offset"] == 50
            ],
        )
        first = [checkpoint for checkpoint in flow.checkpoints(group) if checkpoint["partition"] == 0]
        load(flow.source, topic, 20, first=200, partition=0)
        process.wait_for_copy(flow.target, flow.remote(topic), 70)
        put_group(flow.source, group, {(topic, 0): 120})
        flow.wait_for_checkpoint(group, 120)

    assert [] == first
    assert 50 >= of_second[-1]["downstream_offset"] >= 50 - LAG_MAX


def test_the_groups_of_an_ended_flow_are_not_moved(flow: Flow, unique_topic: Names) -> None:
    """After a switchover the target is active. Commits on the source move no group there until a rollback."""
    topic, group = flow.source.create_topic(unique_topic()), f"g-{uuid.uuid4().hex[:8]}"
    remote = flow.remote(topic)
    load(flow.source, topic, 500)
    put_group(flow.source, group, {(topic, 0): 100})
    groups = flow.process(topic, with_source=False, sync_group_offsets_enabled="true")
    copying = flow.process(topic)
    worker, source, _ = copying.files
    assert not isinstance(worker, str)
    assert not isinstance(source, str)
    copying.files, settings = (worker, source), parse_source(source, worker)
    with copying, groups:
        copying.wait_for_copy(flow.target, remote, 500)
        before = flow.wait_for_group(group, {(remote, 0): 100 - LAG_MAX})
        call_cluster(flow.target, lambda target: end_flow(settings, target, "to-west"))
        wait_until("the connector obeys", lambda: "ended by switchover" in str(groups.progress()))
        put_group(flow.source, group, {(topic, 0): 500})
        for _ in range(2):
            _wait_for_pass(groups)

        ended = group_offsets(flow.target, group), flow.checkpoints(group)[-1]["upstream_offset"]
        assert call_cluster(flow.target, lambda target: clear_end(settings, target, "to-west"))
        flow.wait_for_group(group, {(remote, 0): 500 - LAG_MAX})

    assert ended == (before, 100)


def _wait_for_pass(process: Replicator) -> None:
    """Waits until the only connector of *process* has completed a pass over all groups.

    Then the age of the last pass decreases.
    """
    ages_s: list[float] = []

    def has_ended() -> bool:
        ages_s.append(process.progress()["checkpoints"]["ageSeconds"])
        return ages_s[-1] < max(ages_s)

    wait_until("the connector makes a pass", has_ended)
