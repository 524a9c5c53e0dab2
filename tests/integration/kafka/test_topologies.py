"""The topologies of examples/ on three real clusters. Each record reaches its last cluster once, and none returns.

Each topology runs as mm2.properties and as converted MirrorFlows. Flows copy every topic, so each test starts with
empty clusters.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from mirrorflow_core.java.properties import format_properties
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.mm2 import MirrorMaker
from tests.harness.kafka.processes import wait_until
from tests.harness.replicator import Replicator
from tests.integration.kafka.comparing import assert_copied, produce
from tests.integration.kafka.groups import group_offsets, put_group, translated_by_java
from tests.integration.kafka.running import RunningCommand, beats

pytestmark = pytest.mark.more

EXAMPLES = Path(__file__).parents[3] / "examples"
RUN_S = 180.0  # ten seconds on an idle machine
QUICK = "refresh.topics.interval.seconds = 1\nmirrorflow.http.listeners = http://127.0.0.1:0\n"
EVERY_SECOND = '{emit.checkpoints.interval.seconds: "1", sync.group.offsets.interval.seconds: "1"}'
Sites = dict[str, KafkaCluster]


@pytest.fixture(scope="module")
def three() -> Iterator[Sites]:
    with KafkaCluster(name="a") as a, KafkaCluster(name="b") as b, KafkaCluster(name="c") as c:
        yield {"a": a, "b": b, "c": c}


@pytest.fixture
def sites(three: Sites) -> Iterator[Sites]:
    """Three clusters whose topics are deleted after the test."""
    yield three
    for cluster in three.values():
        for topic in own_topics(cluster):
            cluster.delete_topic(topic)


def own_topics(cluster: KafkaCluster) -> set[str]:
    return {name for name in cluster.topics() if not name.startswith("__")}


def copies(cluster: KafkaCluster) -> set[str]:
    """Returns the topics with users' records, which are source topics and copies."""
    return {name for name in own_topics(cluster) if not name.startswith("mm2-") and "internal" not in name}


def example(folder: str, addresses: dict[str, KafkaCluster]) -> str:
    """Returns the mm2.properties of an example with real addresses and without heartbeats."""
    text = (EXAMPLES / folder / "mm2.properties").read_text()
    for alias, cluster in addresses.items():
        text = text.replace(f"kafka-{alias}:9092", cluster.bootstrap)
    return text + "\nemit.heartbeats.enabled = false\n"


def write(cluster: KafkaCluster, topic: str, count: int, *, first: int = 0) -> None:
    now_ms = time.time_ns() // 1_000_000
    produce(cluster, topic, [(0, now_ms + n, b"%d" % n, b"x", []) for n in range(first, first + count)])


def mirrorflow(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).parent / "mirrorflow"
    return subprocess.run([command, *arguments], capture_output=True, text=True, timeout=RUN_S, check=False)


def convert(text: str, folder: Path) -> list[Path]:
    """Converts the mm2.properties *text*, and returns the flow files in the order of the file."""
    (folder / "mm2.properties").write_text(text)
    result = mirrorflow("convert", folder / "mm2.properties", "-o", folder / "flows")
    assert 0 == result.returncode, result.stderr
    return [Path(line) for line in result.stdout.splitlines()]


def run_until_caught_up(flow: Path) -> None:
    result = mirrorflow("run", "-f", flow, "--until-caught-up", "--log", flow.with_suffix(".log"))
    assert 0 == result.returncode, (
        f"{result.stdout}{result.stderr}{flow.with_suffix('.log').read_text()[-4000:]}"
    )


def test_a_chain_of_three_copies_each_record_once(sites: Sites, tmp_path: Path) -> None:
    """b receives a.orders, and c receives b.a.orders.

    The converted MirrorFlows continue at the positions of the mm2.properties flows.
    """
    a, b, c = sites.values()
    text = example("chain-of-three", sites)
    write(a, a.create_topic("orders"), 50)
    with Replicator(form="mm2", files=(text + QUICK,), folder=tmp_path) as chain:
        chain.wait_for_copy(c, "b.a.orders", 50)
        assert 0 == chain.stop()
    write(a, "orders", 30, first=50)

    for flow in convert(text, tmp_path):
        run_until_caught_up(flow)

    assert_copied(a, "orders", b, "a.orders", count=80)
    assert_copied(a, "orders", c, "b.a.orders", count=80)
    assert ({"orders"}, {"a.orders"}, {"b.a.orders"}) == (copies(a), copies(b), copies(c))


def test_active_active_copies_nothing_back(sites: Sites, tmp_path: Path) -> None:
    """Each cluster has its own topics and one copy of those of the other, also after a refresh that lists the copies."""
    east, west, _ = sites.values()
    for cluster, topic in ((east, "orders"), (west, "bills")):
        write(cluster, cluster.create_topic(topic), 20)
    text = example("active-active", {"east": east, "west": west})
    with Replicator(form="mm2", files=(text + QUICK,), folder=tmp_path) as both:
        both.wait_for_copy(west, "east.orders", 20)
        both.wait_for_copy(east, "west.bills", 20)
        for cluster in (east, west):
            write(cluster, cluster.create_topic("late"), 5)
        both.wait_for_copy(west, "east.late", 5)
        both.wait_for_copy(east, "west.late", 5)
        assert 0 == both.stop()
    for flow in convert(text, tmp_path):
        run_until_caught_up(flow)

    assert_copied(east, "orders", west, "east.orders", count=20)
    assert_copied(west, "bills", east, "west.bills", count=20)
    assert {"orders", "late", "west.bills", "west.late"} == copies(east)
    assert {"bills", "late", "east.orders", "east.late"} == copies(west)


def test_a_converted_flow_continues_at_the_positions_of_java(sites: Sites, tmp_path: Path) -> None:
    """Conversion keeps the names by which the positions of Java's MirrorMaker 2 are found."""
    a, b, _ = sites.values()
    write(a, a.create_topic("orders"), 40)
    with MirrorMaker(source=a, target=b, topics="orders") as java:
        java.wait_until_replicated("orders", 40)
        java.stop()
    write(a, "orders", 10, first=40)

    (flow,) = convert(format_properties(java.all_properties()), tmp_path)
    run_until_caught_up(flow)

    assert_copied(a, "orders", b, "a.orders", count=50)


def test_plan_finds_loops_by_cluster_id_and_conflicts_by_topic(sites: Sites, tmp_path: Path) -> None:
    """Two addresses of one cluster make a loop. Two flows that keep names conflict only if both have the topic."""
    a, b, c = sites.values()
    a.create_topic("orders")
    b.create_topic("payments")
    port = {cluster.name: cluster.bootstrap.rpartition(":")[2] for cluster in (a, b, c)}

    def identity_flow(source: str, target: str, *, host: str = "127.0.0.1") -> Path:
        path = tmp_path / f"{source}-{target}-{host}.yaml"
        path.write_text(
            f"apiVersion: mirrorflow.io/v1alpha1\nkind: MirrorFlow\nmetadata: {{name: {source}-to-{target}}}\n"
            f"spec:\n  source: {{alias: {source}, bootstrapServers: ['{host}:{port[source[0]]}']}}\n"
            f"  target: {{alias: {target}, bootstrapServers: ['{host}:{port[target[0]]}']}}\n"
            "  topics: {naming: {policy: Identity}}\n"
        )
        return path

    first, second = identity_flow("a", "c"), identity_flow("b", "c")
    back = identity_flow("c2", "a2", host="localhost")
    separate = mirrorflow("plan", "-f", first, "-f", second)
    loop = mirrorflow("plan", "-f", first, "-f", back)
    b.create_topic("orders")
    conflicting = mirrorflow("plan", "-f", first, "-f", second)

    assert (0, 1, 1) == (separate.returncode, loop.returncode, conflicting.returncode), separate.stderr
    assert "Flows a-to-c and c2-to-a2 make a loop: orders on a/a2 -> orders on c/c2 (a-to-c)" in loop.stderr
    assert "Flows a-to-c and b-to-c both write to topic orders of cluster c: orders of a (a-to-c)" in (
        conflicting.stderr
    )


def test_active_passive_translates_groups_and_emits_heartbeats(sites: Sites, tmp_path: Path) -> None:
    """`mirrorflow run` of the example runs all three connectors. Heartbeats arrive on both clusters."""
    primary, backup, _ = sites.values()
    text = (EXAMPLES / "active-passive" / "primary-to-backup.yaml").read_text()
    for alias, cluster in (("primary", primary), ("backup", backup)):
        text = text.replace(f"kafka-{alias}:9092", cluster.bootstrap)
    flow = tmp_path / "flow.yaml"
    flow.write_text(text + "    checkpoint:\n      config: " + EVERY_SECOND)
    write(primary, primary.create_topic("orders-eu"), 50)
    put_group(primary, "readers", {("orders-eu", 0): 50})

    with RunningCommand(flow, tmp_path) as run:
        wait_until("the group is translated", lambda: run.moved_offsets)
        for cluster in (primary, backup):
            wait_until("heartbeats arrive", partial(beats, cluster))
        expected = {("primary.orders-eu", 0): 50}
        wait_until(
            "the target's group has the source's offset", lambda: group_offsets(backup, "readers") == expected
        )
        assert 130 == run.stop(), run.output()

    assert_copied(primary, "orders-eu", backup, "primary.orders-eu", count=50)
    assert expected == translated_by_java(backup, "primary", "readers")


@pytest.fixture
def fourth() -> Iterator[KafkaCluster]:
    with KafkaCluster(name="d") as cluster:
        yield cluster


def test_fan_out_copies_the_topics_of_each_site(sites: Sites, fourth: KafkaCluster, tmp_path: Path) -> None:
    """Two sites receive all topics, and the third site one kind of them.

    Nothing is copied back. Then the MirrorFlows continue.
    """
    a, b, c = sites.values()
    text = example("fan-out", {**sites, "hub": fourth})
    for topic in ("orders", "public-prices"):
        write(fourth, fourth.create_topic(topic), 40)
    with Replicator(form="mm2", files=(text + QUICK,), folder=tmp_path) as fan:
        for site in (a, b, c):
            fan.wait_for_copy(site, "hub.public-prices", 40)
        for site in (a, b):
            fan.wait_for_copy(site, "hub.orders", 40)
        assert 0 == fan.stop()
    write(fourth, "public-prices", 10, first=40)
    for flow in convert(text, tmp_path):
        run_until_caught_up(flow)

    for site in (a, b, c):
        assert_copied(fourth, "public-prices", site, "hub.public-prices", count=50)
    assert copies(a) == copies(b) == {"hub.orders", "hub.public-prices"}
    assert ({"hub.public-prices"}, {"orders", "public-prices"}) == (copies(c), copies(fourth))


def test_aggregation_keeps_topics_with_equal_names_separate(
    sites: Sites, fourth: KafkaCluster, tmp_path: Path
) -> None:
    """Three sites with equal topic names have three copies. Then the MirrorFlows continue."""
    text = example("aggregation", {**sites, "hub": fourth})
    for number, site in enumerate(sites.values(), 1):
        write(site, site.create_topic("orders"), 10 * number)
    with Replicator(form="mm2", files=(text + QUICK,), folder=tmp_path) as aggregation:
        for number, alias in enumerate(sites, 1):
            aggregation.wait_for_copy(fourth, f"{alias}.orders", 10 * number)
        assert 0 == aggregation.stop()
    for site in sites.values():
        write(site, "orders", 5, first=100)
    for flow in convert(text, tmp_path):
        run_until_caught_up(flow)

    for number, (alias, site) in enumerate(sites.items(), 1):
        assert_copied(site, "orders", fourth, f"{alias}.orders", count=10 * number + 5)
        assert {"orders"} == copies(site)
    assert {f"{alias}.orders" for alias in sites} == copies(fourth)


def test_request_response_copies_requests_one_way_and_responses_back(sites: Sites, tmp_path: Path) -> None:
    """A service on the other cluster reads the copied requests and writes responses, which are copied back."""
    front, back, _ = sites.values()
    text = example("request-response", {"front": front, "back": back})
    write(front, front.create_topic("requests-1"), 20)
    write(front, front.create_topic("private"), 5)
    with Replicator(form="mm2", files=(text + QUICK,), folder=tmp_path) as both:
        both.wait_for_copy(back, "front.requests-1", 20)
        write(back, back.create_topic("responses-1"), 20)
        both.wait_for_copy(front, "back.responses-1", 20)
        assert 0 == both.stop()
    for flow in convert(text, tmp_path):
        run_until_caught_up(flow)

    assert_copied(front, "requests-1", back, "front.requests-1", count=20)
    assert_copied(back, "responses-1", front, "back.responses-1", count=20)
    assert {"requests-1", "private", "back.responses-1"} == copies(front)
    assert {"responses-1", "front.requests-1"} == copies(back)


def test_a_migration_keeps_topic_names_and_translates_groups(sites: Sites, tmp_path: Path) -> None:
    """With the identity policy, the copy has the name of the source topic, and the group continues in it."""
    old, new, _ = sites.values()
    text = example("identity", {"old": old, "new": new}) + "old->new.offset.lag.max = 0\n"
    write(old, old.create_topic("orders"), 60)
    put_group(old, "billing", {("orders", 0): 60})
    short_intervals = "".join(
        f"{key}.interval.seconds = 1\n"
        for key in ("refresh.groups", "emit.checkpoints", "sync.group.offsets")
    )
    with Replicator(form="mm2", files=(text + QUICK + short_intervals,), folder=tmp_path) as migration:
        migration.wait_for_copy(new, "orders", 60)
        wait_until(
            "the group is translated",
            lambda: group_offsets(new, "billing") == {("orders", 0): 60},
        )
        assert 0 == migration.stop()
    write(old, "orders", 10, first=60)
    for flow in convert(text, tmp_path):
        run_until_caught_up(flow)

    assert_copied(old, "orders", new, "orders", count=70)
    assert {"orders"} == copies(new)
