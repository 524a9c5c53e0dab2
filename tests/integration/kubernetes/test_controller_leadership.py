"""Of several operators, one leads. The others are ready and take over after any end. Two leaders at once do no harm."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.integration.kubernetes.controlled import (
    existing_objects,
    flow_id_of,
    manifest,
    object_names,
    planned,
    wait_until_unchanged,
)

LEASE_S = 3.0  # the default is 15 s, and every other time here is five times as long
Start = Callable[..., OperatorProcess]


@pytest.fixture
def start(mirrorflows: ApiServer, namespace: Kubectl, tmp_path: Path) -> Iterator[Start]:
    """Starts operators for the test's namespace, each with its own user."""
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
        return [operator for operator in operators if operator.leads]

    return wait_until("one operator leads", leading)[0]


def test_the_standby_takes_over_when_the_leader_is_killed_or_terminated(start: Start, namespace: Kubectl):
    """After kill -9, it waits until the Lease expires. SIGTERM releases the Lease. The standby is always ready."""
    pair = [start("one"), start("two")]
    leader = _leader(*pair)
    standby = next(operator for operator in pair if operator is not leader)
    wait_until("the standby is ready", lambda: standby.get("/readyz")[0] == 200)
    assert not standby.leads or not leader.leads

    leader.child.kill()
    killed_s = time.monotonic()
    wait_until("the standby leads", lambda: standby.leads)
    after_kill_s = time.monotonic() - killed_s
    document = manifest()
    namespace.apply(document)
    wait_until(
        "the flow is complete",
        lambda: set(existing_objects(namespace)) == object_names(planned(document, namespace.namespace)),
    )

    third = start("three")
    wait_until("the third is ready", lambda: third.get("/readyz")[0] == 200)
    terminated_s = time.monotonic()
    status = standby.child.stop()
    ended_s = time.monotonic() - terminated_s
    wait_until("the third leads", lambda: third.leads)
    after_term_s = time.monotonic() - terminated_s

    print(
        f"take-over after kill -9 {after_kill_s:.1f} s, after SIGTERM {after_term_s:.1f} s (ended in {ended_s:.1f} s)"
    )
    assert status == 0
    assert after_kill_s < LEASE_S * 2 + 5
    assert after_term_s < 5  # the end of one process and the takeover by the next, on a busy machine


def test_an_operator_suspended_for_longer_than_its_lease_exits(
    start: Start, namespace: Kubectl, mirrorflows: ApiServer
):
    """It resumes with outdated state, and exits before it writes anything."""
    frozen = start("frozen")
    frozen.wait_until_leading()
    namespace.apply(manifest())
    wait_until("the flow is complete", lambda: len(existing_objects(namespace)) == 8)
    frozen.child.freeze()

    other = start("other")
    other.wait_until_leading()
    before = mirrorflows.written_by(f"frozen-{namespace.namespace}")
    namespace("delete", "deployment", "east-to-west-source")
    frozen.child.thaw()

    wait_until("the frozen operator has ended", lambda: not frozen.child.running)
    assert frozen.child.process.returncode == 1
    assert mirrorflows.written_by(f"frozen-{namespace.namespace}") == before


def test_operators_with_a_label_selector_share_a_namespace(start: Start, namespace: Kubectl):
    """Each serves the flows that match its selector. A changed label moves a flow from one operator to the other."""
    for team in ("left", "right"):
        start(team, MIRRORFLOW_LEASE=team, MIRRORFLOW_SELECTOR=f"team={team}").wait_until_leading()
    document = manifest()
    document["metadata"]["labels"] = {"team": "left"}
    flow = document["metadata"]["name"]
    namespace.apply(document)
    namespace.apply(manifest("unclaimed"))

    def writers() -> set[str]:
        events = namespace.get("events", f"--field-selector=involvedObject.name={flow}")["items"]
        return {event["reportingInstance"].split("_")[0] for event in events}

    wait_until("the left operator serves the flow", lambda: writers() == {"left"})
    namespace("label", "mirrorflow", flow, "team=right", "--overwrite")
    namespace("delete", "deployment", f"{flow}-heartbeat")
    wait_until("the right operator serves the flow", lambda: writers() == {"left", "right"})
    namespace("label", "mirrorflow", flow, "team=left", "--overwrite")
    namespace("delete", "deployment", f"{flow}-heartbeat")
    wait_until(
        "the flow is complete again", lambda: f"Deployment {flow}-heartbeat" in existing_objects(namespace)
    )

    assert "status" not in namespace.get("mirrorflow", "unclaimed")


def test_two_simultaneous_leaders_agree_and_stop_writing(
    start: Start, namespace: Kubectl, mirrorflows: ApiServer
):
    """Each has its own Lease, as after a network split.

    Every object is the same as with one leader, and the writes end.
    """
    pair = [start(name, MIRRORFLOW_LEASE=name, MIRRORFLOW_LEASE_S="15") for name in ("left", "right")]
    for operator in pair:
        operator.wait_until_leading()
    documents = [manifest(f"flow-{number}") for number in range(4)]

    def change(tasks: int) -> None:
        for document in documents:
            document["spec"]["connectors"] = {"source": {"tasks": tasks}}
            namespace.apply(document)

    change(1)
    for tasks in (2, 3, 4):
        change(tasks)

    expected = {
        name for document in documents for name in object_names(planned(document, namespace.namespace))
    }
    wait_until("all objects exist", lambda: set(existing_objects(namespace)) == expected)

    def as_planned() -> bool:
        existing = existing_objects(namespace)
        return all(
            existing[f"ConfigMap {config_map['metadata']['name']}"]["data"] == config_map["data"]
            for document in documents
            for config_map in planned(document, namespace.namespace, flow_id=flow_id_of(namespace, document))
            if config_map["kind"] == "ConfigMap"
        )

    wait_until("all objects are as planned", as_planned)
    wait_until("nothing is due", lambda: all(operator.idle for operator in pair))
    wait_until_unchanged(
        lambda: [
            written
            for name in ("left", "right")
            for written in mirrorflows.written_by(f"{name}-{namespace.namespace}")
        ]
    )
