"""`mirrorflow dump resumption` of a flow that was killed: what both clusters show, and what the flow then does."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.integration.kafka.flows import Flow

pytestmark = pytest.mark.more

Names = Callable[[], str]


def dump(flow: Flow, topic: str, *words: str) -> str:
    """What `mirrorflow dump resumption` prints of *topic*."""
    addresses = ["--from", flow.source.bootstrap, "--to", flow.target.bootstrap]
    aliases = ["--from-alias", flow.alias, "--to-alias", flow.target.name]
    command = [str(Path(sys.executable).parent / "mirrorflow"), "dump", "resumption", "--topic", topic]
    done = subprocess.run(
        [*command, *words, *addresses, *aliases], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def resumption(flow: Flow, topic: str) -> dict[str, Any]:
    """What it says of partition 0."""
    return dict(json.loads(dump(flow, topic, "--json").splitlines()[0]))


def ends(flow: Flow) -> dict[str, dict[int, int]]:
    """Where every topic of the target ends."""
    return {topic: flow.target.end_offsets(topic) for topic in flow.target.topics() if flow.alias in topic}


@pytest.fixture(scope="module")
def forgetful() -> Iterator[KafkaCluster]:
    """A target whose leaders forget a producer after four seconds."""
    config = {"producer.id.expiration.ms": "4000", "producer.id.expiration.check.interval.ms": "1000"}
    with KafkaCluster(name="forgetful", config=config) as cluster:
        yield cluster


def test_a_partition_that_nothing_decides_shows_its_candidates(
    east: KafkaCluster, forgetful: KafkaCluster, unique_topic: Names, tmp_path: Path
):
    """Its leader has forgotten the flow, and of the records after the position nobody knows any more whose they were."""
    flow, topic = Flow.new(east, forgetful, tmp_path), unique_topic()
    east.create_topic(topic)
    load(east, topic, 500)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        assert replicator.stop() == 0
        wait_until("the flow is forgotten", lambda: flow.memory(topic) is None)
        load(forgetful, flow.remote(topic), 100)
        end = forgetful.end_offsets(flow.remote(topic))[0]
        forgetful.delete_records(flow.remote(topic), {0: end})
        load(east, topic, 100, first=500)
        replicator.start()
        said = replicator.wait_for_phase("stopped", topic)
    known = resumption(flow, topic)

    assert said["reason"] == "Undecided"
    assert (
        f"its log has offsets {end} to {end}, and its leader remembers nothing of the flow" in said["message"]
    )
    assert "could be 500 by the newest position" in said["message"]
    assert "`mirrorflow dump resumption` shows more" in said["message"]
    assert known["decision"]["source_offset"] is None
    assert {"by": "the newest position", "source_offset": 500} in [
        {name: one[name] for name in ("by", "source_offset")} for one in known["candidates"]
    ]
    assert known["leader"] is None


def test_a_killed_flow_shows_where_it_continues_and_continues_there(flow: Flow, unique_topic: Names):
    """The first 500 records are in a position, 300 more are known to the target alone."""
    topic = flow.source.create_topic(unique_topic())
    load(flow.source, topic, 500)
    unbegun = resumption(flow, topic)
    with flow.replicator(topic) as replicator:
        replicator.wait_until_caught_up()
        assert replicator.stop() == 0
    with flow.replicator(topic, {"offset.flush.interval.ms": "3600000"}) as replicator:
        load(flow.source, topic, 300, first=500)
        replicator.wait_until_caught_up()
        replicator.kill()
        load(flow.source, topic, 100, first=800)
        before = ends(flow)
        killed = resumption(flow, topic)
        table = dump(flow, topic)
        after = ends(flow)
        replicator.start()
        replicator.wait_until_caught_up()
    finished = resumption(flow, topic)

    assert (unbegun["anchor"], unbegun["decision"]["source_offset"]) == (None, None)
    assert killed["source"] == {"first_offset": 0, "end_offset": 900}
    assert killed["target"] == {"first_offset": 0, "end_offset": 800}
    assert killed["leader"]["last_sequence"] == 799
    assert (killed["position"]["source_offset"], killed["position"]["target_offset"]) == (499, 499)
    assert killed["anchor"]["source_offset"] == 0
    assert {one["by"]: one["source_offset"] for one in killed["candidates"]} == {
        "the leader's memory": 800,
        "the last batch in the log": 800,
        "the newest position": 500,
        "counting": 800,
    }
    assert killed["decision"]["source_offset"] == 800
    assert "(500)" in table
    assert before == after
    assert finished["target"]["end_offset"] == 900
    flow.assert_exact(topic)
