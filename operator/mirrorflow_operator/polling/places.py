"""Which pods of a flow are asked, where, and by which certificate: a decision of what is seen.

A pod is asked about each connector that it runs, by the connector's name where it has several; one without an address, not
running or on its way out is not asked. When each is asked is `poller`'s.
"""

from collections.abc import Iterable, Mapping

from mirrorflow_operator.assess.admission import Key
from mirrorflow_operator.assess.observation import PodSeen
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.jobs import PROGRESS_PORT
from mirrorflow_operator.plan.plan import ConnectorKind
from mirrorflow_operator.polling.asking import Place, Verified
from mirrorflow_operator.polling.authorities import Authorities


def places(
    key: Key,
    pods: Iterable[tuple[str, PodSeen]],
    drivers: Iterable[tuple[str, PodSeen]],
    *,
    wanted: Mapping[ConnectorKind, str],
    authorities: Authorities | None,
) -> list[Place]:
    """Those of the connectors' *pods*, each with its Deployment's word, and of Spark's *drivers*.

    *wanted* are the flow's connectors with their names; without *authorities* nobody is asked over TLS.
    """
    connectors = [
        Place(
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
        Place(uid=pod.uid, host=pod.ip, ready=pod.ready, port=PROGRESS_PORT)
        for _, pod in drivers
        if _answers(pod)
    ]
    return connectors + jobs


def name_in(pod: PodSeen, word: str, wanted: Mapping[ConnectorKind, str]) -> str:
    """What the connector called *word* is asked for by in *pod*: by its name where there are others."""
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
