"""A fence by NetworkPolicy: put in force by one patch, checked before, and lifted although it is missing or differs."""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any, cast

import pytest

from mirrorflow_replicator.switchover import network_policy_fence
from mirrorflow_replicator.switchover.api_server_access import ApiRefusalError, ApiServerAccess
from mirrorflow_replicator.switchover.errors import NetworkFenceFailedError
from mirrorflow_replicator.switchover.hooks import HookAction
from mirrorflow_replicator.switchover.network_policy_fence import FencePolicy, NetworkFenceSettings

EAST, WEST = "east-west-fence-east-to-west", "east-west-fence-west-to-east"


class FakePolicies:
    """The API server. *operators*: what the requirement of each policy has."""

    def __init__(self) -> None:
        self.operators = {EAST: "Exists", WEST: "DoesNotExist"}
        self.digests = {EAST: "e", WEST: "w"}
        self.status = 0

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        name, _, query = path.rpartition("/")[2].partition("?")
        if self.status:
            raise ApiRefusalError(self.status, "refused")
        if name not in self.operators:
            raise ApiRefusalError(404, "not found")
        if method == "PATCH" and not query and body is not None:
            (requirement,) = body["spec"]["podSelector"]["matchExpressions"]
            assert body == {"spec": {"podSelector": {"matchExpressions": [requirement]}}}
            self.operators[name] = requirement["operator"]
        return {"metadata": {"annotations": {"mirrorflow.io/fence-digest": self.digests[name]}}}


def fence(api: FakePolicies | None) -> NetworkFenceSettings:
    policies = {"east": FencePolicy(name=EAST, digest="e"), "west": FencePolicy(name=WEST, digest="w")}
    access = cast("ApiServerAccess", api)
    return NetworkFenceSettings(
        namespace="kafka", source="east", policies=policies, settle_s=0.0, access=access
    )


def run(api: FakePolicies, action: HookAction, member: str) -> None:
    asyncio.run(fence(api).run(action, {"MIRRORFLOW_MEMBER": member}))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_policy_fence, "POLL_S", 0.001)
    monkeypatch.setattr(network_policy_fence, "PREPARED_WITHIN_S", 0.05)


def test_the_source_is_fenced_and_the_target_is_lifted():
    api = FakePolicies()

    for _ in range(2):
        run(api, HookAction.FENCE, "east")
        run(api, HookAction.LIFT, "west")

    assert {EAST: "DoesNotExist", WEST: "Exists"} == api.operators


def test_the_check_changes_nothing():
    api = FakePolicies()

    assert not asyncio.run(fence(api).problem())
    assert "Exists" == api.operators[EAST]


def test_a_policy_with_another_content_is_no_fence():
    """Such as one of an earlier pair that is in force."""
    api = FakePolicies()
    api.digests[EAST] = "other"

    assert "an earlier fence is in force that differs" in asyncio.run(fence(api).problem())
    with pytest.raises(NetworkFenceFailedError, match="has not prepared it"):
        run(api, HookAction.FENCE, "east")


def test_a_missing_policy_is_no_fence_and_needs_no_lift():
    api = FakePolicies()
    api.operators.clear()

    with pytest.raises(NetworkFenceFailedError, match=f"NetworkPolicy kafka/{EAST} cannot be changed"):
        run(api, HookAction.FENCE, "east")
    run(api, HookAction.LIFT, "east")


def test_an_earlier_fence_of_any_content_is_lifted():
    api = FakePolicies()
    api.digests[WEST] = "other"

    run(api, HookAction.LIFT, "west")

    assert "Exists" == api.operators[WEST]


def test_the_check_names_the_missing_right():
    api = FakePolicies()
    api.status = 403

    problem = asyncio.run(fence(api).problem())

    assert problem.startswith("networkPolicy: ")
    assert "HTTP status 403" in problem
    assert "switchovers.fences" in problem


def test_a_process_outside_of_kubernetes_cannot_fence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    assert "this process does not run in Kubernetes" in asyncio.run(fence(None).problem())


class SlowPolicies(FakePolicies):
    """An API server that is slow to put a policy in force: *may_respond* lets it. A policy is put out of force at once."""

    def __init__(self) -> None:
        super().__init__()
        self.may_respond, self.was_asked = threading.Event(), threading.Event()

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        if "DoesNotExist" in str(body):
            self.was_asked.set()
            assert self.may_respond.wait(30)
        return super().request(method, path, body)


async def stopped_fence(api: SlowPolicies, *cancels_after_s: float) -> tuple[bool, str]:
    """Returns if the fence had ended before the API server responded, and what the policy has after a lift that comes next."""
    variables = {"MIRRORFLOW_MEMBER": "east"}
    working = asyncio.create_task(fence(api).run(HookAction.FENCE, variables))
    await asyncio.to_thread(api.was_asked.wait)
    for pause_s in cancels_after_s:
        await asyncio.sleep(pause_s)
        working.cancel()
    _, running = await asyncio.wait({working}, timeout=0.2)
    if running:
        api.may_respond.set()
        await asyncio.wait({working})
    assert working.cancelled()
    await fence(api).run(HookAction.LIFT, variables)
    api.may_respond.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    return not running, api.operators[EAST]


@pytest.mark.parametrize("cancels_after_s", [[0.0], [0.0, 0.02]], ids=["once", "twice"])
def test_a_policy_does_not_come_into_force_after_its_lift(cancels_after_s: list[float]):
    """A stopped process waits for the request that is under way: nothing can take it back."""
    is_early, operator = asyncio.run(stopped_fence(SlowPolicies(), *cancels_after_s))

    assert (False, "Exists") == (is_early, operator)


def test_a_request_without_a_response_is_awaited_for_a_limited_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(network_policy_fence, "REQUEST_S", 0.02)

    is_early, _ = asyncio.run(stopped_fence(SlowPolicies(), 0.0))

    assert is_early
