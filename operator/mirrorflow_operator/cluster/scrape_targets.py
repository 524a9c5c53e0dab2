"""Selects the pods of a flow whose progress is polled, and the address, connector and certificate of each.

A pod is polled once for each connector that it runs, by the connector's name where it runs several. A pod
that has no address, is not running or is terminating is not polled.
"""

from collections.abc import Iterable, Mapping

from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.cluster.progress_client import Authorities, ScrapeTarget, Verified
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.jobs import PROGRESS_PORT
from mirrorflow_operator.status.admission import Key
from mirrorflow_operator.status.observation import PodSeen


def scrape_targets(
    key: Key,
    pods: Iterable[tuple[str, PodSeen]],
    drivers: Iterable[tuple[str, PodSeen]],
    *,
    wanted: Mapping[ConnectorKind, str],
    authorities: Authorities | None,
) -> list[ScrapeTarget]:
    """Returns the targets among the connectors' *pods* and the Spark *drivers*.

    *pods*: each with the connector of its Deployment, as `ConnectorKind` names it. *wanted*: the names of the
    flow's connectors. Without *authorities* no pod is polled over TLS.
    """
    connectors = [
        ScrapeTarget(
            uid=pod.uid,
            host=pod.ip,
            ready=pod.ready,
            connector=name_in(pod, one, wanted),
            tls=_verified(key, word, pod, authorities),
        )
        for word, pod in pods
        if _answers(pod)
        for one in pod.connectors
    ]
    jobs = [
        ScrapeTarget(uid=pod.uid, host=pod.ip, ready=pod.ready, port=PROGRESS_PORT)
        for _, pod in drivers
        if _answers(pod)
    ]
    return connectors + jobs


def name_in(pod: PodSeen, word: str, wanted: Mapping[ConnectorKind, str]) -> str:
    """Returns the name by which *pod* is polled for the connector *word*; "" where the pod runs only one."""
    if len(pod.connectors) < 2:
        return ""
    kind = next((one for one in ConnectorKind if one.value == word), None)
    return "" if kind is None else wanted.get(kind, kind.java_class)


def _answers(pod: PodSeen) -> bool:
    return bool(pod.ip) and pod.phase == "Running" and not pod.deleting


def _verified(key: Key, word: str, pod: PodSeen, authorities: Authorities | None) -> Verified | None:
    if not pod.is_secure or authorities is None:
        return None
    namespace, flow = key
    return authorities.verified(names.pod_host(flow, namespace, word))
