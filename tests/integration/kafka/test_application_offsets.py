"""Offsets that applications keep outside Kafka are translated in both directions by the command and over REST.

Every offset of both logs is translated, and librdkafka reads from the result. No unread record may be skipped, and no
more records may be read again than promised. The topic has gaps on both sides from compaction and from markers of
committed and aborted transactions.
"""

import csv
import io
import json
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.compaction import COMPACTED, QUICK_CLEANER, force_compaction
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.replicator import Replicator
from tests.integration.kafka.test_checkpoints import Flow

Names = Callable[[], str]
QUICK = {"offset.flush.interval.ms": "500"}
READ_S = 60.0


@pytest.fixture(scope="module")
def compacting() -> Iterator[KafkaCluster]:
    """A source whose log cleaner runs ten times a second."""
    with KafkaCluster(name="holes", config=QUICK_CLEANER) as cluster:
        yield cluster


@pytest.fixture
def flow(compacting: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> Flow:
    own = uuid.uuid4().hex[:8]
    return Flow(source=compacting, target=west, folder=tmp_path, alias=f"a{own}", target_alias=f"b{own}")


def values_by_offset(cluster: KafkaCluster, topic: str) -> dict[int, bytes]:
    """Returns what a read_committed consumer of librdkafka reads of partition 0, from the beginning to the end."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.internal_bootstrap,
            "group.id": f"reader-{uuid.uuid4().hex[:8]}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: dict[int, bytes] = {}

    def read() -> bool:
        message = consumer.poll(0.5)
        if message is None:
            return False
        if message.error():
            return True  # the end of the partition
        values[message.offset()] = message.value()
        return False

    try:
        wait_until(f"{topic} is read", read, poll_s=0)
    finally:
        consumer.close()
    return values


def translate(
    flow: Flow, lines: str, *more: str, expects: int = 0, source: str | None = None
) -> tuple[str, str]:
    """Returns what `mirrorflow offsets translate` prints on stdout and stderr."""
    command = [
        str(Path(sys.executable).parent / "mirrorflow"), "offsets", "translate", *more,
        "--from", source or flow.source.internal_bootstrap, "--to", flow.target.internal_bootstrap,
        "--from-alias", flow.alias, "--to-alias", flow.target_alias,
    ]  # fmt: skip
    result = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == expects, result.stderr
    return result.stdout, result.stderr


def rows(printed: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(printed)))


def all_offsets(topic: str, end: int) -> str:
    return "topic,partition,offset\n" + "".join(f"{topic},0,{offset}\n" for offset in range(end + 1))


def assert_safe(
    translated: Iterable[dict[str, str]], origin: dict[int, bytes], destination: dict[int, bytes]
) -> int:
    """Asserts that no row skips an unread record or causes more rereads than promised, and returns the number of exact
    rows.
    """
    offset_of = {value: offset for offset, value in destination.items()}
    common = [(offset, offset_of[value]) for offset, value in sorted(origin.items()) if value in offset_of]
    here, there = [offset for offset, _ in common], [offset for _, offset in common]
    assert sorted(there) == there
    exact = 0
    for offset, row in enumerate(translated):
        begins = int(row["offset"])
        unread = bisect_left(here, offset)  # index of the first record that the application has not read
        first = bisect_left(there, begins)  # index of the first record that it reads on the other cluster
        assert first <= unread, row
        assert unread - first <= int(row["readAgainAtMost"]), row
        exact += row["translation"] == "exact"
    return exact


def post(process: Replicator, query: str, body: bytes) -> tuple[int, str, str]:
    """Returns status, content type and body of `POST /offsets/translate`."""
    request = urllib.request.Request(f"{process.url}/offsets/translate{query}", data=body, method="POST")
    try:
        with urllib.request.urlopen(request, timeout=READ_S) as response:
            return response.status, response.headers["Content-Type"], response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def test_every_offset_of_a_topic_with_gaps_is_translated_in_both_directions(
    flow: Flow, unique_topic: Names
) -> None:
    topic = flow.source.create_topic(unique_topic(), config=COMPACTED)
    load(flow.source, topic, 300, keys=True)
    load(
        flow.source,
        topic,
        700,
        first=100,
        keys=True,
        content="random",
        transactional_id=f"t-{flow.alias}",
        transaction_records=2,
        abort_every=3,
    )
    force_compaction(flow.source, topic)
    load(flow.source, topic, 200, first=1000, keys=True)
    remote = flow.remote(topic)
    with flow.process(topic, worker=QUICK) as process:
        process.wait_for_copy(flow.target, remote, 1)
        sent = values_by_offset(flow.source, topic)

        end = flow.source.end_offsets(topic)[0]

        def is_stored() -> bool:
            (row,) = rows(translate(flow, f"topic,partition,offset\n{topic},0,{end}\n")[0])
            return row["translation"] == "exact"

        wait_until("the offset map is stored", is_stored, poll_s=1.0)
        target = values_by_offset(flow.target, remote)
        target_end = flow.target.end_offsets(remote)[0]

        forward = rows(translate(flow, all_offsets(topic, end))[0])
        back = rows(translate(flow, all_offsets(remote, target_end), "--reverse")[0])
        status, kind, by_rest = post(process, "", all_offsets(topic, end).encode())
        reversed_status, _, reversed_by_rest = post(
            process, "?reverse=true", all_offsets(remote, target_end).encode()
        )
        too_many = post(process, "", all_offsets(topic, 5001).encode())
        invalid = post(process, "", b"orders,0,x\n")

    assert (end + 1, {remote}) == (len(forward), {row["topic"] for row in forward})
    assert (target_end + 1, {topic}) == (len(back), {row["topic"] for row in back})
    assert end - len(sent) > 400, "the source has holes"
    assert end // 4 < assert_safe(forward, sent, target) < end, (
        "older gaps are merged, so some offsets have a bound"
    )
    assert assert_safe(back, target, sent) > target_end // 4
    assert (200, "text/csv; charset=utf-8", 200) == (status, kind, reversed_status)
    # The connector uses the offsets that its last pass has read.
    assert_safe(rows(by_rest), sent, target)
    assert_safe(rows(reversed_by_rest), target, sent)
    assert (400, 400) == (too_many[0], invalid[0])
    assert "line 1: offset 'x' is not a number" in invalid[2]


@pytest.mark.more
def test_offsets_without_a_certain_translation_have_a_reason(flow: Flow, unique_topic: Names) -> None:
    """These are offsets past the end, deleted on either side, of unknown topics and partitions, or of a recreated
    topic.
    """
    topic, again = (flow.source.create_topic(unique_topic()) for _ in range(2))
    for name in (topic, again):
        load(flow.source, name, 100)
    with flow.process(f"{topic},{again}", worker=QUICK) as process:
        for name in (topic, again):
            process.wait_for_copy(flow.target, flow.remote(name), 100)

        def are_stored() -> bool:
            printed, _ = translate(flow, f"{topic},0,100\n{again},0,100\n")
            return printed.count(",exact,") == 2

        wait_until("the offset maps are stored", are_stored, poll_s=1.0)
    never = flow.source.create_topic(unique_topic())
    flow.source.delete_topic(again)
    flow.source.create_topic(again)
    flow.source.delete_records(topic, {0: 30})
    flow.target.delete_records(flow.remote(topic), {0: 50})
    missing = f"missing-{uuid.uuid4().hex[:8]}"
    asked = [
        (topic, 0, 101),
        (topic, 0, 20),
        (topic, 0, 70),
        (missing, 0, 1),
        (topic, 7, 1),
        (never, 0, 0),
        (again, 0, 0),
    ]
    lines = json.dumps([{"topic": name, "partition": part, "offset": offset} for name, part, offset in asked])

    printed, errors = translate(flow, lines, expects=1)

    translated = json.loads(printed)
    assert [(item["offset"], item["translation"]) for item in translated] == [
        (None, "unknown"), (translated[1]["offset"], "bound"), (translated[2]["offset"], "exact"),
        *[(None, "unknown")] * 4,
    ]  # fmt: skip
    assert 50 == translated[1]["offset"]
    why = [item["why"] for item in translated]
    assert f"the log of {flow.alias} ends at 100" in why[0]
    assert "begins at 50, earlier records are deleted" in why[1]
    assert all("knows no offsets of this partition" in why[number] for number in (3, 4, 5))
    assert "was re-created" in why[6]
    assert "5 of 7 offsets cannot be translated" in errors

    # Offsets that are known from the target are also translated while the source is unreachable.
    printed, errors = translate(flow, f"{topic},0,70\n", source="127.0.0.1:1")
    assert [flow.remote(topic), "0", str(translated[2]["offset"]), "exact"] == printed.split(",")[:4]
    assert "by what the target has" in errors
    translate(flow, f"{flow.remote(topic)},0,70\n", "--reverse", source="127.0.0.1:1", expects=1)


def test_invalid_lists_are_refused_before_the_command_connects(flow: Flow) -> None:
    """Nothing is printed on stdout, and the error names each invalid line."""
    printed, errors = translate(
        flow, "orders,0,1\norders,zero,1\n\x00,0,1\n", source="127.0.0.1:1", expects=2
    )

    assert "" == printed
    assert ["stdin, line 2:", "stdin, line 3:"] == [line[:14] for line in errors.splitlines()]
