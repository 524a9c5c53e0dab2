"""Versions and rolls: an upgrade of the operator touches no connector, and what a roll of one costs is measured."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from tests.e2e.story import assert_same, names, restarts, wait_for_records
from tests.harness.demo.producer import SteadyProducer
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.kubernetes.images import REPOSITORY, TARGETS, VERSION
from tests.harness.kubernetes.stage import WAIT_S, Stage

pytestmark = pytest.mark.xdist_group("node")
NEXT = "0.1.1"  # the same images under the name of a release to come
RATE = 200
SAMPLE_S = 0.02
GAP_MOST_S = (
    30.0  # an orderly hand-over takes a second or two; a machine that starts a pod meanwhile has its own
)
REFUSED_MOST = 20


def test_an_upgrade_of_the_operator_rolls_no_connector_until_a_flow_asks(
    stage: Stage, flow: str, another_flow: Callable[..., str]
):
    """The new operator runs this replicator and the one before: pinned flows stay, new ones get the new one."""
    for target in TARGETS:
        stage.cluster.tag(f"{REPOSITORY}/{target}:{VERSION}", f"{REPOSITORY}/{target}:{NEXT}")
    stage.east.create_topic("orders.upgrade")
    before = stage.pods(flow)
    try:
        stage.release.upgrade(image={"tag": NEXT}, replicator={"versions": [NEXT, VERSION]})
        load(stage.east, "orders.upgrade", 500)
        wait_for_records(stage, "east.orders.upgrade", 500)
        new = another_flow("young", ["young.*"])
        stage.wait_for(new, "Ready")
        versions = {name: stage.resource(name)["status"]["version"] for name in (flow, new)}
        after = stage.pods(flow)
        images = {
            pod["spec"]["containers"][0]["image"].rpartition(":")[2]
            for pod in [*stage.pods(new), *stage.release.operators()]
        }
    finally:
        stage.delete("young")
        stage.release.upgrade()

    assert names(after) == names(before)
    assert restarts(after) == restarts(before)
    assert versions == {flow: VERSION, "young": NEXT}
    assert images == {NEXT}
    assert_same(stage, "orders.upgrade")
    assert names(stage.pods(flow)) == names(before)


@dataclass(kw_only=True, slots=True)
class Watched:
    """The end of a copy, looked at again and again: the longest time in which it did not move."""

    end: int = 0
    moved_at: float = field(default_factory=time.monotonic)
    gap_s: float = 0.0

    def see(self, end: int) -> None:
        now = time.monotonic()
        if end > self.end:
            self.gap_s = max(self.gap_s, now - self.moved_at)
            self.end, self.moved_at = end, now


def test_a_roll_costs_a_short_gap_and_few_refused_writes(stage: Stage, flow: str):
    """The new pod is warm before the old one goes. Both figures are printed: they are those of docs/kubernetes.md."""
    topic = "orders.roll"
    stage.east.create_topic(topic)
    stage.patch(flow, {"connectors": {"source": {"resources": {"requests": {"memory": "60Mi"}}}}})
    with SteadyProducer(
        bootstrap=stage.east.internal_bootstrap, topics=(topic,), backlog=1_000, rate=RATE
    ) as producer:
        wait_for_records(stage, f"east.{topic}", 1_000)
        old = stage.pods(flow, "source")
        log = stage.west.broker(1).log
        read = log.stat().st_size
        watched = Watched(end=sum(stage.west.end_offsets(f"east.{topic}").values()))
        stage.patch(flow, {"connectors": {"source": {"resources": {"requests": {"memory": "61Mi"}}}}})
        until = [float("inf")]

        def over() -> bool:
            watched.see(sum(stage.west.end_offsets(f"east.{topic}").values()))
            if until[0] == float("inf") and not names(old) & _all_pods(stage, flow):
                until[0] = time.monotonic() + 5.0  # the hand-over follows the old pod's end
            return time.monotonic() > until[0] and time.monotonic() - watched.moved_at < 1.0

        wait_until("the roll is over", over, timeout_s=WAIT_S, poll_s=SAMPLE_S)
        producer.stop()
        wait_for_records(stage, f"east.{topic}", producer.acknowledged)
    with log.open(errors="replace") as lines:
        lines.seek(read)
        refused = sum("OutOfOrderSequence" in line or "InvalidProducerEpoch" in line for line in lines)

    print(f"A roll: the longest gap was {watched.gap_s:.1f} s, {refused} writes were refused.")
    assert_same(stage, topic)
    assert watched.gap_s < GAP_MOST_S
    assert refused <= REFUSED_MOST


def _all_pods(stage: Stage, flow: str) -> set[str]:
    """Those of the source connector, on their way out or not."""
    wanted = f"mirrorflow.io/flow={flow},mirrorflow.io/connector=source"
    return names(stage.kubectl.get("pods", f"--selector={wanted}")["items"])
