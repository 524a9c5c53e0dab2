"""The operator process on a real API server.

Conditions of a changed spec come from the pods of that spec and have its generation.
"""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mirrorflow_operator.plan.pod_template import HTTP_PORT
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.flows import condition
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.harness.kubernetes.requests import Requests
from tests.harness.kubernetes.simulated_pods import mark_pods_running
from tests.harness.kubernetes.stub_connectors import StubConnectors, addresses, summary
from tests.integration.kubernetes.controlled import manifest

NAME = "east-to-west"
WELL, BAD = addresses(77, 2)
SETTLE_S = "3600"  # nothing that waits for this time happens during the test
WAIT_S = 90.0  # seconds on an idle machine
NOTHING = {"reason": "NothingMatches", "count": 1, "example": "No topic of east is selected."}


@contextmanager
def _stubs() -> Iterator[None]:
    """Serves connectors at both addresses. One works, and the other selects no topic."""
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with StubConnectors(port=HTTP_PORT, hosts=[WELL, BAD]) as stubs:
            stubs.responses[BAD] = summary(reasons=[NOTHING], partitions={"total": 0, "stopped": 0})
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(WAIT_S)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@pytest.fixture
def operator(mirrorflows: ApiServer, namespace: Kubectl, tmp_path: Path) -> Iterator[OperatorProcess]:
    """One operator for the test's namespace. It keeps its reported conditions for an hour."""
    user = mirrorflows.user("operator-of-generations", groups=["system:masters"])
    with (
        _stubs(),
        OperatorProcess(
            kubeconfig=user.kubeconfig,
            folder=tmp_path,
            namespaces=[namespace.namespace],
            environment={"MIRRORFLOW_SETTLE_S": SETTLE_S},
        ) as process,
    ):
        process.wait_until_leading()
        yield process


def _watch(namespace: Kubectl, address: str, until: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """Runs pending pods at *address* until *until* is true.

    Returns every version of the flow that was read meanwhile.
    """
    flows: list[dict[str, Any]] = []

    def is_as_expected() -> bool:
        mark_pods_running(Requests(namespace.kubeconfig), iter([address] * 9), namespace=namespace.namespace)
        flow = namespace.get("mirrorflow", NAME)
        if flow.get("status", {}).get("conditions"):
            flows.append(flow)
        return bool(flows) and until(flows[-1])

    wait_until("the status is as expected", is_as_expected, timeout_s=WAIT_S)
    return flows


def _is_ready(status: str, generation: int) -> Callable[[dict[str, Any]], bool]:
    def has_condition(flow: dict[str, Any]) -> bool:
        ready = condition(flow, "Ready")
        return (ready["status"], ready["observedGeneration"]) == (status, generation)

    return has_condition


@pytest.mark.usefixtures("operator")
def test_conditions_of_a_changed_spec_come_from_its_own_pods_at_once(namespace: Kubectl):
    """Until then, Reconciling is True and Ready keeps the old generation, regardless of how long conditions are kept."""
    document = manifest()
    namespace.apply(document)
    _watch(namespace, WELL, _is_ready("True", 1))
    for generation, topics, address, status in ((2, ["ordrs"], BAD, "False"), (3, ["orders"], WELL, "True")):
        patch = json.dumps({"spec": {"topics": {"include": topics}}})
        namespace("patch", "mirrorflow", NAME, "--type=merge", f"--patch={patch}")
        flows = _watch(namespace, address, _is_ready(status, generation))

        for flow in flows[:-1]:
            if flow["status"]["observedGeneration"] == generation:
                assert generation - 1 == condition(flow, "Ready")["observedGeneration"]
                assert "True" == condition(flow, "Reconciling")["status"]
        if status == "False":
            assert "NothingMatches" == condition(flows[-1], "Ready")["reason"]
