"""A distributed worker with several nodes on real brokers.

They share the tasks of a connector, and each node accepts commands. When a node dies or stops, its work continues on
the others, each record once.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
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
from tests.integration.kafka.internal_calls import send_request, session_key, signed
from tests.integration.kafka.nodes import CopyPauseMeter, Torrent, address, nodes, wait_until_shared, workers

pytestmark = pytest.mark.faults

# For a machine that runs a whole suite; an idle one needs 0.1 s, and 8 s after kill -9.
UNDISTURBED_S = 4.0
MOVED_S = 40.0
BACKLOG, BACKLOG_PER_S = 40_000, 4_000  # ten seconds


@pytest.fixture
def site(east: KafkaCluster, west: KafkaCluster, tmp_path: Path) -> Site:
    return Site(source=east, target=west, folder=tmp_path)


def test_three_nodes_share_tasks_and_lose_none(site: Site, unique_topic: Callable[[], str]) -> None:
    """A killed node is replaced within seconds, and later topics are copied as well.

    Commands may be sent to any node.
    """
    topic, later = unique_topic(), unique_topic()
    site.source.create_topic(topic, partitions=6)
    load(site.source, topic, 600)
    with nodes(site, 3) as (first, second, third):
        config = site.connector(f"{topic}|{later}", tasks_max="6")
        change(third, "PUT", f"/connectors/{NAME}/config", config, expect=201)
        wait_until_shared([first, second, third], 6)
        wait_for_copies(site, topic, 600)

        second.kill()
        load(site.source, topic, 300)
        wait_until_shared([first, third], 6)
        wait_for_copies(site, topic, 900)

        site.source.create_topic(later, partitions=3)
        load(site.source, later, 90)
        wait_for_copies(site, later, 90)

        second.start()
        start(second)
        wait_until_shared([first, second, third], 6)
        assert 0 == first.stop()
        load(site.source, topic, 300)
        wait_until_shared([second, third], 6)
        wait_for_copies(site, topic, 1200)
        change(second, "PUT", f"/connectors/{NAME}/pause", expect=202)
        wait_for_state(third, "PAUSED")
        change(third, "DELETE", f"/connectors/{NAME}", expect=204)
        assert (200, []) == third.rest("/connectors")
        wait_until("all nodes have removed the connector", lambda: second.rest("/connectors") == (200, []))


@pytest.mark.parametrize("is_claimant", [True, False], ids=["claimed the flow", "did not claim the flow"])
def test_a_node_killed_during_a_backlog_repeats_nothing(
    site: Site,
    unique_topic: Callable[[], str],
    is_claimant: bool,  # noqa: FBT001
) -> None:
    """The nodes own the flow together. The node with the connector claims the flow, and both nodes write."""
    flow = Flow(
        source=site.source, target=site.target, alias=site.alias, folder=site.folder, connector={}, worker={}
    )
    stem = unique_topic()
    ages_ms = {f"{stem}-young": 0, f"{stem}-old": 2 * DAY_MS}
    with nodes(site, 2) as (first, second), ExitStack() as stack:
        for topic in ages_ms:
            site.source.create_topic(topic, partitions=2, config=FOREVER)
        config = site.connector(f"{stem}-.*", tasks_max="4")
        change(first, "PUT", f"/connectors/{NAME}/config", config, expect=201)
        wait_until_shared([first, second], 4)
        claimant = first.rest(f"/connectors/{NAME}/status")[1]["connector"]["worker_id"]
        killed, survivor = (first, second) if (address(first) == claimant) is is_claimant else (second, first)
        pool = stack.enter_context(ThreadPoolExecutor())
        writers = [
            pool.submit(load, site.source, topic, BACKLOG, rate=BACKLOG_PER_S, timestamp_ms=now_ms() - age_ms)
            for topic, age_ms in ages_ms.items()
        ]
        wait_until(
            "some records are copied", lambda: all(flow.copied(topic) > BACKLOG // 4 for topic in ages_ms)
        )
        killed.kill()
        wait_until_shared([survivor], 4)
        for writer in writers:
            writer.result()
        for topic in ages_ms:
            flow.assert_committed(topic)

    flow.assert_exact(f"{stem}-young")


def test_only_partitions_that_move_are_paused(
    site: Site, unique_topic: Callable[[], str], record_property: Callable[[str, object], None]
) -> None:
    """Measures the longest pause of each partition when a node joins, stops and is killed."""
    topic, partitions = unique_topic(), 4
    site.source.create_topic(topic, partitions=partitions)
    copy = f"{site.alias}.{topic}"
    with nodes(site, 2) as (first, second):
        change(first, "PUT", f"/connectors/{NAME}/config", site.connector(topic, tasks_max="4"), expect=201)
        wait_until_shared([first, second], partitions)
        meter = CopyPauseMeter(site.source, site.target, topic, copy, partitions)
        with meter:
            third = site.worker(dedicated_mode_enable_internal_rest="true", session_timeout_ms="6000")
            third.name = "third"
            for event, action, remaining in (
                ("a node comes", third.start, [first, second, third]),
                ("a node is stopped", first.stop, [second, third]),
                ("a node is killed", second.kill, [third]),
            ):
                before = workers(remaining[-1 if event != "a node comes" else 0])
                meter.begin()
                action()
                wait_until_shared(remaining, partitions)
                wait_until("all partitions are copied again", lambda: meter.silent_s() < 1.0)
                after = workers(remaining[0])
                longest_s = meter.longest_s()
                stayed = [number for number in range(partitions) if before[number] == after[number]]
                moved = [number for number in range(partitions) if number not in stayed]
                pauses = {
                    "moved": {number: round(longest_s[number], 2) for number in moved},
                    "stayed": {number: round(longest_s[number], 2) for number in stayed},
                }
                print(f"{event}: {json.dumps(pauses)}")
                record_property(event, pauses)
                assert stayed or event != "a node comes"
                assert all(longest_s[number] < UNDISTURBED_S for number in stayed), pauses
                assert all(longest_s[number] < MOVED_S for number in moved), pauses
            written = meter.written
        wait_for_copies(site, topic, max(written, meter.written))
        third.kill()


def test_tasks_are_reassigned_when_the_leader_dies_while_topics_appear(
    site: Site, unique_topic: Callable[[], str]
) -> None:
    """The next leader assigns topics that are discovered while there is no leader."""
    topics = [unique_topic() for _ in range(3)]
    site.source.create_topic(topics[0], partitions=2)
    load(site.source, topics[0], 100)
    with nodes(site, 3) as all_nodes:
        config = site.connector("|".join(topics), tasks_max="3")
        change(all_nodes[0], "PUT", f"/connectors/{NAME}/config", config, expect=201)
        wait_until_shared(all_nodes, 2)
        leader = next(node for node in all_nodes if "this node leads" in node.log_text())
        for topic in topics[1:]:
            site.source.create_topic(topic, partitions=2)
            load(site.source, topic, 100)
        leader.kill()
        survivors = [node for node in all_nodes if node is not leader]
        wait_until_shared(survivors, 3)
        for topic in topics:
            wait_for_copies(site, topic, 100)


def test_a_rolling_restart_applies_changed_files(site: Site, unique_topic: Callable[[], str]) -> None:
    """Nodes restart one after the other with a file that has one more topic. A node with the old file reports it."""
    topic, added = unique_topic(), unique_topic()
    for name in (topic, added):
        site.source.create_topic(name, partitions=2)
        load(site.source, name, 100)
    old, new = ({**site.connector(text, tasks_max="2"), "name": NAME} for text in (topic, f"{topic}|{added}"))
    with nodes(site, 2, old, rest_modify_enable="false") as both:
        wait_until_shared(both, 2)
        wait_for_copies(site, topic, 100)
        for node in both:
            assert 0 == node.stop()
            node.files = (node.files[0], new)
            node.start()
            start(node)
            wait_until_shared(both, 2)
            if node is both[0]:  # the other node leads with the old file
                wait_until(
                    "the node with a different file reports it",
                    lambda node=node: "mirrorflow_setting_warnings 1\n" in node.metrics(),  # type: ignore[misc]
                )
                assert f"FilesDiffer: {NAME}: " in node.log_text()
        wait_for_copies(site, added, 100)
        wait_until(
            "no node reports different files any more",
            lambda: all("mirrorflow_setting_warnings 0\n" in node.metrics() for node in both),
        )
        assert all(node.rest(f"/connectors/{NAME}/config") == (200, new) for node in both)
        load(site.source, added, 50)
        wait_for_copies(site, added, 150)


def test_nodes_follow_the_state_in_their_files(site: Site, unique_topic: Callable[[], str]) -> None:
    """The kubelet updates the files one after the other. The connector pauses and resumes without a restart."""
    topic = unique_topic()
    site.source.create_topic(topic, partitions=2)
    load(site.source, topic, 100)
    running = {**site.connector(topic, tasks_max="2"), "name": NAME}
    with nodes(site, 2, running, rest_modify_enable="false") as both:
        wait_until_shared(both, 2)
        wait_for_copies(site, topic, 100)
        for node in both:
            node.rewrite(1, {**running, "mirrorflow.state": "paused"})
        wait_until("the connector is paused", lambda: is_paused(both))
        load(site.source, topic, 50)
        wait_until("the lag is reported", lambda: max(node.progress()["lagRecords"] for node in both) == 50)
        held = site.copied(topic)
        for node in both:
            node.rewrite(1, running)
        wait_until_shared(both, 2)
        wait_for_copies(site, topic, 150)
        assert all("mirrorflow_setting_warnings 0\n" in node.metrics() for node in both)
        assert "FilesDiffer" not in "".join(node.log_text() for node in both)
    assert held == 100


def is_paused(group: Sequence[Replicator]) -> bool:
    """Returns whether the connector is paused. Then its node reports PAUSED, and no node has a running task."""
    summaries = [node.progress() for node in group]
    return any(summary["state"] == "PAUSED" for summary in summaries) and not any(
        summary["tasks"]["running"] for summary in summaries
    )


def test_any_node_accepts_every_command(site: Site, unique_topic: Callable[[], str]) -> None:
    """Restarts reach each node's tasks. Positions are altered only after all nodes have stopped copying."""
    topic = unique_topic()
    site.source.create_topic(topic, partitions=2)
    load(site.source, topic, 100)
    with nodes(site, 2) as both:
        change(both[0], "PUT", f"/connectors/{NAME}/config", site.connector(topic, tasks_max="2"), expect=201)
        wait_until_shared(both, 2)
        wait_for_copies(site, topic, 100)
        before = {pid for node in both for pid in node.task_pids()}
        for node in both:
            for task in range(2):
                change(node, "POST", f"/connectors/{NAME}/tasks/{task}/restart", expect=204)
            wait_until_shared(both, 2)
            change(node, "POST", f"/connectors/{NAME}/restart?includeTasks=true&onlyFailed=false", expect=202)
            wait_until_shared(both, 2)
            change(node, "POST", f"/connectors/{NAME}/tasks/7/restart", expect=404)
        assert before != {pid for node in both for pid in node.task_pids()}
        first, second = both
        # The second time, it is stopped before it has copied all records. Those that it has copied are then copied once
        # more.
        for node, other, waits_for_copies in (
            (first, second, True),
            (second, first, False),
            (first, second, True),
        ):
            change(node, "PUT", f"/connectors/{NAME}/stop", expect=204)
            change(other, "DELETE", f"/connectors/{NAME}/offsets", expect=200)
            assert {} == offsets(node)
            copied = site.copied(topic)
            change(node, "PUT", f"/connectors/{NAME}/resume", expect=202)
            wait_until_shared(both, 2)
            if waits_for_copies:
                wait_for_copies(site, topic, copied + 100)


def test_only_requests_signed_by_the_group_are_accepted(site: Site, unique_topic: Callable[[], str]) -> None:
    """Each node refuses unsigned requests, and those with an earlier key or a changed body."""
    topic = unique_topic()
    site.source.create_topic(topic, partitions=2)
    with nodes(site, 2, inter_worker_key_ttl_ms="4000", rest_modify_enable="true") as both:
        change(both[0], "PUT", f"/connectors/{NAME}/config", site.connector(topic, tasks_max="2"), expect=201)
        wait_until_shared(both, 2)
        tasks = [task["config"] for task in both[0].rest(f"/connectors/{NAME}/tasks")[1]]
        body = json.dumps(tasks).encode()
        earlier_key = session_key(site)
        wait_until("the session key has rotated", lambda: session_key(site) != earlier_key)
        for node in both:
            assert 400 == post(node, body, {})
            assert 400 == post(node, body, signed(body, earlier_key, algorithm="HmacROT13"))
            assert 403 == post(node, body, signed(body, earlier_key))
            assert 403 == post(node, body + b" ", signed(body, session_key(site)))
            wait_until(
                "a request with the current key is accepted",
                lambda node=node: post(node, body, signed(body, session_key(site))) == 204,  # type: ignore[misc]
            )
            wait_until(
                "zombies are fenced",
                lambda node=node: put_fence(node, signed(b"", session_key(site))) == 204,  # type: ignore[misc]
            )
            assert 403 == put_fence(node, signed(b"", earlier_key))


def test_two_busy_partitions_are_separated_and_a_new_topic_moves_no_partition(
    site: Site, unique_topic: Callable[[], str], record_property: Callable[[str, object], None]
) -> None:
    """One task has two busy partitions while the others are idle: one partition moves, and no process restarts."""
    topic, later = unique_topic(), unique_topic()
    site.source.create_topic(topic, partitions=6)
    copy = f"{site.alias}.{topic}"
    config = site.connector(f"{topic}|{later}", tasks_max="3", mirrorflow_balance_tasks_interval_seconds="1")
    with nodes(site, 3) as all_nodes:
        change(all_nodes[0], "PUT", f"/connectors/{NAME}/config", config, expect=201)
        wait_until_shared(all_nodes, 3)
        first = assigned(all_nodes[0])
        assert [{f"{topic}-{number}", f"{topic}-{number + 3}"} for number in range(3)] == first
        pids = {pid for node in all_nodes for pid in node.task_pids()}
        with CopyPauseMeter(site.source, site.target, topic, copy, 6) as meter:
            meter.begin()
            with Torrent(site.source, topic, (0, 3)) as torrent:
                wait_until("the busy partitions are separated", lambda: assigned(all_nodes[1]) != first)
            second = assigned(all_nodes[1])
            assert 1 == len(first[0] - second[0])
            assert first[0] - second[0] < {f"{topic}-0", f"{topic}-3"}
            assert all(before <= after for before, after in zip(first[1:], second[1:], strict=True))
            wait_until("all partitions are copied again", lambda: meter.silent_s() < 1.0)

            site.source.create_topic(later, partitions=4)
            load(site.source, later, 40)
            wait_for_copies(site, later, 40)
            wait_until(
                "the third node has the new assignment, too",
                lambda: 10 == sum(map(len, assigned(all_nodes[2]))),
            )
            third = assigned(all_nodes[2])
            assert all(before <= after for before, after in zip(second, third, strict=True))
            longest_s = {number: round(longest, 2) for number, longest in meter.longest_s().items()}
            print(f"the longest pauses: {json.dumps(longest_s)}")
            record_property("longest_s", longest_s)
            assert all(longest_s[number] < UNDISTURBED_S for number in (1, 2, 4, 5)), longest_s
        wait_for_copies(site, topic, meter.written + torrent.written)
        assert pids == {pid for node in all_nodes for pid in node.task_pids()}
        # The next leader of the connector continues with the tasks' partitions, and measures their load again.
        owner_id = all_nodes[0].rest(f"/connectors/{NAME}/status")[1]["connector"]["worker_id"]
        survivors = [node for node in all_nodes if address(node) != owner_id]
        assert 0 == next(node for node in all_nodes if node not in survivors).stop()
        wait_until_shared(survivors, 3)
        assert third == assigned(survivors[0])


def assigned(node: Replicator) -> list[set[str]]:
    """Returns the stored partitions of each task."""
    tasks = sorted(node.rest(f"/connectors/{NAME}/tasks")[1], key=lambda task: int(task["id"]["task"]))
    return [{*task["config"]["task.assigned.partitions"].split(",")} for task in tasks]


def post(node: Replicator, body: bytes, headers: Mapping[str, str]) -> int:
    return send_request(
        connector_url(node, "tasks"), "POST", body, {"Content-Type": "application/json", **headers}
    )


def put_fence(node: Replicator, headers: Mapping[str, str]) -> int:
    return send_request(connector_url(node, "fence"), "PUT", None, headers)


def connector_url(node: Replicator, path: str) -> str:
    return f"{node.url}/connectors/{NAME}/{path}"
