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
from mirrorflow_operator.api.workloads import Connector
from mirrorflow_operator.plan import names, pod_sharing
from mirrorflow_operator.plan.plan import ConnectorKind, ConnectorPlan, Plan
from mirrorflow_operator.plan.pod import HTTP_PORT, WORKER_FILE, Mounts, mounts, pod
from mirrorflow_operator.plan.pod_sharing import Shape, connector_spec, file_names, pod_kind, pods
from mirrorflow_operator.plan.properties import STATE_KEY, SecretLayout

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
LISTENERS_KEY: Final = "mirrorflow.http.listeners"
CLIENT_AUTH_KEY: Final = "mirrorflow.http.client.auth"
LISTENER: Final = f"://0.0.0.0:{HTTP_PORT}"
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
    layout: SecretLayout,
    shapes: Mapping[ConnectorKind, Shape] = AS_SPECIFIED,
    verifies: bool = False,
    source_waits: bool = False,
    has_defaults: bool = True,
) -> list[Object]:
    """Returns every object of *flow*, in the order in which they are needed.

    *shapes* override form and number of pods from the spec. *verifies*: the operator has a certificate
    authority to verify connectors over TLS; connectors with a certificate then serve only HTTPS.
    *source_waits* is that of `pods`, *has_defaults* that of `pod`.
    """
    secure = verifies and flow.spec.internal_rest.tls is not None
    found = [_service_account(flow, flow.metadata.name, None, {}), _network_policy(flow)]
    planned = {connector.kind: connector for connector in plan.connectors}
    for host, kinds in pods(flow.spec.connectors, planned, source_waits=source_waits).items():
        shape = shapes.get(host) or pod_sharing.shape_of(flow, connector_spec(flow.spec.connectors, host))
        # Distributed workers run only what their config topic has: until a pod of several connectors is
        # standalone, the other connectors wait.
        inside = [planned[kind] for kind in (kinds[:1] if shape.is_shared else kinds)]
        found.extend(
            _of_pod(flow, inside, image, layout, shape=shape, secure=secure, has_defaults=has_defaults)
        )
    return found


def _of_pod(
    flow: MirrorFlow,
    inside: Sequence[ConnectorPlan],
    image: str,
    layout: SecretLayout,
    *,
    shape: Shape,
    secure: bool,
    has_defaults: bool,
) -> Iterator[Object]:
    """Yields the objects of one pod and the connectors *inside* it; they are named after the first."""
    first = inside[0]
    spec = connector_spec(flow.spec.connectors, pod_kind(flow.spec.connectors, first.kind))
    account = flow.metadata.name
    if spec.service_account.annotations:
        account = names.object_name(flow.metadata.name, first.kind)
        yield _service_account(flow, account, first.kind, spec.service_account.annotations)
    worker = _worker_properties(flow, first, spec, layout, is_shared=shape.is_shared, secure=secure)
    files = _files(inside, worker)
    config = _config_map(flow, first.kind, files)
    yield config
    if shape.is_shared:
        yield from pod_sharing.shared_objects(flow, first.kind)
    yield _deployment(
        flow,
        inside,
        _files(inside, worker, leave_out=FOLLOWED_KEYS),
        spec=spec,
        image=image,
        account=account,
        layout=layout,
        mounts=mounts((worker, *(one.connector_properties for one in inside)), layout),
        shape=shape,
        secure=secure,
        has_defaults=has_defaults,
    )


def _worker_properties(
    flow: MirrorFlow,
    plan: ConnectorPlan,
    spec: Connector,
    layout: SecretLayout,
    *,
    is_shared: bool,
    secure: bool,
) -> Mapping[str, str]:
    """Returns the worker properties of a pod: the plan's, its listeners, and those of a group of pods."""
    listener, tls = f"http{LISTENER}", flow.spec.internal_rest.tls
    shown: dict[str, str] = {}
    if secure and tls is not None:
        # Probes and the operator have no client certificate.
        listener = f"https{LISTENER}"
        shown = {**pod_sharing.certificate(tls.secret_name, layout), CLIENT_AUTH_KEY: "none"}
    if not is_shared:
        return {**plan.worker_properties, **shown, LISTENERS_KEY: listener}
    return {
        **plan.worker_properties,
        **shown,
        **pod_sharing.node_properties(flow, plan.kind, spec, layout),
        # For the internal REST between pods only.
        "listeners": pod_sharing.internal_listener(flow),
        LISTENERS_KEY: listener,
    }


def _service_account(
    flow: MirrorFlow, name: str, kind: ConnectorKind | None, annotations: Mapping[str, str]
) -> Object:
    metadata = names.metadata(flow.metadata.name, flow.metadata.namespace, name, kind)
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata,
        "automountServiceAccountToken": False,
    }


def _files(
    inside: Sequence[ConnectorPlan], worker: Mapping[str, str], *, leave_out: Collection[str] = ()
) -> dict[str, str]:
    """Returns the properties files of a pod by name; *leave_out* are keys of connectors."""
    found = {WORKER_FILE: format_properties(worker)}
    for file, one in zip(file_names([one.kind for one in inside]), inside, strict=True):
        properties = one.connector_properties
        found[file] = format_properties(
            {key: value for key, value in properties.items() if key not in leave_out}
        )
    return found


def _config_map(flow: MirrorFlow, kind: ConnectorKind, files: Mapping[str, str]) -> Object:
    """Returns the ConfigMap of the properties files, in which secrets are references."""
    name = names.object_name(flow.metadata.name, kind)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": names.metadata(flow.metadata.name, flow.metadata.namespace, name, kind),
        "data": dict(files),
    }


def _deployment(
    flow: MirrorFlow,
    inside: Sequence[ConnectorPlan],
    hashed: Mapping[str, str],
    *,
    spec: Connector,
    image: str,
    account: str,
    layout: SecretLayout,
    mounts: Mounts,
    shape: Shape,
    secure: bool,
    has_defaults: bool,
) -> Object:
    """Returns the Deployment, which starts a new pod before it ends the old one: a rollout is one hand-over.

    A change of the files *hashed* replaces the pods.
    """
    name, kinds = flow.metadata.name, [one.kind for one in inside]
    selector = names.selector(name, kinds[0])
    annotations = {HASH_ANNOTATION: content_hash(hashed)}
    if secure:
        annotations[names.SCHEME_ANNOTATION] = names.HTTPS
    if flow.spec.restart.run_id:
        annotations[RESTART_ANNOTATION] = flow.spec.restart.run_id
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": names.metadata(
            name, flow.metadata.namespace, names.object_name(name, kinds[0]), kinds[0]
        ),
        "spec": {
            "replicas": shape.replicas,
            "revisionHistoryLimit": 1,
            "progressDeadlineSeconds": PROGRESS_DEADLINE_S,
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "selector": {"matchLabels": selector},
            "template": pod(
                spec,
                image=spec.image or image,
                service_account=account,
                selector=selector,
                labels=names.labels(name, kinds[0]),
                annotations=annotations,
                config_map=names.object_name(name, kinds[0]),
                files=file_names(kinds),
                mounts=mounts,
                layout=layout,
                is_shared=shape.is_shared,
                is_secure=secure,
                has_defaults=has_defaults,
            ),
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
