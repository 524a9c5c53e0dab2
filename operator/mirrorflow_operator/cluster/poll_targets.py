"""Selects the pods of a flow that `progress_poller` polls, and the address, connector and certificate of each.

A pod is polled once for each connector that it runs, by the connector's name where it runs several. A pod
that has no address, is not running or is terminating is not polled.
"""

from collections.abc import Iterable, Mapping

from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.cluster.progress_client import CaBundle, PollTarget, TlsParameters
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.spark_pods import PROGRESS_PORT
from mirrorflow_operator.status.observation import Key, ObservedPod


def poll_targets(
    key: Key,
    pods: Iterable[tuple[str, ObservedPod]],
    drivers: Iterable[tuple[str, ObservedPod]],
    *,
    connector_names: Mapping[ConnectorKind, str],
    ca_bundle: CaBundle | None,
) -> list[PollTarget]:
    """Returns the targets among the connectors' *pods* and the Spark *drivers*.

    *pods*: each with the connector of its Deployment, as `ConnectorKind` names it. *connector_names*: the
    names of the flow's connectors in their processes. Without *ca_bundle* no pod is polled over TLS.
    """
    connectors = [
        PollTarget(
            uid=pod.uid,
            host=address,
            ready=pod.ready,
            connector=polled_name(pod, connector, connector_names),
            tls=_tls_parameters(key, host, pod, ca_bundle),
        )
        for host, pod in pods
        if (address := _address_of(pod)) is not None
        for connector in pod.connectors
    ]
    jobs = [
        PollTarget(uid=pod.uid, host=address, ready=pod.ready, port=PROGRESS_PORT)
        for _, pod in drivers
        if (address := _address_of(pod)) is not None
    ]
    return connectors + jobs


def polled_name(pod: ObservedPod, connector: str, connector_names: Mapping[ConnectorKind, str]) -> str | None:
    """Returns the name by which *pod* is polled for *connector*; None where the pod runs only one."""
    if len(pod.connectors) < 2:
        return None
    kind = next(
        (connector_kind for connector_kind in ConnectorKind if connector_kind.value == connector), None
    )
    return None if kind is None else connector_names.get(kind, kind.java_class)


def _address_of(pod: ObservedPod) -> str | None:
    """Returns the address at which *pod* is polled; None while it is not."""
    return pod.ip if pod.phase == "Running" and not pod.deleting else None


def _tls_parameters(
    key: Key, host: str, pod: ObservedPod, ca_bundle: CaBundle | None
) -> TlsParameters | None:
    if not pod.is_secure or ca_bundle is None:
        return None
    namespace, flow = key
    return ca_bundle.tls_parameters(names.pod_host(flow, namespace, host))
