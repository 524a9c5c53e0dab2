"""A process whose Kafka is unreachable retries, logs little, and serves REST, also over HTTPS."""

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
ATTEMPTS = 8  # refused connection attempts before the log is checked
SOURCE = {
    "name": "m",
    "connector.class": "MirrorSourceConnector",
    "source.cluster.alias": "east",
    "target.cluster.alias": "west",
    "source.cluster.bootstrap.servers": "127.0.0.1:1",
}
WORKER = {"bootstrap.servers": "127.0.0.1:1", "mirrorflow.http.listeners": "http://127.0.0.1:0"}


@contextmanager
def closing_port() -> Iterator[tuple[int, list[int]]]:
    """Yields a port that accepts connections and closes them at once, and a list with an entry for each connection."""
    connections: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                connections.append(1)
                connection.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server.getsockname()[1], connections
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_an_unreachable_cluster_is_retried_but_not_every_attempt_is_logged(tmp_path: Path):
    """Meanwhile, REST reports the state and the log does not grow with the attempts.

    SIGTERM stops the process gracefully.
    """
    with closing_port() as (port, attempts):
        lines = SOURCE | {
            "source.cluster.bootstrap.servers": f"127.0.0.1:{port}",
            "topics": "orders",
        }
        replicator = Replicator(
            form="standalone",
            files=(WORKER | {"bootstrap.servers": f"127.0.0.1:{free_port()}"}, lines),
            folder=tmp_path,
        )
        with replicator:
            wait_until("the process keeps trying", lambda: len(attempts) >= ATTEMPTS)
            wait_until(
                "REST reports the failed connector",
                lambda: replicator.rest("/connectors/m/status")[1]["connector"]["state"] == "FAILED",
            )
            trace = replicator.rest("/connectors/m/status")[1]["connector"]["trace"]
            ready, health, alive = (replicator.rest(path)[0] for path in ("/readyz", "/health", "/healthz"))
            replicating = replicator.progress()["replicating"]
            attempt_count, status = len(attempts), replicator.stop()
            log_lines = replicator.log_text().splitlines()

    assert "cannot be reached at 127.0.0.1:" in trace
    assert (503, 503, 200) == (ready, health, alive)
    assert "Stuck" == replicating
    assert 0 == status
    assert len([line for line in log_lines if "cannot be reached" in line]) < attempt_count, "\n".join(
        log_lines
    )
    assert [] == [line for line in log_lines if "Traceback" in line or "is killed" in line]


@pytest.mark.faults
def test_a_process_started_without_its_target_becomes_ready_when_the_target_returns(
    east: KafkaCluster, tmp_path: Path, unique_topic
):
    """A target that is down at the start does not end the process."""
    topic = east.create_topic(unique_topic())
    with KafkaCluster(name="later") as later:
        node = later.broker(1)
        node.stop()
        with Replicator.standalone(east, later, topics=topic, folder=tmp_path) as replicator:
            wait_until(
                "the log reports the target as unreachable",
                lambda: "Cluster later cannot be reached" in replicator.log_text(),
            )
            node.start()
            wait_until("the process is ready", lambda: replicator.rest("/readyz")[0] == 200)
            assert (
                "RUNNING"
                == replicator.rest("/connectors/MirrorSourceConnector/status")[1]["connector"]["state"]
            )


@pytest.mark.parametrize("prefix", ["", "listeners.https."])
def test_https_is_served_from_a_pkcs12_keystore(prefix: str, tmp_path: Path):
    """The key store's password is a reference. A client that trusts the authority gets a response."""
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
        with urllib.request.urlopen(f"{secure.url}/connectors", timeout=WAIT_S, context=trusting) as response:
            assert ["m"] == json.loads(response.read())


def test_the_event_log_of_a_partition_is_written_for_a_replay(
    east: KafkaCluster, west: KafkaCluster, unique_topic, tmp_path: Path
):
    """The log is written when a partition stops, and on SIGUSR1."""
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
    """Returns the document of partition 0 of *topic* in *folder*, or None until it is complete."""
    for path in folder.glob(f"*/{topic}-0.json"):
        with suppress(json.JSONDecodeError):
            return dict(json.loads(path.read_text()))
    return None
