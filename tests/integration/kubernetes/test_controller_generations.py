"""The operator, as a process, on a real API server: a changed spec is judged by its own pods, and no earlier judgement has its number."""

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
from tests.harness.kubernetes.imagined_pods import run_pods
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.harness.kubernetes.requests import Requests
from tests.harness.kubernetes.stub_connectors import StubConnectors, addresses, summary
from tests.integration.kubernetes.controlled import manifest

NAME = "east-to-west"
WELL, BAD = addresses(77, 2)
SETTLE_S = "3600"  # nothing that waits for this shows within the test
WAIT_S = 90.0  # some seconds alone
NOTHING = {"reason": "NothingMatches", "count": 1, "example": "No topic of east is selected."}


@contextmanager
def _stubs() -> Iterator[None]:
    """Connectors at both addresses: one works, the other one selects no topic."""
    loop, ready, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with StubConnectors(port=HTTP_PORT, hosts=[WELL, BAD]) as stubs:
            stubs.answers[BAD] = summary(reasons=[NOTHING], partitions={"total": 0, "stopped": 0})
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
    """One for the test's namespace, which keeps what it reports for an hour."""
    user = mirrorflows.user("operator-of-generations", groups=["system:masters"])
    with (
        _stubs(),
        OperatorProcess(
            kubeconfig=user.kubeconfig,
            folder=tmp_path,
            namespaces=[namespace.namespace],
            environment={"MIRRORFLOW_SETTLE_S": SETTLE_S},
        ) as one,
    ):
        one.wait_until_leading()
        yield one


def _watch(namespace: Kubectl, address: str, until: Callable[[dict[str, Any]], bool]) -> list[dict[str, Any]]:
    """Runs pending pods at *address* and returns every status that was read, the last one as *until* wants it."""
    seen: list[dict[str, Any]] = []

    def found() -> bool:
        run_pods(Requests(namespace.kubeconfig), iter([address] * 9), namespace=namespace.namespace)
        flow = namespace.get("mirrorflow", NAME)
        if flow.get("status", {}).get("conditions"):
            seen.append(flow)
        return bool(seen) and until(seen[-1])

    wait_until("the status is as it should be", found, timeout_s=WAIT_S)
    return seen


def _is_ready(status: str, generation: int) -> Callable[[dict[str, Any]], bool]:
    def found(flow: dict[str, Any]) -> bool:
        ready = condition(flow, "Ready")
        return (ready["status"], ready["observedGeneration"]) == (status, generation)

    return found


@pytest.mark.usefixtures("operator")
def test_a_changed_spec_is_judged_by_its_own_pods_and_both_ways_at_once(namespace: Kubectl):
    """However long conditions are kept otherwise: until then Reconciling is True, and Ready keeps the earlier number."""
    document = manifest()
    namespace.apply(document)
    _watch(namespace, WELL, _is_ready("True", 1))
    for generation, topics, address, status in ((2, ["ordrs"], BAD, "False"), (3, ["orders"], WELL, "True")):
        patch = json.dumps({"spec": {"topics": {"include": topics}}})
        namespace("patch", "mirrorflow", NAME, "--type=merge", f"--patch={patch}")
        seen = _watch(namespace, address, _is_ready(status, generation))

        for flow in seen[:-1]:
            if flow["status"]["observedGeneration"] == generation:
                assert generation - 1 == condition(flow, "Ready")["observedGeneration"]
                assert "True" == condition(flow, "Reconciling")["status"]
        if status == "False":
            assert "NothingMatches" == condition(seen[-1], "Ready")["reason"]
