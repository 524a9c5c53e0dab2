"""Seeds on the node, with their pods, faults of these pods, and Jobs without an operator.

The operator creates a flow's own seed. `SeedPods` lists its driver and executors. `job` creates the Job that the
operator would plan for a flow that does not exist as a resource. No connector supports that Job, and a test may add
Spark settings.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from mirrorflow_operator.api.load import parse_flow
from mirrorflow_operator.plan.job_objects import job_objects
from mirrorflow_operator.plan.names import run_selector
from mirrorflow_operator.plan.spark_run import RunKind, Runs, SparkDefaults
from tests.harness.kafka.processes import frozen, program_of, wait_until
from tests.harness.kubernetes.stage import WAIT_S, Object, Stage, processes_of

# A driver and its executors start in 15 s on an idle machine, but in minutes on a busy one.
SEED_WAIT_S: Final = 4 * WAIT_S
POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedPods:
    """The pods of the flow's seeds, or of its Job *name*."""

    stage: Stage
    flow: str
    name: str = ""

    def drivers(self) -> list[Object]:
        """Returns all drivers, including ended ones, the oldest first."""
        job_selector = f",batch.kubernetes.io/job-name={self.name}" if self.name else ""
        pods = self._pods(f"batch.kubernetes.io/job-name{job_selector}")
        return sorted(pods, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def executors(self, driver: Object | None = None) -> list[Object]:
        """Returns the running executors of *driver* or of all drivers, the oldest first."""
        running = [pod for pod in self._pods("spark-role=executor") if _runs(pod)]
        if driver is not None:
            running = [pod for pod in running if driver["metadata"]["uid"] in _owners(pod)]
        return sorted(running, key=lambda pod: int(pod["metadata"]["labels"]["spark-exec-id"]))

    def wait_for_work(self, driver: Object, count: int = 1) -> list[Object]:
        """Waits until *count* executors of *driver* have a task, and returns them."""

        def busy() -> list[Object]:
            executors = [pod for pod in self.executors(driver) if _has_task(pod)]
            return executors if len(executors) >= count else []

        return wait_until(f"{count} executors have tasks", busy, timeout_s=SEED_WAIT_S, poll_s=POLL_S)

    def wait_for_driver(self, besides: Sequence[Object] = ()) -> Object:
        """Waits for a running driver that is not in *besides*, and returns it."""
        known_uids = {pod["metadata"]["uid"] for pod in besides}

        def new_drivers() -> list[Object]:
            return [pod for pod in self.drivers() if _runs(pod) and pod["metadata"]["uid"] not in known_uids]

        return wait_until("a driver runs", new_drivers, timeout_s=SEED_WAIT_S, poll_s=POLL_S)[-1]

    def wait_for_report(self) -> Object:
        """Waits until the Job has ended, and returns the driver's report. Fails if the Job has failed."""
        wait_until("the seed has ended", self._conditions, timeout_s=SEED_WAIT_S, poll_s=POLL_S)
        assert "Complete" in self._conditions(), self.driver_logs()
        last = self.drivers()[-1]["status"]["containerStatuses"][0]["state"]["terminated"]
        return dict(json.loads(last["message"]))

    def driver_logs(self) -> str:
        """Returns the logs of all drivers."""
        names = [pod["metadata"]["name"] for pod in self.drivers()]
        return "\n".join(f"{name}\n{self.stage.kubectl('logs', name)}" for name in names)

    def _conditions(self) -> set[str]:
        conditions = self.stage.kubectl.get("job", self.name).get("status", {}).get("conditions", ())
        return {condition["type"] for condition in conditions if condition["status"] == "True"} & {
            "Complete",
            "Failed",
        }

    def _pods(self, selector: str) -> list[Object]:
        own = ",".join(f"{key}={value}" for key, value in run_selector(self.flow, RunKind.SEED.value).items())
        return list(self.stage.kubectl.get("pods", f"--selector={own},{selector}")["items"])


@contextmanager
def job(
    stage: Stage,
    image: str,
    flow: str,
    topics: Sequence[str],
    *,
    run_id: str,
    settings: Mapping[str, str],
    **seed: Any,
) -> Iterator[SeedPods]:
    """Creates a seed of *topics* under the alias *flow* with *settings* in its job.properties, and deletes it at the
    end.
    """
    # The chart allows images without a registry in their names.
    resource = stage.flow(flow, topics, seed={"runId": run_id, **seed})
    resource["metadata"]["namespace"] = stage.kubectl.namespace
    resource["spec"]["source"]["alias"] = flow
    planned = job_objects(
        parse_flow(resource),
        Runs(seed=True),
        defaults=SparkDefaults(image=image.removeprefix("docker.io/")),
    )
    for manifest in planned:
        if manifest["kind"] == "ConfigMap":
            manifest["data"]["job.properties"] += "".join(
                f"{key}={value}\n" for key, value in settings.items()
            )
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": flow}}
    stage.apply(account, *planned)
    name = next(manifest["metadata"]["name"] for manifest in planned if manifest["kind"] == "Job")
    try:
        yield SeedPods(stage=stage, flow=flow, name=name)
    finally:
        for manifest in (*planned, account):
            stage.kubectl(
                "delete", manifest["kind"], manifest["metadata"]["name"], "--wait=false", "--ignore-not-found"
            )


def frozen_java(pod: Object) -> AbstractContextManager[None]:
    """Freezes only the executor's JVM, like a long garbage collection. Its Python process continues."""
    return frozen([pid for pid in processes_of(pod) if program_of(pid) == "java"])


def _owners(pod: Object) -> set[str]:
    return {owner["uid"] for owner in pod["metadata"]["ownerReferences"]}


def _has_task(pod: Object) -> bool:
    """Returns whether Spark's Python daemon, which always runs, has forked a process for a task."""
    return sum(program_of(pid).startswith("python") for pid in processes_of(pod)) > 1


def _runs(pod: Object) -> bool:
    return pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
