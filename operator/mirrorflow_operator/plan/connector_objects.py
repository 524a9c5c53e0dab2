"""Builds the objects of a flow's connectors: Deployments, ConfigMaps, ServiceAccounts and NetworkPolicies. Pure.

The same flow and image give the same bytes, so a second apply changes nothing. Each connector
has its own workload (KIP-304), or shares one with the connectors in its pod. Only what all connectors share
belongs to the flow. `reconcile.object_writer` adds owner references, because only it knows the owner's uid.
"""

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from mirrorflow_core.java.properties import format_properties
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.drift import Object
from mirrorflow_operator.plan.pod_sharing import connectors_by_pod, shared_objects
from mirrorflow_operator.plan.pod_template import HTTP_PORT, WORKER_FILE, ConnectorPods
from mirrorflow_operator.plan.properties import Plan
from mirrorflow_operator.plan.rollouts import (
    ADDED_KEYS,
    FOLLOWED_KEYS,
    Shape,
    shape_of,
    template_annotations,
)

PROGRESS_DEADLINE_S: Final = 300
AS_SPECIFIED: Final[Mapping[ConnectorKind, Shape]] = MappingProxyType({})


def objects(
    flow: MirrorFlow,
    plan: Plan,
    *,
    image: str,
    shapes: Mapping[ConnectorKind, Shape] = AS_SPECIFIED,
    verifies: bool = False,
    seed_replaces_source: bool = False,
    has_defaults: bool = True,
    operator_namespace: str = "",
) -> list[Object]:
    """Returns every object of *flow*, in the order in which they are needed.

    *shapes* override mode and number of pods from the spec. *verifies*: the operator has a certificate
    authority to verify connectors over TLS; connectors with a certificate then serve only HTTPS.
    *seed_replaces_source* is that of `connectors_by_pod`, *has_defaults* that of `ConnectorPods`,
    *operator_namespace* that of `names.progress_readers`.
    """
    name = flow.metadata.name
    documents = [
        _service_account(names.metadata(name, flow.metadata.namespace, name), {}),
        _network_policy(flow, names.progress_readers(operator_namespace)),
    ]
    planned = {connector.kind: connector for connector in plan.connectors}
    for host, kinds in connectors_by_pod(
        flow.spec.connectors, planned, seed_replaces_source=seed_replaces_source
    ).items():
        shape = shapes.get(host) or shape_of(flow, host)
        # Distributed workers run only what their config topic has: until a pod of several connectors is
        # standalone, the other connectors wait.
        inside = tuple(planned[kind] for kind in (kinds[:1] if shape.is_shared else kinds))
        documents.extend(
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
    return documents


def _of_pods(pods: ConnectorPods) -> Iterator[Object]:
    annotations = pods.spec.service_account.annotations
    if annotations:
        yield _service_account(pods.metadata, annotations)
    # Secrets in the files are references.
    yield {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": pods.metadata,
        "data": _files(pods),
    }
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
    """Returns the properties files of the pods by name, without the keys *leave_out*."""
    worker = {key: value for key, value in pods.worker_properties.items() if key not in leave_out}
    files = {WORKER_FILE: format_properties(worker)}
    for file, connector in zip(pods.files, pods.connectors, strict=True):
        properties = connector.connector_properties
        files[file] = format_properties(
            {key: value for key, value in properties.items() if key not in leave_out}
        )
    return files


def _deployment(pods: ConnectorPods) -> Object:
    """Returns the Deployment, which starts a new pod before it ends the old one: a rollout is one hand-over."""
    annotations = template_annotations(
        _files(pods, leave_out=FOLLOWED_KEYS if pods.has_defaults else FOLLOWED_KEYS | ADDED_KEYS),
        restart_run_id=pods.flow.spec.restart.run_id,
        has_defaults=pods.has_defaults,
    )
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


def _network_policy(flow: MirrorFlow, readers: list[Object]) -> Object:
    """Returns the NetworkPolicy by which only readers of progress or metrics reach a connector."""
    name = flow.metadata.name
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": names.metadata(name, flow.metadata.namespace, name),
        "spec": {
            "podSelector": {"matchLabels": names.selector(name)},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": readers, "ports": [{"port": HTTP_PORT, "protocol": "TCP"}]}],
        },
    }
