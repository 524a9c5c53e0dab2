"""Reads Switchovers of a Kubernetes cluster with their pairs, and what the pods of their Jobs report.

A thread of its own reads them while pages are rendered, at most once a second, so that no page waits for the API server. The status has
what the operator has written; the pod of a Job that runs is asked itself, so that the cockpit is right while the operator is away.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from kubernetes import client

from mirrorflow_console.cluster_flows import REQUEST_MAX_S, listed_resources
from mirrorflow_console.connector_client import ConnectorAddress, ConnectorClient, ConnectorRequest
from mirrorflow_console.documents import DocumentError, parse_json
from mirrorflow_console.switchovers import SwitchoverReading, switchover_reading
from mirrorflow_kubernetes.client import REQUEST_ERRORS, connect

PAIRS: Final = "mirrorpairs"
SWITCHOVERS: Final = "switchovers"
SWITCHOVER_LABEL: Final = "mirrorflow.io/switchover"
PROGRESS_PORT: Final = 8083
REPORT_MAX_BYTES: Final = 4_096
POD_MAX_S: Final = 1.0  # for a whole response; a pod of the same cluster answers within milliseconds
EVERY_S: Final = 1.0
REFUSED_MAX_MS: Final = 1e12  # three decades; a pod may report anything
# The states after which no process carries a switchover out. Overtaken: an unplanned one was carried out in its place.
ENDED: Final = frozenset({"Done", "Lifted", "Rehearsed", "Refused", "Degraded", "Overtaken"})
# A switchover is rolled back if the comparison has found a difference, so these states mean that it has not.
_COMPARED: Final = frozenset({"GroupsFinal", "ForwardEnded", "Promoting", "Reversing", "Done", "Rehearsed"})
_FORBIDDEN: Final = 403  # the role is older than the CRDs, or the namespace of the role is gone
_ABSENT: Final = frozenset({_FORBIDDEN, 404})  # or the CRDs are not installed
_LOG: Final = logging.getLogger(__name__)
Resource = Mapping[str, Any]


class ClusterSwitchovers:
    """A `SwitchoverSource`: the Switchovers of *namespaces*, all where there is none.

    Without *asks_pods* the status alone counts: outside the cluster pods have no address.
    """

    def __init__(
        self,
        api: client.ApiClient,
        *,
        namespaces: Sequence[str] = (),
        port: int = PROGRESS_PORT,
        asks_pods: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._objects = client.CustomObjectsApi(api)
        self._core = client.CoreV1Api(api)
        self._namespaces = tuple(namespaces)
        self._port = port
        self._asks_pods = asks_pods
        self._clock = clock
        self._client = ConnectorClient(response_max_s=POD_MAX_S)
        self._readings: tuple[SwitchoverReading, ...] = ()
        self._known: dict[tuple[str, str | None], Sequence[Resource]] = {}  # by kind and namespace
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    def read(self) -> Sequence[SwitchoverReading]:
        """Returns what was read last, and has it read again."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="switchovers", daemon=True)
            self._thread.start()
        self._wanted.set()
        return self._readings

    def refresh(self) -> None:
        """Reads all Switchovers. While the API server does not answer, the last ones stay, and become older."""
        try:
            pairs = {_key(pair): pair for pair in self._listed(PAIRS)}
            switchovers = self._listed(SWITCHOVERS)
            is_any_under_way = any(_state(switchover) not in ENDED for switchover in switchovers)
            pods = self._pods() if is_any_under_way else {}
        except REQUEST_ERRORS as error:
            _LOG.warning("Switchovers cannot be read: %s", error)
            return
        running = {
            key: pods[key]
            for switchover in switchovers
            if (key := _key(switchover)) in pods and _state(switchover) not in ENDED
        }
        asked = running if self._asks_pods else {}
        reports = self._reports({key: str(pod.status.pod_ip) for key, pod in asked.items()})
        read = [self._reading(switchover, pairs, running, reports) for switchover in switchovers]
        self._readings = tuple(reading for reading in read if reading is not None)

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            try:
                self.refresh()
            except Exception:  # noqa: BLE001 - the thread must not end: pages would show old switchovers for ever
                _LOG.exception("Switchovers cannot be read.")
            time.sleep(EVERY_S)

    def _listed(self, plural: str) -> Sequence[Resource]:
        """Returns our resources of one kind; none where it is not installed, and those known where they may not be listed.

        An API server that has just been started refuses what its rules allow until it has read them.
        """
        listed: list[Resource] = []
        for namespace in self._namespaces or (None,):
            try:
                self._known[plural, namespace] = list(listed_resources(self._objects, plural, namespace))
            except client.ApiException as error:
                if error.status not in _ABSENT:
                    raise
                if error.status != _FORBIDDEN:
                    self._known.pop((plural, namespace), None)
            listed += self._known.get((plural, namespace), ())
        return listed

    def _pods(self) -> dict[tuple[str, str], Any]:
        """Returns the newest running pod of each Job, by the namespace and the name of its Switchover; none if pods may not be listed."""
        given: dict[str, Any] = {"label_selector": SWITCHOVER_LABEL, "_request_timeout": REQUEST_MAX_S}
        listed: list[Any] = []
        for namespace in self._namespaces or (None,):
            try:
                page: Any = (
                    self._core.list_pod_for_all_namespaces(**given)
                    if namespace is None
                    else self._core.list_namespaced_pod(namespace, **given)
                )
            except client.ApiException as error:
                if error.status not in _ABSENT:
                    raise
                continue
            listed += page.items
        running = [pod for pod in listed if pod.status.phase == "Running" and pod.status.pod_ip]
        return {
            (pod.metadata.namespace, pod.metadata.labels[SWITCHOVER_LABEL]): pod
            for pod in sorted(running, key=lambda pod: str(pod.metadata.creation_timestamp))
        }

    def _reading(
        self,
        switchover: Resource,
        pairs: Mapping[tuple[str, str], Resource],
        running: Mapping[tuple[str, str], Any],
        reports: Mapping[tuple[str, str], Resource],
    ) -> SwitchoverReading | None:
        key = _key(switchover)
        namespace, of_pair = key[0], str(_object(switchover.get("spec")).get("pair", ""))
        pod = running.get(key)
        document = switchover_document(
            switchover,
            pairs.get((namespace, of_pair)) or {},
            reports.get(key, {}),
            now_s=self._clock(),
            runner="" if pod is None else str(pod.metadata.name),
        )
        # Without a running pod, Kubernetes may be about to start one: whether a process carries it out is unknown.
        return switchover_reading(document, is_running=None if pod is None else True, namespace=namespace)

    def _reports(self, hosts: Mapping[tuple[str, str], str]) -> dict[tuple[str, str], Resource]:
        """Returns what the pods of Jobs report, without those that do not answer with a report. All are asked at the same time."""
        keys = list(hosts)
        requests = [ConnectorRequest(ConnectorAddress(hosts[key], self._port), "/progress") for key in keys]
        return {
            keys[index]: report
            for index, body in self._client.fetch(requests)
            if (report := _report(body)) is not None
        }


def _report(body: bytes | DocumentError) -> Resource | None:
    """Returns the report in a pod's response; None if it has none."""
    if isinstance(body, DocumentError) or len(body) > REPORT_MAX_BYTES:
        return None
    try:
        report = parse_json(body)
    except DocumentError:
        return None
    return report if isinstance(report, dict) and report.get("job") == "switchover" else None


def switchovers_of_context(name: str) -> ClusterSwitchovers:
    """Returns the Switchovers of a context of the kubeconfig, in its namespace. Raises KubernetesLoginError."""
    connection = connect(name)
    return ClusterSwitchovers(connection.api, namespaces=(connection.namespace,), asks_pods=False)


def switchover_document(
    switchover: Resource, pair: Resource, report: Resource, *, now_s: float, runner: str
) -> dict[str, Any]:
    """Returns a Switchover as a document of `switchover_reading`; *report*: of its Job's pod, {} if that was not asked.

    *now_s*: when the report was read. Without one, the document is as old as the status.
    """
    meta, spec, status = (_object(switchover.get(name)) for name in ("metadata", "spec", "status"))
    of_pair = _object(pair.get("spec"))
    name, namespace = str(meta.get("name", "")), str(meta.get("namespace", ""))
    # A process that has read no journal yet knows less than the status.
    newest = report if report.get("state") and status.get("state") not in ENDED else {}
    known = {**status, **{key: value for key, value in newest.items() if value not in (None, "", [])}}
    state, states = str(known.get("state") or "Accepted"), known.get("states")
    fence, refused, source = _object(of_pair.get("fence")), _refused(status, newest), known.get("source")
    members = _object(of_pair.get("members"))
    if not isinstance(source, str) or not source:
        source = next((alias for alias in members if alias != spec.get("to")), "")
    conditions = [item for item in status.get("conditions") or () if isinstance(item, dict)]
    succeeded: Resource = next((item for item in conditions if item.get("type") == "Succeeded"), {})
    is_refusing = refused[0] is not None and refused[1] is None and state not in ENDED
    return {
        "switchover": name,
        "pair": spec.get("pair"),
        "type": spec.get("type"),
        "from": source,
        "to": spec.get("to"),
        "state": state,
        "isFinal": state in ENDED,
        "sentence": succeeded.get("message", ""),
        "reason": known.get("reason", ""),
        "waitsFor": known.get("waitsFor") or ("" if known.get("state") else "Waits for its Job to start."),
        "created": meta.get("creationTimestamp"),
        "writtenMs": int(1_000 * (now_s if report else _status_s(meta))),
        "states": states,
        "writesRefusedSince": refused[0],
        "writesRefusedSeconds": None if refused[1] is None else refused[1] / 1_000,
        "limitSeconds": None if spec.get("type") == "Unplanned" else of_pair.get("deadlineSeconds", 60),
        "runner": f"pod {runner}" if runner else "",
        "flows": {alias: _object(member).get("flow") for alias, member in members.items()},
        "fence": fence.get("method", ""),
        "fences": {source: "set"} if is_refusing else {},
        "seal": known.get("seal"),
        "verification": {"equal": True} if _is_compared(spec, states) else {},
        "loss": known.get("loss"),
        "canaryApplication": _canary(status, newest),
        "notes": known.get("notes"),
        "commands": {
            # Before promoting, its process rolls back when its pod is deleted.
            "stop": f"kubectl delete pod --namespace {namespace} -l {SWITCHOVER_LABEL}={name}",
            "rollBack": "mirrorflow switchover rollback -f pair.yaml",
        },
    }


def _refused(status: Resource, report: Resource) -> tuple[str | None, float | None]:
    """Returns since when writes were refused, and for how many milliseconds; None while they are."""
    milliseconds: Any
    if report.get("fenced"):
        since, milliseconds = report["fenced"], report.get("writesRefusedMs")
    else:
        written = _object(status.get("writesRefused"))
        since, milliseconds = written.get("since"), written.get("milliseconds")
    is_number = isinstance(milliseconds, int | float) and not isinstance(milliseconds, bool)
    is_known = is_number and 0 <= milliseconds <= REFUSED_MAX_MS
    return (since if isinstance(since, str) else None), (milliseconds if is_known else None)


def _canary(status: Resource, report: Resource) -> Resource:
    """Returns what the canary saw, as a report has it: from the pod, else from the status, whose times are in milliseconds."""
    if reported := _object(report.get("canary")):
        return reported
    written = _object(status.get("canary"))
    not_written_ms: Any = _object(written.get("milliseconds")).get("notWritten")
    seconds = {"notWritten": not_written_ms / 1_000} if type(not_written_ms) is int else {}
    return written and {**written, "sentence": written.get("message"), "seconds": seconds}


def _is_compared(spec: Resource, states: Any) -> bool:
    """Whether the present attempt of a planned switchover or a rehearsal is past its comparison."""
    rows = [row.get("state") for row in states if isinstance(row, dict)] if isinstance(states, list) else []
    attempt = rows[len(rows) - rows[::-1].index("Fencing") :] if "Fencing" in rows else []
    return spec.get("type") != "Unplanned" and bool(_COMPARED & {str(state) for state in attempt})


def _status_s(meta: Resource) -> float:
    """Returns when the status was written, else when the object was created, in seconds since 1970; 0 if that is not known."""
    times = [
        entry.get("time")
        for entry in meta.get("managedFields") or ()
        if isinstance(entry, dict) and entry.get("subresource") == "status"
    ]
    moments = []
    for time_text in times or [meta.get("creationTimestamp")]:
        try:
            moments.append(datetime.fromisoformat(str(time_text)).timestamp())
        except ValueError:
            continue
    return max(moments, default=0.0)


def _object(value: Any) -> Resource:
    return value if isinstance(value, dict) else {}


def _key(resource: Resource) -> tuple[str, str]:
    meta = _object(resource.get("metadata"))
    return str(meta.get("namespace", "")), str(meta.get("name", ""))


def _state(resource: Resource) -> str:
    return str(_object(resource.get("status")).get("state", ""))
