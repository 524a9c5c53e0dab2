"""Seeds on the node: their pods, faults of these, and Jobs without an operator.

A flow's own seed is the operator's: `SeedPods` finds its driver and executors. `job` makes the Job as the operator plans it,
of a flow that is no resource: no connector helps it, and a test may add settings of Spark's, such as time-outs that fit a test.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from mirrorflow_operator.api.load import parse_flow
from mirrorflow_operator.plan.job_objects import RunKind, Runs, SparkDefaults, job_objects
from mirrorflow_operator.plan.names import run_selector
from tests.harness.kafka.processes import frozen, program_of, wait_until
from tests.harness.kubernetes.stage import WAIT_S, Object, Stage, processes_of

# A driver and its executors start in 15 s alone; a machine that does much else takes minutes.
SEED_WAIT_S: Final = 4 * WAIT_S
POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedPods:
    """Those of the flow's seeds, or of its Job *name* alone."""

    stage: Stage
    flow: str
    name: str = ""

    def drivers(self) -> list[Object]:
        """All that are there, ended or not, the oldest first."""
        mine = f",batch.kubernetes.io/job-name={self.name}" if self.name else ""
        found = self._pods(f"batch.kubernetes.io/job-name{mine}")
        return sorted(found, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def executors(self, driver: Object | None = None) -> list[Object]:
        """Those that run, of *driver* or of any, the oldest first."""
        running = [pod for pod in self._pods("spark-role=executor") if _runs(pod)]
        if driver is not None:
            running = [pod for pod in running if driver["metadata"]["uid"] in _owners(pod)]
        return sorted(running, key=lambda pod: int(pod["metadata"]["labels"]["spark-exec-id"]))

    def wait_for_work(self, driver: Object, count: int = 1) -> list[Object]:
        """The executors of *driver* with a task, as soon as there are *count*."""

        def busy() -> list[Object]:
            found = [pod for pod in self.executors(driver) if _has_task(pod)]
            return found if len(found) >= count else []

        return wait_until(f"{count} executors have tasks", busy, timeout_s=SEED_WAIT_S, poll_s=POLL_S)

    def wait_for_driver(self, besides: Sequence[Object] = ()) -> Object:
        """As soon as one runs that is none of *besides*."""
        known = {pod["metadata"]["uid"] for pod in besides}

        def others() -> list[Object]:
            return [pod for pod in self.drivers() if _runs(pod) and pod["metadata"]["uid"] not in known]

        return wait_until("a driver runs", others, timeout_s=SEED_WAIT_S, poll_s=POLL_S)[-1]

    def wait_for_report(self) -> Object:
        """What the driver has left behind when the Job is complete; fails at once where it has failed."""
        wait_until("the seed has ended", self._conditions, timeout_s=SEED_WAIT_S, poll_s=POLL_S)
        assert "Complete" in self._conditions(), self.said()
        last = self.drivers()[-1]["status"]["containerStatuses"][0]["state"]["terminated"]
        return dict(json.loads(last["message"]))

    def said(self) -> str:
        """The logs of all drivers that are there."""
        names = [pod["metadata"]["name"] for pod in self.drivers()]
        return "\n".join(f"{name}\n{self.stage.kubectl('logs', name)}" for name in names)

    def _conditions(self) -> set[str]:
        found = self.stage.kubectl.get("job", self.name).get("status", {}).get("conditions", ())
        return {one["type"] for one in found if one["status"] == "True"} & {"Complete", "Failed"}

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
    more: Mapping[str, str],
    **seed: Any,
) -> Iterator[SeedPods]:
    """A seed of *topics* under the alias *flow*, *more* in its job.properties; at the end it goes, whatever it was doing."""
    # The chart admits images by the names that it gives, which leave the registry out.
    resource = stage.flow(flow, topics, seed={"runId": run_id, **seed})
    resource["metadata"]["namespace"] = stage.kubectl.namespace
    resource["spec"]["source"]["alias"] = flow
    planned = job_objects(
        parse_flow(resource),
        Runs(seed=True),
        defaults=SparkDefaults(image=image.removeprefix("docker.io/")),
    )
    for one in planned:
        if one["kind"] == "ConfigMap":
            one["data"]["job.properties"] += "".join(f"{key}={value}\n" for key, value in more.items())
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": flow}}
    stage.apply(account, *planned)
    name = next(one["metadata"]["name"] for one in planned if one["kind"] == "Job")
    try:
        yield SeedPods(stage=stage, flow=flow, name=name)
    finally:
        for one in (*planned, account):
            stage.kubectl(
                "delete", one["kind"], one["metadata"]["name"], "--wait=false", "--ignore-not-found"
            )


def frozen_java(pod: Object) -> AbstractContextManager[None]:
    """Freezes only the executor's JVM, like a long garbage collection; its Python continues."""
    return frozen([pid for pid in processes_of(pod) if program_of(pid) == "java"])


def _owners(pod: Object) -> set[str]:
    return {one["uid"] for one in pod["metadata"]["ownerReferences"]}


def _has_task(pod: Object) -> bool:
    """Beside Spark's Python daemon, which stays, there is a process that it has forked for a task."""
    return sum(program_of(pid).startswith("python") for pid in processes_of(pod)) > 1


def _runs(pod: Object) -> bool:
    return pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
