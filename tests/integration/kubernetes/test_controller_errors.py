"""Errors between the operator and its API server: each write and each list may be refused, cut, lost or late, watches may end or fall
silent. The flow gets there, with a bounded number of calls; and where nothing changes, nothing is written.
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
from tests.harness.kubernetes.faults import CutBody, Delay, Drop, Fault, LoseAnswer, Match, Refuse
from tests.harness.kubernetes.imagined_pods import run_pods
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.harness.kubernetes.requests import Requests
from tests.harness.kubernetes.stub_connectors import addresses, stub_command
from tests.integration.kubernetes.controlled import manifest, names, planned, there, unchanging

STRIKES = 2
STATUS_WRITES_MAX = 6  # for a flow whose pods are created and nothing else
WATCHES_MIN = 6  # of ten; the others may begin later
QUIET_FLOWS = 10
OWN_OPERATOR = "own-operator"  # a label of flows that the operator of this module leaves alone
SCRAPE_S = 0.5
QUIET_S = 8.0  # eight polls and four readings of everything
STOP = '--patch={"spec":{"state":"Stopped"}}'


@pytest.fixture(scope="module")
def proxy(mirrorflows: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultProxy]:
    user = mirrorflows.user("unlucky", groups=["system:masters"])
    folder = tmp_path_factory.mktemp("proxy")
    with FaultProxy(kubeconfig_behind=user.kubeconfig, folder=folder) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def operator(proxy: FaultProxy) -> Iterator[OperatorProcess]:
    """One for all tests of this module, for the whole cluster but flows with an operator of their own, behind the proxy."""
    others = {"MIRRORFLOW_SELECTOR": f"!{OWN_OPERATOR}"}
    with OperatorProcess(kubeconfig=proxy.kubeconfig, folder=proxy.folder, environment=others) as process:
        process.wait_until_leading()
        yield process


def _has_all(namespace: Kubectl, document: dict[str, object]) -> bool:
    wanted = names(planned(document, namespace.namespace))
    flow = namespace.get("mirrorflow", "east-to-west")
    observed = flow.get("status", {}).get("observedGeneration")
    return set(there(namespace)) == wanted and bool(observed == flow["metadata"]["generation"])


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
        LoseAnswer(),
        Drop(),
        Delay(0.5),
    ],
    ids=lambda fault: f"{type(fault).__name__}-{getattr(fault, 'status', '')}".strip("-").lower(),
)
def test_a_flow_gets_there_whatever_some_of_its_calls_meet(
    proxy: FaultProxy, operator: OperatorProcess, namespace: Kubectl, fault: Fault, verb: str
):
    """Each strike costs one more call, not a storm of them."""
    document = manifest()
    here = Match(namespace=namespace.namespace)
    struck = Match(
        namespace=namespace.namespace,
        write=True if verb == "write" else None,
        verb="list" if verb == "list" else None,
    )
    rule = proxy.on(struck, fault, skip=2, times=STRIKES)

    namespace.apply(document)
    wait_until("the flow is there", lambda: _has_all(namespace, document))
    wait_until("nothing is due", lambda: operator.idle)

    asks = proxy.asks(here)
    objects = len(planned(document, namespace.namespace))
    assert rule.struck == STRIKES
    assert sum(one.is_write for one in asks) <= objects + STRIKES + 1 + STATUS_WRITES_MAX
    assert sum(one.verb == "list" for one in asks) <= objects + STRIKES
    assert "Traceback" not in operator.child.log.read_text()


def test_what_changes_while_a_pass_writes_is_mended_by_the_next(
    proxy: FaultProxy, operator: OperatorProcess, namespace: Kubectl
):
    """An object that the pass had found as it should be, and had gone on from."""
    document = manifest()
    namespace.apply(document)
    wait_until("the flow is there", lambda: _has_all(namespace, document))
    wait_until("nothing is due", lambda: operator.idle)

    write = proxy.on(Match(namespace=namespace.namespace, verb="patch", resource="deployments"), Delay(2.0))
    namespace("scale", "deployment", "east-to-west-source", "--replicas=4")
    wait_until("it is being mended", lambda: write.struck == 1)
    namespace("label", "serviceaccount", "east-to-west", "mirrorflow.io/flow-")

    wait_until("the other is mended, too", lambda: _has_all(namespace, document))
    assert there(namespace)["Deployment east-to-west-source"]["spec"]["replicas"] == 1


@pytest.mark.parametrize("end", ["drop", "expire"])
def test_watches_that_end_are_begun_again_and_miss_nothing(
    proxy: FaultProxy, operator: OperatorProcess, namespace: Kubectl, end: str
):
    """What changed in between is followed; each watch is asked for a few times, not all the time."""
    document = manifest()
    namespace.apply(document)
    wait_until("the flow is there", lambda: _has_all(namespace, document))
    wait_until("flows are watched", lambda: "mirrorflows" in proxy.watched())
    before = len(proxy.asks(Match(verb="watch")))

    ended = (proxy.drop_watches if end == "drop" else proxy.expire_watches)()
    namespace("patch", "mirrorflow", "east-to-west", "--type=merge", STOP)

    wait_until("the change is followed", lambda: _stopped(namespace))
    assert ended >= 6
    assert len(proxy.asks(Match(verb="watch"))) - before <= 3 * ended
    assert operator.metric("watch_restarts_total") == 0


def _stopped(namespace: Kubectl) -> bool:
    found = namespace.get("deployments")["items"]
    return bool(found) and all(one["spec"]["replicas"] == 0 for one in found)


def test_watches_that_fall_silent_are_found_out(mirrorflows: ApiServer, namespace: Kubectl, tmp_path: Path):
    """Half-open: nothing says so. Reading everything again finds the change at once, and then begins the watches anew."""
    user = mirrorflows.user(f"deaf-{namespace.namespace}", groups=["system:masters"])
    document = manifest()
    namespace.apply(document)
    with (
        FaultProxy(kubeconfig_behind=user.kubeconfig, folder=tmp_path) as proxy,
        OperatorProcess(
            kubeconfig=proxy.kubeconfig,
            folder=tmp_path,
            namespaces=[namespace.namespace],
            environment={"MIRRORFLOW_RESYNC_S": "2"},
        ) as operator,
    ):
        operator.wait_until_leading()
        wait_until("the flow is there", lambda: _has_all(namespace, document))
        wait_until("flows are watched", lambda: "mirrorflows" in proxy.watched())
        wait_until("most kinds are watched", lambda: len(proxy.watched()) >= WATCHES_MIN)

        assert proxy.silence_watches() >= WATCHES_MIN
        namespace("patch", "mirrorflow", "east-to-west", "--type=merge", STOP)

        wait_until("the change is followed", lambda: _stopped(namespace))
        wait_until("the watches begin anew", lambda: operator.metric("watch_restarts_total") >= 1)
        assert operator.child.running


def test_where_nothing_changes_nothing_is_written(mirrorflows: ApiServer, namespace: Kubectl, tmp_path: Path):
    """Ten flows at rest, asked every second and read anew every two. `python -m benchmarks operator --quiescence` takes five minutes."""
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
        wait_until("every pod is there", lambda: len(namespace.get("pods")["items"]) == pods)
        requests = Requests(mirrorflows.kubectl.kubeconfig)
        assert run_pods(requests, pod_addresses, namespace=namespace.namespace) == pods
        # A scrape costs the operator as much as several polls: on a busy machine it would do nothing else.
        wait_until("every pod was asked", lambda: operator.metric("polls_total") >= 3 * pods, poll_s=SCRAPE_S)
        assert operator.metric("polls_failed_total") == 0
        wait_until("every flow is Ready", lambda: _all_ready(namespace))
        unchanging(lambda: mirrorflows.written_by(name))
        before, asked = mirrorflows.written_by(name), operator.metric("polls_total")

        wait_until(
            "eight polls later",
            lambda: operator.metric("polls_total") >= asked + QUIET_S * pods,
            poll_s=SCRAPE_S,
        )

        assert mirrorflows.written_by(name) == before


@contextmanager
def stub_connectors(pods: int, folder: Path) -> Iterator[list[str]]:
    """So many that answer where connectors do; their addresses."""
    block = random.randrange(100, 200)
    stubs = start("stubs", stub_command(HTTP_PORT, block, pods), log=folder / "stubs.log")
    try:
        yield addresses(block, pods)
    finally:
        stubs.kill()


def _all_ready(namespace: Kubectl) -> bool:
    flows = namespace.get("mirrorflows")["items"]
    conditions = [{one["type"]: one["status"] for one in flow["status"]["conditions"]} for flow in flows]
    return all(one["Ready"] == "True" for one in conditions)
