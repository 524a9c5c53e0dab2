"""Rules of a connector's workload, of its further properties, and of whatever pods may be changed (see `validate`)."""

from collections.abc import Iterable, Iterator

from mirrorflow_operator.api.connectors import Connector
from mirrorflow_operator.api.reserved_keys import field_of
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.template import Template
from mirrorflow_operator.errors import FieldError

RESERVED_PREFIXES = ("mirrorflow.io/", "kubernetes.io/", "k8s.io/", "app.kubernetes.io/")


def config_leaves_fields_alone(flow: MirrorFlow) -> Iterable[FieldError]:
    """What a field of the resource sets is set there alone."""
    for path, connector in _connectors(flow):
        for key in connector.config:
            field = field_of(key)
            if field is not None:
                yield FieldError(
                    path=f"{path}.config[{key}]", message="it is set by a field", action=f"use {field}"
                )


def labels_are_not_ours(flow: MirrorFlow) -> Iterable[FieldError]:
    """The operator finds its objects by its own labels."""
    for path, template in _templates(flow):
        for kind, names in (
            ("labels", template.labels),
            ("annotations", template.annotations),
        ):
            for name in names:
                if name.startswith(RESERVED_PREFIXES):
                    yield FieldError(
                        path=f"{path}.{kind}[{name}]",
                        message="this prefix belongs to Kubernetes or to the operator",
                        action="use a prefix of your own",
                    )


def environment_is_not_ours(flow: MirrorFlow) -> Iterable[FieldError]:
    """The replicator's own variables, and each name once."""
    for path, template in _templates(flow):
        names = [variable.name for variable in template.env]
        for at, name in enumerate(names):
            if name.startswith("MIRRORFLOW_"):
                yield FieldError(
                    path=f"{path}.env[{at}]",
                    message=f"{name} is set by the operator",
                    action="remove it",
                )
            if name in names[:at]:
                yield FieldError(
                    path=f"{path}.env[{at}]",
                    message=f"{name} is set twice",
                    action="remove one of them",
                )


def tolerations_are_complete(flow: MirrorFlow) -> Iterable[FieldError]:
    """Kubernetes' rules for a toleration."""
    for path, template in _templates(flow):
        for at, toleration in enumerate(template.tolerations):
            here = f"{path}.tolerations[{at}]"
            if toleration.operator == "Exists" and toleration.value:
                yield FieldError(
                    path=f"{here}.value", message="it has no meaning with operator Exists", action="remove it"
                )
            if toleration.operator == "Equal" and toleration.key is None:
                yield FieldError(
                    path=f"{here}.key", message="it is missing", action="operator Equal needs a key"
                )


def one_heartbeat_is_enough(flow: MirrorFlow) -> Iterable[FieldError]:
    """The heartbeat connector has one task, which cannot be shared."""
    heartbeat = flow.spec.connectors.heartbeat
    for name, count in (("tasks", heartbeat.tasks), ("replicas", heartbeat.replicas)):
        if count > 1:
            yield FieldError(
                path=f"spec.connectors.heartbeat.{name}",
                message=f"it is {count}, and heartbeats are one task",
                action="write 1",
            )


def scaling_has_room(flow: MirrorFlow) -> Iterable[FieldError]:
    """One master for the number of pods, and tasks that more of them can share."""
    for path, connector in _connectors(flow):
        scale = connector.autoscale
        if scale is None:
            continue
        if connector.replicas != 1:
            yield FieldError(
                path=f"{path}.autoscale",
                message=f"replicas is {connector.replicas}, and two masters would set one number",
                action="use one of autoscale and replicas",
            )
        elif scale.min_replicas > scale.max_replicas:
            yield FieldError(
                path=f"{path}.autoscale.maxReplicas",
                message=f"it is less than minReplicas, {scale.min_replicas}",
                action="raise it",
            )
        elif connector is not flow.spec.connectors.source:
            yield FieldError(
                path=f"{path}.autoscale",
                message="the connector is one task, which more pods cannot share",
                action="remove it",
            )
        elif connector.tasks < scale.max_replicas:
            yield FieldError(
                path=f"{path}.autoscale.maxReplicas",
                message=f"it is more than tasks, {connector.tasks}, and a pod without a task is idle",
                action="lower it, or raise tasks",
            )


def _connectors(flow: MirrorFlow) -> Iterator[tuple[str, Connector]]:
    connectors = flow.spec.connectors
    yield "spec.connectors.source", connectors.source
    yield "spec.connectors.checkpoint", connectors.checkpoint
    yield "spec.connectors.heartbeat", connectors.heartbeat


def _templates(flow: MirrorFlow) -> Iterator[tuple[str, Template]]:
    for path, connector in _connectors(flow):
        yield f"{path}.template", connector.template
    for name, job in (("seed", flow.spec.seed), ("verify", flow.spec.verify)):
        if job is not None:
            yield f"spec.{name}.template", job.template


RULES = (
    config_leaves_fields_alone,
    labels_are_not_ours,
    environment_is_not_ours,
    tolerations_are_complete,
    one_heartbeat_is_enough,
    scaling_has_room,
)
