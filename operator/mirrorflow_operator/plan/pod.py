"""Builds the pod template of a connector, or of connectors that share a pod.

The pod has one container, no privileges, no token, and only the Secrets that its properties refer to. It
passes the restricted Pod Security Standard and fixes no user id, so that any platform may choose one.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mirrorflow_operator.api.connectors import Connector
from mirrorflow_operator.plan.layout import SecretLayout
from mirrorflow_operator.plan.mounts import Mounts
from mirrorflow_operator.plan.pod_defaults import (
    DEFAULTS,
    DEFAULTS_ANNOTATION,
    with_defaults,
    with_requests,
)
from mirrorflow_operator.plan.pod_parts import (
    CONFIG_FOLDER,
    CONTAINER_SECURITY,
    WORKER_FILE,
    pod_security,
    resources_of,
    scheduling,
    variables,
    volume_mounts,
    volumes,
)
from mirrorflow_operator.plan.replica_sharing import INTERNAL_PORT, pod_environment

HTTP_PORT: Final = 8080
CONTAINER: Final = "replicator"
FORMS: Final[Mapping[bool, str]] = {
    False: "standalone",
    True: "distributed",
}  # subcommand, by whether pods share the connector's work
# A first start loads Python and connects to both clusters; slow disks or DNS must not cause a restart loop.
STARTUP_PERIOD_S: Final = 2
STARTUP_FAILURES: Final = 60
# Liveness checks the event loop, not Kafka: a restart does not repair a broker.
LIVENESS_PERIOD_S: Final = 10
LIVENESS_FAILURES: Final = 6
READINESS_PERIOD_S: Final = 5
TMP_SIZE: Final = "64Mi"  # for Python; the replicator stores nothing on disk


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
    has_defaults: bool = True,
) -> dict[str, Any]:
    """Returns the pod template of a Deployment, whose ConfigMap has the connectors' *files*.

    *is_shared*: several pods share the connector's work. *is_secure*: it serves HTTPS. *has_defaults*: it has
    the defaults of `pod_defaults`.
    """
    if has_defaults:
        connector = connector.model_copy(
            update={
                "resources": with_requests(connector.resources),
                "template": with_defaults(connector.template, is_shared=is_shared),
            }
        )
        annotations = {DEFAULTS_ANNOTATION: DEFAULTS, **annotations}
    template = connector.template
    spec: dict[str, Any] = {
        "serviceAccountName": service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": template.termination_grace_period_seconds,
        "securityContext": pod_security(template),
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
        # The last log lines name the wrong setting; the status repeats them. The logs hold no secret.
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
    """Returns an HTTP probe; over HTTPS the kubelet does not verify the certificate."""
    return {
        "httpGet": {"path": path, "port": "http", **({"scheme": "HTTPS"} if is_secure else {})},
        "periodSeconds": period_s,
        "failureThreshold": failures,
        "timeoutSeconds": 5,
    }
