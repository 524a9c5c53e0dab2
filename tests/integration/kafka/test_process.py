"""The process while Kafka cannot be reached, and its HTTPS: patience, few words, and REST that answers meanwhile."""

import json
import os
import signal
import socket
import ssl
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import free_port, wait_until
from tests.harness.kafka.tools import load
from tests.harness.replay import differences
from tests.harness.replicator import Replicator
from tests.unit.kafka.certificates import authority, signed

WAIT_S = 120.0
ATTEMPTS = 12  # connections that are tried, and refused, before the log is counted
SOURCE = {
    "name": "m",
    "connector.class": "MirrorSourceConnector",
    "source.cluster.alias": "east",
    "target.cluster.alias": "west",
    "source.cluster.bootstrap.servers": "127.0.0.1:1",
}
WORKER = {"bootstrap.servers": "127.0.0.1:1", "mirrorflow.http.listeners": "http://127.0.0.1:0"}


@contextmanager
def slamming() -> Iterator[tuple[int, list[int]]]:
    """A port whose connections are accepted and closed at once; its number, and one entry for each connection."""
    seen: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                seen.append(1)
                connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], seen
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_without_kafka_it_keeps_trying_and_says_so_once(tmp_path: Path):
    """REST answers with the state meanwhile; the log does not grow with the attempts; SIGTERM ends it in order."""
    with slamming() as (port, attempts):
        lines = SOURCE | {
            "source.cluster.bootstrap.servers": f"127.0.0.1:{port}",
            "topics": "orders",
        }
        patient = Replicator(
            form="standalone",
            files=(WORKER | {"bootstrap.servers": f"127.0.0.1:{free_port()}"}, lines),
            folder=tmp_path,
        )
        with patient:
            wait_until("it tries again and again", lambda: len(attempts) >= ATTEMPTS)
            wait_until(
                "REST says so",
                lambda: patient.rest("/connectors/m/status")[1]["connector"]["state"] == "FAILED",
            )
            trace = patient.rest("/connectors/m/status")[1]["connector"]["trace"]
            ready, health, alive = (patient.rest(path)[0] for path in ("/readyz", "/health", "/healthz"))
            replicating = patient.progress()["replicating"]
            tried, status = len(attempts), patient.stop()
            said = patient.log_text().splitlines()

    assert "cannot be reached at 127.0.0.1:" in trace
    assert (503, 503, 200) == (ready, health, alive)
    assert "Stuck" == replicating
    assert 0 == status
    assert len([line for line in said if "cannot be reached" in line]) < tried, "\n".join(said)
    assert [] == [line for line in said if "Traceback" in line or "is killed" in line]


@pytest.mark.faults
def test_it_begins_when_kafka_comes_back(east: KafkaCluster, tmp_path: Path, unique_topic):
    """A target that is down at the start is no reason to end."""
    topic = east.create_topic(unique_topic())
    with KafkaCluster(name="later") as later:
        node = later.broker(1)
        node.stop()
        with Replicator.standalone(east, later, topics=topic, folder=tmp_path) as patient:
            wait_until(
                "it says that the target is down",
                lambda: "Cluster later cannot be reached" in patient.log_text(),
            )
            node.start()
            wait_until("it is ready", lambda: patient.rest("/readyz")[0] == 200)
            assert (
                "RUNNING" == patient.rest("/connectors/MirrorSourceConnector/status")[1]["connector"]["state"]
            )


@pytest.mark.parametrize("prefix", ["", "listeners.https."])
def test_https_is_served_from_a_pkcs12_keystore(prefix: str, tmp_path: Path):
    """With its password by reference; a client that trusts the authority is answered."""
    (tmp_path / "server.p12").write_bytes(signed().pkcs12("store-secret", authority()))
    worker = WORKER | {
        "mirrorflow.http.listeners": "https://127.0.0.1:0",
        "config.providers": "env",
        "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        f"{prefix}ssl.keystore.location": str(tmp_path / "server.p12"),
        f"{prefix}ssl.keystore.password": "${env:STORE_PASSWORD}",
    }
    environment = {**os.environ, "STORE_PASSWORD": "store-secret"}
    with Replicator(
        form="standalone", files=(worker, SOURCE), folder=tmp_path, environment=environment
    ) as secure:
        trusting = ssl.create_default_context(cadata=authority().pem)
        with urllib.request.urlopen(f"{secure.url}/connectors", timeout=WAIT_S, context=trusting) as answer:
            assert ["m"] == json.loads(answer.read())


def test_what_partitions_did_is_written_for_a_replay(
    east: KafkaCluster, west: KafkaCluster, unique_topic, tmp_path: Path
):
    """When one stops, and on SIGUSR1."""
    stem = unique_topic()
    alias, folder = stem[-8:], tmp_path / "temporary"
    folder.mkdir()
    load(east, east.create_topic(f"{stem}-small"), 3_000, single_record_batches=True)
    east.create_topic(f"{stem}-large", config={"max.message.bytes": "4000000"})
    west.create_topic(f"{alias}.{stem}-large", config={"max.message.bytes": "1000"})
    load(east, f"{stem}-large", 1, size_bytes=5_000)
    with Replicator.standalone(
        east,
        west,
        topics=f"{stem}-.*",
        folder=tmp_path,
        connector={"source.cluster.alias": alias, "sync.topic.configs.enabled": "false"},
        environment={"TMPDIR": str(folder)},
    ) as replicator:
        replicator.wait_for_phase("stopped", f"{stem}-large")
        stopped = wait_until("its events are written", partial(written, folder, f"{stem}-large"))
        replicator.wait_for_copy(west, f"{alias}.{stem}-small", 3_000)
        os.kill(replicator.pid, signal.SIGUSR1)
        small = wait_until("all events are written", partial(written, folder, f"{stem}-small"))

    for document in (stopped, small):
        assert document is not None
        assert document["segments"]
        assert differences(document) == []


def written(folder: Path, topic: str) -> dict[str, Any] | None:
    """The document of partition 0 of *topic* in *folder*; None until it is complete."""
    for path in folder.glob(f"*/{topic}-0.json"):
        with suppress(json.JSONDecodeError):
            return dict(json.loads(path.read_text()))
    return None
