"""Decides which connectors share a pod, and builds what several pods need to share one connector's work. Pure.

A pod of several connectors (`spec.connectors.colocate`) has the name and labels of the first of source,
checkpoint and heartbeat that runs in it. Its image, resources, ServiceAccount, template and worker settings
come from the first of these three that is listed, even if it has no work. One process runs all of them, as
KIP-304's standalone worker runs one connector for each file.

Several pods of one connector are Connect distributed workers that form a group on the target and call each
other over the internal REST (KIP-710). Each connector has its own group and topics, because workers run every
connector in their config topic: MM2's topic (`mm2-configs.<source>.internal`) may still hold the connectors of a
Java MM2, heartbeats and checkpoints among them, which would then run twice. No property depends on the number of
pods, so scaling restarts no pod.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from mirrorflow_core.replication_policy import worker_topic
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.workloads import Connector, ConnectorKind, Connectors
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.secret_layout import POD_LAYOUT, PROVIDER

CONNECTOR_FILE: Final = "connector.properties"  # the file of a connector that has its own pod
_SUFFIX: Final = ".properties"
Pods = Mapping[ConnectorKind, tuple[ConnectorKind, ...]]
INTERNAL_PORT: Final = 8083  # Connect's default
POD_IP: Final = "MIRRORFLOW_POD_IP"
HTTPS_PREFIX: Final = "listeners.https."
_ENVIRONMENT_PROVIDER: Final = "org.apache.kafka.common.config.provider.EnvVarConfigProvider"
# One pod may be evicted at a time, so that the others take over its work before the next eviction.
_UNAVAILABLE_MAX: Final = 1
CERTIFICATE, KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"  # keys in Secrets of cert-manager


def connectors_by_pod(
    connectors: Connectors, running: Iterable[ConnectorKind], *, seed_replaces_source: bool = False
) -> Pods:
    """Returns the connectors of each pod, by the pod's first connector; *running* are those that have work.

    *seed_replaces_source*: the source connector has no pod during a seed, so the others share one without it.
    """
    kinds = [kind for kind in ConnectorKind if kind in set(running)]
    listed = [
        kind
        for kind in kinds
        if kind in connectors.colocate and not (seed_replaces_source and kind is ConnectorKind.SOURCE)
    ]
    return {kind: tuple(listed) if kind in listed else (kind,) for kind in kinds if kind not in listed[1:]}


def host_of_each(pods: Pods) -> dict[ConnectorKind, ConnectorKind]:
    """Returns, for each connector, the one whose pod it runs in."""
    return {kind: host for host, kinds in pods.items() for kind in kinds}


def file_names(kinds: Sequence[ConnectorKind]) -> tuple[str, ...]:
    """Returns the properties file name of each connector in a pod that runs all of *kinds*."""
    if len(kinds) == 1:
        return (CONNECTOR_FILE,)
    return tuple(f"{kind.value}{_SUFFIX}" for kind in kinds)


def connectors_in(container: Mapping[str, Any], own: str) -> tuple[str, ...]:
    """Returns the connectors that *container* runs, by its file names; *own* is its pod's connector."""
    files = (container.get("args") or ())[2:]  # after the subcommand and the worker's file
    connectors = tuple(file.rpartition("/")[2].removesuffix(_SUFFIX) for file in files)
    return connectors if len(connectors) > 1 else (own,)


def distributed_properties(flow: MirrorFlow, kind: ConnectorKind, connector: Connector) -> dict[str, str]:
    """Returns the properties of one worker of a group; they override those of a standalone worker."""
    group, configs, statuses = group_and_topics(flow, kind, connector)
    copies = str(flow.spec.topics.replication_factor)
    own = {
        "group.id": group,
        "config.storage.topic": configs,
        "config.storage.replication.factor": copies,
        "status.storage.topic": statuses,
        "status.storage.replication.factor": copies,
        # Users change the resource. A distributed worker would accept changes over REST by default.
        "rest.modify.enable": "false",
    }
    return {
        "config.providers": f"{PROVIDER},env",
        "config.providers.env.class": _ENVIRONMENT_PROVIDER,
        **{key: connector.config.get(key, value) for key, value in own.items()},
        "dedicated.mode.enable.internal.rest": "true",
        # Each pod inserts its own IP, because all pods have the same files.
        "rest.advertised.host.name": f"${{env:{POD_IP}}}",
        "rest.advertised.port": str(INTERNAL_PORT),
        **_tls(flow, kind),
    }


def group_and_topics(flow: MirrorFlow, kind: ConnectorKind, connector: Connector) -> tuple[str, str, str]:
    """Returns the group of *connector*'s pods, its config topic and its status topic."""
    alias, name, config = flow.spec.source.alias, kind.value, connector.config
    return (
        config.get("group.id", f"{alias}-mm2-{name}"),
        config.get("config.storage.topic", worker_topic("configs", f"{alias}.{name}")),
        config.get("status.storage.topic", worker_topic("status", f"{alias}.{name}")),
    )


def internal_listener(flow: MirrorFlow) -> str:
    """Returns the listener for requests from the other pods."""
    scheme = "http" if flow.spec.internal_rest.tls is None else "https"
    return f"{scheme}://0.0.0.0:{INTERNAL_PORT}"


def keystore_properties(secret: str) -> dict[str, str]:
    """Returns the keystore properties of the HTTPS listener."""
    return {
        f"{HTTPS_PREFIX}ssl.keystore.type": "PEM",
        f"{HTTPS_PREFIX}ssl.keystore.certificate.chain": POD_LAYOUT.secret_reference(secret, CERTIFICATE),
        f"{HTTPS_PREFIX}ssl.keystore.key": POD_LAYOUT.secret_reference(secret, KEY),
    }


def _tls(flow: MirrorFlow, kind: ConnectorKind) -> dict[str, str]:
    """Returns mutual TLS properties; all pods share one certificate, because none can cover pod addresses."""
    tls = flow.spec.internal_rest.tls
    if tls is None:
        return {}
    prefix, secret = HTTPS_PREFIX, tls.secret_name
    # The name in the pods' certificate, which they verify when they call each other.
    host = names.pod_host(flow.metadata.name, flow.metadata.namespace, kind.value)
    return {
        **keystore_properties(secret),
        f"{prefix}ssl.truststore.type": "PEM",
        f"{prefix}ssl.truststore.location": POD_LAYOUT.secret_path(secret, AUTHORITY),
        f"{prefix}ssl.client.auth": "required",
        "mirrorflow.internal.rest.server.name": host,
    }


def shared_objects(flow: MirrorFlow, kind: ConnectorKind) -> list[dict[str, Any]]:
    """Returns the Service, NetworkPolicy and PodDisruptionBudget of a connector with several pods."""
    return [_service(flow, kind), _network_policy(flow, kind), _disruption_budget(flow, kind)]


def _metadata(flow: MirrorFlow, kind: ConnectorKind) -> dict[str, Any]:
    flow_name = flow.metadata.name
    return names.metadata(flow_name, flow.metadata.namespace, names.object_name(flow_name, kind), kind)


def _service(flow: MirrorFlow, kind: ConnectorKind) -> dict[str, Any]:
    """Returns the headless Service that gives the pods their host name, also before they are ready."""
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
    """Returns the NetworkPolicy that adds access among the connector's own pods to the flow's policy."""
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
            # A pod that never becomes ready must not block the drain of a node.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": names.selector(flow.metadata.name, kind)},
        },
    }
