"""Real inputs of users, such as files, names, records and settings, run with the command that the user runs."""

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Producer

from mirrorflow_core.topics.topic_acls import TOPIC, AclBinding, Operation, PatternType, Permission
from mirrorflow_kafka.admin import admin
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load, records
from tests.integration.kafka.comparing import assert_copied
from tests.integration.kafka.flows import call_cluster, heartbeats_on, now_ms, numbered, write_batches
from tests.integration.kafka.groups import group_offsets, put_group
from tests.integration.kafka.running import RunningCommand, beats

COMMAND_WAIT_S = 300.0  # two seconds on an idle machine
DAY_MS = 86_400_000
LINGER_MS = 1_000  # so that the records of a transaction are one batch

Names = Callable[[], str]


def flow_file(
    folder: Path,
    source: KafkaCluster,
    target: KafkaCluster,
    topic: str,
    *,
    topics: Mapping[str, Any] | None = None,
    login: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Path:
    """Writes a MirrorFlow of *topic*, whose source alias is the topic in capitals. No other flow has this alias."""
    text = {
        "apiVersion": "mirrorflow.io/v1alpha1",
        "kind": "MirrorFlow",
        "metadata": {"name": "reported"},
        "spec": {
            "source": {"alias": topic.upper(), "bootstrapServers": source.bootstrap.split(",")},
            "target": {"alias": target.name, "bootstrapServers": target.bootstrap.split(",")}
            | ({"authentication": login} if login else {}),
            "topics": {"include": [topic], "replicationFactor": 1, **(topics or {})},
            "heartbeats": {"emitTo": []},
            "groups": {"include": []},
            **spec,
        },
    }
    file = folder / "flow.yaml"
    file.write_text(yaml.safe_dump(text))
    return file


def command(folder: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs `mirrorflow` with *arguments* until it ends."""
    return subprocess.run(
        [sys.executable, "-m", "mirrorflow_cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=COMMAND_WAIT_S,
        check=False,
        cwd=folder,
        env={"HOME": str(folder)},
    )


def warnings(running: RunningCommand) -> list[str]:
    """Returns the warnings that the replicator has logged so far."""
    lines = running.log.read_text().splitlines() if running.log.exists() else []
    return [line for line in lines if "WARNING" in line]


@pytest.fixture
def old() -> Iterator[KafkaCluster]:
    """A source with an earlier Kafka version."""
    with KafkaCluster(name="old", version="3.9.1") as cluster:
        yield cluster


@pytest.mark.java
def test_a_setting_that_the_target_refuses_does_not_stop_other_settings_or_records(
    old: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """The compacted topic of Kafka 3.9 has small segments. Its copy keeps old records and applies later settings."""
    topic = unique_topic()
    old.create_topic(
        topic, config={"segment.bytes": "102400", "cleanup.policy": "compact", "retention.ms": "-1"}
    )
    write_batches(old, topic, [numbered(0, 20, timestamp=now_ms() - 10 * DAY_MS, key=b"k")])
    flow = flow_file(
        tmp_path,
        old,
        west,
        topic,
        connectors={"source": {"config": {"sync.topic.configs.interval.seconds": "1"}}},
    )
    copy = f"{topic.upper()}.{topic}"
    refused = f"Target topic {copy} does not get segment.bytes=102400: "

    checked = command(tmp_path, "check", "-f", flow)
    assert (checked.returncode, checked.stdout.count(f"note  {refused}")) == (0, 1), checked.stdout

    with RunningCommand(flow, tmp_path) as running:
        wait_until(
            "the copy has the settings that its target accepts",
            lambda: (
                copy in west.topics()
                and west.topic_config(copy).items()
                >= {"cleanup.policy": "compact", "retention.ms": "-1"}.items()
            ),
            timeout_s=COMMAND_WAIT_S,
        )
        old.alter_topic(topic, {"max.message.bytes": "2000000"})
        wait_until(
            "a later setting is synced, and all records are copied",
            lambda: (
                west.topic_config(copy)["max.message.bytes"] == "2000000"
                and west.end_offsets(copy) == {0: 20}
            ),
            timeout_s=COMMAND_WAIT_S,
        )
        refusals = wait_until(
            "the refusal is logged",
            lambda: [line for line in warnings(running) if "segment.bytes" in line],
            timeout_s=COMMAND_WAIT_S,
        )
    assert len(refusals) == 1, refusals
    assert "BrokerRefusal" not in refusals[0]
    assert (
        f"{refused}Invalid value 102400 for configuration segment.bytes: Value must be at least"
        in refusals[0]
    )
    assert_copied(old, topic, west, copy)


@pytest.fixture
def walled() -> Iterator[KafkaCluster]:
    """A source with an authorizer."""
    with KafkaCluster(name="walled", authorizer=True) as cluster:
        yield cluster


@pytest.fixture
def open_target() -> Iterator[KafkaCluster]:
    """A target whose topics are open to everyone until an ACL names them, and a user who is no super user."""
    open_to_all = {"allow.everyone.if.no.acl.found": "true"}
    with KafkaCluster(
        name="open", listeners=("SASL_PLAINTEXT",), authorizer=True, config=open_to_all
    ) as cluster:
        yield cluster


@pytest.mark.more
def test_copied_acls_do_not_deny_the_flow_its_own_target(
    walled: KafkaCluster, open_target: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """They are not created until the flow has ACLs of its own. `check` reports this before."""
    topic = walled.create_topic(unique_topic())
    load(walled, topic, 150, keys=True)
    alias = topic.upper()
    everything = AclBinding(
        resource_type=TOPIC,
        resource_name="*",
        pattern_type=int(PatternType.LITERAL),
        principal="User:alice",
        host="*",
        operation=int(Operation.READ),
        permission_type=int(Permission.ALLOW),
    )
    call_cluster(walled, lambda connected: admin.create_acls(connected, [everything]))
    (tmp_path / "west").mkdir()
    (tmp_path / "west" / "password").write_text("mirror-secret")
    flow = flow_file(
        tmp_path,
        walled,
        open_target,
        topic,
        topics={"acls": {"sync": "Apply"}},
        login={
            "type": "Plain",
            "username": {"value": "mirror"},
            "password": {"secretName": "west", "key": "password"},
        },
        connectors={"source": {"config": {"sync.topic.acls.interval.seconds": "1"}}},
    )
    copied_acl = f"Allow Read on topics that begin with {alias}. for User:alice"
    secrets = ("--secrets", tmp_path)

    checked = command(tmp_path, "check", "-f", flow, *secrets)
    assert checked.returncode == 0, checked.stdout
    assert (
        f"would deny this flow its own topics, unless its user is a super user: {copied_acl}."
        in checked.stdout
    )

    with RunningCommand(flow, tmp_path, *secrets) as running:
        wait_until(
            "the ACL is reported as not created",
            lambda: any(f"{copied_acl} is not created" in line for line in warnings(running)),
            timeout_s=COMMAND_WAIT_S,
        )
        load(walled, topic, 150, keys=True)
        wait_until(
            "all records are copied",
            lambda: open_target.end_offsets(f"{alias}.{topic}") == {0: 300},
            timeout_s=COMMAND_WAIT_S,
        )
        open_target.allow("ALL", "TOPIC", f"{alias}.", prefixed=True)
        wait_until(
            "the ACL is created",
            lambda: any(
                acl.principal == "User:alice"
                for acl in call_cluster(
                    open_target, lambda connected: admin.describe_acls(connected, resource_type=TOPIC)
                )
            ),
            timeout_s=COMMAND_WAIT_S,
        )
        load(walled, topic, 100, keys=True)
        wait_until(
            "all later records are copied",
            lambda: open_target.end_offsets(f"{alias}.{topic}") == {0: 400},
            timeout_s=COMMAND_WAIT_S,
        )
    assert_copied(walled, topic, open_target, f"{alias}.{topic}")


def logged(running: RunningCommand) -> str:
    """Returns everything that the replicator has logged so far."""
    return running.log.read_text() if running.log.exists() else ""


@pytest.mark.more  # a stopped partition is retried after 15 s
def test_records_before_a_refused_one_are_copied_and_the_error_names_a_lasting_setting(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """A batch has ten current records and five of the day after tomorrow.

    Then the user follows the advice in the error.
    """
    setting = "message.timestamp.after.max.ms"
    topic = east.create_topic(unique_topic(), config={setting: str(2**63 - 1)})
    write_batches(
        east,
        topic,
        [numbered(0, 10, timestamp=now_ms()) + numbered(10, 5, timestamp=now_ms() + 2 * DAY_MS)],
    )
    flow = flow_file(
        tmp_path,
        east,
        west,
        topic,
        topics={"configs": {"exceptions": [{"topics": [topic], "exclude": [setting]}]}},
        connectors={"source": {"config": {"sync.topic.configs.interval.seconds": "1"}}},
    )
    expected = f"{setting} is 3600000 on target topic {topic.upper()}.{topic}, which refuses newer records; {topic}-0 has"

    before_creation = command(tmp_path, "check", "-f", flow)
    copy = west.create_topic(f"{topic.upper()}.{topic}", config={"max.message.bytes": "2000000"})
    after_creation = command(tmp_path, "check", "-f", flow)
    for checked in (before_creation, after_creation):
        assert (checked.returncode, checked.stdout.count(expected)) == (0, 1), checked.stdout

    with RunningCommand(flow, tmp_path) as running:
        wait_until(
            "the records before the first refused one are copied, and it is reported",
            lambda: (
                west.end_offsets(copy) == {0: 10}
                and f"{topic}-0: target topic {copy} refuses the record at source offset 10 with INVALID_TIMESTAMP"
                in logged(running)
            ),
            timeout_s=COMMAND_WAIT_S,
        )
        [warning] = [line for line in warnings(running) if "INVALID_TIMESTAMP" in line]
        assert setting in warning
        assert "topics.configs.exceptions" in warning
        west.alter_topic(copy, {setting: str(2**63 - 1)})
        wait_until(
            "the other records are copied",
            lambda: west.end_offsets(copy) == {0: 15},
            timeout_s=COMMAND_WAIT_S,
        )
        wait_until(
            "the log reports the deletion of the setting that only the copy had",
            lambda: f"Settings of target topic {copy} were deleted" in logged(running),
            timeout_s=COMMAND_WAIT_S,
        )
    assert west.topic_config(copy)[setting] == str(2**63 - 1)
    assert_copied(east, topic, west, copy)
    assert expected not in command(tmp_path, "check", "-f", flow).stdout


@pytest.mark.more
def test_records_without_a_key_are_skipped_in_a_compacted_copy_if_configured(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """`check` warns.

    `run` stops at the first record and names the remedies. With `skip`, each is counted and the others are copied.
    """
    topic = east.create_topic(unique_topic())
    keyed = numbered(0, 5, timestamp=now_ms(), key=b"k")
    mixed = [
        *keyed[:2],
        *numbered(100, 3, timestamp=now_ms()),
        *keyed[2:4],
        *numbered(200, 2, timestamp=now_ms()),
    ]
    write_batches(east, topic, [mixed, keyed[4:]])
    topic_settings = {"configs": {"exceptions": [{"topics": [topic], "exclude": ["cleanup.policy"]}]}}
    flow = flow_file(tmp_path, east, west, topic, topics=topic_settings)
    copy = west.create_topic(f"{topic.upper()}.{topic}", config={"cleanup.policy": "compact"})

    checked = command(tmp_path, "check", "-f", flow)
    with RunningCommand(flow, tmp_path) as running:
        first = f"{topic}-0: target topic {copy} refuses the record at source offset 2 with INVALID_RECORD"
        wait_until(
            "the first record without a key is reported, or the flow has ended",
            lambda: running.has_ended or first in logged(running),
            timeout_s=COMMAND_WAIT_S,
        )
        [stopped] = [line for line in warnings(running) if first in line]
    (tmp_path / "replicator.log").unlink()
    skip = {"source": {"config": {"mirrorflow.refused.records": "skip"}}}
    flow = flow_file(tmp_path, east, west, topic, topics=topic_settings, connectors=skip)
    run = command(tmp_path, "run", "-f", flow, "--until-caught-up", "--log", tmp_path / "replicator.log")

    assert f"Target topic {copy} is compacted (cleanup.policy) and its source is not" in checked.stdout
    for remedy in ("set cleanup.policy", "mirrorflow.refused.records=skip", "topics.configs.exceptions"):
        assert remedy in stopped
    assert run.returncode == 0, run.stdout + run.stderr
    assert [record.value for record in records(west, copy)] == [record.value for record in keyed]
    log_text = (tmp_path / "replicator.log").read_text()
    for records_skipped in ("3 records at source offset 2", "2 records at source offset 7"):
        sentence = f"{topic}-0: target topic {copy} refuses {records_skipped} with INVALID_RECORD"
        assert log_text.count(sentence) == 1, log_text


def test_refused_records_are_skipped_alone_at_both_ends_of_a_transaction(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """Each batch of two is followed by a commit marker, whose offset belongs to no record."""
    topic = east.create_topic(unique_topic())
    producer = Producer(
        {"bootstrap.servers": east.bootstrap, "transactional.id": topic, "linger.ms": LINGER_MS}
    )
    producer.init_transactions(COMMAND_WAIT_S)
    for keys in ((None, b"first"), (b"second", None)):
        producer.begin_transaction()
        for key in keys:
            producer.produce(topic, key=key, value=b"value", partition=0)
        producer.commit_transaction(COMMAND_WAIT_S)
    copy = west.create_topic(f"{topic.upper()}.{topic}", config={"cleanup.policy": "compact"})
    topic_settings = {"configs": {"exceptions": [{"topics": [topic], "exclude": ["cleanup.policy"]}]}}
    skip = {"source": {"config": {"mirrorflow.refused.records": "skip"}}}
    flow = flow_file(tmp_path, east, west, topic, topics=topic_settings, connectors=skip)

    run = command(tmp_path, "run", "-f", flow, "--until-caught-up", "--log", tmp_path / "replicator.log")

    assert run.returncode == 0, run.stdout + run.stderr
    assert [record.key for record in records(west, copy)] == [b"first", b"second"]
    assert (tmp_path / "replicator.log").read_text().count("refuses the record at source offset") == 2


def test_check_reports_records_older_than_their_topics_stricter_settings(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """The copies have the source's current settings, which are a limit for old records, and compaction."""
    aged, keyless = east.create_topic(unique_topic(), config={"retention.ms": "-1"}), unique_topic()
    east.create_topic(keyless)
    write_batches(east, aged, [numbered(0, 5, timestamp=now_ms() - 10 * DAY_MS)])
    now = now_ms()
    write_batches(east, keyless, [numbered(0, 2, timestamp=now, key=b"k"), numbered(2, 3, timestamp=now)])
    east.alter_topic(aged, {"message.timestamp.before.max.ms": str(DAY_MS)})
    east.alter_topic(keyless, {"cleanup.policy": "compact"})
    flow = flow_file(tmp_path, east, west, aged, topics={"include": [aged, keyless]})
    copy_of_aged, copy_of_keyless = (f"{aged.upper()}.{name}" for name in (aged, keyless))

    checked = command(tmp_path, "check", "-f", flow)
    with RunningCommand(flow, tmp_path) as running:
        refusals = (
            f"{aged}-0: target topic {copy_of_aged} refuses the record at source offset 0 with INVALID_TIMESTAMP",
            f"{keyless}-0: target topic {copy_of_keyless} refuses the record at source offset 2 with INVALID_RECORD",
        )
        wait_until(
            "both copies stop at the reported record, or the flow has ended",
            lambda: running.has_ended or all(refusal in logged(running) for refusal in refusals),
            timeout_s=COMMAND_WAIT_S,
        )
        assert not running.has_ended, running.output()

    assert checked.returncode == 0, checked.stdout + checked.stderr
    limit = f"message.timestamp.before.max.ms is {DAY_MS} on target topic {copy_of_aged}, which refuses older records"
    compaction = f"Target topic {copy_of_keyless} will be compacted (cleanup.policy), as on the source, and refuse records"
    assert checked.stdout.count(f"{limit}; {aged}-0 has one of ") == 1, checked.stdout
    assert checked.stdout.count(f"{compaction} without a key; {keyless}-0 has one at source offset 2") == 1, (
        checked.stdout
    )


def test_a_group_at_the_end_of_an_emptied_partition_is_translated_to_the_end_of_the_copy(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """All records were consumed and have expired when copying begins.

    A consumer with `latest` must not skip later records.
    """
    topic = east.create_topic(unique_topic())
    group = f"{topic}-readers"
    load(east, topic, 100, keys=True)
    put_group(east, group, {(topic, 0): 100})
    east.delete_records(topic, {0: 100})
    every_second = {"emit.checkpoints.interval.seconds": "1", "sync.group.offsets.interval.seconds": "1"}
    flow = flow_file(
        tmp_path,
        east,
        west,
        topic,
        groups={"include": [group]},
        connectors={"checkpoint": {"config": every_second}},
    )
    copy = f"{topic.upper()}.{topic}"

    with RunningCommand(flow, tmp_path) as running:
        wait_until(
            "the group has an offset on the target, or the flow has ended",
            lambda: group_offsets(west, group) or running.has_ended,
            timeout_s=COMMAND_WAIT_S,
        )
        assert group_offsets(west, group) == {(copy, 0): 0}, running.output()
    result = command(tmp_path, "offsets", "-f", flow, "--group", group)
    assert "exact" in result.stdout, result.stdout + result.stderr


def test_a_refused_flow_exits_with_its_reason_instead_of_a_timeout(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """A different flow owns the source's alias on the target."""
    topic = east.create_topic(unique_topic())
    load(east, topic, 10, keys=True)
    flow = flow_file(tmp_path, east, west, topic)
    first = command(tmp_path, "run", "-f", flow, "--until-caught-up", "--log", tmp_path / "first.log")
    assert first.returncode == 0, first.stdout + first.stderr

    flow.write_text(flow.read_text().replace("name: reported", "name: another"))
    second = command(tmp_path, "run", "-f", flow, "--until-caught-up", "--log", tmp_path / "second.log")

    assert second.returncode == 1
    assert (
        f"already receives source {topic.upper()} from flow reported; this flow is another" in second.stderr
    )


def test_check_reports_topics_that_are_not_copied_or_copied_differently(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """They are local topics that begin with their own cluster's alias, names that are never copied, and a copy created
    by hand.

    `run` also warns about the names when it starts.
    """
    topic = east.create_topic(unique_topic(), partitions=3)
    alias = topic.upper()
    local = east.create_topic(f"{alias}.orders")
    copy = west.create_topic(
        f"{alias}.{topic}", config={"cleanup.policy": "compact", "max.message.bytes": "20000"}
    )
    flow = flow_file(
        tmp_path,
        east,
        west,
        topic,
        topics={"include": [topic, f"{alias}\\..*", "__schemas"], "configs": {"sync": "Off"}},
    )

    checked = command(tmp_path, "check", "-f", flow)
    never = "`topics` has __schemas, which is never copied: it is an internal topic."
    with RunningCommand(flow, tmp_path) as running:
        wait_until(
            "the log of `run` reports the topic, or the flow has ended",
            lambda: running.has_ended or any(never in line for line in warnings(running)),
            timeout_s=COMMAND_WAIT_S,
        )
        assert not running.has_ended, running.output()

    assert checked.returncode == 0, checked.stdout + checked.stderr
    notes = "\n".join(line for line in checked.stdout.splitlines() if line.startswith("note"))
    assert (
        f"taken for copies that came back, and not copied: {local}. MM2 up to Kafka 4.3 copies them as {alias}.{local}"
        in notes
    )
    assert never in notes
    assert f"Target topic {copy} is compacted (cleanup.policy) and its source is not" in notes
    assert f"max.message.bytes is 20000 on target topic {copy}, and 1048588 on the source" in notes
    assert f"would grow: {copy} to 3 partitions" in checked.stdout


@pytest.fixture
def strict_target() -> Iterator[KafkaCluster]:
    """A target with one broker and min.insync.replicas=2."""
    with KafkaCluster(name="strict", config={"min.insync.replicas": "2"}) as cluster:
        yield cluster


@pytest.mark.more
def test_one_replica_suffices_for_min_insync_replicas_2_since_kafka_3_7(
    east: KafkaCluster, strict_target: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """Such a broker requires only the replicas that exist. For earlier versions, `check` reports both settings."""
    topic = east.create_topic(unique_topic())
    load(east, topic, 10, keys=True)
    flow = flow_file(tmp_path, east, strict_target, topic)

    checked = command(tmp_path, "check", "-f", flow)
    run = command(tmp_path, "run", "-f", flow, "--until-caught-up", "--log", tmp_path / "replicator.log")

    assert (checked.returncode, run.returncode) == (0, 0), checked.stdout + run.stdout + run.stderr
    assert_copied(east, topic, strict_target, f"{topic.upper()}.{topic}", count=10)


@pytest.mark.spark
def test_verify_succeeds_while_a_flow_with_heartbeats_runs(
    east: KafkaCluster, west: KafkaCluster, unique_topic: Names, tmp_path: Path
) -> None:
    """Heartbeats are not compared. Topics that are being written are compared up to a fixed end."""
    topic = east.create_topic(unique_topic(), partitions=2)
    load(east, topic, 1_000, keys=True)
    flow = flow_file(tmp_path, east, west, topic, heartbeats={"emitTo": ["Source", "Target"]})
    alias = topic.upper()

    with heartbeats_on(east), RunningCommand(flow, tmp_path) as running:
        wait_until(
            "records and heartbeats are copied, or the flow has ended",
            lambda: (
                running.has_ended
                or (west.total_end_offset(f"{alias}.{topic}") == 1_000 and beats(east) and beats(west))
            ),
            timeout_s=COMMAND_WAIT_S,
        )
        with ThreadPoolExecutor(1) as thread:
            verifying = thread.submit(command, tmp_path, "verify", "-f", flow, "--cores", "1")
            while not verifying.done():
                load(east, topic, 100, keys=True)
            verified = verifying.result()

    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "are equal" in verified.stdout
