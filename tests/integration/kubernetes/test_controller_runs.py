"""Spark jobs of a running operator on a real API server.

Each runs once, despite deletions and pauses, and is reported.
"""

from mirrorflow_operator.settings import SEED_ACCOUNT
from mirrorflow_seed.job_report import JobPhase, OutcomeCounts, SeedReport, VerifyReport
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.flows import condition
from tests.harness.kubernetes.kubectl import Kubectl
from tests.integration.kubernetes.controlled import manifest
from tests.integration.kubernetes.spark_jobs import (
    DIFFERENT,
    FILLED,
    FLOW,
    HALFWAY,
    desired_source_pods,
    driver,
    driver_progress,
    drivers,
    end_driver,
    is_observed,
    jobs,
    one_job,
    start_driver,
    status_and_reason,
    wait_for_condition,
)


def test_a_seed_runs_once_and_the_connector_continues_after_it(flows: Kubectl):
    """The connector waits and then continues.

    A deleted finished Job is not recreated, but a new runId creates a new Job.
    """
    document = manifest(seed={"runId": "1"})
    flows.apply(document)
    job = one_job(flows)
    pod = driver(flows, job)
    assert desired_source_pods(flows) == 0
    wait_for_condition(flows, "Replicating", "False", "Seeding")

    with driver_progress(HALFWAY):
        start_driver(flows, pod)
        wait_until(
            "the status has its progress",
            lambda: (
                "3 of 16 partitions" in condition(flows.get("mirrorflow", FLOW), "Seeded").get("message", "")
            ),
        )
        wait_for_condition(flows, "Seeded", "False", "Seeding")
        seed = flows.get("mirrorflow", FLOW)["status"]["seed"]
        assert (seed["phase"], seed["records"], seed["recordsPerSecond"], seed["estimatedSeconds"]) == (
            "Running",
            1_000,
            500,
            8,
        )
    end_driver(flows, pod, FILLED)

    wait_for_condition(flows, "Seeded", "True", "Seeded")
    wait_until("the connector continues", lambda: desired_source_pods(flows) == 1)
    seed = flows.get("mirrorflow", FLOW)["status"]["seed"]
    assert (seed["phase"], seed["records"], seed["cost"]["executorSeconds"]) == ("Succeeded", 5_000, 12)
    assert [job] == [job_["metadata"]["name"] for job_ in jobs(flows)]
    flows("delete", "job", job, "--wait=true")
    document["spec"]["limits"] = {"bytesPerSecond": "1Mi"}
    flows.apply(document)
    wait_until("the change is observed", lambda: is_observed(flows))
    assert jobs(flows) == []
    assert status_and_reason(flows, "Seeded") == ("True", "Seeded")

    document["spec"]["seed"]["runId"] = "2"
    flows.apply(document)
    assert one_job(flows) != job
    wait_until("the connector waits again", lambda: desired_source_pods(flows) == 0)


def test_a_failed_seed_does_not_stop_replication(flows: Kubectl):
    """A retry cannot fix the error.

    The Job fails at once, the connector continues, and the status has the driver's error.
    """
    flows.apply(manifest(seed={"runId": "1"}))
    job = one_job(flows)
    end_driver(
        flows,
        driver(flows, job),
        SeedReport(run_id="1", phase=JobPhase.FAILED, message="sample: it is no number."),
        exit_code=2,
    )

    wait_for_condition(flows, "Seeded", "False", "SeedFailed")
    wait_until("the connector continues", lambda: desired_source_pods(flows) == 1)
    assert "sample: it is no number" in condition(flows.get("mirrorflow", FLOW), "Seeded")["message"]


def test_a_paused_flow_suspends_its_seed_and_a_changed_spec_replaces_the_job(flows: Kubectl):
    """The same Job is suspended and resumed. Changed settings need a new Job once the old driver has ended."""
    document = manifest(seed={"runId": "1"})
    flows.apply(document)
    job = one_job(flows)
    start_driver(flows, driver(flows, job))

    document["spec"]["state"] = "Paused"
    flows.apply(document)
    wait_until("the driver has gone", lambda: drivers(flows, job) == [])
    wait_for_condition(flows, "Seeded", "False", "Paused")
    assert jobs(flows)[0]["spec"]["suspend"] is True
    assert desired_source_pods(flows) == 1  # its pods report the lag

    document["spec"]["state"] = "Running"
    flows.apply(document)
    driver(flows, job)
    assert [job] == [item["metadata"]["name"] for item in jobs(flows)]

    document["spec"]["seed"]["executors"] = {"max": 9}
    flows.apply(document)
    wait_until(
        "a new Job exists",
        lambda: [item["metadata"]["name"] for item in jobs(flows)] not in ([], [job]),
        timeout_s=90,  # the garbage collector deletes the old driver later
    )
    assert len(jobs(flows)) == 1

    del document["spec"]["seed"]
    flows.apply(document)
    wait_until("no Job exists", lambda: jobs(flows) == [])
    assert not [
        item
        for item in flows.get("configmaps,networkpolicies")["items"]
        if "seed" in item["metadata"]["name"]
    ]


def test_a_deleted_job_is_created_again(flows: Kubectl):
    """The Job of an unfinished run is deleted. Copied records remain, and the status does not report an end."""
    flows.apply(manifest(seed={"runId": "1"}))
    job = one_job(flows)
    uid = jobs(flows)[0]["metadata"]["uid"]
    start_driver(flows, driver(flows, job))
    wait_until(
        "the status reports it as running",
        lambda: flows.get("mirrorflow", FLOW)["status"]["seed"]["phase"] == "Running",
    )

    flows("delete", "job", job, "--wait=true")

    wait_until(
        "the Job exists again", lambda: [uid] != [job_["metadata"]["uid"] for job_ in jobs(flows)] != []
    )
    assert one_job(flows) == job
    assert status_and_reason(flows, "Seeded")[0] != "True"


def test_a_missing_service_account_is_reported(flows: Kubectl):
    """Kubernetes reports it only in an Event of the Job."""
    flows("delete", "serviceaccount", SEED_ACCOUNT)
    flows.apply(manifest(seed={"runId": "1"}))

    wait_for_condition(flows, "Seeded", "False", "PodsRefused")
    assert SEED_ACCOUNT in condition(flows.get("mirrorflow", FLOW), "Seeded")["message"]


def test_a_scheduled_verification_reports_differences(flows: Kubectl):
    """Two verifications never run at the same time. A Job created manually from the CronJob is reported like any other."""
    flows.apply(manifest(verify={"schedule": "0 3 * * *", "timeZone": "Europe/Berlin"}))
    wait_until("the CronJob exists", lambda: len(flows.get("cronjobs")["items"]) == 1)
    spec = flows.get("cronjob", f"{FLOW}-verify")["spec"]
    assert (spec["concurrencyPolicy"], spec["timeZone"], spec["suspend"]) == (
        "Forbid",
        "Europe/Berlin",
        False,
    )
    wait_for_condition(flows, "Verified", "Unknown", "NotVerifiedYet")

    flows("create", "job", "by-hand", f"--from=cronjob/{FLOW}-verify")
    end_driver(flows, driver(flows, "by-hand"), DIFFERENT, exit_code=1)

    wait_for_condition(flows, "Verified", "False", "DifferencesFound")
    verify = flows.get("mirrorflow", FLOW)["status"]["verify"]
    assert (verify["job"], verify["differences"], verify["windows"]["different"]) == ("by-hand", 1, 1)
    assert status_and_reason(flows, "Ready")[1] != "DifferencesFound"  # records are still copied


def test_a_verification_by_run_id_waits_for_a_scheduled_one(flows: Kubectl):
    """The new Job waits for the running driver. The schedule is suspended until the result of the new Job."""
    document = manifest(verify={"schedule": "0 3 * * *"})
    flows.apply(document)
    wait_until("the CronJob exists", lambda: len(flows.get("cronjobs")["items"]) == 1)
    flows("create", "job", "by-hand", f"--from=cronjob/{FLOW}-verify")
    first = driver(flows, "by-hand")
    start_driver(flows, first)
    wait_for_condition(flows, "Verified", "Unknown", "Verifying")

    document["spec"]["verify"]["runId"] = "1"
    flows.apply(document)
    wait_until("the schedule is suspended", lambda: flows.get("cronjob", f"{FLOW}-verify")["spec"]["suspend"])
    assert {"by-hand"} == {job_["metadata"]["name"] for job_ in jobs(flows, "verify")}

    end_driver(flows, first, DIFFERENT, exit_code=1)
    wait_until("the other verification starts", lambda: len(jobs(flows, "verify")) == 2)
    [name] = {job_["metadata"]["name"] for job_ in jobs(flows, "verify")} - {"by-hand"}
    end_driver(flows, driver(flows, name), DIFFERENT, exit_code=1)
    wait_until(
        "the schedule is resumed", lambda: not flows.get("cronjob", f"{FLOW}-verify")["spec"]["suspend"]
    )


def test_a_deleted_verification_is_reported(flows: Kubectl):
    """The result of the verification is unknown."""
    flows.apply(manifest(verify={"schedule": "0 3 * * *"}))
    wait_until("the CronJob exists", lambda: len(flows.get("cronjobs")["items"]) == 1)
    flows("create", "job", "by-hand", f"--from=cronjob/{FLOW}-verify")
    start_driver(flows, driver(flows, "by-hand"))
    wait_for_condition(flows, "Verified", "Unknown", "Verifying")

    flows("delete", "job", "by-hand")

    wait_for_condition(flows, "Verified", "Unknown", "JobDeleted")


def test_a_verification_by_run_id_runs_once(flows: Kubectl):
    """The verification runs again only with a new id."""
    document = manifest(verify={"runId": "before-the-move"})
    flows.apply(document)
    job = one_job(flows, "verify")
    equal = VerifyReport(
        run_id="before-the-move",
        phase=JobPhase.SUCCEEDED,
        windows=OutcomeCounts(total=9, equal=9),
        source_records=900,
    )
    end_driver(flows, driver(flows, job), equal)
    wait_for_condition(flows, "Verified", "True", "Equal")

    flows("delete", "job", job)
    document["spec"]["limits"] = {"bytesPerSecond": "1Mi"}
    flows.apply(document)
    wait_until("the change is observed", lambda: is_observed(flows))
    assert (jobs(flows, "verify"), status_and_reason(flows, "Verified")) == ([], ("True", "Equal"))

    document["spec"]["verify"]["runId"] = "after-the-move"
    flows.apply(document)
    assert one_job(flows, "verify") != job
