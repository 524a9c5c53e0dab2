"""Decides when and why the pods of a Deployment are replaced, and the next step of a rollout. Pure.

What replaces pods: another pod template, whose annotations (`template_annotations`) have the hash of the
properties and the id of the restart. An upgrade of the operator must replace none. So pods of an earlier
release get the pod defaults only at their next rollout. A changed Secret replaces no pod: pods mount it and
follow it (`security.secret_rotation`).

A pod keeps a connector until another pod runs it and is ready. So changing `colocate`, in either direction,
costs no more than a rolling update, and a new pod that never starts removes nothing. Meanwhile two pods run
the same connector, as in every rolling update.

The reasons come from comparing Deployments and their properties. They contain names of settings, never
values: more people can read Events than Secrets. `reconcile.object_writer` writes the Deployment and the Event.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from mirrorflow_operator.api.spec import MirrorFlow, State
from mirrorflow_operator.api.workloads import RESERVED_VOLUMES, ConnectorKind
from mirrorflow_operator.plan.drift import Object, content_hash, matches
from mirrorflow_operator.plan.names import CONNECTOR_LABEL, CONTAINER
from mirrorflow_operator.plan.pod_sharing import Pods, connectors_in, host_of_each
from mirrorflow_operator.plan.properties import STATE_KEY

HASH_ANNOTATION: Final = "mirrorflow.io/properties-hash"
RESTART_ANNOTATION: Final = "mirrorflow.io/restart-run-id"
# On pods that have the pod defaults of `plan.pod_template`.
DEFAULTS_ANNOTATION: Final = "mirrorflow.io/pod-defaults"
# Keys that a pod follows in its mounted files, so that a change of them replaces no pod.
FOLLOWED_KEYS: Final = frozenset({STATE_KEY})


# Keys of workers of several pods that pods without DEFAULTS_ANNOTATION do not have. They read them at their next start.
ADDED_KEYS: Final = frozenset({"rest.modify.enable"})
# Subcommand of the replicator, by whether pods share the connector's work.
MODES: Final[Mapping[bool, str]] = {False: "standalone", True: "distributed"}
NAMED_MAX: Final = 10  # settings named in one Event; more would be unreadable
_POD_PARTS: Final = {
    "serviceAccountName": "ServiceAccount",
    "terminationGracePeriodSeconds": "grace period",
    "nodeSelector": "node selector",
    "tolerations": "tolerations",
    "affinity": "affinity",
    "topologySpreadConstraints": "topology spread",
    "priorityClassName": "priority class",
    "imagePullSecrets": "image pull Secrets",
    "hostAliases": "host aliases",
    "dnsConfig": "DNS settings",
    "securityContext": "security context",
    "initContainers": "init containers",
}


def template_annotations(
    files: Mapping[str, str], *, restart_run_id: str, has_defaults: bool
) -> dict[str, str]:
    """Returns the annotations of a pod template that replace its pods when they change.

    *files*: the properties files, without FOLLOWED_KEYS and, for pods without the defaults, without ADDED_KEYS.
    """
    return {
        **({DEFAULTS_ANNOTATION: "1"} if has_defaults else {}),
        HASH_ANNOTATION: content_hash(files),
        **({RESTART_ANNOTATION: restart_run_id} if restart_run_id else {}),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentCondition:
    """One of a Deployment's own conditions; `status` is Kubernetes' True, False or Unknown."""

    type: str  # Progressing, Available, ReplicaFailure
    status: str
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedDeployment:
    """The Deployment of a connector, as the Deployment controller reports it."""

    name: str
    generation: int
    observed_generation: int = 0
    wanted: int = 1  # spec.replicas
    replicas: int = 0
    updated: int = 0
    ready: int = 0
    conditions: tuple[DeploymentCondition, ...] = ()
    image: str = ""
    mode: str | None = None  # a value of `MODES`; None: the container names none
    connectors: tuple[str, ...] = ()  # the connectors that its pods run, as `ConnectorKind` names them
    selector: str = ""  # the label selector of its pods, as text


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The mode of a connector's workers (standalone, or distributed if `is_shared`) and their number."""

    is_shared: bool
    replicas: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedShape:
    """The observed shape: that of the Deployment's spec, and whether pods of an earlier one still exist."""

    shape: Shape
    is_rolling: bool


def shape_of(flow: MirrorFlow, kind: ConnectorKind) -> Shape:
    """Returns the shape in the spec."""
    connector = flow.spec.connectors.named(kind)
    replicas = 0 if flow.spec.state is State.STOPPED else connector.replicas
    return Shape(is_shared=connector.replicas > 1, replicas=replicas)


def next_shape(wanted: Shape, live: ObservedShape | None) -> Shape:
    """Returns the shape to apply now, on the way to *wanted*: the mode changes only while there is one pod.

    If template and number change at once, a Deployment also adds pods of the old template, which cannot use
    the properties of the new one. So a change of mode from or to several pods goes through one pod.
    """
    if live is None or wanted.replicas == 0:
        return wanted
    now = live.shape
    replicas = min(1, wanted.replicas)
    if now.is_shared and not wanted.is_shared and (now.replicas > 1 or live.is_rolling):
        return Shape(is_shared=True, replicas=replicas)
    is_changing = now.is_shared != wanted.is_shared
    if wanted.is_shared and (is_changing or (now.replicas == 1 and live.is_rolling)):
        return Shape(is_shared=True, replicas=replicas)
    return wanted


def next_shapes(
    flow: MirrorFlow, deployments: Mapping[str, ObservedDeployment]
) -> dict[ConnectorKind, Shape]:
    """Returns the shape each connector's pods have in the next step.

    *deployments*: the existing ones, by connector name.
    """
    return {
        kind: next_shape(shape_of(flow, kind), _observed_shape(deployments.get(kind.value)))
        for kind in ConnectorKind
    }


def _observed_shape(deployment: ObservedDeployment | None) -> ObservedShape | None:
    if deployment is None:
        return None
    # Readiness is ignored: a rollout whose pods never become ready must be reversible.
    is_rolling = (
        deployment.observed_generation < deployment.generation
        or deployment.updated < deployment.wanted
        or deployment.replicas > min(deployment.updated, deployment.wanted)
    )
    shape = Shape(is_shared=deployment.mode == MODES[True], replicas=deployment.wanted)
    return ObservedShape(shape=shape, is_rolling=is_rolling)


def postponed_connectors(
    flow: MirrorFlow, wanted: Pods, deployments: Mapping[str, ObservedDeployment]
) -> frozenset[ConnectorKind]:
    """Returns the connectors whose old Deployment must stay until the new pod is ready.

    *deployments*: the existing ones, by connector name.
    """
    if flow.spec.state is State.STOPPED:
        return frozenset()
    host_of = {kind.value: host.value for kind, host in host_of_each(wanted).items()}
    return frozenset(
        kind
        for kind in ConnectorKind
        if (live := deployments.get(own := kind.value)) is not None
        and live.wanted
        and any(
            not _runs_connector(deployments.get(host_of[connector]), connector)
            for connector in live.connectors
            if host_of.get(connector, own) != own  # a connector that is no longer planned is not waited for
        )
    )


def deployment_of(
    kind: ConnectorKind, wanted: Pods, deployments: Mapping[str, ObservedDeployment]
) -> ObservedDeployment | None:
    """Returns the Deployment planned for *kind*; the one it leaves only if the planned one does not exist."""
    connector = kind.value
    deployment = deployments.get(host_of_each(wanted).get(kind, kind).value)
    if deployment is not None:
        return deployment
    return next(
        (deployment for deployment in deployments.values() if connector in deployment.connectors), None
    )


def is_moving(
    kind: ConnectorKind, deployment: ObservedDeployment | None, deployments: Mapping[str, ObservedDeployment]
) -> bool:
    """Whether a Deployment other than *deployment* runs *kind*, so that it is moving between the two."""
    connector = kind.value
    running = [deployment for deployment in deployments.values() if connector in deployment.connectors]
    return bool(running) and running != [deployment]


def _runs_connector(live: ObservedDeployment | None, connector: str) -> bool:
    """Whether all pods of *live* run the connector from the newest template and are ready.

    Also True where *live* is planned to have no pods.
    """
    if live is None or connector not in live.connectors or live.observed_generation < live.generation:
        return False
    return live.wanted == 0 or (live.updated == live.replicas and live.ready >= live.wanted)


def reasons_to_roll(
    old: Mapping[str, Any], new: Mapping[str, Any], old_files: Mapping[str, str], new_files: Mapping[str, str]
) -> tuple[str, ...]:
    """Returns why Deployment *new* replaces the pods of *old*, with both files; empty if it does not."""
    before, after = old["spec"]["template"], new["spec"]["template"]
    return tuple(_reasons(before, after, old_files, new_files))


def _reasons(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    old_files: Mapping[str, str],
    new_files: Mapping[str, str],
) -> Iterator[str]:
    old_pod, new_pod = before["spec"], after["spec"]
    old_container, new_container = _container(old_pod), _container(new_pod)
    if _mode(old_container) != _mode(new_container):
        yield f"mode {_mode(old_container)} -> {_mode(new_container)}"
    old_connectors, new_connectors = _connectors(before), _connectors(after)
    if old_connectors != new_connectors:
        yield f"connectors {old_connectors} -> {new_connectors}"
    old_annotations, new_annotations = _annotations(before), _annotations(after)
    # Another connector brings all of its properties, which need not be listed.
    if (
        old_annotations.get(HASH_ANNOTATION) != new_annotations.get(HASH_ANNOTATION)
        and old_connectors == new_connectors
    ):
        changed = sorted(_changed_keys(old_files, new_files))
        more = f" and {len(changed) - NAMED_MAX} more" if len(changed) > NAMED_MAX else ""
        yield f"properties {', '.join(changed[:NAMED_MAX])}{more}" if changed else "properties"
    if old_annotations.get(RESTART_ANNOTATION) != new_annotations.get(RESTART_ANNOTATION):
        yield f"restart {new_annotations.get(RESTART_ANNOTATION, 'removed')}"
    if old_container.get("image") != new_container.get("image"):
        yield f"image {old_container.get('image')} -> {new_container.get('image')}"
    yield from (
        part for part in ("resources", "env") if _differs(old_container.get(part), new_container.get(part))
    )
    added = ((old_pod, new_pod, "volumes"), (old_container, new_container, "volumeMounts"))
    if any(_added_volumes_differ(old, new, part) for old, new, part in added):
        yield "volumes"
    yield from (name for part, name in _POD_PARTS.items() if _differs(old_pod.get(part), new_pod.get(part)))


def _added_volumes_differ(old: Mapping[str, Any], new: Mapping[str, Any], part: str) -> bool:
    """Returns whether the volumes or mounts differ that the spec's template adds; properties decide the others."""
    before, after = (
        [entry for entry in owner.get(part) or () if not re.search(RESERVED_VOLUMES, entry["name"])]
        for owner in (old, new)
    )
    return len(before) != len(after) or _differs(before, after)


def _differs(old: Any, new: Any) -> bool:
    """Returns whether the values differ; *old* may have API server defaults, *new* may lack a value."""
    return not (matches(old, new) and bool(old) == bool(new))


def _annotations(template: Mapping[str, Any]) -> Mapping[str, str]:
    annotations: Mapping[str, str] = template.get("metadata", {}).get("annotations") or {}
    return annotations


def _container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    named: Mapping[str, Any] = next(
        (container for container in pod["containers"] if container["name"] == CONTAINER), {}
    )
    return named


def _mode(container: Mapping[str, Any]) -> str:
    return next(iter(container.get("args") or ()), "unknown")


def _connectors(template: Mapping[str, Any]) -> str:
    labels = template.get("metadata", {}).get("labels") or {}
    return " and ".join(connectors_in(_container(template["spec"]), labels.get(CONNECTOR_LABEL, "")))


def _changed_keys(old: Mapping[str, str], new: Mapping[str, str]) -> Iterator[str]:
    before, other = _properties(old), _properties(new)
    return (key for key in before.keys() | other.keys() if before.get(key) != other.get(key))


def _properties(files: Mapping[str, str]) -> dict[str, str]:
    properties = {}
    for text in files.values():
        for line in text.splitlines():
            key, separator, value = line.partition("=")
            if separator and not line.startswith("#"):
                properties[key.strip()] = value
    return properties


def has_pod_defaults(deployment: Mapping[str, Any]) -> bool:
    """Returns whether the pods of *deployment* have the pod defaults; those of an earlier release do not."""
    return DEFAULTS_ANNOTATION in _annotations(deployment["spec"]["template"])


def with_kept_pods(
    planned: Iterable[Object], without: Iterable[Object], running: Mapping[str, Mapping[str, Any]]
) -> list[Object]:
    """Returns *planned*, with Deployments from *without* where that avoids replacing pods.

    *planned* has the pod defaults, *without* does not; *running* are the live Deployments by name.
    """
    bare = {
        planned_object["metadata"]["name"]: planned_object
        for planned_object in without
        if planned_object["kind"] == "Deployment"
    }
    return [
        _kept(
            planned_object,
            bare[planned_object["metadata"]["name"]],
            running.get(planned_object["metadata"]["name"]),
        )
        if planned_object["kind"] == "Deployment"
        else planned_object
        for planned_object in planned
    ]


def _kept(planned: Object, without: Object, live: Mapping[str, Any] | None) -> Object:
    if live is None or has_pod_defaults(live):
        return planned
    is_same = matches(live["spec"]["template"], without["spec"]["template"])
    return without if is_same and not reasons_to_roll(live, without, {}, {}) else planned
