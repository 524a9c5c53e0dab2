"""Builds the parts common to all pods of a flow: volumes, resources, scheduling, security contexts. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mirrorflow_operator.api.connectors import ComputeAmounts, Resources
from mirrorflow_operator.api.template import Template, Toleration, TopologySpread
from mirrorflow_operator.plan.layout import SecretLayout
from mirrorflow_operator.plan.mounts import Mounts

CONFIG_FOLDER: Final = "/etc/mirrorflow"
WORKER_FILE: Final = "worker.properties"
SECRET_MODE: Final = 0o440
# The restricted Pod Security Standard; no user id, so that any platform may choose one.
POD_SECURITY: Final[Mapping[str, Any]] = {
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}
CONTAINER_SECURITY: Final[Mapping[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def pod_security(template: Template) -> dict[str, Any]:
    """Returns the restricted pod security context with the ids of *template*, which cannot loosen it."""
    ids = template.security_context.model_dump(mode="json", by_alias=True)
    return {**POD_SECURITY, **{name: given for name, given in ids.items() if given}}


def volume_mounts(mounts: Mounts, layout: SecretLayout) -> list[dict[str, Any]]:
    """Returns the mounts of settings, temporary files, and the Secrets and ConfigMaps in the settings."""
    return [
        {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  the container's own
        *_volume_mounts("secret", layout.secrets, mounts.secrets),
        *_volume_mounts("config-map", layout.config_maps, mounts.config_maps),
    ]


def variables(template: Template) -> list[dict[str, Any]]:
    """Returns the environment variables of *template*."""
    return [{"name": one.name, "value": one.value} for one in template.env]


def of_the_pod(name: str, field: str) -> dict[str, Any]:
    """Returns variable *name* with the value of a *field* of the pod (downward API)."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}


def resources_of(resources: Resources) -> dict[str, Any]:
    """Returns the requests and limits that are set."""
    parts = {"requests": _amounts(resources.requests), "limits": _amounts(resources.limits)}
    return {name: amounts for name, amounts in parts.items() if amounts}


def _amounts(amounts: ComputeAmounts) -> dict[str, str]:
    given = {"cpu": amounts.cpu, "memory": amounts.memory}
    return {name: str(amount) for name, amount in given.items() if amount is not None}


def volumes(config_map: str, mounts: Mounts, *, tmp_size: str) -> list[dict[str, Any]]:
    """Returns the volumes; Secrets are mounted whole, so that a key added later needs no new pod."""
    return [
        {"name": "config", "configMap": {"name": config_map}},
        {"name": "tmp", "emptyDir": {"sizeLimit": tmp_size}},
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


def scheduling(template: Template, selector: Mapping[str, str]) -> dict[str, Any]:
    """Returns the set fields for scheduling, image pull Secrets and host aliases.

    *selector* selects the pods for the topology spread.
    """
    parts: dict[str, Any] = {
        "nodeSelector": dict(template.node_selector),
        "tolerations": [_toleration(one) for one in template.tolerations],
        "affinity": dict(template.affinity),
        "topologySpreadConstraints": [_spread(one, selector) for one in template.topology_spread],
        "priorityClassName": template.priority_class_name,
        "imagePullSecrets": [{"name": name} for name in template.image_pull_secrets],
        "hostAliases": [{"ip": one.ip, "hostnames": list(one.hostnames)} for one in template.host_aliases],
    }
    return {name: part for name, part in parts.items() if part}


def _toleration(toleration: Toleration) -> dict[str, Any]:
    return {name: value for name, value in toleration.model_dump(by_alias=True).items() if value is not None}


def _spread(spread: TopologySpread, selector: Mapping[str, str]) -> dict[str, Any]:
    return {**spread.model_dump(by_alias=True), "labelSelector": {"matchLabels": dict(selector)}}
