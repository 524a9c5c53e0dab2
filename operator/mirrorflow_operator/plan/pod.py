"""The pod of one connector: one container, no privilege, no token, and of secrets only what its properties refer to.

It passes the restricted Pod Security Standard and fixes no user id, so that any platform may choose one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mirrorflow_operator.api.connectors import ComputeAmounts, Connector, Resources
from mirrorflow_operator.api.template import Template, Toleration, TopologySpread
from mirrorflow_operator.plan.layout import SecretLayout
from mirrorflow_operator.plan.mounts import Mounts
from mirrorflow_operator.plan.several import INTERNAL_PORT, pod_environment

CONFIG_FOLDER: Final = "/etc/mirrorflow"
WORKER_FILE: Final = "worker.properties"
CONNECTOR_FILE: Final = "connector.properties"
HTTP_PORT: Final = 8080
CONTAINER: Final = "replicator"
FORMS: Final[Mapping[bool, str]] = {
    False: "standalone",
    True: "distributed",
}  # by whether pods share the work
# A first start loads Python and asks both clusters; a slow disk or a slow DNS server must not end in a restart loop.
STARTUP_PERIOD_S: Final = 2
STARTUP_FAILURES: Final = 60
# Liveness says that the loop runs, not that Kafka answers: restarting heals no broker.
LIVENESS_PERIOD_S: Final = 10
LIVENESS_FAILURES: Final = 6
READINESS_PERIOD_S: Final = 5
SECRET_MODE: Final = 0o440
TMP_SIZE: Final = "64Mi"  # Python's own; the replicator keeps nothing on disk


def pod(
    connector: Connector,
    *,
    image: str,
    service_account: str,
    selector: Mapping[str, str],
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    config_map: str,
    mounts: Mounts,
    layout: SecretLayout,
    is_shared: bool,
) -> dict[str, Any]:
    """The pod template of a Deployment; *is_shared*: it is one of several that share the connector's work."""
    template = connector.template
    spec: dict[str, Any] = {
        "serviceAccountName": service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": template.termination_grace_period_seconds,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [_container(connector, image, mounts, layout, is_shared=is_shared)],
        "volumes": _volumes(config_map, mounts),
        **_scheduling(template, selector),
    }
    return {
        "metadata": {
            "labels": {**template.labels, **labels},
            "annotations": {**template.annotations, **annotations},
        },
        "spec": spec,
    }


def _container(
    connector: Connector, image: str, mounts: Mounts, layout: SecretLayout, *, is_shared: bool
) -> dict[str, Any]:
    ports = [{"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"}]
    if is_shared:
        ports.append({"name": "internal", "containerPort": INTERNAL_PORT, "protocol": "TCP"})
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": image,
        "args": [FORMS[is_shared], f"{CONFIG_FOLDER}/{WORKER_FILE}", f"{CONFIG_FOLDER}/{CONNECTOR_FILE}"],
        # What a process says as it ends is what its settings lack: the status repeats it. The product's logs hold no secret.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "ports": ports,
        "startupProbe": _probe("/healthz", STARTUP_PERIOD_S, STARTUP_FAILURES),
        "livenessProbe": _probe("/healthz", LIVENESS_PERIOD_S, LIVENESS_FAILURES),
        "readinessProbe": _probe("/readyz", READINESS_PERIOD_S, 1),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  the container's own
            *_volume_mounts("secret", layout.secrets, mounts.secrets),
            *_volume_mounts("config-map", layout.config_maps, mounts.config_maps),
        ],
    }
    resources = _resources(connector.resources)
    if resources:
        container["resources"] = resources
    environment = [
        *(pod_environment() if is_shared else ()),
        *({"name": one.name, "value": one.value} for one in connector.template.env),
    ]
    if environment:
        container["env"] = environment
    return container


def _probe(path: str, period_s: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": path, "port": "http"},
        "periodSeconds": period_s,
        "failureThreshold": failures,
        "timeoutSeconds": 5,
    }


def _resources(resources: Resources) -> dict[str, Any]:
    parts = {"requests": _amounts(resources.requests), "limits": _amounts(resources.limits)}
    return {name: amounts for name, amounts in parts.items() if amounts}


def _amounts(amounts: ComputeAmounts) -> dict[str, str]:
    given = {"cpu": amounts.cpu, "memory": amounts.memory}
    return {name: str(amount) for name, amount in given.items() if amount is not None}


def _volumes(config_map: str, mounts: Mounts) -> list[dict[str, Any]]:
    """Whole Secrets, not single keys: a key that is added later is there without a new pod."""
    return [
        {"name": "config", "configMap": {"name": config_map}},
        {"name": "tmp", "emptyDir": {"sizeLimit": TMP_SIZE}},
        *(
            {"name": _volume("secret", at), "secret": {"secretName": name, "defaultMode": SECRET_MODE}}
            for at, name in enumerate(mounts.secrets)
        ),
        *(
            {"name": _volume("config-map", at), "configMap": {"name": name}}
            for at, name in enumerate(mounts.config_maps)
        ),
    ]


def _volume_mounts(kind: str, folder: str, names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"name": _volume(kind, at), "mountPath": f"{folder}/{name}", "readOnly": True}
        for at, name in enumerate(names)
    ]


def _volume(kind: str, at: int) -> str:
    return f"{kind}-{at}"  # names of Secrets may be longer than names of volumes


def _scheduling(template: Template, selector: Mapping[str, str]) -> dict[str, Any]:
    parts: dict[str, Any] = {
        "nodeSelector": dict(template.node_selector),
        "tolerations": [_toleration(one) for one in template.tolerations],
        "affinity": dict(template.affinity),
        "topologySpreadConstraints": [_spread(one, selector) for one in template.topology_spread],
        "priorityClassName": template.priority_class_name,
        "imagePullSecrets": [{"name": name} for name in template.image_pull_secrets],
    }
    return {name: part for name, part in parts.items() if part}


def _toleration(toleration: Toleration) -> dict[str, Any]:
    return {name: value for name, value in toleration.model_dump(by_alias=True).items() if value is not None}


def _spread(spread: TopologySpread, selector: Mapping[str, str]) -> dict[str, Any]:
    return {**spread.model_dump(by_alias=True), "labelSelector": {"matchLabels": dict(selector)}}
