"""Kafka Connect's built-in transformations give the same records in the same topics as Java's MM2 with the same lines."""

import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.mm2 import MirrorMaker
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import records
from tests.harness.replicator import Replicator
from tests.integration.kafka.comparing import Content, contents, produce
from tests.integration.kafka.flows import Flow

TRANSFORMS = "org.apache.kafka.connect.transforms."


def regex_router(name: str, regex: str, replacement: str, **more: str) -> dict[str, str]:
    """Returns the lines of one RegexRouter."""
    prefix = f"transforms.{name}."
    lines = {"type": f"{TRANSFORMS}RegexRouter", "regex": regex, "replacement": replacement, **more}
    return {prefix + key: value for key, value in lines.items()}


def load(cluster: KafkaCluster, topic: str, count: int = 200) -> None:
    """Produces records with and without headers. Some headers are repeated, empty or null."""
    now_ms = time.time_ns() // 1_000_000
    header_sets: tuple[list[tuple[str, bytes | None]], ...] = (
        [],
        [("trace", b"\x00\xff\x01"), ("secret", b"x"), ("trace", b"again")],
        [("secret", None), ("empty", b"")],
        [("grüße", "für".encode())],
    )
    produce(
        cluster,
        topic,
        [
            (i % 2, now_ms + i, b"%d" % i, None if i % 7 == 0 else b"v%d" % i, header_sets[i % 4])
            for i in range(count)
        ],
    )


def read(cluster: KafkaCluster, topic: str) -> list[Content]:
    """Returns the contents of *topic* in the order of each partition, or nothing if the topic does not exist."""
    if not cluster.has_topic(topic):
        return []
    return sorted(contents(records(cluster, topic)), key=lambda content: content[0])


def both(
    east: KafkaCluster, west: KafkaCluster, folder: Path, topics: list[str], lines: Mapping[str, str]
) -> tuple[MirrorMaker, Flow, Replicator]:
    """Returns Java's flow with alias `east`, and MirrorFlow's with its own alias, which replaces `east` in every line."""
    flow = Flow.new(east, west, folder)
    own_lines = {key: value.replace("east", flow.alias) for key, value in lines.items()}
    java_lines = {f"{east.name}->{west.name}.{key}": value for key, value in lines.items()}
    pattern = "|".join(topics)
    java = MirrorMaker(
        source=east,
        target=west,
        topics=pattern,
        # A transformation applies to all three connectors of Java's flow. Only the first connector is compared here.
        properties={**java_lines, f"{east.name}->{west.name}.emit.heartbeats.enabled": "false"},
    )
    return java, flow, flow.replicator(pattern, own_lines)


def test_transformed_records_and_topics_equal_those_of_java(
    east: KafkaCluster, west: KafkaCluster, tmp_path: Path
):
    """The lines have a renaming with groups, a filter by topic, and headers dropped and inserted.

    Each record equals that of Java.
    """
    run = uuid.uuid4().hex[:6]
    topics = [f"smt-{run}-{name}" for name in ("orders", "noise", "plain")]
    for topic in topics:
        east.create_topic(topic, partitions=2)
        load(east, topic)
    # The topics are created on the target beforehand, because Java creates only topics with the policy's names.
    lines = {
        "transforms": "route, drop, out, in, nothing",
        "predicates": "noise, orders",
        "predicates.noise.type": f"{TRANSFORMS}predicates.TopicNameMatches",
        "predicates.noise.pattern": r".*\.noise",
        "predicates.orders.type": f"{TRANSFORMS}predicates.TopicNameMatches",
        "predicates.orders.pattern": r".*\.orders",
        **regex_router("route", rf"(east)\.smt-{run}-(noise|orders)", rf"{run}.$1.$2"),
        "transforms.drop.type": f"{TRANSFORMS}Filter",
        "transforms.drop.predicate": "noise",
        "transforms.out.type": f"{TRANSFORMS}DropHeaders",
        "transforms.out.headers": "secret, absent",
        "transforms.in.type": f"{TRANSFORMS}InsertHeader",
        "transforms.in.header": "from",
        "transforms.in.value.literal": "site-1",
        "transforms.in.predicate": "orders",
        "transforms.in.negate": "true",
        "transforms.nothing.type": f"{TRANSFORMS}InsertHeader",
        "transforms.nothing.header": "nothing",
        "transforms.nothing.value.literal": "null",
        "header.converter": "org.apache.kafka.connect.storage.SimpleHeaderConverter",
    }
    java, flow, mirrorflow = both(east, west, tmp_path, topics, lines)
    for alias in (east.name, flow.alias):
        for name in ("noise", "orders"):
            west.create_topic(f"{run}.{alias}.{name}", partitions=2)
    with java, mirrorflow:
        java.wait_until_replicated(topics[2], 200)
        java.wait_until_replicated(topics[0], 200, remote=lambda _: f"{run}.east.orders")
        mirrorflow.wait_until_caught_up(partitions=4)

        for name in (f"{run}.{{}}.orders", f"{run}.{{}}.noise", f"{{}}.{topics[2]}"):
            by_java = read(west, name.format("east"))
            by_mirrorflow = read(west, name.format(flow.alias))
            for java_content, mirrorflow_content in zip(by_java, by_mirrorflow, strict=True):
                assert java_content == mirrorflow_content
        assert len(read(west, f"{run}.{flow.alias}.orders")) == 200
        assert [] == read(west, f"{run}.{flow.alias}.noise")


def test_headers_are_unchanged_with_mm2s_own_converter(
    east: KafkaCluster, west: KafkaCluster, tmp_path: Path
) -> None:
    """ByteArrayConverter is the converter of Java's dedicated mode.

    The headers have bytes that are not text, repeated names, and nulls.
    """
    topic = east.create_topic(f"smt-{uuid.uuid4().hex[:6]}", partitions=2)
    load(east, topic)
    lines = {
        "transforms": "out",
        "transforms.out.type": f"{TRANSFORMS}DropHeaders",
        "transforms.out.headers": "secret",
    }
    java, flow, mirrorflow = both(east, west, tmp_path, [topic], lines)
    with java, mirrorflow:
        java.wait_until_replicated(topic, 200)
        mirrorflow.wait_until_caught_up(partitions=2)
        metrics = mirrorflow.metrics()

    assert read(west, f"{east.name}.{topic}") == read(west, flow.remote(topic))
    assert read(west, flow.remote(topic)) != read(east, topic)
    assert 'path="reencoded"' in metrics


def test_changed_transformations_apply_to_later_records_only(
    east: KafkaCluster, west: KafkaCluster, tmp_path: Path
) -> None:
    """A header changes after kill -9 on a compacted topic, and a name changes after a stop.

    Each record is copied once, with its setting.
    """
    topic = east.create_topic(f"smt-{uuid.uuid4().hex[:6]}", config={"cleanup.policy": "compact"})
    flow = Flow.new(east, west, tmp_path, connector={"offset.flush.interval.ms": "3600000"})
    written = 0

    def with_lines(lines: Mapping[str, str], count: int, *, stops: bool = False) -> None:
        nonlocal written
        produce(
            east,
            topic,
            [(0, time.time_ns() // 1_000_000, b"%d" % i, b"v", []) for i in range(written, written + count)],
        )
        written += count
        process = flow.replicator(topic, lines)
        process.start()
        process.wait_until_caught_up()
        if stops:
            assert process.stop() == 0
        else:
            process.kill()

    header = {
        "transforms": "in",
        "transforms.in.type": f"{TRANSFORMS}InsertHeader",
        "transforms.in.header": "run",
    }
    with_lines(header | {"transforms.in.value.literal": "one"}, 50)
    with_lines(header | {"transforms.in.value.literal": "one"}, 50)
    with_lines(header | {"transforms.in.value.literal": "two"}, 50)
    with_lines({}, 50, stops=True)
    renamed = f"other.{topic}"
    with_lines({"transforms": "r", **regex_router("r", r".*\.(.*)", "other.$1")}, 50)

    copies = read(west, flow.remote(topic))
    assert [b"%d" % i for i in range(200)] == [key for _, _, key, _, _ in copies]
    runs = [dict(headers).get("run") for _, _, _, _, headers in copies]
    assert [b"one"] * 100 + [b"two"] * 50 + [None] * 50 == runs
    assert [b"%d" % i for i in range(200, 250)] == [key for _, _, key, _, _ in read(west, renamed)]


def test_two_topics_never_share_one_copy(east: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> None:
    """The first topic is copied, and the second one reports why it is not.

    This holds after a restart and after the first is deleted.
    """
    run = uuid.uuid4().hex[:6]
    first = east.create_topic(f"smt-{run}-b")
    flow = Flow.new(
        east,
        west,
        tmp_path,
        connector={"transforms": "r", **regex_router("r", rf".*smt-{run}-.", f"one-{run}")},
    )
    load_one(east, first, 30)
    process = flow.replicator(f"smt-{run}-.*")
    with process:
        process.wait_for_copy(west, f"one-{run}", 30)
        second = east.create_topic(f"smt-{run}-a")
        load_one(east, second, 70)
        sentence = (
            f"Topic {second} is not copied: its copy would have the name of the copy of {first}, one-{run}."
        )
        wait_until(
            "the second topic is reported",
            lambda: sentence in process.log_text(),
        )
        load_one(east, first, 30)
        process.wait_for_copy(west, f"one-{run}", 60)
        process.stop()
    east.delete_topic(first)
    with flow.replicator(f"smt-{run}-.*") as restarted:
        stopped = restarted.wait_for_phase("stopped", second)

    assert stopped["reason"] == "TargetTaken"
    assert len(read(west, f"one-{run}")) == 60


def load_one(cluster: KafkaCluster, topic: str, count: int) -> None:
    """Produces *count* records to partition 0."""
    now_ms = time.time_ns() // 1_000_000
    produce(cluster, topic, [(0, now_ms, b"k", b"v", []) for _ in range(count)])
