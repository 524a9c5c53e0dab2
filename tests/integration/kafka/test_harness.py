"""The harness does what its names say: every other integration test stands on this."""

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
from tests.harness.kafka.installation import OLD_VERSION
from tests.harness.kafka.listeners import LOOPBACK
from tests.harness.kafka.mm2 import MirrorMaker
from tests.harness.kafka.processes import cpu_s, pss_bytes, wait_until
from tests.harness.kafka.proxy import Proxy

pytestmark = pytest.mark.more

ANSWER_S = 10.0
ROUND_TRIP_MS = 80
LATE_MS = 1000
SECURE = ("SSL", "MTLS", "SASL_PLAINTEXT", "SASL_SSL", "OAUTH")


@pytest.fixture(scope="module")
def secure() -> Iterator[KafkaCluster]:
    """A broker with every kind of door."""
    with KafkaCluster(name="secure", listeners=SECURE, authorizer=True) as cluster:
        for user in ("mirror", "CN=mirror"):
            cluster.allow("ALL", "TOPIC", "allowed", user=user)
        cluster.create_topic("allowed")
        cluster.create_topic("denied")
        yield cluster


@pytest.fixture(scope="module")
def fragile() -> Iterator[KafkaCluster]:
    """A broker that a test may end, and starts again."""
    with KafkaCluster(name="fragile") as cluster:
        yield cluster


def test_load_and_dump_agree(east: KafkaCluster, unique_topic: Callable[[], str]):
    """Keys, nulls, headers in order and timestamps are read as they were written."""
    topic = east.create_topic(unique_topic(), partitions=2, config=tools.FOREVER)

    tools.load(east, topic, 6, size_bytes=20, codec="lz4", keys=True, headers=3, null_every=3, timestamp_ms=0)
    found = tools.records(east, topic)

    assert [record.key for record in found] == [b"0", b"2", b"4", b"1", b"3", b"5"]
    assert [record.value is None for record in found] == [False, True, False, False, False, True]
    assert found[0].headers == (("h0", b"0"), ("h0", b"1"), ("h1", None))
    assert {(0, "CreateTime")} == {(record.timestamp, record.timestamp_type) for record in found}
    assert east.end_offsets(topic) == {0: 3, 1: 3}


def test_digest_distinguishes_equal_from_different(east: KafkaCluster, unique_topic: Callable[[], str]):
    """Two topics of the same records have one digest, whatever their batches; another order has another."""
    topics = [east.create_topic(unique_topic(), config=tools.FOREVER) for _ in range(3)]

    for topic, seed, single in zip(topics, (1, 1, 2), (False, True, False), strict=True):
        tools.load(east, topic, 50, timestamp_ms=1000, seed=seed, single_record_batches=single)
    same, again, other = (tools.digest(east, topic) for topic in topics)

    assert same[0][0] == 50
    assert same == again
    assert same != other


def test_aborted_records_are_only_seen_uncommitted(east: KafkaCluster, unique_topic: Callable[[], str]):
    """Every second of four transactions is aborted: half of the records is committed."""
    topic = east.create_topic(unique_topic())

    loaded = tools.load(east, topic, 40, transactional_id=topic, transaction_records=10, abort_every=2)

    assert loaded.aborted == 20
    assert tools.digest(east, topic)[0][0] == 40
    assert tools.digest(east, topic, isolation="read_committed")[0][0] == 20


@pytest.mark.faults
def test_killed_broker_comes_back_with_its_data(fragile: KafkaCluster):
    """After kill -9 and after a clean stop the ports and the records are what they were."""
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
def test_leaders_answer_as_soon_as_their_broker_has_started(fragile: KafkaCluster, end: str):
    """An admin call that needs leaders waits for them, however fresh the broker's start."""
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
def test_leader_moves_when_it_is_killed_or_frozen():
    """In a cluster of three another replica leads, and all are in the metadata again when the first is back."""
    with KafkaCluster(name="three", brokers=3) as cluster:
        cluster.create_topic("led", replication_factor=3)
        first = cluster.leader("led", 0)

        cluster.broker(first).kill()
        second = wait_until("a new leader", lambda: _other_leader(cluster, first))
        cluster.broker(first).start()
        cluster.wait_for_brokers(3)

        cluster.broker(second).freeze()
        third = wait_until("a third leader", lambda: _other_leader(cluster, second))
        cluster.broker(second).thaw()
        cluster.wait_for_brokers(3)
        assert {1, 2, 3} >= {first, second, third}


def test_old_release_runs():
    """Kafka 3.9 is started by the same call."""
    with KafkaCluster(name="old", version=OLD_VERSION) as cluster:
        cluster.create_topic("t")
        tools.load(cluster, "t", 10)

        assert tools.digest(cluster, "t")[0][0] == 10


@pytest.mark.faults
def test_proxy_delays_cuts_and_heals():
    """A request takes the round trip, a cut connection fails at once, a healed one works again."""
    with KafkaCluster(name="far", proxied=True) as cluster:
        cluster.create_topic("t")
        client = AdminClient(cluster.client("PROXIED"))
        client.list_topics(timeout=ANSWER_S)

        cluster.proxy(1).delay(ROUND_TRIP_MS // 2)
        begin = time.monotonic()
        client.list_topics(timeout=ANSWER_S)
        assert time.monotonic() - begin >= ROUND_TRIP_MS / 1000

        cluster.proxy(1).cut()
        with pytest.raises(KafkaException):
            client.list_topics(timeout=1)
        cluster.proxy(1).heal()
        assert "t" in client.list_topics(timeout=ANSWER_S).topics

        cluster.proxy(1).blackhole()
        with pytest.raises(KafkaException):
            client.list_topics(timeout=1)
        cluster.proxy(1).heal()
        assert "t" in client.list_topics(timeout=ANSWER_S).topics


@pytest.mark.faults
def test_proxy_delivers_late_what_was_on_its_way_when_connections_broke(tmp_path: Path):
    """The client sees no answer; its next connection overtakes the broken one, of which the broker gets all, then the end."""
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

            with socket.create_connection(address) as again, server.accept()[0] as direct:
                again.sendall(b"again")
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
def test_listener_lets_its_user_in(secure: KafkaCluster, listener: str, mechanism: str):
    """Each kind of login reaches what its ACL allows and nothing else."""
    producer = Producer(secure.client(listener, mechanism=mechanism))
    answers: list[KafkaError | None] = []

    for topic in ("allowed", "denied"):
        producer.produce(topic, b"x", on_delivery=lambda error, _: answers.append(error))
        producer.flush(ANSWER_S)

    assert [error and error.code() for error in answers] == [None, KafkaError.TOPIC_AUTHORIZATION_FAILED]


def test_wrong_password_is_refused(secure: KafkaCluster):
    """A client with another password does not get in."""
    client = secure.client("SASL_SSL", mechanism="SCRAM-SHA-512") | {"sasl.password": "wrong"}
    errors: list[KafkaError] = []
    consumer = Consumer(client | {"group.id": "g", "error_cb": errors.append})

    with pytest.raises(KafkaException):
        consumer.list_topics(timeout=2)
    consumer.close()

    assert KafkaError._AUTHENTICATION in {error.code() for error in errors}


@pytest.mark.parametrize("kind", ["PKCS12", "JKS", "PEM"])
def test_java_reads_each_kind_of_store(secure: KafkaCluster, kind: str):
    """The stores that are made are stores to Java: it comes in by mutual TLS with each kind."""
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
    """Java's MirrorMaker 2 copies the topic, costs something, and ends when asked."""
    topic = east.create_topic(unique_topic(), partitions=2)
    tools.load(east, topic, 100, keys=True, headers=2)

    with MirrorMaker(source=east, target=west, topics=topic) as mm2:
        mm2.wait_until_replicated(topic, 100)
        assert cpu_s(mm2.pid) > 0
        assert pss_bytes(mm2.pid) > 100 << 20
        mm2.stop()

    assert tools.digest(east, topic) == tools.digest(west, f"east.{topic}")


def test_broker_dies_with_its_parent():
    """When the tests are killed with kill -9 no broker is left on the machine."""
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
    """The leader if it is another; 0 while it is not."""
    try:
        found = cluster.leader("led", 0)
    except KafkaException:
        return 0
    return found if found not in {-1, old} else 0


def _alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"
