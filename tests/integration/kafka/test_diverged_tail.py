"""The tail of an old side that has returned is counted exactly, and is kept or appended once even if a process is
killed.

A Java producer writes the tail. A Java consumer of committed records compares it with the kept records.
"""

import argparse
import asyncio
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from mirrorflow_cli.pair_arguments import pair_from, switchover_settings
from mirrorflow_core.errors import UnreachableError
from mirrorflow_core.partitions import TopicPartition
from mirrorflow_core.switchover.diverged_tail import TailChoice, TailProgress
from mirrorflow_core.wire.records import Record as WireRecord
from mirrorflow_kafka.admin import admin
from mirrorflow_kafka.client.cluster import Cluster
from mirrorflow_replicator.switchover.errors import TailTakenError
from mirrorflow_replicator.switchover.flow_end import end_flow
from mirrorflow_replicator.switchover.returned_side import returned_side
from mirrorflow_replicator.switchover.tail_writer import TailTarget, TailTransaction, TailWriter
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.compaction import COMPACTED, ROLL_KEY, force_compaction
from tests.harness.kafka.elections import LEADER, QUICK_ELECTIONS, fragile_topic, tail_lost
from tests.harness.kafka.listeners import User
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import Record, digest, load, records
from tests.integration.kafka.diverging import COPIED, DivergedPair, copied_pair, output, tail_of
from tests.integration.kafka.flows import by_partition, call_cluster, contents
from tests.integration.kafka.mirror_pairs import Pair, pair_sides
from tests.integration.kafka.switching import call_clusters

PARTITIONS = 3
TAIL, SINCE = 500, 200
COMMITTED = "read_committed"
_OPERATIONS = {"DescribeConfigs": "DESCRIBE_CONFIGS", "AlterConfigs": "ALTER_CONFIGS"}
APP = User(name="app", password="app-secret")


@pytest.fixture
def topic(east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]) -> str:
    """A topic on both clusters."""
    name = east.create_topic(unique_topic(), partitions=PARTITIONS)
    return west.create_topic(name, partitions=PARTITIONS)


@pytest.fixture
def pair(east: KafkaCluster, west: KafkaCluster, topic: str, tmp_path: Path) -> DivergedPair:
    """A pair whose flow has copied `COPIED` records and was killed."""
    return copied_pair(east, west, topic, tmp_path)


def test_each_acknowledged_record_is_once_on_the_new_side_or_in_the_kept_tail(pair: DivergedPair, topic: str):
    """The tail also has aborted transactions. Afterwards the reverse flow copies the records written after the tail."""
    load(pair.old, topic, TAIL, keys=True, first=COPIED, transactional_id="app", abort_every=3)
    pair.end()
    load(pair.new, topic, SINCE, keys=True, first=10_000)
    tail = tail_of(pair, topic)

    shown = output(pair.command("show", "--json"))
    kept = output(pair.command("keep", "--json"))
    again = output(pair.command("keep", "--json"))

    assert len(tail) == shown["records"] == sum(part["records"] for part in kept["written"])
    assert TAIL - len(tail) == shown["abortedRecords"] > 0
    assert {record.partition: 0 for record in tail} == {
        part["partition"]: part["added"] for part in again["written"]
    }
    assert by_partition(tail) == by_partition(records(pair.new, pair.kept(topic), isolation=COMMITTED))
    acknowledged = records(pair.old, topic, isolation=COMMITTED)
    known = records(pair.new, topic, isolation=COMMITTED) + tail
    new = [record for record in known if record.key is not None and int(record.key) < 10_000]
    assert Counter(contents(acknowledged)) == Counter(contents(new))

    assert pair.command("start-back").returncode == 0
    with pair.running(back=True):
        wait_until(
            "the reverse flow has copied all",
            lambda: (
                SINCE
                == sum(count for count, _ in digest(pair.old, topic, isolation=COMMITTED).values())
                - len(acknowledged)
            ),
        )
    since = [record for record in records(pair.new, topic) if int(record.key or b"0") >= 10_000]
    expected = by_partition(acknowledged)
    for partition, written in by_partition(since).items():
        expected[partition] += written
    assert expected == by_partition(records(pair.old, topic, isolation=COMMITTED))
    assert 1 == pair.command("keep").returncode, "the reverse flow writes after the tail"


def test_the_next_command_continues_a_killed_one_and_keeps_each_record_once(
    pair: DivergedPair,
):
    """The topic was never copied, so its whole log is the tail. It takes several transactions."""
    late = pair.old.create_topic(f"{pair.topics}-late", partitions=2)
    load(pair.old, late, 60_000, size_bytes=500)
    pair.end()
    kept, kills = pair.kept(late), 0

    def has_written(more: int) -> bool:
        return pair.new.has_topic(kept) and pair.new.total_end_offset(kept) > more

    for _ in range(2):
        before = pair.new.total_end_offset(kept) if pair.new.has_topic(kept) else 0
        with subprocess.Popen(pair.line("keep"), stdout=subprocess.DEVNULL) as process:
            wait_until(
                "it writes",
                lambda: has_written(before + 1_000) or process.poll() is not None,  # noqa: B023
                poll_s=0.01,
            )
            kills += process.poll() is None
            process.kill()
    output(pair.command("keep", "--json"))

    assert kills
    assert digest(pair.old, late) == digest(pair.new, kept, isolation=COMMITTED)


def test_the_tail_is_appended_once_with_a_header_that_names_the_switchover(pair: DivergedPair, topic: str):
    load(pair.old, topic, TAIL, keys=True, first=COPIED, headers=2)
    pair.end()
    load(pair.new, topic, SINCE, keys=True, first=10_000)

    first = output(pair.command("append", "--json"))
    again = output(pair.command("append", "--json"))

    assert TAIL == sum(part["added"] for part in first["written"])
    assert 0 == sum(part["added"] for part in again["written"])
    header = ("mirrorflow.diverged", pair.switchover.encode())
    appended = [
        record for record in records(pair.new, topic, isolation=COMMITTED) if header in record.headers
    ]
    marked = [
        (timestamp, key, value, (*headers, header))
        for timestamp, key, value, headers in map(_content, tail_of(pair, topic))
    ]
    assert sorted(marked, key=str) == sorted(map(_content, appended), key=str)
    assert COPIED + SINCE + TAIL == len(records(pair.new, topic, isolation=COMMITTED))
    # The appended records follow those that applications had written by then.
    newest = {
        record.partition: record.offset for record in records(pair.new, topic) if header not in record.headers
    }
    assert all(record.offset > newest[record.partition] for record in appended)


def _content(record: Record) -> tuple[Any, ...]:
    return record.timestamp, record.key, record.value, record.headers


@pytest.mark.parametrize("lost", ["request", "response"])
def test_a_commit_without_a_response_repeats_no_record(
    pair: DivergedPair, topic: str, monkeypatch: pytest.MonkeyPatch, lost: str
):
    """The coordinator may have received the request or not. Only the log shows what was committed."""
    load(pair.old, topic, TAIL, keys=True, first=COPIED)
    pair.end()
    end_txn, commits = admin.end_txn, 0

    async def losing(cluster: Cluster, transactional_id: str, *producer: Any, **more: Any) -> None:
        nonlocal commits
        is_first = False
        if ":diverged:" in transactional_id:
            commits += 1
            is_first = commits == 2  # the first transaction that has records
        if lost == "response" or not is_first:
            await end_txn(cluster, transactional_id, *producer, **more)
        if is_first:
            raise UnreachableError(cluster=cluster.alias, addresses="a broker", problem="it was stopped")

    monkeypatch.setattr("mirrorflow_kafka.admin.admin.end_txn", losing)

    async def keep() -> int:
        async with returned_side(pair.settings) as side:
            written = await side.keep(await side.survey())
            return sum(tail.records for tail in written)

    assert asyncio.run(keep()) == TAIL
    assert commits > 2
    assert by_partition(tail_of(pair, topic)) == by_partition(
        records(pair.new, pair.kept(topic), isolation=COMMITTED)
    )


def test_a_suspended_process_writes_nothing_after_another_process_took_over(west: KafkaCluster, topic: str):
    """Its transaction is open when the second process starts."""
    source = TopicPartition("orders", 0)

    async def take_over(first_client: Cluster, second_client: Cluster) -> None:
        await first_client.refresh([topic])
        target = TailTarget(
            partition=TopicPartition(topic, 0),
            topic_id=first_client.metadata.topic_id(topic),
            max_bytes=1_000_000,
        )
        first, second = (
            TailWriter(client, f"{topic}-1", TailChoice.KEEP, {source: target})
            for client in (first_client, second_client)
        )
        await first.open(replication_factor=1)
        await first.write(_transaction(topic, b"first", 1, target))
        await second.open(replication_factor=1)
        assert second.progress[source].next_offset == 1
        with pytest.raises(TailTakenError, match="the same command then writes what is left"):
            await first.write(_transaction(topic, b"late", 2, target))
        await second.write(_transaction(topic, b"second", 2, target))

    call_clusters(west, west, take_over)

    assert [record.value for record in records(west, topic)] == [b"first", b"second"]


def _transaction(topic: str, value: bytes, next_offset: int, target: TailTarget) -> TailTransaction:
    source, transaction = TopicPartition("orders", 0), TailTransaction()
    transaction.add(source, 0, [WireRecord(next_offset - 1, 0, None, value)], size_bytes=len(value))
    transaction.progress[source] = TailProgress(
        switchover=f"{topic}-1",
        choice=TailChoice.KEEP,
        partition=source,
        next_offset=next_offset,
        records=next_offset,
        source_topic_id="",
        target_topic_id=target.topic_id,
    )
    return transaction


def test_an_open_transaction_is_reported_and_the_tail_is_kept_after_it_has_ended(
    pair: DivergedPair, topic: str
):
    """A fence does not end the transaction, which its coordinator may still commit."""
    producer = Producer(
        {"bootstrap.servers": pair.old.internal_bootstrap, "transactional.id": f"{topic}-app"}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(COPIED, COPIED + 10):
        producer.produce(topic, b"v", key=str(number).encode(), partition=0)
    producer.flush(30)
    pair.end()

    refused, shown = pair.command("keep"), output(pair.command("--json"))
    producer.commit_transaction(30)
    kept = output(pair.command("keep", "--json"))

    assert refused.returncode == 1
    assert f"transactional id {topic}-app" in refused.stderr
    assert "Nothing was deleted" in refused.stderr
    assert [shown["records"], kept["records"]] == [0, 10]
    assert [f"{topic}-app"] == [transaction["transactionalId"] for transaction in shown["openTransactions"]]


@pytest.mark.more
def test_only_the_remaining_records_of_a_compacted_tail_are_kept(pair: DivergedPair, topic: str):
    """Compaction leaves gaps in the offsets, and keeps the newest record of each key."""
    pair.old.alter_topic(topic, COMPACTED)
    for _ in range(3):
        load(pair.old, topic, TAIL, keys=True, first=COPIED, partition=0)
    force_compaction(pair.old, topic)
    pair.end()
    tail = [
        record
        for record in records(pair.old, topic)
        if record.key == ROLL_KEY or int(record.key or b"") >= COPIED
    ]

    kept = output(pair.command("keep", "--json"))

    assert TAIL < len(tail) == kept["records"] < 3 * TAIL
    assert by_partition(tail) == by_partition(records(pair.new, pair.kept(topic), isolation=COMMITTED))


@pytest.mark.more
def test_a_planned_switchover_back_succeeds_even_if_the_old_side_has_a_tail(pair: DivergedPair, topic: str):
    """The switchover compares only records written since the tail, because the clusters differ by the tail."""
    load(pair.old, topic, TAIL, keys=True, first=COPIED)
    before = records(pair.old, topic)
    pair.end()
    load(pair.new, topic, SINCE, keys=True, first=10_000)
    assert pair.command("keep").returncode == 0
    assert pair.command("start-back").returncode == 0

    with pair.running(back=True):
        wait_until("the reverse flow copies", lambda: len(records(pair.old, topic)) == len(before) + SINCE)
        with pair.running():
            back = pair.mirrorflow("switchover", "--to", pair.left, "-f", pair.file)

    assert back.returncode == 0, back.stdout + back.stderr
    since = [record for record in records(pair.new, topic) if int(record.key or b"") >= 10_000]
    assert Counter(contents(before + since)) == Counter(contents(records(pair.old, topic)))


@pytest.mark.more
def test_a_recreated_topic_is_refused_and_a_deleted_one_is_reported(pair: DivergedPair, topic: str):
    pair.end()
    pair.old.delete_topic(topic)
    missing = output(pair.command("--json"))
    pair.old.create_topic(topic, partitions=PARTITIONS)
    load(pair.old, topic, 10)
    recreated = pair.command("keep")

    assert {"Missing"} == {part["state"] for part in missing["partitions"]}
    assert recreated.returncode == 1
    assert "was deleted and created again" in recreated.stdout
    assert not pair.new.has_topic(pair.kept(topic))


@pytest.mark.more
def test_a_topic_recreated_after_its_tail_is_kept_has_the_order_of_the_new_side(
    pair: DivergedPair, topic: str
):
    """A topic of the flow without a tail is copied from the offset at which the flow has ended."""
    whole = pair.new.create_topic(pair.old.create_topic(f"{topic}-whole", partitions=1), partitions=1)
    load(pair.old, whole, 100)
    pair.copy(whole, 100)
    load(pair.old, topic, TAIL, keys=True, first=COPIED)
    pair.end()
    load(pair.new, topic, SINCE, keys=True, first=10_000)
    load(pair.new, whole, 50, first=100)

    refused = [pair.command("recreate"), pair.command("start-back")]
    assert pair.command("keep").returncode == 0
    shown = pair.command("recreate")
    pair.old.delete_topic(topic)
    started = pair.command("start-back")
    with pair.running(back=True):
        wait_until(
            "the reverse flow has copied all",
            lambda: (
                pair.old.has_topic(topic)
                and digest(pair.old, topic) == digest(pair.new, topic)
                and digest(pair.old, whole) == digest(pair.new, whole)
            ),
        )

    assert [1, 1] == [command.returncode for command in refused]
    assert all("is not kept" in command.stderr for command in refused)
    assert shown.returncode == 0, shown.stderr
    assert f"--delete --topic {topic}\n" in shown.stdout
    assert f"{whole}\n" not in shown.stdout
    assert f"mirrorflow seed -f {pair.active}-to-{pair.left}.yaml" in shown.stdout
    assert started.returncode == 0, started.stderr
    assert by_partition(records(pair.old, topic)) == by_partition(records(pair.new, topic))


def test_the_old_side_is_fenced_before_its_tail_is_read(
    west: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """An application still writes when the old side returns. Its writes are refused after the command."""
    with KafkaCluster(name="returned", listeners=("SASL_PLAINTEXT",), authorizer=True, users=(APP,)) as old:
        topic = west.create_topic(old.create_topic(unique_topic(), partitions=1))
        old.allow("ALL", "TOPIC", topic, user="app")
        pair = DivergedPair(old, west, topic, tmp_path, fence={"method": "DenyAcl"})
        load(old, topic, COPIED, keys=True)
        pair.copy(topic, COPIED)
        pair.end()
        client = {**old.client("SASL_PLAINTEXT", user=APP), "linger.ms": 0}
        assert _is_written(client, topic)

        shown = output(pair.command("--json"))

        assert not _is_written(client, topic)
        assert shown["records"] == 1
        assert output(pair.command("keep", "--json"))["records"] == 1


@pytest.mark.faults
def test_records_lost_by_an_unclean_election_are_reported_and_their_replacements_are_kept(
    west: KafkaCluster, unique_topic: Callable[[], str], tmp_path: Path
):
    """The lost records were copied, so the new side has them.

    In one topic, other records have their offsets. In the other topic, no record has them.
    """
    gone, replaced = 200, 300
    with KafkaCluster(name="trio", brokers=3, config=QUICK_ELECTIONS) as trio:
        name = unique_topic()
        lost, rewritten = (fragile_topic(trio, f"{name}-{state}") for state in ("lost", "rewritten"))
        pair = DivergedPair(trio, west, name, tmp_path)
        for topic in (lost, rewritten):
            load(trio, topic, COPIED, keys=True)
        with tail_lost(trio, lost, rewritten):
            for topic in (lost, rewritten):
                load(trio, topic, gone, keys=True, first=COPIED)
                pair.copy(topic, COPIED + gone)
        pair.end()
        load(trio, rewritten, replaced, keys=True, first=5_000)
        trio.broker(LEADER).start()

        shown = output(pair.command("--json"))
        kept = output(pair.command("keep", "--json"))

        assert {lost: ("Lost", gone, 0), rewritten: ("Rewritten", gone, replaced)} == {
            part["topic"]: (part["state"], part["lost"], part["records"]) for part in shown["partitions"]
        }
        assert [(rewritten, pair.kept(rewritten), replaced)] == [
            (part["topic"], part["to"], part["records"]) for part in kept["written"]
        ]
        others = [record for record in records(trio, rewritten) if int(record.key or b"0") >= 5_000]
        assert contents(others) == contents(records(west, pair.kept(rewritten), isolation=COMMITTED))
        for topic in (lost, rewritten):
            assert COPIED + gone == len(records(west, topic, isolation=COMMITTED))


@pytest.mark.more
def test_the_acls_that_are_printed_for_the_pair_suffice_for_a_rehearsal_and_for_each_choice(tmp_path: Path):
    """The user of the flows has no other permissions."""
    with pair_sides(grants_all=False) as sides:
        pair = Pair(sides, tmp_path)
        east, west = sides["east"], sides["west"]
        printed = output(pair.command("--json", name="acls"))
        of_flows = [acl for flow in printed["flows"] for acl in flow["acls"]]
        for acl in [*printed["switchover"], *printed["diverged"], *of_flows]:
            for operation in acl["operations"]:
                sides[acl["cluster"]].allow(
                    _OPERATIONS.get(operation, operation.upper()),
                    acl["resourceType"].upper().replace("-", "_"),
                    acl["resourceName"],
                    prefixed=acl["patternType"] == "prefixed",
                    user=acl["principal"].removeprefix("User:"),
                )
        load(east, pair.topic, COPIED, keys=True)
        with pair.running("east-to-west", "forward"):
            wait_until("the records are copied", lambda: west.total_end_offset(pair.topic) == COPIED)
            rehearsed = pair.command("--to", "west", "--rehearse")
        assert 0 == rehearsed.returncode, rehearsed.stdout + rehearsed.stderr
        load(east, pair.topic, TAIL, keys=True, first=COPIED)
        arguments = argparse.Namespace(file=str(pair.file), secrets=str(pair.folder))
        forward = switchover_settings(arguments, pair_from(arguments), "west").forward
        call_cluster(west, lambda connected: end_flow(forward, connected, f"{pair.name}-1"))

        for choice in ("show", "keep", "append", "recreate", "start-back"):
            done = pair.command(choice, "--left", "east", name="diverged")
            assert 0 == done.returncode, choice + done.stdout + done.stderr
        assert COPIED + TAIL == len(records(west, pair.topic, isolation=COMMITTED))


def _is_written(client: dict[str, Any], topic: str) -> bool:
    outcomes: list[bool] = []
    producer = Producer(client)
    producer.produce(topic, b"v", key=b"5000", on_delivery=lambda error, _: outcomes.append(error is None))
    producer.flush(30)
    return outcomes == [True]
