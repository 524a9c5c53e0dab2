"""Builds the objects that carry a Switchover out: a Job with the replicator's image, its files, and its NetworkPolicy. Pure.

They have no owner, so that Kubernetes deletes none of them with the Switchover or the MirrorPair: nothing that happens to an
object may end a switchover in the middle. The operator deletes them when the Job has ended and the Switchover is gone. Their content
is that of the moment at which the Job was created, and is never changed.

The files have the properties that the connectors of both flows read (mirrorflow_replicator/switchover/job_settings.py).
Secrets in them are references, as in the connectors' files, and the Job's pod mounts what they refer to.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from mirrorflow_core.java.properties import format_properties
from mirrorflow_core.switchover.last_verification import LastVerification
from mirrorflow_operator.api.authentication import Authentication
from mirrorflow_operator.api.mirror_pair import Hook, MirrorPair
from mirrorflow_operator.api.spec import MirrorFlow, State
from mirrorflow_operator.api.switchover import RehearsalCanary, Switchover
from mirrorflow_operator.api.workloads import ConnectorKind
from mirrorflow_operator.plan import names
from mirrorflow_operator.plan.fence_policies import DIGEST_ANNOTATION, FENCE_POLICIES_FILE, fence_policies
from mirrorflow_operator.plan.hook_jobs import HOOK_JOBS_FILE, ID_ANNOTATION, hook_jobs
from mirrorflow_operator.plan.pod_template import (
    CONFIG_FOLDER,
    CONTAINER_SECURITY,
    TMP_SIZE,
    Mounts,
    environment_variables,
    init_containers,
    mounts,
    pod_security,
    resources_of,
    scheduling,
    volume_mounts,
    volumes,
    with_requests,
)
from mirrorflow_operator.plan.prepared_objects import digests_of, objects_text
from mirrorflow_operator.plan.properties import ConnectorPlan, active_kinds, plan_all
from mirrorflow_operator.plan.secret_layout import POD_LAYOUT
from mirrorflow_operator.plan.spark_pods import PROGRESS_PORT, TERMINATION_FILE

SWITCHOVER_CONTAINER: Final = "switchover"
REQUEST_FILE: Final = "switchover.json"
REQUEST_FORMAT: Final = 2  # `job_settings` reads it
# That of a rehearsal with a canary. An image that runs none refuses it, in place of a rehearsal that shows nothing of it.
CANARY_FORMAT: Final = 3
REQUEST_ANNOTATION: Final = "mirrorflow.io/switchover-request"  # what a Job was created for
# In this time a switchover that is stopped is rolled back: some requests to each cluster, and at most one hook.
ROLLBACK_GRACE_S: Final = 120
# A process that has not ended its switchover is started again for as long as that takes: writes may be refused meanwhile.
RESTARTS_MAX: Final = 1_000_000
Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowOfPair:
    """One flow of the pair, with what its first start has pinned."""

    flow: MirrorFlow
    flow_id: str
    version: str  # of the replicator
    verification: LastVerification | None = None  # by the status of the flow


def object_name_of(switchover: str) -> str:
    """Returns the name of the objects of a Switchover; its name has at most 40 characters."""
    return f"{switchover}-switchover"


def switchover_id(pair: str, switchover: str) -> str:
    """Returns the id in the journal of the pair.

    By name, not by uid: a Switchover that is created again, as by a backup or by Git, is the same one, and is not carried out again.
    """
    return f"{pair}/{switchover}"


def request_of(switchover: Switchover) -> str:
    """Returns the request as text, to compare with that of an earlier Switchover of the same name."""
    return f"{switchover.spec.type} to {switchover.spec.to}"


def switchover_labels(pair: str, switchover: str) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "mirrorflow-switchover",
        "app.kubernetes.io/instance": switchover,
        names.MANAGED_BY: names.MANAGER,
        "app.kubernetes.io/component": "switchover",
        **_selector(pair, switchover),
    }


def switchover_objects(
    switchover: Switchover,
    pair: MirrorPair,
    flows: Mapping[str, FlowOfPair],
    *,
    image: str,
    begin_until_ms: int,
    operator_namespace: str = "",
    last_seen: Mapping[str, Any] | None = None,
) -> list[Object]:
    """Returns the ConfigMap, the NetworkPolicy and the Job of *switchover*, in the order in which they are needed.

    The ConfigMap also has the Jobs of hooks and the NetworkPolicies of the fence, which are created while that Job has not ended.

    *flows*: by the member that is active while they run. *image*: the replicator's, without its tag. After *begin_until_ms*
    (since 1970) the Job begins nothing. *operator_namespace* is that of `names.progress_readers`. *last_seen*: what the pods of the
    flow know of a source that is lost, as of `SourceEnds.document`.
    """
    to = switchover.spec.to
    (source,) = (alias for alias in pair.spec.members if alias != to)
    forward, back = flows[source], flows[to]
    plans = _plans(pair, forward, back, source, has_canary=switchover.spec.canary is not None)
    files = {f"{name}.properties": format_properties(properties) for name, properties in plans.items()}
    endpoint = _endpoint(pair, flows)
    request = _request(switchover, pair, begin_until_ms, last_seen, endpoint, forward.verification)
    policies = fence_policies(pair)
    if policies:
        request["networkFence"] = _network_fence(pair, policies)
        files[FENCE_POLICIES_FILE] = objects_text(list(policies.values()))
    hooks = hook_jobs(pair, request["id"], source=source, to=to)
    if hooks:
        files[HOOK_JOBS_FILE] = objects_text(hooks)
    needs_token = endpoint is not None or bool(hooks) or bool(policies)
    name = object_name_of(switchover.metadata.name)
    metadata = {
        "name": name,
        "namespace": switchover.metadata.namespace,
        "labels": switchover_labels(pair.metadata.name, switchover.metadata.name),
        "annotations": {
            ID_ANNOTATION: request["id"],
            REQUEST_ANNOTATION: request_of(switchover),
            **digests_of(files),
        },
    }
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {REQUEST_FILE: _request_text(request), **files},
        },
        _network_policy(metadata, pair, switchover, operator_namespace),
        _job(metadata, pair, switchover, forward, plans, image, needs_token=needs_token),
    ]


def _plans(
    pair: MirrorPair, forward: FlowOfPair, back: FlowOfPair, source: str, *, has_canary: bool
) -> dict[str, Mapping[str, str]]:
    """Returns the properties by the name of their file."""
    with_groups = _with_groups(forward.flow, pair)
    planned = _planned(with_groups, forward.flow_id)
    planned_back = _planned(back.flow, back.flow_id)
    own, own_back = planned[ConnectorKind.SOURCE], planned_back[ConnectorKind.SOURCE]
    plans = {
        "forward-worker": own.worker_properties,
        "forward-source": own.connector_properties,
        "back-worker": own_back.worker_properties,
        "back-source": own_back.connector_properties,
    }
    if ConnectorKind.CHECKPOINT in active_kinds(with_groups):
        plans["forward-checkpoint"] = planned[ConnectorKind.CHECKPOINT].connector_properties
    probe = pair.spec.members[source].probe
    if probe is not None:
        probing = _planned(_as_identity(forward.flow, probe), forward.flow_id)
        plans["probe-source"] = probing[ConnectorKind.SOURCE].connector_properties
    (target_probe,) = (member.probe for alias, member in pair.spec.members.items() if alias != source)
    if has_canary and target_probe is not None:
        reading = _planned(_as_identity(back.flow, target_probe), back.flow_id)
        plans["target-probe-source"] = reading[ConnectorKind.SOURCE].connector_properties
    return plans


def _planned(flow: MirrorFlow, flow_id: str) -> dict[ConnectorKind, ConnectorPlan]:
    # The settings are those of a running flow, whether it is paused, or stopped until it is the way back.
    running = flow.model_copy(update={"spec": flow.spec.model_copy(update={"state": State.RUNNING})})
    return {
        connector.kind: connector for connector in plan_all(running, POD_LAYOUT, flow_id=flow_id).connectors
    }


def _with_groups(flow: MirrorFlow, pair: MirrorPair) -> MirrorFlow:
    given = {"include": pair.spec.groups.include, "exclude": pair.spec.groups.exclude}
    groups = flow.spec.groups.model_copy(update=given)
    return flow.model_copy(update={"spec": flow.spec.model_copy(update={"groups": groups})})


def _as_identity(flow: MirrorFlow, identity: Authentication) -> MirrorFlow:
    source = flow.spec.source.model_copy(update={"authentication": identity})
    return flow.model_copy(update={"spec": flow.spec.model_copy(update={"source": source})})


def _request(
    switchover: Switchover,
    pair: MirrorPair,
    begin_until_ms: int,
    last_seen: Mapping[str, Any] | None,
    endpoint: Object | None,
    verification: LastVerification | None,
) -> Object:
    spec, wanted = pair.spec, switchover.spec
    return {
        "format": REQUEST_FORMAT if wanted.canary is None else CANARY_FORMAT,
        "id": switchover_id(pair.metadata.name, switchover.metadata.name),
        "pair": pair.metadata.name,
        "type": wanted.type,
        "liveGroups": wanted.live_groups,
        "acceptLoss": wanted.accept_loss,
        "fence": spec.fence.method.value,
        "exceptPrincipals": list(spec.fence.except_principals),
        "fenceHook": _hook(spec.fence.hook, pair),
        "endpointHook": None if spec.endpoint is None else _hook(spec.endpoint.hook, pair),
        "endpoint": endpoint,
        "maxLagMs": spec.readiness.max_lag_seconds * 1_000,
        **_verification(pair, verification),
        **_canary(wanted.canary),
        "refusedMs": spec.deadline_seconds * 1_000,
        "beginUntilMs": begin_until_ms,
        "lastSeen": last_seen,
    }


def _canary(canary: RehearsalCanary | None) -> Object:
    if canary is None:
        return {}
    return {"canary": {"topic": canary.topic, "group": canary.group or canary.topic}}


def _verification(pair: MirrorPair, last: LastVerification | None) -> Object:
    """Returns how recent a verification must be, and the last one; nothing where the pair requires none."""
    within_s = pair.spec.readiness.verified_within_seconds
    if within_s is None:
        return {}
    known = None if last is None else {"run": last.run, "endedMs": last.ended_ms, "isEqual": last.is_equal}
    return {"verifiedWithinMs": within_s * 1_000, "verification": known}


def _request_text(request: Object) -> str:
    """Returns the request as JSON, a field a line; ends of thousands of partitions stay in one."""
    fields = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in request.items()]
    return "{\n" + ",\n".join(fields) + "\n}"


def _endpoint(pair: MirrorPair, flows: Mapping[str, FlowOfPair]) -> Object | None:
    """Returns the object that leads clients, with its value for each member; None where there is none, or a hook."""
    endpoint = pair.spec.endpoint
    if endpoint is None or endpoint.hook is not None:
        return None
    values: Mapping[str, str]
    if endpoint.service is not None:
        kind, name, key, values = "Service", endpoint.service.name, "", endpoint.service.external_names
    else:
        assert endpoint.config_map is not None  # one of the three, by a rule
        kind, name, key = "ConfigMap", endpoint.config_map.name, endpoint.config_map.key
        values = endpoint.config_map.values or {
            alias: ",".join(of_pair.flow.spec.source.bootstrap_servers) for alias, of_pair in flows.items()
        }
    return {
        "kind": kind,
        "namespace": pair.metadata.namespace,
        "name": name,
        "key": key,
        "values": dict(values),
    }


def _hook(hook: Hook | None, pair: MirrorPair) -> Object | None:
    if hook is None:
        return None
    what = {"command": list(hook.command or ())} if hook.job is None else {"jobsIn": pair.metadata.namespace}
    return {**what, "timeoutSeconds": hook.timeout_seconds}


def _network_fence(pair: MirrorPair, policies: Mapping[str, Object]) -> Object:
    fence = pair.spec.fence.network_policy
    assert fence is not None  # it has policies
    return {
        "namespace": pair.metadata.namespace,
        "settleSeconds": fence.settle_seconds,
        "policies": {
            alias: {
                "name": policy["metadata"]["name"],
                "digest": policy["metadata"]["annotations"][DIGEST_ANNOTATION],
            }
            for alias, policy in policies.items()
        },
    }


def _job(
    metadata: Object,
    pair: MirrorPair,
    switchover: Switchover,
    forward: FlowOfPair,
    plans: Mapping[str, Mapping[str, str]],
    image: str,
    *,
    needs_token: bool,
) -> Object:
    source = forward.flow.spec.connectors.source
    template, name = source.template, metadata["name"]
    flow = forward.flow.metadata.name
    account = f"{flow}-source" if source.service_account.annotations else flow
    own_mounts = mounts(plans.values())
    container = _container(forward, own_mounts, image)
    selector = _selector(pair.metadata.name, switchover.metadata.name)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "completions": 1,
            "parallelism": 1,
            "backoffLimit": RESTARTS_MAX,
            # Two processes would wait for each other.
            "podReplacementPolicy": "Failed",
            "template": {
                "metadata": {
                    "labels": {**template.labels, **metadata["labels"]},
                    "annotations": dict(template.annotations),
                },
                "spec": {
                    "restartPolicy": "OnFailure",
                    "serviceAccountName": account,
                    # With it, the process switches the endpoint, starts the Jobs of hooks, and puts NetworkPolicies in force: Roles limit
                    # it to these objects.
                    "automountServiceAccountToken": needs_token,
                    "enableServiceLinks": False,
                    "terminationGracePeriodSeconds": max(
                        ROLLBACK_GRACE_S, template.termination_grace_period_seconds
                    ),
                    "securityContext": pod_security(template),
                    **init_containers(template),
                    "containers": [container],
                    "volumes": volumes(name, own_mounts, template, tmp_size=TMP_SIZE),
                    **scheduling(template, selector),
                },
            },
        },
    }


def _container(forward: FlowOfPair, own_mounts: Mounts, image: str) -> Object:
    source = forward.flow.spec.connectors.source
    return {
        "name": SWITCHOVER_CONTAINER,
        "image": source.image or f"{image}:{forward.version}",
        "command": ["python3", "-m", "mirrorflow_cli.switchover_job", CONFIG_FOLDER],
        "env": [
            {"name": "HTTP_PORT", "value": str(PROGRESS_PORT)},
            {"name": "TERMINATION_MESSAGE", "value": TERMINATION_FILE},
            *environment_variables(source.template),
        ],
        "terminationMessagePath": TERMINATION_FILE,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "ports": [{"name": "progress", "containerPort": PROGRESS_PORT, "protocol": "TCP"}],
        "resources": resources_of(with_requests(source.resources)),
        "securityContext": CONTAINER_SECURITY,
        "volumeMounts": volume_mounts(own_mounts, source.template),
    }


def _selector(pair: str, switchover: str) -> dict[str, str]:
    return {names.PAIR_LABEL: pair, names.SWITCHOVER_LABEL: switchover}


def _network_policy(
    metadata: Object, pair: MirrorPair, switchover: Switchover, operator_namespace: str
) -> Object:
    """Returns the NetworkPolicy by which only readers of progress reach the Job's pod."""
    selector = _selector(pair.metadata.name, switchover.metadata.name)
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata,
        "spec": {
            "podSelector": {"matchLabels": selector},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "from": names.progress_readers(operator_namespace),
                    "ports": [{"port": PROGRESS_PORT, "protocol": "TCP"}],
                }
            ],
        },
    }
