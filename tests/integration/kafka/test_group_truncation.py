"""A task that writes in transactions, as in a group with Java MM2, whose source is rewritten by an unclean election meanwhile.

offsets       0 ........ 1,500 ........ 2,000 ........ 2,800
copied        ├─ records that survive ─┤├─ lost ─┤
afterwards    ├─ records that survive ─┤├─ others, at the lost offsets and behind them ──────┤
"""

from pathlib import Path

import pytest

from tests.harness.kafka.cluster import KafkaCluster
from tests.harness.kafka.elections import QUICK_ELECTIONS, fragile_topic, tail_lost
from tests.harness.kafka.mm2 import MirrorMaker
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load, records
from tests.harness.replicator import Replicator
from tests.integration.kafka.flows import contents

pytestmark = pytest.mark.more

SURVIVE, COPIED, END = 1_500, 2_000, 2_800
TOPIC, COPY = "rewritten", "A.rewritten"
WITH_JAVA = {
    "dedicated.mode.enable.internal.rest": "true",
    "listeners": "http://127.0.0.1:0",
    "emit.heartbeats.enabled": "false",
    "refresh.topics.interval.seconds": "1",
    "B.exactly.once.source.support": "enabled",
    "B.mirrorflow.exactly.once.with.java": "true",
}


@pytest.mark.parametrize("policy", ["alert", "restart"])
def test_a_source_that_was_rewritten_while_its_task_was_stopped_is_a_loss(policy: str, tmp_path: Path):
    """Positions of such tasks name the leader epoch, too: the partition stops by default, and each policy leads on from there."""
    with (
        KafkaCluster(name="A", brokers=3, config=QUICK_ELECTIONS) as source,
        KafkaCluster(name="B") as target,
    ):
        fragile_topic(source, TOPIC)
        lines = MirrorMaker(source=source, target=target, topics=TOPIC, properties=WITH_JAVA).all_properties()

        def copied() -> list[tuple[object, ...]]:
            found = records(target, COPY, isolation="read_committed") if target.has_topic(COPY) else []
            return contents(found)

        load(source, TOPIC, SURVIVE)
        with tail_lost(source, TOPIC):
            load(source, TOPIC, COPIED - SURVIVE, first=SURVIVE)
            before = contents(records(source, TOPIC))
            with Replicator.mm2(lines, folder=tmp_path / "before") as ours:
                wait_until("all is committed", lambda: len(copied()) == COPIED)
                assert ours.stop() == 0
        load(source, TOPIC, END - SURVIVE, first=5_000)
        after = contents(records(source, TOPIC))

        with Replicator.mm2(lines, folder=tmp_path / "fail") as ours:
            wait_until("it stops", lambda: ours.partition(TOPIC).get("phase") == "stopped")
            assert ours.partition(TOPIC)["reason"] == "SourceDataLost"
            assert copied() == before
            assert ours.stop() == 0
        lines["A->B.mirrorflow.source.loss.policy"] = policy
        wanted = before + (after[SURVIVE:] if policy == "alert" else after)
        with Replicator.mm2(lines, folder=tmp_path / policy) as ours:
            wait_until("it has copied on", lambda: len(copied()) >= len(wanted))
            assert ours.partition(TOPIC)["reason"] == "SourceDataLost"
        assert copied() == wanted
