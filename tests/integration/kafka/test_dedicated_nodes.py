"""Several processes with the same mm2.properties (KIP-710), on real brokers: they share the work of its flows, sign what they
ask of each other, and a changed file gets through all of them.
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
    called_at,
    leader,
    processes,
    wait_until_ready,
)
from tests.integration.kafka.distributed import Site, wait_for_copies
from tests.integration.kafka.internal_calls import ask, configs_topic, session_key, signed

pytestmark = pytest.mark.more

RUNNING = {f"status-connector-{name}" for name in (SOURCE, *BESIDE)} | {f"status-task-{SOURCE}-0"}
ELSEWHERE = "127.0.0.2"  # of this machine, and in no certificate


@pytest.fixture
def file(east: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> File:
    return File(site=Site(source=east, target=west, folder=tmp_path))


def test_processes_with_one_file_share_its_flows(file: File, unique_topic: Callable[[], str]) -> None:
    """With an alias of odd letters; the leader is killed while topics appear; what comes later is known to every process."""
    site, topics = file.site, [unique_topic() for _ in range(3)]
    site.source.create_topic(topics[0], partitions=3)
    load(site.source, topics[0], 300)
    with processes(file, 3, file.text("|".join(topics))) as all_three:
        file.wait_until_shared(all_three, 3)
        wait_for_copies(site, topics[0], 300)
        former = leader(all_three)
        for topic in topics[1:]:
            site.source.create_topic(topic, partitions=1)
            load(site.source, topic, 100)
        former.kill()
        left = [one for one in all_three if one is not former]
        file.wait_until_shared(left, 4)
        for topic in topics[1:]:
            wait_for_copies(site, topic, 100)
        former.start()
        wait_until_ready(former)
        file.wait_until_shared(all_three, 4)
        for one in all_three:
            tasks = one.rest(f"/connectors/{file.connector}/tasks")[1]
            given = ",".join(task["config"]["task.assigned.partitions"] for task in tasks)
            assert all(f"{topic}-0" in given.split(",") for topic in topics)
        # A call to who led before is passed on to who leads now.
        fence = called_at(former) + file.path + "/fence"
        assert 204 == ask(fence, "PUT", None, signed(b"", session_key(file.site)))
        assert [0, 0, 0] == [one.stop() for one in all_three]


def test_lone_process_keeps_connects_topics_and_shares_its_flow(
    east: KafkaCluster, west: KafkaCluster, tmp_path: Path, unique_topic: Callable[[], str]
) -> None:
    """Without internal REST: a second process gets half of the tasks, and either one's new topics are copied."""
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
        kept = {(record.key or b"").decode() for record in records(site.target, configs_topic(site))}
        assert {f"{kind}-{name}" for kind in ("connector", "commit") for name in connectors} <= kept
        assert {"session-key", f"task-{SOURCE}-0", f"task-{SOURCE}-1"} <= kept
        wait_until("tools see what runs", lambda: RUNNING <= statuses(site))
        with processes(file, 1, text) as [second]:
            file.wait_until_shared([first, second], 2)
            # The follower has this connector, and no leader that it could ask to write its tasks.
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
    """The keys in the status topic whose last record says RUNNING."""
    newest = {
        record.key: record.value for record in records(site.target, site.topics()["status.storage.topic"])
    }
    return {
        (key or b"").decode()
        for key, value in newest.items()
        if value is not None and json.loads(value).get("state") == "RUNNING"
    }


def test_internal_calls_are_for_who_can_sign(file: File, unique_topic: Callable[[], str]) -> None:
    """Two paths and nothing else; missing, wrong, stale and replayed signatures; a follower passes a call on to the leader."""
    topic = unique_topic()
    file.site.source.create_topic(topic, partitions=2)
    ttl = {f"{file.target_alias}.inter.worker.key.ttl.ms": "5000"}
    with processes(file, 2, file.text(topic, ttl)) as both:
        file.wait_until_shared(both, 2)
        configs = both[0].rest(f"/connectors/{file.connector}/tasks")[1]
        body = json.dumps([task["config"] for task in configs]).encode()
        stale = session_key(file.site)
        wait_until("the key is another", lambda: session_key(file.site) != stale)
        for one in both:
            url, tasks = called_at(one), called_at(one) + file.path + "/tasks"
            for path in (
                "/",
                "/connectors",
                "/metrics",
                "/healthz",
                f"/connectors/{SOURCE}/tasks",
                file.path,
            ):
                assert 404 == ask(url + path, "GET"), path
            assert 405 == ask(tasks, "GET")
            assert 404 == ask(f"{url}/nowhere/else/connectors/{SOURCE}/tasks", "POST", body)
            assert 400 == ask(tasks, "POST", body)
            assert 400 == ask(tasks, "POST", body, signed(body, stale, algorithm="HmacROT13"))
            assert 403 == ask(tasks, "POST", body, signed(body, stale))
            assert 403 == ask(tasks, "POST", body + b" ", signed(body, session_key(file.site)))

            def done(method: str, url: str, sent: bytes) -> bool:
                return ask(url, method, sent or None, signed(sent, session_key(file.site))) == 204

            # Sent again it is done again, which changes nothing: task configs are what they are.
            for _ in range(2):
                wait_until("it is done", lambda tasks=tasks: done("POST", tasks, body))  # type: ignore[misc]
            fence = url + file.path + "/fence"
            wait_until("zombies are fenced", lambda fence=fence: done("PUT", fence, b""))  # type: ignore[misc]
            assert 403 == ask(fence, "PUT", None, signed(b"", stale))
            # Passed on twice already, or once: the leader has to be where it comes then.
            hops = {True: (204, 204), False: (409, 204)}[one is leader(both)]
            for forward, expected in zip(("false", "true"), hops, strict=True):
                wait_until(
                    f"forward={forward} is answered with {expected}",
                    lambda url=f"{fence}?forward={forward}", expected=expected: (  # type: ignore[misc]
                        ask(url, "PUT", None, signed(b"", session_key(file.site))) == expected
                    ),
                )
        commits = [
            one
            for one in records(file.site.target, configs_topic(file.site))
            if one.key == f"commit-{SOURCE}".encode()
        ]
        assert 1 == len(commits)


def test_a_changed_file_reaches_every_task_of_a_rolling_restart(
    file: File, unique_topic: Callable[[], str]
) -> None:
    """KAFKA-15372: one process after the other; no later task config is of the old file again, whichever leads meanwhile."""
    topic, added = unique_topic(), unique_topic()
    for name in (topic, added):
        file.site.source.create_topic(name, partitions=2)
        load(file.site.source, name, 100)
    with processes(file, 3, file.text(topic)) as all_three:
        file.wait_until_shared(all_three, 2)
        wait_for_copies(file.site, topic, 100)
        for one in all_three:
            assert 0 == one.stop()
            one.files = (file.text(f"{topic}|{added}"),)
            one.start()
            wait_until_ready(one)
        file.wait_until_shared(all_three, 4)
        wait_for_copies(file.site, added, 100)
        for one in all_three:
            tasks = one.rest(f"/connectors/{file.connector}/tasks")[1]
            assert {f"{topic}|{added}"} == {task["config"]["topics"] for task in tasks}
        said = [
            json.loads(record.value)["properties"]["topics"]
            for record in records(file.site.target, configs_topic(file.site))
            if record.value is not None
            and (record.key or b"").startswith((b"connector-MirrorS", b"task-MirrorS"))
        ]
        assert said == sorted(said, key=len)
        assert f"{topic}|{added}" == said[-1]


def test_all_share_one_certificate_and_verify_its_name(
    file: File, tmp_path: Path, unique_topic: Callable[[], str]
) -> None:
    """A client without a certificate is refused; the address that is called need not be in it, the Service's name must."""
    topic = unique_topic()
    file.site.source.create_topic(topic, partitions=2)
    made = make_certificates(tmp_path / "tls")
    tls = {f"listeners.https.{key}": value for key, value in made.broker_properties().items()}
    tls |= {"listeners.https.ssl.client.auth": "required", "listeners": f"https://{ELSEWHERE}:0"}
    named = tls | {"mirrorflow.internal.rest.server.name": "localhost"}
    insider = client_context(made)
    insider.load_cert_chain(made.client_pem, made.client_key_pem)
    with processes(file, 2, file.text(topic, named)) as both:
        file.wait_until_shared(both, 2)
        fence = [called_at(one) + file.path + "/fence" for one in both]
        for url in fence:
            with pytest.raises(OSError, match=r"(?i)certificate|reset|closed|EOF"):
                ask(url, "PUT", tls=client_context(made))
            with pytest.raises((OSError, HTTPException)):
                ask(url.replace("https:", "http:"), "PUT")
            assert 400 == ask(url, "PUT", tls=insider)
            # One of them follows, and has passed it on.
            assert 204 == ask(url, "PUT", None, signed(b"", session_key(file.site)), tls=insider)
        stranger = Replicator(
            form="mm2", files=(file.text(topic, tls),), folder=tmp_path, name="p2", source=file.site.source
        )
        with stranger:
            wait_until_ready(stranger)
            url = called_at(stranger) + file.path + "/fence"
            assert 500 == ask(url, "PUT", None, signed(b"", session_key(file.site)), tls=insider)


def client_context(made: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(made.ca_pem))
    context.check_hostname = False  # the test calls an address that is not in it
    return context
