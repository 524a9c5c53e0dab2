"""Archives and restores of a running operator on a real API server.

Two exports never run at once, each restore runs once, and both are reported.
"""

from typing import Any

from mirrorflow_seed.job_report import ArchiveReport, JobPhase
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.flows import condition
from tests.harness.kubernetes.kubectl import Kubectl
from tests.integration.kubernetes.controlled import manifest
from tests.integration.kubernetes.spark_jobs import (
    FLOW,
    desired_source_pods,
    driver,
    driver_progress,
    drivers,
    end_driver,
    is_observed,
    jobs,
    one_job,
    start_driver,
    wait_for_condition,
)

URL = "s3://backups/orders"
SCHEDULED: dict[str, Any] = {"url": URL, "schedule": "0 3 * * *", "timeZone": "Europe/Berlin"}
EXPORTED = ArchiveReport(
    job="export",
    run_id="scheduled",
    phase=JobPhase.SUCCEEDED,
    records=900,
    commit=7,
    archived_records=4_000,
    archived_time="2026-01-01T00:10:00+00:00",
    message="900 records of 2 topics are archived (commit 7).",
)
RESTORED = ArchiveReport(
    job="restore", run_id="1", phase=JobPhase.SUCCEEDED, partitions=16, done=16, records=4_000
)


def _status(flows: Kubectl, part: str) -> dict[str, Any]:
    status: dict[str, Any] = flows.get("mirrorflow", FLOW)["status"].get(part) or {}
    return status


def test_a_scheduled_export_is_reported_with_its_commit_and_the_next_time(flows: Kubectl):
    """Two exports never run at the same time.

    A stopped flow suspends the schedule. A failure is reported until the next export.
    """
    document = manifest(archive=SCHEDULED)
    flows.apply(document)
    wait_until("the CronJob exists", lambda: len(flows.get("cronjobs")["items"]) == 1)
    spec = flows.get("cronjob", f"{FLOW}-archive")["spec"]
    assert (spec["concurrencyPolicy"], spec["timeZone"], spec["suspend"]) == (
        "Forbid",
        "Europe/Berlin",
        False,
    )
    wait_for_condition(flows, "Archived", "Unknown", "NotArchivedYet")
    assert _status(flows, "archive")["nextTime"].endswith(":00:00Z")

    flows("create", "job", "by-hand", f"--from=cronjob/{FLOW}-archive")
    end_driver(flows, driver(flows, "by-hand"), EXPORTED)
    # Its report is from January, but the archive is not overdue, because the CronJob is new.
    wait_for_condition(flows, "Archived", "True", "Archived")
    status = _status(flows, "archive")
    assert (status["job"], status["commit"], status["records"], status["successTime"]) == (
        "by-hand",
        7,
        4_000,
        "2026-01-01T00:10:00Z",
    )

    flows("create", "job", "again", f"--from=cronjob/{FLOW}-archive")
    failed = ArchiveReport(job="export", run_id="scheduled", phase=JobPhase.FAILED, message="No such bucket.")
    end_driver(flows, driver(flows, "again"), failed, exit_code=2)
    wait_for_condition(flows, "Archived", "False", "ArchiveFailed")
    assert "No such bucket" in condition(flows.get("mirrorflow", FLOW), "Archived")["message"]
    assert _status(flows, "archive")["commit"] == 7

    document["spec"]["state"] = "Stopped"
    flows.apply(document)
    wait_until(
        "the schedule is suspended", lambda: flows.get("cronjob", f"{FLOW}-archive")["spec"]["suspend"]
    )


def test_a_following_export_continues_after_a_kill_and_never_runs_twice(flows: Kubectl):
    """A killed driver is replaced in the same Job. A changed spec starts only when the earlier driver has ended."""
    document = manifest(archive={"url": URL, "follow": True})
    flows.apply(document)
    job = one_job(flows, "archive")
    first = driver(flows, job)
    with driver_progress(EXPORTED):
        start_driver(flows, first)
        wait_for_condition(flows, "Archived", "True", "Archived")
        assert _status(flows, "archive")["phase"] == "Running"

    end_driver(flows, first, EXPORTED, exit_code=3)  # stopped by a drain
    wait_until(
        "another driver continues",
        lambda: [pod["metadata"]["name"] for pod in drivers(flows, job)] not in ([], [first]),
        timeout_s=60,
    )
    assert [job] == [item["metadata"]["name"] for item in jobs(flows, "archive")]
    second = next(name for pod in drivers(flows, job) if (name := pod["metadata"]["name"]) != first)
    start_driver(flows, second)

    document["spec"]["archive"] = {"url": f"{URL}-2", "follow": True}
    flows.apply(document)
    wait_until(
        "the Job is replaced",
        lambda: [item["metadata"]["name"] for item in jobs(flows, "archive")] not in ([], [job]),
        timeout_s=90,  # the garbage collector deletes the old driver later
    )
    assert drivers(flows, job) == []

    document["spec"]["archive"] = SCHEDULED
    flows.apply(document)
    wait_until("a CronJob follows", lambda: len(flows.get("cronjobs")["items"]) == 1, timeout_s=90)
    wait_until("no Job is left", lambda: jobs(flows, "archive") == [])


def test_a_restore_runs_once_and_the_connector_continues_after_it(flows: Kubectl):
    """The connector waits. Neither a deleted Job nor a lost status starts the restore again, but a new runId does."""
    document = manifest(restore={"runId": "1", "url": URL}, state="Paused")
    flows.apply(document)
    job = one_job(flows, "restore")
    wait_until("the connector waits", lambda: desired_source_pods(flows) == 0)
    end_driver(flows, driver(flows, job), RESTORED)
    wait_for_condition(flows, "Restored", "True", "Restored")
    wait_until("the connector continues", lambda: desired_source_pods(flows) == 1)
    restore = _status(flows, "restore")
    assert (restore["phase"], restore["records"], restore["partitions"]["done"]) == ("Succeeded", 4_000, 16)

    flows("delete", "job", job, "--wait=true")
    flows("patch", "mirrorflow", FLOW, "--subresource=status", "--type=merge", '--patch={"status":null}')
    document["spec"]["limits"] = {"bytesPerSecond": "1Mi"}
    flows.apply(document)
    wait_for_condition(flows, "Restored", "True", "Restored")  # the lost status is written again
    wait_until("the change is observed", lambda: is_observed(flows))
    assert jobs(flows, "restore") == []

    document["spec"]["restore"]["runId"] = "2"
    flows.apply(document)
    assert one_job(flows, "restore") != job
