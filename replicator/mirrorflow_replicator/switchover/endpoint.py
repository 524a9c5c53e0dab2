"""Leads clients to the member that is promoted: by the user's hook, or by an object of Kubernetes that they read.

The object is a Service of type ExternalName, whose DNS name clients connect to, or a key of a ConfigMap. It is patched with the
credentials of the Job's pod, whose Role is limited to that object. The patch has the same value each time, so it may be repeated.
"""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from mirrorflow_kubernetes.credentials import KubernetesLoginError, is_in_pod
from mirrorflow_replicator.switchover.errors import EndpointFailedError
from mirrorflow_replicator.switchover.hooks import HookAction, run_hook
from mirrorflow_replicator.switchover.pair_settings import EndpointObject, SwitchoverSettings

if TYPE_CHECKING:
    from mirrorflow_kubernetes.async_requests import ApiServerResponse

REQUEST_S: Final = 10.0  # the API server of the same cluster; a request that fails is repeated
_PLURALS: Final = {"Service": "services", "ConfigMap": "configmaps"}
_MERGE: Final = "application/merge-patch+json"


class _ApiRefusalError(Exception):
    """The API server has refused a request."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(f"HTTP status {status}: {message}")


async def lead_clients(settings: SwitchoverSettings) -> None:
    """Leads clients to the member that applications move to. Raises HookFailedError, EndpointFailedError."""
    if settings.endpoint_hook is not None:
        await run_hook(settings.endpoint_hook, HookAction.PROMOTE, settings.variables)
    if settings.endpoint_object is not None:
        await _switch(settings.endpoint_object, settings.to, is_trial=False)


async def endpoint_problem(settings: SwitchoverSettings) -> str:
    """Returns why the object of the endpoint could not be switched now, with the cure; "" if it could, or there is none.

    It is patched as a trial, which changes nothing.
    """
    if settings.endpoint_object is None:
        return ""
    try:
        await _switch(settings.endpoint_object, settings.to, is_trial=True)
    except EndpointFailedError as error:
        return str(error)
    return ""


async def _switch(endpoint: EndpointObject, to: str, *, is_trial: bool) -> None:
    if not is_in_pod():
        raise EndpointFailedError(
            endpoint=endpoint.title,
            problem="this process does not run in Kubernetes",
            action="create a Switchover, or write a hook into spec.endpoint",
        )
    value = endpoint.values[to]
    written = await _patch(endpoint, value, is_trial=is_trial)
    held = written.get("spec", {}).get("externalName") if endpoint.kind == "Service" else None
    if endpoint.kind == "ConfigMap":
        held = (written.get("data") or {}).get(endpoint.key)
    if held != value:
        raise EndpointFailedError(
            endpoint=endpoint.title,
            problem=f"it has {held} after it was set to {value}",
            action="find out what sets it back, such as an admission webhook",
        )


async def _patch(endpoint: EndpointObject, value: str, *, is_trial: bool) -> Mapping[str, Any]:
    """Returns the object after it was set to *value*. Raises EndpointFailedError."""
    # The official package takes 0.2 s to import, and only a pair with such an object needs it.
    from mirrorflow_kubernetes.async_requests import SEND_ERRORS, connect_as_pod  # noqa: PLC0415

    path = f"/api/v1/namespaces/{endpoint.namespace}/{_PLURALS[endpoint.kind]}/{endpoint.name}"
    is_service = endpoint.kind == "Service"
    patch = {"spec": {"externalName": value}} if is_service else {"data": {endpoint.key: value}}
    try:
        async with connect_as_pod() as server:
            if is_service:
                _require_external_name(
                    endpoint, _object_in(await server.send("GET", path, timeout_s=REQUEST_S))
                )
            return _object_in(
                await server.send(
                    "PATCH",
                    path,
                    timeout_s=REQUEST_S,
                    params={"dryRun": "All"} if is_trial else None,
                    body=patch,
                    content_type=_MERGE,
                )
            )
    except _ApiRefusalError as error:
        raise _failed(endpoint, str(error), error.status) from error
    except TimeoutError as error:
        raise _failed(endpoint, f"the API server has not responded within {REQUEST_S:g} s", 0) from error
    except KubernetesLoginError as error:
        raise _failed(endpoint, f"the pod's ServiceAccount cannot log in: {error.problem}", 0) from error
    except (*SEND_ERRORS, ValueError) as error:
        raise _failed(endpoint, str(error) or type(error).__name__, 0) from error


def _object_in(response: "ApiServerResponse") -> Mapping[str, Any]:
    """Returns the object in *response*. Raises ValueError, _ApiRefusalError."""
    value = json.loads(response.content)
    if not isinstance(value, dict):
        raise ValueError("the response is no object")  # noqa: TRY004 - one class of error for whatever is wrong with the bytes
    if response.status >= HTTPStatus.BAD_REQUEST:
        raise _ApiRefusalError(response.status, str(value.get("message", "")))
    return value


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
        HTTPStatus.FORBIDDEN: "allow the ServiceAccounts of both flows to get and patch it (the chart's value switchovers.endpoints)",
        HTTPStatus.NOT_FOUND: "create it, or correct its name in spec.endpoint",
    }
    action = actions.get(status, "it is tried again")
    return EndpointFailedError(endpoint=endpoint.title, problem=problem, action=action)
