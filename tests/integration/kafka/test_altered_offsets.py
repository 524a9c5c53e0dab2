"""Offsets are altered over REST (KIP-875) while other processes of the flow start, copy or resume."""

import urllib.error
import urllib.request
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import FOREVER, load
from tests.harness.replicator import Replicator
from tests.integration.kafka.distributed import (
    NAME,
    Site,
    change,
    offsets,
    start,
    wait_for_copies,
    wait_for_state,
)
from tests.integration.kafka.flows import DAY_MS, Flow, now_ms
from tests.integration.kafka.nodes import address, nodes, workers

RECORDS = 100
BACKLOG = 100_000
LEADER_WAIT_S = 1.0  # a task that was frozen for 15 s stops by itself


@pytest.fixture
def site(east: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> Site:
    return Site(source=east, target=west, folder=tmp_path)


def altered(site: Site, topic: str, offset: int) -> dict[str, object]:
    partition = {"cluster": site.alias, "topic": topic, "partition": 0}
    return {"offsets": [{"partition": partition, "offset": {"offset": offset}}]}


def accepts_commands(worker: Replicator) -> bool:
    """Returns whether *worker* accepts a command that the group's leader carries out."""
    request = urllib.request.Request(f"{worker.url}/connectors/{NAME}/stop", method="PUT")
    try:
        with urllib.request.urlopen(request, timeout=LEADER_WAIT_S) as response:
            return bool(response.status == HTTPStatus.NO_CONTENT)
    except (TimeoutError, urllib.error.HTTPError):
        return False


def stop(worker: Replicator) -> None:
    change(worker, "PUT", f"/connectors/{NAME}/stop", expect=204)
    wait_for_state(worker, "STOPPED")


@pytest.mark.more
def test_offsets_are_not_altered_while_a_different_process_owns_the_flow(
    site: Site, unique_topic: Callable[[], str]
) -> None:
    """The owner would overwrite the change with later positions."""
    topic = unique_topic()
    site.source.create_topic(topic)
    load(site.source, topic, RECORDS)
    other = Replicator(
        form="standalone",
        files=(
            {
                "bootstrap.servers": site.target.bootstrap,
                "mirrorflow.http.listeners": "http://127.0.0.1:0",
                **site.topics(),
            },
            {"name": NAME, **site.connector(topic)},
        ),
        folder=site.folder,
        name="other",
    )
    with site.worker() as worker:
        start(worker)
        change(worker, "PUT", f"/connectors/{NAME}/config", site.connector(topic), expect=201)
        wait_for_copies(site, topic, RECORDS)
        stop(worker)
        with other:
            other.wait_until_caught_up()
            refused = change(
                worker, "PATCH", f"/connectors/{NAME}/offsets", altered(site, topic, 9), expect=409
            )
            assert "owns" in refused["message"]
            assert other.stop() == 0
        assert offsets(worker) == {(topic, 0): RECORDS - 1}
        change(worker, "PATCH", f"/connectors/{NAME}/offsets", altered(site, topic, 9), expect=200)
        change(worker, "PUT", f"/connectors/{NAME}/resume", expect=202)
        wait_for_copies(site, topic, RECORDS + RECORDS - 10)


@pytest.mark.faults
def test_a_suspended_task_does_not_overwrite_offsets_altered_meanwhile(
    site: Site, unique_topic: Callable[[], str]
) -> None:
    """The task is fenced before the change. Its open transaction contains a position."""
    topic = unique_topic()
    site.source.create_topic(topic, config=FOREVER)
    load(site.source, topic, BACKLOG, timestamp_ms=now_ms() - 40 * DAY_MS)
    flow = Flow(
        source=site.source, target=site.target, alias=site.alias, folder=site.folder, connector={}, worker={}
    )
    slow = {"mirrorflow_bytes_per_second": "100Ki"}  # 12 MB, so that it can be frozen while it copies
    with nodes(site, 2) as both:
        change(both[0], "PUT", f"/connectors/{NAME}/config", site.connector(topic, **slow), expect=201)
        wait_until("some records are committed", lambda: flow.copied(topic) > RECORDS)
        (worker_id,) = workers(both[0]).values()
        frozen, other = both if address(both[0]) == worker_id else reversed(both)
        frozen.freeze()
        wait_until("the group has a leader", lambda: accepts_commands(other))
        stop(other)
        change(other, "PATCH", f"/connectors/{NAME}/offsets", altered(site, topic, 9), expect=200)
        frozen.thaw()
        wait_for_state(frozen, "STOPPED")

        assert offsets(other) == {(topic, 0): 9}
