"""Reads MirrorFlows, and the progress of their pods, from a Kubernetes cluster by the official client.

The resources are listed at each poll. Pods are listed and polled only while a page is open; what is missing then comes from
the status. Nothing is written.
"""

import errno
import logging
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from kubernetes import client

from mirrorflow_console.connector_client import ConnectorAddress
from mirrorflow_console.documents import Figures, FlowReading
from mirrorflow_console.flow_reader import ConnectedFlow, FlowReader
from mirrorflow_console.partition_table import PartitionTable
from mirrorflow_kubernetes.client import REQUEST_ERRORS, connect

GROUP: Final = "mirrorflow.io"
VERSION: Final = "v1alpha1"
PLURAL: Final = "mirrorflows"
FLOW_LABEL: Final = "mirrorflow.io/flow"
CONNECTOR_LABEL: Final = "mirrorflow.io/connector"
SCHEME_ANNOTATION: Final = "mirrorflow.io/http-scheme"
HTTP_PORT: Final = 8080
PAGE_SIZE: Final = 500  # objects in one response of the API server
REQUEST_MAX_S: Final = 10.0
REFUSED: Final = frozenset({403, 404})  # one namespace may not be read, or no longer exists
NOT_FOUND: Final = 404  # outside the cluster, for the namespace of a context: no such kind
NOT_INSTALLED: Final = "This cluster has no MirrorFlows: MirrorFlow's CRDs are not installed."

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorPod:
    """A pod of a flow's connector that can be polled."""

    flow: tuple[str, str]  # namespace and name
    connector: str
    address: ConnectorAddress


def listed_resources(
    objects: client.CustomObjectsApi, plural: str, namespace: str | None
) -> Iterator[Mapping[str, Any]]:
    """Yields our resources of one kind in *namespace*; None: in all. Raises REQUEST_ERRORS."""
    token = ""
    while True:
        page = _page(objects, plural, namespace, token)
        yield from page["items"]
        token = page.get("metadata", {}).get("continue") or ""
        if not token:
            break


def _page(
    objects: client.CustomObjectsApi, plural: str, namespace: str | None, token: str
) -> Mapping[str, Any]:
    given: dict[str, Any] = {"limit": PAGE_SIZE, "_request_timeout": REQUEST_MAX_S}
    if token:
        given["_continue"] = token
    if namespace is None:
        listed = objects.list_cluster_custom_object(GROUP, VERSION, plural, **given)
    else:
        listed = objects.list_namespaced_custom_object(GROUP, VERSION, namespace, plural, **given)
    return listed if isinstance(listed, dict) else {"items": []}


class ClusterFlows:
    """A `FlowSource`: the MirrorFlows of *namespaces*, all where there is none. *ca_file* trusts pods that serve TLS.

    Outside the cluster pods have no address: *forward* connects to a port of a pod, by its namespace and name. Such connections
    are expensive, so only pods of flows on an open page are polled; other flows have what their status has.
    """

    def __init__(
        self,
        api: client.ApiClient,
        *,
        namespaces: Sequence[str] = (),
        ca_file: Path | None = None,
        port: int = HTTP_PORT,
        forward: Callable[[str, str, int], Any] | None = None,
    ) -> None:
        self.problem = ""
        self._api = api
        self._objects = client.CustomObjectsApi(api)
        self._namespaces = tuple(namespaces)
        self._ca_file = ca_file
        self._port = port
        self._forward = forward
        self._known: dict[str | None, list[Mapping[str, Any]]] = {}  # by namespace
        self._reader = FlowReader(None if forward is None else self._dial)

    @property
    def figures(self) -> Mapping[str, Figures]:
        """The figures of the last read, by the key of the flow."""
        return self._reader.figures

    @property
    def partitions(self) -> Mapping[str, PartitionTable]:
        """The partitions that the last read has read, by the key of the flow."""
        return self._reader.partitions

    def read(
        self, detailed: AbstractSet[str], groups: AbstractSet[str], *, is_watched: bool
    ) -> list[FlowReading]:
        """Returns all MirrorFlows; with the problem and those of the last poll where the API server does not return them."""
        is_asking = is_watched and (self._forward is None or bool(detailed or groups))
        pods: list[ConnectorPod] = []
        problems: list[str] = []
        for namespace in self._namespaces or (None,):
            try:
                self._known[namespace] = list(listed_resources(self._objects, PLURAL, namespace))
                pods += self._pods(namespace) if is_asking else ()
            except REQUEST_ERRORS as error:
                if self._forward is not None and getattr(error, "status", None) == NOT_FOUND:
                    self._known.pop(namespace, None)
                    problems.append(NOT_INSTALLED)
                    continue
                _LOG.warning("Namespace %s cannot be read: %s", namespace or "of all flows", _cause(error))
                is_refused = isinstance(error, client.ApiException) and error.status in REFUSED
                if not is_refused or namespace is None:
                    problems = [f"The API server cannot be asked: {_cause(error)}. What follows may be old."]
                    pods = []
                    break  # each namespace could take the whole time of a request
                # Without its name, because each visitor reads it.
                text = f"One namespace or more cannot be read: {_cause(error)}. What follows of them is old or missing"
                problems = [f"{text}; the console's log has their names."]
        context = self._context(problems)
        self.problem = " ".join(problems)
        by_flow: dict[tuple[str, str], list[ConnectorPod]] = {}
        for pod in pods:
            if self._forward is None or "~".join(pod.flow) in detailed | groups:
                by_flow.setdefault(pod.flow, []).append(pod)
        readings = [_reading(resource) for known in self._known.values() for resource in known]
        flows = [
            _connected(reading, by_flow.get((reading.namespace, reading.name), [])) for reading in readings
        ]
        return self._reader.read(flows, detailed, groups, is_watched=is_watched, context=context)

    @cached_property
    def _core(self) -> "client.CoreV1Api":  # quoted, because the name alone loads them
        """Its models take 20 MiB, which only a console that asks pods needs."""
        return client.CoreV1Api(self._api)

    def _pods(self, namespace: str | None) -> Iterator[ConnectorPod]:
        """Yields the running pods of source, checkpoint and schema connectors."""
        given: dict[str, Any] = {
            "label_selector": f"{FLOW_LABEL},{CONNECTOR_LABEL} in (source,checkpoint,schemas)",
            "_request_timeout": REQUEST_MAX_S,
        }
        if namespace is None:
            listed = self._core.list_pod_for_all_namespaces(**given)
        else:
            listed = self._core.list_namespaced_pod(namespace, **given)
        for pod in listed.items:
            meta: Any = pod.metadata
            status: Any = pod.status
            if status.pod_ip and status.phase == "Running" and meta.deletion_timestamp is None:
                host = status.pod_ip if self._forward is None else f"{meta.namespace}/{meta.name}"
                yield self._pod(meta, host)

    def _pod(self, meta: Any, host: str) -> ConnectorPod:
        flow, connector = meta.labels[FLOW_LABEL], meta.labels[CONNECTOR_LABEL]
        is_secure = (meta.annotations or {}).get(SCHEME_ANNOTATION) == "https"
        name = f"{flow}-{connector}.{meta.namespace}.svc"
        return ConnectorPod(
            flow=(meta.namespace, flow),
            connector=connector,
            address=ConnectorAddress(host, self._port, name if is_secure else ""),
        )

    def _dial(self, address: ConnectorAddress) -> Any:
        """Returns a socket that is connected to a pod. Raises OSError."""
        namespace, _, pod = address.host.partition("/")
        assert self._forward is not None
        try:
            return self._forward(namespace, pod, address.port)
        except REQUEST_ERRORS as error:
            raise OSError(errno.EHOSTUNREACH, f"port-forward: {_cause(error)}") from None

    def _context(self, problems: list[str]) -> ssl.SSLContext:
        """Returns the trust in pods' certificates: read at each poll, because CAs are renewed. Adds why there is none to *problems*."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self._ca_file is not None:
            try:
                context.load_verify_locations(cafile=str(self._ca_file))
            except OSError as error:  # ssl.SSLError is one
                reason = getattr(error, "reason", None) or error.strerror or type(error).__name__
                problems.append(f"The CA file of the connectors' certificates cannot be read: {reason}.")
                _LOG.warning("%s: %s", self._ca_file, error)
        return context


def _cause(error: Exception) -> str:
    if isinstance(error, client.ApiException):
        return f"HTTP status {error.status} {error.reason or ''}".strip()
    return type(error).__name__


def _reading(resource: Mapping[str, Any]) -> FlowReading:
    meta, spec = resource.get("metadata", {}), resource.get("spec", {})
    status = resource.get("status")
    return FlowReading(
        key=f"{meta.get('namespace', '')}~{meta.get('name', '')}",
        name=str(meta.get("name", "")),
        namespace=str(meta.get("namespace", "")),
        source=str(spec.get("source", {}).get("alias", "")),
        target=str(spec.get("target", {}).get("alias", "")),
        status=status if isinstance(status, dict) else {},
    )


def _connected(reading: FlowReading, pods: Sequence[ConnectorPod]) -> ConnectedFlow:
    """Returns a flow with its pods: the checkpoint connector's has the groups, else that which runs it, too."""
    # By name: checkpoint, source.
    with_groups = sorted((pod for pod in pods if pod.connector != "schemas"), key=lambda pod: pod.connector)
    return ConnectedFlow(
        reading=reading,
        subject=f"A pod of {reading.name}",
        sources=tuple(pod.address for pod in pods if pod.connector == "source"),
        groups=tuple(pod.address for pod in with_groups),
        schemas=tuple(pod.address for pod in pods if pod.connector == "schemas"),
    )


def flows_of_context(name: str, *, retries: bool = True) -> ClusterFlows:
    """Returns the MirrorFlows of a context of the kubeconfig, in its namespace. Raises KubernetesLoginError.

    Without *retries* a connection that fails is not tried again at once, which urllib3 logs each time.
    """
    connection = connect(name)
    if not retries:
        connection.api.rest_client.pool_manager.connection_pool_kw["retries"] = False
    return ClusterFlows(connection.api, namespaces=(connection.namespace,), forward=connection.dial)
