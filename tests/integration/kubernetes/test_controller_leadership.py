"""Several operators: one leads, the others are ready and take over after any kind of end. Two leaders at once do no harm."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.integration.kubernetes.controlled import flow_id_of, manifest, names, planned, there, unchanging

LEASE_S = 3.0  # for whom it is 15, each figure here is five times as long
Start = Callable[..., OperatorProcess]


@pytest.fixture
def start(mirrorflows: ApiServer, namespace: Kubectl, tmp_path: Path) -> Iterator[Start]:
    """An operator of the test's namespace; its user is called as the test says."""
    with ExitStack() as running:

        def started(user: str, **environment: str) -> OperatorProcess:
            identity = mirrorflows.user(f"{user}-{namespace.namespace}", groups=["system:masters"])
            return running.enter_context(
                OperatorProcess(
                    kubeconfig=identity.kubeconfig,
                    folder=tmp_path,
                    namespaces=[namespace.namespace],
                    environment={
                        "MIRRORFLOW_LEASE": "shared",
                        "MIRRORFLOW_LEASE_S": str(LEASE_S),
                        **environment,
                    },
                    name=user,
                )
            )

        yield started


def _leader(*operators: OperatorProcess) -> OperatorProcess:
    def leading() -> list[OperatorProcess]:
        return [one for one in operators if one.leads]

    return wait_until("one leads", leading)[0]


def test_the_other_takes_over_when_the_leader_is_killed_or_told_to_end(start: Start, namespace: Kubectl):
    """kill -9: after the Lease's duration; SIGTERM: at once, for the Lease is given back. Who waits is ready all the time."""
    pair = [start("one"), start("two")]
    leader = _leader(*pair)
    other = next(one for one in pair if one is not leader)
    wait_until("the other is ready", lambda: other.answers("/readyz")[0] == 200)
    assert not other.leads or not leader.leads

    leader.child.kill()
    killed = time.monotonic()
    wait_until("the other leads", lambda: other.leads)
    after_kill_s = time.monotonic() - killed
    document = manifest()
    namespace.apply(document)
    wait_until("it works", lambda: set(there(namespace)) == names(planned(document, namespace.namespace)))

    third = start("three")
    wait_until("the third is ready", lambda: third.answers("/readyz")[0] == 200)
    told = time.monotonic()
    status = other.child.stop()
    ended_s = time.monotonic() - told
    wait_until("the third leads", lambda: third.leads)
    after_term_s = time.monotonic() - told

    print(
        f"take-over after kill -9 {after_kill_s:.1f} s, after SIGTERM {after_term_s:.1f} s (ended in {ended_s:.1f} s)"
    )
    assert status == 0
    assert after_kill_s < LEASE_S * 2 + 5
    assert after_term_s < 5  # the end of one and the start of the other, on a busy machine


def test_who_was_frozen_for_longer_than_its_lease_ends_itself(
    start: Start, namespace: Kubectl, mirrorflows: ApiServer
):
    """It wakes up with old news: it is gone before it writes anything."""
    frozen = start("frozen")
    frozen.wait_until_leading()
    namespace.apply(manifest())
    wait_until("it has worked", lambda: len(there(namespace)) == 8)
    frozen.child.freeze()

    other = start("other")
    other.wait_until_leading()
    before = mirrorflows.written_by(f"frozen-{namespace.namespace}")
    namespace("delete", "deployment", "east-to-west-source")
    frozen.child.thaw()

    wait_until("it has ended", lambda: not frozen.child.running)
    assert frozen.child.process.returncode == 1
    assert mirrorflows.written_by(f"frozen-{namespace.namespace}") == before


def test_operators_with_a_label_selector_share_a_namespace(start: Start, namespace: Kubectl):
    """Each serves the flows that match its selector; a label that changes moves a flow from one to the other."""
    for team in ("left", "right"):
        start(team, MIRRORFLOW_LEASE=team, MIRRORFLOW_SELECTOR=f"team={team}").wait_until_leading()
    document = manifest()
    document["metadata"]["labels"] = {"team": "left"}
    flow = document["metadata"]["name"]
    namespace.apply(document)
    namespace.apply(manifest("unclaimed"))

    def writers() -> set[str]:
        events = namespace.get("events", f"--field-selector=involvedObject.name={flow}")["items"]
        return {one["reportingInstance"].split("_")[0] for one in events}

    wait_until("one has it", lambda: writers() == {"left"})
    namespace("label", "mirrorflow", flow, "team=right", "--overwrite")
    namespace("delete", "deployment", f"{flow}-heartbeat")
    wait_until("the other has it", lambda: writers() == {"left", "right"})
    namespace("label", "mirrorflow", flow, "team=left", "--overwrite")
    namespace("delete", "deployment", f"{flow}-heartbeat")
    wait_until("it is complete again", lambda: f"Deployment {flow}-heartbeat" in there(namespace))

    assert "status" not in namespace.get("mirrorflow", "unclaimed")


def test_two_that_lead_at_once_agree_and_come_to_rest(
    start: Start, namespace: Kubectl, mirrorflows: ApiServer
):
    """Each with a Lease of its own, as after a split: every object is what one of them alone would have made, and the writing ends."""
    pair = [start(one, MIRRORFLOW_LEASE=one, MIRRORFLOW_LEASE_S="15") for one in ("left", "right")]
    for one in pair:
        one.wait_until_leading()
    documents = [manifest(f"flow-{number}") for number in range(4)]

    def change(tasks: int) -> None:
        for document in documents:
            document["spec"]["connectors"] = {"source": {"tasks": tasks}}
            namespace.apply(document)

    change(1)
    for tasks in (2, 3, 4):
        change(tasks)

    wanted = {name for document in documents for name in names(planned(document, namespace.namespace))}
    wait_until("everything is there", lambda: set(there(namespace)) == wanted)

    def as_planned() -> bool:
        now = there(namespace)
        return all(
            now[f"ConfigMap {one['metadata']['name']}"]["data"] == one["data"]
            for document in documents
            for one in planned(document, namespace.namespace, flow_id=flow_id_of(namespace, document))
            if one["kind"] == "ConfigMap"
        )

    wait_until("everything is as planned", as_planned)
    wait_until("nothing is due", lambda: all(one.idle for one in pair))
    unchanging(
        lambda: [
            written
            for one in ("left", "right")
            for written in mirrorflows.written_by(f"{one}-{namespace.namespace}")
        ]
    )
