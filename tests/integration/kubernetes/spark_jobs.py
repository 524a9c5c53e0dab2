"""Spark jobs on an API server without nodes.

The tests write the status of drivers' pods and simulate their reports.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from mirrorflow_operator.plan.spark_pods import PROGRESS_PORT
from mirrorflow_seed.job_report import Cost, JobPhase, OutcomeCounts, Report, SeedReport, VerifyReport, encode
from tests.harness.kafka.processes import wait_until
from tests.harness.kubernetes.flows import condition
from tests.harness.kubernetes.kubectl import Kubectl

FLOW = "east-to-west"
DRIVER_ADDRESS = "127.77.0.1"
SETTINGS = {"MIRRORFLOW_POLL_S": "0.5"}
HALFWAY = SeedReport(
    run_id="1",
    phase=JobPhase.RUNNING,
    partitions=16,
    done=3,
    records=1_000,
    remaining_records=4_000,
    records_per_second=500.0,
    estimated_seconds=8.0,
)
FILLED = SeedReport(
    run_id="1",
    phase=JobPhase.SUCCEEDED,
    partitions=16,
    done=16,
    records=5_000,
    cost=Cost(executor_seconds=12.0, bytes_read=7, bytes_written=7),
)
DIFFERENT = VerifyReport(
    run_id="scheduled",
    phase=JobPhase.SUCCEEDED,
    windows=OutcomeCounts(total=9, equal=8, different=1),
    source_records=900,
    target_records=899,
    differences=1,
)


def jobs(team: Kubectl, run_kind: str = "seed") -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = team.get("jobs", f"--selector=mirrorflow.io/run={run_kind}")["items"]
    return items


def one_job(team: Kubectl, run_kind: str = "seed") -> str:
    wait_until("the Job exists", lambda: len(jobs(team, run_kind)) == 1)
    return str(jobs(team, run_kind)[0]["metadata"]["name"])


def drivers(team: Kubectl, job: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = team.get("pods", f"--selector=batch.kubernetes.io/job-name={job}")["items"]
    return items


def driver(team: Kubectl, job: str) -> str:
    wait_until("the driver's pod exists", lambda: len(drivers(team, job)) == 1)
    return str(drivers(team, job)[0]["metadata"]["name"])


def _set_pod_status(team: Kubectl, pod: str, phase: str, state: dict[str, Any]) -> None:
    """Writes the pod status that a kubelet would write."""
    container = {
        "name": team.get("pod", pod)["spec"]["containers"][0]["name"],
        "image": "mirrorflow/seed:0.1.0",
        "imageID": "",
        "ready": phase == "Running",
        "restartCount": 0,
        "state": state,
    }
    status = {"phase": phase, "podIP": DRIVER_ADDRESS, "podIPs": [{"ip": DRIVER_ADDRESS}]}
    body = json.dumps({"status": {**status, "containerStatuses": [container]}})
    team("patch", "pod", pod, "--subresource=status", "--type=merge", f"--patch={body}")


def start_driver(team: Kubectl, pod: str) -> None:
    _set_pod_status(team, pod, "Running", {"running": {"startedAt": "2026-01-01T00:00:00Z"}})


def end_driver(team: Kubectl, pod: str, report: Report, exit_code: int = 0) -> None:
    finished_at = "2026-01-01T00:10:00Z"
    terminated = {
        "exitCode": exit_code,
        "reason": "Completed" if exit_code == 0 else "Error",
        "message": encode(report).decode(),
        "startedAt": "2026-01-01T00:00:00Z",
        "finishedAt": finished_at,
    }
    _set_pod_status(team, pod, "Succeeded" if exit_code == 0 else "Failed", {"terminated": terminated})


@contextmanager
def driver_progress(report: Report) -> Iterator[None]:
    """Serves *report* over HTTP, like a driver."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = encode(report)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Prints nothing, to keep the test's output readable."""

    server = ThreadingHTTPServer((DRIVER_ADDRESS, PROGRESS_PORT), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def status_and_reason(team: Kubectl, kind: str) -> tuple[str, str]:
    condition_ = condition(team.get("mirrorflow", FLOW), kind)
    return condition_.get("status", ""), condition_.get("reason", "")


def desired_source_pods(team: Kubectl) -> int:
    """Returns the number of pods that the source connector should have."""
    return int(team.get("deployment", f"{FLOW}-source")["spec"]["replicas"])


def wait_for_condition(team: Kubectl, kind: str, *expected: str) -> None:
    wait_until(f"{kind} is {expected}", lambda: status_and_reason(team, kind) == expected)


def is_observed(team: Kubectl) -> bool:
    flow = team.get("mirrorflow", FLOW)
    return bool(flow["status"]["observedGeneration"] == flow["metadata"]["generation"])
