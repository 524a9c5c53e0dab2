"""A MirrorFlow and its plan -> the Kubernetes objects that should exist for it; what is not here should not exist.

Pure and total: the same flow and image give the same bytes, so applying them a second time changes nothing. One workload
for each connector (KIP-304), or for those that share a pod; what they share else, and no more, belongs to the flow. Owner references are added where the
owner's uid is known.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from mirrorflow_operator.api.connectors import Connector
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.plan import names, several
from mirrorflow_operator.plan.colocation import connector_spec, file_names, pod_kind, pods
from mirrorflow_operator.plan.layout import SecretLayout
from mirrorflow_operator.plan.mounts import Mounts, mounts
from mirrorflow_operator.plan.plan import ConnectorKind, ConnectorPlan, Plan
from mirrorflow_operator.plan.pod import HTTP_PORT, pod
from mirrorflow_operator.plan.pod_parts import WORKER_FILE
from mirrorflow_operator.plan.properties_text import format_properties
from mirrorflow_operator.plan.several import Shape

HASH_ANNOTATION: Final = "mirrorflow.io/properties-hash"
RESTART_ANNOTATION: Final = "mirrorflow.io/restart-run-id"
LISTENERS_KEY: Final = "mirrorflow.http.listeners"
CLIENT_AUTH_KEY: Final = "mirrorflow.http.client.auth"
LISTENER: Final = f"://0.0.0.0:{HTTP_PORT}"
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
) -> list[Object]:
    """Every object of *flow*, in the order in which they are needed; *shapes* are forms and numbers of pods that are not the spec's.

    *verifies*: the operator knows an authority by which it can ask connectors over TLS; those that have a certificate then
    serve nothing else. *source_waits* as `pods` has it.
    """
    secure = verifies and is_certified(flow)
    found = [_service_account(flow, flow.metadata.name, None, {}), _network_policy(flow)]
    planned = {connector.kind: connector for connector in plan.connectors}
    for host, kinds in pods(flow.spec.connectors, planned, source_waits=source_waits).items():
        shape = shapes.get(host) or several.shape_of(flow, connector_spec(flow.spec.connectors, host))
        # Nodes run what their config topic has: on the way from several pods to a shared one, the others wait.
        inside = [planned[kind] for kind in (kinds[:1] if shape.is_shared else kinds)]
        found.extend(_of_pod(flow, inside, image, layout, shape=shape, secure=secure))
    return found


def is_certified(flow: MirrorFlow) -> bool:
    """Whether the flow's pods have a certificate."""
    return flow.spec.internal_rest.tls is not None


def _of_pod(
    flow: MirrorFlow,
    inside: Sequence[ConnectorPlan],
    image: str,
    layout: SecretLayout,
    *,
    shape: Shape,
    secure: bool,
) -> Iterator[Object]:
    """Of the connectors *inside* one pod, whose is the first's."""
    first = inside[0]
    spec = connector_spec(flow.spec.connectors, pod_kind(flow.spec.connectors, first.kind))
    account = flow.metadata.name
    if spec.service_account.annotations:
        account = names.object_name(flow.metadata.name, first.kind)
        yield _service_account(flow, account, first.kind, spec.service_account.annotations)
    worker = _worker_properties(flow, first, spec, layout, is_shared=shape.is_shared, secure=secure)
    config = _config_map(flow, inside, worker)
    yield config
    if shape.is_shared:
        yield from several.shared_objects(flow, first.kind)
    yield _deployment(
        flow,
        inside,
        config,
        spec=spec,
        image=image,
        account=account,
        layout=layout,
        mounts=mounts((worker, *(one.connector_properties for one in inside)), layout),
        shape=shape,
        secure=secure,
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
    """As a pod is told: where it listens, and whether it is one of several."""
    listener, tls = f"http{LISTENER}", flow.spec.internal_rest.tls
    shown: dict[str, str] = {}
    if secure and tls is not None:
        # Probes and the operator have no certificate of their own.
        listener = f"https{LISTENER}"
        shown = {**several.certificate(tls.secret_name, layout), CLIENT_AUTH_KEY: "none"}
    if not is_shared:
        return {**plan.worker_properties, **shown, LISTENERS_KEY: listener}
    return {
        **plan.worker_properties,
        **shown,
        **several.node_properties(flow, plan.kind, spec, layout),
        # Where the other pods come to, and nobody else is answered.
        "listeners": several.internal_listener(flow),
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


def _config_map(flow: MirrorFlow, inside: Sequence[ConnectorPlan], worker: Mapping[str, str]) -> Object:
    """The property files; secrets are references in them."""
    kinds = [one.kind for one in inside]
    name = names.object_name(flow.metadata.name, kinds[0])
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": names.metadata(flow.metadata.name, flow.metadata.namespace, name, kinds[0]),
        "data": {
            WORKER_FILE: format_properties(worker),
            **{
                file: format_properties(one.connector_properties)
                for file, one in zip(file_names(kinds), inside, strict=True)
            },
        },
    }


def _deployment(
    flow: MirrorFlow,
    inside: Sequence[ConnectorPlan],
    config: Object,
    *,
    spec: Connector,
    image: str,
    account: str,
    layout: SecretLayout,
    mounts: Mounts,
    shape: Shape,
    secure: bool,
) -> Object:
    """The new pod is there before the old one goes: what a roll costs is one hand-over."""
    name, kinds = flow.metadata.name, [one.kind for one in inside]
    selector = names.selector(name, kinds[0])
    annotations = {HASH_ANNOTATION: content_hash(config["data"])}
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
                config_map=config["metadata"]["name"],
                files=file_names(kinds),
                mounts=mounts,
                layout=layout,
                is_shared=shape.is_shared,
                is_secure=secure,
            ),
        },
    }


def _network_policy(flow: MirrorFlow) -> Object:
    """Nobody comes to a connector but who reads its progress or metrics."""
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
    """The same for the same content, whatever the order of its keys; short enough for a label."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
