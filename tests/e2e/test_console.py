"""The console of a laptop reads the pods of a context through port-forwards of the API server and a kubelet."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mirrorflow_console.cluster_flows import flows_of_context
from mirrorflow_console.documents import FlowReading
from tests.e2e.story import wait_for_records
from tests.harness.kafka.processes import wait_until
from tests.harness.kafka.tools import load
from tests.harness.kubernetes.stage import FLOWS, WAIT_S, Stage
from tests.integration.kafka.groups import put_group

NOTHING: frozenset[str] = frozenset()


def test_pods_of_a_context_are_read_through_port_forwards(
    stage: Stage, make_flow: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Without a page of the flow, it has what its status has; with one, its partitions and the offsets of its groups."""
    topic = stage.east.create_topic("orders.console", partitions=2)
    put_group(stage.east, "readers", {(topic, 0): 0})
    flow = make_flow("console", [topic])
    stage.wait_for(flow, "Ready")
    load(stage.east, topic, 100)
    wait_for_records(stage, f"{flow}.{topic}", 100)
    kubeconfig = json.loads(stage.kubectl("config", "view", "--flatten", "--raw", "--output=json"))
    for context in kubeconfig["contexts"]:
        context["context"]["namespace"] = FLOWS
    (tmp_path / "kubeconfig").write_text(json.dumps(kubeconfig))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))

    source = flows_of_context(kubeconfig["current-context"])
    keys = frozenset({f"{FLOWS}~{flow}"})

    def read(detailed: frozenset[str]) -> FlowReading:
        return next(
            reading
            for reading in source.read(detailed, detailed, is_watched=True)
            if reading.key == f"{FLOWS}~{flow}"
        )

    assert read(NOTHING).document is None
    wait_until("the group is read", lambda: bool(read(keys).offsets), timeout_s=WAIT_S)
    reading = read(keys)
    assert reading.problem == ""
    assert reading.document is not None
    assert {row["partition"] for row in reading.document.progress.partitions if row["topic"] == topic} == {
        0,
        1,
    }
    assert {row["group"] for row in reading.offsets} == {"readers"}
