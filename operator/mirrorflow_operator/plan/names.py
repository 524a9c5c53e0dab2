"""Names and labels of a flow's objects: how the operator finds them again, and how people select them."""

from typing import Any, Final

from mirrorflow_operator.plan.plan import ConnectorKind

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "mirrorflow-operator"
FLOW_LABEL: Final = "mirrorflow.io/flow"
CONNECTOR_LABEL: Final = "mirrorflow.io/connector"
# On pods that speak TLS: for the operator, and for Prometheus.
SCHEME_ANNOTATION: Final = "mirrorflow.io/http-scheme"
HTTPS: Final = "https"
# Of Spark jobs. Executors are their driver's, not the operator's: they bear these two and not FLOW_LABEL.
RUN_LABEL: Final = "mirrorflow.io/run"  # seed, verify
RUN_OF_LABEL: Final = "mirrorflow.io/run-of"  # the flow
_WORDS: Final = {
    ConnectorKind.SOURCE: "source",
    ConnectorKind.CHECKPOINT: "checkpoint",
    ConnectorKind.HEARTBEAT: "heartbeat",
}


def connector_word(kind: ConnectorKind) -> str:
    """The connector as the resource calls it: source, checkpoint, heartbeat."""
    return _WORDS[kind]


def object_name(flow: str, kind: ConnectorKind) -> str:
    """Of everything that belongs to one connector; a flow's name has at most 40 letters, so this has at most 51."""
    return f"{flow}-{connector_word(kind)}"


def pod_host(flow: str, namespace: str, connector: str) -> str:
    """The name that the certificate of a connector's pods is for; with several pods there is a Service of that name."""
    return f"{flow}-{connector}.{namespace}.svc"


def selector(flow: str, kind: ConnectorKind | None = None) -> dict[str, str]:
    """What tells a flow's pods, or one connector's, from all others. Never changes: Kubernetes forbids it."""
    found = {FLOW_LABEL: flow}
    return found if kind is None else {**found, CONNECTOR_LABEL: connector_word(kind)}


def run_selector(flow: str, word: str) -> dict[str, str]:
    """Driver and executors of a flow's jobs of one kind."""
    return {RUN_OF_LABEL: flow, RUN_LABEL: word}


def run_labels(flow: str, word: str) -> dict[str, str]:
    """On a Job, its driver, and what else it needs."""
    return {**labels(flow), "app.kubernetes.io/component": word, **run_selector(flow, word)}


def progress_readers() -> dict[str, Any]:
    """Who reads progress or metrics, the operator and the monitoring, comes from a namespace that is labelled for it."""
    return {"namespaceSelector": {"matchLabels": {"mirrorflow.io/reads-progress": "true"}}}


def labels(flow: str, kind: ConnectorKind | None = None) -> dict[str, str]:
    """On every object: the selector, and the labels that Kubernetes recommends."""
    return {
        "app.kubernetes.io/name": "mirrorflow",
        "app.kubernetes.io/instance": flow,
        MANAGED_BY: MANAGER,
        **({} if kind is None else {"app.kubernetes.io/component": connector_word(kind)}),
        **selector(flow, kind),
    }


def metadata(flow: str, namespace: str, name: str, kind: ConnectorKind | None = None) -> dict[str, Any]:
    """Of an object of *flow*, without an owner: who that is, is seen in the cluster."""
    return {"name": name, "namespace": namespace, "labels": labels(flow, kind)}
