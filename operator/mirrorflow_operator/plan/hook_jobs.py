"""Builds the Jobs of a pair's hooks for one Switchover. Pure.

They are created suspended. The process of the Switchover starts them by their names (replicator, switchover/hook_jobs.py): it may
read, start and delete them, and Kubernetes does not let it change what a Job runs. So only the operator needs the
right to create Jobs.

As the other objects of a Switchover, they have no owner, and their content is that of the moment at which it began.
"""

from collections.abc import Sequence
from typing import Any, Final

from mirrorflow_core.switchover.hook_jobs import FENCE_KINDS, HookJobKind, hook_job_name
from mirrorflow_operator.api.mirror_pair import Hook, HookJobTemplate, MirrorPair
from mirrorflow_operator.api.workloads import Template
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.pod_template import (
    CONTAINER_SECURITY,
    SECRET_MODE,
    TMP_SIZE,
    environment_variables,
    pod_security,
    resources_of,
    scheduling,
)
from mirrorflow_operator.plan.secret_layout import POD_LAYOUT

HOOK_JOBS_FILE: Final = "hook-jobs.json"  # in the ConfigMap of a Switchover
ID_ANNOTATION: Final = "mirrorflow.io/switchover-id"
HOOK_CONTAINER: Final = "hook"
# A fence that has failed is tried again or lifted, so its pod has no time for long farewells.
_GRACE_S: Final = 5
# A pod that Kubernetes has taken away, as from a drained node, is replaced. What has failed by itself has failed, as a command.
_POD_FAILURES: Final = {
    "rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0]}},
    ]
}
Object = dict[str, Any]


def hook_jobs(pair: MirrorPair, switchover: str, *, source: str, to: str) -> list[Object]:
    """Returns the Jobs of the hooks of *pair* for the Switchover with the id *switchover*; none for commands."""
    endpoint = pair.spec.endpoint
    hooks: list[tuple[Hook | None, Sequence[HookJobKind]]] = [
        (pair.spec.fence.hook, FENCE_KINDS),
        (None if endpoint is None else endpoint.hook, (HookJobKind.PROMOTE,)),
    ]
    return [
        _job(pair, hook, hook.job, kind, switchover, source=source, to=to)
        for hook, kinds in hooks
        if hook is not None and hook.job is not None
        for kind in kinds
    ]


def hook_selector(pair: str) -> str:
    """Returns the label selector of the Jobs of all hooks of a pair."""
    return f"{names.PAIR_LABEL}={pair},{names.HOOK_LABEL}"


def _job(
    pair: MirrorPair,
    hook: Hook,
    template: HookJobTemplate,
    kind: HookJobKind,
    switchover: str,
    *,
    source: str,
    to: str,
) -> Object:
    labels = {
        "app.kubernetes.io/name": "mirrorflow-hook",
        "app.kubernetes.io/instance": pair.metadata.name,
        names.MANAGED_BY: names.MANAGER,
        "app.kubernetes.io/component": "switchover-hook",
        names.PAIR_LABEL: pair.metadata.name,
        names.HOOK_LABEL: kind.value,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": hook_job_name(pair.metadata.name, kind),
            "namespace": pair.metadata.namespace,
            "labels": labels,
            "annotations": {ID_ANNOTATION: switchover},
        },
        "spec": {
            "suspend": True,
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": 0,
            "activeDeadlineSeconds": hook.timeout_seconds,  # counts from when it is started
            "podFailurePolicy": _POD_FAILURES,
            # Two pods could fence and lift at the same time.
            "podReplacementPolicy": "Failed",
            "template": {
                "metadata": {"labels": labels},
                "spec": _pod(pair, template, kind, source=source, to=to),
            },
        },
    }


def _pod(pair: MirrorPair, hook: HookJobTemplate, kind: HookJobKind, *, source: str, to: str) -> Object:
    template = Template(
        env=hook.env, security_context=hook.security_context, image_pull_secrets=hook.image_pull_secrets
    )
    account = {} if hook.service_account_name is None else {"serviceAccountName": hook.service_account_name}
    return {
        "restartPolicy": "Never",
        **account,
        "automountServiceAccountToken": bool(account),
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_S,
        "securityContext": pod_security(template),
        "containers": [_container(pair, hook, template, kind, source=source, to=to)],
        "volumes": [
            {"name": "tmp", "emptyDir": {"sizeLimit": TMP_SIZE}},
            *(
                {"name": f"secret-{index}", "secret": {"secretName": name, "defaultMode": SECRET_MODE}}
                for index, name in enumerate(hook.secrets)
            ),
        ],
        **scheduling(template, {}),
    }


def _container(
    pair: MirrorPair, hook: HookJobTemplate, template: Template, kind: HookJobKind, *, source: str, to: str
) -> Object:
    action, _, side = kind.value.partition("-")
    own = {
        "MIRRORFLOW_ACTION": action,
        "MIRRORFLOW_PAIR": pair.metadata.name,
        "MIRRORFLOW_FROM": source,
        "MIRRORFLOW_TO": to,
    }
    if side:
        own["MIRRORFLOW_MEMBER"] = source if side == "source" else to
    optional = {
        "command": list(hook.command),
        "args": list(hook.args),
        "resources": resources_of(hook.resources),
    }
    return {
        "name": HOOK_CONTAINER,
        "image": hook.image,
        "env": [
            *({"name": name, "value": value} for name, value in own.items()),
            *environment_variables(template),
        ],
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  the container's own
            *(
                {"name": f"secret-{index}", "mountPath": f"{POD_LAYOUT.secrets}/{name}", "readOnly": True}
                for index, name in enumerate(hook.secrets)
            ),
        ],
    } | {name: part for name, part in optional.items() if part}
