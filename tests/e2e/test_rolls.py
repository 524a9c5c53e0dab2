"""An upgrade of the operator replaces no connector, and the pause during a rollout is measured."""

import os
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from tests.e2e.story import all_pods, assert_same, copied_records, pod_names, restarts, wait_for_records
from tests.harness.demo.producer import SteadyProducer
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.kubernetes.chart import chart_after
from tests.harness.kubernetes.flows import condition
from tests.harness.kubernetes.images import INSTALLED, REPOSITORY, VERSION
from tests.harness.kubernetes.stage import WAIT_S, Stage

NEXT = "0.1.1"  # the tag of a later release with the same images
RATE = 200
SAMPLE_S = 0.02
GAP_MOST_S = 15.0  # a takeover takes a second, and starting a pod slows the machine
REFUSED_MOST = 20
ROLLS = int(os.environ.get("ROLLS", "1"))  # may be 3 for better figures


def test_an_upgrade_of_the_operator_replaces_no_connector(
    stage: Stage,
    ready_flow: Callable[..., str],
    make_flow: Callable[..., str],
    tmp_path: Path,
):
    """The next chart has no values set. Pinned flows keep their version, and new flows get the new replicator."""
    for target in INSTALLED:
        stage.cluster.tag(f"{REPOSITORY}/{target}:{VERSION}", f"{REPOSITORY}/{target}:{NEXT}")
    flow = ready_flow("upgrade", "orders.upgrade")
    before = stage.pods(flow)
    try:
        stage.release.upgrade(chart_after(NEXT, tmp_path))
        load(stage.east, "orders.upgrade", 500)
        wait_for_records(stage, f"{flow}.orders.upgrade", 500)
        stage.east.create_topic("fresh.first")
        new_flow = make_flow("young", ["fresh.*"])
        stage.wait_for(new_flow, "Ready")
        versions = {name: stage.resource(name)["status"]["version"] for name in (flow, new_flow)}
        accepted = condition(stage.resource(flow), "Accepted")
        after = stage.pods(flow)
        images = {
            pod["spec"]["containers"][0]["image"].rpartition(":")[2]
            for pod in [*stage.pods(new_flow), *stage.release.operators()]
        }
    finally:
        stage.delete("young")
        stage.release.upgrade()

    assert pod_names(after) == pod_names(before)
    assert restarts(after) == restarts(before)
    assert versions == {flow: VERSION, "young": NEXT}
    assert accepted["status"] == "True"
    assert images == {NEXT}
    assert_same(stage, flow, "orders.upgrade")
    assert pod_names(stage.pods(flow)) == pod_names(before)


@dataclass(kw_only=True, slots=True)
class EndMeter:
    """Samples the end offset of a copy in a thread, and measures the longest time in which it did not increase."""

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
            if (current := self.end()) > end:
                self.gap_s = max(self.gap_s, now - moved_at)
                end, moved_at = current, now


def test_a_rollout_causes_a_short_pause_and_few_refused_writes(stage: Stage, ready_flow: Callable[..., str]):
    """The new pod is ready before the old one stops. The test prints both figures, which docs/kubernetes.md contains."""
    topic = "orders.roll"
    flow = ready_flow("roll", topic)
    stage.patch(flow, _with_memory_request("60Mi"))

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
            old_pods = pod_names(all_pods(stage, flow))
            log_size = log.stat().st_size
            with EndMeter(end=end) as meter:
                stage.patch(flow, _with_memory_request(memory))
                wait_until(
                    "the old pod is gone", partial(_have_no_pod_of, stage, flow, old_pods), timeout_s=WAIT_S
                )
                wait_for_records(stage, f"{flow}.{topic}", end() + 5 * RATE)
            figures.append((meter.gap_s, _refused_writes(log, log_size)))
        producer.stop()
        wait_for_records(stage, f"{flow}.{topic}", producer.acknowledged)

    for gap_s, refused in figures:
        print(f"Roll: the longest gap was {gap_s:.1f} s, {refused} writes were refused.")
    assert_same(stage, flow, topic)
    assert max(gap_s for gap_s, _ in figures) < GAP_MOST_S
    assert max(refused for _, refused in figures) <= REFUSED_MOST


def test_two_connectors_move_into_one_pod_and_back_with_one_rollout_each(
    stage: Stage, ready_flow: Callable[..., str]
):
    """Heartbeats and translated groups continue. The source connector's pod is not replaced."""

    def end() -> int:
        return sum(stage.west.end_offsets("heartbeats").values())

    flow = ready_flow("colocated", "orders.colocated")
    source, separate = pod_names(stage.pods(flow, "source")), {"source": 1, "checkpoint": 1, "heartbeat": 1}
    # All flows share this topic, and earlier tests may have left heartbeats in it.
    count_before = copied_records(stage, "heartbeats")
    wait_until("a heartbeat is copied", lambda: copied_records(stage, "heartbeats") > count_before)
    with EndMeter(end=end) as meter:
        for colocate, expected in (
            (["checkpoint", "heartbeat"], {"source": 1, "checkpoint": 1}),
            (None, separate),
        ):
            stage.patch(flow, {"connectors": {"colocate": colocate}})
            wait_until(
                f"its pods are {expected}",
                partial(_has_only, stage, flow, expected),
                timeout_s=WAIT_S,
                poll_s=0.2,
            )
            wait_until("a heartbeat is copied", partial(_exceeds, end, end() + 1))
            stage.wait_for(flow, "CheckpointsFresh")
            stage.wait_for(flow, "Ready")

    print(f"Into one pod and apart: no heartbeat for {meter.gap_s:.1f} s at most.")
    assert meter.gap_s < GAP_MOST_S
    assert pod_names(stage.pods(flow, "source")) == source


def _exceeds(end: Callable[[], int], count: int) -> bool:
    return end() > count


def _has_only(stage: Stage, flow: str, expected: dict[str, int]) -> bool:
    """Returns whether the flow has exactly these pods, and its status reports every connector as running in a ready pod."""
    pods = stage.kubectl.get("pods", f"--selector=mirrorflow.io/flow={flow}")["items"]
    actual = Counter(pod["metadata"]["labels"]["mirrorflow.io/connector"] for pod in pods)
    reported = stage.resource(flow)["status"]["connectors"]
    states = [
        (connector["phase"], connector["replicas"], connector["readyReplicas"])
        for connector in reported.values()
    ]
    return actual == expected and states == [("Running", 1, 1)] * 3


def _with_memory_request(memory: str) -> dict[str, Any]:
    return {"connectors": {"source": {"resources": {"requests": {"memory": memory}}}}}


def _refused_writes(log: Path, offset: int) -> int:
    with log.open(errors="replace") as lines:
        lines.seek(offset)
        return sum("OutOfOrderSequence" in line or "InvalidProducerEpoch" in line for line in lines)


def _have_no_pod_of(stage: Stage, flow: str, old: set[str]) -> bool:
    return not old & pod_names(all_pods(stage, flow))
