"""Chooses which pods of a flow are polled, at which address and with which certificate.

A pod is polled for each connector that it runs, by the connector's name where it runs several. A pod without
an address, not running or terminating is not polled. `poller` decides when.
"""

from collections.abc import Iterable, Mapping

from mirrorflow_operator.assess.admission import Key
from mirrorflow_operator.assess.observation import PodSeen
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.jobs import PROGRESS_PORT
from mirrorflow_operator.plan.plan import ConnectorKind
from mirrorflow_operator.polling.authorities import Authorities
from mirrorflow_operator.polling.progress_request import ScrapeTarget, Verified


def places(
    key: Key,
    pods: Iterable[tuple[str, PodSeen]],
    drivers: Iterable[tuple[str, PodSeen]],
    *,
    wanted: Mapping[ConnectorKind, str],
    authorities: Authorities | None,
) -> list[ScrapeTarget]:
    """Returns the targets among the connectors' *pods* and the Spark *drivers*.

    *pods*: each with the word of its Deployment (`plan.names.connector_word`). *wanted*: the names of the
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
    kind = next((one for one in ConnectorKind if names.connector_word(one) == word), None)
    return "" if kind is None else wanted.get(kind, kind.value)


def _answers(pod: PodSeen) -> bool:
    return bool(pod.ip) and pod.phase == "Running" and not pod.deleting


def _verified(key: Key, word: str, pod: PodSeen, authorities: Authorities | None) -> Verified | None:
    if not pod.is_secure or authorities is None:
        return None
    namespace, flow = key
    return authorities.verified(names.pod_host(flow, namespace, word))
