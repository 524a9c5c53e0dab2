"""Finds why a connector's pods, or a Spark driver, do not run, and computes the connector's phase. Pure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from mirrorflow_operator.api.spec import MirrorFlow, State
from mirrorflow_operator.api.status import ConnectorStatus, Phase
from mirrorflow_operator.plan import pod_sharing
from mirrorflow_operator.plan.names import object_name
from mirrorflow_operator.plan.rollouts import ObservedDeployment
from mirrorflow_operator.status.conditions import Problem, Reason, bounded
from mirrorflow_operator.status.observation import ObservedConnector, ObservedPod, has_outdated_pods

KEYS_MAX = 5  # in one message
QUOTE_MAX: Final = 300  # characters quoted from Kubernetes or a process within one of our messages
SETTINGS_EXIT: Final = 2  # the replicator's exit status for wrong settings; its last line names the setting
EVENT_MAX_AGE_S: Final = 600.0  # the kubelet repeats a warning within this time while it holds
_AT_WORK: Final = frozenset({"RUNNING", "PAUSED"})
_IMAGE: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
)
_CONTAINER: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "PreCreateHookError"}
)
# A kubelet that starts a pod right after its ConfigMap was created may not have it in its cache yet. It
# retries within seconds.
_CACHE_BEHIND: Final = re.compile(r"failed to sync (?:configmap|secret) cache")
_MISSING: Final = re.compile(r'\b(secret|configmap) "([a-z0-9][-a-z0-9.]{0,252})" not found')
_KINDS: Final = {"secret": "Secret", "configmap": "ConfigMap"}


def needed_keys(flow: MirrorFlow | None, name: str, *, is_secret: bool) -> tuple[str, ...]:
    """Returns up to KEYS_MAX keys of *name* in the spec of *flow*, without references inside a `config`."""
    if flow is None:
        return ()
    field = "secret_name" if is_secret else "config_map_name"
    parts = (
        cluster.model_dump(include={"tls", "authentication"})
        for cluster in (flow.spec.source, flow.spec.target)
    )
    keys = {key for part in parts for key in _keys(part, field, name)}
    internal = flow.spec.internal_rest.tls
    if is_secret and internal is not None and internal.secret_name == name:
        keys |= {pod_sharing.CERTIFICATE, pod_sharing.KEY, pod_sharing.AUTHORITY}
    return tuple(sorted(keys)[:KEYS_MAX])


def _keys(part: Any, field: str, name: str) -> Iterator[str]:
    if isinstance(part, dict):
        if part.get(field) == name:
            yield from (part[key] for key in ("key", "certificate") if isinstance(part.get(key), str))
        for value in part.values():
            yield from _keys(value, field, name)
    elif isinstance(part, list | tuple):
        for value in part:
            yield from _keys(value, field, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One connector's workload: the observed state, why pods of it do not run, and whether one serves."""

    observed: ObservedConnector
    problem: Problem | None
    serves: bool


def workload_of(observed: ObservedConnector, *, flow: MirrorFlow | None, now_s: float) -> Workload:
    """Returns the workload of *observed*, with the first problem found."""
    return Workload(
        observed=observed,
        problem=next(_problems(observed, flow, now_s), None),
        serves=any(_serves(pod) and not pod.deleting for pod in observed.pods),
    )


def _serves(pod: ObservedPod) -> bool:
    """Whether the pod runs this connector.

    In a shared pod each connector's own report counts: one that cannot start does not affect the others.
    """
    if pod.ready or len(pod.connectors) < 2:
        return pod.ready
    summary = None if pod.reading is None else pod.reading.summary
    return summary is not None and summary.state in _AT_WORK and not summary.tasks_failed


def _problems(observed: ObservedConnector, flow: MirrorFlow | None, now_s: float) -> Iterator[Problem]:
    connector, host = observed.kind.value, (observed.host or observed.kind).value
    for condition in () if observed.deployment is None else observed.deployment.conditions:
        if condition.type == "ReplicaFailure" and condition.status == "True":
            quote = bounded(condition.message, QUOTE_MAX)
            yield Problem(
                Reason.PODS_REFUSED, f"The API server refuses pods of the {connector} connector: {quote}"
            )
    # The newest first: it was created from the current spec.
    for pod in sorted(observed.pods, key=lambda pod: (-pod.created_s, pod.name)):
        # One that was evicted stays until it is collected, and has a successor.
        if not pod.ready and not pod.deleting and pod.is_alive:
            yield from pod_problems(pod, f"{connector} connector", f"spec.connectors.{host}", flow, now_s)


def pod_problems(
    pod: ObservedPod, subject: str, path: str, flow: MirrorFlow | None, now_s: float
) -> Iterator[Problem]:
    """Yields why *pod* does not run.

    *subject* names its owner in messages ("source connector"); *path* is the spec field that has its
    resources.
    """
    warnings = [event.message for event in pod.events if now_s - event.last_seen_s <= EVENT_MAX_AGE_S]
    if pod.started_s is None:
        for text in (*warnings, pod.waiting_message):
            missing = _MISSING.search(text or "")
            if missing is not None:
                yield Problem(Reason.SECRET_MISSING, _missing(missing[1], missing[2], subject, flow))
    if pod.unscheduled_message is not None:
        yield _quoting(
            Reason.NOT_SCHEDULED, f"The {subject}'s pod cannot be scheduled", pod.unscheduled_message
        )
    if pod.waiting_reason in _IMAGE:
        yield _quoting(
            Reason.IMAGE_NOT_PULLED,
            f"Image {bounded(pod.image, QUOTE_MAX)} cannot be pulled",
            pod.waiting_message,
        )
    if pod.waiting_reason in _CONTAINER:
        what = f"The {subject}'s container cannot be created ({pod.waiting_reason})"
        yield _quoting(Reason.CONTAINER_NOT_CREATED, what, pod.waiting_message)
    yield from _exit_problems(pod, subject, path)
    mounts = [
        event.message
        for event in pod.events
        if event.reason in {"FailedMount", "FailedAttachVolume"} and not _CACHE_BEHIND.search(event.message)
    ]
    if pod.started_s is None and mounts:
        what = f"A volume of the {subject}'s pod cannot be mounted"
        yield _quoting(Reason.VOLUME_NOT_MOUNTED, what, mounts[-1])


def _exit_problems(pod: ObservedPod, subject: str, path: str) -> Iterator[Problem]:
    """Yields why the container ended, where it has been restarted or waits for a restart."""
    if pod.exit_code is None or not (pod.waiting_reason == "CrashLoopBackOff" or pod.restarts):
        return
    if pod.terminated_reason == "OOMKilled":
        yield Problem(
            Reason.OUT_OF_MEMORY,
            f"The {subject} used more memory than its limit and was killed; raise "
            f"{path}.resources.limits.memory.",
        )
    elif pod.exit_code == SETTINGS_EXIT:
        last = (pod.terminated_message or "").strip().rpartition("\n")[2]
        yield _quoting(Reason.SETTINGS_REFUSED, f"The {subject} refuses its settings", last)
    elif pod.waiting_reason == "CrashLoopBackOff":
        yield Problem(
            Reason.CONNECTOR_CRASHING,
            f"The {subject} ends with exit status {pod.exit_code} repeatedly; its last log lines: "
            f"kubectl logs --previous {bounded(pod.name, QUOTE_MAX)}",
        )


def _quoting(reason: Reason, what: str, message: str | None) -> Problem:
    quote = bounded(message or "", QUOTE_MAX)
    return Problem(reason, f"{what}: {quote}" if quote else f"{what}.")


def _missing(kind: str, name: str, subject: str, flow: MirrorFlow | None) -> str:
    keys = needed_keys(flow, name, is_secret=kind == "secret")
    what = f" its {'key' if len(keys) == 1 else 'keys'} {', '.join(keys)}" if keys else " it"
    return f"{_KINDS[kind]} {name} is missing; the {subject} needs{what}. The pod starts once it exists."


def connector_status(workload: Workload, flow: MirrorFlow | None) -> ConnectorStatus:
    deployment = workload.observed.deployment
    state = None if flow is None else flow.spec.state
    if deployment is None:
        phase = Phase.STOPPED if state is State.STOPPED else Phase.PENDING
        return ConnectorStatus(phase=phase)
    return ConnectorStatus(
        phase=_phase(workload, deployment, state),
        replicas=deployment.replicas,
        ready_replicas=deployment.ready,
        selector=deployment.selector[:512],
        image=deployment.image[:512],
    )


def _phase(workload: Workload, deployment: ObservedDeployment, state: State | None) -> Phase:
    if deployment.wanted == 0:
        return Phase.STOPPED
    pods = workload.observed.pods
    summaries = [pod.reading.summary for pod in pods if pod.reading and pod.reading.summary]
    if workload.serves:
        is_paused = state is State.PAUSED and not has_outdated_pods(workload.observed)
        return (
            Phase.PAUSED if is_paused and all(summary.is_paused for summary in summaries) else Phase.RUNNING
        )
    if any(summary.state == "FAILED" and not summary.is_young for summary in summaries) or (
        workload.problem is not None and workload.problem.reason is not Reason.NOT_SCHEDULED
    ):
        return Phase.FAILED
    return Phase.UNKNOWN if any(pod.phase == "Unknown" for pod in pods) else Phase.PENDING


def workload_name(flow: str, observed: ObservedConnector) -> str:
    """Returns the argument for `kubectl logs`: `deploy/<name>`."""
    deployment = observed.deployment
    return f"deploy/{object_name(flow, observed.kind) if deployment is None else deployment.name}"
