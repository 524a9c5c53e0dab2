"""Leads clients to the member that is promoted: by the user's hook, or by an object of Kubernetes that they read.

The object is a Service of type ExternalName, whose DNS name clients connect to, or a key of a ConfigMap. It is patched with the
credentials of the Job's pod, whose Role is limited to that object. The patch has the same value each time, so it may be repeated.
"""

import asyncio
import http.client
import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mirrorflow_replicator.switchover.errors import EndpointFailedError
from mirrorflow_replicator.switchover.hooks import HookAction, run_hook
from mirrorflow_replicator.switchover.pair_settings import EndpointObject, SwitchoverSettings

HOST_KEY, PORT_KEY = "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"
CREDENTIALS: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
REQUEST_S: Final = 10.0  # the API server of the same cluster; a request that fails is repeated
SWITCH_S: Final = 2 * REQUEST_S  # for both requests as a whole: a server may send a byte now and then
BODY_MAX_BYTES: Final = 2 * 1024 * 1024  # an object has at most 1.5 MiB
_PLURALS: Final = {"Service": "services", "ConfigMap": "configmaps"}
_MERGE: Final = "application/merge-patch+json"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServerAccess:
    """How a pod reaches the API server. *credentials* has the files `token` and `ca.crt`, which are renewed."""

    host: str
    port: int
    credentials: Path = CREDENTIALS

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Returns the object in the response. Raises OSError, ValueError, http.client.HTTPException, _ApiRefusalError."""
        token = (self.credentials / "token").read_text(encoding="ascii").strip()
        context = ssl.create_default_context(cafile=str(self.credentials / "ca.crt"))
        # Since 3.13 Python refuses certificates without an authority key identifier, which many API servers have.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=REQUEST_S, context=context)
        try:
            headers = {
                "Authorization": f"Bearer {token}",
                "Accept": "application/json",
                "Content-Type": _MERGE,
            }
            text = None if body is None else json.dumps(body)
            connection.request(method, path, body=text, headers=headers)
            response = connection.getresponse()
            value = json.loads(response.read(BODY_MAX_BYTES))
        finally:
            connection.close()
        if not isinstance(value, dict):
            raise ValueError("the response is no object")  # noqa: TRY004 - one class of error for whatever is wrong with the bytes
        if response.status >= http.client.BAD_REQUEST:
            raise _ApiRefusalError(response.status, str(value.get("message", "")))
        return value


class _ApiRefusalError(Exception):
    """The API server has refused a request."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"HTTP status {status}: {message}")


def pod_access(environment: Mapping[str, str] = os.environ) -> ApiServerAccess | None:
    """Returns how this pod reaches the API server; None if this process runs in none."""
    host, port = environment.get(HOST_KEY, ""), environment.get(PORT_KEY, "")
    return ApiServerAccess(host=host, port=int(port)) if host and port.isdigit() else None


async def lead_clients(settings: SwitchoverSettings, access: ApiServerAccess | None = None) -> None:
    """Leads clients to the member that applications move to. Raises HookFailedError, EndpointFailedError."""
    if settings.endpoint_hook is not None:
        await run_hook(settings.endpoint_hook, HookAction.PROMOTE, settings.variables)
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
    except _ApiRefusalError as error:
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
