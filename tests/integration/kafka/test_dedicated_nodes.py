"""Several processes run the same mm2.properties (KIP-710) on real brokers.

They share the tasks of its flows, sign their internal requests, and apply a changed file.
"""

import json
import ssl
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path

import pytest

from tests.harness.kafka.certificates import Certificates, make_certificates
from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load, records
from tests.harness.replicator import Replicator
from tests.integration.kafka.dedicated import (
    BESIDE,
    SOURCE,
    File,
    internal_url,
    leader,
    processes,
    wait_until_ready,
)
from tests.integration.kafka.distributed import Site, wait_for_copies
from tests.integration.kafka.internal_calls import configs_topic, send_request, session_key, signed

pytestmark = pytest.mark.more

RUNNING = {f"status-connector-{name}" for name in (SOURCE, *BESIDE)} | {f"status-task-{SOURCE}-0"}
ELSEWHERE = "127.0.0.2"  # a loopback address that is in no certificate


@pytest.fixture
def file(east: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> File:
    return File(site=Site(source=east, target=west, folder=tmp_path))


def test_processes_with_one_file_share_its_flows(file: File, unique_topic: Callable[[], str]) -> None:
    """The alias has special characters.

    The leader is killed while topics are created. Every process learns of later changes.
    """
    site, topics = file.site, [unique_topic() for _ in range(3)]
    site.source.create_topic(topics[0], partitions=3)
    load(site.source, topics[0], 300)
    with processes(file, 3, file.text("|".join(topics))) as all_three:
        file.wait_until_shared(all_three, 3)
        wait_for_copies(site, topics[0], 300)
        old_leader = leader(all_three)
        for topic in topics[1:]:
            site.source.create_topic(topic, partitions=1)
            load(site.source, topic, 100)
        old_leader.kill()
        survivors = [node for node in all_three if node is not old_leader]
        file.wait_until_shared(survivors, 4)
        for topic in topics[1:]:
            wait_for_copies(site, topic, 100)
        old_leader.start()
        wait_until_ready(old_leader)
        file.wait_until_shared(all_three, 4)
        for node in all_three:
            tasks = node.rest(f"/connectors/{file.connector}/tasks")[1]
            assigned = ",".join(task["config"]["task.assigned.partitions"] for task in tasks)
            assert all(f"{topic}-0" in assigned.split(",") for topic in topics)
        # The old leader forwards a request to the new one.
        fence = internal_url(old_leader) + file.path + "/fence"
        assert 204 == send_request(fence, "PUT", None, signed(b"", session_key(file.site)))
        assert [0, 0, 0] == [node.stop() for node in all_three]


def test_a_single_process_writes_connects_topics_and_shares_its_flow(
    east: KafkaCluster, west: KafkaCluster, tmp_path: Path, unique_topic: Callable[[], str]
) -> None:
    """There is no internal REST API.

    A second process gets half of the tasks, and new topics are copied regardless of which process leads.
    """
    site = Site(source=east, target=west, folder=tmp_path)
    file, topics = File(site=site, serves_others=False), [unique_topic() for _ in range(3)]
    connectors = (SOURCE, *BESIDE)

    def add(topic: str) -> None:
        site.source.create_topic(topic, partitions=2)
        load(site.source, topic, 100)

    add(topics[0])
    text = file.text("|".join(topics), {f"{file.flow}.emit.heartbeats.enabled": "true"})
    with processes(file, 1, text) as [first]:
        file.wait_until_shared([first], 2)
        wait_for_copies(site, topics[0], 100)
        keys = {(record.key or b"").decode() for record in records(site.target, configs_topic(site))}
        assert {f"{kind}-{name}" for kind in ("connector", "commit") for name in connectors} <= keys
        assert {"session-key", f"task-{SOURCE}-0", f"task-{SOURCE}-1"} <= keys
        wait_until(
            "the status topic reports all connectors and tasks as running", lambda: RUNNING <= statuses(site)
        )
        with processes(file, 1, text) as [second]:
            file.wait_until_shared([first, second], 2)
            # The follower runs this connector and cannot request that a leader write its tasks.
            assert first is leader([first, second])
            _, shown = first.rest(f"/connectors/{file.connector}/status")
            assert file.worker_id(second) == shown["connector"]["worker_id"]
            add(topics[1])
            file.wait_until_shared([first, second], 4)
            first.kill()
            file.wait_until_shared([second], 4)
            add(topics[2])
            for topic in topics[1:]:
                wait_for_copies(site, topic, 100)
            assert 0 == second.stop()


def statuses(site: Site) -> set[str]:
    """Returns the keys in the status topic whose last record has the state RUNNING."""
    latest = {
        record.key: record.value for record in records(site.target, site.topics()["status.storage.topic"])
    }
    return {
        (key or b"").decode()
        for key, value in latest.items()
        if value is not None and json.loads(value).get("state") == "RUNNING"
    }


def test_internal_requests_need_a_valid_signature(file: File, unique_topic: Callable[[], str]) -> None:
    """On both internal paths, missing, wrong, outdated and replayed signatures are refused.

    A follower forwards to the leader.
    """
    topic = unique_topic()
    file.site.source.create_topic(topic, partitions=2)
    ttl = {f"{file.target_alias}.inter.worker.key.ttl.ms": "5000"}
    with processes(file, 2, file.text(topic, ttl)) as both:
        file.wait_until_shared(both, 2)
        configs = both[0].rest(f"/connectors/{file.connector}/tasks")[1]
        body = json.dumps([task["config"] for task in configs]).encode()
        stale = session_key(file.site)
        wait_until("the session key has rotated", lambda: session_key(file.site) != stale)
        for node in both:
            url, tasks = internal_url(node), internal_url(node) + file.path + "/tasks"
            for path in (
                "/",
                "/connectors",
                "/metrics",
                "/healthz",
                f"/connectors/{SOURCE}/tasks",
                file.path,
            ):
                assert 404 == send_request(url + path, "GET"), path
            assert 405 == send_request(tasks, "GET")
            assert 404 == send_request(f"{url}/nowhere/else/connectors/{SOURCE}/tasks", "POST", body)
            assert 400 == send_request(tasks, "POST", body)
            assert 400 == send_request(tasks, "POST", body, signed(body, stale, algorithm="HmacROT13"))
            assert 403 == send_request(tasks, "POST", body, signed(body, stale))
            assert 403 == send_request(tasks, "POST", body + b" ", signed(body, session_key(file.site)))

            def is_accepted(method: str, url: str, payload: bytes) -> bool:
                return (
                    send_request(url, method, payload or None, signed(payload, session_key(file.site))) == 204
                )

            # A repeated request is accepted and changes nothing, because the task configs are the same.
            for _ in range(2):
                wait_until("the request is accepted", lambda tasks=tasks: is_accepted("POST", tasks, body))  # type: ignore[misc]
            fence = url + file.path + "/fence"
            wait_until("zombies are fenced", lambda fence=fence: is_accepted("PUT", fence, b""))  # type: ignore[misc]
            assert 403 == send_request(fence, "PUT", None, signed(b"", stale))
            # A request that was forwarded twice must reach the leader. One that was forwarded once may be forwarded
            # again.
            hops = {True: (204, 204), False: (409, 204)}[node is leader(both)]
            for forward, expected in zip(("false", "true"), hops, strict=True):
                wait_until(
                    f"forward={forward} returns {expected}",
                    lambda url=f"{fence}?forward={forward}", expected=expected: (  # type: ignore[misc]
                        send_request(url, "PUT", None, signed(b"", session_key(file.site))) == expected
                    ),
                )
        commits = [
            node
            for node in records(file.site.target, configs_topic(file.site))
            if node.key == f"commit-{SOURCE}".encode()
        ]
        assert 1 == len(commits)


def test_a_changed_file_reaches_every_task_of_a_rolling_restart(
    file: File, unique_topic: Callable[[], str]
) -> None:
    """KAFKA-15372: regardless of which process leads during the restart, no later task config is that of the old file."""
    topic, added = unique_topic(), unique_topic()
    for name in (topic, added):
        file.site.source.create_topic(name, partitions=2)
        load(file.site.source, name, 100)
    with processes(file, 3, file.text(topic)) as all_three:
        file.wait_until_shared(all_three, 2)
        wait_for_copies(file.site, topic, 100)
        for node in all_three:
            assert 0 == node.stop()
            node.files = (file.text(f"{topic}|{added}"),)
            node.start()
            wait_until_ready(node)
        file.wait_until_shared(all_three, 4)
        wait_for_copies(file.site, added, 100)
        for node in all_three:
            tasks = node.rest(f"/connectors/{file.connector}/tasks")[1]
            assert {f"{topic}|{added}"} == {task["config"]["topics"] for task in tasks}
        topic_settings = [
            json.loads(record.value)["properties"]["topics"]
            for record in records(file.site.target, configs_topic(file.site))
            if record.value is not None
            and (record.key or b"").startswith((b"connector-MirrorS", b"task-MirrorS"))
        ]
        assert topic_settings == sorted(topic_settings, key=len)
        assert f"{topic}|{added}" == topic_settings[-1]


def test_all_processes_share_one_certificate_and_verify_its_name(
    file: File, tmp_path: Path, unique_topic: Callable[[], str]
) -> None:
    """A client without a certificate is refused.

    The certificate must have the name of the Service, not the called address.
    """
    topic = unique_topic()
    file.site.source.create_topic(topic, partitions=2)
    certificates = make_certificates(tmp_path / "tls")
    tls = {f"listeners.https.{key}": value for key, value in certificates.broker_properties().items()}
    tls |= {"listeners.https.ssl.client.auth": "required", "listeners": f"https://{ELSEWHERE}:0"}
    with_server_name = tls | {"mirrorflow.internal.rest.server.name": "localhost"}
    insider = client_context(certificates)
    insider.load_cert_chain(certificates.client_pem, certificates.client_key_pem)
    with processes(file, 2, file.text(topic, with_server_name)) as both:
        file.wait_until_shared(both, 2)
        fence = [internal_url(node) + file.path + "/fence" for node in both]
        for url in fence:
            with pytest.raises(OSError, match=r"(?i)certificate|reset|closed|EOF"):
                send_request(url, "PUT", tls=client_context(certificates))
            with pytest.raises((OSError, HTTPException)):
                send_request(url.replace("https:", "http:"), "PUT")
            assert 400 == send_request(url, "PUT", tls=insider)
            # One of them is a follower and has forwarded the request.
            assert 204 == send_request(url, "PUT", None, signed(b"", session_key(file.site)), tls=insider)
        stranger = Replicator(
            form="mm2", files=(file.text(topic, tls),), folder=tmp_path, name="p2", source=file.site.source
        )
        with stranger:
            wait_until_ready(stranger)
            url = internal_url(stranger) + file.path + "/fence"
            assert 500 == send_request(url, "PUT", None, signed(b"", session_key(file.site)), tls=insider)


def client_context(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(certificates.ca_pem))
    context.check_hostname = False  # the called address is not in the certificate
    return context
