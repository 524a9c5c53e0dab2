"""Fences the brokers of a member by a NetworkPolicy, which the operator has prepared (plan/fence_policies.py).

This process may read and patch the policies of its pair by their names, and an admission policy lets it change one thing: whether
they are in force. A network plugin needs a moment to enforce a policy, which no object shows, so this process waits for it.
"""

import asyncio
import contextlib
import http.client
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mirrorflow_core.switchover.fence_policies import FENCED, NOT_FENCED, NOT_FENCED_LABEL
from mirrorflow_replicator.switchover.api_server_access import (
    REQUEST_S,
    ApiRefusalError,
    ApiServerAccess,
    pod_access,
)
from mirrorflow_replicator.switchover.errors import NetworkFenceFailedError
from mirrorflow_replicator.switchover.hooks import HookAction

DIGEST_ANNOTATION: Final = "mirrorflow.io/fence-digest"  # the operator writes it (plan/fence_policies.py)
PREPARED_WITHIN_S: Final = 30.0  # the operator creates a policy within a second or two
POLL_S: Final = 0.25
_NOT_PREPARED: Final = "the operator has not prepared it, or an earlier fence is in force that differs"


@dataclass(frozen=True, slots=True, kw_only=True)
class FencePolicy:
    """The NetworkPolicy of one member. *digest*: of what it does in force, as the Switchover has begun with."""

    name: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFenceSettings:
    """The NetworkPolicies of a pair by the members that they fence. *source*: the member that is left."""

    namespace: str
    source: str
    policies: Mapping[str, FencePolicy]
    settle_s: float  # until the network plugin enforces a changed policy
    access: ApiServerAccess | None = None  # None: that of this pod

    @property
    def timeout_s(self) -> float:
        """For how long it may work: one request, and the time of the plugin."""
        return REQUEST_S + self.settle_s

    async def run(self, action: HookAction, variables: Mapping[str, str]) -> None:
        """Fences a member, or lifts its fence; may be repeated. Raises NetworkFenceFailedError."""
        policy = self.policies[variables["MIRRORFLOW_MEMBER"]]
        if action is HookAction.LIFT:
            await self._patch(policy, NOT_FENCED)
            return
        body = await self._patch(policy, FENCED)
        if body is None or _digest(body) != policy.digest:
            raise self._failed(policy, _NOT_PREPARED, "make sure that the operator runs")
        await asyncio.sleep(self.settle_s)

    async def problem(self) -> str:
        """Returns why the source could not be fenced now. Its policy is patched as a trial, which changes nothing."""
        policy = self.policies[self.source]
        try:
            async with asyncio.timeout(PREPARED_WITHIN_S):
                await self._prepared(policy)
                await self._patch(policy, FENCED, query="?dryRun=All")
        except TimeoutError:
            return f"networkPolicy: {self._failed(policy, _NOT_PREPARED, 'make sure that the operator runs')}"
        except NetworkFenceFailedError as error:
            return f"networkPolicy: {error}"
        return ""

    async def _prepared(self, policy: FencePolicy) -> None:
        while True:
            body = await self._request("GET", policy, None)
            if body is not None and _digest(body) == policy.digest:
                return
            await asyncio.sleep(POLL_S)

    async def _patch(
        self, policy: FencePolicy, operator: str, *, query: str = ""
    ) -> Mapping[str, Any] | None:
        """Puts a policy in force or out of it; returns it, None if there is none."""
        requirement = {"key": NOT_FENCED_LABEL, "operator": operator}
        spec = {"podSelector": {"matchExpressions": [requirement]}}
        return await self._request("PATCH", policy, {"spec": spec}, query=query)

    async def _request(
        self, method: str, policy: FencePolicy, body: Mapping[str, Any] | None, *, query: str = ""
    ) -> Mapping[str, Any] | None:
        access = self.access or pod_access()
        if access is None:
            raise self._failed(
                policy,
                "this process does not run in Kubernetes",
                "create a Switchover, or choose another fence",
            )
        path = f"/apis/networking.k8s.io/v1/namespaces/{self.namespace}/networkpolicies/{policy.name}{query}"
        try:
            return await _to_its_end(asyncio.to_thread(access.request, method, path, body))
        except ApiRefusalError as error:
            if error.status == http.client.NOT_FOUND:
                return None
            action = "it is tried again"
            if error.status == http.client.FORBIDDEN:
                action = "allow the ServiceAccounts of both flows to get and patch it (the chart's value switchovers.fences)"
            raise self._failed(policy, str(error), action) from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise self._failed(policy, str(error) or type(error).__name__, "it is tried again") from error

    def _failed(self, policy: FencePolicy, problem: str, action: str) -> NetworkFenceFailedError:
        return NetworkFenceFailedError(
            policy=f"{self.namespace}/{policy.name}", problem=problem, action=action
        )


def _digest(body: Mapping[str, Any]) -> str:
    return str((body["metadata"].get("annotations") or {}).get(DIGEST_ANNOTATION, ""))


async def _to_its_end(request: Coroutine[Any, Any, Mapping[str, Any]]) -> Mapping[str, Any]:
    """Returns what *request* returns, which runs in a thread. Raises as *request*.

    A cancellation cannot take it back, so it waits for it, REQUEST_S at most: a policy must not come into force after its lift.
    """
    working = asyncio.ensure_future(request)
    working.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # retrieved
    try:
        await asyncio.wait({working})
    except asyncio.CancelledError:
        end_s = time.monotonic() + REQUEST_S
        while not working.done() and (left_s := end_s - time.monotonic()) > 0:
            with contextlib.suppress(asyncio.CancelledError):  # a later one; the first one is raised
                await asyncio.wait({working}, timeout=left_s)
        raise
    return working.result()
