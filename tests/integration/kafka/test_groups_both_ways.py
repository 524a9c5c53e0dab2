"""Switchovers move groups to the other cluster and back. The groups read each record once."""

import contextlib
import random
import subprocess
import uuid
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.compaction import COMPACTED, force_compaction
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.integration.kafka.groups import group_offsets, put_group
from tests.integration.kafka.mirror_pairs import COMMAND_S, Pair, Sides, pair_sides
from tests.integration.kafka.test_application_offsets import values_by_offset

GROUPS = 20
COPY_S = 100.0


class PairOfGroups(Pair):
    """A pair that moves all groups whose names begin with its own.

    Aborted records are not copied, so that both clusters have the same number of records.
    """

    @property
    def group(self) -> str:
        return f"{self.name}-.*"

    def _flow(self, source: str, target: str) -> dict[str, Any]:
        flow = super()._flow(source, target)
        flow["spec"]["isolationLevel"] = "ReadCommitted"
        return flow


@pytest.fixture
def sides() -> Iterator[Sides]:
    with pair_sides() as clusters:
        yield clusters


def unread(cluster: KafkaCluster, topic: str, groups: Mapping[str, int]) -> dict[str, int]:
    """Returns how many records each of *groups* has yet to read on *cluster*, based on its offset."""
    offsets = sorted(values_by_offset(cluster, topic))
    return {group: len(offsets) - bisect_left(offsets, offset) for group, offset in groups.items()}


def committed(cluster: KafkaCluster, topic: str, groups: list[str]) -> dict[str, int]:
    return {group: group_offsets(cluster, group).get((topic, 0), -1) for group in groups}


def move(pair: Pair, to: str, processes: contextlib.ExitStack, flow_back: str = "") -> None:
    """Runs a planned switchover *to* a member, and starts the process of *flow_back* unless it already runs."""
    line = pair.line("--to", to)
    with subprocess.Popen(line, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as switchover:
        wait_until(
            "the endpoint is switched",
            lambda: pair.endpoint.read_text() == to or switchover.poll() is not None,
        )
        if flow_back:
            processes.enter_context(pair.running(flow_back, "back"))
        out, err = switchover.communicate(timeout=COMMAND_S)
    assert switchover.returncode == 0, out + err


def test_groups_move_to_the_other_cluster_and_back_and_read_each_record_once(sides: Sides, tmp_path: Path):
    """The topic has compacted and aborted records.

    Some groups have read everything, and others still have records to read.
    """
    east, west, pair = sides["east"], sides["west"], PairOfGroups(sides, tmp_path)
    topic, rng = pair.topic, random.Random(1)
    make_holes(east, topic)
    ends = sorted(values_by_offset(east, topic))
    names = [f"{pair.name}-{number}" for number in range(GROUPS)]
    at_east = {name: rng.choice([*ends, ends[-1] + 1]) for name in names}
    for name, offset in at_east.items():
        put_group(east, name, {(topic, 0): offset})
    before = unread(east, topic, at_east)
    with contextlib.ExitStack() as processes:
        processes.enter_context(pair.running("east-to-west", "forward"))
        wait_until("the copy exists", lambda: west.has_topic(topic), timeout_s=COPY_S)
        wait_until(
            "it is copied",
            lambda: len(values_by_offset(west, topic)) == len(ends),
            poll_s=1,
            timeout_s=COPY_S,
        )
        move(pair, "west", processes, "west-to-east")
        at_west = committed(west, topic, names)
        assert before == unread(west, topic, at_west)

        load(west, topic, 40, first=5000)
        offsets = sorted(values_by_offset(west, topic))
        for name in names[::2]:
            moved = rng.choice([offset for offset in [*offsets, offsets[-1] + 1] if offset >= at_west[name]])
            put_group(west, name, {(topic, 0): moved})
        at_west = committed(west, topic, names)
        expected = unread(west, topic, at_west)
        wait_until(
            "the groups of east follow",
            lambda: expected == unread(east, topic, committed(east, topic, names)),
            poll_s=1,
            timeout_s=COPY_S,
        )
        move(pair, "east", processes)

        assert expected == unread(east, topic, committed(east, topic, names))
        assert at_west == committed(west, topic, names)


def make_holes(cluster: KafkaCluster, topic: str) -> None:
    """Writes about 100 records.

    Compaction removes every second one of the first records, and every third transaction is aborted.
    """
    cluster.alter_topic(topic, COMPACTED)
    load(cluster, topic, 60, keys=True)
    load(cluster, topic, 30, keys=True, content="random")
    force_compaction(cluster, topic)
    cluster.alter_topic(topic, {"cleanup.policy": "delete", "segment.ms": "604800000"})
    load(
        cluster,
        topic,
        60,
        first=1000,
        keys=True,
        content="random",
        transactional_id=f"t-{uuid.uuid4().hex}",
        transaction_records=6,
        abort_every=3,
    )
    load(cluster, topic, 20, first=2000, keys=True)
