"""Switchovers of a running operator on a real API server: one at a time, and completed although objects are deleted.

There are no nodes: the tests write the status of the Job's pod, and serve what its process would report.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from mirrorflow_cli.switchover_job_progress import SwitchoverProgress
from mirrorflow_core.switchover.loss import EndEvidence, LossAssessment, PartitionLoss
from mirrorflow_core.switchover.record import StateEntry, SwitchoverRecord
from mirrorflow_core.switchover.states import SwitchoverState, SwitchoverType
from mirrorflow_operator.plan.spark_pods import PROGRESS_PORT
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.flows import condition
from tests.harness.kubernetes.kubectl import Kubectl, KubectlError
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.integration.kubernetes.controlled import events, manifest
from tests.integration.kubernetes.spark_jobs import SETTINGS

POD_ADDRESS = "127.77.0.2"
JOB = "move-switchover"
FENCED_MS, WRITABLE_MS = 1_796_000_000_000, 1_796_000_001_300
API_VERSION = "mirrorflow.io/v1alpha1"


@pytest.fixture(scope="module")
def operator(mirrorflows: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    user = mirrorflows.user("operator-of-switchovers", groups=["system:masters"])
    folder = tmp_path_factory.mktemp("operator")
    with OperatorProcess(kubeconfig=user.kubeconfig, folder=folder, environment=SETTINGS) as process:
        process.wait_until_leading()
        yield process


@pytest.fixture
def pair(operator: OperatorProcess, namespace: Kubectl) -> Kubectl:
    """A namespace with the pair east-west, whose reverse flow is Stopped."""
    operator.child.must_run()
    identity = {"topics": {"include": ["orders"], "naming": {"policy": "Identity"}}}
    forward = manifest("east-to-west", **identity)
    sides = {"source": forward["spec"]["target"], "target": forward["spec"]["source"]}
    namespace.apply(forward)
    namespace.apply(manifest("west-to-east", state="Stopped", **identity, **sides))
    namespace.apply(_pair())
    wait_until(
        "the pair is accepted", lambda: _condition(namespace, "mirrorpair", "east-west", "Accepted") == "True"
    )
    return namespace


def _pair() -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "MirrorPair",
        "metadata": {"name": "east-west"},
        "spec": {
            "members": {"east": {"flow": "east-to-west"}, "west": {"flow": "west-to-east"}},
            "fence": {"method": "DenyAcl"},
        },
    }


def _switchover(name: str = "move") -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": "Switchover",
        "metadata": {"name": name},
        "spec": {"pair": "east-west", "to": "west", "type": "Planned"},
    }


def _condition(namespace: Kubectl, kind: str, name: str, of_type: str) -> str:
    current = condition(namespace.get(kind, name), of_type)
    return str(current.get("status", ""))


def _status(namespace: Kubectl, name: str = "move") -> dict[str, Any]:
    status: dict[str, Any] = namespace.get("switchover", name).get("status", {})
    return status


def _jobs(namespace: Kubectl) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = namespace.get("jobs", "--selector=mirrorflow.io/switchover")["items"]
    return items


def _uid_of_job(namespace: Kubectl) -> str:
    wait_until("the Job exists", lambda: len(_jobs(namespace)) == 1)
    return str(_jobs(namespace)[0]["metadata"]["uid"])


def _pod(namespace: Kubectl) -> str:
    def pods() -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = namespace.get("pods", "--selector=mirrorflow.io/switchover")["items"]
        return [pod for pod in items if "deletionTimestamp" not in pod["metadata"]]

    wait_until("the Job has a pod", lambda: len(pods()) == 1)
    return str(pods()[0]["metadata"]["name"])


def _set_pod_status(namespace: Kubectl, phase: str, state: dict[str, Any]) -> None:
    container = {
        "name": "switchover",
        "image": "mirrorflow/replicator:0.1.0",
        "imageID": "",
        "ready": phase == "Running",
        "restartCount": 0,
        "state": state,
    }
    status = {
        "phase": phase,
        "podIP": POD_ADDRESS,
        "podIPs": [{"ip": POD_ADDRESS}],
        "containerStatuses": [container],
    }
    body = json.dumps({"status": status})
    namespace("patch", "pod", _pod(namespace), "--subresource=status", "--type=merge", f"--patch={body}")


def _run_pod(namespace: Kubectl) -> None:
    _set_pod_status(namespace, "Running", {"running": {"startedAt": "2026-11-30T10:00:00Z"}})


def _end_pod(namespace: Kubectl, progress: SwitchoverProgress) -> None:
    terminated = {
        "exitCode": 0,
        "reason": "Completed",
        "message": progress.body().decode(),
        "startedAt": "2026-11-30T10:00:00Z",
        "finishedAt": "2026-11-30T10:00:09Z",
    }
    _set_pod_status(namespace, "Succeeded", {"terminated": terminated})


def _progress(*states: SwitchoverState, may_copy_back: bool = False) -> SwitchoverProgress:
    """Returns the report of a switchover that has just entered the last of *states*."""
    record = _record(*states)
    progress = SwitchoverProgress(id=record.id, record=record, waits_for="Waits for something.", epoch=1)
    if SwitchoverState.REVERSING in states:
        progress.active, progress.promoted_by, progress.may_copy_back = "west", record.id, may_copy_back
    return progress


def _record(*states: SwitchoverState) -> SwitchoverRecord:
    times = (FENCED_MS, WRITABLE_MS, WRITABLE_MS + 500)
    return SwitchoverRecord(
        id="east-west/move",
        pair="east-west",
        type=SwitchoverType.PLANNED,
        source="east",
        to="west",
        created_ms=FENCED_MS,
        epoch=1,
        state=states[-1],
        fenced_ms=FENCED_MS,
        history=tuple(StateEntry(state, time) for state, time in zip(states, times, strict=False)),
    )


def _unplanned(state: SwitchoverState) -> SwitchoverProgress:
    """Returns the report of an unplanned switchover that has ended in *state*."""
    lost = PartitionLoss(topic="orders", partition=0, copied=60, source_end=85, evidence=EndEvidence.FLOW)
    record = replace(
        _record(SwitchoverState.PROMOTING, state),
        type=SwitchoverType.UNPLANNED,
        loss=LossAssessment(partitions=(lost,)),
        fenced_ms=0,
    )
    is_done = state is SwitchoverState.DONE
    return SwitchoverProgress(
        id=record.id, record=record, active="west", promoted_by=record.id, epoch=2, may_copy_back=is_done
    )


@contextmanager
def _served(progress: SwitchoverProgress) -> Iterator[None]:
    """Serves *progress* as the Job's process does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = progress.body()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keeps the test's output free of polls."""

    server = ThreadingHTTPServer((POD_ADDRESS, PROGRESS_PORT), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


DRAINING = (SwitchoverState.FENCING,)
REVERSING = (SwitchoverState.FENCING, SwitchoverState.REVERSING)
DONE = (*REVERSING, SwitchoverState.DONE)


def test_a_job_runs_a_switchover_and_the_status_records_it(pair: Kubectl):
    """The reverse flow runs once the report allows it, although its spec is Stopped.

    The record stays after the Job is deleted.
    """
    assert "east" == pair.get("mirrorpair", "east-west")["status"]["active"]
    pair.apply(_switchover())
    _uid_of_job(pair)
    _run_pod(pair)

    with _served(_progress(*REVERSING, may_copy_back=True)):
        wait_until(
            "the reverse flow has pods",
            lambda: any(
                item["metadata"]["name"] == "west-to-east-source" and item["spec"]["replicas"] == 1
                for item in pair.get("deployments")["items"]
            ),
        )
        wait_until(
            "the flow that has ended has no pods",
            lambda: pair.get("deployment", "east-to-west-source")["spec"]["replicas"] == 0,
        )
        status = _status(pair)
    _end_pod(pair, _progress(*DONE, may_copy_back=True))
    wait_until("the end is recorded", lambda: _status(pair).get("state") == "Done")
    pair("delete", "job", JOB)
    wait_until("the Job is gone", lambda: not _jobs(pair))

    assert "Reversing" == status["state"]
    assert 1_300 == status["writesRefused"]["milliseconds"]
    assert "True" == _condition(pair, "switchover", "move", "Succeeded")
    pair_status = pair.get("mirrorpair", "east-west")["status"]
    assert ("west", "west-to-east") == (pair_status["active"], pair_status["runs"])
    assert "Stopped" == pair.get("mirrorflow", "west-to-east")["spec"]["state"]
    assert "Done" in {event["reason"] for event in pair.get("events")["items"]}
    # An ended Switchover is not carried out again.
    pair("annotate", "switchover", "move", "seen=again")
    wait_until(
        "west is still active", lambda: pair.get("mirrorpair", "east-west")["status"]["active"] == "west"
    )
    assert [] == _jobs(pair)


def test_an_unplanned_switchover_is_degraded_until_a_recreated_job_reports_it_as_done(pair: Kubectl):
    """The user has reconciled both clusters in the meantime. Only then does the reverse flow run."""
    request = {**_switchover(), "spec": {**_switchover()["spec"], "type": "Unplanned"}}
    with pytest.raises(KubectlError, match="type Unplanned gives up the records that were not copied"):
        pair.apply(request)
    assert [] == _jobs(pair)
    pair.apply({**request, "spec": {**request["spec"], "acceptLoss": True}})
    first = _uid_of_job(pair)
    _end_pod(pair, _unplanned(SwitchoverState.DEGRADED))
    wait_until("the end is recorded", lambda: _status(pair).get("state") == "Degraded")
    degraded, of_pair = _status(pair), pair.get("mirrorpair", "east-west")
    pair("delete", "job", JOB)
    wait_until(
        "another Job exists", lambda: [item["metadata"]["uid"] for item in _jobs(pair)] not in ([], [first])
    )
    wait_until("its pod exists", lambda: _pod(pair) != "")
    _end_pod(pair, _unplanned(SwitchoverState.DONE))
    wait_until("the reconciliation is recorded", lambda: _status(pair).get("state") == "Done")

    assert (
        {"topic": "orders", "lostOffsetsAtLeast": 25},
        "True",
    ) == (degraded["loss"]["topics"][0], _condition(pair, "switchover", "move", "Succeeded"))
    assert "NotReconciled" == condition(of_pair, "Ready")["reason"]
    assert degraded["loss"] == _status(pair)["loss"]
    wait_until(
        "the reverse flow is started",
        lambda: pair.get("mirrorpair", "east-west")["status"].get("runs") == "west-to-east",
    )
    assert {"Degraded", "Done"} <= {event["reason"] for event in pair.get("events")["items"]}


def test_deleting_the_switchover_and_the_pair_does_not_end_the_job(pair: Kubectl):
    """Neither the Switchover nor the pair owns the Job. When they are created again, the same Job is followed."""
    pair.apply(_switchover())
    uid = _uid_of_job(pair)
    _run_pod(pair)
    with _served(_progress(*DRAINING)):
        wait_until("it is followed", lambda: _status(pair).get("state") == "Fencing")
        pair("delete", "switchover", "move")
        pair("delete", "mirrorpair", "east-west")
        pair.apply(_pair())
        pair.apply(_switchover("other"))
        wait_until("the other one is refused", lambda: _status(pair, "other").get("state") == "Refused")
        reason = _status(pair, "other")["reason"]
        pair.apply(_switchover())
        wait_until("it is followed again", lambda: _status(pair).get("state") == "Fencing")
        followed = _uid_of_job(pair)

    assert uid == followed
    assert "spec.pair: Switchover move of east-west has not ended; wait until it has" in reason


def test_a_second_switchover_is_refused_with_a_message(pair: Kubectl):
    pair.apply(_switchover())
    _uid_of_job(pair)
    pair.apply(_switchover("second"))

    wait_until("it is refused", lambda: _status(pair, "second").get("state") == "Refused")

    assert ["move-switchover"] == [item["metadata"]["name"] for item in _jobs(pair)]
    assert "wait until it has, and create another one." in _status(pair, "second")["reason"]
    assert "False" == _condition(pair, "switchover", "second", "Succeeded")
    assert any("has not ended" in message for message in events(pair, "Refused"))


def test_a_job_deleted_while_it_runs_is_created_again(pair: Kubectl):
    """Its process continues from the journal: after promotion, the switchover can only be completed."""
    pair.apply(_switchover())
    first = _uid_of_job(pair)
    _run_pod(pair)
    with _served(_progress(*REVERSING)):
        wait_until("it is followed", lambda: _status(pair).get("state") == "Reversing")
    pair("delete", "job", JOB, "--cascade=orphan")

    wait_until(
        "another Job exists", lambda: [item["metadata"]["uid"] for item in _jobs(pair)] not in ([], [first])
    )

    assert "Reversing" == _status(pair)["state"]


def test_the_objects_of_a_deleted_switchover_are_deleted_after_its_end(pair: Kubectl):
    pair.apply(_switchover())
    _uid_of_job(pair)
    pair("delete", "switchover", "move")
    _end_pod(pair, _progress(*DONE, may_copy_back=True))

    wait_until(
        "its objects are gone",
        lambda: (
            not pair.get("jobs,configmaps,networkpolicies", "--selector=mirrorflow.io/switchover")["items"]
        ),
    )

    assert "west" == pair.get("mirrorpair", "east-west")["status"]["active"]


def test_a_switchover_without_a_status_gets_it_from_the_journal(pair: Kubectl):
    """Its name is its id in the journal, so the process of its Job reports what the journal has."""
    pair.apply(_switchover())
    _uid_of_job(pair)
    _end_pod(pair, _progress(*DONE, may_copy_back=True))
    wait_until("the end is recorded", lambda: _status(pair).get("state") == "Done")
    pair("delete", "job", JOB)
    pair("delete", "switchover", "move")
    pair.apply(_switchover())

    _uid_of_job(pair)
    request = json.loads(pair.get("configmap", JOB)["data"]["switchover.json"])
    _end_pod(pair, _progress(*DONE, may_copy_back=True))
    wait_until("the record is there again", lambda: _status(pair).get("state") == "Done")

    assert "east-west/move" == request["id"]
