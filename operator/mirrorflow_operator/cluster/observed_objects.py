"""Converts API objects to the facts that the operator keeps about them. Pure and total.

Only these facts are kept: an API object takes ten times their memory, and a cluster has thousands of objects.
"""

import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mirrorflow_operator.api.load import parse_stored_flow
from mirrorflow_operator.api.spec import API_VERSION, KIND
from mirrorflow_operator.api.status import parse_status
from mirrorflow_operator.api.timestamps import parse_timestamp
from mirrorflow_operator.cluster.client import ObjectKind
from mirrorflow_operator.errors import FieldError, InvalidSpecError
from mirrorflow_operator.plan.names import (
    CONNECTOR_LABEL,
    CONTAINER,
    FLOW_LABEL,
    HTTPS,
    MANAGED_BY,
    MANAGER,
    PAUSE_ANNOTATION,
    QUEUE_LABEL,
    RUN_LABEL,
    RUN_OF_LABEL,
    SCHEME_ANNOTATION,
)
from mirrorflow_operator.plan.pod_sharing import connectors_in
from mirrorflow_operator.plan.rollouts import DeploymentCondition, ObservedDeployment
from mirrorflow_operator.plan.spark_applications import (
    APPLICATION_NAME_LABEL,
    FAILURES_ANNOTATION,
    attempt_number,
)
from mirrorflow_operator.plan.spark_pods import DRIVER, SPARK_DRIVER
from mirrorflow_operator.plan.spark_run import RUN_ID_ANNOTATION, RunKind
from mirrorflow_operator.plan.switchover_objects import SWITCHOVER_CONTAINER
from mirrorflow_operator.status.observation import Key, ObservedAttempt, ObservedJob, ObservedPod, Resource

CONTENT_HASH: Final = "mirrorflow.io/content-hash"
MESSAGE_MAX: Final = 1_000  # characters of a container's or a condition's message
REPORT_MAX: Final = 4_096  # Kubernetes' limit for a termination message
_DRIVERS: Final = frozenset({DRIVER, SPARK_DRIVER})
_CONTAINERS: Final = _DRIVERS | {CONTAINER, SWITCHOVER_CONTAINER}
Object = Mapping[str, Any]
# Of Kubernetes' garbage collector, which deletes the owned objects meanwhile.
_OWN_FINALIZERS: Final = frozenset({"foregroundDeletion", "orphan"})


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedChild:
    """An object with a flow's label: its identity, its owner and its compressed content."""

    kind: ObjectKind
    namespace: str
    name: str
    uid: str
    resource_version: str
    flow: str
    owner_uid: str  # of the MirrorFlow that controls it; "" if none does
    content_hash: str  # of the plan that it was written from
    digest: str  # of the current content
    packed: bytes
    deleting: bool = False

    @property
    def id(self) -> tuple[str, str, str]:
        """Returns kind, namespace and name of the object."""
        return self.kind.name, self.namespace, self.name

    def is_managed(self) -> bool:
        """Returns whether its label names the operator as manager; the admission policy requires that."""
        return bool(self.content()["metadata"]["labels"].get(MANAGED_BY) == MANAGER)

    def content(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(zlib.decompress(self.packed))
        return content


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedFlow:
    """A MirrorFlow, its resourceVersion, and whether it is being deleted."""

    resource: Resource
    resource_version: str
    deleting: bool


def cached_flow(body: Object) -> CachedFlow:
    """Returns the facts of a MirrorFlow; an invalid one has its errors instead of a flow."""
    metadata, status = body["metadata"], body.get("status") or {}
    flow = None
    errors: tuple[FieldError, ...] = ()
    newer_fields: tuple[FieldError, ...] = ()
    try:
        document = {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": metadata["name"], "namespace": metadata["namespace"]},
            "spec": body.get("spec") or {},
        }
        flow, newer_fields = parse_stored_flow(document)
    except InvalidSpecError as error:
        errors = error.errors
    return CachedFlow(
        resource=Resource(
            namespace=metadata["namespace"],
            name=metadata["name"],
            uid=metadata["uid"],
            generation=metadata.get("generation", 0),
            created_s=created_s(body),
            flow=flow,
            errors=errors,
            newer_fields=newer_fields,
            is_reconciliation_paused=(metadata.get("annotations") or {}).get(PAUSE_ANNOTATION) == "true",
            held_by=_held_by(metadata),
            status=parse_status(status),
        ),
        resource_version=metadata["resourceVersion"],
        deleting="deletionTimestamp" in metadata,
    )


def _held_by(metadata: Object) -> tuple[str, ...]:
    """Returns the finalizers, of other programs, that keep an object which is being deleted."""
    if "deletionTimestamp" not in metadata:
        return ()
    return tuple(sorted(set(metadata.get("finalizers") or ()) - _OWN_FINALIZERS))


def cached_child(kind: ObjectKind, body: Object) -> CachedChild:
    """Returns the facts of *body*, an object with a flow's label."""
    metadata = body["metadata"]
    text = as_text(content_of(body)).encode()
    return CachedChild(
        kind=kind,
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        resource_version=metadata["resourceVersion"],
        flow=_flow_of(body),
        owner_uid=owner_uid(body),
        content_hash=(metadata.get("annotations") or {}).get(CONTENT_HASH, ""),
        digest=hashlib.blake2b(text, digest_size=16).hexdigest(),
        packed=zlib.compress(text, 1),
        deleting="deletionTimestamp" in metadata,
    )


def content_of(body: Object) -> dict[str, Any]:
    """Returns *body* without its status and without the metadata that the API server maintains."""
    metadata = body["metadata"]
    left_out = {"metadata", "status", "apiVersion", "kind"}
    return {
        **{name: part for name, part in body.items() if name not in left_out},
        "metadata": {name: metadata.get(name) or {} for name in ("labels", "annotations", "ownerReferences")},
    }


def owner_uid(body: Object) -> str:
    """Returns the uid of the MirrorFlow that owns *body*; "" if none does."""
    for owner in body["metadata"].get("ownerReferences") or ():
        if owner.get("kind") == KIND and owner.get("apiVersion", "").startswith("mirrorflow.io/"):
            return str(owner.get("uid", ""))
    return ""


def owner_key(body: Object) -> Key:
    return body["metadata"]["namespace"], _flow_of(body)


def _flow_of(body: Object) -> str:
    """Returns the flow in the labels; a SparkApplication does not have FLOW_LABEL, which Spark would copy to executors."""
    return _label(body, FLOW_LABEL) or _label(body, RUN_OF_LABEL)


def connector_of(body: Object) -> str:
    """Returns the connector in the label: source, checkpoint or heartbeat; "" without the label."""
    return _label(body, CONNECTOR_LABEL)


def observed_deployment(body: Object) -> ObservedDeployment:
    """Returns a Deployment's pod counts, conditions, image and connectors."""
    metadata, spec, status = body["metadata"], body["spec"], body.get("status") or {}
    container = _replicator(spec["template"])
    selector = spec.get("selector", {}).get("matchLabels") or {}
    return ObservedDeployment(
        name=metadata["name"],
        generation=metadata.get("generation", 0),
        observed_generation=status.get("observedGeneration", 0),
        wanted=spec.get("replicas", 1),
        replicas=status.get("replicas", 0),
        updated=status.get("updatedReplicas", 0),
        ready=status.get("readyReplicas", 0),
        conditions=tuple(
            DeploymentCondition(
                type=condition.get("type", ""),
                status=condition.get("status", ""),
                reason=condition.get("reason", ""),
                message=condition.get("message", "")[:MESSAGE_MAX],
            )
            for condition in status.get("conditions") or ()
        ),
        image=container.get("image", ""),
        mode=next(iter(container.get("args") or ()), None),
        connectors=connectors_in(container, connector_of(body)),
        selector=",".join(f"{name}={value}" for name, value in sorted(selector.items())),
    )


def run_kind_of(body: Object) -> RunKind | None:
    """Returns the run kind of a Spark job or its driver; None for objects of a connector."""
    label = _label(body, RUN_LABEL)
    return next((kind for kind in RunKind if kind.value == label), None)


def job_of(body: Object) -> str:
    """Returns the name of the Job or the SparkApplication that created this pod; "" if none did."""
    return _label(body, "batch.kubernetes.io/job-name") or _label(body, APPLICATION_NAME_LABEL)


def observed_job(body: Object, kind: RunKind) -> ObservedJob:
    """Returns the facts of a Job; the cache adds its pods."""
    metadata, status = body["metadata"], body.get("status") or {}
    ended: Object = next(
        (
            condition
            for condition in status.get("conditions") or ()
            if condition.get("type") in {"Complete", "Failed"} and condition.get("status") == "True"
        ),
        {},
    )
    return ObservedJob(
        name=metadata["name"],
        kind=kind,
        uid=metadata["uid"],
        run_id=(metadata.get("annotations") or {}).get(RUN_ID_ANNOTATION, ""),
        created_s=created_s(body),
        started_s=parse_timestamp(status.get("startTime", "")),
        ended_s=parse_timestamp(status.get("completionTime") or ended.get("lastTransitionTime", "")),
        outcome=ended.get("type"),
        reason=ended.get("reason"),
        message=_bounded(ended.get("message"), MESSAGE_MAX),
        suspended=bool(body["spec"].get("suspend")),
        queue=_label(body, QUEUE_LABEL) or None,
    )


def observed_attempt(body: Object, kind: RunKind) -> ObservedAttempt:
    """Returns the facts of a SparkApplication; the cache adds its pods."""
    metadata, spec, status = body["metadata"], body["spec"], body.get("status") or {}
    annotations = metadata.get("annotations") or {}
    state = status.get("applicationState") or {}
    failures = annotations.get(FAILURES_ANNOTATION, "")
    return ObservedAttempt(
        name=metadata["name"],
        kind=kind,
        number=attempt_number(metadata["name"]),
        failures=int(failures) if failures.isdecimal() else 0,
        uid=metadata["uid"],
        run_id=annotations.get(RUN_ID_ANNOTATION, ""),
        created_s=created_s(body),
        started_s=parse_timestamp(status.get("lastSubmissionAttemptTime") or ""),
        ended_s=parse_timestamp(status.get("terminationTime") or ""),
        state=state.get("state") or "",
        message=_bounded(state.get("errorMessage"), MESSAGE_MAX),
        suspended=bool(spec.get("suspend")),
        queue=_label(body, QUEUE_LABEL) or None,
    )


def observed_pod(body: Object) -> ObservedPod:
    """Returns the facts of a pod and its one container; callers add Events and progress readings."""
    metadata, status = body["metadata"], body.get("status") or {}
    container: Object = next(
        (
            container
            for container in status.get("containerStatuses") or ()
            if container.get("name") in _CONTAINERS
        ),
        {},
    )
    container = _failing_init_container(status) or container
    # A driver's termination message is its report, which can be parsed only if it is complete.
    message_max = REPORT_MAX if container.get("name") in _DRIVERS else MESSAGE_MAX
    state, last = container.get("state") or {}, container.get("lastState") or {}
    waiting, running = state.get("waiting") or {}, state.get("running") or {}
    ended = state.get("terminated") or last.get("terminated") or {}
    conditions = {condition.get("type"): condition for condition in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled") or {}
    return ObservedPod(
        name=metadata["name"],
        uid=metadata["uid"],
        phase=status.get("phase", "Pending"),
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        ip=status.get("podIP") or None,
        connectors=connectors_in(_replicator(body), connector_of(body)),
        is_secure=(metadata.get("annotations") or {}).get(SCHEME_ANNOTATION) == HTTPS,
        deleting="deletionTimestamp" in metadata,
        image=next(
            (
                container.get("image", "")
                for container in body["spec"]["containers"]
                if container["name"] in _CONTAINERS
            ),
            "",
        ),
        created_s=created_s(body),
        started_s=parse_timestamp(running.get("startedAt", "")),
        restarts=container.get("restartCount", 0),
        waiting_reason=waiting.get("reason"),
        waiting_message=_bounded(waiting.get("message"), MESSAGE_MAX),
        terminated_reason=ended.get("reason"),
        terminated_message=_bounded(ended.get("message"), message_max),
        exit_code=ended.get("exitCode"),
        unscheduled_message=_bounded(scheduled.get("message"), MESSAGE_MAX)
        if scheduled.get("status") == "False"
        else None,
        is_disrupted=(conditions.get("DisruptionTarget") or {}).get("status") == "True",
        template_hash=_label(body, "pod-template-hash") or None,
    )


def _bounded(text: str | None, length_max: int) -> str | None:
    """Returns the beginning of *text*; None if there is none, or it is empty."""
    return text[:length_max] if text else None


def _failing_init_container(status: Object) -> Object:
    """Returns the status of the init container for which the pod's own container waits; empty if there is none.

    An init container that is being started has the reason PodInitializing, or none.
    """
    for container in status.get("initContainerStatuses") or ():
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason", "PodInitializing") != "PodInitializing":
            failing: Object = container
            return failing
    return {}


def _replicator(body: Object) -> Object:
    """Returns the connectors' container of a pod or pod template; empty if there is none."""
    return next((container for container in body["spec"]["containers"] if container["name"] == CONTAINER), {})


def _label(body: Object, name: str) -> str:
    """Returns the value of label *name* of *body*; "" without it."""
    return str((body["metadata"].get("labels") or {}).get(name, ""))


def created_s(body: Object) -> float:
    """Returns when *body* was created; 0 if that is unreadable."""
    return parse_timestamp(body["metadata"].get("creationTimestamp", "")) or 0.0


def as_text(value: Any) -> str:
    """Returns JSON with sorted keys: equal values give equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
