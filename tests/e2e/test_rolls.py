"""Versions and rolls: an upgrade of the operator touches no connector, and what a roll of one costs is measured."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from tests.e2e.story import all_pods, arrived, assert_same, names, restarts, wait_for_records
from tests.harness.demo.producer import SteadyProducer
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.kubernetes.chart import chart_after
from tests.harness.kubernetes.flows import condition
from tests.harness.kubernetes.images import INSTALLED, REPOSITORY, VERSION
from tests.harness.kubernetes.stage import WAIT_S, Stage

NEXT = "0.1.1"  # the same images under the name of a release to come
RATE = 200
SAMPLE_S = 0.02
GAP_MOST_S = 15.0  # a hand-over takes a second; a machine that starts a pod meanwhile has its own
REFUSED_MOST = 20
ROLLS = int(os.environ.get("ROLLS", "1"))  # up to 3, for who wants figures


def test_an_upgrade_of_the_operator_rolls_no_connector_until_a_flow_asks(
    stage: Stage,
    ready_flow: Callable[..., str],
    make_flow: Callable[..., str],
    tmp_path: Path,
):
    """The next chart, with no value set: pinned flows stay and are looked after, new ones get the new replicator."""
    for target in INSTALLED:
        stage.cluster.tag(f"{REPOSITORY}/{target}:{VERSION}", f"{REPOSITORY}/{target}:{NEXT}")
    flow = ready_flow("upgrade", "orders.upgrade")
    before = stage.pods(flow)
    try:
        stage.release.upgrade(chart_after(NEXT, tmp_path))
        load(stage.east, "orders.upgrade", 500)
        wait_for_records(stage, f"{flow}.orders.upgrade", 500)
        stage.east.create_topic("fresh.first")
        new = make_flow("young", ["fresh.*"])
        stage.wait_for(new, "Ready")
        versions = {name: stage.resource(name)["status"]["version"] for name in (flow, new)}
        accepted = condition(stage.resource(flow), "Accepted")
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
    assert accepted["status"] == "True"
    assert images == {NEXT}
    assert_same(stage, flow, "orders.upgrade")
    assert names(stage.pods(flow)) == names(before)


@dataclass(kw_only=True, slots=True)
class Watched:
    """The end of a copy, looked at again and again beside all else: the longest time in which it did not move."""

    end: Callable[[], int]
    gap_s: float = 0.0
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        end, moved_at = self.end(), time.monotonic()
        while not self._over.wait(SAMPLE_S):
            now = time.monotonic()
            if (found := self.end()) > end:
                self.gap_s = max(self.gap_s, now - moved_at)
                end, moved_at = found, now


def test_a_roll_costs_a_short_gap_and_few_refused_writes(stage: Stage, ready_flow: Callable[..., str]):
    """The new pod is warm before the old one goes. Both figures are printed: they are those of docs/kubernetes.md."""
    topic = "orders.roll"
    flow = ready_flow("roll", topic)
    stage.patch(flow, _asking_for("60Mi"))

    def end() -> int:
        return sum(stage.west.end_offsets(f"{flow}.{topic}").values())

    with SteadyProducer(
        bootstrap=stage.east.internal_bootstrap, topics=(topic,), backlog=1_000, rate=RATE
    ) as producer:
        wait_for_records(stage, f"{flow}.{topic}", 1_000)
        log = stage.west.broker(1).log
        figures = []
        for memory in ("61Mi", "62Mi", "63Mi")[:ROLLS]:
            wait_until("no roll is under way", lambda: len(all_pods(stage, flow)) == 1, timeout_s=WAIT_S)
            old = names(all_pods(stage, flow))
            read = log.stat().st_size
            with Watched(end=end) as watched:
                stage.patch(flow, _asking_for(memory))
                wait_until("the old pod is gone", partial(_are_gone, stage, flow, old), timeout_s=WAIT_S)
                wait_for_records(stage, f"{flow}.{topic}", end() + 5 * RATE)
            figures.append((watched.gap_s, _refusals(log, read)))
        producer.stop()
        wait_for_records(stage, f"{flow}.{topic}", producer.acknowledged)

    for gap_s, refused in figures:
        print(f"A roll: the longest gap was {gap_s:.1f} s, {refused} writes were refused.")
    assert_same(stage, flow, topic)
    assert max(gap_s for gap_s, _ in figures) < GAP_MOST_S
    assert max(refused for _, refused in figures) <= REFUSED_MOST


def test_two_connectors_share_a_pod_and_part_again_at_the_cost_of_a_roll(
    stage: Stage, ready_flow: Callable[..., str]
):
    """Heartbeats go on arriving and groups being translated; the source connector's pod is not touched."""

    def end() -> int:
        return sum(stage.west.end_offsets("heartbeats").values())

    flow = ready_flow("colocated", "orders.colocated")
    source, apart = names(stage.pods(flow, "source")), {"source": 1, "checkpoint": 1, "heartbeat": 1}
    # All flows share this topic: earlier tests may have left heartbeats in it.
    begin = arrived(stage, "heartbeats")
    wait_until("heartbeats arrive", lambda: arrived(stage, "heartbeats") > begin)
    with Watched(end=end) as watched:
        for colocate, wanted in (
            (["checkpoint", "heartbeat"], {"source": 1, "checkpoint": 1}),
            (None, apart),
        ):
            stage.patch(flow, {"connectors": {"colocate": colocate}})
            wait_until(
                f"its pods are {wanted}",
                partial(_is_whole, stage, flow, wanted),
                timeout_s=WAIT_S,
                poll_s=0.2,
            )
            wait_until("heartbeats arrive", partial(_is_beyond, end, end() + 1))
            stage.wait_for(flow, "CheckpointsFresh")
            stage.wait_for(flow, "Ready")

    print(f"Into one pod and out of it: no heartbeat for {watched.gap_s:.1f} s at most.")
    assert watched.gap_s < GAP_MOST_S
    assert names(stage.pods(flow, "source")) == source


def _is_beyond(end: Callable[[], int], count: int) -> bool:
    return end() > count


def _is_whole(stage: Stage, flow: str, wanted: dict[str, int]) -> bool:
    """Whether there are these pods and no others, and the status has every connector in a ready one."""
    pods = stage.kubectl.get("pods", f"--selector=mirrorflow.io/flow={flow}")["items"]
    found = Counter(pod["metadata"]["labels"]["mirrorflow.io/connector"] for pod in pods)
    told = stage.resource(flow)["status"]["connectors"]
    well = [(one["phase"], one["replicas"], one["readyReplicas"]) for one in told.values()]
    return found == wanted and well == [("Running", 1, 1)] * 3


def _asking_for(memory: str) -> dict[str, Any]:
    return {"connectors": {"source": {"resources": {"requests": {"memory": memory}}}}}


def _refusals(log: Path, read: int) -> int:
    with log.open(errors="replace") as lines:
        lines.seek(read)
        return sum("OutOfOrderSequence" in line or "InvalidProducerEpoch" in line for line in lines)


def _are_gone(stage: Stage, flow: str, old: set[str]) -> bool:
    return not old & names(all_pods(stage, flow))
