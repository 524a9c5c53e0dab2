"""An operator that dies at any write leaves runs that the next one finishes, each of them begun once."""

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
    driver,
    end,
    jobs,
    one_job,
    pods_wanted,
    told,
)


def test_an_operator_killed_at_any_write_begins_each_run_once(
    mirrorflows: ApiServer, team: Kubectl, tmp_path: Path
):
    """kill -9 after the first objects, after the Job, and before its end is written: one Job, and its end is reported."""
    user = mirrorflows.user("operator-that-dies", groups=["system:masters"])

    def until(about: str, reached: Callable[[], bool]) -> None:
        with OperatorProcess(
            kubeconfig=user.kubeconfig, folder=tmp_path, namespaces=[team.namespace], environment=SETTINGS
        ) as process:
            process.wait_until_leading()
            wait_until(about, reached)

    team.apply(manifest(seed={"runId": "1"}))
    until(
        "the first object",
        lambda: bool(team.get("serviceaccounts", "--selector=mirrorflow.io/flow")["items"]),
    )
    until("the Job", lambda: len(jobs(team)) == 1)
    job = one_job(team)
    uid = jobs(team)[0]["metadata"]["uid"]
    end(team, driver(team, job), FILLED)
    until(
        "the end is reported", lambda: told(team, "Seeded") == ("True", "Seeded") and pods_wanted(team) == 1
    )

    assert [uid] == [one["metadata"]["uid"] for one in jobs(team)]
    assert len(events(team, "Started")) <= 1
