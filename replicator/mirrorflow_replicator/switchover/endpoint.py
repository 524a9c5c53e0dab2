"""Leads clients to the member that is promoted: by the user's hook, or by an object of Kubernetes that they read.

The object is a Service of type ExternalName, whose DNS name clients connect to, or a key of a ConfigMap. It is patched with the
credentials of the Job's pod, whose Role is limited to that object. The patch has the same value each time, so it may be repeated.
"""

import asyncio
import http.client
from collections.abc import Mapping
from typing import Any, Final

from mirrorflow_replicator.switchover.api_server_access import (
    REQUEST_S,
    ApiRefusalError,
    ApiServerAccess,
    pod_access,
)
from mirrorflow_replicator.switchover.errors import EndpointFailedError
from mirrorflow_replicator.switchover.hooks import HookAction
from mirrorflow_replicator.switchover.pair_settings import EndpointObject, SwitchoverSettings

SWITCH_S: Final = 2 * REQUEST_S  # for both requests as a whole: a server may send a byte now and then
_PLURALS: Final = {"Service": "services", "ConfigMap": "configmaps"}


async def lead_clients(settings: SwitchoverSettings, access: ApiServerAccess | None = None) -> None:
    """Leads clients to the member that applications move to. Raises HookFailedError, HookJobFailedError, EndpointFailedError."""
    if settings.endpoint_hook is not None:
        await settings.endpoint_hook.run(HookAction.PROMOTE, settings.variables)
    if settings.endpoint_object is not None:
        await _switch(settings.endpoint_object, settings.to, access or pod_access(), is_trial=False)


async def endpoint_problem(settings: SwitchoverSettings, access: ApiServerAccess | None = None) -> str:
    """Returns why the object of the endpoint could not be switched now, with the cure; "" if it could, or there is none.

    It is patched as a trial, which changes nothing.
    """
    if settings.endpoint_object is None:
        return ""
    try:
        await _switch(settings.endpoint_object, settings.to, access or pod_access(), is_trial=True)
    except EndpointFailedError as error:
        return str(error)
    return ""


async def _switch(
    endpoint: EndpointObject, to: str, access: ApiServerAccess | None, *, is_trial: bool
) -> None:
    try:
        async with asyncio.timeout(SWITCH_S):
            await asyncio.to_thread(_patch, endpoint, to, access, is_trial=is_trial)
    except TimeoutError as error:
        raise _failed(endpoint, f"the API server has not responded within {SWITCH_S:g} s", 0) from error


def _patch(endpoint: EndpointObject, to: str, access: ApiServerAccess | None, *, is_trial: bool) -> None:
    if access is None:
        raise EndpointFailedError(
            endpoint=endpoint.title,
            problem="this process does not run in Kubernetes",
            action="create a Switchover, or write a hook into spec.endpoint",
        )
    path = f"/api/v1/namespaces/{endpoint.namespace}/{_PLURALS[endpoint.kind]}/{endpoint.name}"
    value = endpoint.values[to]
    try:
        if endpoint.kind == "Service":
            _require_external_name(endpoint, access.request("GET", path))
            patch: Mapping[str, Any] = {"spec": {"externalName": value}}
        else:
            patch = {"data": {endpoint.key: value}}
        written = access.request("PATCH", f"{path}?dryRun=All" if is_trial else path, patch)
    except ApiRefusalError as error:
        raise _failed(endpoint, str(error), error.status) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise _failed(endpoint, str(error) or type(error).__name__, 0) from error
    held = written.get("spec", {}).get("externalName") if endpoint.kind == "Service" else None
    if endpoint.kind == "ConfigMap":
        held = (written.get("data") or {}).get(endpoint.key)
    if held != value:
        raise EndpointFailedError(
            endpoint=endpoint.title,
            problem=f"it has {held} after it was set to {value}",
            action="find out what sets it back, such as an admission webhook",
        )


def _require_external_name(endpoint: EndpointObject, service: Mapping[str, Any]) -> None:
    """A Service that selects pods would lose its address."""
    kind = service.get("spec", {}).get("type")
    if kind != "ExternalName":
        raise EndpointFailedError(
            endpoint=endpoint.title,
            problem=f"its type is {kind}",
            action="name a Service of type ExternalName, which clients connect to",
        )


def _failed(endpoint: EndpointObject, problem: str, status: int) -> EndpointFailedError:
    actions: Mapping[int, str] = {
        http.client.FORBIDDEN: "allow the ServiceAccounts of both flows to get and patch it (the chart's value switchovers.endpoints)",
        http.client.NOT_FOUND: "create it, or correct its name in spec.endpoint",
    }
    action = actions.get(status, "it is tried again")
    return EndpointFailedError(endpoint=endpoint.title, problem=problem, action=action)
