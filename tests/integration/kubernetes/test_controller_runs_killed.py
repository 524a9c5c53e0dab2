"""An operator killed at any write leaves runs that the next operator completes. Each run is started once."""

from collections.abc import Callable
from pathlib import Path

from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.integration.kubernetes.controlled import events, manifest
from tests.integration.kubernetes.spark_jobs import (
    FILLED,
    SETTINGS,
    desired_source_pods,
    driver,
    end_driver,
    jobs,
    one_job,
    status_and_reason,
)


def test_an_operator_killed_at_any_write_starts_each_run_once(
    mirrorflows: ApiServer, team: Kubectl, tmp_path: Path
):
    """It is killed with kill -9 after the first objects, after the Job, and before the Job's end is written.

    One Job runs, and its end is reported.
    """
    user = mirrorflows.user("operator-that-dies", groups=["system:masters"])

    def until(what: str, reached: Callable[[], bool]) -> None:
        with OperatorProcess(
            kubeconfig=user.kubeconfig, folder=tmp_path, namespaces=[team.namespace], environment=SETTINGS
        ) as process:
            process.wait_until_leading()
            wait_until(what, reached)

    team.apply(manifest(seed={"runId": "1"}))
    until(
        "the first object exists",
        lambda: bool(team.get("serviceaccounts", "--selector=mirrorflow.io/flow")["items"]),
    )
    until("the Job exists", lambda: len(jobs(team)) == 1)
    job = one_job(team)
    uid = jobs(team)[0]["metadata"]["uid"]
    end_driver(team, driver(team, job), FILLED)
    until(
        "the end is reported",
        lambda: status_and_reason(team, "Seeded") == ("True", "Seeded") and desired_source_pods(team) == 1,
    )

    assert [uid] == [job_["metadata"]["uid"] for job_ in jobs(team)]
    assert len(events(team, "Started")) <= 1
