"""Sends requests to the Kubernetes API server and returns JSON objects as dicts.

Each request has a timeout, and each kind of failure its own error class. Nothing is retried here: the caller
decides whether a retry makes sense. Credentials come from the kubeconfig that KUBECONFIG names, else from the
pod's ServiceAccount.
"""

import contextlib
import json
import os
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import aiohttp
import kopf

from mirrorflow_operator import errors
from mirrorflow_operator.errors import SettingsError
from mirrorflow_operator.metrics import Metrics

FIELD_MANAGER: Final = "mirrorflow-operator"
_IN_CLUSTER: Final = "https://kubernetes.default.svc"  # kopf's address for every pod


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
_BY_NAME: Final = {kind.name: kind for kind in CHILDREN}


def kind_of(planned: dict[str, object]) -> ObjectKind:
    """Returns a planned object's kind. Raises KeyError for a kind that the operator's role cannot write."""
    return _BY_NAME[str(planned["kind"])]


def connection() -> kopf.ConnectionInfo:
    """Returns address and credentials of the API server. Raises SettingsError where there are none.

    Reads them on each call, because the kubelet replaces a pod's token every hour.
    """
    settings = kopf.OperatorSettings()
    found = None
    if os.environ.get("KUBECONFIG"):
        found = kopf.login_with_kubeconfig(settings=settings)
    found = found or kopf.login_with_service_account(settings=settings)
    if found is None:
        raise SettingsError(
            "KUBECONFIG", "", "name a kubeconfig, or run in a pod with a ServiceAccount token"
        )
    values = {field.name: getattr(found, field.name) for field in fields(found)}
    return _Connection(**{**values, "server": _server(found.server)})


def _server(url: str) -> str:
    """Replaces the API server's name in a pod by its address, so that the operator works while the cluster's DNS does not."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if url != _IN_CLUSTER or not host:
        return url
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"


class _Connection(kopf.ConnectionInfo):
    """A connection that verifies the API server's certificate as Go clients do.

    Since 3.13 Python refuses certificates without an authority key identifier, which the API servers of many
    clusters use. Chain, host name and dates are still checked.
    """

    def as_ssl_context(self) -> ssl.SSLContext:
        context = super().as_ssl_context()
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context


REQUEST_TIMEOUT_S: Final = 30.0
CONNECT_TIMEOUT_S: Final = 10.0
# Enough for workers, lists and the Lease at once; beyond that, the API server's priority and fairness limits.
CONNECTIONS_MAX: Final = 32
CREDENTIALS_AGE_MAX_S: Final = 60.0
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


class Client:
    """A client of one API server; *connect* returns its current address and credentials."""

    def __init__(self, connect: Callable[[], kopf.ConnectionInfo], metrics: Metrics) -> None:
        self._connect = connect
        self._metrics = metrics
        self._info: kopf.ConnectionInfo | None = None
        self._read_at = 0.0
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

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

    async def delete(self, kind: ObjectKind, namespace: str, name: str, *, uid: str) -> None:
        """Deletes the object with this *uid*, and its dependents in the background.

        Raises ConflictError where another object has its name now.
        """
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": {"uid": uid},
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
        session, info = self._session_and_info()
        headers = {**info.as_http_headers(), "Accept": "application/json"}
        data = None
        if body is not None:
            data = json.dumps(body, separators=(",", ":")).encode()
            headers["Content-Type"] = APPLY if verb == "apply" else "application/json"
        code = "0"
        try:
            async with session.request(
                method,
                info.server.rstrip("/") + path,
                params=params,
                data=data,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout_s, connect=min(CONNECT_TIMEOUT_S, timeout_s)),
            ) as response:
                code = str(response.status)
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            code = "0"
            raise errors.NoAnswerError(request, f"no answer ({type(error).__name__}: {error})") from error
        finally:
            if what:
                self._metrics.api_requests.labels(verb=verb, kind=what, code=code).inc()
        return self._parse(request, response.status, response.headers, content)

    def _parse(self, request: str, status: int, headers: Mapping[str, str], content: bytes) -> Object:
        try:
            value = json.loads(content) if content else {}
        except ValueError:
            value = None
        if status < 400 and isinstance(value, dict):
            return value
        if status == 401:
            self._read_at = 0.0
        message = (
            value.get("message", "") if isinstance(value, dict) else content[:200].decode(errors="replace")
        )
        retry_after_s = 0.0
        with contextlib.suppress(ValueError):
            retry_after_s = float(headers.get("Retry-After", "0"))
        kind = _CLASSES.get(status, errors.BusyError if status >= 500 else errors.RejectedError)
        if status < 400:
            kind = errors.NoAnswerError  # a truncated response, or one that another server sent
        sentence = (str(message) or f"HTTP {status}")[:RESPONSE_QUOTE_MAX]
        raise kind(request, sentence, status=status, retry_after_s=retry_after_s)

    def _session_and_info(self) -> tuple[aiohttp.ClientSession, kopf.ConnectionInfo]:
        now = time.monotonic()
        if self._info is None or now - self._read_at > CREDENTIALS_AGE_MAX_S:
            self._info = self._connect()
            self._read_at = now
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=CONNECTIONS_MAX, ssl=self._info.as_ssl_context())
            self._session = aiohttp.ClientSession(connector=connector)
        return self._session, self._info
