"""The API server refuses, cuts, loses or delays the operator's requests, or its watches end or stop sending events.

The flow is completed with a bounded number of calls. If nothing changes, nothing is written.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirrorflow_operator.plan.pod_template import HTTP_PORT
from tests.harness.kafka.processes import start, wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.fault_proxy import FaultProxy
from tests.harness.kubernetes.faults import CutBody, Delay, Drop, Fault, LoseResponse, Match, Refuse
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.harness.kubernetes.requests import Requests
from tests.harness.kubernetes.simulated_pods import mark_pods_running
from tests.harness.kubernetes.stub_connectors import addresses, stub_command
from tests.integration.kubernetes.controlled import (
    existing_objects,
    manifest,
    object_names,
    planned,
    wait_until_unchanged,
)

FAULTS = 2
STATUS_WRITES_MAX = 6  # for a flow whose pods are created and nothing else
WATCHES_MIN = 6  # of ten watches; the others may begin later
QUIET_FLOWS = 10
OWN_OPERATOR = "own-operator"  # a label of flows that the operator of this module ignores
SCRAPE_S = 0.5
QUIET_S = 8.0  # eight polls and four full lists
STOP = '--patch={"spec":{"state":"Stopped"}}'


@pytest.fixture(scope="module")
def proxy(mirrorflows: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultProxy]:
    user = mirrorflows.user("unlucky", groups=["system:masters"])
    folder = tmp_path_factory.mktemp("proxy")
    with FaultProxy(server_kubeconfig=user.kubeconfig, folder=folder) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def operator(proxy: FaultProxy) -> Iterator[OperatorProcess]:
    """An operator that is connected through the proxy.

    It serves all flows of this module except those with their own operator.
    """
    others = {"MIRRORFLOW_SELECTOR": f"!{OWN_OPERATOR}"}
    with OperatorProcess(kubeconfig=proxy.kubeconfig, folder=proxy.folder, environment=others) as process:
        process.wait_until_leading()
        yield process


def _has_all(namespace: Kubectl, document: dict[str, object]) -> bool:
    expected = object_names(planned(document, namespace.namespace))
    flow = namespace.get("mirrorflow", "east-to-west")
    observed = flow.get("status", {}).get("observedGeneration")
    return set(existing_objects(namespace)) == expected and bool(observed == flow["metadata"]["generation"])


@pytest.mark.parametrize("verb", ["write", "list"])
@pytest.mark.parametrize(
    "fault",
    [
        Refuse(409),
        Refuse(410),
        Refuse(429, retry_after_s=1),
        Refuse(500),
        Refuse(503),
        CutBody(30),
        LoseResponse(),
        Drop(),
        Delay(0.5),
    ],
    ids=lambda fault: f"{type(fault).__name__}-{getattr(fault, 'status', '')}".strip("-").lower(),
)
def test_a_flow_is_completed_despite_failing_calls(
    proxy: FaultProxy, operator: OperatorProcess, namespace: Kubectl, fault: Fault, verb: str
):
    """Each fault costs one more call, not many."""
    document = manifest()
    in_namespace = Match(namespace=namespace.namespace)
    faulty = Match(
        namespace=namespace.namespace,
        write=True if verb == "write" else None,
        verb="list" if verb == "list" else None,
    )
    rule = proxy.on(faulty, fault, skip=2, times=FAULTS)

    namespace.apply(document)
    wait_until("the flow is complete", lambda: _has_all(namespace, document))
    wait_until("nothing is due", lambda: operator.idle)

    proxied = proxy.requests(in_namespace)
    objects = len(planned(document, namespace.namespace))
    assert rule.hits == FAULTS
    assert sum(request.is_write for request in proxied) <= objects + FAULTS + 1 + STATUS_WRITES_MAX
    assert sum(request.verb == "list" for request in proxied) <= objects + FAULTS
    assert "Traceback" not in operator.child.log.read_text()


def test_changes_during_a_pass_are_reverted_by_the_next(
    proxy: FaultProxy, operator: OperatorProcess, namespace: Kubectl
):
    """The changed object was correct when the pass compared it."""
    document = manifest()
    namespace.apply(document)
    wait_until("the flow is complete", lambda: _has_all(namespace, document))
    wait_until("nothing is due", lambda: operator.idle)

    write = proxy.on(Match(namespace=namespace.namespace, verb="patch", resource="deployments"), Delay(2.0))
    namespace("scale", "deployment", "east-to-west-source", "--replicas=4")
    wait_until("the pass writes the Deployment", lambda: write.hits == 1)
    namespace("label", "serviceaccount", "east-to-west", "mirrorflow.io/flow-")

    wait_until("the other object is reverted, too", lambda: _has_all(namespace, document))
    assert existing_objects(namespace)["Deployment east-to-west-source"]["spec"]["replicas"] == 1


@pytest.mark.parametrize("end", ["drop", "expire"])
def test_watches_that_end_are_restarted_and_miss_nothing(
    proxy: FaultProxy, operator: OperatorProcess, namespace: Kubectl, end: str
):
    """A change in between is applied, and each watch is requested only a few times."""
    document = manifest()
    namespace.apply(document)
    wait_until("the flow is complete", lambda: _has_all(namespace, document))
    wait_until("flows are watched", lambda: "mirrorflows" in proxy.watched())
    before = len(proxy.requests(Match(verb="watch")))

    ended = (proxy.drop_watches if end == "drop" else proxy.expire_watches)()
    namespace("patch", "mirrorflow", "east-to-west", "--type=merge", STOP)

    wait_until("the change is applied", lambda: _stopped(namespace))
    assert ended >= 6
    assert len(proxy.requests(Match(verb="watch"))) - before <= 3 * ended
    assert operator.metric("watch_restarts_total") == 0


def _stopped(namespace: Kubectl) -> bool:
    deployments = namespace.get("deployments")["items"]
    return bool(deployments) and all(deployment["spec"]["replicas"] == 0 for deployment in deployments)


def test_watches_that_stop_sending_events_are_restarted(
    mirrorflows: ApiServer, namespace: Kubectl, tmp_path: Path
):
    """A half-open connection causes no error.

    A full list detects the change at once, and then the watches are restarted.
    """
    user = mirrorflows.user(f"deaf-{namespace.namespace}", groups=["system:masters"])
    document = manifest()
    namespace.apply(document)
    with (
        FaultProxy(server_kubeconfig=user.kubeconfig, folder=tmp_path) as proxy,
        OperatorProcess(
            kubeconfig=proxy.kubeconfig,
            folder=tmp_path,
            namespaces=[namespace.namespace],
            environment={"MIRRORFLOW_RESYNC_S": "2"},
        ) as operator,
    ):
        operator.wait_until_leading()
        wait_until("the flow is complete", lambda: _has_all(namespace, document))
        wait_until("flows are watched", lambda: "mirrorflows" in proxy.watched())
        wait_until("most kinds are watched", lambda: len(proxy.watched()) >= WATCHES_MIN)

        assert proxy.silence_watches() >= WATCHES_MIN
        namespace("patch", "mirrorflow", "east-to-west", "--type=merge", STOP)

        wait_until("the change is applied", lambda: _stopped(namespace))
        wait_until("the watches are restarted", lambda: operator.metric("watch_restarts_total") >= 1)
        assert operator.child.running


def test_unchanged_flows_cause_no_writes(mirrorflows: ApiServer, namespace: Kubectl, tmp_path: Path):
    """Ten unchanged flows are polled every second and listed every two seconds.

    `benchmarks operator --quiescence` takes five minutes.
    """
    name = f"quiet-{namespace.namespace}"
    user = mirrorflows.user(name, groups=["system:masters"])
    for number in range(QUIET_FLOWS):
        document = manifest(f"flow-{number}")
        namespace.apply({**document, "metadata": {**document["metadata"], "labels": {OWN_OPERATOR: ""}}})
    pods = QUIET_FLOWS * 3
    with (
        stub_connectors(pods, tmp_path) as pod_addresses,
        OperatorProcess(
            kubeconfig=user.kubeconfig,
            folder=tmp_path,
            namespaces=[namespace.namespace],
            environment={"MIRRORFLOW_POLL_S": "1", "MIRRORFLOW_RESYNC_S": "2", "MIRRORFLOW_SETTLE_S": "2"},
        ) as operator,
    ):
        wait_until("every pod exists", lambda: len(namespace.get("pods")["items"]) == pods)
        requests = Requests(mirrorflows.kubectl.kubeconfig)
        assert mark_pods_running(requests, pod_addresses, namespace=namespace.namespace) == pods
        # For the operator, a scrape costs as much as several polls. A short interval would keep a busy machine
        # occupied.
        wait_until("every pod is polled", lambda: operator.metric("polls_total") >= 3 * pods, poll_s=SCRAPE_S)
        assert operator.metric("polls_failed_total") == 0
        wait_until("every flow is Ready", lambda: _all_ready(namespace))
        wait_until_unchanged(lambda: mirrorflows.written_by(name))
        before, polled = mirrorflows.written_by(name), operator.metric("polls_total")

        wait_until(
            "every pod is polled eight more times",
            lambda: operator.metric("polls_total") >= polled + QUIET_S * pods,
            poll_s=SCRAPE_S,
        )

        assert mirrorflows.written_by(name) == before


@contextmanager
def stub_connectors(pods: int, folder: Path) -> Iterator[list[str]]:
    """Starts *pods* stub connectors, and yields their addresses."""
    block = random.randrange(100, 200)
    stubs = start("stubs", stub_command(HTTP_PORT, block, pods), log=folder / "stubs.log")
    try:
        yield addresses(block, pods)
    finally:
        stubs.kill()


def _all_ready(namespace: Kubectl) -> bool:
    flows = namespace.get("mirrorflows")["items"]
    conditions = [
        {condition["type"]: condition["status"] for condition in flow["status"]["conditions"]}
        for flow in flows
    ]
    return all(condition["Ready"] == "True" for condition in conditions)
