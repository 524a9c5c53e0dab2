"""Names and labels the objects of a flow, and its topics, by the replicator's own naming code. Pure."""

from typing import Any, Final

from mirrorflow_core.errors import SettingError
from mirrorflow_core.java.properties import PropertyReader
from mirrorflow_core.replication_policy import make_policy
from mirrorflow_core.settings import TOPICS_EXCLUDE, PolicyKind, PolicySettings
from mirrorflow_core.topics.topic_selection import TopicSelection
from mirrorflow_core.transforms import TopicTransforms, Transforms, read_transforms
from mirrorflow_operator.api.spec import MirrorFlow, NamingPolicy
from mirrorflow_operator.api.workloads import ConnectorKind

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "mirrorflow-operator"
FLOW_LABEL: Final = "mirrorflow.io/flow"
CONNECTOR_LABEL: Final = "mirrorflow.io/connector"
CONTAINER: Final = "replicator"  # in the pods of connectors
# On pods that serve HTTPS; the operator and Prometheus read it.
SCHEME_ANNOTATION: Final = "mirrorflow.io/http-scheme"
HTTPS: Final = "https"
# On a MirrorFlow: while it is "true", the operator reports the flow's state and changes none of its objects.
PAUSE_ANNOTATION: Final = "mirrorflow.io/pause-reconciliation"
# Labels of Spark jobs. The driver, not the operator, manages executors: they have these two, not FLOW_LABEL.
RUN_LABEL: Final = "mirrorflow.io/run"  # seed, verify
RUN_OF_LABEL: Final = "mirrorflow.io/run-of"  # the flow
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"  # Kueue's, on Jobs
# Labels of what carries a Switchover out.
PAIR_LABEL: Final = "mirrorflow.io/pair"
SWITCHOVER_LABEL: Final = "mirrorflow.io/switchover"
FENCE_LABEL: Final = "mirrorflow.io/fence"  # on NetworkPolicies that fence a member: the name of its flow
HOOK_LABEL: Final = "mirrorflow.io/hook"  # on Jobs of hooks, which do not have SWITCHOVER_LABEL
_POLICY_KINDS = {NamingPolicy.PREFIX: PolicyKind.DEFAULT, NamingPolicy.IDENTITY: PolicyKind.IDENTITY}


def object_name(flow: str, kind: ConnectorKind) -> str:
    """Returns the name of a connector's objects: at most 51 characters, as a flow's name has at most 40."""
    return f"{flow}-{kind.value}"


def pod_host(flow: str, namespace: str, connector: str) -> str:
    """Returns the host name in a connector's certificate; several pods have a Service of that name."""
    return f"{flow}-{connector}.{namespace}.svc"


def selector(flow: str, kind: ConnectorKind | None = None) -> dict[str, str]:
    """Returns the label selector of a flow's pods, or of one connector's. Kubernetes forbids changing it."""
    labels = {FLOW_LABEL: flow}
    return labels if kind is None else {**labels, CONNECTOR_LABEL: kind.value}


def run_selector(flow: str, run_kind: str) -> dict[str, str]:
    """Returns the label selector of drivers and executors of a flow's jobs of one kind."""
    return {RUN_OF_LABEL: flow, RUN_LABEL: run_kind}


def run_labels(flow: str, run_kind: str) -> dict[str, str]:
    """Returns the labels of a Job, its driver and the other objects that it needs."""
    return {**labels(flow), "app.kubernetes.io/component": run_kind, **run_selector(flow, run_kind)}


def progress_readers(operator_namespace: str) -> list[dict[str, Any]]:
    """Returns the NetworkPolicy peers that read progress: labelled namespaces, and the operator's pods.

    *operator_namespace* is "" where it is unknown; then the operator's namespace needs the label, too.
    """
    readers: list[dict[str, Any]] = [
        {"namespaceSelector": {"matchLabels": {"mirrorflow.io/reads-progress": "true"}}}
    ]
    if operator_namespace:
        readers.append(
            {
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": operator_namespace}},
                "podSelector": {"matchLabels": {"app.kubernetes.io/name": MANAGER}},
            }
        )
    return readers


def labels(flow: str, kind: ConnectorKind | None = None) -> dict[str, str]:
    """Returns the labels of an object: its selector and those that Kubernetes recommends."""
    return {
        "app.kubernetes.io/name": "mirrorflow",
        "app.kubernetes.io/instance": flow,
        MANAGED_BY: MANAGER,
        **({} if kind is None else {"app.kubernetes.io/component": kind.value}),
        **selector(flow, kind),
    }


def metadata(flow: str, namespace: str, name: str, kind: ConnectorKind | None = None) -> dict[str, Any]:
    """Returns the metadata of an object of *flow*, without its owner, whose uid only the cluster has."""
    return {"name": name, "namespace": namespace, "labels": labels(flow, kind)}


def policy_settings(flow: MirrorFlow) -> PolicySettings:
    naming = flow.spec.topics.naming
    return PolicySettings(
        kind=_POLICY_KINDS[naming.policy],
        separator=naming.separator,
        internal_separator_enabled=_is_on(flow, "replication.policy.internal.topic.separator.enabled"),
        source_alias=flow.spec.source.alias,
    )


def topic_selection_of(flow: MirrorFlow) -> TopicSelection:
    spec, policy = flow.spec, make_policy(policy_settings(flow))
    return TopicSelection(
        include=spec.topics.include,
        exclude=(*spec.topics.exclude, *TOPICS_EXCLUDE),
        target_alias=spec.target.alias,
        heartbeats=_is_on(flow, "heartbeats.replication.enabled"),
        naming=TopicTransforms(policy, spec.source.alias, _transforms(flow)),
    )


def _transforms(flow: MirrorFlow) -> Transforms:
    """Returns the transformations of *flow*; none if they are invalid: its connector refuses to start."""
    try:
        return Transforms(read_transforms(PropertyReader(flow.spec.connectors.source.config)))
    except SettingError:
        return Transforms()


def _is_on(flow: MirrorFlow, key: str) -> bool:
    return flow.spec.connectors.source.config.get(key, "").strip().lower() != "false"
