"""Rules of connectors that share a pod (see `validate`): one process, so what is said of a pod or a worker is said once."""

from collections.abc import Iterable, Iterator

from mirrorflow_operator.api.connectors import Connector, ConnectorName
from mirrorflow_operator.api.reserved_keys import KEYS_OF_WORKER
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.errors import FieldError

COLOCATE = "spec.connectors.colocate"
_POD = ("image", "resources", "service_account", "template")
_UNSAID = Connector()


def several_share_a_pod(flow: MirrorFlow) -> Iterable[FieldError]:
    """A set of two or three, or nothing."""
    listed = flow.spec.connectors.colocate
    if len(set(listed)) < len(listed):
        yield FieldError(path=COLOCATE, message="a connector is listed twice", action="remove one of the two")
    elif len(listed) == 1:
        yield FieldError(
            path=COLOCATE,
            message=f"{listed[0].value} is alone in it, and shares its pod with nobody",
            action="name another connector, or remove the list",
        )


def they_have_one_pod(flow: MirrorFlow) -> Iterable[FieldError]:
    """Pods that share a connector's work would each run the others, too."""
    for path, connector, _ in _listed(flow):
        if connector.autoscale is not None:
            yield FieldError(
                path=f"{path}.autoscale",
                message=f"the connector is in {COLOCATE}, and what shares a pod has one",
                action="remove it, or the connector from the list",
            )
        elif connector.replicas != 1:
            yield FieldError(
                path=f"{path}.replicas",
                message=f"it is {connector.replicas}, the connector is in {COLOCATE}, and what shares a pod has one",
                action="write 1, or remove the connector from the list",
            )


def the_pod_is_the_first_ones(flow: MirrorFlow) -> Iterable[FieldError]:
    """Nobody's resources are passed over in silence."""
    for path, connector, host in _listed(flow):
        if connector is flow.spec.connectors.named(host):
            continue
        there = f"spec.connectors.{host.value}"
        for name in _POD:
            if getattr(connector, name) != getattr(_UNSAID, name):
                yield FieldError(
                    path=f"{path}.{Connector.model_fields[name].alias}",
                    message=f"the connector's pod is that of {host.value}, as {COLOCATE} says",
                    action=f"set it in {there}",
                )
        for key in connector.config:
            if key.startswith(KEYS_OF_WORKER):
                yield FieldError(
                    path=f"{path}.config[{key}]",
                    message=f"it belongs to the process, which is that of {host.value}, as {COLOCATE} says",
                    action=f"set it in {there}.config",
                )


def _listed(flow: MirrorFlow) -> Iterator[tuple[str, Connector, ConnectorName]]:
    """Path, what is said of the connector, and whose pod it runs in."""
    connectors = flow.spec.connectors
    for name in ConnectorName:
        if name in connectors.colocate:
            yield f"spec.connectors.{name.value}", connectors.named(name), connectors.host(name)


RULES = (several_share_a_pod, they_have_one_pod, the_pod_is_the_first_ones)
