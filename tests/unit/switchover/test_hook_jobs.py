"""Hooks as Jobs: started by a patch, awaited, replaced before they run again, and never beside their opposite."""

import asyncio
import copy
from collections.abc import Mapping
from typing import Any, cast

import pytest

from mirrorflow_core.switchover.hook_jobs import FENCE_KINDS, HookJobKind, hook_job_name
from mirrorflow_replicator.switchover import hook_jobs
from mirrorflow_replicator.switchover.api_server_access import ApiRefusalError, ApiServerAccess
from mirrorflow_replicator.switchover.errors import HookJobFailedError
from mirrorflow_replicator.switchover.hook_jobs import HookJobSettings
from mirrorflow_replicator.switchover.hooks import HookAction

ID = "east-west/move"
VARIABLES = {"MIRRORFLOW_FROM": "east", "MIRRORFLOW_TO": "west", "MIRRORFLOW_MEMBER": "east"}


class FakeJobs:
    """The API server, an operator that creates deleted Jobs again, and Jobs that end as soon as they are read."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.log: list[str] = []
        self.failures: list[str] = []  # of the next runs
        self.status = 0
        self.uid = 0
        self.ends = True
        self.is_operator_there = True
        for kind in FENCE_KINDS:
            self._prepare(hook_job_name("east-west", kind))

    def _prepare(self, name: str) -> None:
        self.uid += 1
        metadata = {
            "uid": str(self.uid),
            "resourceVersion": "1",
            "annotations": {"mirrorflow.io/switchover-id": ID},
        }
        self.jobs[name] = {"metadata": metadata, "spec": {"suspend": True}, "status": {}}

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        name, _, query = path.rpartition("/")[2].partition("?")
        if self.status:
            raise ApiRefusalError(self.status, "refused")
        if name not in self.jobs:
            raise ApiRefusalError(404, "not found")
        job = self.jobs[name]
        if query:
            return job
        if method == "DELETE":
            self.log.append(f"delete {name}")
            del self.jobs[name]
            if self.is_operator_there:
                self._prepare(name)
        elif method == "PATCH" and body is not None:
            version = body.get("metadata", {}).get("resourceVersion")
            if version not in {None, job["metadata"]["resourceVersion"]}:
                raise ApiRefusalError(409, "conflict")
            job["metadata"]["resourceVersion"] += "1"
            if "spec" in body:
                self.log.append(f"start {name}")
                job["spec"]["suspend"] = False
        elif self.ends and not job["spec"]["suspend"] and not job["status"]:
            failure = self.failures.pop(0) if self.failures else ""
            ended = {"type": "Failed", "message": failure} if failure else {"type": "Complete"}
            job["status"] = {"conditions": [{**ended, "status": "True"}]}
        return copy.deepcopy(job)


def hook(api: FakeJobs, timeout_s: float = 5.0) -> HookJobSettings:
    return HookJobSettings(
        namespace="kafka",
        pair="east-west",
        switchover=ID,
        kinds=FENCE_KINDS,
        timeout_s=timeout_s,
        access=cast("ApiServerAccess", api),
    )


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook_jobs, "POLL_S", 0.001)
    monkeypatch.setattr(hook_jobs, "PREPARED_WITHIN_S", 0.5)
    monkeypatch.setattr(hook_jobs, "ENDED_WITHIN_S", 0.1)


def run(settings: HookJobSettings, action: HookAction, **variables: str) -> None:
    asyncio.run(settings.run(action, {**VARIABLES, **variables}))


def test_the_job_of_the_action_and_the_side_is_started():
    api = FakeJobs()

    run(hook(api), HookAction.FENCE)
    run(hook(api), HookAction.LIFT, MIRRORFLOW_MEMBER="west")

    assert ["start east-west-hook-fence-source", "start east-west-hook-lift-target"] == api.log


def test_a_job_that_has_run_is_replaced_before_it_runs_again():
    api = FakeJobs()
    run(hook(api), HookAction.FENCE)

    run(hook(api), HookAction.FENCE)

    name = "east-west-hook-fence-source"
    assert [f"start {name}", f"delete {name}", f"start {name}"] == api.log


def test_a_failed_job_is_reported_with_its_cause_and_tried_again():
    api = FakeJobs()
    api.failures.append("Container hook failed with exit code 3")
    settings = hook(api)

    with pytest.raises(
        HookJobFailedError, match="exit code 3; see kubectl logs --namespace kafka job/east-west"
    ):
        run(settings, HookAction.FENCE)
    run(settings, HookAction.FENCE)

    assert 2 == len([entry for entry in api.log if entry.startswith("start")])


def test_a_fence_that_runs_is_ended_before_the_lift_begins():
    api = FakeJobs()
    api.ends = False
    with pytest.raises(HookJobFailedError, match=r"has not ended within 0\.01 s"):
        run(hook(api, timeout_s=0.01), HookAction.FENCE)
    api.ends = True

    run(hook(api), HookAction.LIFT)

    assert ["delete east-west-hook-fence-source", "start east-west-hook-lift-source"] == api.log[1:]


def test_an_attempt_that_was_stopped_is_joined_by_the_next_one():
    api = FakeJobs()
    api.ends = False
    settings = hook(api, timeout_s=0.01)
    with pytest.raises(HookJobFailedError):
        run(settings, HookAction.FENCE)
    api.ends = True

    run(settings, HookAction.FENCE)

    assert ["start east-west-hook-fence-source"] == api.log


def test_a_late_start_of_a_stopped_attempt_is_refused():
    """It names the version of the Job that it has read, and a lift changes that."""
    api = FakeJobs()
    path = "/jobs/east-west-hook-fence-source"
    read = api.request("GET", path)["metadata"]
    run(hook(api), HookAction.LIFT)

    with pytest.raises(ApiRefusalError):
        api.request("PATCH", path, {"metadata": read, "spec": {"suspend": False}})


def test_a_job_of_another_switchover_is_not_started():
    api = FakeJobs()
    for job in api.jobs.values():
        job["metadata"]["annotations"] = {"mirrorflow.io/switchover-id": "east-west/earlier"}

    with pytest.raises(HookJobFailedError, match="make sure that the operator runs"):
        run(hook(api), HookAction.FENCE)

    assert [] == api.log


def test_the_lift_needs_no_operator_after_the_first_fence():
    api = FakeJobs()
    api.is_operator_there = False
    run(hook(api), HookAction.FENCE)

    run(hook(api), HookAction.LIFT)

    assert "start east-west-hook-lift-source" == api.log[-1]


def test_the_check_names_the_missing_right():
    api = FakeJobs()
    assert not asyncio.run(hook(api).problem())
    api.status = 403

    problem = asyncio.run(hook(api).problem())

    assert "HTTP status 403" in problem
    assert "switchovers.hooks" in problem
    assert HookJobKind.FENCE_SOURCE.value in problem
