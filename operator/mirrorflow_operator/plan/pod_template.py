"""Builds pod templates: that of a connector or of connectors that share a pod, and the parts of every pod. Pure.

The pod has one container, no privileges, no token, and only the Secrets that its properties refer to. It
passes the restricted Pod Security Standard and fixes no user id, so that any platform may choose one.

Defaults (requests, topology spread, permission to evict) apply where the spec sets nothing; `plan.rollouts`
decides which pods have them.

A pod mounts the Secrets and ConfigMaps that its properties name, whether the plan put them there (from the
resource's secret fields) or a user did (as a reference in a `config`), and those that its template lists.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from mirrorflow_operator.api.model import ApiModel
from mirrorflow_operator.api.spec import MirrorFlow
from mirrorflow_operator.api.workloads import (
    ComputeAmounts,
    Connector,
    ConnectorKind,
    EnvironmentVariable,
    InitContainer,
    Resources,
    Template,
    TopologySpread,
    Volume,
)
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.pod_sharing import (
    INTERNAL_PORT,
    POD_IP,
    distributed_properties,
    file_names,
    internal_listener,
    keystore_properties,
)
from mirrorflow_operator.plan.properties import ConnectorPlan
from mirrorflow_operator.plan.rollouts import MODES, Shape
from mirrorflow_operator.plan.secret_layout import POD_LAYOUT

CONFIG_FOLDER: Final = "/etc/mirrorflow"
WORKER_FILE: Final = "worker.properties"
SECRET_MODE: Final = 0o440
# The restricted Pod Security Standard; no user id, so that any platform may choose one.
POD_SECURITY: Final[Mapping[str, Any]] = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER_SECURITY: Final[Mapping[str, Any]] = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}
# One task under load uses 95 MiB (README, Speed); an idle connector uses 0.01 cores.
REQUESTS: Final = ComputeAmounts(cpu="100m", memory="96Mi")
# For the cluster autoscaler: the emptyDir holds only temporary files, and another pod continues the work.
SAFE_TO_EVICT: Final = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
# So a failed node takes as few pods as possible; a cluster with too few nodes still runs all of them.
SPREAD: Final = (TopologySpread(topology_key="kubernetes.io/hostname"),)
HTTP_PORT: Final = 8080
LISTENERS_KEY: Final = "mirrorflow.http.listeners"
CLIENT_AUTH_KEY: Final = "mirrorflow.http.client.auth"
# A first start loads Python and connects to both clusters; slow disks or DNS must not cause a restart loop.
STARTUP_PERIOD_S: Final = 2
STARTUP_FAILURES: Final = 60
# Liveness checks the event loop, not Kafka: a restart does not repair a broker.
LIVENESS_PERIOD_S: Final = 10
LIVENESS_FAILURES: Final = 6
READINESS_PERIOD_S: Final = 5
TMP_SIZE: Final = "64Mi"  # for Python; the replicator stores nothing on disk


@dataclass(frozen=True, slots=True, kw_only=True)
class Mounts:
    """Names of Secrets and ConfigMaps, sorted, without duplicates."""

    secrets: tuple[str, ...] = ()
    config_maps: tuple[str, ...] = ()


def mounts(properties: Iterable[Mapping[str, str]]) -> Mounts:
    """Returns what *properties* refer to below the folders of POD_LAYOUT, as `${dir:folder:key}` or as a path."""
    values = [value for values in properties for value in values.values()]
    return Mounts(
        secrets=_below(POD_LAYOUT.secrets, values), config_maps=_below(POD_LAYOUT.config_maps, values)
    )


def _below(folder: str, values: Iterable[str]) -> tuple[str, ...]:
    below = re.compile(re.escape(folder) + r"/([a-z0-9][-a-z0-9.]*)[:/]")
    return tuple(sorted({name for value in values for name in below.findall(value)}))


def pod_security(template: Template) -> dict[str, Any]:
    """Returns the restricted pod security context with the ids of *template*, which cannot loosen it."""
    ids = template.security_context.model_dump(mode="json", by_alias=True)
    return {**POD_SECURITY, **{name: given for name, given in ids.items() if given}}


def volume_mounts(mounts: Mounts, template: Template) -> list[dict[str, Any]]:
    """Returns the mounts of settings, temporary files, Secrets and ConfigMaps in the settings, and *template*."""
    return [
        {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  the container's own
        *_volume_mounts("secret", POD_LAYOUT.secrets, mounts.secrets),
        *_volume_mounts("config-map", POD_LAYOUT.config_maps, mounts.config_maps),
        *(
            {"name": volume_mount.name, "mountPath": volume_mount.mount_path, "readOnly": True}
            for volume_mount in template.volume_mounts
        ),
    ]


def environment_variables(template: Template) -> list[dict[str, Any]]:
    """Returns the environment variables of *template*; the kubelet, not the operator, resolves references."""
    log = template.logging
    level = None if log.level is None else log.level.value.upper()
    format_ = None if log.format is None else log.format.value.lower()
    of_log = {"MIRRORFLOW_LOG_LEVEL": level, "MIRRORFLOW_LOG_FORMAT": format_}
    return [
        *({"name": name, "value": value} for name, value in of_log.items() if value is not None),
        *map(_variable, template.env),
    ]


def _variable(variable: EnvironmentVariable) -> dict[str, Any]:
    if variable.value_from is None:
        return {"name": variable.name, "value": variable.value}
    return {"name": variable.name, "valueFrom": _set_fields(variable.value_from)}


def _set_fields(part: ApiModel) -> dict[str, Any]:
    """Returns *part* as Kubernetes writes it, without what has its default."""
    fields: dict[str, Any] = part.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return fields


def pod_field_variable(name: str, field: str) -> dict[str, Any]:
    """Returns variable *name* with the value of a *field* of the pod (downward API)."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field}}}


def resources_of(resources: Resources) -> dict[str, Any]:
    """Returns the requests and limits that are set."""
    parts = {"requests": _amounts(resources.requests), "limits": _amounts(resources.limits)}
    return {name: amounts for name, amounts in parts.items() if amounts}


def _amounts(amounts: ComputeAmounts) -> dict[str, str]:
    given = amounts.model_dump(by_alias=True, exclude_none=True)
    return {name: str(amount) for name, amount in given.items()}


def init_containers(template: Template) -> dict[str, Any]:
    """Returns the field with the init containers and sidecars of *template*; empty without them.

    They may write its emptyDir volumes, which the pod's own container mounts read-only.
    """
    writable = {volume.name for volume in template.volumes if volume.empty_dir is not None}
    containers = [_init_container(init_container, writable) for init_container in template.init_containers]
    return {"initContainers": containers} if containers else {}


def _init_container(container: InitContainer, writable: Collection[str]) -> dict[str, Any]:
    optional: dict[str, Any] = {
        "restartPolicy": container.restart_policy,
        "command": list(container.command),
        "args": list(container.args),
        "env": [_variable(variable) for variable in container.env],
        "resources": resources_of(container.resources),
        "volumeMounts": [
            # The API server stores no readOnly that is false.
            {"name": mount.name, "mountPath": mount.mount_path}
            | ({} if mount.name in writable else {"readOnly": True})
            for mount in container.volume_mounts
        ],
    }
    required = {"name": container.name, "image": container.image, "securityContext": CONTAINER_SECURITY}
    return required | {name: part for name, part in optional.items() if part}


def volumes(config_map: str, mounts: Mounts, template: Template, *, tmp_size: str) -> list[dict[str, Any]]:
    """Returns the volumes; Secrets are mounted whole, so that a key added later needs no new pod."""
    return [
        {"name": "config", "configMap": {"name": config_map}},
        {"name": "tmp", "emptyDir": {"sizeLimit": tmp_size}},
        *(
            {"name": _volume("secret", index), "secret": {"secretName": name, "defaultMode": SECRET_MODE}}
            for index, name in enumerate(mounts.secrets)
        ),
        *(
            {"name": _volume("config-map", index), "configMap": {"name": name}}
            for index, name in enumerate(mounts.config_maps)
        ),
        *map(_additional_volume, template.volumes),
    ]


def _additional_volume(volume: Volume) -> dict[str, Any]:
    fields = _set_fields(volume)
    if volume.csi is not None:
        fields["csi"]["readOnly"] = True
    if volume.secret is not None:
        fields["secret"]["defaultMode"] = SECRET_MODE
    if volume.empty_dir is not None:
        fields["emptyDir"] = {"sizeLimit": str(volume.empty_dir.size_limit)}
    return fields


def _volume_mounts(kind: str, folder: str, names: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {"name": _volume(kind, index), "mountPath": f"{folder}/{name}", "readOnly": True}
        for index, name in enumerate(names)
    ]


def _volume(kind: str, index: int) -> str:
    return f"{kind}-{index}"  # names of Secrets may be longer than names of volumes


def scheduling(template: Template, selector: Mapping[str, str]) -> dict[str, Any]:
    """Returns the set fields for scheduling, image pull Secrets, host aliases and DNS.

    *selector* selects the pods for the topology spread.
    """
    parts: dict[str, Any] = {
        "nodeSelector": dict(template.node_selector),
        "tolerations": [
            toleration.model_dump(by_alias=True, exclude_none=True) for toleration in template.tolerations
        ],
        "affinity": dict(template.affinity),
        "topologySpreadConstraints": [
            {**constraint.model_dump(by_alias=True), "labelSelector": {"matchLabels": dict(selector)}}
            for constraint in template.topology_spread
        ],
        "priorityClassName": template.priority_class_name,
        "imagePullSecrets": [{"name": name} for name in template.image_pull_secrets],
        "hostAliases": [
            {"ip": host_alias.ip, "hostnames": list(host_alias.hostnames)}
            for host_alias in template.host_aliases
        ],
        "dnsConfig": template.dns_config.model_dump(mode="json", by_alias=True, exclude_defaults=True),
    }
    return {name: part for name, part in parts.items() if part}


def with_requests(resources: Resources) -> Resources:
    """Returns *resources* with default requests for what has neither request nor limit.

    Kubernetes uses a limit without a request as the request.
    """
    given = {
        name: getattr(resources.requests, name) or (None if getattr(resources.limits, name) else default)
        for name, default in REQUESTS
    }
    return resources.model_copy(update={"requests": ComputeAmounts(**given)})


def with_defaults(template: Template, *, is_shared: bool) -> Template:
    """Returns *template* with default annotations and, if *is_shared*, the default spread; its own win."""
    return template.model_copy(
        update={
            "annotations": {**SAFE_TO_EVICT, **template.annotations},
            "topology_spread": template.topology_spread or (SPREAD if is_shared else ()),
        }
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorPods:
    """The pods of one Deployment and the connectors inside them; they are named after the first of these."""

    flow: MirrorFlow
    connectors: tuple[ConnectorPlan, ...]
    image: str
    shape: Shape
    is_secure: bool  # they serve HTTPS
    has_defaults: bool  # they have the default requests, spread and annotations

    @property
    def kind(self) -> ConnectorKind:
        return self.connectors[0].kind

    @property
    def name(self) -> str:
        """The name of the Deployment and of the ConfigMap."""
        return names.object_name(self.flow.metadata.name, self.kind)

    @property
    def metadata(self) -> dict[str, Any]:
        return names.metadata(self.flow.metadata.name, self.flow.metadata.namespace, self.name, self.kind)

    @property
    def files(self) -> tuple[str, ...]:
        return file_names([connector.kind for connector in self.connectors])

    @property
    def spec(self) -> Connector:
        """The spec that describes the pods, with defaults."""
        connectors = self.flow.spec.connectors
        spec = connectors.named(connectors.host(self.kind))
        if not self.has_defaults:
            return spec
        template = with_defaults(spec.template, is_shared=self.shape.is_shared)
        return spec.model_copy(update={"resources": with_requests(spec.resources), "template": template})

    @property
    def worker_properties(self) -> dict[str, str]:
        """The worker's properties: the plan's, its listeners, and those of a group of pods."""
        tls = self.flow.spec.internal_rest.tls
        properties = {**self.connectors[0].worker_properties}
        if self.is_secure and tls is not None:
            # Probes and the operator have no client certificate.
            properties |= {**keystore_properties(tls.secret_name), CLIENT_AUTH_KEY: "none"}
        if self.shape.is_shared:
            properties |= distributed_properties(self.flow, self.kind, self.spec)
            # For the internal REST between pods only.
            properties["listeners"] = internal_listener(self.flow)
        return properties | {LISTENERS_KEY: f"{'https' if self.is_secure else 'http'}://0.0.0.0:{HTTP_PORT}"}

    @property
    def mounts(self) -> Mounts:
        return mounts(
            (self.worker_properties, *(connector.connector_properties for connector in self.connectors))
        )

    def template(self, annotations: Mapping[str, str]) -> dict[str, Any]:
        template, name = self.spec.template, self.flow.metadata.name
        own = self.spec.service_account.annotations
        scheme = {names.SCHEME_ANNOTATION: names.HTTPS} if self.is_secure else {}
        return {
            "metadata": {
                "labels": {**template.labels, **names.labels(name, self.kind)},
                "annotations": {**template.annotations, **annotations, **scheme},
            },
            "spec": {
                "serviceAccountName": self.name if own else name,
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "terminationGracePeriodSeconds": template.termination_grace_period_seconds,
                "securityContext": pod_security(template),
                **init_containers(template),
                "containers": [_container(self)],
                "volumes": volumes(self.name, self.mounts, template, tmp_size=TMP_SIZE),
                **scheduling(template, names.selector(name, self.kind)),
            },
        }


def _container(pods: ConnectorPods) -> dict[str, Any]:
    is_shared, is_secure, spec = pods.shape.is_shared, pods.is_secure, pods.spec
    ports = [{"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"}]
    if is_shared:
        ports.append({"name": "internal", "containerPort": INTERNAL_PORT, "protocol": "TCP"})
    container: dict[str, Any] = {
        "name": names.CONTAINER,
        "image": spec.image or pods.image,
        "args": [MODES[is_shared], *(f"{CONFIG_FOLDER}/{file}" for file in (WORKER_FILE, *pods.files))],
        # The last log lines name the wrong setting; the status repeats them. The logs hold no secret.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "ports": ports,
        "startupProbe": _probe("/healthz", STARTUP_PERIOD_S, STARTUP_FAILURES, is_secure=is_secure),
        "livenessProbe": _probe("/healthz", LIVENESS_PERIOD_S, LIVENESS_FAILURES, is_secure=is_secure),
        "readinessProbe": _probe("/readyz", READINESS_PERIOD_S, 1, is_secure=is_secure),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": volume_mounts(pods.mounts, spec.template),
    }
    environment = [
        *([pod_field_variable(POD_IP, "status.podIP")] if is_shared else ()),
        *environment_variables(spec.template),
    ]
    optional = {"resources": resources_of(spec.resources), "env": environment}
    return container | {name: part for name, part in optional.items() if part}


def _probe(path: str, period_s: int, failures: int, *, is_secure: bool) -> dict[str, Any]:
    """Returns an HTTP probe; over HTTPS the kubelet does not verify the certificate."""
    return {
        "httpGet": {"path": path, "port": "http", **({"scheme": "HTTPS"} if is_secure else {})},
        "periodSeconds": period_s,
        "failureThreshold": failures,
        "timeoutSeconds": 5,
    }
