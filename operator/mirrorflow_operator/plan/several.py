"""A connector with several pods: what they are told so that they share its work, and the objects that this takes. Pure.

The pods are nodes of one of Connect's distributed workers, which form a group on the target and call each other over the
internal REST (KIP-710). Each connector has a group and topics of its own: nodes run every connector that their config
topic has, and MM2's own (`mm2-configs.<source>.internal`) may still hold those of a Java MM2, heartbeats and checkpoints
among them, which would then run twice. How many pods there are is in no property, so another number rolls none.
"""

from dataclasses import dataclass
from typing import Any, Final

from mirrorflow_operator.api.connectors import Connector
from mirrorflow_operator.api.spec import MirrorFlow, State
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.layout import PROVIDER, SecretLayout
from mirrorflow_operator.plan.plan import ConnectorKind
from mirrorflow_operator.plan.pod_parts import of_the_pod

INTERNAL_PORT: Final = 8083  # Connect's
POD_IP: Final = "MIRRORFLOW_POD_IP"
CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"  # as cert-manager writes its Secrets
HTTPS_PREFIX: Final = "listeners.https."
_ENVIRONMENT_PROVIDER: Final = "org.apache.kafka.common.config.provider.EnvVarConfigProvider"
# One at a time may go by eviction: the others have its work before the next one goes.
_UNAVAILABLE_MAX: Final = 1


def is_shared(connector: Connector) -> bool:
    """Whether pods of *connector* share its work; where their number is chosen, one of them is a node as well."""
    scale = connector.autoscale
    return connector.replicas > 1 or (scale is not None and scale.max_replicas > 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """In which form a connector's pods run, and how many."""

    is_shared: bool
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The same as it is in the cluster: what its Deployment asks for, and whether pods of before are still there."""

    shape: Shape
    is_rolling: bool


def shape_of(flow: MirrorFlow, connector: Connector, chosen: int | None = None) -> Shape:
    """What the spec asks for; *chosen* is a number of pods that is not the spec's."""
    replicas = connector.replicas if chosen is None else chosen
    return Shape(is_shared=is_shared(connector), replicas=0 if flow.spec.state is State.STOPPED else replicas)


def next_shape(wanted: Shape, live: Live | None) -> Shape:
    """What to apply now, on the way to *wanted*: the form changes while there is one pod.

    A Deployment that is given another template and another number at once adds pods by the old template too, and these would
    read the properties of the new one, which they do not understand. Whoever goes on from another number passes by one.
    """
    if live is None or wanted.replicas == 0:
        return wanted
    now = live.shape
    one = min(1, wanted.replicas)
    if now.is_shared and not wanted.is_shared and (now.replicas > 1 or live.is_rolling):
        return Shape(is_shared=True, replicas=one)
    is_changing = now.is_shared != wanted.is_shared
    if wanted.is_shared and (is_changing or (now.replicas == 1 and live.is_rolling)):
        return Shape(is_shared=True, replicas=one)
    return wanted


def service_host(flow: MirrorFlow, kind: ConnectorKind) -> str:
    """The name that the pods' certificate is for, and that they verify in each other's."""
    return names.pod_host(flow.metadata.name, flow.metadata.namespace, names.connector_word(kind))


def node_properties(
    flow: MirrorFlow, kind: ConnectorKind, connector: Connector, layout: SecretLayout
) -> dict[str, str]:
    """What makes the worker one node of several; overrides what a single one is told."""
    group, configs, statuses = own_topics(flow, kind, connector)
    copies = str(flow.spec.topics.replication_factor)
    own = {
        "group.id": group,
        "config.storage.topic": configs,
        "config.storage.replication.factor": copies,
        "status.storage.topic": statuses,
        "status.storage.replication.factor": copies,
    }
    return {
        "config.providers": f"{PROVIDER},env",
        "config.providers.env.class": _ENVIRONMENT_PROVIDER,
        **{key: connector.config.get(key, value) for key, value in own.items()},
        "dedicated.mode.enable.internal.rest": "true",
        # Each pod puts in its own: the files are the same for all.
        "rest.advertised.host.name": f"${{env:{POD_IP}}}",
        "rest.advertised.port": str(INTERNAL_PORT),
        **_tls(flow, kind, layout),
    }


def own_topics(flow: MirrorFlow, kind: ConnectorKind, connector: Connector) -> tuple[str, str, str]:
    """The group of *connector*'s pods, its config topic and its status topic."""
    alias, word = flow.spec.source.alias, names.connector_word(kind)
    own = {
        "group.id": f"{alias}-mm2-{word}",
        "config.storage.topic": f"mm2-configs.{alias}.{word}.internal",
        "status.storage.topic": f"mm2-status.{alias}.{word}.internal",
    }
    group, configs, statuses = (connector.config.get(key, value) for key, value in own.items())
    return group, configs, statuses


def internal_listener(flow: MirrorFlow) -> str:
    """Where the other pods come to."""
    scheme = "http" if flow.spec.internal_rest.tls is None else "https"
    return f"{scheme}://0.0.0.0:{INTERNAL_PORT}"


def pod_environment() -> list[dict[str, Any]]:
    """What a pod has to know of itself."""
    return [of_the_pod(POD_IP, "status.podIP")]


def certificate(secret: str, layout: SecretLayout) -> dict[str, str]:
    """What the process shows to whoever calls it over TLS."""
    return {
        f"{HTTPS_PREFIX}ssl.keystore.type": "PEM",
        f"{HTTPS_PREFIX}ssl.keystore.certificate.chain": layout.secret_reference(secret, CERTIFICATE),
        f"{HTTPS_PREFIX}ssl.keystore.key": layout.secret_reference(secret, KEY),
    }


def _tls(flow: MirrorFlow, kind: ConnectorKind, layout: SecretLayout) -> dict[str, str]:
    """One certificate for all pods, asked for and shown by each: addresses of pods are nobody's to certify."""
    tls = flow.spec.internal_rest.tls
    if tls is None:
        return {}
    prefix, secret = HTTPS_PREFIX, tls.secret_name
    return {
        **certificate(secret, layout),
        f"{prefix}ssl.truststore.type": "PEM",
        f"{prefix}ssl.truststore.location": layout.secret_path(secret, AUTHORITY),
        f"{prefix}ssl.client.auth": "required",
        "mirrorflow.internal.rest.server.name": service_host(flow, kind),
    }


def shared_objects(flow: MirrorFlow, kind: ConnectorKind) -> list[dict[str, Any]]:
    """Service, NetworkPolicy and PodDisruptionBudget."""
    return [_service(flow, kind), _network_policy(flow, kind), _disruption_budget(flow, kind)]


def _metadata(flow: MirrorFlow, kind: ConnectorKind) -> dict[str, Any]:
    flow_name = flow.metadata.name
    return names.metadata(flow_name, flow.metadata.namespace, names.object_name(flow_name, kind), kind)


def _service(flow: MirrorFlow, kind: ConnectorKind) -> dict[str, Any]:
    """Headless: it gives the pods their name, and nobody who asks for any of them. A pod is called before it is ready."""
    port = {"name": "internal", "port": INTERNAL_PORT, "targetPort": "internal", "protocol": "TCP"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(flow, kind),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": names.selector(flow.metadata.name, kind),
            "ports": [port],
        },
    }


def _network_policy(flow: MirrorFlow, kind: ConnectorKind) -> dict[str, Any]:
    """The connector's own pods, and no others; adds to the flow's own policy."""
    admitted = [{"podSelector": {"matchLabels": names.selector(flow.metadata.name, kind)}}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(flow, kind),
        "spec": {
            "podSelector": {"matchLabels": names.selector(flow.metadata.name, kind)},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": admitted, "ports": [{"port": INTERNAL_PORT, "protocol": "TCP"}]}],
        },
    }


def _disruption_budget(flow: MirrorFlow, kind: ConnectorKind) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": _metadata(flow, kind),
        "spec": {
            "maxUnavailable": _UNAVAILABLE_MAX,
            # A pod that never comes up must not hold up the drain of a node.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": names.selector(flow.metadata.name, kind)},
        },
    }
