"""Builds the Kubernetes objects that should exist for a MirrorFlow; all others of the flow should not exist.

Pure and total: the same flow and image give the same bytes, so a second apply changes nothing. Each connector
has its own workload (KIP-304), or shares one with the connectors in its pod. Only what all connectors share
belongs to the flow. `reconcile.object_writer` adds owner references, because only it knows the owner's uid.

An object in the cluster is compared with its plan. The API server adds fields, fills in defaults and rewrites
quantities. So an object matches if it has everything that was planned, whatever else it has. A field removed from
the plan is not detected here, but by the content hash stored with the object.
"""

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from mirrorflow_core.java.properties import format_properties
from mirrorflow_operator.api.model import same_amount
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.pod import HTTP_PORT, WORKER_FILE, ConnectorPods
from mirrorflow_operator.plan.pod_sharing import Shape, pods, shape_of, shared_objects
from mirrorflow_operator.plan.properties import STATE_KEY, Plan

# List members are matched by the first of these keys that all have; others by their index.
_KEYS: Final = ("name", "mountPath", "containerPort", "uid", "topologyKey")
_AMOUNTS: Final = frozenset({"requests", "limits", "sizeLimit"})


def holds(live: Any, planned: Any, *, amount: bool = False) -> bool:
    """Returns whether *live* has all of *planned*; empty values may be absent. *amount*: as quantities."""
    if isinstance(planned, Mapping):
        if not isinstance(live, Mapping):
            return live is None and not any(map(_says, planned.values()))
        return all(
            holds(live.get(name), part, amount=amount or name in _AMOUNTS) for name, part in planned.items()
        )
    if isinstance(planned, Sequence) and not isinstance(planned, str):
        return _holds_list(live, planned)
    if not _says(planned):
        return not _says(live)
    if amount and isinstance(live, str) and isinstance(planned, str):
        return same_amount(live, planned)
    return bool(live == planned)


def _holds_list(live: Any, planned: Sequence[Any]) -> bool:
    if not isinstance(live, Sequence) or isinstance(live, str):
        return live is None and not planned
    key = next((one for one in _KEYS if planned and _identifies(planned, one)), None)
    if key is None or not _identifies(live, key):
        return len(live) == len(planned) and all(
            holds(there, wanted) for there, wanted in zip(live, planned, strict=True)
        )
    found = {member[key]: member for member in live}
    return all(holds(found.get(member[key]), member) for member in planned)


def _identifies(members: Sequence[Any], key: str) -> bool:
    """Returns whether every member has *key*, each with a different value."""
    values = [member.get(key) if isinstance(member, Mapping) else None for member in members]
    return all(isinstance(value, str | int) for value in values) and len(set(values)) == len(values)


def _says(value: Any) -> bool:
    """Returns whether *value* is not empty: null, "", [], {} and absence are equal to the API; not 0."""
    return value is not None and value not in ("", [], {}, ())


HASH_ANNOTATION: Final = "mirrorflow.io/properties-hash"
RESTART_ANNOTATION: Final = "mirrorflow.io/restart-run-id"
# Keys that a pod follows in its mounted files, so that a change of them replaces no pod.
FOLLOWED_KEYS: Final = frozenset({STATE_KEY})
PROGRESS_DEADLINE_S: Final = 300
Object = dict[str, Any]
AS_SPECIFIED: Final[Mapping[ConnectorKind, Shape]] = MappingProxyType({})


def objects(
    flow: MirrorFlow,
    plan: Plan,
    *,
    image: str,
    shapes: Mapping[ConnectorKind, Shape] = AS_SPECIFIED,
    verifies: bool = False,
    source_waits: bool = False,
    has_defaults: bool = True,
) -> list[Object]:
    """Returns every object of *flow*, in the order in which they are needed.

    *shapes* override form and number of pods from the spec. *verifies*: the operator has a certificate
    authority to verify connectors over TLS; connectors with a certificate then serve only HTTPS.
    *source_waits* is that of `pods`, *has_defaults* that of `ConnectorPods`.
    """
    name = flow.metadata.name
    found = [_service_account(names.metadata(name, flow.metadata.namespace, name), {}), _network_policy(flow)]
    planned = {connector.kind: connector for connector in plan.connectors}
    for host, kinds in pods(flow.spec.connectors, planned, source_waits=source_waits).items():
        shape = shapes.get(host) or shape_of(flow, host)
        # Distributed workers run only what their config topic has: until a pod of several connectors is
        # standalone, the other connectors wait.
        inside = tuple(planned[kind] for kind in (kinds[:1] if shape.is_shared else kinds))
        found.extend(
            _of_pods(
                ConnectorPods(
                    flow=flow,
                    connectors=inside,
                    image=image,
                    shape=shape,
                    is_secure=verifies and flow.spec.internal_rest.tls is not None,
                    has_defaults=has_defaults,
                )
            )
        )
    return found


def _of_pods(pods: ConnectorPods) -> Iterator[Object]:
    annotations = pods.spec.service_account.annotations
    if annotations:
        yield _service_account(pods.metadata, annotations)
    # Secrets in the files are references.
    yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": pods.metadata, "data": _files(pods)}
    if pods.shape.is_shared:
        yield from shared_objects(pods.flow, pods.kind)
    yield _deployment(pods)


def _service_account(metadata: Object, annotations: Mapping[str, str]) -> Object:
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata,
        "automountServiceAccountToken": False,
    }


def _files(pods: ConnectorPods, *, leave_out: Collection[str] = ()) -> dict[str, str]:
    """Returns the properties files of the pods by name; *leave_out* are keys of connectors."""
    found = {WORKER_FILE: format_properties(pods.worker_properties)}
    for file, one in zip(pods.files, pods.connectors, strict=True):
        properties = one.connector_properties
        found[file] = format_properties(
            {key: value for key, value in properties.items() if key not in leave_out}
        )
    return found


def _deployment(pods: ConnectorPods) -> Object:
    """Returns the Deployment, which starts a new pod before it ends the old one: a rollout is one hand-over."""
    run_id = pods.flow.spec.restart.run_id
    annotations = {
        HASH_ANNOTATION: content_hash(_files(pods, leave_out=FOLLOWED_KEYS)),
        **({names.SCHEME_ANNOTATION: names.HTTPS} if pods.is_secure else {}),
        **({RESTART_ANNOTATION: run_id} if run_id else {}),
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": pods.metadata,
        "spec": {
            "replicas": pods.shape.replicas,
            "revisionHistoryLimit": 1,
            "progressDeadlineSeconds": PROGRESS_DEADLINE_S,
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "selector": {"matchLabels": names.selector(pods.flow.metadata.name, pods.kind)},
            "template": pods.template(annotations),
        },
    }


def _network_policy(flow: MirrorFlow) -> Object:
    """Returns the NetworkPolicy by which only readers of progress or metrics reach a connector."""
    name = flow.metadata.name
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": names.metadata(name, flow.metadata.namespace, name),
        "spec": {
            "podSelector": {"matchLabels": names.selector(name)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"from": [names.progress_readers()], "ports": [{"port": HTTP_PORT, "protocol": "TCP"}]}
            ],
        },
    }


def content_hash(content: Mapping[str, Any]) -> str:
    """Returns a hash of 16 hex digits that does not depend on the order of keys; it fits into a label."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
