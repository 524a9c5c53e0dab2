"""Sends requests to the Kubernetes API server and returns JSON objects as dicts.

Each request has a timeout, and each kind of failure its own error class. Nothing is retried here: the caller
decides whether a retry makes sense. The official package sends the requests, with the credentials of `login`.
"""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
from kubernetes.aio.client.rest import RESTClientObject

from mirrorflow_kubernetes.async_login import ApiServerLogin
from mirrorflow_kubernetes.async_requests import SEND_ERRORS, ApiServerResponse, AsyncConnection
from mirrorflow_kubernetes.credentials import KubernetesLoginError
from mirrorflow_operator import errors
from mirrorflow_operator.metrics import Metrics

FIELD_MANAGER: Final = "mirrorflow-operator"
REQUEST_TIMEOUT_S: Final = 30.0
CREDENTIALS_AGE_MAX_S: Final = 60.0
LOGIN_TIMEOUT_S: Final = 10.0  # an exec plugin may wait for a person; a request must not
CHUNK: Final = 200  # objects in one response to a list: 1 MB, and a few more while it is parsed
RESPONSE_QUOTE_MAX: Final = 1_000  # characters of a response quoted in an error; policies quote whole objects
APPLY: Final = "application/apply-patch+yaml"
_CLASSES: Final[Mapping[int, type[errors.ApiServerError]]] = {
    401: errors.ForbiddenError,
    403: errors.ForbiddenError,
    404: errors.NotFoundError,
    409: errors.ConflictError,
    410: errors.GoneError,
    429: errors.BusyError,
    500: errors.BrokenError,
}
Object = dict[str, Any]
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectKind:
    """A kind of Kubernetes object; `group` is "" for the core group."""

    group: str
    version: str
    plural: str
    name: str

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Returns the path of a list or of one object; *namespace* None means all namespaces."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = "" if namespace is None else f"/namespaces/{namespace}"
        parts = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{root}{inside}/{self.plural}{parts}"


MIRROR_FLOW: Final = ObjectKind(
    group="mirrorflow.io", version="v1alpha1", plural="mirrorflows", name="MirrorFlow"
)
MIRROR_PAIR: Final = ObjectKind(
    group="mirrorflow.io", version="v1alpha1", plural="mirrorpairs", name="MirrorPair"
)
SWITCHOVER: Final = ObjectKind(
    group="mirrorflow.io", version="v1alpha1", plural="switchovers", name="Switchover"
)
SERVICE_ACCOUNT: Final = ObjectKind(group="", version="v1", plural="serviceaccounts", name="ServiceAccount")
CONFIG_MAP: Final = ObjectKind(group="", version="v1", plural="configmaps", name="ConfigMap")
NETWORK_POLICY: Final = ObjectKind(
    group="networking.k8s.io", version="v1", plural="networkpolicies", name="NetworkPolicy"
)
SERVICE: Final = ObjectKind(group="", version="v1", plural="services", name="Service")
DISRUPTION_BUDGET: Final = ObjectKind(
    group="policy", version="v1", plural="poddisruptionbudgets", name="PodDisruptionBudget"
)
DEPLOYMENT: Final = ObjectKind(group="apps", version="v1", plural="deployments", name="Deployment")
JOB: Final = ObjectKind(group="batch", version="v1", plural="jobs", name="Job")
CRON_JOB: Final = ObjectKind(group="batch", version="v1", plural="cronjobs", name="CronJob")
POD: Final = ObjectKind(group="", version="v1", plural="pods", name="Pod")
EVENT: Final = ObjectKind(group="", version="v1", plural="events", name="Event")
LEASE: Final = ObjectKind(group="coordination.k8s.io", version="v1", plural="leases", name="Lease")
# Of Kubeflow's Spark operator, which a cluster may not have.
SPARK_APPLICATION: Final = ObjectKind(
    group="sparkoperator.k8s.io", version="v1beta2", plural="sparkapplications", name="SparkApplication"
)
SCHEDULED_SPARK_APPLICATION: Final = ObjectKind(
    group="sparkoperator.k8s.io",
    version="v1beta2",
    plural="scheduledsparkapplications",
    name="ScheduledSparkApplication",
)
# The kinds that a plan may hold; other kinds are neither applied nor pruned.
CHILDREN: Final = (
    SERVICE_ACCOUNT,
    CONFIG_MAP,
    NETWORK_POLICY,
    SERVICE,
    DISRUPTION_BUDGET,
    DEPLOYMENT,
    JOB,
    CRON_JOB,
)
WATCHED: Final = (MIRROR_FLOW, *CHILDREN, POD)
# Watched besides, where their CRDs are installed and the operator may read them.
PAIR_KINDS: Final = (MIRROR_PAIR, SWITCHOVER)
# Watched besides, once a flow needs them, where their CRDs are installed and the operator may read them. A plan may hold them.
SPARK_KINDS: Final = (SPARK_APPLICATION, SCHEDULED_SPARK_APPLICATION)
_BY_NAME: Final = {kind.name: kind for kind in (*CHILDREN, *SPARK_KINDS)}


def kind_of(planned: dict[str, object]) -> ObjectKind:
    """Returns a planned object's kind. Raises KeyError for a kind that the operator's role cannot write."""
    return _BY_NAME[str(planned["kind"])]


class Client:
    """A client of one API server; *log_in* returns its address and credentials."""

    def __init__(self, log_in: Callable[[], Awaitable[ApiServerLogin]], metrics: Metrics) -> None:
        self._log_in = log_in
        self._metrics = metrics
        self._login: ApiServerLogin | None = None
        self._refreshed_at = 0.0
        self._one_login = asyncio.Lock()  # concurrent requests share one run of an exec plugin
        self._connections: RESTClientObject | None = None
        self._endpoint: tuple[object, ...] = ()

    async def close(self) -> None:
        if self._connections is not None:
            await self._connections.close()
            self._connections = None

    async def get(self, path: str, *, timeout_s: float = REQUEST_TIMEOUT_S) -> Object:
        """Returns the JSON object at *path*. Raises ApiServerError."""
        return await self._request("GET", path, "read", "", timeout_s=timeout_s)

    async def read(
        self, kind: ObjectKind, namespace: str, name: str, *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> Object:
        """Returns one object. Raises NotFoundError where it does not exist."""
        return await self._request("GET", kind.path(namespace, name), "get", kind.plural, timeout_s=timeout_s)

    async def chunks(
        self,
        kind: ObjectKind,
        namespace: str | None,
        *,
        labels: str = "",
        fields: str = "",
        limit: int = CHUNK,
    ) -> AsyncIterator[tuple[int, list[Object]]]:
        """Yields every object of *kind* in chunks, each with the resourceVersion of the whole list."""
        params = {"limit": str(limit)}
        if labels:
            params["labelSelector"] = labels
        if fields:
            params["fieldSelector"] = fields
        while True:
            response = await self._request("GET", kind.path(namespace), "list", kind.plural, params=params)
            yield int(response["metadata"].get("resourceVersion") or 0), response["items"]
            following = response["metadata"].get("continue")
            if not following:
                return
            params["continue"] = following

    async def apply(
        self,
        kind: ObjectKind,
        body: Object,
        *,
        subresource: str = "",
        force: bool = True,
        field_manager: str = FIELD_MANAGER,
    ) -> Object:
        """Applies *body* server-side and returns the stored object.

        Raises ConflictError where the uid or resourceVersion in *body* does not match.
        """
        metadata = body["metadata"]
        path = kind.path(metadata.get("namespace"), metadata["name"], subresource)
        params = {"fieldManager": field_manager, "force": "true" if force else "false"}
        what = f"{kind.plural}/{subresource}" if subresource else kind.plural
        return await self._request("PATCH", path, "apply", what, params=params, body=body)

    async def create(
        self, kind: ObjectKind, namespace: str, body: Object, *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> Object:
        """Creates an object and returns it. Raises ConflictError where one of that name exists."""
        path = kind.path(namespace)
        return await self._request("POST", path, "create", kind.plural, body=body, timeout_s=timeout_s)

    async def replace(
        self,
        kind: ObjectKind,
        namespace: str,
        name: str,
        body: Object,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Object:
        """Replaces a whole object. Raises ConflictError where *body* has an older resourceVersion."""
        path = kind.path(namespace, name)
        return await self._request("PUT", path, "update", kind.plural, body=body, timeout_s=timeout_s)

    async def delete(
        self,
        kind: ObjectKind,
        namespace: str,
        name: str,
        *,
        uid: str,
        resource_version: str = "",
        dependents_first: bool = False,
    ) -> None:
        """Deletes the object with this *uid*, and its dependents in the background, or before it.

        With *resource_version*, only that version. Raises ConflictError where another object has its name now, or it has changed.
        """
        version = {"resourceVersion": resource_version} if resource_version else {}
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground" if dependents_first else "Background",
            "preconditions": {"uid": uid, **version},
        }
        await self._request("DELETE", kind.path(namespace, name), "delete", kind.plural, body=body)

    async def _request(
        self,
        method: str,
        path: str,
        verb: str,
        what: str,
        *,
        params: Mapping[str, str] | None = None,
        body: Object | None = None,
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> Object:
        request = f"{method} {path}"
        code = "0"
        try:
            connection = await self._logged_in(timeout_s)
            response = await connection.send(
                method,
                path,
                timeout_s=timeout_s,
                params=params,
                body=body,
                content_type=APPLY if verb == "apply" else "application/json",
            )
            code = str(response.status)
        except SEND_ERRORS as error:
            if isinstance(error, aiohttp.ClientSSLError):
                self._endpoint = ()  # the file of the CA or of the client's certificate may have been replaced
            raise errors.NoResponseError(request, f"no response ({type(error).__name__}: {error})") from error
        finally:
            if what:
                self._metrics.api_requests.labels(verb=verb, kind=what, code=code).inc()
        if response.status == 401 and self._login is connection.login:
            self._login = None
        return self._parse(request, response)

    def _parse(self, request: str, response: ApiServerResponse) -> Object:
        status, content = response.status, response.content
        try:
            value = json.loads(content) if content else {}
        except (ValueError, RecursionError):
            value = None
        if status < 400 and isinstance(value, dict):
            return value
        message = (
            value.get("message", "") if isinstance(value, dict) else content[:200].decode(errors="replace")
        )
        retry_after_s = 0.0
        with contextlib.suppress(ValueError):
            retry_after_s = float(response.headers.get("Retry-After", "0"))
        kind = _CLASSES.get(status, errors.BusyError if status >= 500 else errors.RejectedError)
        if status < 400:
            kind = errors.NoResponseError  # a truncated response, or one that another server sent
        sentence = (str(message) or f"HTTP {status}")[:RESPONSE_QUOTE_MAX]
        raise kind(request, sentence, status=status, retry_after_s=retry_after_s)

    async def _logged_in(self, timeout_s: float) -> AsyncConnection:
        """Raises KubernetesLoginError, TimeoutError and OSError where there are no credentials."""
        async with asyncio.timeout(min(LOGIN_TIMEOUT_S, timeout_s)), self._one_login:
            if self._login is None:
                self._login = await self._log_in()
                self._refreshed_at = time.monotonic()
            elif time.monotonic() - self._refreshed_at > CREDENTIALS_AGE_MAX_S:
                self._refreshed_at = time.monotonic()
                await self._refresh(self._login)
            login = self._login
            if self._connections is None or self._endpoint != login.endpoint:
                await self.close()
                self._connections, self._endpoint = RESTClientObject(login.configuration), login.endpoint
            return AsyncConnection(login, self._connections)

    async def _refresh(self, login: ApiServerLogin) -> None:
        """Renews what has expired. Until the API server refuses the credentials, a failure is no reason to stop."""
        try:
            async with asyncio.timeout(LOGIN_TIMEOUT_S / 2):
                await login.refresh()
        except (KubernetesLoginError, TimeoutError) as error:
            _LOG.warning("Credentials of the API server were not renewed: %s", str(error) or "no response")
