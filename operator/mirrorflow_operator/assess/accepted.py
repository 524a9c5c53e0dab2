"""Decides the condition Accepted from the spec, other flows, the clusters and the Secrets it needs. Pure."""

from collections.abc import Iterator, Sequence
from typing import Final

from mirrorflow_operator.assess import pod_progress
from mirrorflow_operator.assess.findings import Finding, no, yes
from mirrorflow_operator.assess.observation import Observation
from mirrorflow_operator.assess.progress import MissingReference
from mirrorflow_operator.assess.reasons import ConditionType, Reason
from mirrorflow_operator.assess.workloads import Workload, workload_name

_KIND: Final = ConditionType.ACCEPTED
_WORDS: Final = {
    "FlowExists": (
        Reason.FLOW_EXISTS,
        "another flow, of whatever Kubernetes or laptop, copies a source of this alias to this target; stop it, or rename one",
    ),
    "ClusterChanged": (
        Reason.CLUSTER_CHANGED,
        "another cluster answers at an address of the flow; if that is meant, make a flow with another alias",
    ),
    "StreamChanged": (
        Reason.IDENTITY_REFUSED,
        "another copier of the flow goes on with other settings; stop it, or give both the same",
    ),
    "IdentityRefused": (Reason.IDENTITY_REFUSED, "the target refuses the flow's identity"),
    "InvalidSettings": (Reason.SETTINGS_REFUSED, "a setting cannot be understood"),
    "RefusedSettings": (Reason.SETTINGS_REFUSED, "a setting asks for what only a Java process can do"),
}


def accepted(observation: Observation, workloads: Sequence[Workload]) -> Finding:
    """Returns Accepted, False for the first problem; problems of the spec precede those that pods report."""
    refusal = observation.admission.refusal
    if refusal is not None:
        return no(_KIND, refusal.reason, refusal.message)
    for trouble in (workload.trouble for workload in workloads):
        if trouble is not None and trouble.reason in {Reason.SECRET_MISSING, Reason.SETTINGS_REFUSED}:
            return no(_KIND, trouble.reason, trouble.message)
    by_pods = next(_by_pods(observation), None)
    changed = pod_progress.changed_cluster(observation)
    if by_pods is None and changed is not None:
        return no(_KIND, Reason.CLUSTER_CHANGED, _changed(*changed))
    return by_pods or (yes(_KIND, Reason.ACCEPTED, "The spec is understood, and nothing speaks against it."))


def _by_pods(observation: Observation) -> Iterator[Finding]:
    for seen in observation.connectors:
        for summary in pod_progress.summaries(observation, seen):
            if summary.missing is not None:
                yield no(_KIND, Reason.SECRET_MISSING, _missing(summary.missing))
            for word in (one.reason for one in summary.reasons if one.reason in _WORDS):
                reason, sentence = _WORDS[word]
                where = workload_name(observation.resource.name, seen)
                yield no(_KIND, reason, f"{word}: {sentence}. See kubectl logs {where}.")


def _changed(side: str, before: str, now: str) -> str:
    return (
        f"Cluster {before} was the {side} of this spec, and {now} answers at its address now; if that is meant, make a flow"
        " with another alias, or set spec.restart.runId to go on with it."
    )


def _missing(missing: MissingReference) -> str:
    kind = "Secret" if missing.is_secret else "ConfigMap"
    key = f"key {missing.key} of {kind} {missing.name}" if missing.key else f"{kind} {missing.name}"
    return f"The pod does not find {key}; add it, and the connector goes on by itself."
