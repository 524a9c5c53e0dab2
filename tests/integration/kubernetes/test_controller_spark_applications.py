"""Jobs that Kubeflow's Spark operator launches, with a running operator on a real API server.

The test plays the Spark operator: it creates the driver's pod from the application's template and writes the application's state.
"""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from mirrorflow_seed.job_report import JobPhase, SeedReport
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes import spark_operator
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.flows import condition
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.spark_operator import applications, set_state, submit
from tests.integration.kubernetes.controlled import manifest
from tests.integration.kubernetes.spark_jobs import (
    DIFFERENT,
    FILLED,
    FLOW,
    HALFWAY,
    desired_source_pods,
    driver_progress,
    end_driver,
    jobs,
    start_driver,
    status_and_reason,
    wait_for_condition,
)

INTERRUPTED = SeedReport(run_id="1", phase=JobPhase.FAILED, message="A broker is unreachable.")


@pytest.fixture
def served(flows: Kubectl, mirrorflows: ApiServer) -> Kubectl:
    """The namespace `flows`, on an API server with the CRDs of the Spark operator."""
    spark_operator.install_definitions(mirrorflows)
    return flows


@pytest.fixture
def without_definitions(flows: Kubectl, mirrorflows: ApiServer) -> Iterator[Kubectl]:
    """The namespace `flows`, on an API server that has no such CRDs yet."""
    if "sparkapplications" in mirrorflows.kubectl("get", "crd"):
        spark_operator.remove_definitions(mirrorflows)
    yield flows
    spark_operator.install_definitions(mirrorflows)


def _flow(**spec: Any) -> dict[str, Any]:
    return manifest(**({"seed": {"runId": "1"}} | spec), spark={"launcher": "SparkApplication"})


def _one_application(team: Kubectl, run_kind: str = "seed", *, number: int = 1) -> str:
    wait_until(
        f"SparkApplication {number} of the {run_kind} exists",
        lambda: any(name.endswith(f"-r{number}") for name in _names(team, run_kind)),
    )
    return next(name for name in _names(team, run_kind) if name.endswith(f"-r{number}"))


def _names(team: Kubectl, run_kind: str = "seed") -> list[str]:
    return [str(item["metadata"]["name"]) for item in applications(team, run_kind)]


def _message(team: Kubectl, kind: str = "Seeded") -> str:
    return str(condition(team.get("mirrorflow", FLOW), kind).get("message", ""))


def _end(team: Kubectl, name: str, state: str, error: str = "") -> None:
    set_state(team, name, state, error, terminationTime=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))


def test_a_missing_crd_is_reported_and_the_seed_starts_once_it_is_installed(
    without_definitions: Kubectl, mirrorflows: ApiServer
):
    """The operator needs no restart. This test is the first, because the operator keeps the kinds that it has found."""
    team = without_definitions
    team.apply(_flow())

    wait_for_condition(team, "Seeded", "False", "ObjectsRefused")
    assert "the CRD sparkapplications.sparkoperator.k8s.io (v1beta2) is not installed" in _message(team)
    wait_for_condition(team, "Accepted", "False", "ObjectsRefused")
    assert jobs(team) == []

    spark_operator.install_definitions(mirrorflows)
    _one_application(team)
    wait_for_condition(team, "Accepted", "True", "Accepted")


def test_a_seed_is_launched_observed_and_retried_like_a_job(served: Kubectl):
    """Its first driver fails, the second one ends. Both count, the report is the driver's, and no Job exists."""
    served.apply(_flow())
    first = _one_application(served)
    assert jobs(served) == []
    assert desired_source_pods(served) == 0
    wait_for_condition(served, "Seeded", "Unknown", "Starting")

    pod = submit(served, first)
    with driver_progress(HALFWAY):
        start_driver(served, pod)
        set_state(served, first, "RUNNING")
        wait_until("the status has its progress", lambda: "3 of 16 partitions" in _message(served))
        wait_for_condition(served, "Seeded", "False", "Seeding")
    end_driver(served, pod, INTERRUPTED, exit_code=4)
    _end(served, first, "FAILED", "driver container failed with ExitCode: 4, Reason: Error")

    second = _one_application(served, number=2)
    annotations = applications(served)[1]["metadata"]["annotations"]
    assert annotations["mirrorflow.io/failures"] == "1"
    assert _names(served) == [first, second]  # the first one keeps the log
    pod = submit(served, second)
    end_driver(served, pod, FILLED)
    _end(served, second, "COMPLETED")

    wait_for_condition(served, "Seeded", "True", "Seeded")
    wait_until("the connector continues", lambda: desired_source_pods(served) == 1)
    seed = served.get("mirrorflow", FLOW)["status"]["seed"]
    assert (seed["phase"], seed["records"]) == ("Succeeded", 5_000)
    assert _names(served) == [first, second]


def test_wrong_settings_end_the_seed_at_once_with_the_drivers_own_message(served: Kubectl):
    """A retry would only repeat the error. The report is in the termination message, as in the pod of a Job."""
    served.apply(_flow())
    name = _one_application(served)
    pod = submit(served, name)
    report = SeedReport(run_id="1", phase=JobPhase.FAILED, message="sample: it is no number.")
    end_driver(served, pod, report, exit_code=2)
    _end(served, name, "FAILED", "driver container failed with ExitCode: 2, Reason: Error")

    wait_for_condition(served, "Seeded", "False", "SeedFailed")
    assert "its settings are invalid: sample: it is no number" in _message(served)
    assert f"See kubectl logs {pod}." in _message(served)
    wait_until("the connector continues", lambda: desired_source_pods(served) == 1)
    assert _names(served) == [name]


def test_a_paused_flow_suspends_the_application_and_a_changed_spec_replaces_it(served: Kubectl):
    document = _flow()
    served.apply(document)
    name = _one_application(served)

    document["spec"]["state"] = "Paused"
    served.apply(document)
    wait_for_condition(served, "Seeded", "False", "Paused")
    assert applications(served)[0]["spec"]["suspend"] is True

    document["spec"] |= {"state": "Running", "limits": {"bytesPerSecond": "1Mi"}}
    served.apply(document)
    wait_until("another application exists", lambda: _names(served) not in ([], [name]))
    wait_until("the old one is gone", lambda: name not in _names(served))


def test_a_job_replaces_the_application_when_the_launcher_changes(served: Kubectl):
    """The driver of the application has ended before the Job starts."""
    document = _flow()
    served.apply(document)
    name = _one_application(served)
    pod = submit(served, name)
    start_driver(served, pod)
    set_state(served, name, "RUNNING")
    wait_for_condition(served, "Seeded", "False", "Seeding")

    document["spec"]["spark"]["launcher"] = "Job"
    served.apply(document)
    wait_until("the application is gone", lambda: _names(served) == [])
    served("delete", "pod", pod, "--force", "--ignore-not-found")  # no kubelet ends it
    wait_until("the Job exists", lambda: len(jobs(served)) == 1)


def test_a_scheduled_verification_is_reported_with_its_verdict(served: Kubectl):
    """The test creates the application of a scheduled time, as the Spark operator does from the schedule."""
    served.apply(manifest(verify={"schedule": "0 3 * * *"}, spark={"launcher": "SparkApplication"}))
    wait_until(
        "the schedule exists",
        lambda: len(served.get("scheduledsparkapplications")["items"]) == 1,
    )
    (schedule,) = served.get("scheduledsparkapplications")["items"]
    assert schedule["metadata"]["name"] == f"{FLOW}-verify"
    assert schedule["spec"]["concurrencyPolicy"] == "Forbid"
    name = f"{FLOW}-verify-{time.time_ns()}"
    labels = schedule["metadata"]["labels"] | {"sparkoperator.k8s.io/scheduled-app-name": f"{FLOW}-verify"}
    served.apply(
        {
            "apiVersion": schedule["apiVersion"],
            "kind": "SparkApplication",
            "metadata": {"name": name, "labels": labels},
            "spec": schedule["spec"]["template"],
        }
    )
    pod = submit(served, name)
    end_driver(served, pod, DIFFERENT, exit_code=1)
    _end(served, name, "FAILED", "driver container failed with ExitCode: 1, Reason: Error")

    wait_for_condition(served, "Verified", "False", "DifferencesFound")
    assert f"See kubectl logs {pod}." in _message(served, "Verified")
    assert served.get("mirrorflow", FLOW)["status"]["verify"]["job"] == name
    assert status_and_reason(served, "Accepted") == ("True", "Accepted")
