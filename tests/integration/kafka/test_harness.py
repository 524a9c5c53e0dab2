"""The harness for brokers works. Every other integration test relies on it."""

import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from tests.harness.kafka import tools
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.installation import OTHER_VERSIONS
from tests.harness.kafka.listeners import LOOPBACK
from tests.harness.kafka.mm2 import MirrorMaker
from tests.harness.kafka.processes import cpu_s, pss_bytes, wait_until
from tests.harness.kafka.proxy import Proxy

pytestmark = pytest.mark.more

RESPONSE_S = 10.0
ROUND_TRIP_MS = 80
LATE_MS = 1000
SECURE = ("SSL", "MTLS", "SASL_PLAINTEXT", "SASL_SSL", "OAUTH")


@pytest.fixture(scope="module")
def secure() -> Iterator[KafkaCluster]:
    """A broker with every kind of listener."""
    with KafkaCluster(name="secure", listeners=SECURE, authorizer=True) as cluster:
        for user in ("mirror", "CN=mirror"):
            cluster.allow("ALL", "TOPIC", "allowed", user=user)
        cluster.create_topic("allowed")
        cluster.create_topic("denied")
        yield cluster


@pytest.fixture(scope="module")
def fragile() -> Iterator[KafkaCluster]:
    """A broker that a test may stop and start."""
    with KafkaCluster(name="fragile") as cluster:
        yield cluster


def test_load_and_dump_agree(east: KafkaCluster, unique_topic: Callable[[], str]):
    """Keys, nulls, ordered headers and timestamps are read as they were written."""
    topic = east.create_topic(unique_topic(), partitions=2, config=tools.FOREVER)

    tools.load(east, topic, 6, size_bytes=20, codec="lz4", keys=True, headers=3, null_every=3, timestamp_ms=0)
    topic_records = tools.records(east, topic)

    assert [record.key for record in topic_records] == [b"0", b"2", b"4", b"1", b"3", b"5"]
    assert [record.value is None for record in topic_records] == [False, True, False, False, False, True]
    assert topic_records[0].headers == (("h0", b"0"), ("h0", b"1"), ("h1", None))
    assert {(0, "CreateTime")} == {(record.timestamp, record.timestamp_type) for record in topic_records}
    assert east.end_offsets(topic) == {0: 3, 1: 3}


def test_topics_have_equal_digests_only_if_their_records_are_equal(
    east: KafkaCluster, unique_topic: Callable[[], str]
):
    """Equal records have one digest in any batches. A different order has a different digest."""
    topics = [east.create_topic(unique_topic(), config=tools.FOREVER) for _ in range(3)]

    for topic, seed, single in zip(topics, (1, 1, 2), (False, True, False), strict=True):
        tools.load(east, topic, 50, timestamp_ms=1000, seed=seed, single_record_batches=single)
    first, rebatched, different = (tools.digest(east, topic) for topic in topics)

    assert first[0][0] == 50
    assert first == rebatched
    assert first != different


def test_only_read_uncommitted_consumers_see_aborted_records(
    east: KafkaCluster, unique_topic: Callable[[], str]
):
    """Every second of four transactions is aborted, so that half of the records are committed."""
    topic = east.create_topic(unique_topic())

    loaded = tools.load(east, topic, 40, transactional_id=topic, transaction_records=10, abort_every=2)

    assert loaded.aborted == 20
    assert tools.digest(east, topic)[0][0] == 40
    assert tools.digest(east, topic, isolation="read_committed")[0][0] == 20


@pytest.mark.faults
def test_a_killed_broker_restarts_with_its_data(fragile: KafkaCluster):
    """After kill -9 and after a graceful stop, the ports and the records are the same."""
    topic, address = fragile.create_topic("kept"), fragile.bootstrap
    tools.load(fragile, topic, 100)
    before = tools.digest(fragile, topic)

    fragile.broker(1).kill()
    assert not fragile.broker(1).running
    fragile.broker(1).start()
    assert before == tools.digest(fragile, topic)

    fragile.broker(1).stop()
    fragile.broker(1).start()
    assert before == tools.digest(fragile, topic)
    assert address == fragile.bootstrap


@pytest.mark.faults
@pytest.mark.parametrize("end", ["kill", "stop"])
def test_requests_to_leaders_work_as_soon_as_their_broker_has_started(fragile: KafkaCluster, end: str):
    """After a broker's start, an admin call that needs leaders waits for them."""
    topic = fragile.create_topic(f"led-{end}", partitions=2)
    tools.load(fragile, topic, 100, partition=0)

    getattr(fragile.broker(1), end)()
    fragile.broker(1).start()
    fragile.delete_records(topic, {0: 10})
    assert {0: 10, 1: 0} == fragile.start_offsets(topic)

    getattr(fragile.broker(1), end)()
    fragile.broker(1).start()
    assert {0: 100, 1: 0} == fragile.end_offsets(topic)


@pytest.mark.faults
def test_a_new_leader_is_elected_when_the_leader_is_killed_or_frozen():
    """In a cluster of three brokers, a different replica leads. All are in the metadata after the first one is back."""
    with KafkaCluster(name="three", brokers=3) as cluster:
        cluster.create_topic("led", replication_factor=3)
        first = cluster.leader("led", 0)

        cluster.broker(first).kill()
        second = wait_until("there is a new leader", lambda: _other_leader(cluster, first))
        cluster.broker(first).start()
        cluster.wait_for_brokers(3)

        cluster.broker(second).freeze()
        third = wait_until("there is a third leader", lambda: _other_leader(cluster, second))
        cluster.broker(second).thaw()
        cluster.wait_for_brokers(3)
        assert {1, 2, 3} >= {first, second, third}


@pytest.mark.java
@pytest.mark.parametrize("version", OTHER_VERSIONS)
def test_each_supported_kafka_release_runs(version):
    """Every release is started with the same call, has transactions and an authorizer, and keeps its data after a kill."""
    with KafkaCluster(name="other", version=version, authorizer=True) as cluster:
        cluster.create_topic("t")
        cluster.allow("READ", "TOPIC", "t")
        tools.load(cluster, "t", 10, transactional_id="t", abort_every=2)
        cluster.broker(1).kill()
        cluster.broker(1).start()

        assert tools.digest(cluster, "t")[0][0] == 10


@pytest.mark.faults
def test_the_proxy_delays_cuts_and_restores_connections():
    """A request takes the round trip, a cut connection fails at once, and a restored one works again."""
    with KafkaCluster(name="far", proxied=True) as cluster:
        cluster.create_topic("t")
        client = AdminClient(cluster.client("PROXIED"))
        client.list_topics(timeout=RESPONSE_S)

        cluster.proxy(1).delay(ROUND_TRIP_MS // 2)
        begin = time.monotonic()
        client.list_topics(timeout=RESPONSE_S)
        assert time.monotonic() - begin >= ROUND_TRIP_MS / 1000

        cluster.proxy(1).cut()
        with pytest.raises(KafkaException):
            client.list_topics(timeout=1)
        cluster.proxy(1).heal()
        assert "t" in client.list_topics(timeout=RESPONSE_S).topics

        cluster.proxy(1).blackhole()
        with pytest.raises(KafkaException):
            client.list_topics(timeout=1)
        cluster.proxy(1).heal()
        assert "t" in client.list_topics(timeout=RESPONSE_S).topics


@pytest.mark.faults
def test_the_proxy_delivers_bytes_in_flight_late_after_connections_broke(tmp_path: Path):
    """The client gets no response. Its next connection overtakes the broken one, whose bytes reach the broker later."""
    with socket.create_server((LOOPBACK, 0)) as server:
        proxy = Proxy.start({1: server.getsockname()[1]}, log=tmp_path / "proxy.log")
        address = (LOOPBACK, proxy.routes[1].port)
        with socket.create_connection(address) as client, server.accept()[0] as broken:
            client.sendall(b"in time")
            assert broken.recv(1024) == b"in time"

            proxy.routes[1].make_late(LATE_MS)
            client.sendall(b"late")
            broken.sendall(b"lost")
            assert client.recv(1024) == b""

            with socket.create_connection(address) as reconnected, server.accept()[0] as direct:
                reconnected.sendall(b"again")
                assert direct.recv(1024) == b"again"
                assert not select.select([broken], [], [], 0)[0]
                assert b"".join(iter(partial(broken.recv, 1024), b"")) == b"late"
        proxy.close()


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [
        ("MTLS", "PLAIN"),
        ("SASL_PLAINTEXT", "PLAIN"),
        ("SASL_PLAINTEXT", "SCRAM-SHA-256"),
        ("SASL_SSL", "SCRAM-SHA-512"),
        ("OAUTH", "OAUTHBEARER"),
    ],
)
def test_each_listener_authenticates_its_user(secure: KafkaCluster, listener: str, mechanism: str):
    """Each kind of login may access what its ACL allows, and nothing else."""
    producer = Producer(secure.client(listener, mechanism=mechanism))
    errors: list[KafkaError | None] = []

    for topic in ("allowed", "denied"):
        producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
        producer.flush(RESPONSE_S)

    assert [error and error.code() for error in errors] == [None, KafkaError.TOPIC_AUTHORIZATION_FAILED]


def test_a_wrong_password_is_refused(secure: KafkaCluster):
    client = secure.client("SASL_SSL", mechanism="SCRAM-SHA-512") | {"sasl.password": "wrong"}
    errors: list[KafkaError] = []
    consumer = Consumer(client | {"group.id": "g", "error_cb": errors.append})

    with pytest.raises(KafkaException):
        consumer.list_topics(timeout=2)
    consumer.close()

    assert KafkaError._AUTHENTICATION in {error.code() for error in errors}


@pytest.mark.parametrize("kind", ["PKCS12", "JKS", "PEM"])
def test_java_reads_each_store_type(secure: KafkaCluster, kind: str):
    """Java connects with mutual TLS and each of the created stores."""
    certificates = secure.certificates
    assert certificates is not None
    client = secure.java_client("MTLS")
    plain = {name: value for name, value in client.items() if not name.startswith("ssl.")}

    loaded = tools.load(
        secure,
        "allowed",
        1,
        producer=plain | certificates.truststore_properties(kind) | certificates.keystore_properties(kind),
    )

    assert loaded.records == 1


def test_mm2_replicates_a_topic(east: KafkaCluster, west: KafkaCluster, unique_topic: Callable[[], str]):
    """Java's MirrorMaker 2 copies the topic, has measurable cost, and ends when stopped."""
    topic = east.create_topic(unique_topic(), partitions=2)
    tools.load(east, topic, 100, keys=True, headers=2)

    with MirrorMaker(source=east, target=west, topics=topic) as mm2:
        mm2.wait_until_replicated(topic, 100)
        assert cpu_s(mm2.pid) > 0
        assert pss_bytes(mm2.pid) > 100 << 20
        mm2.stop()

    assert tools.digest(east, topic) == tools.digest(west, f"east.{topic}")


def test_a_broker_ends_with_its_parent():
    """After a kill -9 of the tests, no broker remains on the machine."""
    script = (
        "from tests.harness.kafka.cluster import KafkaCluster\n"
        "import sys, time\n"
        "with KafkaCluster(name='orphan') as cluster:\n"
        "    print(cluster.broker(1).pid, cluster.folder, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    assert parent.stdin is not None
    pid, folder = parent.stdout.readline().split()

    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()

    wait_until("the broker is gone", lambda: not _alive(int(pid)))
    shutil.rmtree(folder)


def _other_leader(cluster: KafkaCluster, old: int) -> int:
    """Returns the leader if it has changed, and 0 until then."""
    try:
        leader = cluster.leader("led", 0)
    except KafkaException:
        return 0
    return leader if leader not in {-1, old} else 0


def _alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
