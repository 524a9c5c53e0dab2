"""The pod of one connector, or of those that share it: one container, no privilege, no token, and of secrets only what its properties refer to.

It passes the restricted Pod Security Standard and fixes no user id, so that any platform may choose one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mirrorflow_operator.api.connectors import Connector
from mirrorflow_operator.plan.layout import SecretLayout
from mirrorflow_operator.plan.mounts import Mounts
from mirrorflow_operator.plan.pod_parts import (
    CONFIG_FOLDER,
    CONTAINER_SECURITY,
    POD_SECURITY,
    WORKER_FILE,
    resources_of,
    scheduling,
    variables,
    volume_mounts,
    volumes,
)
from mirrorflow_operator.plan.several import INTERNAL_PORT, pod_environment

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
    files: Sequence[str],
    mounts: Mounts,
    layout: SecretLayout,
    is_shared: bool,
    is_secure: bool,
) -> dict[str, Any]:
    """The pod template of a Deployment, whose ConfigMap has *files* of connectors; *is_shared*: it is one of several that share the connector's work;
    *is_secure*: it speaks TLS.
    """
    template = connector.template
    spec: dict[str, Any] = {
        "serviceAccountName": service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": template.termination_grace_period_seconds,
        "securityContext": POD_SECURITY,
        "containers": [
            _container(connector, image, files, mounts, layout, is_shared=is_shared, is_secure=is_secure)
        ],
        "volumes": volumes(config_map, mounts, tmp_size=TMP_SIZE),
        **scheduling(template, selector),
    }
    return {
        "metadata": {
            "labels": {**template.labels, **labels},
            "annotations": {**template.annotations, **annotations},
        },
        "spec": spec,
    }


def _container(
    connector: Connector,
    image: str,
    files: Sequence[str],
    mounts: Mounts,
    layout: SecretLayout,
    *,
    is_shared: bool,
    is_secure: bool,
) -> dict[str, Any]:
    ports = [{"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"}]
    if is_shared:
        ports.append({"name": "internal", "containerPort": INTERNAL_PORT, "protocol": "TCP"})
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": image,
        "args": [FORMS[is_shared], *(f"{CONFIG_FOLDER}/{file}" for file in (WORKER_FILE, *files))],
        # What a process says as it ends is what its settings lack: the status repeats it. The product's logs hold no secret.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "ports": ports,
        "startupProbe": _probe("/healthz", STARTUP_PERIOD_S, STARTUP_FAILURES, is_secure=is_secure),
        "livenessProbe": _probe("/healthz", LIVENESS_PERIOD_S, LIVENESS_FAILURES, is_secure=is_secure),
        "readinessProbe": _probe("/readyz", READINESS_PERIOD_S, 1, is_secure=is_secure),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": volume_mounts(mounts, layout),
    }
    resources = resources_of(connector.resources)
    if resources:
        container["resources"] = resources
    environment = [*(pod_environment() if is_shared else ()), *variables(connector.template)]
    if environment:
        container["env"] = environment
    return container


def _probe(path: str, period_s: int, failures: int, *, is_secure: bool) -> dict[str, Any]:
    """The kubelet verifies no certificate."""
    return {
        "httpGet": {"path": path, "port": "http", **({"scheme": "HTTPS"} if is_secure else {})},
        "periodSeconds": period_s,
        "failureThreshold": failures,
        "timeoutSeconds": 5,
    }
