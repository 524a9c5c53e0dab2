"""A distributed worker with one node on real brokers.

It carries out Connect's REST requests and stores them in Connect's topics. After kill -9 it continues as a MirrorFlow
worker or as an Apache worker. A Java consumer reads the copies.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.connect_worker import ConnectWorker
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load, records
from tests.harness.replicator import Replicator
from tests.integration.kafka.distributed import (
    NAME,
    PACKAGE,
    Site,
    change,
    offsets,
    start,
    wait_for_copies,
    wait_for_state,
)


@pytest.fixture
def site(east: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> Site:
    return Site(source=east, target=west, folder=tmp_path)


def test_a_worker_starts_empty_and_continues_after_kill_9(
    site: Site, unique_topic: Callable[[], str]
) -> None:
    """After kill -9, a connector created over REST still exists in its state, and copies each record once."""
    topic = unique_topic()
    site.source.create_topic(topic, partitions=2)
    load(site.source, topic, 500)
    with site.worker() as worker:
        start(worker)
        assert (200, []) == worker.rest("/connectors")
        assert (404, None) != worker.rest(f"/connectors/{NAME}/status")

        config = {**site.connector(topic), "name": NAME}
        created = change(worker, "PUT", f"/connectors/{NAME}/config", site.connector(topic), expect=201)
        assert {"name": NAME, "config": config, "tasks": [], "type": "source"} == created
        wait_for_state(worker, "RUNNING")
        wait_for_copies(site, topic, 500)

        worker.kill()
        worker.start()
        start(worker)
        assert (200, [NAME]) == worker.rest("/connectors")
        load(site.source, topic, 300)
        wait_for_copies(site, topic, 800)
        assert config == worker.rest(f"/connectors/{NAME}/config")[1]

        change(worker, "PUT", f"/connectors/{NAME}/pause", expect=202)
        wait_for_state(worker, "PAUSED")
        worker.kill()
        worker.start()
        start(worker)
        wait_for_state(worker, "PAUSED")
        load(site.source, topic, 200)
        change(worker, "PUT", f"/connectors/{NAME}/resume", expect=202)
        wait_for_copies(site, topic, 1000)

        change(worker, "DELETE", f"/connectors/{NAME}", expect=204)
        assert (200, []) == worker.rest("/connectors")
        worker.kill()
        worker.start()
        start(worker)
        assert (200, []) == worker.rest("/connectors")


@pytest.mark.faults
def test_connector_requests_return_503_until_the_target_responds(
    site: Site, unique_topic: Callable[[], str]
) -> None:
    """An empty list or 404 would make GitOps tools treat the connector as deleted."""
    topic = unique_topic()
    site.source.create_topic(topic)
    paths = ("/connectors", f"/connectors/{NAME}", f"/connectors/{NAME}/status")
    with site.worker() as worker:
        start(worker)
        change(worker, "PUT", f"/connectors/{NAME}/config", site.connector(topic), expect=201)
        worker.kill()
        site.target.broker(1).freeze()
        try:
            worker.start()
            wait_until("the worker responds", lambda: worker.rest("/")[0] == 200)
            statuses = [worker.rest(path)[0] for path in paths]
        finally:
            site.target.broker(1).thaw()
        start(worker)

        assert [503, 503, 503] == statuses
        assert (200, [NAME]) == worker.rest("/connectors")


def test_rest_only_reads_when_rest_modify_enable_is_false(
    site: Site, unique_topic: Callable[[], str]
) -> None:
    """Connectors from files on the command line run and are stored."""
    topic = unique_topic()
    site.source.create_topic(topic)
    load(site.source, topic, 100)
    config = {**site.connector(topic), "name": NAME}
    with site.worker(config, rest_modify_enable="false") as worker:
        start(worker)
        wait_for_state(worker, "RUNNING")
        for method, path in (
            ("PUT", f"/connectors/{NAME}/config"),
            ("POST", "/connectors"),
            ("PUT", f"/connectors/{NAME}/stop"),
            ("DELETE", f"/connectors/{NAME}"),
            ("PATCH", f"/connectors/{NAME}/offsets"),
        ):
            assert 403 == worker.rest(path, method=method, body={})[0]
        wait_for_copies(site, topic, 100)
    with site.worker() as worker:
        start(worker)
        assert (200, config) == worker.rest(f"/connectors/{NAME}/config")


def test_altered_and_reset_offsets_are_copied_again(site: Site, unique_topic: Callable[[], str]) -> None:
    """As in MM2's exactly-once test, offset 0 skips the first record, and a reset skips none.

    Other topics are not copied again.
    """
    altered, reset, untouched = unique_topic(), unique_topic(), unique_topic()
    partitions = 3
    for topic in (altered, reset, untouched):
        site.source.create_topic(topic, partitions=partitions)
        load(site.source, topic, 90)
    with site.worker() as worker:
        start(worker)
        body = {"name": NAME, "config": site.connector(f"{altered}|{reset}|{untouched}")}
        change(worker, "POST", "/connectors", body, expect=201)
        for topic in (altered, reset, untouched):
            wait_for_copies(site, topic, 90)
        ends = site.source.end_offsets(altered)
        refused = change(worker, "DELETE", f"/connectors/{NAME}/offsets", expect=400)
        assert "must be in the STOPPED state" in refused["message"]

        stop(worker)
        assert 3 * partitions == len(offsets(worker))
        entries = [entry(site, altered, number, 0) for number in range(partitions) if ends.get(number)] + [
            entry(site, reset, number, None) for number in range(partitions)
        ]
        response = change(worker, "PATCH", f"/connectors/{NAME}/offsets", {"offsets": entries}, expect=200)
        assert {"message": "The offsets for this connector have been altered successfully"} == response
        stored = offsets(worker)
        assert {altered: 0} == {topic: value for (topic, _), value in stored.items() if topic != untouched}

        change(worker, "PUT", f"/connectors/{NAME}/resume", expect=202)
        wait_for_copies(site, altered, 180 - partitions)
        wait_for_copies(site, reset, 180)
        load(site.source, untouched, 10)
        wait_for_copies(site, untouched, 100)

        # Setting the same offset again is a new change, although the session began at that offset.
        stop(worker)
        change(worker, "PATCH", f"/connectors/{NAME}/offsets", {"offsets": entries}, expect=200)
        worker.kill()
        worker.start()
        start(worker)
        change(worker, "PUT", f"/connectors/{NAME}/resume", expect=202)
        wait_for_copies(site, altered, 2 * (90 - partitions) + 90)
        wait_for_copies(site, reset, 270)

        stop(worker)
        response = change(worker, "DELETE", f"/connectors/{NAME}/offsets", expect=200)
        assert {"message": "The offsets for this connector have been reset successfully"} == response
        assert {} == offsets(worker)
        change(worker, "PUT", f"/connectors/{NAME}/resume", expect=202)
        wait_for_copies(site, altered, 2 * (90 - partitions) + 180)
        wait_for_copies(site, reset, 360)
        wait_for_copies(site, untouched, 200)


def stop(worker: Replicator) -> None:
    change(worker, "PUT", f"/connectors/{NAME}/stop", expect=204)
    wait_for_state(worker, "STOPPED")


def entry(site: Site, topic: str, number: int, offset: int | None) -> dict[str, Any]:
    partition = {"cluster": site.alias, "topic": topic, "partition": number}
    return {"partition": partition, "offset": None if offset is None else {"offset": offset}}


def test_a_java_worker_takes_over_and_mirrorflow_takes_over_from_it(
    site: Site, unique_topic: Callable[[], str]
) -> None:
    """An Apache worker continues with MirrorFlow's connectors, states and positions, and MirrorFlow with those of the
    Apache worker.
    """
    topic = unique_topic()
    site.source.create_topic(topic, partitions=2)
    load(site.source, topic, 200)
    beats = {
        "connector.class": f"{PACKAGE}MirrorHeartbeatConnector",
        "source.cluster.alias": site.alias,
        "target.cluster.alias": site.target.name,
        "target.cluster.bootstrap.servers": site.target.bootstrap,
        "heartbeats.topic.replication.factor": "1",
    }
    with site.worker() as worker:
        start(worker)
        change(worker, "PUT", f"/connectors/{NAME}/config", site.connector(topic), expect=201)
        body = {"name": "beats", "config": beats, "initial_state": "STOPPED"}
        change(worker, "POST", "/connectors", body, expect=201)
        wait_for_state(worker, "STOPPED", "beats")
        wait_for_copies(site, topic, 200)
        assert 0 == worker.stop()
    with ConnectWorker(
        cluster=site.target,
        group=f"{site.alias}-mm2",
        properties={**site.topics(), "offset.flush.interval.ms": "500"},
    ) as java:
        wait_until("Java runs MirrorFlow's connector", lambda: java.state(NAME) == ("RUNNING", ["RUNNING"]))
        assert "STOPPED" == java.state("beats")[0]
        load(site.source, topic, 50)
        wait_for_copies(site, topic, 250)
        java.call("PUT", "/connectors/beats/resume")
        java.stop()
    with site.worker() as worker:
        start(worker)
        wait_for_state(worker, "RUNNING", "beats")
        wait_for_state(worker, "RUNNING")
        load(site.source, topic, 50)
        wait_for_copies(site, topic, 300)


def config_topic_text(site: Site) -> str:
    """Returns the values of the config topic."""
    config_records = records(site.target, f"mm2-configs.{site.alias}.internal")
    return b"\n".join(record.value or b"" for record in config_records).decode()


def test_the_rest_api_restarts_and_reconfigures_all_three_connectors(
    site: Site, unique_topic: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connectors and tasks restart, a valid patch is applied, and an invalid config is refused.

    Secret references remain references.
    """
    topic, second = unique_topic(), unique_topic()
    for topic_name in (topic, second):
        site.source.create_topic(topic_name)
        load(site.source, topic_name, 100)
    monkeypatch.setenv("MARKED_BOOTSTRAP", site.source.bootstrap)
    reference = "${env:MARKED_BOOTSTRAP}"
    common = {
        "source.cluster.bootstrap.servers": reference,
        "config.providers": "env",
        "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
        "heartbeats.topic.replication.factor": "1",
        "checkpoints.topic.replication.factor": "1",
        "emit.checkpoints.interval.seconds": "1",
    }
    names = [f"Mirror{kind}Connector" for kind in ("Source", "Checkpoint", "Heartbeat")]
    with site.worker() as worker:
        start(worker)
        for name in names:
            config = {**site.connector(topic), **common, "connector.class": name}
            change(worker, "PUT", f"/connectors/{name}/config", config, expect=201)
            assert (
                reference
                == worker.rest(f"/connectors/{name}")[1]["config"]["source.cluster.bootstrap.servers"]
            )
        for name in names:
            wait_for_state(worker, "RUNNING", name)
        wait_for_copies(site, topic, 100)
        assert sorted(names) == sorted(worker.rest("/connectors?expand=status&expand=info")[1])
        wait_until(
            "the task configs are written", lambda: f"{PACKAGE}MirrorSourceTask" in config_topic_text(site)
        )
        assert reference in config_topic_text(site)
        assert site.source.bootstrap not in config_topic_text(site)

        before = worker.task_pids()
        change(worker, "POST", f"/connectors/{NAME}/tasks/0/restart", expect=204)
        wait_until("the task runs in a new process", lambda: not {*before} & {*worker.task_pids()})
        for name in names:
            response = change(
                worker, "POST", f"/connectors/{name}/restart?onlyFailed=false&includeTasks=true", expect=202
            )
            assert ("RESTARTING", "RESTARTING") == (
                response["connector"]["state"],
                response["tasks"][0]["state"],
            )
            change(worker, "POST", f"/connectors/{name}/restart", expect=204)
            change(worker, "POST", f"/connectors/{name}/restart?onlyFailed=true", expect=202)
            wait_for_state(worker, "RUNNING", name)
        assert 404 == worker.rest(f"/connectors/{NAME}/tasks/9/restart", method="POST")[0]

        patched = change(
            worker, "PATCH", f"/connectors/{NAME}/config", {"topics": f"{topic}|{second}"}, expect=200
        )
        assert f"{topic}|{second}" == patched["config"]["topics"]
        wait_for_copies(site, second, 100)
        refused = change(worker, "PATCH", f"/connectors/{NAME}/config", {"tasks.max": "none"}, expect=400)
        assert "contains the following 1 error(s)" in refused["message"]
        assert 409 == worker.rest("/connectors", method="POST", body={"name": NAME, "config": config})[0]

        for name in names[1:]:
            change(worker, "PUT", f"/connectors/{name}/stop", expect=204)
            wait_for_state(worker, "STOPPED", name)
            change(worker, "DELETE", f"/connectors/{name}/offsets", expect=200)
            assert {} == offsets(worker, name)
        load(site.source, topic, 50)
        wait_for_copies(site, topic, 150)


def test_worker_topics_exist_before_the_first_connector(site: Site) -> None:
    """All three exist, so that a user can set up ACLs or start an Apache worker."""
    with site.worker() as worker:
        start(worker)
        topics = site.target.topics()

    partition_counts = {
        name: topics.get(name) for key, name in site.topics().items() if key.endswith(".topic")
    }
    assert [1, 1, 5] == list(partition_counts.values())


def test_positions_that_java_stored_after_an_altered_offset_take_precedence(
    site: Site, unique_topic: Callable[[], str]
) -> None:
    """An altered offset is superseded once Java has copied after it. No record is copied a third time."""
    topic = unique_topic()
    site.source.create_topic(topic)
    load(site.source, topic, 100)
    with site.worker() as worker:
        start(worker)
        change(worker, "PUT", f"/connectors/{NAME}/config", site.connector(topic), expect=201)
        wait_for_copies(site, topic, 100)
        stop(worker)
        body = {"offsets": [entry(site, topic, 0, 49)]}
        change(worker, "PATCH", f"/connectors/{NAME}/offsets", body, expect=200)
        assert 0 == worker.stop()
    with ConnectWorker(
        cluster=site.target,
        group=f"{site.alias}-mm2",
        properties={**site.topics(), "offset.flush.interval.ms": "500"},
    ) as java:
        wait_until("Java has MirrorFlow's connector", lambda: java.state(NAME)[0] == "STOPPED")
        java.call("PUT", f"/connectors/{NAME}/resume")
        wait_for_copies(site, topic, 150)
        java.call("PUT", f"/connectors/{NAME}/stop")
        wait_until("Java has stopped", lambda: java.state(NAME) == ("STOPPED", []))
        java.stop()
    with site.worker() as worker:
        start(worker)
        wait_for_state(worker, "STOPPED")
        assert {(topic, 0): 99} == offsets(worker)
        change(worker, "PUT", f"/connectors/{NAME}/resume", expect=202)
        load(site.source, topic, 10)
        wait_for_copies(site, topic, 160)


def test_offsets_altered_by_java_are_copied_again_once(site: Site, unique_topic: Callable[[], str]) -> None:
    """Java's REST API deletes one position and sets another one without copying.

    MirrorFlow applies both changes, once.
    """
    topic = unique_topic()
    site.source.create_topic(topic, partitions=2)
    load(site.source, topic, 100, partition=0)
    load(site.source, topic, 100, partition=1)
    with site.worker() as worker:
        start(worker)
        change(worker, "PUT", f"/connectors/{NAME}/config", site.connector(topic), expect=201)
        wait_for_copies(site, topic, 200)
        stop(worker)
        assert 0 == worker.stop()
    with ConnectWorker(cluster=site.target, group=f"{site.alias}-mm2", properties=site.topics()) as java:
        wait_until("Java has MirrorFlow's connector", lambda: java.state(NAME)[0] == "STOPPED")
        deleted, moved = entry(site, topic, 0, 0) | {"offset": None}, entry(site, topic, 1, 59)
        java.call("PATCH", f"/connectors/{NAME}/offsets", {"offsets": [deleted, moved]})
        java.stop()
    with site.worker() as worker:
        start(worker)
        change(worker, "PUT", f"/connectors/{NAME}/resume", expect=202)
        wait_for_copies(site, topic, 200 + 100 + 40)
        worker.kill()
        worker.start()
        load(site.source, topic, 10, partition=0, first=100)
        wait_for_copies(site, topic, 350)

    copied = Counter(
        (record.partition, record.value) for record in records(site.target, f"{site.alias}.{topic}")
    )
    assert {0: 110 + 100, 1: 100 + 40} == Counter(partition for partition, _ in copied.elements())
    assert {1, 2} == set(copied.values())
