"""Spark jobs of a running operator on a real API server: each run once, whatever is deleted or paused, and told as it is."""

from collections.abc import Iterator

import pytest

from mirrorflow_operator.settings import SEED_ACCOUNT
from mirrorflow_seed.job_report import JobPhase, OutcomeCounts, SeedReport, VerifyReport
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.api_server import ApiServer
from tests.harness.kubernetes.flows import condition
from tests.harness.kubernetes.kubectl import Kubectl
from tests.harness.kubernetes.operator_process import OperatorProcess
from tests.integration.kubernetes.controlled import manifest
from tests.integration.kubernetes.spark_jobs import (
    DIFFERENT,
    FILLED,
    FLOW,
    HALFWAY,
    SETTINGS,
    answering,
    driver,
    drivers,
    end,
    is_observed,
    jobs,
    one_job,
    pods_wanted,
    run,
    told,
    until_told,
)

USER = "operator-of-runs"


@pytest.fixture(scope="module")
def operator(mirrorflows: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorProcess]:
    """One for all tests of this module but those that kill theirs."""
    user = mirrorflows.user(USER, groups=["system:masters"])
    folder = tmp_path_factory.mktemp("operator")
    with OperatorProcess(kubeconfig=user.kubeconfig, folder=folder, environment=SETTINGS) as process:
        process.wait_until_leading()
        yield process


@pytest.fixture
def flows(operator: OperatorProcess, team: Kubectl) -> Kubectl:
    """As `team`, looked after by the operator of this module."""
    operator.child.must_run()
    return team


def test_a_seed_runs_once_and_the_connector_continues_after_it(flows: Kubectl):
    """Held back, told with counts, let go at its end; a Job that is cleaned up is not made again, another runId is another Job."""
    document = manifest(seed={"runId": "1"})
    flows.apply(document)
    job = one_job(flows)
    pod = driver(flows, job)
    assert pods_wanted(flows) == 0
    until_told(flows, "Replicating", "False", "Seeding")

    with answering(HALFWAY):
        run(flows, pod)
        wait_until(
            "the status has its progress",
            lambda: (
                "3 of 16 partitions" in condition(flows.get("mirrorflow", FLOW), "Seeded").get("message", "")
            ),
        )
        until_told(flows, "Seeded", "False", "Seeding")
        seed = flows.get("mirrorflow", FLOW)["status"]["seed"]
        assert (seed["phase"], seed["records"], seed["recordsPerSecond"], seed["estimatedSeconds"]) == (
            "Running",
            1_000,
            500,
            8,
        )
    end(flows, pod, FILLED)

    until_told(flows, "Seeded", "True", "Seeded")
    wait_until("the connector continues", lambda: pods_wanted(flows) == 1)
    seed = flows.get("mirrorflow", FLOW)["status"]["seed"]
    assert (seed["phase"], seed["records"], seed["cost"]["executorSeconds"]) == ("Succeeded", 5_000, 12)
    assert [job] == [one["metadata"]["name"] for one in jobs(flows)]
    flows("delete", "job", job, "--wait=true")
    document["spec"]["limits"] = {"bytesPerSecond": "1Mi"}
    flows.apply(document)
    wait_until("the change is seen", lambda: is_observed(flows))
    assert jobs(flows) == []
    assert told(flows, "Seeded") == ("True", "Seeded")

    document["spec"]["seed"]["runId"] = "2"
    flows.apply(document)
    assert one_job(flows) != job
    wait_until("the connector waits again", lambda: pods_wanted(flows) == 0)


def test_a_seed_that_failed_stops_no_replication(flows: Kubectl):
    """An error that no retry fixes: the Job fails at once, the connector continues, and the status has the driver's error."""
    flows.apply(manifest(seed={"runId": "1"}))
    job = one_job(flows)
    end(
        flows,
        driver(flows, job),
        SeedReport(run_id="1", phase=JobPhase.FAILED, message="sample: it is no number."),
        exit_code=2,
    )

    until_told(flows, "Seeded", "False", "SeedFailed")
    wait_until("the connector continues", lambda: pods_wanted(flows) == 1)
    assert "sample: it is no number" in condition(flows.get("mirrorflow", FLOW), "Seeded")["message"]


def test_a_paused_flow_suspends_its_seed_and_another_spec_is_another_job(flows: Kubectl):
    """The same Job is suspended and resumed; changed settings need a new Job, once the old driver has ended."""
    document = manifest(seed={"runId": "1"})
    flows.apply(document)
    job = one_job(flows)
    run(flows, driver(flows, job))

    document["spec"]["state"] = "Paused"
    flows.apply(document)
    wait_until("the driver has gone", lambda: drivers(flows, job) == [])
    until_told(flows, "Seeded", "False", "Paused")
    assert jobs(flows)[0]["spec"]["suspend"] is True
    assert pods_wanted(flows) == 1  # its pods show the lag

    document["spec"]["state"] = "Running"
    flows.apply(document)
    driver(flows, job)
    assert [job] == [one["metadata"]["name"] for one in jobs(flows)]

    document["spec"]["seed"]["executors"] = {"max": 9}
    flows.apply(document)
    wait_until(
        "another Job",
        lambda: [one["metadata"]["name"] for one in jobs(flows)] not in ([], [job]),
        timeout_s=90,  # the old driver is taken away by the garbage collector in its own time
    )
    assert len(jobs(flows)) == 1

    del document["spec"]["seed"]
    flows.apply(document)
    wait_until("none", lambda: jobs(flows) == [])
    assert not [
        one for one in flows.get("configmaps,networkpolicies")["items"] if "seed" in one["metadata"]["name"]
    ]


def test_a_deleted_job_is_created_again(flows: Kubectl):
    """A deleted Job of an unfinished run: the copied records remain, and the status does not report an end."""
    flows.apply(manifest(seed={"runId": "1"}))
    job = one_job(flows)
    uid = jobs(flows)[0]["metadata"]["uid"]
    run(flows, driver(flows, job))
    wait_until(
        "the status shows it running",
        lambda: flows.get("mirrorflow", FLOW)["status"]["seed"]["phase"] == "Running",
    )

    flows("delete", "job", job, "--wait=true")

    wait_until("it is there again", lambda: [uid] != [one["metadata"]["uid"] for one in jobs(flows)] != [])
    assert one_job(flows) == job
    assert told(flows, "Seeded")[0] != "True"


def test_a_missing_service_account_is_reported(flows: Kubectl):
    """Kubernetes says it in an Event of the Job and nowhere else."""
    flows("delete", "serviceaccount", SEED_ACCOUNT)
    flows.apply(manifest(seed={"runId": "1"}))

    until_told(flows, "Seeded", "False", "PodsRefused")
    assert SEED_ACCOUNT in condition(flows.get("mirrorflow", FLOW), "Seeded")["message"]


def test_a_scheduled_verification_reports_differences(flows: Kubectl):
    """Never two at once; one created by hand from the CronJob is reported like any other."""
    flows.apply(manifest(verify={"schedule": "0 3 * * *", "timeZone": "Europe/Berlin"}))
    wait_until("the CronJob is there", lambda: len(flows.get("cronjobs")["items"]) == 1)
    spec = flows.get("cronjob", f"{FLOW}-verify")["spec"]
    assert (spec["concurrencyPolicy"], spec["timeZone"], spec["suspend"]) == (
        "Forbid",
        "Europe/Berlin",
        False,
    )
    until_told(flows, "Verified", "Unknown", "NotVerifiedYet")

    flows("create", "job", "by-hand", f"--from=cronjob/{FLOW}-verify")
    end(flows, driver(flows, "by-hand"), DIFFERENT, exit_code=1)

    until_told(flows, "Verified", "False", "DifferencesFound")
    verify = flows.get("mirrorflow", FLOW)["status"]["verify"]
    assert (verify["job"], verify["differences"], verify["windows"]["different"]) == ("by-hand", 1, 1)
    assert told(flows, "Ready")[1] != "DifferencesFound"  # records flow all the same


def test_a_verification_by_run_id_and_one_of_the_schedule_take_turns(flows: Kubectl):
    """Never two at once: the new Job waits for the driver, and the schedule rests until its answer is there."""
    document = manifest(verify={"schedule": "0 3 * * *"})
    flows.apply(document)
    wait_until("the CronJob is there", lambda: len(flows.get("cronjobs")["items"]) == 1)
    flows("create", "job", "by-hand", f"--from=cronjob/{FLOW}-verify")
    first = driver(flows, "by-hand")
    run(flows, first)
    until_told(flows, "Verified", "Unknown", "Verifying")

    document["spec"]["verify"]["runId"] = "1"
    flows.apply(document)
    wait_until("the schedule rests", lambda: flows.get("cronjob", f"{FLOW}-verify")["spec"]["suspend"])
    assert {"by-hand"} == {one["metadata"]["name"] for one in jobs(flows, "verify")}

    end(flows, first, DIFFERENT, exit_code=1)
    wait_until("the other begins", lambda: len(jobs(flows, "verify")) == 2)
    [name] = {one["metadata"]["name"] for one in jobs(flows, "verify")} - {"by-hand"}
    end(flows, driver(flows, name), DIFFERENT, exit_code=1)
    wait_until(
        "the schedule is resumed", lambda: not flows.get("cronjob", f"{FLOW}-verify")["spec"]["suspend"]
    )


def test_a_verification_that_was_deleted_says_so(flows: Kubectl):
    """Its result is unknown."""
    flows.apply(manifest(verify={"schedule": "0 3 * * *"}))
    wait_until("the CronJob is there", lambda: len(flows.get("cronjobs")["items"]) == 1)
    flows("create", "job", "by-hand", f"--from=cronjob/{FLOW}-verify")
    run(flows, driver(flows, "by-hand"))
    until_told(flows, "Verified", "Unknown", "Verifying")

    flows("delete", "job", "by-hand")

    until_told(flows, "Verified", "Unknown", "JobDeleted")


def test_a_verification_by_run_id_runs_once(flows: Kubectl):
    """And again for another id alone."""
    document = manifest(verify={"runId": "before-the-move"})
    flows.apply(document)
    job = one_job(flows, "verify")
    equal = VerifyReport(
        run_id="before-the-move",
        phase=JobPhase.SUCCEEDED,
        windows=OutcomeCounts(total=9, equal=9),
        source_records=900,
    )
    end(flows, driver(flows, job), equal)
    until_told(flows, "Verified", "True", "Equal")

    flows("delete", "job", job)
    document["spec"]["limits"] = {"bytesPerSecond": "1Mi"}
    flows.apply(document)
    wait_until("the change is seen", lambda: is_observed(flows))
    assert (jobs(flows, "verify"), told(flows, "Verified")) == ([], ("True", "Equal"))

    document["spec"]["verify"]["runId"] = "after-the-move"
    flows.apply(document)
    assert one_job(flows, "verify") != job
